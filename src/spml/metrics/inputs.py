"""Input checks shared by all metrics, and the mean over classes."""

import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spml.errors import InputError

Array = Tensor | np.ndarray[Any, Any]
Empty = Literal["skip", "zero"]

WORKING_MEMORY = 64 * 2**20
TRUTH_CODING = "use 1 and 0, or +1 and -1"

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch can hold these but not compare them


def as_table(values: Array, name: str) -> Tensor:
    """Convert to a tensor of (rows, classes), without a copy if possible."""
    if isinstance(values, Tensor):
        table = values.detach()
    else:
        array = np.asarray(values)  # keeps a list of Python floats in float64, while torch would round them to float32
        if min(array.strides, default=0) < 0:
            array = array.copy()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            try:
                table = torch.as_tensor(array)
            except TypeError:
                raise InputError(f"{name} must contain numbers, not {array.dtype}.") from None
    if table.layout != torch.strided:
        raise InputError(f"{name} is a sparse tensor: pass a dense one.")
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(
            f"{name} must be a table of (rows, classes) with at least one of each, not {tuple(table.shape)}."
        )
    return table.long() if table.dtype in _UNSIGNED else table


def check_together(first: Tensor, first_name: str, second: Tensor, second_name: str) -> None:
    """Raise `InputError` if two tables have different shapes or devices."""
    if first.shape != second.shape:
        raise InputError(
            f"{first_name} and {second_name} must have the same shape, not {tuple(first.shape)} and "
            f"{tuple(second.shape)}."
        )
    if first.device != second.device:
        raise InputError(
            f"{first_name} and {second_name} must be on the same device, not {first.device} and {second.device}."
        )


def scores_and_truth(
    scores: Array, truth: Array, mask: Array | None = None, *, truth_name: str = "targets", mask_name: str = "mask"
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return checked scores (floating point), truth (bool) and mask (bool). Entries outside the mask may be anything.

    All checks of values are computed on the device and read together, so that a GPU is synchronised only once.
    """
    scores = as_table(scores, "scores")
    if scores.dtype == torch.bool or scores.is_complex():
        raise InputError(f"scores must be real numbers, not {scores.dtype}.")
    if not scores.is_floating_point():
        scores = scores.double()
    truth = as_table(truth, truth_name)
    check_together(scores, "scores", truth, truth_name)
    included = None
    if mask is not None:
        included = as_table(mask, mask_name).bool()
        check_together(scores, "scores", included, mask_name)

    highest, *coding = _to_floats([*_largest_score(scores, included), *_coding_facts(truth, included)])
    if math.isnan(highest):
        nan = scores.isnan()
        row, column = first_position(nan if included is None else nan & included)
        raise InputError(f"scores contain NaN, first in {position_text(row, column)}; every score must be a number.")
    _check_coding(truth, included, coding, truth_name)
    return scores, _positive(truth), included


def checked_truth(truth: Tensor, included: Tensor, name: str) -> Tensor:
    """Return the truth as bool; raise `InputError` if an entry inside the mask is neither positive nor negative."""
    _check_coding(truth, included, _to_floats(_coding_facts(truth, included)), name)
    return _positive(truth)


def host_array(table: Tensor) -> np.ndarray[Any, Any]:
    """Return a CPU tensor as a NumPy array; bfloat16, which NumPy lacks, becomes float32.

    On the CPU, NumPy makes the passes over whole tables. Torch would use several threads, and on a machine that is
    busy with data loaders they wait for each other much longer than the pass takes.
    """
    return (table.float() if table.dtype == torch.bfloat16 else table).numpy()


def _positive(truth: Tensor) -> Tensor:
    if truth.dtype == torch.bool:
        return truth
    return torch.from_numpy(host_array(truth) > 0) if truth.device.type == "cpu" else truth > 0


def _masked(table: Tensor, included: Tensor | None, fill: int) -> Any:
    """Return the table with `fill` outside the mask: a NumPy array on the CPU, a tensor on other devices."""
    if table.device.type == "cpu":
        array = host_array(table)
        return array if included is None else np.where(included.numpy(), array, array.dtype.type(fill))
    return table if included is None else torch.where(included, table, fill)


def _largest_score(scores: Tensor, included: Tensor | None) -> list[Any]:
    """Return the largest score. It is NaN exactly if any score is, so no table of flags is needed."""
    return [_masked(scores, included, 0).max()]


def _coding_facts(truth: Tensor, included: Tensor | None) -> list[Any]:
    """Return minimum, maximum, whether there is a 0 and a fraction; nothing for bool, which is always valid."""
    if truth.dtype == torch.bool:
        return []
    values = _masked(truth, included, 1)
    fraction = [(values != values.round()).any()] if truth.is_floating_point() else []
    return [values.min(), values.max(), (values == 0).any(), *fraction]


def _to_floats(readings: list[Any]) -> list[float]:
    if readings and isinstance(readings[0], Tensor):
        return [float(value) for value in torch.stack([reading.double() for reading in readings]).tolist()]
    return [float(reading) for reading in readings]


def _check_coding(truth: Tensor, included: Tensor | None, coding: list[float], name: str) -> None:
    if not coding:
        return
    low, high, zero, *fraction = coding
    if not (low >= -1 and high <= 1) or any(fraction):  # NaN fails both comparisons
        values = truth.double()
        wrong = (values != 1) & (values != 0) & (values != -1)
        row, column = first_position(wrong if included is None else wrong & included)
        raise InputError(
            f"{name} contain {float(values[row, column]):g} in {position_text(row, column)}; {TRUTH_CODING}."
        )
    if low == -1 and zero:
        unknown = truth == 0
        row, column = first_position(unknown if included is None else unknown & included)
        raise InputError(
            f"{name} contain both -1 and 0, the first 0 in {position_text(row, column)}, so 0 would mean unknown; "
            f"{TRUTH_CODING}, and exclude unknown entries by a mask."
        )


def first_position(flags: Tensor) -> tuple[int, int]:
    """Return row and column of the first True entry."""
    row, column = flags.nonzero()[0].tolist()
    return int(row), int(column)


def position_text(row: int, column: int) -> str:
    """Return how errors refer to an entry of a table."""
    return f"row {row}, column {column} (counted from 0)"


def class_blocks(rows: int, classes: int, bytes_per_entry: int, memory: int) -> Iterator[slice]:
    """Yield slices of classes whose working copies fit into `memory` bytes, at least one class each."""
    width = max(1, memory // (rows * bytes_per_entry))
    for start in range(0, classes, width):
        yield slice(start, min(start + width, classes))


def mean_over_classes(values: Tensor, empty: Empty = "skip") -> float:
    """Mean over classes, where nan marks a class without a value.

    Parameters
    ----------
    values : Tensor of shape (n_classes,)
    empty : {"skip", "zero"}
        How nan counts: not at all, or as 0. With "skip" the mean is nan if all values are.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If `empty` is something else.

    Examples
    --------
    >>> values = torch.tensor([0.5, 1.0, float("nan")])
    >>> mean_over_classes(values), mean_over_classes(values, empty="zero")
    (0.75, 0.5)
    """
    if empty == "skip":
        return float(values.nanmean())
    if empty == "zero":
        return float(values.nan_to_num(nan=0.0).mean())
    raise InputError(f"empty must be 'skip' or 'zero', not {empty!r}.")
