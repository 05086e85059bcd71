"""What every measure checks before it counts, and how the values of the classes become one."""

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
TRUTH_CODING = "the truth is coded 1 and 0, or +1 and -1"

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch can hold these but not compare them


def as_table(values: Array, name: str) -> Tensor:
    """`values` as a tensor of (rows, classes), sharing its memory where that is possible."""
    if isinstance(values, Tensor):
        table = values.detach()
    else:
        array = np.asarray(values)  # keeps a list of Python floats in float64, which torch would round
        if min(array.strides, default=0) < 0:
            array = array.copy()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            try:
                table = torch.as_tensor(array)
            except TypeError:
                raise InputError(f"{name} must hold numbers, not {array.dtype}.") from None
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(
            f"{name} must be a table of (rows, classes) with at least one of each, not {tuple(table.shape)}."
        )
    return table.long() if table.dtype in _UNSIGNED else table


def check_together(first: Tensor, first_name: str, second: Tensor, second_name: str) -> None:
    """Refuse two tables of different shapes, or on different devices."""
    if first.shape != second.shape:
        raise InputError(
            f"{first_name} and {second_name} must have one shape, not {tuple(first.shape)} and {tuple(second.shape)}."
        )
    if first.device != second.device:
        raise InputError(
            f"{first_name} and {second_name} must be on one device, not {first.device} and {second.device}."
        )


def scores_and_truth(
    scores: Array,
    truth: Array,
    mask: Array | None = None,
    *,
    truth_name: str = "targets",
    mask_name: str = "mask",
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Checked scores (floating), truth (bool) and mask (bool); entries outside the mask may hold anything.

    What depends on values is gathered on the device and read once: on a GPU the host waits here and nowhere
    else.
    """
    scores = as_table(scores, "scores")
    if scores.dtype == torch.bool or scores.is_complex():
        raise InputError(f"scores must be real numbers, not {scores.dtype}.")
    if not scores.is_floating_point():
        scores = scores.double()
    truth = as_table(truth, truth_name)
    check_together(scores, "scores", truth, truth_name)
    kept = None
    if mask is not None:
        kept = as_table(mask, mask_name).bool()
        check_together(scores, "scores", kept, mask_name)

    highest, *coding = _read([*_highest(scores, kept), *_coding(truth, kept)])
    if math.isnan(highest):
        nan = scores.isnan()
        row, column = first_place(nan if kept is None else nan & kept)
        raise InputError(f"scores hold NaN, first in {at(row, column)}; every score must be a number.")
    _check_coding(truth, kept, coding, truth_name)
    return scores, _positive(truth), kept


def checked_truth(truth: Tensor, kept: Tensor, name: str) -> Tensor:
    """The truth as bool, refused where an entry inside the mask is neither positive nor negative."""
    _check_coding(truth, kept, _read(_coding(truth, kept)), name)
    return _positive(truth)


def host_array(table: Tensor) -> np.ndarray[Any, Any]:
    """A CPU tensor as numpy sees it; bfloat16, which numpy lacks, as the same numbers in float32.

    On the CPU the passes over whole tables are numpy's: torch splits them among threads, which wait for each
    other many times longer than the pass takes when the machine is busy, as it is beside data loaders.
    """
    return (table.float() if table.dtype == torch.bfloat16 else table).numpy()


def _positive(truth: Tensor) -> Tensor:
    if truth.dtype == torch.bool:
        return truth
    return torch.from_numpy(host_array(truth) > 0) if truth.device.type == "cpu" else truth > 0


def _masked(table: Tensor, kept: Tensor | None, filling: int) -> Any:
    """The table with `filling` outside the mask: a numpy array on the CPU, a tensor elsewhere."""
    if table.device.type == "cpu":
        array = host_array(table)
        return array if kept is None else np.where(kept.numpy(), array, array.dtype.type(filling))
    return table if kept is None else torch.where(kept, table, filling)


def _highest(scores: Tensor, kept: Tensor | None) -> list[Any]:
    """The largest score, which is NaN exactly when one of them is: no table of flags is needed."""
    return [_masked(scores, kept, 0).max()]


def _coding(truth: Tensor, kept: Tensor | None) -> list[Any]:
    """Lowest value, highest value, is there a 0, is there a fraction. Nothing for bool, which cannot be wrong."""
    if truth.dtype == torch.bool:
        return []
    values = _masked(truth, kept, 1)
    fraction = [(values != values.round()).any()] if truth.is_floating_point() else []
    return [values.min(), values.max(), (values == 0).any(), *fraction]


def _read(readings: list[Any]) -> list[float]:
    if readings and isinstance(readings[0], Tensor):
        return [float(value) for value in torch.stack([reading.double() for reading in readings]).tolist()]
    return [float(reading) for reading in readings]


def _check_coding(truth: Tensor, kept: Tensor | None, coding: list[float], name: str) -> None:
    if not coding:
        return
    low, high, zero, *fraction = coding
    if not (low >= -1 and high <= 1) or any(fraction):  # NaN fails both comparisons
        values = truth.double()
        wrong = (values != 1) & (values != 0) & (values != -1)
        row, column = first_place(wrong if kept is None else wrong & kept)
        raise InputError(f"{name} hold {float(values[row, column]):g} in {at(row, column)}; {TRUTH_CODING}.")
    if low == -1 and zero:
        unknown = truth == 0
        row, column = first_place(unknown if kept is None else unknown & kept)
        raise InputError(
            f"{name} hold both -1 and 0, the first 0 in {at(row, column)}, so that 0 would mean unknown; "
            f"{TRUTH_CODING}, and unknown entries must be masked out."
        )


def first_place(flags: Tensor) -> tuple[int, int]:
    """Row and column of the first entry that is set."""
    row, column = flags.nonzero()[0].tolist()
    return int(row), int(column)


def at(row: int, column: int) -> str:
    return f"row {row}, column {column} (counted from 0)"


def class_blocks(rows: int, classes: int, bytes_an_entry: int, memory: int) -> Iterator[slice]:
    """Slices of classes whose working copies take at most `memory` bytes, or of one class."""
    width = max(1, memory // (rows * bytes_an_entry))
    for start in range(0, classes, width):
        yield slice(start, min(start + width, classes))


def mean_over_classes(values: Tensor, empty: Empty = "skip") -> float:
    """Mean of the classes' values, where nan marks a class that has none.

    `skip` leaves such a class out (and is nan if all are such), `zero` counts it 0 and keeps it in the mean.
    """
    if empty == "skip":
        return float(values.nanmean())
    if empty == "zero":
        return float(values.nan_to_num(nan=0.0).mean())
    raise InputError(f"empty must be 'skip' or 'zero', not {empty!r}.")
