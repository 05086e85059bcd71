"""What people know about the rows of a run: tables with all labels of a few rows, and databases of answers."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spml.data.formats.table_files import read_table, without_guards
from spml.errors import InputError
from spml.labels import Labels
from spml.runs.decisions import DECISIONS, Subject, read_decisions
from spml.runs.folder import RunFolder

HEAVIEST = 2.0
"""The largest weight of a row that `sample_rows` draws, relative to equal chances."""


class LabelledRows(NamedTuple):
    """All labels of some rows of a run."""

    labels: Labels
    rows: npt.ArrayLike
    """Their row numbers."""
    weights: npt.ArrayLike | None = None
    """1 / the probability with which each row was drawn; None if all are equal."""

    def adds_to(self, known: Labels) -> bool:
        """Whether a row has a label that was not known to be present."""
        return bool(((self.labels.dense() > 0) & (known.dense(np.asarray(self.rows)) <= 0)).any())


def read_labelled(path: Path, run: RunFolder) -> LabelledRows:
    """Read the labels of some rows from a CSV file with the columns name and label, and optionally weight.

    The file has one line per label; a row without labels has one line with an empty label. A cell may also list several
    labels, separated by "|". Labels that are not listed are absent.
    """
    table = read_table(path, texts=("name", "label", "weight"))
    for column in ("name", "label"):
        if column not in table.column_names:
            raise InputError(
                f"{path}: the column {column!r} is missing; its columns are {', '.join(table.column_names)}"
            )
    if "weight" not in table.column_names:
        _check_no_other_weights(path, table.column_names)
    table = without_guards(path, table, ("name", "label"))
    row_of = {name: row for row, name in enumerate(run.names)}
    lists: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    weights: dict[str, float] = {}
    weighted = table["weight"].to_pylist() if "weight" in table.column_names else [None] * len(table)
    columns = zip(table["name"].to_pylist(), table["label"].to_pylist(), weighted, strict=True)
    for line, (name, cell, weight) in enumerate(columns, start=2):
        if name not in row_of:
            raise InputError(f"{path}, line {line}: the run has no row named {name!r}")
        labels = _labels_of(cell, run.classes)
        if unknown := [label for label in labels if label not in run.classes]:
            several = any(part.strip() in run.classes for part in re.split("[,;/]", unknown[0]))
            raise InputError(
                f"{path}, line {line}: {unknown[0]!r} is not one of the run's {len(run.classes)} classes: "
                + ("separate labels with |" if several else "correct it, or leave it out")
            )
        if twice := next((label for label in labels if label in lists.get(name, ())), None):
            raise InputError(
                f"{path}, line {line}: {name!r} already has the label {twice!r} in an earlier line: keep one of them"
            )
        lists.setdefault(name, []).extend(labels)
        lines.setdefault(name, line)
        if weight:
            number = _weight(weight, f"{path}, line {line}")
            if weights.setdefault(name, number) != number:
                raise InputError(
                    f"{path}, line {line}: {name!r} has two weights: keep the one that `spml sample` wrote"
                )
    rows = np.array([row_of[name] for name in lists])
    for (name, listed), known in zip(lists.items(), run.labels.dense(rows) > 0, strict=True):
        if missing := [run.classes[c] for c in np.flatnonzero(known) if run.classes[c] not in listed]:
            raise InputError(
                f"{path}, line {lines[name]}: {name!r} is listed without {missing[0]!r}, its observed label: "
                "list all labels of each row"
            )
    if "weight" in table.column_names and (without := [name for name in lists if name not in weights]):
        raise InputError(
            f"{path}, line {lines[without[0]]}: {without[0]!r} has no weight: keep the weights that `spml sample` "
            "wrote; delete the column only if every row was drawn with the same chance"
        )
    if len({mark for cell in weighted for mark in ".," if cell and mark in cell}) > 1:
        raise InputError(f"{path}: some weights have a decimal point, some a comma: keep what `spml sample` wrote")
    table_of_labels = Labels.from_lists(lists.values(), run.classes, rest="negative")
    return LabelledRows(table_of_labels, rows, np.array([weights[name] for name in lists]) if weights else None)


def _labels_of(cell: str | None, classes: tuple[str, ...]) -> list[str]:
    """The labels in a cell: one label, or several separated by "|"."""
    if not cell:
        return []
    return [cell] if cell in classes else [part.strip() for part in cell.split("|") if part.strip()]


def _check_no_other_weights(path: Path, columns: Sequence[str]) -> None:
    """Raise `InputError` for a renamed column of weights: without them, estimates would not hold for all rows."""
    if other := next((name for name in columns if name.strip().casefold() in ("weight", "weights")), None):
        raise InputError(f"{path}: the column {other!r} must be named 'weight', as `spml sample` wrote it")


def _weight(text: str, place: str) -> float:
    """A number as programs write it; Python alone would also read 1_0 and the digits of other scripts."""
    plain = text.isascii() and "_" not in text
    try:
        weight = float(text.replace(",", ".")) if plain else float("nan")  # some spreadsheets save decimal commas
    except ValueError:
        weight = float("nan")
    if not 0 < weight < float("inf"):
        raise InputError(f"{place}: the weight {text!r} is not a number above 0; keep what `spml sample` wrote")
    return weight


def answers_of(run: RunFolder, path: Path | None = None) -> Labels | None:
    """The answers in a database, by default review.db in the run folder; None if that does not exist."""
    file = run.folder / DECISIONS if path is None else path
    if path is None and not os.path.lexists(file):  # a link that leads nowhere is an error
        return None
    return read_decisions(file, Subject(run.names, run.classes, run.given_labels))
