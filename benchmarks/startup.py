"""Start-up time of the command and the import, and a profile of `spml quickstart`.

    python benchmarks/startup.py --record      # spml --help, and import spml compared with import torch
    python benchmarks/startup.py --profile     # one method's training and report, part by part

Times are the best of several starts, since other programs can only slow one down. Compare the CPU times.
"""

import argparse
import cProfile
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import record

SPML = "import torch, spml; spml.loss('an'), spml.Labels, spml.metrics.average_precision"
STARTS = {
    "spml --help": [sys.executable, "-m", "spml", "--help"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import torch, spml": [sys.executable, "-c", SPML],
}
# name: file and function; the time includes the functions it calls
PARTS = {
    "drawing the scenes": ("scenes.py", "scenes"),
    "training steps: batches and views": ("batches.py", "make"),
    "training steps: forward, backward, optimiser": ("step.py", "_optimise"),
    "validation and checkpoints": ("trainer.py", "_end_epoch"),
    "predictions for all rows": ("finish.py", "finish"),
    "recovery and scores": ("quickstart.py", "_result"),
    "report": ("page.py", "write_report"),
}


def start(command: list[str], repeat: int) -> tuple[float, float]:
    """Minimum of wall and CPU seconds."""
    walls, busy = [], []
    for _ in range(repeat):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(walls), min(busy)


def starts(repeat: int, keep: bool) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    found = {name: start(command, repeat) for name, command in STARTS.items()}
    for name, (wall, busy) in found.items():
        print(f"{name:22}{wall:8.2f} s, {busy:.2f} s of processor")
    added = found["import torch, spml"][1] - found["import torch"][1]
    print(f"import spml adds {added:.2f} s of processor to torch")
    if keep:
        wall, busy = found["spml --help"]
        record("start-up help", wall, None, "", 0, processor_seconds=f"{busy:.3f}")
        ours, theirs = found["import torch, spml"], found["import torch"]
        record("start-up import", ours[1], theirs[1], "import torch", 0, added_seconds=f"{added:.3f}")


def profile(scale: float) -> None:
    """Profile one method of the quickstart with its report, by CPU time."""
    import torch

    torch.set_num_threads(1)
    watch = cProfile.Profile(time.process_time)
    with tempfile.TemporaryDirectory() as name:
        began = time.process_time()
        watch.enable()
        from spml.bench import quickstart
        from spml.report import write_report
        from spml.runs.folder import open_run

        imported = time.process_time() - began
        quickstart._train(Path(name, "auto"), "auto", {"train": round(8000 * scale), "test": round(1000 * scale)})
        result = quickstart._result(open_run(Path(name, "auto")))
        write_report([result.run], Path(name, "report.html"))
        watch.disable()
    stats = pstats.Stats(watch)
    total = stats.total_tt  # type: ignore[attr-defined]
    inside = {(Path(file).name, function): row[3] for (file, _, function), row in stats.stats.items()}  # type: ignore[attr-defined]
    shares = {part: inside[where] / total for part, where in PARTS.items()}
    shares["imports, torch's apart"] = imported / total
    shares["the rest"] = 1 - sum(shares.values())
    print(f"{total:.1f} s of processor, one thread")
    for part, share in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"{100 * share:5.1f} %  {part}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the built-in data, for --profile")
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()
    if options.profile:
        profile(options.scale)
    else:
        starts(options.repeat, options.record)


if __name__ == "__main__":
    main()
