"""Sparse rows of labels: only entries that differ from a default value are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spml.errors import InputError

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

_BLOCK = 1 << 22  # entries in a dense block of rows


def row_blocks(num_rows: int, num_classes: int) -> Iterator[slice]:
    """Yield consecutive slices of rows, each small enough for a dense block."""
    step = max(1, _BLOCK // max(1, num_classes))
    for first in range(0, num_rows, step):
        yield slice(first, min(first + step, num_rows))


@dataclass(frozen=True, eq=False)
class Entries:
    """An N × L table of +1, -1 and 0 as compressed sparse rows.

    Row r lists the classes `column[start[r]:start[r + 1]]`, ascending, with their `value`; all other entries of the
    row have the value `default` (0 or -1).

    Examples
    --------
    >>> entries = Entries.from_coordinates([0, 1], [2, 0], [1, 1], num_rows=2, num_classes=3, default=0)
    >>> entries.column
    array([2, 0], dtype=int32)
    >>> entries.per_row(1)
    array([1, 1])
    """

    start: Int64
    column: Int32
    value: Int8
    default: int
    num_classes: int

    @classmethod
    def from_coordinates(
        cls,
        rows: npt.ArrayLike,
        columns: npt.ArrayLike,
        values: npt.ArrayLike,
        *,
        num_rows: int,
        num_classes: int,
        default: int,
    ) -> Entries:
        """Create entries from (row, column, value) triples in any order; equal triples may repeat."""
        flat = np.asarray(rows, np.int64) * num_classes + np.asarray(columns, np.int64)
        value = np.asarray(values, np.int8)
        order = np.argsort(flat, kind="stable")
        flat, value = flat[order], value[order]
        repeated = np.flatnonzero(flat[1:] == flat[:-1]) + 1
        clash = repeated[value[repeated] != value[repeated - 1]]
        if clash.size:
            row, column = divmod(int(flat[clash[0]]), num_classes)
            raise InputError(f"row {row}, column {column}: two contradictory labels. Remove one of them.")
        keep = value != default
        keep[repeated] = False
        return cls._from_sorted(flat[keep], value[keep], num_rows, num_classes, default)

    @classmethod
    def _from_sorted(cls, flat: Int64, value: Int8, num_rows: int, num_classes: int, default: int) -> Entries:
        row, column = np.divmod(flat, num_classes)
        per_row = np.bincount(row, minlength=num_rows)
        return cls(_pointer(per_row), column.astype(np.int32), value, default, num_classes)

    @classmethod
    def from_blocks(cls, blocks: Iterable[Int8], *, num_classes: int, default: int) -> Entries:
        """Create entries from consecutive dense blocks of rows, each (b, L) int8, without a dense copy of the table."""
        per_row, column, value = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, np.int8)]
        for block in blocks:
            rows, columns = np.nonzero(block != default)
            per_row.append(np.bincount(rows, minlength=len(block)))
            column.append(columns.astype(np.int32))
            value.append(block[rows, columns])
        pointer = _pointer(np.concatenate(per_row))
        return cls(pointer, np.concatenate(column), np.concatenate(value), default, num_classes)

    @classmethod
    def from_single(cls, single: Int32, num_classes: int) -> Entries:
        """Create entries from one class index per row, -1 for none."""
        labelled = single >= 0
        column = single[labelled]
        return cls(_pointer(labelled), column, np.ones(len(column), np.int8), 0, num_classes)

    def __len__(self) -> int:
        return len(self.start) - 1

    @property
    def rows(self) -> Int64:
        """Row of every listed entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @property
    def nbytes(self) -> int:
        return self.start.nbytes + self.column.nbytes + self.value.nbytes

    def take(self, rows: Int64) -> Entries:
        """Return the given rows, in the given order."""
        length = self.start[rows + 1] - self.start[rows]
        start = _pointer(length)
        source = np.repeat(self.start[rows] - start[:-1], length) + np.arange(start[-1])
        return Entries(start, self.column[source], self.value[source], self.default, self.num_classes)

    def flat(self) -> Int64:
        """Return the position row·L + column of every listed entry, ascending."""
        return self.rows * self.num_classes + self.column

    def per_row(self, value: int) -> Int64:
        """Count the entries of each row that have this value, listed or not."""
        count = np.bincount(self.rows[self.value == value], minlength=len(self))
        if value == self.default:
            count = count + self.num_classes - np.diff(self.start)
        return count

    def per_class(self, value: int) -> Int64:
        """Count the entries of each class that have this value, listed or not."""
        count = np.bincount(self.column[self.value == value], minlength=self.num_classes)
        if value == self.default:
            count = count + len(self) - np.bincount(self.column, minlength=self.num_classes)
        return count

    def classes_with(self, row: int, value: int) -> Int64:
        """Return the classes of one row that have this value, ascending."""
        listed = slice(self.start[row], self.start[row + 1])
        dense = np.full(self.num_classes, self.default, np.int8)
        dense[self.column[listed]] = self.value[listed]
        return np.flatnonzero(dense == value)

    def compact(self) -> Entries:
        """Return the same table with the default, unknown or negative, that lists fewer entries (unknown if equal).

        The result is unique: equal tables have equal arrays. Memory stays proportional to the input, because the
        default only changes if that lists no more entries than before.
        """
        total = len(self) * self.num_classes
        listed_unknown, listed_negative = (int(np.count_nonzero(self.value == v)) for v in (0, -1))
        unlisted = total - len(self.column)
        unknown = listed_unknown if self.default else unlisted
        negative = unlisted if self.default else listed_negative
        default = -1 if unknown < negative else 0
        if default == self.default:
            return self
        keep = self.value != default
        flat = self.flat()
        hidden = _complement(flat, total)
        flat = np.concatenate([flat[keep], hidden])
        value = np.concatenate([self.value[keep], np.full(len(hidden), self.default, np.int8)])
        order = np.argsort(flat, kind="stable")
        return self._from_sorted(flat[order], value[order], len(self), self.num_classes, default)

    def as_single(self) -> Int32 | None:
        """Return each row's single positive class (-1 for none), or None if anything else is known."""
        if self.default != 0 or np.any(self.value != 1) or np.any(np.diff(self.start) > 1):
            return None
        single = np.full(len(self), -1, np.int32)
        single[self.rows] = self.column
        return single

    def check(self) -> None:
        """Raise `InputError` if the arrays do not describe a table, as in a damaged file."""
        complete = len(self.start) > 0 and self.start[0] == 0 and self.start[-1] == len(self.column)
        if not complete or np.any(np.diff(self.start) < 0) or len(self.value) != len(self.column):
            raise InputError("the row pointer does not match the entries.")
        if np.any((self.column < 0) | (self.column >= self.num_classes)):
            raise InputError(f"a class index lies outside 0 to {self.num_classes - 1}.")
        if np.any(np.diff(self.flat()) <= 0):
            raise InputError("the entries of a row are not in ascending order.")
        if self.default not in (0, -1) or np.any((self.value < -1) | (self.value > 1)):
            raise InputError("a label is neither +1, -1 nor 0.")


def _pointer(per_row: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Int64:
    pointer = np.zeros(len(per_row) + 1, np.int64)
    np.cumsum(per_row, out=pointer[1:])
    return pointer


def _complement(flat: Int64, total: int) -> Int64:
    """Return the numbers of 0 … total-1 that are not in `flat`, which is ascending."""
    gaps = np.diff(np.concatenate([[-1], flat, [total]])) - 1
    return np.arange(total - len(flat)) + np.repeat(np.arange(len(flat) + 1), gaps)
