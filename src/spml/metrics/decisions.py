"""Measures of yes-or-no labels: scores above a threshold, and pseudo-labels."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spml.errors import InputError
from spml.metrics.inputs import (
    Array,
    Empty,
    as_table,
    at,
    check_together,
    checked_truth,
    first_place,
    mean_over_classes,
    scores_and_truth,
)


class PredictiveValues(NamedTuple):
    """Positive and negative predictive value, each a mean over classes."""

    ppv: float
    npv: float


class PseudoLabelPrecision(NamedTuple):
    """Shares of the assigned positives, and of the assigned negatives, that are right; nan where none is."""

    positive: float
    negative: float


class _Counts(NamedTuple):
    """Per class (L,): true and false positives, false and true negatives."""

    tp: Tensor
    fp: Tensor
    fn: Tensor
    tn: Tensor


def f1(
    scores: Array,
    targets: Array,
    thresholds: float | Array = 0.5,
    average: Literal["micro", "macro"] = "micro",
    *,
    mask: Array | None = None,
    empty: Empty = "zero",
) -> float:
    """F1 = 2 TP / (2 TP + FP + FN) of the labels predicted where score > threshold.

    thresholds: one number, or one a class (L,); compared in the scores' precision.
    average: `micro` pools the counts of all classes, `macro` is the mean of the classes' F1.
    empty: a class with neither a positive nor a prediction has no F1. In the macro mean it counts 0 (`zero`,
    scikit-learn's zero_division=0) or is left out (`skip`); pooled counts that are all 0 give 0 or nan alike.
    """
    counts = _counts(scores, targets, thresholds, mask)
    if average == "micro":
        counts = _Counts(*(count.sum(0, keepdim=True) for count in counts))
    elif average != "macro":
        raise InputError(f"average must be 'micro' or 'macro', not {average!r}.")
    twice = 2.0 * counts.tp.double()
    return mean_over_classes(twice / (twice + counts.fp + counts.fn), empty)


def predictive_values(
    scores: Array,
    targets: Array,
    threshold: float | Array,
    *,
    mask: Array | None = None,
    empty: Empty = "skip",
) -> PredictiveValues:
    """PPV = TP / (TP + FP) and NPV = TN / (TN + FN), each averaged over classes (LASD, appendix A.3).

    A label is predicted where score > threshold (LASD's τ). A class with no predicted positive has no PPV, one
    with no predicted negative no NPV: `skip` leaves it out of that mean, `zero` counts it 0.
    """
    counts = _counts(scores, targets, threshold, mask)
    ppv = counts.tp.double() / (counts.tp + counts.fp)
    npv = counts.tn.double() / (counts.tn + counts.fn)
    return PredictiveValues(mean_over_classes(ppv, empty), mean_over_classes(npv, empty))


def pseudo_label_precision(pseudo: Array, truth: Array) -> PseudoLabelPrecision:
    """Precision of assigned labels over all entries of all classes (Zhou et al., tables 2 and 6).

    pseudo: +1 assigned positive, -1 assigned negative, 0 not assigned; give observed labels a 0 to leave them
    out. Only the truth of assigned entries is looked at.
    """
    coding = "they are coded +1 positive, -1 negative and 0 not assigned"
    pseudo, truth = as_table(pseudo, "pseudo-labels"), as_table(truth, "truth")
    check_together(pseudo, "pseudo-labels", truth, "truth")
    if pseudo.dtype in (torch.bool, torch.uint8):
        raise InputError(f"pseudo-labels are {pseudo.dtype}; {coding}.")
    yes, no = pseudo == 1, pseudo == -1
    wrong = ~(yes | no | (pseudo == 0))
    if wrong.any():
        row, column = first_place(wrong)
        raise InputError(f"pseudo-labels hold {float(pseudo[row, column]):g} in {at(row, column)}; {coding}.")
    positive = checked_truth(truth, yes | no, "truth")
    return PseudoLabelPrecision(_share(positive, yes), _share(~positive, no))


def _share(right: Tensor, assigned: Tensor) -> float:
    return float((right & assigned).sum().double() / assigned.sum())


def _counts(scores: Array, targets: Array, thresholds: float | Array, mask: Array | None) -> _Counts:
    scores, positive, kept = scores_and_truth(scores, targets, mask)
    bar = torch.as_tensor(thresholds, dtype=scores.dtype, device=scores.device)
    if bar.shape not in ((), (scores.shape[1],)):
        raise InputError(
            f"thresholds have shape {tuple(bar.shape)}; give one number, or one for each of the "
            f"{scores.shape[1]} classes."
        )
    if bar.isnan().any():
        raise InputError("a threshold is NaN, where a number is needed.")
    predicted = scores > bar
    counted = torch.ones_like(positive) if kept is None else kept
    tp = (predicted & positive & counted).sum(0)
    fp = (predicted & counted).sum(0) - tp
    fn = (positive & counted).sum(0) - tp
    return _Counts(tp, fp, fn, counted.sum(0) - tp - fp - fn)
