"""Tables in CSV and Parquet files, read without the images that they contain."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from spml.data.csv_cells import unguard
from spml.data.formats.column_names import NUMBER, list_names, usual_column
from spml.data.formats.embedded_images import holds_images
from spml.data.stores.decode import SUFFIXES
from spml.errors import InputError

_PART = re.compile(r"([a-z]+)-(\d{5})-of-(\d{5})")


def read_table(path: Path, texts: Sequence[str] = ()) -> pa.Table:
    """Read a CSV (comma, semicolon or tab) or parquet file, without columns of images.

    Columns whose names suggest text, and `texts`, are read as text, not as numbers. A folder of parquet files named as
    by Hugging Face, such as train-00000-of-00002.parquet, is one table with a column `split`.
    """
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            table, names, rows = _read_parquet(path)
        else:
            table = _read_delimited(path, texts)
            names, rows = table.column_names, table.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {_reason(error)}.") from error
    _check_header(path, names)
    check_table(path, names, rows)
    if is_csv(path) and _ends_inside_quotes(path, table):
        raise InputError(f"{path}: the last row contains a line break: is a quotation mark missing?")
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise InputError(f"{path}: column {field.name!r} is not UTF-8 text: save the table as UTF-8.")
    return table


def is_csv(path: Path) -> bool:
    """Return whether the suffix is that of a CSV file."""
    return path.suffix.lower() in (".csv", ".tsv")


def _read_folder(path: Path) -> pa.Table:
    files = shards(path)
    if not files:
        raise InputError(f"{path} is a folder without tables: give the table itself.")
    _check_complete(path, [file.name for file in files])
    parts: list[pa.Table] = []
    for file in files:
        table = read_table(file)
        if "split" in table.column_names:
            raise InputError(f"{file}: it has a column 'split', but its name states the split: delete the column.")
        if parts and {*table.column_names} != {*parts[0].column_names} - {"split"}:
            raise InputError(f"{file}: its columns differ from those of {files[0].name}: all parts must have the same.")
        parts.append(table.append_column("split", pa.array([file.name.partition("-")[0]] * table.num_rows)))
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(f"{path}: the files do not fit together ({str(error).splitlines()[0]}).") from error


def _check_complete(path: Path, names: Sequence[str]) -> None:
    """Raise `InputError` if a part of a table is missing, by the names of the others."""
    found = {(part[1], part[3], int(part[2])) for name in names if (part := _PART.match(name))}
    for split, count in sorted({(split, count) for split, count, _ in found}):
        for number in range(int(count)):
            if (split, count, number) not in found:
                raise InputError(f"{path}: the part {split}-{number:05}-of-{count} of the table is missing.")


def _read_parquet(path: Path) -> tuple[pa.Table, list[str], int]:
    """Return a table without its columns of images; the names of all columns, and the number of rows."""
    metadata = pa.parquet.read_metadata(path)
    schema = metadata.schema.to_arrow_schema()
    table = pa.parquet.read_table(path, columns=[field.name for field in schema if not holds_images(field.type)])
    table.validate(full=True)  # strings may not be UTF-8
    return table.replace_schema_metadata(schema.metadata), schema.names, metadata.num_rows


def _read_delimited(path: Path, texts: Sequence[str]) -> pa.Table:
    parse = pa.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True)
    header = _read_csv(path, parse, None, header=True)
    blank = _blank_lines_at_end(path) if len(header) == 1 else None
    if blank is not None:  # in a table of one column, an empty line is an empty cell
        parse.ignore_empty_lines = False
    text_columns = [usual_column(kind, header) for kind in ("image", "label", "id", "split")]
    text_columns += [name for name in header if name.strip().casefold() in ("text", "texts")]
    types = {name: pa.string() for name in (*text_columns, *texts) if name}
    table = _read_csv(path, parse, pa.csv.ConvertOptions(column_types=types))
    if blank:
        table = table.slice(0, table.num_rows - blank)
    return table.rename_columns(unguard(pa.array(table.column_names, pa.string())).to_pylist())


def _blank_lines_at_end(path: Path) -> int | None:
    """Return the number of empty lines at the end of a text file; None if its first line is empty."""
    with path.open("rb") as file:
        if not file.readline().removeprefix(b"\xef\xbb\xbf").strip():
            return None
        file.seek(-min(2**16, path.stat().st_size), os.SEEK_END)
        end = file.read().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return max(0, len(end) - len(end.rstrip(b"\n")) - 1)


def _reason(error: Exception) -> str:
    """Why a table cannot be read."""
    reason = str(error).splitlines()[0].rstrip(".")
    mismatch = re.search(r"Expected (\d+) columns, got (\d+): (.*)", reason)  # it does not always count the rows
    if mismatch:
        expected, actual, line = mismatch.groups()
        return f"the row {line!r} has {actual} cells, the header {expected}"
    return f"the table cannot be read ({reason}); it must be UTF-8 CSV or parquet"


def _check_header(path: Path, names: Sequence[str]) -> None:
    """Raise `InputError` if the first line is a row of the table instead of the column names."""
    if is_csv(path) and _looks_like_numbers(names):
        raise InputError(f"{path}: the first line, {list_names(names)}, must contain the column names: add them.")
    if image := next((name for name in names if name.lower().endswith(SUFFIXES)), None):
        raise InputError(f"{path}: the first line contains the image {image!r}: it must contain the column names.")


def _read_csv(path: Path, parse: Any, convert: Any, *, header: bool = False) -> Any:
    """Return the table in a CSV file, or its header; a cell larger than the usual blocks makes the file one block."""

    def read(options: Any) -> Any:
        if not header:
            return pa.csv.read_csv(path, read_options=options, parse_options=parse, convert_options=convert)
        with pa.csv.open_csv(path, read_options=options, parse_options=parse) as start:
            return start.schema.names

    try:
        return read(None)
    except pa.ArrowInvalid as error:
        if "straddling" not in str(error) or path.stat().st_size >= 2**31 - 1:
            raise
    return read(pa.csv.ReadOptions(block_size=path.stat().st_size + 1))


def _ends_inside_quotes(path: Path, table: pa.Table) -> bool:
    """Whether the last cell of a CSV file runs to the end of the file, because its quotation mark is never closed."""
    last = table.column(table.num_columns - 1)[-1].as_py()
    if not (isinstance(last, str) and "\n" in last):
        return False
    with path.open("rb") as file:
        file.seek(-min(64, path.stat().st_size), os.SEEK_END)
        return not file.read().rstrip().endswith(b'"')


def check_table(path: Path, names: Sequence[str], rows: int) -> None:
    """Raise `InputError` if two columns have the same name, or there are no rows."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}: column names must differ.")
    if not rows:
        raise InputError(f"{path}: the table has no rows (its columns: {list_names(names)}).")


def _looks_like_numbers(names: Sequence[str]) -> bool:
    """Return whether all names are numbers, but do not number the columns."""
    if not all(NUMBER.fullmatch(name.strip()) for name in names):
        return False
    return [name.strip() for name in names] not in (
        [str(start + index) for index in range(len(names))] for start in (0, 1)
    )


def _delimiter(path: Path) -> str:
    """Return the most frequent of comma, semicolon and tab in the header; in a .tsv file, a tab if there is one."""
    with path.open(encoding="utf-8-sig") as file:
        header = re.sub('"[^"]*"', "", file.readline())
    if path.suffix.lower() == ".tsv" and "\t" in header:
        return "\t"
    return max((",", ";", "\t"), key=header.count)


def without_guards(path: Path, table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return the table with these columns of names as they were before `spml` wrote them as CSV."""
    if is_csv(path):
        for name in dict.fromkeys(names):
            table = table.set_column(table.column_names.index(name), name, unguard(table[name]))
    return table


def shards(path: Path) -> list[Path]:
    """Return the parquet files of a folder, in order; of a file, the file."""
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]
