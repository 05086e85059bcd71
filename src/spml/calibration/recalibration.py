"""Correct confidences by what fully labelled rows show: logit(corrected) = shift + stretch·logit(confidence).

The prior is that confidences are a little too extreme: shift ~ N(−0.2, 0.6²), stretch ~ N(0.85, ¼²). This is the
correction that development data sets needed once k was right. The uncertainty of both numbers is kept. Confidences p
below `LEAST` are multiplied by one factor instead, so that labels that are almost certainly absent stay so. Above
`MOST`, 1 − p is multiplied by one factor.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from spml.calibration.arrays import Bool, Float64, Int64

_MEAN = np.array([-0.2, 0.85])
_VARIANCE = np.array([0.6, 0.25]) ** 2
_PRECISION = np.diag(1 / _VARIANCE)
MOST = 0.999
LEAST = 0.05  # labels that are almost certainly absent would decide the fit, and nobody recovers them


@dataclass(frozen=True, eq=False)
class Recalibration:
    """The correction with its uncertainty.

    Attributes
    ----------
    weights : array of shape (2,)
        Shift and stretch.
    covariance : array of shape (2, 2)
    """

    weights: Float64
    covariance: Float64

    def corrected(self, confidences: npt.NDArray[Any], deviations: float | None = None) -> Float64:
        """Correct confidences.

        Parameters
        ----------
        confidences : array
        deviations : float, optional
            Distance from the mean correction in standard deviations. Default: the mean of the corrected confidences.

        Returns
        -------
        array of the same shape
        """
        p = np.asarray(confidences, np.float64)
        inner = np.clip(p, LEAST, MOST)
        x = logit(inner)
        (shift, stretch), c = self.weights, self.covariance
        variance = c[0, 0] + 2 * c[0, 1] * x + c[1, 1] * x**2
        if deviations is None:
            mean = expit((shift + stretch * x) / np.sqrt(1 + np.pi * variance / 8))
        else:
            mean = expit(shift + stretch * x + deviations * np.sqrt(variance))
        return np.asarray(np.where(p > MOST, 1 - (1 - mean) * (1 - p) / (1 - MOST), mean * (p / inner)))


NO_CORRECTION = Recalibration(np.array([0.0, 1.0]), np.zeros((2, 2)))
PRIOR = Recalibration(_MEAN, np.diag(_VARIANCE))


def recalibrate(confidences: npt.NDArray[Any], truth: Bool, rows: Int64) -> Recalibration:
    """Fit the correction to labels whose presence is known.

    Parameters
    ----------
    confidences : array of shape (M,)
    truth : array of shape (M,)
        Whether each label is present.
    rows : array of shape (M,)
        The row of each label. Labels of one row are not independent, which widens the uncertainty.

    Returns
    -------
    Recalibration
        `PRIOR` if every confidence is below `LEAST` or 1.
    """
    use = (confidences >= LEAST) & (confidences < 1)
    if not use.any():
        return PRIOR
    inputs = np.column_stack([np.ones(int(use.sum())), logit(np.clip(confidences[use], 1e-7, 1 - 1e-7))])
    target = truth[use].astype(np.float64)
    weights = _MEAN.copy()
    for _ in range(50):
        p = expit(inputs @ weights)
        hessian = (inputs * (p * (1 - p))[:, None]).T @ inputs + _PRECISION
        gradient = inputs.T @ (p - target) + _PRECISION @ (weights - _MEAN)
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if np.abs(step).max() < 1e-9:
            break
    scores = inputs * (target - expit(inputs @ weights))[:, None]
    _, row_index = np.unique(rows[use], return_inverse=True)
    by_row = np.stack([np.bincount(row_index, scores[:, column]) for column in range(2)], axis=1)
    inverse = np.linalg.inv(hessian)
    clustered = inverse @ (by_row.T @ by_row + _PRECISION) @ inverse
    return Recalibration(weights, max(inverse, clustered, key=np.trace))
