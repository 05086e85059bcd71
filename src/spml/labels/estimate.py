"""k, the mean number of positives a row, from a few fully labelled rows (Cole et al. 2021, Appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.labels.entries import Int64
from spml.labels.inputs import check_seed
from spml.labels.table import Labels


@dataclass(frozen=True)
class KEstimate:
    """An estimate of k and the 5th and 95th percentile of what other such samples would have given."""

    k: float
    low: float
    high: float
    rows: int


def estimate_k(truth_sample: Labels, *, trials: int = 100_000, seed: int = 0) -> KEstimate:
    """k from fully labelled rows (equation A1), with an interval by the bootstrap.

    A bootstrap draws as many rows again from the sample, with replacement, and averages their positives.
    """
    count, rows_with = _histogram(truth_sample)
    rows = len(truth_sample)
    _check_trials(trials)
    rng = np.random.default_rng(check_seed(seed))
    resampled = rng.multinomial(rows, rows_with / rows, size=trials) @ count / rows
    low, high = _percentiles(resampled)
    return KEstimate(float(rows_with @ count / rows), low, high, rows)


def k_intervals(
    truth: Labels, sample_sizes: Sequence[int] = (5, 10, 25), trials: int = 100_000, seed: int = 0
) -> dict[int, tuple[float, float]]:
    """How far an estimate of k from M rows may lie off: Table A2, for each M its (low, high).

    These are the 5th and 95th percentile over `trials` draws of M rows, without replacement, from a fully
    labelled table (nine of ten draws lie between them; the table's caption says 95%).
    """
    count, rows_with = _histogram(truth)
    _check_trials(trials)
    rng = np.random.default_rng(check_seed(seed))
    intervals = {}
    for size in sample_sizes:
        if not 1 <= size <= len(truth):
            raise InputError(f"a sample of {size} rows cannot be drawn from {len(truth)} rows.")
        # A row matters only by its number of positives, so a draw of rows is a draw from their histogram.
        drawn = rng.multivariate_hypergeometric(rows_with, size, size=trials, method="marginals")
        intervals[int(size)] = _percentiles(drawn @ count / size)
    return intervals


def _histogram(truth: Labels) -> tuple[Int64, Int64]:
    """The numbers of positives that rows have, and how many rows have each."""
    if len(truth) == 0:
        raise InputError("k cannot be estimated from a table without rows.")
    unknown = truth.entries().per_row(0)
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise InputError(f"row {row} has {unknown[row]} unknown labels: k is estimated from fully labelled rows.")
    count, rows_with = np.unique(truth.entries().per_row(1), return_counts=True)
    return count, rows_with


def _percentiles(estimates: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(estimates, [5, 95])
    return float(low), float(high)


def _check_trials(trials: int) -> None:
    if trials < 1:
        raise InputError(f"trials is {trials}: at least one is needed.")
