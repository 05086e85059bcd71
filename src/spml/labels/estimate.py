"""Estimate k, the average number of positives per row, from fully labelled rows (Cole et al. 2021, Appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.labels.entries import Int64
from spml.labels.inputs import check_seed
from spml.labels.table import Labels
from spml.type_checks import check_count


@dataclass(frozen=True)
class KEstimate:
    """An estimate of k, the average number of positives per row.

    Attributes
    ----------
    k : float
    low, high : float
        5th and 95th percentile of the estimate over resampled rows.
    rows : int
        Number of rows it was estimated from.

    Examples
    --------
    >>> KEstimate(k=1.5, low=1.2, high=1.9, rows=400).k
    1.5
    """

    k: float
    low: float
    high: float
    rows: int


def estimate_k(truth_sample: Labels, *, trials: int = 100_000, seed: int = 0) -> KEstimate:
    """Estimate k from fully labelled rows (equation A1), with a bootstrap interval.

    Parameters
    ----------
    truth_sample : Labels
        A few fully labelled rows.
    trials : int
        Number of bootstrap samples. Each draws as many rows as the sample has, with replacement.
    seed : int

    Returns
    -------
    KEstimate

    Raises
    ------
    InputError
        If there are no rows, or a row has unknown labels.

    Examples
    --------
    >>> sample = Labels.from_lists([["cat"], ["cat", "dog"], ["dog", "horse"]], rest="negative")
    >>> estimate = estimate_k(sample)
    >>> round(estimate.k, 2), estimate.rows
    (1.67, 3)
    """
    count, rows_with = _histogram(truth_sample)
    rows = len(truth_sample)
    check_count("trials", trials)
    rng = np.random.default_rng(check_seed(seed))
    resampled = rng.multinomial(rows, rows_with / rows, size=trials) @ count / rows
    low, high = _percentiles(resampled)
    return KEstimate(float(rows_with @ count / rows), low, high, rows)


def k_intervals(
    truth: Labels, sample_sizes: Sequence[int] = (5, 10, 25), trials: int = 100_000, seed: int = 0
) -> dict[int, tuple[float, float]]:
    """Return intervals for estimates of k from samples of M rows, as in Table A2.

    The interval is the 5th and 95th percentile over draws of M rows without replacement; nine of ten draws lie in it.
    (The table's caption says 95%, its text gives these percentiles.)

    Parameters
    ----------
    truth : Labels
        Full labels to draw the samples from.
    sample_sizes : sequence of int
        The values of M.
    trials : int
        Number of draws for each M.
    seed : int

    Returns
    -------
    dict of int to (float, float)
        The interval (low, high) for each M.

    Raises
    ------
    InputError
        If a sample is larger than the table, or a row has unknown labels.

    Examples
    --------
    >>> truth = Labels.from_lists([["cat"], ["cat", "dog"], ["dog", "horse"]], rest="negative")
    >>> k_intervals(truth, sample_sizes=(1,), trials=1000)
    {1: (1.0, 2.0)}
    """
    count, rows_with = _histogram(truth)
    check_count("trials", trials)
    rng = np.random.default_rng(check_seed(seed))
    intervals = {}
    for size in sample_sizes:
        if not 1 <= size <= len(truth):
            raise InputError(
                f"a sample of {size} rows cannot be drawn from {len(truth)} rows. Use smaller sample_sizes."
            )
        # Only the number of positives of a row matters, so rows are drawn from the histogram of these numbers.
        drawn = rng.multivariate_hypergeometric(rows_with, size, size=trials, method="marginals")
        intervals[int(size)] = _percentiles(drawn @ count / size)
    return intervals


def _histogram(truth: Labels) -> tuple[Int64, Int64]:
    """Return the numbers of positives that occur, and how many rows have each number."""
    if len(truth) == 0:
        raise InputError("k cannot be estimated from a table without rows. Pass at least one fully labelled row.")
    unknown = truth.entries().per_row(0)
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise InputError(f"row {row} has {unknown[row]} unknown labels. Pass fully labelled rows only.")
    count, rows_with = np.unique(truth.entries().per_row(1), return_counts=True)
    return count, rows_with


def _percentiles(estimates: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(estimates, [5, 95])
    return float(low), float(high)
