"""F1, predictive values and pseudo-label precision, compared with scikit-learn and manual counts."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from spml.errors import InputError
from spml.metrics import (
    f1,
    predictive_values,
    pseudo_label_precision,
)
from support.metric_tables import random_tables


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("thresholds", [0.5, 0.75, np.linspace(-0.5, 0.9, 6)])
def test_f1_equals_sklearn(average: Any, thresholds: Any) -> None:
    scores, targets = random_tables(400, 6, seed=3)
    targets[:, 0] = 0
    scores[:, 0] = -9  # neither a positive nor a prediction
    scores[:, 1] = -9  # positives, no prediction
    targets[:, 2] = 0  # predictions, no positive
    expected = f1_score(targets, scores > thresholds, average=average, zero_division=0)
    assert f1(scores, targets, thresholds, average) == pytest.approx(expected, abs=1e-12)


def test_f1_of_empty_classes() -> None:
    scores, targets = [[0.9, 0.1], [0.1, 0.1]], [[1, 0], [0, 0]]
    assert f1(scores, targets, average="macro") == 0.5
    assert f1(scores, targets, average="macro", empty="skip") == 1.0
    assert f1([[0.1]], [[0]]) == 0.0


def test_score_equal_to_the_threshold_is_not_predicted() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        scores = torch.tensor([[0.9, 0.3]], dtype=dtype)  # neither is a binary fraction
        for thresholds in ([0.9, 0.3], torch.tensor([0.9, 0.3], dtype=torch.float64)):
            assert f1(scores, [[1, 1]], thresholds) == 0.0
        assert f1(scores, [[1, 0]], 0.9) == 0.0


def test_f1_counts_only_entries_inside_the_mask() -> None:
    scores, targets = random_tables(100, 3)
    mask = np.random.default_rng(5).random(scores.shape) < 0.5
    expected = f1_score(targets[mask], scores[mask] > 0.5)
    assert f1(scores, targets, mask=mask) == pytest.approx(expected, abs=1e-12)


def test_f1_raises_on_invalid_thresholds_and_averages() -> None:
    scores, targets = random_tables(5, 3)
    with pytest.raises(InputError, match=r"thresholds have shape \(2,\); pass one number, or one for .* 3 classes"):
        f1(scores, targets, [0.1, 0.2])
    with pytest.raises(InputError, match="threshold is NaN"):
        f1(scores, targets, float("nan"))
    with pytest.raises(InputError, match="average must be 'micro' or 'macro', not 'samples'"):
        f1(scores, targets, average="samples")  # type: ignore[arg-type]


def test_predictive_values_by_hand() -> None:
    scores = np.array([[0.95, 0.2], [0.92, 0.3], [0.10, 0.1], [0.90, 0.4]])
    targets = np.array([[1, 0], [-1, 1], [-1, -1], [1, -1]]) > 0
    # Class 0 at 0.9: TP 1, FP 1, TN 1, FN 1 (0.90 is not greater). Class 1: no predictions, TN 3, FN 1.
    ppv, npv = predictive_values(scores, targets, 0.9)
    assert ppv == pytest.approx(1 / 2)
    assert npv == pytest.approx((1 / 2 + 3 / 4) / 2)
    assert predictive_values(scores, targets, 0.9, empty="zero").ppv == pytest.approx(1 / 4)
    everything = predictive_values(scores, targets, 0.0)
    assert everything.ppv == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert np.isnan(everything.npv)


def test_pseudo_label_precision_by_hand() -> None:
    pseudo = np.array([[1, 1, 0, -1], [-1, -1, -1, 0]], dtype=np.int8)
    truth = np.array([[1, -1, 1, -1], [-1, 1, -1, -1]], dtype=np.int8)
    for coded in (truth, truth > 0, (truth > 0).astype(np.float32)):
        found = pseudo_label_precision(pseudo, coded)
        assert found.positive == pytest.approx(1 / 2)
        assert found.negative == pytest.approx(3 / 4)
    only_negative = pseudo_label_precision(np.minimum(pseudo, 0), truth)
    assert np.isnan(only_negative.positive)
    assert only_negative.negative == pytest.approx(3 / 4)
    unknown_where_unassigned = truth * (pseudo != 0)
    assert pseudo_label_precision(pseudo, unknown_where_unassigned) == found


def test_pseudo_label_precision_raises_on_other_codings() -> None:
    truth = np.array([[1, 0, 1]])
    with pytest.raises(InputError, match=r"pseudo-labels contain 0\.3 in row 0, column 2 .*use \+1 for positive"):
        pseudo_label_precision(np.array([[1, 0, 0.3]]), truth)
    with pytest.raises(InputError, match=r"pseudo-labels have dtype torch\.bool; use"):
        pseudo_label_precision(truth > 0, truth)
    with pytest.raises(InputError, match=r"truth contain both -1 and 0, the first 0 in row 0, column 1 "):
        pseudo_label_precision(np.array([[1, 1, 1]]), np.array([[1, 0, -1]]))
