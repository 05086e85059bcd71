"""Accelerated training equals eager training. Needs a GPU."""

import numpy as np
import pytest
import torch

import spml
from spml.data import ImageStore
from spml.methods import METHODS, method
from spml.models import build_classifier
from spml.runs.log import read_log
from spml.testing.tiny import tiny_examples
from spml.training.accelerator import EagerAccelerator
from spml.training.examples import Examples
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings

pytest.importorskip("spml.accel")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """Adam's steps are as long for tiny gradients as for large ones, so TF32's rounding would change the result."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    matmul = torch.backends.cuda.matmul  # monkeypatch cannot restore its attributes
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    yield
    matmul.allow_tf32 = before


def fresh(name):
    chosen = method(name)
    head = {"width": 32, "dropout": 0.0} if chosen.needs.head == "label-wise" else {}
    classes = tiny_examples(chosen, 42).labels.num_classes
    torch.manual_seed(0)
    return build_classifier("small", classes, chosen.needs.head, image_size=32, **head)


def trained(name, folder, accelerate, precision="32"):
    chosen = method(name)
    labels = tiny_examples(chosen, 42).labels
    pixels = np.random.default_rng(0).integers(0, 255, (42, 3, 32, 32), dtype=np.uint8)
    store = ImageStore.from_array(pixels)
    assert store.to_device("cuda")
    classifier = fresh(name)
    settings = TrainSettings(
        epochs=3,
        batch_size=8,
        learning_rate=1e-3,
        averaging=0.9,
        schedule="cosine",
        precision=precision,
        accelerate=accelerate,
    )
    examples = Examples(store, np.arange(42), labels)
    run = Trainer(folder, classifier, chosen, examples, examples, settings, k=1.5, device="cuda", progress=False)
    run.fit()
    return run


def apart(one, other):
    """The distance between two trained networks, relative to how far they moved; rounding alone gives up to 0.01."""
    start, ends = fresh(one.method.name).state_dict(), (one.classifier.state_dict(), other.classifier.state_dict())
    floats = [key for key, value in start.items() if value.is_floating_point()]
    first, second = (torch.cat([end[key].double().flatten() for key in floats]) for end in ends)
    initial = torch.cat([start[key].double().flatten() for key in floats]).to(first)
    return float((first - second).norm() / (first - initial).norm())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_accelerated_equals_eager(name, tmp_path):
    plain, recorded = trained(name, tmp_path / "plain", False), trained(name, tmp_path / "recorded", True)
    assert isinstance(plain.accelerator, EagerAccelerator)
    assert recorded.accelerator.graph.graph is not None
    assert apart(plain, recorded) < 0.05


@pytest.mark.parametrize("name", ["an", "lasd", "l2r", "lac"])
def test_accelerated_equals_eager_in_bfloat16(name, tmp_path):
    """Weights converted at once and fused normalisation round differently, but training is the same."""
    plain, recorded = (trained(name, tmp_path / str(on), on, "bf16") for on in (False, True))
    assert recorded.accelerator.weights is not None
    losses = [
        [line["loss"] for line in read_log(run.folder / "log.jsonl") if line["kind"] == "epoch"]
        for run in (plain, recorded)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("name", ["an", "auto", "em-apl", "role", "pr"])
def test_heads_on_features_equal_those_of_a_cpu(name, tmp_path):
    draw = np.random.default_rng(0)
    index = draw.integers(0, 5, 90)
    features = draw.standard_normal((90, 12)) + 2 * np.eye(5, 12)[index]
    np.save(tmp_path / "x.npy", features.astype(np.float16))
    np.save(tmp_path / "y.npy", index)
    ends = []
    for device in ("cpu", "cuda"):
        options = {"k": 1.5, "device": device, "labels": tmp_path / "y.npy", "progress": False}
        run = spml.train(tmp_path / "x.npy", out=tmp_path / device, method=name, **options)
        ends.append(run.predict(features.astype(np.float32)))
    np.testing.assert_allclose(*ends, atol=0.02)
