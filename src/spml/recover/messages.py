"""What a recovery tells people: what was found, what it was calibrated on, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from spml.calibration import Calibration, Int8
from spml.recover.rule import ENOUGH_ROWS, Expectation
from spml.runs.folder import CROSS_FITTED
from spml.runs.written import shell_path, suggested_file

CalibrationRows = Literal["held-out", "training", "cross-fitted"]

FEW = 30
"""Recovered labels below which their precision is not stated: on known data, it was unreliable."""

_WIDEST = 0.6  # a range of the recall that is wider says nothing
_UNSURE = 2.0  # the interval of the number of missing labels per row is wide beyond this ratio


class Answers(NamedTuple):
    """How much people answered."""

    number: int = 0
    asked_classes: int = 0
    classes: int = 0


class Basis(NamedTuple):
    """What a calibration rests on, apart from fully labelled rows."""

    rows: CalibrationRows
    single: bool
    """Whether every row has exactly one observed label."""
    answers: Answers
    k: float | None
    """The average number of labels per row, if given."""


class Counts(NamedTuple):
    """The labels of the requested rows."""

    recovered: int
    given: int
    confirmed: int
    labelled: int
    denied: int
    """Answers that a label is absent."""


def count_answers(decided: Int8 | None) -> Answers:
    """How many answers (N, L) there are, and about how many of the classes."""
    if decided is None:
        return Answers()
    of_class = np.count_nonzero(decided, axis=0)
    return Answers(int(of_class.sum()), int((of_class > 0).sum()), len(of_class))


def describe_labels(counts: Counts, rows: int) -> str:
    """A sentence about what was recovered, and what was known before."""
    known = [f"{_number(counts.given, 'given label')}"]
    if counts.confirmed or counts.denied:
        known.append(f"{_number(counts.confirmed, 'label')} that people confirmed ({counts.denied:,} answered no)")
    if counts.labelled:
        known.append(f"{_number(counts.labelled, 'label')} of fully labelled rows")
    listed = " and ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
    missing = _number(counts.recovered, "missing label")
    return f"Recovered {missing} in {_number(rows, 'row')}, in addition to {listed}."


def describe_expectation(recovered: int, expected: Expectation) -> str:
    """A sentence about the precision and recall of the recovered labels."""
    if recovered < FEW:
        return "These are too few to state reliably how many of them are correct."
    precision, recall = (f"{100 * low:.0f} to {100 * high:.0f}%" for low, high in expected)
    low, high = expected.recall
    found = f", and {recall} of the missing labels are found" if high - low <= _WIDEST else ""
    return f"Expected: {precision} of them are correct{found}."


def describe_calibration(calibration: Calibration, basis: Basis) -> str:
    """A sentence about the rows used for calibration and the number of labels per row."""
    estimate = calibration.k
    rows = f"rows, {CROSS_FITTED}" if basis.rows == "cross-fitted" else f"{basis.rows} rows"
    if basis.k is not None:
        number = f"with k = {basis.k:g} as given"
    else:
        number = f"estimated labels per row: {estimate.k:.1f} (90% interval {estimate.low:.1f} to {estimate.high:.1f})"
    return f"Calibrated on {estimate.rows:,} {rows}, {_labels_of_rows(calibration.full_rows, basis)}; {number}."


def _labels_of_rows(full: int, basis: Basis) -> str:
    """What is known about the rows used for calibration."""
    answers = f"{_number(basis.answers.number, 'answer')}" if basis.answers.number else ""
    if full:
        return f"{full:,} of them fully labelled" + (f", and {answers}" if answers else "")
    if answers:
        return f"with {answers} and no full labels"
    return f"each with {'one observed label' if basis.single else 'its observed labels'} and no full labels"


def warn(calibration: Calibration, basis: Basis, run: Path, *, nothing: bool) -> Iterator[str]:
    """Warnings about training rows in the calibration, and about what single labels leave open.

    `nothing` states that not even one label is recovered, `run` is the path of the run.
    """
    if basis.rows == "training":
        yield (
            "Calibrated on training rows because no validation row has a label. The network has memorised their "
            "labels, so the confidences are too high."
        )
    if calibration.full_rows < ENOUGH_ROWS and basis.k is None:
        may_be_single = calibration.at_least_one and calibration.k.low < 1.1
        yield (
            _opening(calibration, nothing)
            + ("Most rows may have just one label. " if may_be_single else "")
            + "Single labels cannot tell whether two labels are both present or merely hard to tell apart. "
            + _advice(calibration, basis.answers, run)
        )


def _opening(calibration: Calibration, nothing: bool) -> str:
    k, least = calibration.k, _least(calibration)
    wide = k.high - least > _UNSURE * (k.low - least) and k.high - k.low >= 0.1
    numbers = (
        f"the rows may have {k.low:.1f} to {k.high:.1f} labels each on average, and one label per row cannot show how "
        "many"
    )
    if nothing:
        return f"No label is recovered: {numbers}. With the fewest of them, none is more likely present than absent. "
    if wide:
        return f"These labels cannot be trusted yet: {numbers}. "
    return "No fully labelled rows confirm these confidences. "


def _advice(calibration: Calibration, answers: Answers, run: Path) -> str:
    """What improves the confidences, with commands that can be copied."""
    path, check = shell_path(run), suggested_file(run, "check.csv")
    # The spread of the number of labels of a row is about that of a Poisson distribution of the missing ones.
    missing = max(calibration.k.k - _least(calibration), 0.0)
    half_width = {rows: 1.64 * np.sqrt((missing + 0.25) / rows) for rows in (20, 60)}
    return (
        f"{_ask(answers)} (`spml review {path}`), or label rows fully (`spml sample {path} --rows 20 --out {check}`, "
        f"then `spml recover {path} --labelled {check} --out {suggested_file(run, 'recovered.csv')}`): 20 rows give "
        f"the number of labels per row within ±{half_width[20]:.1f}, 60 within ±{half_width[60]:.1f}."
    )


def _ask(answers: Answers) -> str:
    if not answers.number:
        return "Answer questions"
    so_far = f"{_number(answers.number, 'answer')} about {answers.asked_classes:,} of {answers.classes:,} labels so far"
    other = answers.asked_classes < answers.classes
    return f"{so_far}: answer {'about other labels too' if other else 'more questions'}"


def _least(calibration: Calibration) -> float:
    """The number of labels that every row has."""
    return 1.0 if calibration.at_least_one else 0.0


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
