"""The trainer of many linear heads against a plain loop, head by head, and what it says to bad input."""

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from conftest import shared_data
from torch import Tensor, nn

from spml.data.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels, simulate
from spml.methods import METHODS, Clock, Needs, Problem, method, register
from spml.methods.base import Method, mean_entry
from spml.metrics import mean_average_precision
from spml.train.linear import (
    FeatureRows,
    HeadResult,
    HeadSpec,
    LinearData,
    linear_grid,
    linear_start,
    row_order,
    train_heads,
)

ON_FEATURES = sorted(name for name, cls in METHODS.items() if cls.needs.head == "linear")
# Settings under which a run of four epochs meets every part of a method.
SETTINGS: dict[str, dict[str, Any]] = {
    "em-apl": {"warm_up": 1, "positive_proportion": 0.2},
    "ll-r": {"share": 4.0},
    "ll-ct": {"share": 4.0},
    "ll-cp": {"share": 2.0},
    "lasd": {"threshold": 0.6},
    "plc": {"threshold": 0.55},
    "l1r": {"weight": 1e-2},
    "l2r": {"weight": 1e-2},
    "role-factorised": {"rank": 3},
}
ROWS, DIM, CLASSES, EPOCHS, BATCH, K = 37, 6, 5, 4, 8, 1.7


class Task:
    """Rows whose labels are a noisy linear function of their features, with a validation set."""

    def __init__(self, rows: int = ROWS, dim: int = DIM, classes: int = CLASSES) -> None:
        rng = np.random.default_rng(3)
        teacher = rng.normal(size=(dim, classes))
        self.features, self.validation_features = rng.normal(size=(2, rows, dim)).astype(np.float32)

        def truth(features: np.ndarray) -> np.ndarray:
            scores = features @ teacher + rng.normal(size=(len(features), classes))
            return np.where((scores > 1.2) | (scores == scores.max(1, keepdims=True)), 1, -1)

        self.truth = Labels.from_matrix(truth(self.features))
        self.validation_truth = Labels.from_matrix(truth(self.validation_features))
        self.labels = simulate(self.truth, positives=1, negatives=0)
        self.negatives = simulate(self.truth, positives=1, negatives=None)

    def table(self, name: str) -> Labels:
        return {"positives": self.labels, "full": self.truth, "negatives": self.negatives}[METHODS[name].needs.labels]

    def train(self, specs: list[HeadSpec], **options: Any) -> list[HeadResult]:
        defaults: dict[str, Any] = {
            "epochs": EPOCHS,
            "k": K,
            "validation": (self.validation_features, self.validation_truth),
            "full_labels": self.truth,
            "negatives_labels": self.negatives,
            "progress": False,
        }
        return train_heads(torch.from_numpy(self.features), self.labels, specs, **(defaults | options))


def plain_loop(task: Task, spec: HeadSpec, epochs: int = EPOCHS) -> HeadResult:
    """One head, trained as anybody would write it: nn.Linear, torch's Adam, one backward pass a step."""
    made = method(spec.method, **spec.settings)
    labels = task.table(spec.method)
    made.prepare(Problem(labels, k=K, seeds=spec.seed))
    torch.manual_seed(spec.seed)
    head = nn.Linear(DIM, CLASSES)
    groups = [{"params": list(head.parameters()), "lr": spec.learning_rate}]
    groups += [{"params": p, "lr": multiple * spec.learning_rate} for p, multiple in made.parameter_groups()]
    optimiser = torch.optim.Adam(groups)
    features = torch.from_numpy(task.features)
    step, scores, best = 0, [], None
    batches = math.ceil(ROWS / spec.batch_size)
    for epoch in range(1, epochs + 1):
        order = np.random.default_rng((spec.seed, epoch)).permutation(ROWS)
        for rows in np.split(order, range(spec.batch_size, ROWS, spec.batch_size)):
            clock = Clock(epoch, epochs, step, epochs * batches)
            loss = made.objective(head(features[rows]), labels.batch(rows), torch.from_numpy(rows), clock)
            penalty = made.penalty(head.parameters())
            optimiser.zero_grad()
            (loss if penalty is None else loss + penalty).backward()
            optimiser.step()
            made.after_step(spec.learning_rate)
            step += 1
        with torch.no_grad():
            if made.needs.epoch_predictions:
                made.end_epoch(torch.sigmoid(head(features)), Clock(epoch, epochs, step, epochs * batches))
            scored = head(torch.from_numpy(task.validation_features))
        scores.append(mean_average_precision(scored, task.validation_truth.dense()))
        if best is None or scores[-1] > scores[best.best_epoch - 1]:
            state = {name: value.clone() for name, value in made.state_dict().items()}
            weight, bias = head.weight.detach().T.clone(), head.bias.detach().clone()
            best = HeadResult(spec, scores, epoch, epochs, weight, bias, state)
    assert best is not None
    return best


def assert_same(one: HeadResult, other: HeadResult, tolerance: float = 1e-5) -> None:
    assert one.spec == other.spec
    assert (one.best_epoch, one.stopped_epoch) == (other.best_epoch, other.stopped_epoch)
    assert one.validation == pytest.approx(other.validation, abs=1e-6)
    torch.testing.assert_close(one.weight, other.weight, atol=tolerance, rtol=0)
    torch.testing.assert_close(one.bias, other.bias, atol=tolerance, rtol=0)
    assert one.method_state.keys() == other.method_state.keys()
    for name, value in one.method_state.items():
        torch.testing.assert_close(value, other.method_state[name], atol=tolerance, rtol=0, equal_nan=True)


@pytest.fixture(scope="module")
def task() -> Task:
    return Task()


@pytest.fixture(scope="module")
def grid(task: Task) -> dict[HeadSpec, HeadResult]:
    """Every method that runs on features, at two rates, two batch sizes and two seeds, all trained in one call."""
    specs = [
        HeadSpec(name, SETTINGS.get(name, {}), rate, size, seed)
        for name in ON_FEATURES
        for rate in (1e-2, 1e-3)
        for size in (BATCH, 2 * BATCH)
        for seed in (0, 5)
    ]
    return dict(zip(specs, task.train(specs), strict=True))


def of_method(grid: dict[HeadSpec, HeadResult], name: str) -> list[HeadResult]:
    return [result for spec, result in grid.items() if spec.method == name]


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_head_is_the_plain_loop(task: Task, grid: dict[HeadSpec, HeadResult], name: str) -> None:
    for result in of_method(grid, name):
        assert_same(result, plain_loop(task, result.spec))


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_head_is_as_trained_alone(task: Task, grid: dict[HeadSpec, HeadResult], name: str) -> None:
    together = of_method(grid, name)
    for result in (together[0], together[-1]):
        assert_same(result, task.train([result.spec])[0])
