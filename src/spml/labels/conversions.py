"""Conversions from names, lists and matrices to label tables; errors name the row, the column and the value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.labels.entries import Entries, Int8, Int32, Int64, row_blocks
from spml.labels.inputs import as_array, check_ordered

Coding = Literal["signed", "full", "positive"]
CODINGS = {
    "signed": "+1 (positive), -1 (negative) and 0 (unknown)",
    "full": "1 (positive), 0 (negative) and NaN (unknown)",
    "positive": "1 (positive) and 0 (unknown)",
}


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty: None, an empty string or NaN."""
    return value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and isnan(value))


def distinct_names(names: Iterable[Any]) -> list[str]:
    """Return the names that occur, sorted."""
    return sorted({name for name in names if isinstance(name, str) and name})


def single_from_indices(indices: Any, num_classes: int) -> Int32:
    """Check one class index per row, -1 for none."""
    array = as_array(indices)
    if array.ndim != 1:
        raise InputError(f"pass one class index per row, not an array of shape {array.shape}.")
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"class indices must be integers, not {array.dtype}.")
    outside = (array < -1) | (array >= num_classes)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"row {row}: class index {array[row]} is out of range. With {num_classes} classes, use 0 to "
            f"{num_classes - 1}, or -1 for no label."
        )
    return array.astype(np.int32)


def single_from_names(names: Sequence[Any], classes: Sequence[str]) -> Int32:
    """Look up one class name per row; missing names become -1."""
    index = {name: i for i, name in enumerate(classes)}
    single = np.full(len(names), -1, np.int32)
    for row, name in enumerate(names):
        if isinstance(name, str) and name in index:
            single[row] = index[name]
        elif not is_missing(name):
            raise _unknown_name(row, name, classes)
    return single


def column_names(matrix: Any) -> list[str] | None:
    """Return the columns of a DataFrame, if they are strings."""
    columns = list(matrix.columns) if hasattr(matrix, "columns") and hasattr(matrix, "to_numpy") else []
    return columns if columns and all(isinstance(name, str) for name in columns) else None


def name_lists(lists: Any, argument: str) -> list[list[Any]]:
    """Return one list of names per row; missing values become empty lists."""
    if isinstance(lists, str):
        raise InputError(f"{argument} is the string {lists!r}: pass a list of names for every row.")
    check_ordered(lists, argument)
    checked: list[list[Any]] = []
    for row, names in enumerate(lists):
        if isinstance(names, str) and names:
            raise InputError(f"row {row} is the string {names!r}: pass a list of names, or use Labels.from_names.")
        if isinstance(names, Iterable) and not isinstance(names, str):
            checked.append(list(names))
        elif is_missing(names):
            checked.append([])
        else:
            raise InputError(f"row {row} is {names!r}: pass a list of names.")
    return checked


def entries_from_lists(
    positives: list[list[Any]], negatives: list[list[Any]], classes: Sequence[str], default: int
) -> Entries:
    """Build entries from the names of each row's positives and negatives."""
    for row, (present, absent) in enumerate(zip(positives, negatives, strict=True)):
        for name in absent:
            if name in present:
                raise InputError(f"row {row}: label {name!r} is both positive and negative. Remove one of them.")
    rows, columns = _name_coordinates(positives, classes)
    negative_rows, negative_columns = _name_coordinates(negatives, classes)
    return Entries.from_coordinates(
        np.concatenate([rows, negative_rows]),
        np.concatenate([columns, negative_columns]),
        np.repeat(np.array([1, -1], np.int8), [len(rows), len(negative_rows)]),
        num_rows=len(positives),
        num_classes=len(classes),
        default=default,
    )


def _name_coordinates(lists: Sequence[Sequence[Any]], classes: Sequence[str]) -> tuple[Int64, Int64]:
    """Return (row, class) of every name in the lists."""
    index = {name: i for i, name in enumerate(classes)}
    columns: list[int] = []
    for row, names in enumerate(lists):
        for name in names:
            if not isinstance(name, str) or name not in index:
                raise _unknown_name(row, name, classes)
            columns.append(index[name])
    rows = np.repeat(np.arange(len(lists)), [len(names) for names in lists])
    return rows, np.array(columns, np.int64)


def _unknown_name(row: int, name: Any, classes: Sequence[str]) -> InputError:
    if not isinstance(name, str):
        return InputError(f"row {row}: label {name!r} is not a string: labels are class names.")
    similar = difflib.get_close_matches(name, classes, n=1)
    hint = f"; did you mean {similar[0]!r}?" if similar else ". Correct it, or add it to the classes."
    return InputError(f"row {row}: label {name!r} is not one of the {len(classes)} classes{hint}")


def as_matrix(matrix: Any) -> npt.NDArray[Any]:
    """Convert to a 2-D numeric array. Objects, such as None among numbers, become float64."""
    array = as_array(matrix)
    if array.ndim != 2:
        raise InputError(f"a label matrix must have 2 dimensions, rows × classes, not the shape {array.shape}.")
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"the label matrix must contain numbers only ({error}).") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"a label matrix must contain numbers, not {array.dtype}.")
    return array


def entries_from_matrix(matrix: npt.NDArray[Any], coding: Coding) -> Entries:
    """Build entries from a matrix, block by block."""

    def blocks() -> Iterator[Int8]:
        for rows in row_blocks(*matrix.shape):
            yield _signed_block(matrix[rows], coding, rows.start)

    surplus = sum(int(np.count_nonzero(block == -1)) - int(np.count_nonzero(block == 0)) for block in blocks())
    default = -1 if surplus > 0 else 0  # the more frequent of negative and unknown
    return Entries.from_blocks(blocks(), num_classes=matrix.shape[1], default=default)


def _signed_block(block: npt.NDArray[Any], coding: Coding, first_row: int) -> Int8:
    """Convert some rows to +1/-1/0; `first_row` is the number of the first one, for the error message."""
    positive, zero = block == 1, block == 0
    if coding == "signed":
        negative, unknown = block == -1, zero
    elif coding == "full":
        negative, unknown = zero, np.isnan(block)
    else:
        negative, unknown = np.zeros(block.shape, bool), zero
    bad = np.argwhere(~(positive | negative | unknown))
    if len(bad):
        row, column = bad[0]
        raise InputError(
            f"row {first_row + row}, column {column}: value {block[row, column]} does not fit coding {coding!r}, "
            f"which accepts {CODINGS[coding]}. Correct the value or pass another coding."
        )
    signed: Int8 = positive.astype(np.int8) - negative.astype(np.int8)
    return signed


def detect_coding(matrix: npt.NDArray[Any]) -> Coding:
    """Guess the coding of a matrix by the rule in `Labels.from_any`."""
    blocks = [matrix[rows] for rows in row_blocks(*matrix.shape)]
    if any((block == -1).any() for block in blocks):
        return "signed"
    if any((block != block).any() for block in blocks):  # NaN
        return "full"
    return "positive" if all((block.sum(axis=1) == 1).all() for block in blocks) else "full"


def detect_text(rows: Sequence[Any]) -> Literal["names", "lists"] | None:
    """Return whether the rows are strings or lists of strings; None if they are neither."""
    filled = [row for row in rows if not is_missing(row)]
    if all(isinstance(row, str) for row in filled):
        return "names"
    if all(_is_name_list(row) for row in filled):
        return "lists"
    if any(isinstance(row, str) for row in filled):
        row = next(i for i, value in enumerate(rows) if not isinstance(value, str) and not is_missing(value))
        raise InputError(f"row {row} is {rows[row]!r}, but other rows are strings: use Labels.from_lists.")
    return None


def _is_name_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and all(isinstance(name, str) for name in value)
