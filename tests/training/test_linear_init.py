"""LinearInit: the head and the method's memory carry over into fine-tuning."""

import numpy as np
import pytest
import torch

from spml.data import ImageStore
from spml.errors import InputError
from spml.labels import Labels, simulate
from spml.methods import method
from spml.models import build_classifier
from spml.training.evaluation import selection_score
from spml.training.examples import Examples
from spml.training.experiment import Experiment, LinearInit
from spml.training.frozen.linear_init import linear_init
from spml.training.frozen.pooled_features import pooled_features
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings


@pytest.fixture
def examples():
    draw = np.random.default_rng(0)
    truth = draw.random((40, 3)) < 0.4
    truth[np.arange(40), draw.integers(0, 3, 40)] = True
    pixels = draw.integers(0, 60, (40, 3, 32, 32), dtype=np.uint8)
    pixels += 150 * truth[:, :, None, None].astype(np.uint8)
    store = ImageStore.from_array(pixels)
    full = Labels.from_matrix(truth.astype(int), list("abc"), coding="full")
    return Examples(store, np.arange(30), simulate(full.subset(np.arange(30)))), Examples(
        store, np.arange(30, 40), full.subset(np.arange(30, 40))
    )


def test_head_and_memory_are_those_of_the_best_epoch(examples, tmp_path):
    training, validation = examples
    torch.manual_seed(0)
    classifier = build_classifier("small", 3, image_size=32)
    experiment = Experiment("role", k=1.6, linear_init=LinearInit(6, 1e-2, 8))
    best = linear_init(classifier, experiment, training, validation)
    assert (best.experiment.train.learning_rate, best.experiment.train.batch_size) == (1e-2, 8)  # not fine-tuning's
    features = pooled_features(classifier, validation.store, validation.rows, "cpu").batch(np.arange(10))
    images = validation.store.batch(validation.rows)
    assert torch.allclose(classifier.eval()(images).logits, features @ best.weight + best.bias, atol=1e-4)

    run = Trainer(
        tmp_path, classifier, method("role"), training, validation, TrainSettings(epochs=2, batch_size=8),
        k=1.6, start=best.method_state, device="cpu", progress=False,
    )  # fmt: skip
    assert torch.allclose(run.method.memory.values.detach(), best.method_state["memory.values"])
    assert selection_score(run.predict(validation), validation.labels) == pytest.approx(max(best.validation), abs=1e-6)
    run.fit()


def test_error_for_a_head_that_is_not_linear(examples):
    classifier = build_classifier("small", 3, "cam", image_size=32)
    with pytest.raises(InputError, match="needs a linear head"):
        linear_init(classifier, Experiment("an", linear_init=LinearInit(1, 1e-3, 8)), *examples)
