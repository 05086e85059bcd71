"""From what a user has to what a table needs, with an error that names the row where it cannot be."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Sequence
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spml.errors import InputError
from spml.labels.entries import Int8, Int64

CODINGS = {
    "signed": "+1 (positive), -1 (negative) and 0 (unknown)",
    "full": "1 (positive), 0 (negative) and NaN (unknown)",
    "positive": "1 (positive) and 0 (unknown)",
}


def as_array(values: Any) -> npt.NDArray[Any]:
    """A numpy array of a tensor, array or sequence; sequences that do not fit one become 1-D objects."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.empty(len(values), object)
        array[:] = list(values)
        return array


def check_classes(classes: Iterable[str]) -> tuple[str, ...]:
    if isinstance(classes, str):
        raise InputError(f"classes is the one text {classes!r}: give a list of names.")
    names = tuple(classes.tolist() if isinstance(classes, np.ndarray) else classes)
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(f"class {i} is named {name!r}: a class name is a text that is not empty.")
    if not names:
        raise InputError("there are no classes: a table of labels needs at least one.")
    if twice := _first_repeat(names):
        raise InputError(
            f"classes {twice[0]} and {twice[1]} are both named {names[twice[0]]!r}: class names must differ."
        )
    return tuple(str(name) for name in names)


def check_ids(ids: Iterable[str | int] | None, num_rows: int) -> npt.NDArray[np.str_] | None:
    if ids is None:
        return None
    if isinstance(ids, str):
        raise InputError(f"ids is the one text {ids!r}: give one id a row.")
    values = as_array(ids).tolist() if isinstance(ids, (np.ndarray, torch.Tensor)) else list(ids)
    if len(values) != num_rows:
        raise InputError(f"there are {len(values)} ids for {num_rows} rows: give one id a row.")
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)):
            raise InputError(f"row {row}: id {value!r} is neither a text nor a whole number.")
    names = [str(value) for value in values]
    if twice := _first_repeat(names):
        raise InputError(f"rows {twice[0]} and {twice[1]} have the same id {names[twice[0]]!r}: ids must differ.")
    return np.array(names, dtype=np.str_)


def _first_repeat(values: Sequence[Hashable]) -> tuple[int, int] | None:
    if len(set(values)) == len(values):
        return None
    seen: dict[Hashable, int] = {}
    for i, value in enumerate(values):
        if value in seen:
            return seen[value], i
        seen[value] = i
    return None


def row_indices(rows: Any, num_rows: int) -> Int64:
    """Row numbers from an array, tensor or sequence of them, or from a mask of all rows."""
    array = as_array(rows)
    if array.ndim != 1:
        raise InputError(f"rows must be a list of row numbers, not an array of shape {array.shape}.")
    if array.dtype == bool:
        if len(array) != num_rows:
            raise InputError(f"the mask has {len(array)} rows, the table {num_rows}.")
        return np.flatnonzero(array)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"rows must be whole numbers, not {array.dtype}.")
    outside = (array < 0) | (array >= num_rows)
    if outside.any():
        raise InputError(f"row {array[outside][0]} is out of range: the table has {num_rows} rows.")
    return array.astype(np.int64)


def check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise InputError(f"seed is {seed!r}: it must be a whole number from 0 to 2**32 - 1.")
    return int(seed)


def is_missing(value: Any) -> bool:
    """None, an empty text or NaN: what tables put where nothing is said."""
    return value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and isnan(value))


def unknown_name(row: int, name: Any, classes: Sequence[str]) -> InputError:
    if not isinstance(name, str):
        return InputError(f"row {row}: label {name!r} is not a text: labels are class names.")
    near = difflib.get_close_matches(name, classes, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"row {row}: label {name!r} is not one of the {len(classes)} classes{hint}")


def is_name_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def name_lists(lists: Any, what: str) -> list[list[Any]]:
    """One list of names a row; None and missing values are empty lists."""
    if isinstance(lists, str):
        raise InputError(f"{what} is the one text {lists!r}: give a list of names for every row.")
    checked: list[list[Any]] = []
    for row, names in enumerate(lists):
        if isinstance(names, str) and names:
            raise InputError(f"row {row} is the text {names!r}: give a list of names, or use Labels.from_names.")
        if isinstance(names, Iterable) and not isinstance(names, str):
            checked.append(list(names))
        elif is_missing(names):
            checked.append([])
        else:
            raise InputError(f"row {row} is {names!r}: give a list of names.")
    return checked


def name_coordinates(
    lists: Sequence[Sequence[Any]], index: dict[str, int], classes: Sequence[str]
) -> tuple[Int64, Int64]:
    """(row, class) of every name in the lists."""
    columns: list[int] = []
    for row, names in enumerate(lists):
        for name in names:
            if not isinstance(name, str) or name not in index:
                raise unknown_name(row, name, classes)
            columns.append(index[name])
    rows = np.repeat(np.arange(len(lists)), [len(names) for names in lists])
    return rows, np.array(columns, np.int64)


def as_matrix(matrix: Any) -> npt.NDArray[Any]:
    """A 2-D numeric array with at least one column. Objects (None among numbers) become float64."""
    array = as_array(matrix)
    if array.ndim != 2:
        raise InputError(f"a label matrix has 2 dimensions, rows × classes, not the shape {array.shape}.")
    if array.dtype == object:
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"the label matrix holds something that is not a number ({error}).") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"a label matrix holds numbers, not {array.dtype}.")
    return array


def signed_block(block: npt.NDArray[Any], coding: str, first_row: int) -> Int8:
    """Some rows of a user's matrix as +1/-1/0; `first_row` is the number of the first, for the error."""
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
            f"row {first_row + row}, column {column}: value {block[row, column]} is outside the {coding!r} "
            f"coding, which takes {CODINGS[coding]}."
        )
    signed: Int8 = positive.astype(np.int8) - negative.astype(np.int8)
    return signed
