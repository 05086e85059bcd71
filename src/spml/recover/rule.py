"""Which labels count as recovered, and what can be expected of them."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np

from spml.calibration import Bool, Calibration, Float32, Float64, Int8, Int64, Reading, best_threshold
from spml.errors import InputError
from spml.type_checks import Probability, Range, check_type

Prefer = Literal["recall", "balanced", "precision"]

ENOUGH_ROWS = 20
"""Number of fully labelled rows from which confidences are no longer cautious."""

_THRESHOLDS = {"balanced": 0.5, "precision": 0.8}


@dataclass(frozen=True, eq=False)
class Rule:
    """The rule that decides which labels count as present.

    Attributes
    ----------
    reading : {"cautious", "balanced"}
        Which confidences are compared with the thresholds, see `Calibration.confidences`.
    thresholds : array of shape (L,)
    most : int, optional
        A row gets at most this many labels, including the known ones.
    """

    reading: Reading
    thresholds: Float64
    most: int | None = None

    def present(self, confidences: Float32, known: Int8) -> Bool:
        """Whether each label is known to be present or recovered, (N, L)."""
        recovered = (known == 0) & (confidences >= self.thresholds)
        if self.most is not None:
            limit = self.most - (known > 0).sum(axis=1)
            above = np.flatnonzero(recovered.sum(axis=1) > limit)
            order = np.argsort(np.where(recovered[above], -confidences[above], np.inf), axis=1, kind="stable")
            rank = np.empty_like(order)
            np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
            recovered[above] &= rank < limit[above, None]
        present: Bool = (known > 0) | recovered
        return present


class Expectation(NamedTuple):
    """What to expect of the recovered labels: each a low and a high value."""

    precision: tuple[float, float]
    recall: tuple[float, float]


def check_choice(prefer: str, threshold: float | None, precision: float | None = None) -> None:
    """Raise `InputError` if an argument of `recover` is invalid."""
    if prefer not in get_args(Prefer):
        raise InputError(f"prefer is {prefer!r}: it must be one of {', '.join(get_args(Prefer))}")
    check_type("threshold", threshold, Annotated[float, Range(0, 1, "(]")] | None)
    check_type("precision", precision, Probability | None)
    given = "threshold" if threshold is not None else "precision" if precision is not None else ""
    if given and prefer != "balanced":
        raise InputError(f"prefer is {prefer!r}, which has no effect with {given}: leave one of them out")


def reading_of(calibration: Calibration, prefer: Prefer, threshold: float | None) -> Reading:
    """Cautious confidences, unless fully labelled rows have shown which explanation is right, or recall matters."""
    checked = calibration.full_rows >= ENOUGH_ROWS
    return "balanced" if checked or (prefer == "recall" and threshold is None) else "cautious"


def choose_rule(
    calibration: Calibration, confidences: Float32, rows: Int64, prefer: Prefer, threshold: float | None
) -> Rule:
    """The rule for a preference, or for a threshold on the cautious confidence.

    "balanced" takes labels of a confidence of at least 0.5, "precision" of at least 0.8; a row gets no more labels than
    the upper end of the interval of k. "recall" takes the best expected F1 of each class.
    """
    classes = confidences.shape[1]
    reading = reading_of(calibration, prefer, threshold)
    if threshold is not None:
        return Rule(reading, np.full(classes, float(threshold)))
    if prefer == "recall":
        return Rule(reading, np.array([best_threshold(confidences[rows, c]) for c in range(classes)]))
    return Rule(reading, np.full(classes, _THRESHOLDS[prefer]), max(1, int(np.ceil(calibration.k.high))))
