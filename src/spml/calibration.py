"""Probabilities that mean what they say, how often each label is present, and k: from single positives alone.

The model. Of row x label c is present with p_c = σ(a·g_c + b_c), where g_c is the network's logit: independently,
but for at least one label that every labelled row has. The annotator named one of the labels present, each equally
likely, so that

    P(z = c | x) = p_c · ∫₀¹ Π_{j≠c} (1 − p_j·(1 − t)) dt / (1 − Π_j (1 − p_j)),

where the integral is E[1 / (1 + number of other labels)]. The slope a and the offsets b_c are those under which the
held-out single positives are likeliest. A row whose labels are all known adds its own, ordinary likelihood.

The priors matter where the data say little: b_c = b + d_c with d_c ~ N(0, 2²); an average observed label's logit
a·g + b ~ N(0, 1); log a ~ N(0, 2²).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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

_FIT_ENTRIES = 1 << 19  # entries (rows × classes) a fit looks at; more would cost time and change little
_CLASS_OFFSET_SD = 2.0
_COMMON_OFFSET_SD = 1.0
_LOG_SLOPE_SD = 2.0
_TOLD_K_SD = 0.2  # of log k, a row: a k that is told outweighs what the rows say of it
_NINE_OF_TEN = 1.6449  # standard deviations either side of the mean

# ∫₀¹ f(t) dt with 1 − t = u²: nodes gather where many labels put the mass, near t = 1.
_POINTS, _POINT_WEIGHTS = np.polynomial.legendre.leggauss(16)
_U = (_POINTS + 1) / 2
_ONE_MINUS_T = _U**2
_WEIGHTS = _U * _POINT_WEIGHTS


class Frequencies(NamedTuple):
    """Share of rows that have each label (L,), and k, the mean number of labels a row."""

    frequencies: Float64
    k: KEstimate


@dataclass(frozen=True, eq=False)
class Calibration:
    """From a network's probabilities to those of labels being present."""

    slope: float
    """a"""
    offsets: Float64
    """(L,) b_c"""
    at_least_one: bool
    """Whether a row of which no label is known is taken to have one all the same."""
    frequencies: Float64
    """(L,) estimated share of rows that have the label"""
    k: KEstimate
    """Estimated labels a row, with the 5th and 95th percentile; `rows` are those it was calibrated by."""
    full_rows: int
    """How many of these rows had all their labels known."""
    log_likelihood: float
    """Mean over these rows of log P(named label), or of all labels where they are known: the higher, the better the
    predictions. Epochs and settings can be chosen by it."""

    def confidences(self, probabilities: npt.NDArray[Any], known: Int8 | None = None) -> Float32:
        """P(label present | image, what is known of the row), (N, L).

        known: +1, −1 and 0 for unknown; known entries have confidence 1 and 0. A row's single positive lowers the
        confidence of its other labels: with many present it would less likely have been this one that was named.
        """
        table = _checked(probabilities, len(self.offsets))
        if known is not None and known.shape != table.shape:
            raise InputError(f"what is known is a table of {known.shape}, the probabilities one of {table.shape}.")
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
            with np.errstate(divide="ignore"):  # a certain label: log 0
                some = -np.expm1(np.log1p(-present[none]).sum(axis=1, keepdims=True))
            present[none] /= np.where(some > 0, some, 1.0)
        present[known > 0] = 1.0
        return present


def calibrate(
    probabilities: npt.NDArray[Any], known: Int8, *, k: float | None = None, at_least_one: bool | None = None
) -> Calibration:
    """Fit the model to the network's probabilities (N, L) of held-out rows and what is known of them (+1, −1, 0).

    Rows with one known positive count by the annotator's choice of it, rows of which everything is known by all
    their labels, others not at all.

    k: the mean number of labels of a row, where that is known.
    at_least_one: whether a row of which no label is known has one all the same; by default so if every row given
    here has a known label.
    """
    table = _checked(probabilities, known.shape[1] if known.ndim == 2 else -1)
    if known.shape != table.shape:
        raise InputError(f"what is known is a table of {known.shape}, the probabilities one of {table.shape}.")
    rows, classes = table.shape
    if k is not None and not 0 < k <= classes:
        raise InputError(f"k is {k}: it must be above 0 and at most {classes}, the number of classes.")
    positives = (known > 0).sum(axis=1)
    full = (known != 0).all(axis=1)
    use = np.flatnonzero(full | (positives == 1))
    if not (positives[use] > 0).any():
        raise InputError(f"none of the {rows} rows to calibrate by has a known label.")
    if at_least_one is None:
        at_least_one = bool((positives > 0).all())
    if len(use) * classes > _FIT_ENTRIES:  # evenly spread, so that data in order of class keep their shares
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


def estimate_frequencies(probabilities: npt.NDArray[Any], observed_single: npt.ArrayLike) -> Frequencies:
    """Class frequencies and k from the class index (N,) of each held-out row's one observed positive, −1 for none."""
    table = _checked(probabilities, -1)
    single = np.asarray(observed_single)
    if single.shape != table.shape[:1] or single.dtype.kind not in "iu":
        raise InputError(f"observed_single is one class index for each of the {len(table)} rows, −1 for none.")
    if single.size and not (single.min() >= -1 and single.max() < table.shape[1]):
        raise InputError(
            f"observed_single runs from {single.min()} to {single.max()}: classes are 0 to {len(table[0]) - 1}."
        )
    known = np.zeros(table.shape, np.int8)
    has = np.flatnonzero(single >= 0)
    known[has, single[has]] = 1
    fitted = calibrate(table, known)
    return Frequencies(fitted.frequencies, fitted.k)


def expected_f1_thresholds(confidences: npt.NDArray[Any], *, together: bool = False) -> Float64:
    """The thresholds (L,) at which the labels with confidence ≥ threshold have the best expected F1.

    With m labels taken, the most confident first, that is 2·Σ_taken p / (m + Σ_all p); no label has to be known.
    By default every class has its own, which is best for the mean of the classes' F1; `together` finds the one
    that is best for all entries pooled. A class whose confidences are all 0 has the threshold infinity.
    """
    table = _checked(confidences, -1)
    if together:
        return np.full(table.shape[1], best_threshold(table.reshape(-1)))
    return np.array([best_threshold(table[:, c]) for c in range(table.shape[1])])


def best_threshold(confidences: npt.NDArray[Any]) -> float:
    """Of one class, or of all entries pooled: see `expected_f1_thresholds`."""
    value = np.sort(confidences)[::-1]
    gained = np.cumsum(value, dtype=np.float64)
    if gained[-1] <= 0:
        return float("inf")
    f1 = 2 * gained / (np.arange(1, len(value) + 1) + gained[-1])
    f1[:-1][value[:-1] == value[1:]] = -1.0  # equal confidences are taken together
    return float(value[f1.argmax()])


def _checked(probabilities: npt.NDArray[Any], classes: int) -> npt.NDArray[Any]:
    """A table of probabilities with at least one row; `classes` −1: any number of them."""
    table = np.asarray(probabilities)
    if table.ndim != 2 or 0 in table.shape or (classes >= 0 and table.shape[1] != classes):
        expected = f"{classes} classes" if classes >= 0 else "classes"
        raise InputError(f"probabilities are a table of rows × {expected}, with at least one row, not {table.shape}.")
    for rows in row_blocks(*table.shape):
        wrong = ~((table[rows] >= 0) & (table[rows] <= 1)).all(axis=1)
        if wrong.any():
            row = rows.start + int(wrong.argmax())
            raise InputError(f"row {row} holds a probability that is not a number from 0 to 1.")
    return table


def _logits(probabilities: npt.NDArray[Any]) -> Float64:
    """Clipped where float32 has no more digits beside 1."""
    logits: Float64 = logit(np.clip(probabilities, 1e-7, 1 - 1e-7, dtype=np.float64))
    return logits


def _others_absent(present: Float64, single: Int64) -> Float64:
    """(nodes, N): Π over the other labels of 1 − p_j·(1 − t), at every node t of the integral."""
    own = np.take_along_axis(present, single[:, None], axis=1)[:, 0]
    return np.stack([np.prod(1 - u * present, axis=1) / (1 - u * own) for u in _ONE_MINUS_T])


def _given_single(present: Float64, single: Int64) -> Float64:
    """P(y_j = 1 | x, z = c) for every label j but c: the integral with y_j present, over that with y_j open."""
    others = _WEIGHTS[:, None] * _others_absent(present, single)
    with_label = np.zeros_like(present)
    for u, product in zip(_ONE_MINUS_T, others, strict=True):
        with_label += ((1 - u) * product)[:, None] / (1 - u * present)
    posterior: Float64 = present * with_label / others.sum(axis=0)[:, None]
    return posterior


class _Fit:
    """The penalised likelihood of the calibrating rows, as a function of (log a, b, d_1 … d_L).

    Logits are centred on the mean logit of the known positives, so that b is what an average one has.
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
        """Slope and offsets for logits that are not centred."""
        slope = float(np.exp(theta[0]))
        return slope, theta[1] - slope * self.centre + theta[2:]

    def objective(self, theta: Float64) -> tuple[float, Float64]:
        """The negative log-posterior a row, and its gradient."""
        calibrated = self._calibrated(theta)
        likelihood, by_logit = self._likelihood(*calibrated)
        value = -likelihood + 0.5 * float(self.precision @ theta**2)
        gradient = self.precision * theta - self._pull_back(by_logit, theta).sum(axis=0)
        if self.k is not None:
            mean, k_by_logit = self._mean_labels(*calibrated[1:])
            off = self.rows * np.log(mean / self.k) / _TOLD_K_SD**2
            value += 0.5 * off * np.log(mean / self.k)
            gradient += off / mean * self._pull_back(k_by_logit, theta).sum(axis=0)
        return value / self.rows, gradient / self.rows

    def log_likelihood(self, theta: Float64) -> float:
        """A row, without the priors."""
        return float(self._likelihood(*self._calibrated(theta))[0] / self.rows)

    def interval(self, theta: Float64, k: float) -> tuple[float, float]:
        """5th and 95th percentile of k: its gradient, and the rows' scores as the curvature of their likelihood."""
        calibrated = self._calibrated(theta)
        scores = self._pull_back(self._likelihood(*calibrated)[1], theta)
        mean, by_logit = self._mean_labels(*calibrated[1:])
        gradient = self._pull_back(by_logit, theta).sum(axis=0)
        scaled, tilted = gradient / self.precision, scores / self.precision
        if len(scores) < len(theta):  # (SᵀS + Λ)⁻¹ by the smaller of its two sides
            side = scores @ scaled
            variance = gradient @ scaled - side @ np.linalg.solve(np.eye(len(scores)) + tilted @ scores.T, side)
        else:
            variance = gradient @ np.linalg.solve(scores.T @ scores + np.diag(self.precision), gradient)
        # Missing labels a row, or labels a row, are above 0: their logarithm is taken as normal.
        least = 1.0 if self.at_least_one else 0.0
        spread = np.exp(_NINE_OF_TEN * np.sqrt(max(float(variance), 0.0)) / max(mean - least, 1e-6))
        extra = max(k - least, 1e-6)
        return float(least + extra / spread), float(min(least + extra * spread, self.classes))

    def _pull_back(self, by_logit: Float64, theta: Float64) -> Float64:
        """Derivatives by every row's calibrated logits (N, L) as derivatives by theta, a row each (N, L + 2)."""
        by_slope = np.exp(theta[0]) * np.einsum("nl,nl->n", by_logit, self.logits)
        return np.column_stack([by_slope, by_logit.sum(axis=1), by_logit])

    def _calibrated(self, theta: Float64) -> tuple[Float64, Float64, Float64]:
        """Logits and probabilities (N, L), and log Π (1 − p) of each row; what is known absent has p = 0."""
        logits = np.exp(theta[0]) * self.logits + theta[1] + theta[2:]
        present, absent = expit(logits), log_expit(-logits)
        closed = self.known[: self.singles] < 0
        present[: self.singles][closed] = absent[: self.singles][closed] = 0.0
        return logits, present, np.minimum(absent.sum(axis=1), -1e-300)  # never quite certain to have no label

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

        # Rows with a label: given that there is one.
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
        by_logit = present / some * (1 - present - total / some * none) / self.rows  # both shares are finite
        return float((total / some).mean()), by_logit


def _log_some(log_none: Float64) -> Float64:
    """log(1 − exp(log_none))"""
    return np.asarray(np.log(-np.expm1(log_none)))
