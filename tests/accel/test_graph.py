"""A recorded step does what the step does. Needs a GPU."""

import numpy as np
import pytest
import torch

from spml.data import ImageStore
from spml.methods import METHODS, method
from spml.models import build_classifier
from spml.runs.files import read_tensors
from spml.runs.log import read_log
from spml.testing.tiny import tiny_examples
from spml.train.examples import Examples
from spml.train.job import TrainJob, train_job
from spml.train.settings import TrainSettings
from spml.train.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """Adam makes steps of equal size of large and tiny gradients: what TF32 rounds away would be learned."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    matmul = torch.backends.cuda.matmul  # its attributes are not its own, which monkeypatch cannot undo
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    yield
    matmul.allow_tf32 = before


def fresh(name):
    made = method(name)
    head = {"width": 32, "dropout": 0.0} if made.needs.head == "label-wise" else {}
    classes = tiny_examples(made, 42).labels.num_classes
    torch.manual_seed(0)
    return build_classifier("small", classes, made.needs.head, image_size=32, **head)


def trained(name, folder, graphs, precision="32"):
    made = method(name)
    labels = tiny_examples(made, 42).labels
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
        graphs=graphs,
        kernels=graphs,
    )
    examples = Examples(store, np.arange(42), labels)
    run = Trainer(folder, classifier, made, examples, examples, settings, k=1.5, device="cuda", progress=False)
    run.fit()
    return run


def apart(one, other):
    """How far two runs have gone apart, as a share of how far they went: rounding alone makes it up to 0.01."""
    start, ends = fresh(one.method.name).state_dict(), (one.classifier.state_dict(), other.classifier.state_dict())
    floats = [key for key, value in start.items() if value.is_floating_point()]
    first, second = (torch.cat([end[key].double().flatten() for key in floats]) for end in ends)
    begun = torch.cat([start[key].double().flatten() for key in floats]).to(first)
    return float((first - second).norm() / (first - begun).norm())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_recorded_steps_equal_steps(name, tmp_path):
    plain, recorded = trained(name, tmp_path / "plain", False), trained(name, tmp_path / "recorded", True)
    assert plain._graph is None
    assert recorded._graph.graph is not None
    assert apart(plain, recorded) < 0.05


@pytest.mark.parametrize("name", ["an", "lasd", "l2r", "lac"])
def test_recorded_steps_in_bfloat16_go_the_same_way(name, tmp_path):
    """Weights in bfloat16 all at once, and fused normalisation: other roundings, the same training."""
    plain, recorded = (trained(name, tmp_path / str(graphs), graphs, "bf16") for graphs in (False, True))
    assert recorded._half is not None
    losses = [
        [line["loss"] for line in read_log(run.folder / "log.jsonl") if line["kind"] == "epoch"]
        for run in (plain, recorded)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


@pytest.mark.parametrize("name", ["an", "auto", "em-apl", "role", "pr"])
def test_heads_on_features_learn_what_they_learn_on_a_cpu(name, tmp_path):
    draw = np.random.default_rng(0)
    index = draw.integers(0, 5, 90)
    features = draw.standard_normal((90, 12)) + 2 * np.eye(5, 12)[index]
    np.save(tmp_path / "x.npy", features.astype(np.float16))
    np.save(tmp_path / "y.npy", index)
    ends = []
    for device in ("cpu", "cuda"):
        job = TrainJob(str(tmp_path / "x.npy"), {"labels": str(tmp_path / "y.npy")}, name, k=1.5, device=device)
        best = train_job(job, tmp_path / device, say=lambda text: None, progress=False)
        ends.append((best["score"], read_tensors(tmp_path / device / "best.safetensors")[0]["linear.weight"]))
    assert ends[0][0] == pytest.approx(ends[1][0], abs=0.02)
    torch.testing.assert_close(ends[0][1], ends[1][1], rtol=1e-2, atol=1e-3)
