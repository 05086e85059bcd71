"""Checks of classes, ids, row numbers and seeds; errors name the row and the value."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spml.errors import InputError
from spml.labels.entries import Int64


def as_array(values: Any) -> npt.NDArray[Any]:
    """Convert a tensor, array or sequence to NumPy; rows of different lengths become a 1-D array of objects."""
    check_ordered(values, "values")
    if np.ma.is_masked(values):
        raise InputError("some values are masked: replace them first, for example with `filled`.")
    if isinstance(values, torch.Tensor):
        if values.layout != torch.strided or values.is_meta:
            raise InputError("the tensor is sparse or has no values: pass a dense one.")
        values = values.detach().cpu()
        return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.empty(len(values), object)
        array[:] = list(values)
        return array


def check_ordered(values: Any, name: str) -> None:
    """Raise `InputError` for sets, which have no order, and dictionaries, of which only the keys would be read."""
    if isinstance(values, (set, frozenset, Mapping)):
        raise InputError(f"{name} are in a {type(values).__name__}: pass a list, whose order is known.")


def check_classes(classes: Iterable[str]) -> tuple[str, ...]:
    """Return the class names as a tuple; they must be distinct, non-empty strings."""
    if isinstance(classes, str):
        raise InputError(f"classes is the string {classes!r}: pass a list of names.")
    if not hasattr(classes, "__iter__"):
        raise InputError(f"classes is of type {type(classes).__name__}: pass a list of names.")
    if not isinstance(classes, Mapping):
        check_ordered(classes, "classes")
    names = tuple(classes.tolist() if isinstance(classes, np.ndarray) else classes)
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(f"class {i} is named {name!r}: a class name must be a non-empty string.")
        if not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            raise InputError(f"class {i} is named {name!r}, which is not Unicode text and fits into no file.")
    if not names:
        raise InputError("classes is empty: a label table needs at least one class.")
    if repeat := _first_repeat(names):
        raise InputError(
            f"classes {repeat[0]} and {repeat[1]} are both named {names[repeat[0]]!r}: class names must differ."
        )
    return tuple(str(name) for name in names)


def check_ids(ids: Iterable[str | int] | None, num_rows: int) -> npt.NDArray[np.str_] | None:
    """Return the row ids as strings; they must be distinct, one per row."""
    if ids is None:
        return None
    if isinstance(ids, str):
        raise InputError(f"ids is the string {ids!r}: pass one id per row.")
    values = as_array(ids).tolist() if isinstance(ids, (np.ndarray, torch.Tensor)) else list(ids)
    if len(values) != num_rows:
        raise InputError(f"there are {len(values)} ids for {num_rows} rows: pass one id per row.")
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)):
            raise InputError(f"row {row}: id {value!r} must be a string or a whole number.")
    names = [str(value) for value in values]
    if repeat := _first_repeat(names):
        raise InputError(f"rows {repeat[0]} and {repeat[1]} have the same id {names[repeat[0]]!r}: ids must differ.")
    return np.array(names, dtype=np.str_)


def _first_repeat(values: Sequence[Hashable]) -> tuple[int, int] | None:
    if len(set(values)) == len(values):
        return None
    first_index: dict[Hashable, int] = {}
    for i, value in enumerate(values):
        if value in first_index:
            return first_index[value], i
        first_index[value] = i
    return None


def row_indices(rows: Any, num_rows: int) -> Int64:
    """Convert row numbers (array, tensor or sequence), or a mask of all rows, to an array of row numbers."""
    array = as_array(rows)
    if array.ndim != 1:
        raise InputError(f"rows must be a list of row numbers, not an array of shape {array.shape}.")
    if array.dtype == bool:
        if len(array) != num_rows:
            raise InputError(f"the mask has {len(array)} rows, but the table has {num_rows}.")
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
    """Return the seed as an int; it must be a whole number from 0 to 2**32 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise InputError(f"seed is {seed!r}: it must be a whole number from 0 to 2**32 - 1.")
    return int(seed)
