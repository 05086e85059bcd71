"""Training works without the package `spml.accel`."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from spml.training.accelerator import EagerAccelerator, choose_accelerator

TRAIN = """
import importlib.abc, sys
from pathlib import Path

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "spml.accel" or name.startswith("spml.accel."):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

hidden = sys.argv[2] == "hidden"
if hidden:
    sys.meta_path.insert(0, Hide())
import numpy as np, torch
from spml.data import ImageStore
from spml.labels import Labels
from spml.methods import method
from spml.models import build_classifier
from spml.training.accelerator import EagerAccelerator, choose_accelerator
from spml.training.examples import Examples
from spml.training.experiment import Experiment
from spml.training.linear import train_heads
from spml.training.settings import TrainSettings
from spml.training.network.trainer import Trainer

assert not hidden or isinstance(choose_accelerator(torch.device("cuda")), EagerAccelerator)
torch.set_num_threads(1)
labels = Labels.from_indices(np.arange(8) % 2, list("ab"))
pixels = np.random.default_rng(0).integers(0, 255, (8, 3, 32, 32), dtype=np.uint8)
examples = Examples(ImageStore.from_array(pixels), np.arange(8), labels)
torch.manual_seed(0)
network = build_classifier("small", 2, pretrained=False, image_size=32)
trainer = Trainer(sys.argv[1], network, method("em"), examples, examples, TrainSettings(epochs=1, batch_size=4),
                  device="cpu", progress=False)
assert trainer.fit()["epoch"] == 1
features = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
assert len(train_heads(features, labels, [Experiment.linear("an", epochs=1)], progress=False)) == 1
print(float(sum(p.double().sum() for p in network.parameters())))
"""


def test_trains_the_same_without_accel(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    sums = []
    for name in ("hidden", "visible"):
        command = [sys.executable, "-c", TRAIN, str(tmp_path / name), name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        sums.append(float(done.stdout))
    assert np.isfinite(sums[0])
    assert sums[0] == sums[1]


@pytest.mark.parametrize("accelerate", [True, False])
def test_cpu_runs_eagerly(accelerate):
    assert isinstance(choose_accelerator(torch.device("cpu"), accelerate), EagerAccelerator)
