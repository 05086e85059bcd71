"""The forms that y may have: one class per row, or a matrix of labels; rows without a label in both."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import issparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from spml.errors import InputError
from spml.labels import Labels
from spml.labels.conversions import is_missing

UNLABELLED = -1
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Targets:
    """What y holds.

    Attributes
    ----------
    classes : array of shape (n_classes,)
    labels : Labels
        Observed labels; a row without any is unlabelled.
    exclusive : bool
        Whether y has one class per row; otherwise it is a matrix.
    """

    classes: Array
    labels: Labels
    exclusive: bool


def read_targets(y: Any, classes: Array | None = None) -> Targets:
    """Read y.

    Parameters
    ----------
    y : array of shape (n_samples,) or (n_samples, n_classes)
        See `SinglePositiveClassifier.fit`.
    classes : array, optional
        The classes of a fitted estimator. Default: those that occur in y, or the columns of the matrix.

    Returns
    -------
    Targets

    Raises
    ------
    InputError
        If y is None, holds values that are not labels, or classes that are not in `classes`.

    Examples
    --------
    >>> read_targets(["dog", None, "cat"]).labels.single()
    array([ 1, -1,  0], dtype=int32)
    >>> read_targets([[0, 1, -1], [1, 0, 0]]).labels.dense()
    array([[ 0,  1, -1],
           [ 1,  0,  0]], dtype=int8)
    """
    if y is None:
        raise InputError("SinglePositiveClassifier requires y to be passed, but the target y is None")
    if np.ma.is_masked(y):
        raise InputError("some labels of y are masked: replace them first, for example with `filled`")
    if isinstance(y, torch.Tensor) and (y.is_meta or y.layout != torch.strided):
        raise InputError("y is a tensor that is sparse or has no values: pass a dense one")
    shape = getattr(y, "shape", None)
    if shape is None:
        y = _as_array(y)
        shape = y.shape
    if len(shape) > 2 or len(shape) == 0:
        raise InputError(f"y must have one class per row or be a matrix of rows × classes, not of shape {shape}")
    return _matrix_targets(y, classes) if len(shape) == 2 and shape[1] != 1 else _single_targets(y, classes)


def _as_array(y: Any) -> Array:
    """An array of a list. NumPy would turn None and NaN among strings into strings, so those stay objects."""
    if isinstance(y, str) or not (hasattr(y, "__len__") or hasattr(y, "__array__")):
        raise InputError(f"y must have one entry per row, not be a {type(y).__name__}")
    if isinstance(y, Sequence) and any(isinstance(value, str) or value is None for value in y):
        values = np.empty(len(y), dtype=object)
        values[:] = y
        return values
    try:
        return np.asarray(y)
    except ValueError:
        raise InputError(
            "the rows of y have different lengths: turn lists of labels into a matrix with "
            "sklearn.preprocessing.MultiLabelBinarizer"
        ) from None


# One class per row


def _single_targets(y: Any, classes: Array | None) -> Targets:
    if len(y.shape) == 2 and hasattr(y, "iloc"):
        y = y.iloc[:, 0]
    missing = np.array(y.isna(), bool) if hasattr(y, "isna") else None
    values = column_or_1d(y.to_numpy() if hasattr(y, "to_numpy") else y, warn=True)
    if values.dtype.kind in "OU":
        missing = np.array([is_missing(value) for value in values], bool) | (False if missing is None else missing)
    elif values.dtype.kind == "f":
        missing = np.isnan(values)
    elif missing is None:
        missing = np.zeros(len(values), bool)
    given = _plain(values[~missing])
    if given.dtype.kind == "S":
        raise InputError("y holds bytes: decode them to strings")
    check_classification_targets(given)
    is_unlabelled = _marks_unlabelled(given, classes)
    missing[~missing] = is_unlabelled
    given = given[~is_unlabelled]
    if not len(given) and classes is None:
        raise InputError("no row of y has a label: at least one sample must have a class")
    names = np.unique(given) if classes is None else classes
    index = np.full(len(values), -1)
    index[~missing] = _columns_of(given, names, np.flatnonzero(~missing))
    return Targets(names, Labels.from_indices(index, map(str, range(len(names)))), exclusive=True)


def _plain(values: Array) -> Array:
    """Objects that are all numbers as numbers."""
    if values.dtype != object or not len(values):
        return values
    kinds = {str if isinstance(value, str) else type(value) for value in values}
    if str not in kinds and any(isinstance(value, (Collection, bytes)) for value in values):
        raise InputError(
            "y holds lists, sets or bytes: pass one string or number per row, or turn lists of labels into a matrix "
            "with sklearn.preprocessing.MultiLabelBinarizer"
        )
    if str not in kinds:
        return np.array(values.tolist())
    if len(kinds) > 1:
        other = next(value for value in values if not isinstance(value, str))
        raise InputError(f"y mixes strings and other values ({other!r}): use one type for all classes")
    return values


def _marks_unlabelled(given: Array, classes: Array | None) -> npt.NDArray[np.bool_]:
    """Which numbers are -1 and mean "no label". If there are at most two different numbers, -1 is a class."""
    if given.dtype.kind not in "if":
        return np.zeros(len(given), bool)
    values = np.unique(given) if classes is None else classes
    is_class = values.dtype.kind in "if" and UNLABELLED in values and (classes is not None or len(values) <= 2)
    return np.zeros(len(given), bool) if is_class else given == UNLABELLED


def _columns_of(given: Array, names: Array, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The column of every class; `rows` are the row numbers in y, for the error message."""
    if not len(given):
        return np.zeros(0, np.int64)
    if (given.dtype.kind in "OU") != (names.dtype.kind in "OU"):
        raise InputError(f"y holds {given.dtype} values, but the classifier was fitted with {names.dtype} classes")
    column = np.searchsorted(names, given).clip(max=len(names) - 1)
    wrong = np.flatnonzero(names[column] != given)
    if len(wrong):
        raise InputError(
            f"row {rows[wrong[0]]} of y is {given[wrong].tolist()[0]!r}, which is not one of the fitted classes"
        )
    return column


# A matrix of labels


def _matrix_targets(y: Any, classes: Array | None) -> Targets:
    names = np.asarray(y.columns) if hasattr(y, "columns") else np.arange(y.shape[1])
    if hasattr(y, "columns") and len(set(names)) < len(names):
        raise InputError("two columns of y have the same name: every class needs its own")
    if classes is not None and len(classes) != len(names):
        raise InputError(f"y has {len(names)} columns, but the classifier was fitted with {len(classes)} classes")
    if classes is not None and hasattr(y, "columns") and (classes != names).any():
        raise InputError("the columns of y are not those of fit, in the same order")
    matrix = _signed(y.toarray() if issparse(y) else np.asarray(y))
    if not (matrix != 0).any() and classes is None:
        raise InputError("no row of y has a label: at least one sample must have a class")
    return Targets(names if classes is None else classes, Labels.from_matrix(matrix), exclusive=False)


def _signed(matrix: Array) -> Array:
    """Check that a matrix holds only +1, -1 and 0."""
    if matrix.dtype.kind == "U":
        raise InputError("y is a matrix of strings: pass one class per row, or a matrix of 1 (present) and 0 (unknown)")
    wrong = np.argwhere(~np.isin(matrix, (-1, 0, 1)))
    if len(wrong):
        row, column = wrong[0]
        raise InputError(
            f"row {row}, column {column} of y is {matrix[row, column]}: a label matrix may hold 1 (present), -1 "
            "(absent) and 0 (unknown)"
        )
    return matrix.astype(np.int8)
