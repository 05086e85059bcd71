"""A review: the rows of a finished run, what the model believes about them, and what people answered."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.recover import Recovered
from spml.review.quality import LabelQuality, Quality
from spml.review.questions import expected_gain
from spml.runs.decisions import Decision, Decisions, Question, Recorded
from spml.runs.folder import RunFolder

Int64 = npt.NDArray[np.int64]

ORDERS = ("suggested", "doubtful", "confident", "unlikely")
SHOWN = ("open", "recovered", "answered", "all")
_MOST = 20_000  # rows of a list that the page asks for
_CANDIDATES = 8  # labels that the page offers for a row, besides those that are known
_CAPTION = 4  # observed labels of a row in a list, of which the page names three


@dataclass
class Review:
    """What the page shows and changes. Safe for several threads.

    Parameters
    ----------
    run : RunFolder
    recovered : Recovered
    decisions : Decisions
    """

    run: RunFolder
    recovered: Recovered
    decisions: Decisions

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._last = 0  # id of the latest decision taken into account
        self._current: dict[tuple[int, int], Decision] = {}
        self._place = {int(row): place for place, row in enumerate(self.recovered.rows)}
        rows = self.recovered.rows
        self._known = self.recovered.known[rows]  # before this review: given, or decided before the run was trained
        self._given = self.run.given_labels.dense(rows)
        self._open = self._known == 0
        # Balanced, also where labels are recovered cautiously: a cautious confidence says little about the doubt.
        probabilities = np.nan_to_num(self.recovered.probabilities[rows])
        self._confidences = self.recovered.calibration.confidences(probabilities, self._known)
        self._believed = self.recovered.present(rows) & self._open
        self._quality = Quality(self._confidences, self._believed, self._open)
        self._gain: npt.NDArray[np.float32] | None = None
        self.refresh()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.recovered.classes

    # Changes

    def refresh(self) -> list[Decision]:
        """Take new decisions into account, also those of other processes; returns them."""
        with self._lock:
            new = self.decisions.since(self._last)
            for decision in new:
                self._take(decision)
                self._last = decision.id
            return new

    def _take(self, decision: Decision) -> None:
        key, place = (decision.row, decision.label), self._place.get(decision.row)
        if decision.answer is None:
            self._current.pop(key, None)
        else:
            self._current[key] = decision
        if place is not None and self._known[place, decision.label] == 0:
            self._quality.answer(place, decision.label, decision.answer)
            self._open[place, decision.label] = decision.answer is None

    def answer(self, items: Sequence[Question], *, who: str, request: str) -> Recorded:
        """Record answers, with the confidence that was shown."""
        checked = [self._with_confidence(item) for item in items]
        recorded = self.decisions.record(checked, who=who, model=self.run.name, request=request)
        self.refresh()
        return recorded

    def undo(self, *, who: str, request: str) -> Recorded:
        """Undo the latest action of a person."""
        recorded = self.decisions.undo(who, request)
        self.refresh()
        return recorded

    def check(self, item: Question) -> None:
        """Raise `InputError` for a question about another row or class."""
        if item.row not in self or not 0 <= item.label < len(self.classes):
            raise InputError(f"row {item.row}, label {item.label} is not part of this review")

    def __contains__(self, row: int) -> bool:
        return row in self._place

    def _with_confidence(self, item: Question) -> Question:
        self.check(item)
        return item._replace(confidence=round(float(self._confidences[self._place[item.row], item.label]), 6))

    # Reading

    def gain(self, renew: bool = True) -> npt.NDArray[np.float32]:
        """The expected gain of every question (R, L), given all answers."""
        with self._lock:
            if self._gain is None or renew:
                probabilities = self._quality.probabilities(self._confidences)
                self._gain = expected_gain(probabilities, self._believed, self._open)
            return self._gain

    def overview(self) -> dict[str, Any]:
        """The run, its classes, and how far the review is."""
        with self._lock:
            gain = self.gain().sum(axis=0, dtype=np.float64)
            return {
                "run": self.run.name,
                "subject": self.decisions.subject.fingerprint(),
                "classes": list(self.classes),
                "gain": [round(float(value), 4) for value in gain],
                "last": self._last,
                **self.progress(),
            }

    def progress(self) -> dict[str, Any]:
        """Numbers of answers, and the quality of each class."""
        with self._lock:
            counts = np.zeros((3, len(self.classes)), np.int64)
            for (_, label), decision in self._current.items():
                counts[(decision.answer or 0) + 1, label] += 1
            return {
                "answers": len(self._current),
                "per_class": {"no": counts[0].tolist(), "unknown": counts[1].tolist(), "yes": counts[2].tolist()},
                "open": (self._believed & self._open).sum(axis=0).tolist(),
                "quality": [_as_json(each) for each in self._quality.labels(np.arange(len(self.classes)))],
            }

    def by_label(self, label: int, order: str, shown: str) -> dict[str, Any]:
        """The rows to show for a label, in order, with confidences and answers."""
        with self._lock:
            confidence = self._confidences[:, label]
            open_, believed = self._open[:, label], self._believed[:, label]
            answered = np.array([(row, label) in self._current for row in self.recovered.rows.tolist()])
            wanted = {
                "open": open_,
                "recovered": open_ & believed,
                "answered": answered,
                "all": self._given[:, label] == 0,
            }
            places = np.flatnonzero(wanted[shown])
            key = {
                "suggested": -self.gain()[places, label],
                "doubtful": np.abs(confidence[places] - 0.5),
                "confident": -confidence[places],
                "unlikely": confidence[places],
            }[order]
            places = places[np.argsort(key, kind="stable")][:_MOST]
            rows = self.recovered.rows[places].tolist()
            return {
                "rows": rows,
                "confidence": [round(float(value), 3) for value in confidence[places]],
                "recovered": believed[places].tolist(),
                "names": [self.run.names[row] for row in rows],
                "observed": self._observed(places),
                "decisions": [self._answer_of(row, label) for row in rows],
            }

    def _observed(self, places: Int64) -> list[list[int]]:
        """The first observed labels of some rows."""
        found: list[list[int]] = [[] for _ in places]
        for place, label in zip(*np.nonzero(self._given[places] > 0), strict=True):
            if len(found[place]) < _CAPTION:
                found[place].append(int(label))
        return found

    def by_row(self) -> list[int]:
        """The rows in the order in which to show them one at a time: highest gain first."""
        with self._lock:
            gain = np.sort(self.gain(), axis=1)[:, -3:].sum(
                axis=1
            )  # a glance at an image answers about three questions
            return [int(row) for row in self.recovered.rows[np.argsort(-gain, kind="stable")][:_MOST]]

    def row(self, row: int) -> dict[str, Any]:
        """A row's labels: given, answered, recovered, and other likely ones."""
        with self._lock:
            place = self._place.get(row)
            if place is None:
                raise InputError(f"row {row} is not part of this review")
            order = np.argsort(-self._confidences[place], kind="stable").tolist()
            known = [c for c in order if self._given[place, c] != 0]
            decided = [c for c in order if (row, c) in self._current and c not in known]
            offered = [c for c in order if c not in known and c not in decided]
            believed = [c for c in offered if self._believed[place, c]]
            others = [c for c in offered if c not in believed][: max(_CANDIDATES - len(believed), 3)]
            listed = sorted((*decided, *believed, *others), key=order.index)
            return {
                "row": row,
                "name": self.run.names[row],
                "labels": [self._label(row, place, c) for c in (*known[:_CANDIDATES], *listed)],
            }

    def _label(self, row: int, place: int, label: int) -> dict[str, Any]:
        return {
            "label": label,
            "given": int(self._given[place, label]),
            "confidence": round(float(self._confidences[place, label]), 3),
            "recovered": bool(self._believed[place, label]),
            "decision": self._answer_of(row, label),
        }

    def _answer_of(self, row: int, label: int) -> list[Any] | None:
        decision = self._current.get((row, label))
        return None if decision is None else brief(decision)

    @cached_property
    def background_order(self) -> list[int]:
        """Rows in the order in which their thumbnails will probably be needed."""
        return self.by_row()


def brief(decision: Decision) -> list[Any]:
    """A decision as the page gets it: id, row, label, answer, who."""
    return [decision.id, decision.row, decision.label, decision.answer, decision.who]


def _as_json(quality: LabelQuality) -> dict[str, Any]:
    return {
        "precision": [round(value, 3) for value in quality.precision],
        "recall": [round(value, 3) for value in quality.recall],
        "enough": quality.enough,
    }
