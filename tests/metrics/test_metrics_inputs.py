"""Invalid inputs of all metrics."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from spml.errors import InputError
from spml.metrics import (
    average_precision,
    f1,
    mean_average_precision,
    precision_at,
    predictive_values,
    recall_at,
    unobserved_positive_histogram,
    wasserstein_distance_per_class,
)
from support.metric_tables import assert_close, by_sklearn, random_tables

METRICS: dict[str, Callable[[Any, Any], Any]] = {
    "average_precision": average_precision,
    "mean_average_precision": mean_average_precision,
    "f1": f1,
    "precision_at": lambda s, y: precision_at(s, y, 1),
    "recall_at": lambda s, y: recall_at(s, y, 1),
    "predictive_values": lambda s, y: predictive_values(s, y, 0.5),
    "wasserstein": lambda s, y: wasserstein_distance_per_class(s, y, np.zeros((4, 3))),
    "histogram": lambda s, y: unobserved_positive_histogram(s, y, np.zeros((4, 3))),
}


@pytest.fixture(params=METRICS)
def metric(request: pytest.FixtureRequest) -> Callable[[Any, Any], Any]:
    return METRICS[request.param]


def test_error_names_row_and_column_of_nan(metric: Callable[[Any, Any], Any]) -> None:
    scores, targets = np.full((4, 3), 0.5), np.ones((4, 3))
    scores[2, 1] = scores[3, 0] = np.nan
    with pytest.raises(InputError, match=r"scores contain NaN, first in row 2, column 1 \(counted from 0\)"):
        metric(scores, targets)


def test_error_names_wrong_shapes(metric: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(InputError, match=r"must have the same shape, not \(4, 3\) and \(4, 2\)"):
        metric(np.zeros((4, 3)), np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"scores must be a table of \(rows, classes\).*not \(4,\)"):
        metric(np.zeros(4), np.zeros(4))
    with pytest.raises(InputError, match=r"at least one of each, not \(0, 3\)"):
        metric(np.zeros((0, 3)), np.zeros((0, 3)))


def test_error_names_different_devices(metric: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(InputError, match="must be on the same device, not cpu and meta"):
        metric(torch.zeros(4, 3), torch.zeros(4, 3, device="meta"))


@pytest.mark.parametrize("value", [2, -2, 0.5, np.nan])
def test_error_names_invalid_targets(metric: Callable[[Any, Any], Any], value: float) -> None:
    targets = np.ones((4, 3))
    targets[1, 2] = value
    with pytest.raises(InputError, match=rf"contain {value:g} in row 1, column 2 .*use 1 and 0, or \+1 and -1"):
        metric(np.full((4, 3), 0.5), targets)


def test_unknown_targets_raise(metric: Callable[[Any, Any], Any]) -> None:
    targets = np.full((4, 3), -1, np.int8)
    targets[3, 1] = 0
    with pytest.raises(InputError, match=r"both -1 and 0, the first 0 in row 3, column 1 .*by a mask"):
        metric(np.full((4, 3), 0.5), targets)


def test_mask_excludes_unknown_labels_and_must_have_the_same_shape() -> None:
    scores, labels = random_tables(40, 3)
    labels = labels * 2 - 1
    labels[::3] = 0
    assert_close(average_precision(scores, labels, mask=labels != 0), by_sklearn(scores, labels, labels != 0))
    with pytest.raises(InputError, match=r"scores and mask must have the same shape, not \(40, 3\) and \(40, 2\)"):
        average_precision(scores, labels, mask=np.ones((40, 2)))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.ones((1, 1), bool), r"scores must be real numbers, not torch\.bool"),
        (np.ones((1, 1), complex), r"scores must be real numbers, not torch\.complex128"),
        (np.array([["a"]]), "scores must contain numbers, not <U1"),
    ],
)
def test_scores_that_are_not_numbers_raise(scores: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        average_precision(scores, [[1]])
