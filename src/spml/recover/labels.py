"""From a finished run to all labels of its rows, each with a confidence and the reason it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from spml.calibration import Bool, Calibration, Float32, Float64, Int8, Int64, best_threshold, calibrate
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.entries import row_blocks
from spml.labels.inputs import row_indices

if TYPE_CHECKING:
    from spml.runs.folder import RunFolder

_UNSURE = 2.0  # missing labels a row: how many times the low end of their interval may fit into the high one


class LabelTable(NamedTuple):
    """One line for every label handed back: by row, and in a row the observed first, then the surest."""

    row: Int64
    """Row number in the data."""
    label: Int64
    """Class index."""
    observed: Bool
    """Known beforehand; its confidence is 1."""
    confidence: Float32
    probability: Float32
    """What the network says, before calibration."""
    threshold: Float64
    """What the confidence had to reach."""
    rank: Int64
    """Place of the row among all rows handed back, by the class's probability; 1 is the most probable."""


@dataclass(frozen=True, eq=False)
class Recovered:
    """The labels of a run's rows: those that were known and those believed present."""

    run: str
    """Name of the run."""
    names: list[str]
    """One name a row of the data."""
    classes: tuple[str, ...]
    rows: Int64
    """The rows handed back, ascending."""
    known: Int8
    """(N, L) +1, −1, 0: what was known of every row."""
    probabilities: Float32
    """(N, L) of the network; NaN for rows it has not seen."""
    confidences: Float32
    """(N, L) P(present | image, what is known of the row); NaN where `probabilities` are."""
    thresholds: Float64
    """(L,) a label that is not known is believed present from this confidence on."""
    calibration: Calibration
    notes: tuple[str, ...]
    """What a user should know, a sentence each."""

    def confidence(self, rows: Any) -> Float32:
        """(R, L) of these rows of the data."""
        return self.confidences[row_indices(rows, len(self.names))]

    def present(self, rows: Any) -> Bool:
        """(R, L): known to be present, or not known and believed so."""
        index = row_indices(rows, len(self.names))
        known = self.known[index]
        present: Bool = (known > 0) | ((known == 0) & (self.confidences[index] >= self.thresholds))
        return present

    @cached_property
    def entries(self) -> LabelTable:
        """The labels of `rows`, as a table."""
        found = [np.nonzero(self.present(self.rows[part])) for part in row_blocks(len(self.rows), len(self.classes))]
        starts = [part.start for part in row_blocks(len(self.rows), len(self.classes))]
        place = np.concatenate([start + at for start, (at, _) in zip(starts, found, strict=True)])
        label = np.concatenate([of for _, of in found])
        row = self.rows[place]
        order = np.lexsort((-self.confidences[row, label], self.known[row, label] <= 0, row))
        place, row, label = place[order], row[order], label[order]
        return LabelTable(
            row=row,
            label=label,
            observed=self.known[row, label] > 0,
            confidence=self.confidences[row, label],
            probability=self.probabilities[row, label],
            threshold=self.thresholds[label],
            rank=self._ranks(place, label),
        )

    def _ranks(self, place: Int64, label: Int64) -> Int64:
        """Of each (place in `rows`, class): how many of `rows` the class is more probable in, plus 1; ties by row."""
        rank, place_of = np.empty(len(place), np.int64), np.empty(len(self.rows), np.int64)
        by_class = np.argsort(label, kind="stable")
        ends = np.searchsorted(label[by_class], np.arange(len(self.classes)), side="right")
        for c, chosen in enumerate(np.split(by_class, ends[:-1])):
            if len(chosen):
                order = np.argsort(-self.probabilities[self.rows, c], kind="stable")
                place_of[order] = np.arange(1, len(order) + 1)
                rank[chosen] = place_of[place[chosen]]
        return rank

    def summary(self) -> str:
        """One sentence on what was found."""
        found = int((~self.entries.observed).sum())
        return (
            f"{found:,} missing labels recovered in {len(self.rows):,} rows, beside {len(self.entries.row) - found:,} "
            f"that were known:"
        )


@dataclass(frozen=True)
class RecoveryScores:
    """How right recovered labels are, over the entries whose truth is known."""

    missing: int
    """Labels that are present and were not known."""
    recovered: int
    """Labels that were not known and are believed present."""
    right: int
    """Of these, those that are."""
    f1_micro: float
    """Of all labels handed back, the known ones included; counts of all classes pooled."""
    f1_macro: float
    """The same, the mean over classes that have a label or were given one."""

    @property
    def precision(self) -> float:
        return self.right / self.recovered if self.recovered else float("nan")

    @property
    def recall(self) -> float:
        return self.right / self.missing if self.missing else float("nan")

    @property
    def f1(self) -> float:
        """Of the missing labels alone."""
        total = self.recovered + self.missing
        return 2 * self.right / total if total else float("nan")


def recover(
    run: RunFolder,
    *,
    rows: Literal["train", "all"] = "train",
    labelled: tuple[Labels, npt.ArrayLike] | None = None,
    k: float | None = None,
    threshold: float | Literal["f1"] = "f1",
) -> Recovered:
    """Calibrate a run on its held-out single positives and hand back every label believed present.

    rows: "train" is every row that came with the run to learn from, training and validation; "all" the test rows too.
    labelled: labels of some rows and the numbers of these rows, where somebody has looked at all their labels. They
        count as known, and calibrate too.
    k: the mean number of labels of a row, where that is known; by default what the run was told.
    threshold: "f1" finds the confidence of each class with the best expected F1; or one confidence for all.
    """
    if rows not in ("train", "all"):
        raise InputError(f"rows is {rows!r}: it must be 'train' or 'all'.")
    if threshold != "f1" and not (isinstance(threshold, (int, float)) and 0 < threshold <= 1):
        raise InputError(f"threshold is {threshold!r}: it must be 'f1' or a number above 0 and at most 1.")
    if k is not None and not 0 < k <= len(run.classes):
        raise InputError(f"k must be above 0 and at most {len(run.classes)}, the number of labels there are, not {k}.")
    known = run.labels.dense()
    extra = np.zeros(0, np.int64) if labelled is None else _add_labelled(run, known, *labelled)
    seen = ~_rows_with(np.isnan, run.probabilities)
    own = np.sort(np.concatenate([run.train, run.validation]))
    wanted = own if rows == "train" else np.sort(np.concatenate([own, run.test]))
    chosen = wanted[seen[wanted]]
    if not len(chosen):
        raise InputError(f"the run {run.name} has no predictions for the rows asked for.")

    notes = []
    if len(chosen) < len(wanted):
        notes.append(f"{len(wanted) - len(chosen):,} rows are left out: the run has no predictions for them.")
    by = _calibrating(known, run.validation[seen[run.validation]])
    if not len(by):
        by = _calibrating(known, run.train[seen[run.train]])
        notes.append(
            "There are no labelled validation rows, so the training rows calibrate: the network has learned their "
            "labels, and confidences will be too high."
        )
    by = np.union1d(by, extra[seen[extra]])
    if not len(by):
        raise InputError(f"the run {run.name} has no row with a label to calibrate by.")
    has_label = _rows_with(lambda part: part > 0, known)
    calibration = calibrate(
        run.probabilities[by],
        known[by],
        k=run.record.get("k") if k is None else k,
        at_least_one=bool(has_label[own].all() and has_label[by].all()),
    )
    notes += _doubts(calibration)

    confidences = np.full(run.probabilities.shape, np.nan, np.float32)
    for part in row_blocks(len(confidences), len(run.classes)):
        at = part.start + np.flatnonzero(seen[part])
        if len(at):
            confidences[at] = calibration.confidences(run.probabilities[at], known[at])
    if threshold == "f1":
        thresholds = np.array([best_threshold(confidences[chosen, c]) for c in range(len(run.classes))])
    else:
        thresholds = np.full(len(run.classes), float(threshold))
    return Recovered(
        run=run.name,
        names=run.names,
        classes=run.classes,
        rows=chosen,
        known=known,
        probabilities=run.probabilities,
        confidences=confidences,
        thresholds=thresholds,
        calibration=calibration,
        notes=tuple(notes),
    )


def evaluate_recovery(recovered: Recovered, truth: Labels) -> RecoveryScores:
    """Compare with the labels of all rows of the data; entries that are unknown there are left out."""
    if truth.classes != recovered.classes or len(truth) != len(recovered.names):
        raise InputError(
            f"the truth is of {len(truth)} rows and {truth.num_classes} classes, the recovered labels of "
            f"{len(recovered.names)} rows and {len(recovered.classes)} classes: they must be the same."
        )
    true = truth.entries().take(recovered.rows)
    width = len(recovered.classes)
    entries = recovered.entries
    flat, asked = true.flat(), np.searchsorted(recovered.rows, entries.row) * width + entries.label
    place = np.minimum(np.searchsorted(flat, asked), max(len(flat) - 1, 0))
    value = np.full(len(asked), true.default, np.int8)
    if len(flat):
        listed = flat[place] == asked
        value[listed] = true.value[place[listed]]

    right, wrong = (np.bincount(entries.label[value == v], minlength=width) for v in (1, -1))
    missed = true.per_class(1) - right
    twice, all_counts = 2 * right, 2 * right + wrong + missed
    found = ~entries.observed
    return RecoveryScores(
        missing=int((missed + right).sum() - ((value == 1) & entries.observed).sum()),
        recovered=int(((value != 0) & found).sum()),
        right=int(((value == 1) & found).sum()),
        f1_micro=float(twice.sum() / all_counts.sum()) if all_counts.any() else float("nan"),
        f1_macro=float((twice / all_counts)[all_counts > 0].mean()) if all_counts.any() else float("nan"),
    )


def _rows_with(wanted: Callable[[Any], Any], table: npt.NDArray[Any]) -> Bool:
    """(N,) whether an entry of the row is wanted, without a flag for every entry at one time."""
    return np.concatenate([wanted(table[part]).any(axis=1) for part in row_blocks(len(table), table.shape[1])])


def _calibrating(known: Int8, rows: Int64) -> Int64:
    """Those of the rows of which at least one label is known to be present."""
    return rows[(known[rows] > 0).any(axis=1)]


def _add_labelled(run: RunFolder, known: Int8, labels: Labels, rows: npt.ArrayLike) -> Int64:
    """Write some rows' labels into what is known; returns the rows' numbers."""
    index = row_indices(rows, len(known))
    if labels.classes != run.classes:
        raise InputError(
            f"the labelled rows have the classes {', '.join(labels.classes)}; the run {run.name} has "
            f"{', '.join(run.classes)}."
        )
    if len(labels) != len(index):
        raise InputError(f"there are labels of {len(labels)} rows for {len(index)} row numbers.")
    given, before = labels.dense(), known[index]
    clash = np.argwhere(given * before < 0)
    if len(clash):
        row, column = clash[0]
        raise InputError(
            f"row {index[row]} ({run.names[index[row]]}): {run.classes[column]!r} is labelled "
            f"{'absent' if given[row, column] < 0 else 'present'}, and the run knows the opposite."
        )
    known[index] = np.where(given != 0, given, before)
    return index


def _doubts(calibration: Calibration) -> list[str]:
    """A warning where the labels cannot tell how many labels a row has."""
    k, least = calibration.k, 1.0 if calibration.at_least_one else 0.0
    if k.high - least <= _UNSURE * (k.low - least) or k.high - k.low < 0.1:
        return []
    return [
        f"From these labels a row has between {k.low:.1f} and {k.high:.1f} labels (best guess {k.k:.1f}), and the "
        "confidences are as unsure: tell k (`spml recover --k`), or label some rows fully (`--labelled`)."
    ]
