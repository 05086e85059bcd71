"""Metrics of binary decisions: scores above a threshold, and pseudo-labels."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spml.errors import InputError
from spml.metrics.inputs import (
    Array,
    Empty,
    as_table,
    check_together,
    checked_truth,
    first_position,
    mean_over_classes,
    position_text,
    scores_and_truth,
)


class PredictiveValues(NamedTuple):
    """Positive and negative predictive value.

    Attributes
    ----------
    ppv, npv : float
        Means over classes.

    Examples
    --------
    >>> PredictiveValues(ppv=0.8, npv=0.95).ppv
    0.8
    """

    ppv: float
    npv: float


class PseudoLabelPrecision(NamedTuple):
    """Precision of pseudo-labels.

    Attributes
    ----------
    positive, negative : float
        Share of the assigned positives, and of the assigned negatives, that are correct; nan if there are none.

    Examples
    --------
    >>> PseudoLabelPrecision(positive=0.9, negative=1.0).positive
    0.9
    """

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
    """F1 score of the labels whose score exceeds a threshold: 2 TP / (2 TP + FP + FN).

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted scores.
    targets : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    thresholds : float or array of shape (n_classes,)
        A label is predicted if its score is greater. Compared in the precision of the scores.
    average : {"micro", "macro"}
        "micro" pools the counts of all classes; "macro" averages the F1 of the classes.
    mask : array or tensor of shape (n_samples, n_classes), optional
        True for the entries that count.
    empty : {"zero", "skip"}
        How a class without positives and predictions counts in the macro average: as 0 (scikit-learn's
        `zero_division=0`), or not at all. If there are none in any class, the result is 0 or nan.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> f1(torch.tensor([[0.9, 0.6], [0.1, 0.2]]), torch.tensor([[1, 0], [0, 1]]))
    0.5
    """
    counts = _counts(scores, targets, thresholds, mask)
    if average == "micro":
        counts = _Counts(*(count.sum(0, keepdim=True) for count in counts))
    elif average != "macro":
        raise InputError(f"average must be 'micro' or 'macro', not {average!r}.")
    twice = 2.0 * counts.tp.double()
    return mean_over_classes(twice / (twice + counts.fp + counts.fn), empty)


def predictive_values(
    scores: Array, targets: Array, threshold: float | Array, *, mask: Array | None = None, empty: Empty = "skip"
) -> PredictiveValues:
    """Positive and negative predictive value, averaged over classes (LASD, appendix A.3).

    PPV = TP / (TP + FP) and NPV = TN / (TN + FN).

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted scores.
    targets : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    threshold : float or array of shape (n_classes,)
        A label is predicted if its score is greater (LASD's τ).
    mask : array or tensor of shape (n_samples, n_classes), optional
        True for the entries that count.
    empty : {"skip", "zero"}
        How a class without predicted positives counts in the mean of PPV, and one without predicted negatives in
        that of NPV: not at all, or as 0.

    Returns
    -------
    PredictiveValues

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> predictive_values(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1], [0], [0]]), 0.5)
    PredictiveValues(ppv=0.5, npv=1.0)
    """
    counts = _counts(scores, targets, threshold, mask)
    ppv = counts.tp.double() / (counts.tp + counts.fp)
    npv = counts.tn.double() / (counts.tn + counts.fn)
    return PredictiveValues(mean_over_classes(ppv, empty), mean_over_classes(npv, empty))


def pseudo_label_precision(pseudo: Array, truth: Array) -> PseudoLabelPrecision:
    """Precision of pseudo-labels over all entries of all classes (Zhou et al. 2022, tables 2 and 6).

    Parameters
    ----------
    pseudo : array or tensor of shape (n_samples, n_classes)
        +1 assigned positive, -1 assigned negative, 0 not assigned. Set observed labels to 0 to leave them out.
    truth : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative. Entries that are not assigned may have any value.

    Returns
    -------
    PseudoLabelPrecision

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> pseudo_label_precision(torch.tensor([[1, -1], [1, 0]]), torch.tensor([[1, -1], [-1, 1]]))
    PseudoLabelPrecision(positive=0.5, negative=1.0)
    """
    coding = "use +1 for positive, -1 for negative and 0 for not assigned"
    pseudo, truth = as_table(pseudo, "pseudo-labels"), as_table(truth, "truth")
    check_together(pseudo, "pseudo-labels", truth, "truth")
    if pseudo.dtype in (torch.bool, torch.uint8):
        raise InputError(f"pseudo-labels have dtype {pseudo.dtype}; {coding}.")
    positive, negative = pseudo == 1, pseudo == -1
    wrong = ~(positive | negative | (pseudo == 0))
    if wrong.any():
        row, column = first_position(wrong)
        raise InputError(
            f"pseudo-labels contain {float(pseudo[row, column]):g} in {position_text(row, column)}; {coding}."
        )
    present = checked_truth(truth, positive | negative, "truth")
    return PseudoLabelPrecision(_share(present, positive), _share(~present, negative))


def _share(correct: Tensor, assigned: Tensor) -> float:
    return float((correct & assigned).sum().double() / assigned.sum())


def _counts(scores: Array, targets: Array, thresholds: float | Array, mask: Array | None) -> _Counts:
    scores, positive, included = scores_and_truth(scores, targets, mask)
    limit = torch.as_tensor(thresholds, dtype=scores.dtype, device=scores.device)
    if limit.shape not in ((), (scores.shape[1],)):
        raise InputError(
            f"thresholds have shape {tuple(limit.shape)}; pass one number, or one for each of the "
            f"{scores.shape[1]} classes."
        )
    if limit.isnan().any():
        raise InputError("a threshold is NaN; every threshold must be a number.")
    predicted = scores > limit
    included = torch.ones_like(positive) if included is None else included
    tp = (predicted & positive & included).sum(0)
    fp = (predicted & included).sum(0) - tp
    fn = (positive & included).sum(0) - tp
    return _Counts(tp, fp, fn, included.sum(0) - tp - fp - fn)
