"""How good the labels are, estimated from the answers given so far.

Model: an unanswered label of class c with confidence q is present with probability σ(s·logit(q) + b + d_c). Without
answers the confidences are believed, up to the priors s ~ N(1, ½²), b ~ N(0, 1) and d_c ~ N(0, 1). Each answer updates
them. Which questions are asked depends on predictions and earlier answers only, never on the labels that are still
unknown, so the likelihood needs no correction for the order of the questions.
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
_PRIOR = np.array([1.0, 0.0])  # s, b
_PRECISION = np.array([4.0, 1.0])
_CLASS_PRECISION = 1.0
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
    """Whether both intervals are narrow."""


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
        fit = self._fitted()
        scores = logit(np.clip(confidences, expit(-_LIMIT), expit(_LIMIT)))
        return np.asarray(expit(fit.shared[0] * scores + fit.shared[1] + fit.offsets), np.float32)

    def labels(self, wanted: npt.ArrayLike) -> list[LabelQuality]:
        """The estimates of some classes."""
        classes = np.asarray(wanted, np.int64)
        return [
            each for start in range(0, len(classes), _BLOCK) for each in self._block(classes[start : start + _BLOCK])
        ]

    def _block(self, classes: Int64) -> list[LabelQuality]:
        fit = self._fitted()
        shared, offsets, noise = fit.draws(classes)
        present = expit(
            shared[:, :1, None] * _CENTRES + shared[:, 1:, None] + offsets[:, :, None]
        )  # draws, classes, bins
        counts = self._open[classes]
        hits, misses = (_totals(present, counts[:, place], noise[place]) for place in (1, 0))
        yes = self._asked[classes, 1].sum(axis=1)
        kept = yes + counts[:, 1].sum(axis=1)
        precision, recall = _share(yes + hits, kept), _share(yes + hits, yes + hits + misses)
        return [_label_quality(precision[:, i], recall[:, i]) for i in range(len(classes))]

    def _fitted(self) -> _Fit:
        if self._fit is None:
            self._fit = _Fit.of(self._asked)
        return self._fit


class _Fit(NamedTuple):
    """The most likely s, b and d_c, with the normal approximation of their posterior.

    Given s and b the d_c are independent, so the Hessian is an arrow: a 2 × 2 block, a diagonal, and what links them.
    """

    shared: Float64  # s, b
    offsets: Float64  # d_c
    schur: Float64  # precision of s, b
    diagonal: Float64  # precision of d_c given s, b
    link: Float64  # (L, 2)

    @classmethod
    def of(cls, asked: Int64) -> _Fit:
        yes, total = asked[:, 1].astype(np.float64), asked.sum(axis=1).astype(np.float64)
        shared, offsets = _PRIOR.copy(), np.zeros(len(asked))
        for _ in range(_STEPS):
            present = expit(shared[0] * _CENTRES + shared[1] + offsets[:, None])
            rest, weight = yes - total * present, total * present * (1 - present)
            slope = np.array([(rest * _CENTRES).sum(), rest.sum()]) - _PRECISION * (shared - _PRIOR)
            own = rest.sum(axis=1) - _CLASS_PRECISION * offsets
            diagonal = weight.sum(axis=1) + _CLASS_PRECISION
            link = np.column_stack([weight @ _CENTRES, weight.sum(axis=1)])
            block = np.array(
                [[(weight @ _CENTRES**2).sum(), link[:, 0].sum()], [link[:, 0].sum(), weight.sum()]]
            ) + np.diag(_PRECISION)
            schur = block - link.T @ (link / diagonal[:, None])
            step = np.linalg.solve(schur, slope - link.T @ (own / diagonal))
            move = (own - link @ step) / diagonal
            scale = min(1.0, 1.0 / max(np.abs(step).max(), np.abs(move).max(initial=0.0), 1e-12))  # at most 1 at a time
            shared, offsets = shared + scale * step, offsets + scale * move
            if max(np.abs(step).max(), np.abs(move).max(initial=0.0)) < 1e-6:
                break
        return cls(shared, offsets, schur, diagonal, link)

    def draws(self, classes: Int64) -> tuple[Float64, Float64, Float64]:
        """Draws of (s, b), of d_c, and standard normal noise; the same random numbers every time."""
        random = np.random.default_rng(0)
        unit = random.standard_normal((_DRAWS, 2))
        shared = self.shared + np.linalg.solve(np.linalg.cholesky(self.schur).T, unit.T).T
        own = np.array([np.random.default_rng((1, int(c))).standard_normal((3, _DRAWS)) for c in classes])
        given = self.offsets[classes] - (shared - self.shared) @ (self.link[classes] / self.diagonal[classes, None]).T
        offsets = given + own[:, 0].T / np.sqrt(self.diagonal[classes])
        return shared, offsets, own[:, 1:].transpose(1, 2, 0)


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


def _label_quality(precision: Float64, recall: Float64) -> LabelQuality:
    right, found = (Interval(*map(float, np.quantile(draws, [0.5, 0.05, 0.95]))) for draws in (precision, recall))
    return LabelQuality(right, found, all(each.high - each.low <= ENOUGH for each in (right, found)))
