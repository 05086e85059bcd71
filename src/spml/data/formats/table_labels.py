"""The labels of a table: a column of labels or of lists, or a column of 0 and 1 per class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spml.data.formats import columns
from spml.data.formats.column_names import row_label
from spml.data.formats.embedded_images import class_names
from spml.data.formats.label_cells import label_lists
from spml.data.formats.table_files import without_guards
from spml.errors import InputError
from spml.labels import Labels

Zeros = Literal["unknown", "negative"]


class LabelCells(NamedTuple):
    """How the user describes the label columns; see `from_table`."""

    label_column: str | None = None
    class_columns: Sequence[str] | None = None
    zeros: Zeros = "unknown"
    separator: str | None = None


@dataclass
class TableLabels:
    """The labels of a table by row: lists of names, or a matrix of +1, -1 and 0."""

    columns: list[str]
    rows: list[list[str]] | npt.NDArray[np.int8]
    classes: list[str] | None
    notes: list[str]

    @property
    def description(self) -> str:
        if len(self.columns) == 1:
            return repr(self.columns[0])
        return f"{len(self.columns)} columns of 0 and 1, {self.columns[0]!r} to {self.columns[-1]!r}"

    def merged(self, path: Path, names: list[str], groups: list[list[int]]) -> TableLabels:
        """Return the labels of groups of rows that show the same image."""
        if isinstance(self.rows, list):
            lists = [list(dict.fromkeys(label for row in group for label in self.rows[row])) for group in groups]
            return replace(self, rows=lists)
        if all(len(group) == 1 for group in groups):
            return self
        matrix = np.zeros((len(groups), len(self.columns)), np.int8)
        for index, group in enumerate(groups):
            low, high = self.rows[group].min(axis=0), self.rows[group].max(axis=0)
            if ((low < 0) & (high > 0)).any():
                name = self.columns[int(((low < 0) & (high > 0)).argmax())]
                raise InputError(f"{path}: column {name!r} is 1 and -1 for the same image {names[index]!r}.")
            matrix[index] = np.where(low < 0, low, high)
        return replace(self, rows=matrix)

    def table(self, path: Path, names: Iterable[str | int]) -> Labels:
        rows = self.rows
        if isinstance(rows, list):
            if not any(rows):
                raise InputError(f"{path}: no row has a label: column {self.columns[0]!r} is empty.")
            return with_file_name(path, lambda: Labels.from_lists(rows, self.classes, ids=names))
        if not (rows > 0).any():
            raise InputError(f"{path}: no row has a label: none of the columns of 0 and 1 contains a 1.")
        return with_file_name(path, lambda: Labels.from_matrix(rows, self.columns, ids=names))


def read_labels(
    path: Path,
    table: pa.Table,
    label: str | None,
    cells: LabelCells,
    used: Iterable[str],
    *,
    binary: bool,
    classes: Iterable[str] | None = None,
) -> TableLabels:
    """Read the labels of a table from the column `label`, from a column per class, or from what looks like one of them.

    `used` are columns that hold something else. Columns of 0 and 1 count as classes only if given, or if `binary`.
    """
    if cells.zeros not in ("unknown", "negative"):
        raise InputError(f"zeros is {cells.zeros!r}: it must be 'unknown' or 'negative'.")
    if cells.label_column and cells.class_columns:
        raise InputError(f"{path}: label_column and class_columns are both given: use one of them.")
    chosen = [columns.existing_column(path, table, "class_columns", name) for name in cells.class_columns or ()]
    guessed = not chosen and label is None
    if guessed:
        guess = columns.guess_labels(path, table, used, binary=binary)
        label, chosen = (guess, []) if isinstance(guess, str) else (None, guess)
    if chosen:
        matrix = columns.label_matrix(path, table, chosen, cells.zeros)
        unknown = "unknown; if they are verified negatives, set zeros to negative"
        note = f"zeros in the columns of 0 and 1 are {unknown if cells.zeros == 'unknown' else 'negative'}."
        return TableLabels(chosen, matrix, None, [note])
    assert label is not None
    table = without_guards(path, table, [label])
    lists, notes = label_lists(path, label, table[label], cells.separator)
    if guessed and path.suffix.lower() in (".csv", ".tsv") and any(label in cells for cells in lists):
        raise InputError(
            f"{path}: the first line must contain the column names, but {label!r} is also a label in its column: "
            "add a line with names, or set label_column."
        )
    names = class_names(table.schema, label)
    if names is not None:
        lists = [
            [_class_name(path, row, names, number) for number in numbers if number != "-1"]
            for row, numbers in enumerate(lists)
        ]
        classes = classes or names
    return TableLabels([label], lists, None if classes is None else list(classes), notes)


def check_order(path: Path, table: pa.Table, labels: Iterable[str]) -> None:
    """Raise `InputError` if a column other than labels numbers the rows of the features, but not in their order."""
    for column in [name for name in table.column_names if name not in {*labels}]:
        ids = table[column].to_pylist()
        try:
            numbers = np.array([float(number) for number in ids])
        except (TypeError, ValueError, OverflowError):
            continue
        are_numbered = np.array_equal(np.sort(numbers) - numbers.min(), np.arange(len(ids)))
        if are_numbered and len(ids) > 2 and (np.diff(numbers) < 0).any():
            row = int(np.argmax(np.diff(numbers) < 0)) + 1
            raise InputError(
                f"{path}: {row_label(row)}, column {column!r} is {ids[row]} after {ids[row - 1]}: labels must be in "
                "the order of the features. Sort the table, or delete the column."
            )


def _class_name(path: Path, row: int, names: list[str], number: str) -> str:
    """Return the name of a class number in Hugging Face's layout, where -1 means unlabelled."""
    if not number.isdecimal() or int(number) >= len(names):
        raise InputError(f"{path}: {row_label(row)} has the label {number}: class numbers are 0 to {len(names) - 1}.")
    return names[int(number)]


def with_file_name(path: Path, make: Callable[[], Labels]) -> Labels:
    """Labels, with the file's name in errors."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
