"""CSV files that a spreadsheet can open safely, and back.

A spreadsheet runs a cell that starts with =, +, -, @, a tab or a line break as a formula, although it is only a name.
Such cells are written with an apostrophe in front, as spreadsheets themselves mark text, and read without it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import IO, Any, TypeVar

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

T = TypeVar("T")

_FORMULA = r"[=+\-@\t\r\n＝＋－＠]"


def guard(table: pa.Table) -> pa.Table:
    """Put an apostrophe in front of names and cells that look like formulas.

    Cells that already start with apostrophes before such a character get another one, so that `unguard` is exact.

    Examples
    --------
    >>> guard(pa.table({"label": ["=1+1", "cat", "'=1+1"]}))["label"].to_pylist()
    ["'=1+1", 'cat', "''=1+1"]
    """
    columns = [_guarded(column) if _is_text(column) else column for column in table.columns]
    return pa.Table.from_arrays(columns, names=_guarded(pa.array(table.column_names, pa.string())).to_pylist())


def guard_text(value: T) -> T | str:
    """Return the same for one cell; values other than strings are returned as they are."""
    return f"'{value}" if isinstance(value, str) and re.match(f"'*{_FORMULA}", value) else value


def unguard(column: Any) -> Any:
    """Remove what `guard` put in front, from an array of strings; other arrays are returned as they are.

    A column in which any cell looks like a formula was not written by `guard`, and is returned as it is too.

    Examples
    --------
    >>> unguard(guard(pa.table({"label": ["=1+1", "cat", "'=1+1"]}))["label"]).to_pylist()
    ['=1+1', 'cat', "'=1+1"]
    >>> unguard(pa.array(["=1+1", "'=1+1"])).to_pylist()
    ['=1+1', "'=1+1"]
    """
    if not _is_text(column) or pa.compute.any(pa.compute.match_substring_regex(column, f"^{_FORMULA}")).as_py():
        return column
    guarded = pa.compute.match_substring_regex(column, f"^'+{_FORMULA}")
    return pa.compute.if_else(guarded, pa.compute.utf8_slice_codeunits(column, 1), column)


@contextmanager
def csv_writer(
    path: str | PathLike[str] | IO[bytes], schema: pa.Schema, *, allow_formulas: bool = False
) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends tables to a CSV file.

    Parameters
    ----------
    path : path
    schema : pyarrow.Schema
    allow_formulas : bool
        Write cells that look like formulas as they are.
    """
    if allow_formulas:
        with pa.csv.CSVWriter(path, schema) as writer:
            yield writer.write_table
    else:
        with pa.csv.CSVWriter(path, guard(schema.empty_table()).schema) as writer:
            yield lambda table: writer.write_table(guard(table))


def write_csv(table: pa.Table, path: str | PathLike[str] | IO[bytes], *, allow_formulas: bool = False) -> None:
    """Write a table as CSV; see `csv_writer`."""
    with csv_writer(path, table.schema, allow_formulas=allow_formulas) as append:
        append(table)


def _is_text(column: Any) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _guarded(column: Any) -> Any:
    return pa.compute.replace_substring_regex(column, f"^('*{_FORMULA})", r"'\1")
