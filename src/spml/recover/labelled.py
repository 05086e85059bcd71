"""What people know about the rows of a run: tables with all labels of a few rows, and databases of answers."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from spml.data.formats.columns import read_table
from spml.errors import InputError
from spml.labels import Labels
from spml.runs.decisions import DECISIONS, Subject, read_decisions
from spml.runs.folder import RunFolder


def read_labelled(path: Path, run: RunFolder) -> tuple[Labels, npt.NDArray[np.int64]]:
    """Read the labels of some rows, and their row numbers, from a CSV file with the columns name and label.

    The file has one line per label; a row without labels has one line with an empty label. Labels that are not listed
    are absent.
    """
    table = read_table(path, texts=("name", "label"))
    for column in ("name", "label"):
        if column not in table.column_names:
            raise InputError(
                f"{path}: the column {column!r} is missing; its columns are {', '.join(table.column_names)}"
            )
    row_of = {name: row for row, name in enumerate(run.names)}
    lists: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    pairs = zip(table["name"].to_pylist(), table["label"].to_pylist(), strict=True)
    for line, (name, label) in enumerate(pairs, start=2):
        if name not in row_of:
            raise InputError(f"{path}, line {line}: the run has no row named {name!r}")
        if label and label not in run.classes:
            raise InputError(f"{path}, line {line}: {label!r} is not one of the run's {len(run.classes)} classes")
        lists.setdefault(name, []).extend([label] if label else [])
        lines.setdefault(name, line)
    rows = np.array([row_of[name] for name in lists])
    for (name, listed), known in zip(lists.items(), run.labels.dense(rows) > 0, strict=True):
        if missing := [run.classes[c] for c in np.flatnonzero(known) if run.classes[c] not in listed]:
            raise InputError(
                f"{path}, line {lines[name]}: {name!r} is listed without {missing[0]!r}, its observed label: "
                "list all labels of each row"
            )
    labels = Labels.from_lists(lists.values(), run.classes, rest="negative")
    return labels, rows


def answers_of(run: RunFolder, path: Path | None = None) -> Labels | None:
    """The answers in a database, by default review.db in the run folder; None if that does not exist."""
    file = run.folder / DECISIONS if path is None else path
    if path is None and not file.exists():
        return None
    return read_decisions(file, Subject(run.names, run.classes, run.given_labels))
