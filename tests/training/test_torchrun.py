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
import torch
from PIL import Image

import spml
from spml.errors import InputError
from spml.runs.folder import open_run
from spml.training.device import default_precision

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
    train = ["train", str(data / "photos"), "--out", str(data / out), "--device", "cpu"]
    options = ["--model", "small-nf", "--size", str(SIZE), "--epochs", str(epochs), "--batch-size", "16"]
    return [sys.executable, *start, *train, *options]


def test_features_are_trained_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.eye(8, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.arange(8) % 2)
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun sets it
    with pytest.raises(InputError, match="features and texts are trained by one process: start it without torchrun"):
        spml.train(tmp_path / "x.npy", out=tmp_path / "run", labels=tmp_path / "y.npy", device="cpu")
    assert not (tmp_path / "run").exists()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def test_two_processes_equal_one(data: Path) -> None:
    options = {"model": "small-nf", "size": SIZE, "epochs": 2, "batch_size": 16, "device": "cpu"}
    spml.train(data / "photos", out=data / "one", progress=False, **options)
    done = subprocess.run(command(data, "two", 2, 2), env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Next: spml recover") == 1  # only one process prints
    one, two = open_run(data / "one"), open_run(data / "two")
    assert two.names == one.names
    rounding = 1e-4 if default_precision(torch.device("cpu")) == "32" else 0.02  # bfloat16 has 8 bits
    np.testing.assert_allclose(two.probabilities, one.probabilities, atol=rounding)
    assert not list((data / "two").glob(".*"))  # no temporary files
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
