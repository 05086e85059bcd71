"""Kill commands at every write and at random: the old file or the new one is there, and the same command resumes.

`SPML_LONG_TESTS=1` kills at every write; without it, at a few of them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spml.runs.folder import open_run
from support.attacks import folder, matrix

LONG = os.environ.get("SPML_LONG_TESTS") == "1"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals and file locks")

KILLED = """
import os, signal, sys
import spml.atomic as atomic
left = int(sys.argv.pop(1))
replace = os.replace

def counted(source, target):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    replace(source, target)

atomic.os.replace = counted
from spml.cli import main
sys.argv[0] = "spml"
main()
"""


def run(*arguments: Any, kill_at: int = -1) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, killed before it moves its file number `kill_at` into place."""
    command = [sys.executable, "-c", KILLED, str(kill_at), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def train(root: Path) -> tuple[Any, ...]:
    options = ("--method", "em", "--model", "small", "--size", "12", "--epochs", "2", "--device", "cpu")
    return ("train", root / "photos", "--out", root / "run", *options)


def content(run_folder: Path) -> dict[str, Any]:
    """What a training decides, without times."""
    opened = open_run(run_folder)
    return {"probabilities": opened.probabilities.tolist(), "best": opened.best, "names": opened.names}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("whole")
    folder(root / "photos")
    ended = run(*train(root))
    assert ended.returncode == 0, ended.stderr
    return content(root / "run")


@pytest.mark.parametrize("write", range(14) if LONG else (1, 4, 7))
def test_training_killed_at_a_write_resumes_to_the_same_result(
    write: int, expected: dict[str, Any], tmp_path: Path
) -> None:
    folder(tmp_path / "photos")
    killed = run(*train(tmp_path), kill_at=write)
    if killed.returncode == 0:
        pytest.skip("the training has fewer writes")
    assert killed.returncode == -signal.SIGKILL
    resumed = run(*train(tmp_path))
    assert resumed.returncode == 0, resumed.stderr
    assert content(tmp_path / "run") == expected
    assert not [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("command", ["predict", "recover"])
def test_a_killed_output_leaves_the_old_file_and_no_rest(command: str, tmp_path: Path) -> None:
    folder(tmp_path / "photos")
    assert run(*train(tmp_path)).returncode == 0
    out = tmp_path / "out.csv"
    out.write_text("of the user")
    inputs = (tmp_path / "photos" / "cat",) if command == "predict" else ()
    arguments = (command, tmp_path / "run", *inputs, "--out", out, "--force")
    assert run(*arguments, kill_at=0).returncode == -signal.SIGKILL
    assert out.read_text() == "of the user"
    assert run(*arguments).returncode == 0
    assert out.read_text() != "of the user"
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def children(process: int) -> list[int]:
    """The processes that a process started, by /proc."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found.append(int(status.parent.name))
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_of_a_killed_benchmark_end_within_two_seconds(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom spml.bench.workers import in_workers\nimport time\n"
        "if __name__ == '__main__':\n"
        "    print('start', flush=True)\n"
        "    list(in_workers(time.sleep, [(100,), (100,)], ['a', 'b'], device='cpu', workers=2, abrupt=True))\n"
    )
    (tmp_path / "bench.py").write_text(code)
    with subprocess.Popen([sys.executable, str(tmp_path / "bench.py")], stdout=subprocess.PIPE) as process:
        try:
            until = time.monotonic() + 60
            workers: list[int] = []
            while time.monotonic() < until and len(workers) < 2:
                workers = [child for child in children(process.pid) if is_worker(child)]
                time.sleep(0.2)
            assert len(workers) >= 2
            time.sleep(8)  # until they have imported what they need and watch their caller
        finally:
            process.kill()
    until = time.monotonic() + 2
    while time.monotonic() < until and any(map(alive, workers)):
        time.sleep(0.05)
    assert not any(map(alive, workers))


def is_worker(process: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.skipif(not LONG, reason="set SPML_LONG_TESTS=1")
def test_a_million_rows_are_predicted_within_a_memory_limit(tmp_path: Path) -> None:
    import resource

    data = matrix(tmp_path)
    assert run("train", data, "--out", tmp_path / "run", "--device", "cpu").returncode == 0
    rows = 1_000_000
    values = np.lib.format.open_memmap(tmp_path / "many.npy", "w+", np.float32, (rows, 4))
    values[:] = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32).repeat(rows // 1000, 0)
    values.flush()
    command = [sys.executable, "-m", "spml", "predict", tmp_path / "run", tmp_path / "many.npy"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    ended = subprocess.run([*map(str, command), "--out", str(tmp_path / "out.jsonl"), "--device", "cpu"], timeout=1200)
    assert ended.returncode == 0
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, 1.5 * 2**20)  # KiB
    with (tmp_path / "out.jsonl").open() as file:
        names = {json.loads(line)["row"] for line in file}
    assert len(names) == rows
