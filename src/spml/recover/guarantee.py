"""The most labels whose precision is guaranteed with a stated confidence: learn then test on fully labelled rows.

The precision of the labels above a threshold is a weighted mean over the sampled rows, where a row weighs
w·(its number of labels). Labels of one row may depend on each other, so the rows are what counts: their effective
number is (Σ weights)² / Σ weights². The test is the exact binomial one with that number of trials, as usual for
weighted samples; it is exact for one label per row and equal weights.

Thresholds are tested from the strictest on, from a few starting points that share the error probability; a sequence
ends at its first failure, and the lowest threshold that passed is used. Thresholds and their order depend on
predictions and observed labels, never on the full labels.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import betainc

from spml.calibration import Bool, Float32, Float64, Int64

CONFIDENCE = 0.9
_THRESHOLDS = 40
_STARTS = 3


class Guarantee(NamedTuple):
    """A threshold on the scores above which the precision is at least `precision`, with probability `confidence`."""

    threshold: float
    precision: float
    confidence: float


def guaranteed_threshold(
    scores: Float32, unknown: Bool, sample: Int64, truth: Bool, weights: Float64, precision: float
) -> Guarantee | None:
    """The lowest threshold whose labels have the precision; None if there is no such threshold.

    Parameters
    ----------
    scores : array of shape (N, L)
        Scores of all rows, computed without the full labels.
    unknown : array of shape (N, L)
        Labels that may be recovered: neither observed nor known to be absent.
    sample : array of shape (n,)
        The fully labelled rows.
    truth : array of shape (n, L)
        Their labels.
    weights : array of shape (n,)
        1 / the probability with which each row was drawn, up to a factor.
    precision : float

    Returns
    -------
    Guarantee or None
    """
    pooled = np.sort(scores[unknown])[::-1]
    if not len(pooled):
        return None
    counts = np.unique(np.geomspace(min(10, len(pooled)), len(pooled), _THRESHOLDS).astype(np.int64))
    values = np.where(unknown[sample], scores[sample], -1.0)
    level = (1 - CONFIDENCE) / _STARTS
    thresholds, p_values = [], []
    for threshold in np.unique(pooled[counts - 1])[::-1]:
        selected = values >= threshold
        numbers = selected.sum(axis=1)
        if _p_value(np.zeros(len(sample)), numbers, weights, precision) <= level:  # enough rows to show anything
            thresholds.append(float(threshold))
            p_values.append(_p_value((selected & ~truth).sum(axis=1), numbers, weights, precision))
    lowest = None
    for start in {round(position) for position in np.linspace(0, len(thresholds), _STARTS, endpoint=False)}:
        for threshold, p_value in zip(thresholds[start:], p_values[start:], strict=True):
            if p_value > level:
                break
            lowest = threshold if lowest is None else min(lowest, threshold)
    return None if lowest is None else Guarantee(lowest, precision, CONFIDENCE)


def _p_value(wrong: Float64 | Int64, numbers: Int64, weights: Float64, precision: float) -> float:
    """The p-value of the hypothesis that the precision is lower than `precision`."""
    if not numbers.any():
        return 1.0
    weights = weights / weights[numbers > 0].max()  # only their ratios count; squares of huge ones would overflow
    weight = weights * numbers
    trials = float(weight.sum() ** 2 / (weight**2).sum())
    errors = trials * float((weights * wrong).sum() / weight.sum())
    return float(betainc(max(trials - errors, 1e-9), errors + 1, precision))
