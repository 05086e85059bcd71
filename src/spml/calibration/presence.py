"""The model of presence: which labels a row has, and which of them the annotator picked.

In row x, label c is present with probability p_c = σ(a·g_c + b_c), where g_c is the network's logit. Labels are
independent, except that every labelled row has at least one. The annotator picked one of the present labels, each with
equal probability. For a row with the m positives P, the negatives N and the unknown labels U,

    P(P, N, picked ∈ P | x) ∝ Π_P p · Π_N (1 − p) · ∫₀¹ t^(m−1) Π_U (1 − p_j·(1 − t)) dt / (1 − Π_j (1 − p_j)).

The integral is E[1 / (m + number of unknown labels that are present)]. With one positive and nothing else known, this
is the likelihood of the observed label; for a fully labelled row it is the ordinary likelihood. Which entries
people verify may depend on the scores, but not on the answer.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from spml.calibration.arrays import Bool, Float64, Int8, Int64

_CLASS_OFFSET_SD = 2.0
_COMMON_OFFSET_SD = 1.0
_LOG_SLOPE_SD = 2.0
_GIVEN_SD = 0.2  # of the logarithm of the labels per row beyond the first, per row
_LEAST_EXTRA = 0.01  # labels per row beyond the first

# ∫₀¹ f(t) dt with 1 − t = u²: places more nodes near t = 1, where the mass is with many labels.
_POINTS, _POINT_WEIGHTS = np.polynomial.legendre.leggauss(16)
_U = (_POINTS + 1) / 2
ONE_MINUS_T = _U**2
WEIGHTS = _U * _POINT_WEIGHTS


@dataclass(frozen=True, eq=False)
class Presence:
    """One reading of the predictions: p_c = σ(slope·g_c + offset_c).

    Attributes
    ----------
    slope : float
        a in the model of this module.
    offsets : array of shape (L,)
        b_c in the model of this module.
    """

    slope: float
    offsets: Float64

    def confidences(self, logits: Float64, known: Int8, at_least_one: bool) -> Float64:
        """P(label present | row, its known labels), (N, L)."""
        present: Float64 = expit(self.slope * logits + self.offsets)
        present[known < 0] = 0.0
        positives = (known > 0).sum(axis=1)
        present[known > 0] = 0.0
        some_known = np.flatnonzero(positives)
        present[some_known] = given_positives(present[some_known], positives[some_known])
        if at_least_one:
            none = np.flatnonzero(positives == 0)
            with np.errstate(divide="ignore"):  # log 0 for a certain label
                some = -np.expm1(np.log1p(-present[none]).sum(axis=1, keepdims=True))
            present[none] /= np.where(some > 0, some, 1.0)
        present[known > 0] = 1.0
        return present


def choice_weights(unknown: Float64, positives: Int64) -> Float64:
    """(nodes, N): the integrand t^(m−1) Π (1 − p_j·(1 − t)) times the weight of each node."""
    products = np.stack([np.prod(1 - u * unknown, axis=1) for u in ONE_MINUS_T])
    weights: Float64 = WEIGHTS[:, None] * (1 - ONE_MINUS_T[:, None]) ** (positives - 1) * products
    return weights


def given_positives(unknown: Float64, positives: Int64) -> Float64:
    """P(y_j = 1 | x, m positives, one of which was picked) of the unknown labels; p is 0 for all others."""
    weights = choice_weights(unknown, positives)
    with_label = np.zeros_like(unknown)
    for u, weight in zip(ONE_MINUS_T, weights, strict=True):
        with_label += ((1 - u) * weight)[:, None] / (1 - u * unknown)
    posterior: Float64 = unknown * with_label / weights.sum(axis=0)[:, None]
    return posterior


class PresenceFit:
    """The penalised likelihood of the rows, as a function of (log a, b, d_1 … d_L).

    Logits are centred on the mean logit of the known positives, so that b is the calibrated logit of an average
    positive. Priors matter if there is little data: b_c = b + d_c with d_c ~ N(0, 2²); b ~ N(0, 1); log a ~ N(0, 2²).

    Parameters
    ----------
    logits : array of shape (N, L)
    known : array of shape (N, L)
        Rows have a positive, or are fully labelled.
    at_least_one : bool
        Whether fully labelled rows, like all others, were selected because they have a label.
    """

    def __init__(self, logits: Float64, known: Int8, at_least_one: bool) -> None:
        self.centre = float(logits[known > 0].mean())
        self.rows, self.classes = logits.shape
        self.logits = logits - self.centre
        self.known = known
        self.positives = (known > 0).sum(axis=1)
        self.full: Bool = (known != 0).all(axis=1)
        self.conditioned = ~self.full | at_least_one
        self.least = 1.0 if at_least_one else 0.0
        spread = [_LOG_SLOPE_SD, _COMMON_OFFSET_SD, *[_CLASS_OFFSET_SD] * self.classes]
        self.precision = np.array(spread) ** -2.0

    def start(self) -> Float64:
        return np.zeros(self.classes + 2)

    def presence(self, theta: Float64) -> Presence:
        """Slope and offsets for uncentred logits."""
        slope = float(np.exp(theta[0]))
        return Presence(slope, theta[1] - slope * self.centre + theta[2:])

    def maximise(self, start: Float64, k: float | None = None, *, iterations: int = 500) -> Float64:
        """The most likely theta, or with `k` the most likely one with that many labels per row."""
        best = minimize(
            self.objective,
            start,
            args=(k,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": iterations, "ftol": 1e-9, "gtol": 1e-5},
        )
        theta: Float64 = best.x
        return theta

    def objective(self, theta: Float64, k: float | None = None) -> tuple[float, Float64]:
        """The negative log-posterior per row, and its gradient."""
        logits = self.logits_of(theta)
        likelihood, by_logit = self._likelihood(logits, gradient=True)
        value = -float(likelihood.sum()) + 0.5 * float(self.precision @ theta**2)
        gradient = self.precision * theta - self._pull_back(by_logit, theta)
        if k is not None:
            mean, k_by_logit = self._mean_labels(logits)
            extra = mean - self.least + _LEAST_EXTRA
            off = np.log(extra / (max(k - self.least, 0.0) + _LEAST_EXTRA))
            value += 0.5 * self.rows * off**2 / _GIVEN_SD**2
            gradient += self.rows * off / (extra * _GIVEN_SD**2) * self._pull_back(k_by_logit, theta)
        return value / self.rows, gradient / self.rows

    def logits_of(self, theta: Float64) -> Float64:
        """The calibrated logits of all rows, (N, L)."""
        logits: Float64 = np.exp(theta[0]) * self.logits + theta[1] + theta[2:]
        return logits

    def likelihoods_of(self, logits: Float64) -> Float64:
        """Log-likelihood of each row, given calibrated logits (N, L)."""
        return self._likelihood(logits)[0]

    def mean_labels(self, logits: Float64) -> float:
        """Expected number of labels per row, given calibrated logits (N, L)."""
        some = np.where(self.conditioned, -np.expm1(_log_none(logits)), 1.0)
        return float((expit(logits).sum(axis=1) / some).mean())

    def _pull_back(self, by_logit: Float64, theta: Float64) -> Float64:
        """Chain rule: from derivatives by the calibrated logits (N, L) to derivatives by theta."""
        by_slope = np.exp(theta[0]) * np.einsum("nl,nl->", by_logit, self.logits)
        by_class = by_logit.sum(axis=0)
        return np.concatenate([[by_slope, by_class.sum()], by_class])

    def _likelihood(self, logits: Float64, gradient: bool = False) -> tuple[Float64, Float64]:
        """Log-likelihood of each row and, if `gradient`, its derivative by the calibrated logits (N, L)."""
        present, log_none = expit(logits), _log_none(logits)
        log_some = np.log(-np.expm1(log_none))
        value = log_expit(np.where(self.known == 0, np.inf, self.known * logits)).sum(axis=1)
        partial = np.flatnonzero(~self.full)
        unknown = np.where(self.known[partial] == 0, present[partial], 0.0)
        weights = choice_weights(unknown, self.positives[partial])
        choice = weights.sum(axis=0)
        value[partial] += np.log(choice)
        value -= np.where(self.conditioned, log_some, 0.0)  # rows with a label: condition on having at least one
        if not gradient:
            return value, np.empty(0)

        by_logit = np.where(self.known == 0, 0.0, (self.known > 0) - present)
        by_present = np.zeros_like(unknown)
        for u, weight in zip(ONE_MINUS_T, weights / choice, strict=True):
            by_present -= (u * weight)[:, None] / (1 - u * unknown)
        by_logit[partial] += by_present * unknown * (1 - unknown)
        by_logit -= present * np.where(self.conditioned, np.exp(log_none - log_some), 0.0)[:, None]
        return value, by_logit

    def _mean_labels(self, logits: Float64) -> tuple[float, Float64]:
        """Mean of Σ_c P(y_c = 1 | x) over the rows, and its derivative by the calibrated logits."""
        present, log_none = expit(logits), _log_none(logits)
        conditioned = self.conditioned[:, None]
        some = np.where(conditioned, -np.expm1(log_none)[:, None], 1.0)
        none = np.where(conditioned, np.exp(log_none)[:, None], 0.0)
        total = present.sum(axis=1, keepdims=True)
        by_logit = present / some * (1 - present - total / some * none) / self.rows  # both ratios are finite
        return float((total / some).mean()), by_logit


def _log_none(logits: Float64) -> Float64:
    """log Π (1 − p) per row; never exactly certain to have no label."""
    return np.asarray(np.minimum(log_expit(-logits).sum(axis=1), -1e-300))
