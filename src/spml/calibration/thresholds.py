"""Thresholds with the best expected F1, from confidences alone."""

from typing import Any

import numpy as np
import numpy.typing as npt

from spml.calibration.arrays import Float64, checked


def expected_f1_thresholds(confidences: npt.NDArray[Any]) -> Float64:
    """The threshold of each class with the best expected F1; no true label is needed.

    The expected F1 of the m most confident labels is 2·Σ_taken p / (m + Σ_all p).

    Parameters
    ----------
    confidences : array of shape (N, L)

    Returns
    -------
    array of shape (L,)
        Infinity for a class whose confidences are all 0.

    Examples
    --------
    >>> expected_f1_thresholds(np.array([[0.9, 0.4], [0.8, 0.1], [0.1, 0.0]]))
    array([0.8, 0.4])
    """
    table = checked(confidences, -1)
    return np.array([best_threshold(table[:, c]) for c in range(table.shape[1])])


def best_threshold(confidences: npt.NDArray[Any]) -> float:
    """The threshold for one class, or for all entries pooled; see `expected_f1_thresholds`."""
    value = np.sort(confidences)[::-1]
    gained = np.cumsum(value, dtype=np.float64)
    if gained[-1] <= 0:
        return float("inf")
    f1 = 2 * gained / (np.arange(1, len(value) + 1) + gained[-1])
    f1[:-1][value[:-1] == value[1:]] = -1.0  # equal confidences are kept or dropped together
    return float(value[f1.argmax()])
