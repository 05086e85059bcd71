"""A recorded step does what the step does. Needs a GPU."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from spml.checks import tiny_examples
from spml.data import ImageStore
from spml.methods import METHODS, method
from spml.models import build_classifier
from spml.train.graph import LAUNCH
from spml.train.loop import Examples, Run
from spml.train.settings import TrainSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trained(name, folder, graphs):
    made = method(name)
    labels = tiny_examples(made, 42).labels
    pixels = np.random.default_rng(0).integers(0, 255, (42, 3, 32, 32), dtype=np.uint8)
    store = ImageStore.from_array(pixels)
    assert store.to_device("cuda")
    head = {"width": 32, "dropout": 0.0} if made.needs.head == "label-wise" else {}
    with LAUNCH:  # the weights are drawn from torch's one generator
        torch.manual_seed(0)
        classifier = build_classifier("small", labels.num_classes, made.needs.head, image_size=32, **head)
    settings = TrainSettings(
        epochs=3, batch_size=8, learning_rate=1e-3, averaging=0.9, schedule="cosine", graphs=graphs
    )
    examples = Examples(store, np.arange(42), labels)
    run = Run(folder, classifier, made, examples, examples, settings, k=1.5, device="cuda", progress=False)
    run.fit()
    return run


@pytest.mark.parametrize("name", sorted(METHODS))
def test_recorded_steps_equal_steps(name, tmp_path):
    plain, recorded = trained(name, tmp_path / "plain", False), trained(name, tmp_path / "recorded", True)
    assert plain._graph is None
    assert recorded.method.needs.geometry or recorded._graph.graph is not None
    for (key, a), b in zip(
        plain.classifier.state_dict().items(), recorded.classifier.state_dict().values(), strict=True
    ):
        assert torch.allclose(a.float(), b.float(), atol=3e-3, rtol=1e-2), f"{name}: {key}"


def test_two_runs_that_share_a_gpu_learn_what_each_learns_alone(tmp_path):
    alone = [trained(name, tmp_path / f"{name}-alone", True) for name in ("em", "role")]

    def aside(name):
        with torch.cuda.stream(torch.cuda.Stream()):
            return trained(name, tmp_path / f"{name}-shared", True)

    with ThreadPoolExecutor(2) as pool:
        shared = list(pool.map(aside, ("em", "role")))
    for one, other in zip(alone, shared, strict=True):
        for (key, a), b in zip(
            one.classifier.state_dict().items(), other.classifier.state_dict().values(), strict=True
        ):
            assert torch.allclose(a.float(), b.float(), atol=3e-3, rtol=1e-2), f"{one.method.name}: {key}"
