"""How good the labels are, estimated from the answers given so far.

Model: an unanswered label of class c with confidence q is present with probability σ(logit(q) + f(logit q) +
f_c(logit q)), where f is common to all classes. Both are piecewise linear with a Gaussian-process prior: a constant, a
slope and smooth deviations. Without answers the confidences are believed, up to these priors; each answer updates them,
and the intervals stay wide where nobody has asked. Which questions are asked depends on predictions and earlier answers
only, never on the labels that are still unknown, so the likelihood needs no correction for the order of the questions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

ENOUGH = 0.1
"""Width of both 90% intervals from which more answers about a label change little."""

_BINS = 65
_LIMIT = 8.0  # logits are clipped to ±8
_CENTRES = np.linspace(-_LIMIT, _LIMIT, _BINS)
_KNOTS = np.linspace(-_LIMIT, _LIMIT, 9)
_DRAWS = 200
_STEPS = 30
_BLOCK = 64  # classes at a time


class Interval(NamedTuple):
    """An estimate and its 90% interval."""

    value: float
    low: float
    high: float


class LabelQuality(NamedTuple):
    """The quality of the labels that were not given with the data, of one class."""

    precision: Interval
    """Share of the recovered and confirmed labels that are right."""
    recall: Interval
    """Share of the missing labels that were recovered or confirmed."""
    enough: bool
    """Whether both intervals are narrow, labels were recovered or confirmed, and they are not a small share of all."""


class Quality:
    """Estimates of precision and recall per class, updated by answers.

    Parameters
    ----------
    confidences : array of shape (R, L)
        P(label present) of the reviewed rows.
    recovered : bool array of shape (R, L)
        Labels that the model believes to be present.
    open : bool array of shape (R, L)
        Labels that neither the data nor a person has decided.

    Examples
    --------
    >>> confidences = np.full((400, 1), 0.9)
    >>> quality = Quality(confidences, confidences > 0.5, np.ones((400, 1), bool))
    >>> before = quality.labels([0])[0].precision
    >>> for row in range(50):  # every second answer is no
    ...     quality.answer(row, 0, 1 if row % 2 else -1)
    >>> after = quality.labels([0])[0].precision
    >>> before.value > 0.85, 0.5 < after.value < 0.7, after.high - after.low < before.high - before.low
    (True, True, True)
    """

    def __init__(self, confidences: npt.NDArray[np.floating], recovered: Bool, open: Bool) -> None:
        classes = confidences.shape[1]
        self._bin = _bins(confidences)
        self._recovered = recovered
        self._answers: dict[tuple[int, int], int] = {}
        self._open = np.zeros((classes, 2, _BINS), np.int64)  # per class: not recovered, recovered
        for label in range(classes):
            for recovered_too in (0, 1):
                chosen = open[:, label] & (recovered[:, label] == bool(recovered_too))
                self._open[label, recovered_too] = np.bincount(self._bin[chosen, label], minlength=_BINS)
        self._asked = np.zeros((classes, 2, _BINS), np.int64)  # answers no, yes
        self._fit: _Fit | None = None

    def answer(self, row: int, label: int, answer: int | None) -> None:
        """Take an answer into account: 1 yes, -1 no, 0 unknown; None takes the last one back."""
        place, bin_ = int(self._recovered[row, label]), int(self._bin[row, label])
        before = self._answers.pop((row, label), None)
        if before is None and answer is not None:
            self._open[label, place, bin_] -= 1
        elif before is not None and answer is None:
            self._open[label, place, bin_] += 1
        if before:
            self._asked[label, int(before > 0), bin_] -= 1
        if answer is not None:
            self._answers[row, label] = answer
        if answer:
            self._asked[label, int(answer > 0), bin_] += 1
        self._fit = None

    def probabilities(self, confidences: npt.NDArray[np.floating]) -> Float32:
        """P(label present) of every label (R, L), given the answers."""
        curves = self._fitted().logits()
        scores = logit(np.clip(confidences, expit(-_LIMIT), expit(_LIMIT)))
        place = np.clip((scores + _LIMIT) / (2 * _LIMIT) * (_BINS - 1), 0, _BINS - 1)
        low = np.minimum(place.astype(np.int64), _BINS - 2)
        label = np.arange(scores.shape[1])
        between = place - low
        return np.asarray(expit((1 - between) * curves[label, low] + between * curves[label, low + 1]), np.float32)

    def labels(self, wanted: npt.ArrayLike) -> list[LabelQuality]:
        """The estimates of some classes."""
        classes = np.asarray(wanted, np.int64)
        return [
            each for start in range(0, len(classes), _BLOCK) for each in self._block(classes[start : start + _BLOCK])
        ]

    def _block(self, classes: Int64) -> list[LabelQuality]:
        curves, noise = self._fitted().draws(classes)
        present = expit(curves)  # draws, classes, bins
        counts = self._open[classes]
        hits, misses = (_totals(present, counts[:, place], noise[place]) for place in (1, 0))
        yes = self._asked[classes, 1].sum(axis=1)
        kept = yes + counts[:, 1].sum(axis=1)
        precision, recall = _share(yes + hits, kept), _share(yes + hits, yes + hits + misses)
        return [_label_quality(precision[:, i], recall[:, i], bool(kept[i])) for i in range(len(classes))]

    def _fitted(self) -> _Fit:
        if self._fit is None:
            self._fit = _Fit.of(self._asked)
        return self._fit


def _hats() -> Float64:
    """Piecewise linear functions, 1 at one knot and 0 at all others, at the centres of the bins: (bins, knots)."""
    return np.stack([np.interp(_CENTRES, _KNOTS, unit) for unit in np.eye(len(_KNOTS))], axis=1)


def _prior_precision(constant: float, slope: float, deviation: float, length: float = 4.0) -> Float64:
    """Inverse covariance of f at the knots, from the standard deviations of its parts."""
    apart = _KNOTS[:, None] - _KNOTS
    smooth = deviation**2 * np.exp(-0.5 * (apart / length) ** 2)
    covariance = constant**2 + slope**2 * np.outer(_KNOTS, _KNOTS) + smooth + 1e-4 * np.eye(len(_KNOTS))
    return np.asarray(np.linalg.inv(covariance))


_HATS = _hats()
_SHARED = _prior_precision(1.0, 0.4, 0.6)
_OWN = _prior_precision(0.9, 0.35, 0.5)


class _Fit(NamedTuple):
    """The most likely f and f_c at the knots, with the normal approximation of their posterior.

    Given f the f_c are independent, so the Hessian is an arrow: a block of f, one block per class, and what links them.
    """

    shared: Float64  # (K,)
    own: Float64  # (L, K)
    schur: Float64  # (K, K) precision of f
    blocks: Float64  # (L, K, K) precision of f_c given f
    links: Float64  # (L, K, K)

    @classmethod
    def of(cls, asked: Int64) -> _Fit:
        yes, total = asked[:, 1].astype(np.float64), asked.sum(axis=1).astype(np.float64)
        some = np.flatnonzero(total.any(axis=1))  # of the other classes nothing but the prior is known
        yes, total = yes[some], total[some]
        shared, own = np.zeros(len(_KNOTS)), np.zeros((len(some), len(_KNOTS)))
        for _ in range(_STEPS):
            present = expit(_CENTRES + (shared + own) @ _HATS.T)
            weight = total * present * (1 - present)
            by_class = (yes - total * present) @ _HATS
            links = np.einsum("bk,lb,bj->lkj", _HATS, weight, _HATS, optimize=True)
            blocks = links + _OWN
            slope = by_class.sum(axis=0) - _SHARED @ shared
            own_slope = by_class - own @ _OWN
            solved = np.linalg.solve(blocks, np.concatenate([links, own_slope[:, :, None]], axis=2))
            schur = _SHARED + links.sum(axis=0) - np.einsum("lkj,lki->ji", links, solved[:, :, :-1])
            step = np.linalg.solve(schur, slope - np.einsum("lkj,lk->j", links, solved[:, :, -1]))
            move = solved[:, :, -1] - solved[:, :, :-1] @ step
            largest = max(np.abs(step).max(), np.abs(move).max(initial=0.0))
            scale = min(1.0, 1.0 / max(largest, 1e-12))  # at most 1 at a time
            shared, own = shared + scale * step, own + scale * move
            if largest < 1e-6:
                break
        every, zero = np.zeros((len(asked), len(_KNOTS))), np.zeros((len(asked), len(_KNOTS), len(_KNOTS)))
        all_blocks, all_links = zero + _OWN, zero.copy()
        every[some], all_blocks[some], all_links[some] = own, blocks, links
        return cls(shared, every, schur, all_blocks, all_links)

    def logits(self) -> Float64:
        """Most likely logits of presence, (L, bins)."""
        return np.asarray(_CENTRES + (self.shared + self.own) @ _HATS.T)

    def draws(self, classes: Int64) -> tuple[Float64, Float64]:
        """Draws of the logits (draws, classes, bins), and standard normal noise; the same random numbers every time."""
        unit = np.random.default_rng(0).standard_normal((_DRAWS, len(_KNOTS)))
        change = np.linalg.solve(np.linalg.cholesky(self.schur).T, unit.T)  # (K, draws)
        normal = np.array(
            [np.random.default_rng((1, int(c))).standard_normal((len(_KNOTS) + 2, _DRAWS)) for c in classes]
        )
        blocks = self.blocks[classes]
        lower = np.linalg.cholesky(blocks)
        given = np.linalg.solve(blocks, self.links[classes] @ change)
        own = np.linalg.solve(lower.transpose(0, 2, 1), normal[:, :-2]) - given + self.own[classes, :, None]
        values = (self.shared[:, None] + change + own).transpose(2, 0, 1)  # (draws, classes, K)
        return _CENTRES + values @ _HATS.T, normal[:, -2:].transpose(1, 2, 0)


def _bins(confidences: npt.NDArray[np.floating]) -> npt.NDArray[np.int8]:
    scores = logit(np.clip(np.nan_to_num(confidences), expit(-_LIMIT), expit(_LIMIT)))
    return np.asarray(np.rint((scores + _LIMIT) / (2 * _LIMIT) * (_BINS - 1)), np.int8)


def _totals(present: Float64, counts: Int64, noise: Float64) -> Float64:
    """Draws of the number of labels present among `counts` per bin, (draws, classes)."""
    mean = (present * counts).sum(axis=2)
    spread = np.sqrt((present * (1 - present) * counts).sum(axis=2))
    return np.asarray(np.clip(mean + spread * noise, 0, counts.sum(axis=1)))


def _share(part: Float64, whole: Float64 | Int64) -> Float64:
    whole = np.broadcast_to(np.asarray(whole, np.float64), part.shape)
    return np.divide(part, whole, out=np.ones_like(part), where=whole > 0)


def _label_quality(precision: Float64, recall: Float64, any_kept: bool) -> LabelQuality:
    right, found = (Interval(*map(float, np.quantile(draws, [0.5, 0.05, 0.95]))) for draws in (precision, recall))
    narrow = all(each.high - each.low <= ENOUGH for each in (right, found))
    # A recall that is surely almost 0 has a narrow interval, too, but then most answers find a missing label.
    return LabelQuality(right, found, any_kept and narrow and found.low >= ENOUGH)
