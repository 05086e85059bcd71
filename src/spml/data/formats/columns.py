"""A table's columns: which is the image, the label, the id, the split, and which are features."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from spml.data.stores.decode import SUFFIXES
from spml.errors import InputError

TABLES = (".csv", ".tsv", ".parquet", ".pq")
"""How the names of tables end (lower case)."""

# Names as people write them, without blanks, case, hyphens and underscores; the first that occurs is taken.
_USUAL = {
    "image": "image imagepath imagefile imagefilename path filepath file filename img imgpath photo picture uri",
    "label": "label labels tag tags class classes classname category categories target species",
    "id": "id imageid rowid sampleid uuid key",
    "split": "split subset partition set",
    "index": "index unnamed:0 indexlevel0",
}


def read_table(path: Path, texts: Sequence[str] = ()) -> pa.Table:
    """A CSV (comma, semicolon or tab) or parquet file. Columns of names, and `texts`, are not taken for numbers."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            table = pa.parquet.read_table(path)
        else:
            parse = pa.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True)
            with pa.csv.open_csv(path, parse_options=parse) as start:
                header = start.schema.names
            named = [usual(kind, header) for kind in ("image", "label", "id", "split")]
            convert = pa.csv.ConvertOptions(column_types={name: pa.string() for name in (*named, *texts) if name})
            table = pa.csv.read_csv(path, parse_options=parse, convert_options=convert)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        if odd := re.search(r"Expected (\d+) columns, got (\d+): (.*)", reason):  # it does not always count the rows
            expected, there, line = odd.groups()
            raise InputError(f"{path}: the row {line!r} has {there} cells, the header {expected}.") from error
        raise InputError(f"{path}: the table cannot be read ({reason}); it must be UTF-8 CSV or parquet.") from error
    names = table.column_names
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}: column names must differ.")
    data = [name for name in names if name.lower().endswith(SUFFIXES)]
    if data:
        raise InputError(f"{path}: the first line names the image {data[0]!r}: it must name the columns.")
    if not table.num_rows:
        raise InputError(f"{path}: the table has no rows (its columns: {_listed(names)}).")
    for name, kind in zip(names, table.schema.types, strict=True):
        if pa.types.is_struct(kind) or (pa.types.is_binary(kind) and path.suffix.lower() in (".parquet", ".pq")):
            raise InputError(
                f"{path}: column {name!r} holds {'files' if pa.types.is_binary(kind) else kind}: a table to learn from "
                "names its images, so write them to files, and their paths into the table."
            )
        if pa.types.is_binary(kind):
            raise InputError(f"{path}: column {name!r} is not UTF-8 text: save the table as UTF-8.")
    return table


def _delimiter(path: Path) -> str:
    """The one of comma, semicolon and tab that the header line has most of."""
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
    return max((",", ";", "\t"), key=header.count)


def usual(kind: str, names: Sequence[str]) -> str | None:
    """The column that is named as columns of this kind usually are."""
    plain = {"".join(c for c in name.casefold() if c not in " -_"): name for name in reversed(names)}
    return next((plain[name] for name in _USUAL[kind].split() if name in plain), None)


def chosen(path: Path, table: pa.Table, option: str, name: str) -> str:
    """The column a user named, or an error with those there are."""
    if name in table.column_names:
        return name
    near = difflib.get_close_matches(name, table.column_names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise InputError(f"{path}: there is no column {name!r}{hint}; {option} must be of {_listed(table.column_names)}.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")


def roles(path: Path, table: pa.Table, given: Mapping[str, str | None], images: bool) -> dict[str, str]:
    """Which column is the label and, where there is one, the image, the id and the split: given, or guessed."""
    found = {kind: chosen(path, table, f"{kind}_column", name) for kind, name in given.items() if name}

    def free() -> list[str]:
        return [name for name in table.column_names if name not in found.values()]

    if images and "image" not in found and (guess := _image_column(table, free())):
        found["image"] = guess
    for kind in ("id", "split", "label"):
        if kind not in found and (guess := usual(kind, free())):
            found[kind] = guess
    if "label" not in found:
        texts = [name for name in _text_columns(table) if name in free()]
        if len(texts) != 1:
            raise InputError(
                f"{path}: none of the columns {_listed(table.column_names)} looks like the labels: name it with "
                "label_column."
            )
        found["label"] = texts[0]
    return found


def _image_column(table: pa.Table, names: list[str]) -> str | None:
    """The column of image paths: by its name, or because its cells end as image files do."""
    if named := usual("image", names):
        return named
    for name in names:
        cells = [cell for cell in table[name].slice(0, 100).to_pylist() if cell]
        if cells and all(isinstance(cell, str) and cell.strip().lower().endswith(SUFFIXES) for cell in cells):
            return name
    return None


def _text_columns(table: pa.Table) -> list[str]:
    return [
        field.name
        for field in table.schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type) or pa.types.is_dictionary(field.type)
    ]


def feature_columns(path: Path, table: pa.Table, used: Iterable[str]) -> list[str]:
    """The column of lists of numbers if there is one, else all columns of numbers that are free."""
    index = usual("index", table.column_names)
    fields = [field for field in table.schema if field.name not in (*used, index)]
    lists = [field.name for field in fields if _is_list(field.type) and _is_number(field.type.value_type)]
    numbers = [field.name for field in fields if _is_number(field.type)]
    if not lists[:1] and not numbers:
        raise InputError(
            f"{path}: no column names images (image_column) and none holds numbers (feature_columns); "
            f"its columns are {_listed(table.column_names)}."
        )
    return lists[:1] or numbers


def feature_matrix(path: Path, table: pa.Table, names: list[str]) -> npt.NDArray[np.float32]:
    """The columns side by side, (N, D); every cell must be a number."""
    for name in names:
        if table[name].null_count:
            row = table[name].to_pylist().index(None)
            raise InputError(f"{path}: {place(row)}, column {name!r} is empty: features must be numbers.")
    if len(names) == 1 and _is_list(table.schema.field(names[0]).type):
        rows: list[Any] = table[names[0]].to_pylist()
        odd = next((row for row, cell in enumerate(rows) if len(cell) != len(rows[0])), None)
        if odd is not None:
            raise InputError(f"{path}: {place(odd)} has {len(rows[odd])} features, row 1 has {len(rows[0])}.")
        return np.array(rows, np.float32)
    matrix = np.empty((table.num_rows, len(names)), np.float32)
    for column, name in enumerate(names):
        if not _is_number(table.schema.field(name).type):
            raise InputError(f"{path}: column {name!r} holds {table.schema.field(name).type}, not numbers.")
        matrix[:, column] = table[name].to_numpy()
    return matrix


def place(row: int) -> str:
    """How an error calls a row of a table."""
    return f"row {row + 1} (the first below the header is row 1)"


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
