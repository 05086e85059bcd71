"""Columns that may name the rows of a table, although nobody chose them as ids."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LONGEST = 50  # characters of a name


def id_hint(table: pa.Table, used: Collection[str], features: Collection[str]) -> Iterator[str]:
    """Yield a note if a column looks like names of the rows.

    Parameters
    ----------
    table : pyarrow.Table
    used : collection of str
        Columns that are labels, texts or a split.
    features : collection of str
        Columns of numbers that are features.
    """
    unused = [name for name in table.column_names if name not in used and name not in features]
    found = [name for name in unused if _names_rows(table[name])]
    numbers = [name for name in features if name in table.column_names and _numbers_rows(table[name])]
    if not found and len(numbers) == 1:  # several are measurements
        found = numbers
    if found and table.num_rows > 1:
        option = f"--id-column {shlex.quote(found[0])}"
        yield f"rows are named by their numbers: to keep the names in {found[0]!r}, pass {option}."


def _names_rows(column: pa.ChunkedArray) -> bool:
    """Whether the cells are short texts or whole numbers, and none is empty or occurs twice."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _numbers_rows(column)
    if column.null_count or pc.count_distinct(column).as_py() < len(column):
        return False
    lengths = pc.utf8_length(pc.utf8_trim_whitespace(column))
    return bool(pc.min(lengths).as_py() and pc.max(lengths).as_py() <= _LONGEST)


def _numbers_rows(column: pa.ChunkedArray) -> bool:
    """Whether the cells are whole numbers that differ, and are not consecutive."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    values = column.to_numpy()
    return len(np.unique(values)) == len(values) and bool((np.diff(values) != 1).any())
