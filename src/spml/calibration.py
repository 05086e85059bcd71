"""Calibrated probabilities, class frequencies and k, the number of labels per row, from single positives alone.

Model: in row x, label c is present with probability p_c = σ(a·g_c + b_c), where g_c is the network's logit. Labels are
independent, except that every labelled row has at least one. The annotator picked one of the present labels, each with
equal probability, so that

    P(z = c | x) = p_c · ∫₀¹ Π_{j≠c} (1 − p_j·(1 − t)) dt / (1 − Π_j (1 − p_j)),

where the integral is E[1 / (1 + number of other labels)]. The slope a and the offsets b_c maximise the likelihood of
the held-out single positives. A fully labelled row contributes its ordinary likelihood.

Priors matter where there is little data: b_c = b + d_c with d_c ~ N(0, 2²); the logit of an average observed label
a·g + b ~ N(0, 1); log a ~ N(0, 2²).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit

from spml.errors import InputError
from spml.labels import KEstimate
from spml.labels.entries import row_blocks

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_FIT_ENTRIES = 1 << 19  # entries (rows × classes) used in a fit; more take longer and change little
_CLASS_OFFSET_SD = 2.0
_COMMON_OFFSET_SD = 1.0
_LOG_SLOPE_SD = 2.0
_GIVEN_K_SD = 0.2  # of log k, per row: a given k outweighs the estimate from the rows
_90_PERCENT = 1.6449  # half-width of the central 90% interval, in standard deviations

# ∫₀¹ f(t) dt with 1 − t = u²: places more nodes near t = 1, where the mass is with many labels.
_POINTS, _POINT_WEIGHTS = np.polynomial.legendre.leggauss(16)
_U = (_POINTS + 1) / 2
_ONE_MINUS_T = _U**2
_WEIGHTS = _U * _POINT_WEIGHTS


@dataclass(frozen=True, eq=False)
class Calibration:
    """Maps a network's probabilities to calibrated ones.

    Attributes
    ----------
    slope : float
        a in the model of this module.
    offsets : array of shape (L,)
        b_c in the model of this module.
    at_least_one : bool
        Whether a row without known labels is assumed to have at least one label.
    frequencies : array of shape (L,)
        Estimated fraction of rows with each label.
    k : KEstimate
        Estimated number of labels per row with the 5th and 95th percentile; `rows` is the number of rows used.
    full_rows : int
        Number of those rows that were fully labelled.
    log_likelihood : float
        Mean log-likelihood of the observed labels. Higher is better; use it to choose epochs and settings.
    """

    slope: float
    offsets: Float64
    at_least_one: bool
    frequencies: Float64
    k: KEstimate
    full_rows: int
    log_likelihood: float

    def confidences(self, probabilities: npt.NDArray[Any], known: Int8 | None = None) -> Float32:
        """P(label present | image, known labels of the row).

        A row's single positive lowers the confidence of its other labels: the more labels are present, the less likely
        the annotator was to pick this one.

        Parameters
        ----------
        probabilities : array of shape (N, L)
            Predictions of the network.
        known : array of shape (N, L), optional
            +1, −1, or 0 for unknown. Known entries get the confidence 1 or 0.

        Returns
        -------
        array of shape (N, L)
        """
        table = _checked(probabilities, len(self.offsets))
        if known is not None and known.shape != table.shape:
            raise InputError(f"known has the shape {known.shape}, probabilities {table.shape}: they must be the same")
        out = np.empty(table.shape, np.float32)
        for rows in row_blocks(*table.shape):
            block = np.zeros(table[rows].shape, np.int8) if known is None else known[rows]
            out[rows] = self._confidences(table[rows], block)
        return out

    def _confidences(self, probabilities: npt.NDArray[Any], known: Int8) -> Float64:
        present: Float64 = expit(self.slope * _logits(probabilities) + self.offsets)
        present[known < 0] = 0.0
        positives = (known > 0).sum(axis=1)
        one = np.flatnonzero(positives == 1)
        present[one] = _given_single(present[one], known[one].argmax(axis=1))
        if self.at_least_one:
            none = np.flatnonzero(positives == 0)
            with np.errstate(divide="ignore"):  # log 0 for a certain label
                some = -np.expm1(np.log1p(-present[none]).sum(axis=1, keepdims=True))
            present[none] /= np.where(some > 0, some, 1.0)
        present[known > 0] = 1.0
        return present


def calibrate(
    probabilities: npt.NDArray[Any], known: Int8, *, k: float | None = None, at_least_one: bool | None = None
) -> Calibration:
    """Fit a calibration to held-out rows.

    Rows with one known positive and fully labelled rows are used, others are ignored.

    Parameters
    ----------
    probabilities : array of shape (N, L)
        Predictions of the network.
    known : array of shape (N, L)
        +1, −1, or 0 for unknown.
    k : float, optional
        Average number of labels per row, if known.
    at_least_one : bool, optional
        Whether a row without known labels has at least one label. Default: whether every row given here has one.

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        If shapes or values are invalid, or no row has a known label.

    Examples
    --------
    >>> probabilities = np.array([[0.9, 0.2], [0.8, 0.7], [0.1, 0.9]])
    >>> known = np.array([[1, 0], [1, 0], [0, 1]], np.int8)
    >>> calibration = calibrate(probabilities, known)
    >>> calibration.confidences(probabilities, known).shape
    (3, 2)
    """
    table = _checked(probabilities, known.shape[1] if known.ndim == 2 else -1)
    if known.shape != table.shape:
        raise InputError(f"known has the shape {known.shape}, probabilities {table.shape}: they must be the same")
    rows, classes = table.shape
    if k is not None and not 0 < k <= classes:
        raise InputError(f"k must be above 0 and at most {classes}, the number of classes, not {k}")
    positives = (known > 0).sum(axis=1)
    full = (known != 0).all(axis=1)
    use = np.flatnonzero(full | (positives == 1))
    if not (positives[use] > 0).any():
        raise InputError(f"none of the {rows} rows for calibration has a known label")
    if at_least_one is None:
        at_least_one = bool((positives > 0).all())
    if len(use) * classes > _FIT_ENTRIES:  # evenly spaced, so that data sorted by class keep their proportions
        use = use[np.linspace(0, len(use) - 1, max(1, _FIT_ENTRIES // classes)).astype(np.int64)]
    fit = _Fit(_logits(table[use]), known[use], full[use], at_least_one, k)
    best = minimize(
        fit.objective,
        np.zeros(classes + 2),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500, "ftol": 1e-9, "gtol": 1e-5},
    )
    slope, offsets = fit.parameters(best.x)
    unmeasured = Calibration(slope, offsets, at_least_one, np.zeros(classes), KEstimate(0, 0, 0, 0), 0, 0.0)
    frequencies = np.zeros(classes)
    for block in row_blocks(rows, classes):
        frequencies += unmeasured.confidences(table[block], known[block]).sum(axis=0, dtype=np.float64)
    frequencies /= rows
    mean = float(frequencies.sum())
    low, high = (mean, mean) if k is not None else fit.interval(best.x, mean)
    return replace(
        unmeasured,
        frequencies=frequencies,
        k=KEstimate(mean, low, high, len(use)),
        full_rows=int(full[use].sum()),
        log_likelihood=fit.log_likelihood(best.x),
    )


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
    table = _checked(confidences, -1)
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


def _checked(probabilities: npt.NDArray[Any], classes: int) -> npt.NDArray[Any]:
    """Validate a table of probabilities; `classes` −1 means any number of classes."""
    table = np.asarray(probabilities)
    if table.ndim != 2 or 0 in table.shape or (classes >= 0 and table.shape[1] != classes):
        expected = f"{classes} classes" if classes >= 0 else "classes"
        raise InputError(f"probabilities must be a table of rows × {expected} with at least one row, not {table.shape}")
    for rows in row_blocks(*table.shape):
        wrong = ~((table[rows] >= 0) & (table[rows] <= 1)).all(axis=1)
        if wrong.any():
            row = rows.start + int(wrong.argmax())
            raise InputError(f"row {row} has a probability that is not a number from 0 to 1")
    return table


def _logits(probabilities: npt.NDArray[Any]) -> Float64:
    """Logits, clipped to the precision of float32 near 1."""
    logits: Float64 = logit(np.clip(probabilities, 1e-7, 1 - 1e-7, dtype=np.float64))
    return logits


def _others_absent(present: Float64, single: Int64) -> Float64:
    """(nodes, N): Π over the other labels of 1 − p_j·(1 − t), at each node t of the integral."""
    own = np.take_along_axis(present, single[:, None], axis=1)[:, 0]
    return np.stack([np.prod(1 - u * present, axis=1) / (1 - u * own) for u in _ONE_MINUS_T])


def _given_single(present: Float64, single: Int64) -> Float64:
    """P(y_j = 1 | x, z = c) for every label j ≠ c: the integral with y_j = 1, divided by the one without it."""
    others = _WEIGHTS[:, None] * _others_absent(present, single)
    with_label = np.zeros_like(present)
    for u, product in zip(_ONE_MINUS_T, others, strict=True):
        with_label += ((1 - u) * product)[:, None] / (1 - u * present)
    posterior: Float64 = present * with_label / others.sum(axis=0)[:, None]
    return posterior


class _Fit:
    """The penalised likelihood of the rows, as a function of (log a, b, d_1 … d_L).

    Logits are centred on the mean logit of the known positives, so that b is the logit of an average one.
    """

    def __init__(self, logits: Float64, known: Int8, full: Bool, at_least_one: bool, k: float | None) -> None:
        self.centre = float(logits[known > 0].mean())
        self.rows, self.classes = logits.shape
        self.k, self.at_least_one = k, at_least_one
        order = np.argsort(full, kind="stable")
        self.logits = (logits - self.centre)[order]
        self.known = known[order]
        self.singles = int((~full).sum())  # these rows come first
        self.single = self.known[: self.singles].argmax(axis=1)
        spread = [_LOG_SLOPE_SD, _COMMON_OFFSET_SD, *[_CLASS_OFFSET_SD] * self.classes]
        self.precision = np.array(spread) ** -2.0

    def parameters(self, theta: Float64) -> tuple[float, Float64]:
        """Slope and offsets for uncentred logits."""
        slope = float(np.exp(theta[0]))
        return slope, theta[1] - slope * self.centre + theta[2:]

    def objective(self, theta: Float64) -> tuple[float, Float64]:
        """The negative log-posterior per row, and its gradient."""
        calibrated = self._calibrated(theta)
        likelihood, by_logit = self._likelihood(*calibrated)
        value = -likelihood + 0.5 * float(self.precision @ theta**2)
        gradient = self.precision * theta - self._pull_back(by_logit, theta).sum(axis=0)
        if self.k is not None:
            mean, k_by_logit = self._mean_labels(*calibrated[1:])
            off = self.rows * np.log(mean / self.k) / _GIVEN_K_SD**2
            value += 0.5 * off * np.log(mean / self.k)
            gradient += off / mean * self._pull_back(k_by_logit, theta).sum(axis=0)
        return value / self.rows, gradient / self.rows

    def log_likelihood(self, theta: Float64) -> float:
        """Mean log-likelihood per row, without the priors."""
        return float(self._likelihood(*self._calibrated(theta))[0] / self.rows)

    def interval(self, theta: Float64, k: float) -> tuple[float, float]:
        """5th and 95th percentile of k by the delta method, with the rows' scores as curvature of the likelihood."""
        calibrated = self._calibrated(theta)
        scores = self._pull_back(self._likelihood(*calibrated)[1], theta)
        mean, by_logit = self._mean_labels(*calibrated[1:])
        gradient = self._pull_back(by_logit, theta).sum(axis=0)
        scaled, tilted = gradient / self.precision, scores / self.precision
        if len(scores) < len(theta):  # Woodbury identity for (SᵀS + Λ)⁻¹ if that is the smaller system
            side = scores @ scaled
            variance = gradient @ scaled - side @ np.linalg.solve(np.eye(len(scores)) + tilted @ scores.T, side)
        else:
            variance = gradient @ np.linalg.solve(scores.T @ scores + np.diag(self.precision), gradient)
        # The number of (missing) labels per row is positive: assume that its logarithm is normal.
        least = 1.0 if self.at_least_one else 0.0
        spread = np.exp(_90_PERCENT * np.sqrt(max(float(variance), 0.0)) / max(mean - least, 1e-6))
        extra = max(k - least, 1e-6)
        return float(least + extra / spread), float(min(least + extra * spread, self.classes))

    def _pull_back(self, by_logit: Float64, theta: Float64) -> Float64:
        """Chain rule: from derivatives by the calibrated logits (N, L) to derivatives by theta (N, L + 2)."""
        by_slope = np.exp(theta[0]) * np.einsum("nl,nl->n", by_logit, self.logits)
        return np.column_stack([by_slope, by_logit.sum(axis=1), by_logit])

    def _calibrated(self, theta: Float64) -> tuple[Float64, Float64, Float64]:
        """Logits and probabilities (N, L), and log Π (1 − p) per row; p = 0 for labels known to be absent."""
        logits = np.exp(theta[0]) * self.logits + theta[1] + theta[2:]
        present, absent = expit(logits), log_expit(-logits)
        closed = self.known[: self.singles] < 0
        present[: self.singles][closed] = absent[: self.singles][closed] = 0.0
        return logits, present, np.minimum(absent.sum(axis=1), -1e-300)  # never exactly certain to have no label

    def _likelihood(self, logits: Float64, present: Float64, log_none: Float64) -> tuple[float, Float64]:
        """Σ log-likelihood, and its derivative by the calibrated logits (N, L)."""
        n = self.singles
        by_logit = np.empty_like(present)

        p, index = present[:n], (np.arange(n), self.single)
        others = _WEIGHTS[:, None] * _others_absent(p, self.single)
        choice = others.sum(axis=0)
        by_present = np.zeros_like(p)
        for u, product in zip(_ONE_MINUS_T, others / choice, strict=True):
            by_present -= (u * product)[:, None] / (1 - u * p)
        by_logit[:n] = by_present * p * (1 - p)
        by_logit[:n][index] = 1 - p[index]
        value = float((log_expit(logits[:n][index]) + np.log(choice)).sum())

        positive = self.known[n:] > 0
        by_logit[n:] = positive - present[n:]
        value += float(log_expit(np.where(positive, logits[n:], -logits[n:])).sum())

        # Rows with a label: condition on having at least one.
        some = slice(0, self.rows if self.at_least_one else n)
        value -= float(_log_some(log_none[some]).sum())
        by_logit[some] -= present[some] * np.exp(log_none[some] - _log_some(log_none[some]))[:, None]
        return value, by_logit

    def _mean_labels(self, present: Float64, log_none: Float64) -> tuple[float, Float64]:
        """Mean of Σ_c P(y_c = 1 | x) over the rows, and its derivative by the calibrated logits."""
        some, none = -np.expm1(log_none)[:, None], np.exp(log_none)[:, None]
        if not self.at_least_one:
            some[self.singles :], none[self.singles :] = 1.0, 0.0
        total = present.sum(axis=1, keepdims=True)
        by_logit = present / some * (1 - present - total / some * none) / self.rows  # both ratios are finite
        return float((total / some).mean()), by_logit


def _log_some(log_none: Float64) -> Float64:
    """log(1 − exp(log_none))"""
    return np.asarray(np.log(-np.expm1(log_none)))
