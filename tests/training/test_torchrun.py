"""`spml train` in two processes: one of them writes the files, and an interrupt stops both at the same step."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spml.runs.folder import open_run

ROWS, CLASSES, SIZE = 64, 4, 32


@pytest.fixture
def data(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for row in range(ROWS):
        folder = tmp_path / "photos" / f"class {row % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (SIZE, SIZE, 3)) // (1 + row % CLASSES)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{row}.png")
    return tmp_path


def command(data: Path, out: str, processes: int, epochs: int) -> list[str]:
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", "spml"]
    options = ["--model", "small-nf", "--size", str(SIZE), "--epochs", str(epochs), "--batch-size", "16"]
    return [
        sys.executable,
        *start,
        "train",
        str(data / "photos"),
        "--out",
        str(data / out),
        "--device",
        "cpu",
        *options,
    ]


def test_features_are_trained_by_one_process(data: Path) -> None:
    np.save(data / "x.npy", np.eye(8, dtype=np.float32))
    np.save(data / "y.npy", np.arange(8) % 2)
    whole = command(data, "run", 2, 1)
    whole = [*whole[: whole.index("train") + 1], str(data / "x.npy"), "--labels", str(data / "y.npy")]
    done = subprocess.run(
        [*whole, "--out", str(data / "run")], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert "features and texts are trained by one process: start it without torchrun" in done.stderr + done.stdout
    assert done.returncode != 0
    assert not (data / "run").exists()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def test_two_processes_equal_one(data: Path) -> None:
    for processes in (1, 2):
        done = subprocess.run(
            command(data, str(processes), processes, 2), env=environment(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Next: spml recover") == 1  # only one process prints
    one, two = (open_run(data / str(processes)) for processes in (1, 2))
    assert two.names == one.names
    np.testing.assert_allclose(two.probabilities, one.probabilities, atol=1e-4)
    assert not list((data / "2").glob(".*"))  # no temporary files
    assert len(two.log) == len(one.log)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_interrupted_processes_leave_a_checkpoint(data: Path) -> None:
    out, whole = data / "run", command(data, "run", 2, 100_000)
    with (data / "output").open("w") as output:
        started = subprocess.Popen(whole, env=environment(), stdout=output, stderr=output, start_new_session=True)
        try:
            until = time.monotonic() + 120
            while not (out / "log.jsonl").exists() and started.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            assert (out / "log.jsonl").exists(), (data / "output").read_text()
            for worker in children(started.pid):  # one after another
                with suppress(ProcessLookupError):  # it ended with the first one
                    os.kill(worker, signal.SIGINT)
                time.sleep(0.02)
            started.wait(120)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
    text = (data / "output").read_text()
    assert text.count("Interrupted. Run the same command to resume.") <= 1, text  # 0: torchrun was faster
    assert not re.search(r"gloo|Connection|ProcessGroup", text), text
    assert (out / "last.safetensors").exists()


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
