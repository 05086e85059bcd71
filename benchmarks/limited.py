"""Run commands under a memory limit and measure their peak memory and their time at three sizes."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

GROUPS = Path("/sys/fs/cgroup/memory")  # control groups, version 1


@dataclass(frozen=True)
class Used:
    """Time and memory of a command."""

    seconds: float
    busy: float
    """CPU time in seconds, which does not depend on other programs."""
    anonymous: int
    """Peak of RssAnon in bytes, sampled 20 times per second: its own memory, without pages of mapped files."""
    group: int | None
    """Peak of its control group in bytes, page cache included; None if there is no control group."""
    output: str


@contextmanager
def _group(limit: int) -> Iterator[Path | None]:
    """Create a control group with this limit; None if this process is not allowed to."""
    path = GROUPS / f"spml-benchmark-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        yield None
        return
    try:
        yield path
    finally:
        path.rmdir()


def run(command: list[str], limit: int, threads: int = 1) -> Used:
    """Run a command to its end; if it fails, raise SystemExit with its output.

    If control groups are available, the limit includes the page cache, as on a machine with that much memory.
    Otherwise nothing is enforced, and `anonymous` is the memory that was needed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)}
    with _group(limit) as group:

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, preexec_fn=enter
        )
        anonymous = 0
        while True:
            anonymous = max(anonymous, _anonymous(child.pid))
            try:
                output, _ = child.communicate(timeout=0.05)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if child.returncode:
            killed = " (killed: over the limit?)" if child.returncode == -9 else ""
            raise SystemExit(f"{' '.join(command)} failed{killed}:\n{output}")
        most = None if group is None else int((group / "memory.max_usage_in_bytes").read_text())
        return Used(seconds, busy, anonymous, most, output)


def _anonymous(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def in_turns(
    stages: Callable[[int], dict[str, Used]], sizes: tuple[int, int, int], times: int
) -> tuple[dict[str, Used], ...]:
    """Medians of each command at each size; the first size measures the start-up time.

    The speed of a machine changes over time, so the sizes take turns, each after a run of the first size.
    """
    first, *others = sizes
    runs: dict[int, list[dict[str, Used]]] = {size: [] for size in sizes}
    for size in others * times:
        runs[first].append(stages(first))
        runs[size].append(stages(size))
    return tuple({stage: _typical([run[stage] for run in ran]) for stage in ran[0]} for ran in runs.values())


def _typical(runs: Sequence[Used]) -> Used:
    """Median times and peak memory. The minimum would not do, because differences of these times are taken."""
    return replace(
        runs[0],
        seconds=median(used.seconds for used in runs),
        busy=median(used.busy for used in runs),
        anonymous=max(used.anonymous for used in runs),
        group=None if runs[0].group is None else max(used.group or 0 for used in runs),
    )


def compare(
    used: Sequence[dict[str, Used]], sizes: tuple[int, int, int], what: str, scale: float
) -> Iterator[tuple[str, float, float, dict[str, object]]]:
    """Print the marginal cost of one row at the second and third size, beyond the first; `used` is from `in_turns`.

    `what` and `scale` are the unit, such as "µs per row" and 1e6. Yields (stage, seconds per row with few rows, with
    many rows, values to record).
    """
    start_up, few, many = sizes
    header = (f"at {few:,}", f"at {many:,}", "ratio", "of CPU time", "own GiB", "group GiB")
    print(f"{what:12}" + "".join(f"{text:>14}" for text in header))
    one = what.split(" ", 1)[1].replace(" ", "_")  # per_row
    for stage in used[0]:
        first, small, large = (at_size[stage] for at_size in used)
        more, most = few - start_up, many - start_up
        here, there = (small.seconds - first.seconds) / more, (large.seconds - first.seconds) / most
        busy_here, busy_there = (small.busy - first.busy) / more, (large.busy - first.busy) / most
        group = "not limited" if large.group is None else f"{large.group / 2**30:.2f}"
        numbers = f"{scale * here:14.3f}{scale * there:14.3f}{there / here:14.2f}{busy_there / busy_here:14.2f}"
        print(f"{stage:12}{numbers}{large.anonymous / 2**30:14.2f}{group:>14}")
        yield (
            stage,
            here,
            there,
            {
                "limited": "group-with-page-cache" if large.group is not None else "no",
                "own_bytes": large.anonymous,
                "own_bytes_at_fewer": small.anonymous,
                f"busy_seconds_{one}": f"{busy_there:.3g}",
                f"busy_seconds_{one}_at_fewer": f"{busy_here:.3g}",
                "start_up_seconds": f"{first.seconds:.2f}",
            },
        )
