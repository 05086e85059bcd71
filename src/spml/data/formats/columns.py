"""The columns of a table: which hold images, texts, labels, ids, the split and features."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from spml.data.csv_cells import unguard
from spml.data.formats.embedded_images import holds_images
from spml.data.stores.decode import SUFFIXES
from spml.errors import InputError

# Usual names, without blanks, case, hyphens and underscores; the first one present is used.
_USUAL = {
    "image": "image imagepath imagefile imagefilename path filepath file filename img imgpath photo picture uri",
    "label": "label labels tag tags class classes classname category categories target species topic topics",
    "text": "text texts document body content message abstract review comment sentence description utterance",
    "id": "id imageid rowid sampleid uuid key",
    "split": "split subset partition set",
    "index": "index unnamed:0 indexlevel0",
}
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?|[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
_MIN_TEXT = 20  # characters: a column whose cells are shorter on average looks like names, not like texts


def read_table(path: Path, texts: Sequence[str] = ()) -> pa.Table:
    """Read a CSV (comma, semicolon or tab) or parquet file, without columns of images.

    Columns whose names suggest text, and `texts`, are read as text, not as numbers. A folder of parquet files named as
    by Hugging Face, such as train-00000-of-00002.parquet, is one table with a column `split`.
    """
    if path.is_dir():
        tables = [(file.name.partition("-")[0], read_table(file)) for file in shards(path)]
        if not tables:
            raise InputError(f"{path} is a folder without tables: give the table itself.")
        parts = [table.append_column("split", pa.array([split] * table.num_rows)) for split, table in tables]
        return pa.concat_tables(parts, promote_options="default")
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            metadata = pa.parquet.read_metadata(path)
            schema = metadata.schema.to_arrow_schema()
            read = [field.name for field in schema if not holds_images(field.type)]
            table = pa.parquet.read_table(path, columns=read)
            table = table.replace_schema_metadata(schema.metadata)
            names, rows = schema.names, metadata.num_rows
        else:
            parse = pa.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True)
            header = _read_csv(path, parse, None, header=True)
            text_columns = [usual(kind, header) for kind in ("image", "label", "id", "split")]
            text_columns += [name for name in header if name.strip().casefold() in ("text", "texts")]
            types = {name: pa.string() for name in (*text_columns, *texts) if name}
            convert = pa.csv.ConvertOptions(column_types=types)
            table = _read_csv(path, parse, convert)
            names, rows = unguard(pa.array(table.column_names, pa.string())).to_pylist(), table.num_rows
            table = table.rename_columns(names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        mismatch = re.search(r"Expected (\d+) columns, got (\d+): (.*)", reason)  # it does not always count the rows
        if mismatch:
            expected, actual, line = mismatch.groups()
            raise InputError(f"{path}: the row {line!r} has {actual} cells, the header {expected}.") from error
        raise InputError(f"{path}: the table cannot be read ({reason}); it must be UTF-8 CSV or parquet.") from error
    if path.suffix.lower() in (".csv", ".tsv") and _looks_like_numbers(names):
        raise InputError(f"{path}: the first line, {listed(names)}, must contain the column names: add them.")
    data = [name for name in names if name.lower().endswith(SUFFIXES)]
    if data:
        raise InputError(f"{path}: the first line contains the image {data[0]!r}: it must contain the column names.")
    check_table(path, names, rows)
    if path.suffix.lower() in (".csv", ".tsv") and _ends_inside_quotes(path, table):
        raise InputError(f"{path}: the last row contains a line break: is a quotation mark missing?")
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise InputError(f"{path}: column {field.name!r} is not UTF-8 text: save the table as UTF-8.")
    return table


def _read_csv(path: Path, parse: Any, convert: Any, *, header: bool = False) -> Any:
    """The table in a CSV file, or its header; a cell larger than the usual blocks makes the file one block."""

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
        raise InputError(f"{path}: the table has no rows (its columns: {listed(names)}).")


def _looks_like_numbers(names: Sequence[str]) -> bool:
    """Whether all names are numbers, but do not number the columns."""
    if not all(_NUMBER.fullmatch(name.strip()) for name in names):
        return False
    return [name.strip() for name in names] not in (
        [str(start + index) for index in range(len(names))] for start in (0, 1)
    )


def _delimiter(path: Path) -> str:
    """The most frequent of comma, semicolon and tab in the header."""
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
    return max((",", ";", "\t"), key=header.count)


def usual(kind: str, names: Sequence[str]) -> str | None:
    """The column with a usual name for this kind."""
    plain = {"".join(c for c in name.casefold() if c not in " -_"): name for name in reversed(names)}
    return next((plain[name] for name in _USUAL[kind].split() if name in plain), None)


def chosen(path: Path, table: pa.Table, option: str, name: str) -> str:
    """The column the user chose, or an error that lists the columns."""
    if name in table.column_names:
        return name
    near = difflib.get_close_matches(name, table.column_names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise InputError(f"{path}: no column {name!r}{hint}; {option} must be one of {listed(table.column_names)}.")


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")


def open_table(
    path: Path, given: Mapping[str, str | None], *, images: bool = True
) -> tuple[pa.Table, dict[str, str], list[str]]:
    """Read a table and find its columns.

    `given` are the columns of the image, the text, the label, the id and the split that the user chose. Returns the
    table without columns of image contents; these columns, as given or guessed, if they exist; and the columns of image
    contents. A text column is not guessed here (`text_column`).
    """
    named = {kind: name for kind, name in given.items() if name}
    table = read_table(path, texts=list(named.values()))
    embedded = image_columns(path)
    found = {
        kind: name if kind == "image" and name in embedded else chosen(path, table, f"{kind}_column", name)
        for kind, name in named.items()
    }

    def free() -> list[str]:
        return [name for name in table.column_names if name not in found.values()]

    if images and "image" not in found and "text" not in found and (guess := image_column(table, free(), embedded)):
        found["image"] = guess
    for kind in ("id", "split", "label"):
        if kind not in found and (guess := usual(kind, free())):
            found[kind] = guess
    cells = [found[kind] for kind in ("image", "id", "split") if kind in found and found[kind] not in embedded]
    return without_guards(path, table, cells), found, embedded


def without_guards(path: Path, table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The table with these columns of names as they were before `spml` wrote them as CSV."""
    if path.suffix.lower() in (".csv", ".tsv"):
        for name in dict.fromkeys(names):
            table = table.set_column(table.column_names.index(name), name, unguard(table[name]))
    return table


def shards(path: Path) -> list[Path]:
    """The parquet files of a folder, in order; of a file, the file."""
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def image_columns(path: Path) -> list[str]:
    """The columns of a parquet file, or of a folder of them, that hold image contents."""
    path = shards(path)[0]
    if path.suffix.lower() not in (".parquet", ".pq"):
        return []
    return [field.name for field in pa.parquet.read_schema(path) if holds_images(field.type)]


def guess_labels(path: Path, table: pa.Table, used: Iterable[str], *, binary: bool) -> str | list[str]:
    """The labels where no column has a usual name: the only text column or, if `binary`, the columns of 0 and 1."""
    index = usual("index", table.column_names)
    free = [name for name in table.column_names if name not in (*used, index)]
    texts: list[str] = [name for name in free if is_text(table.schema.field(name).type)]
    classes = [name for name in free if binary and is_binary(table[name])]
    classes = classes if len(classes) > 1 else []
    if len(texts) == 1 and not classes:
        return texts[0]
    if classes and len(texts) != 1:
        return classes
    if classes:
        raise InputError(
            f"{path}: the labels may be in column {texts[0]!r} or in the columns of 0 and 1 ({listed(classes)}): "
            "choose with label_column or class_columns."
        )
    raise InputError(
        f"{path}: none of the columns {listed(table.column_names)} looks like labels: set label_column, "
        "or class_columns for several columns of 0 and 1."
    )


def label_matrix(
    path: Path, table: pa.Table, names: Sequence[str], zeros: Literal["unknown", "negative"]
) -> npt.NDArray[np.int8]:
    """(N, L) from a column per class: 1 positive, -1 negative, empty unknown, and 0 according to `zeros`."""
    if zeros not in ("unknown", "negative"):
        raise InputError(f"zeros is {zeros!r}: it must be 'unknown' or 'negative'.")
    matrix = np.empty((table.num_rows, len(names)), np.int8)
    for column, name in enumerate(names):
        kind = table.schema.field(name).type
        if not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise InputError(f"{path}: column {name!r} holds {kind}, not 0 and 1.")
        values = pa.compute.cast(table[name], pa.float64()).to_numpy()  # NaN where a cell is empty
        wrong = np.flatnonzero(~np.isin(values, (-1, 0, 1)) & ~np.isnan(values))
        if len(wrong):
            raise InputError(
                f"{path}: {place(int(wrong[0]))}, column {name!r} is {values[wrong[0]]:g}, not 1, 0 or -1."
            )
        if zeros == "negative":
            values = np.where(values == 0, -1, values)
        matrix[:, column] = np.nan_to_num(values)
    return matrix


def is_binary(column: pa.ChunkedArray) -> bool:
    """Whether all cells are 0, 1, -1 or empty, and not all of them empty."""
    if pa.types.is_boolean(column.type):
        return True
    if not is_number(column.type) or column.null_count == len(column):
        return False
    return bool(np.isin(pa.compute.unique(column.drop_null()).to_numpy(), (-1, 0, 1)).all())


def image_column(table: pa.Table, names: list[str], embedded: Sequence[str]) -> str | None:
    """The column of images: by its name, or because it holds image files, or paths of them."""
    if guess := usual("image", [*embedded, *names]):
        return guess
    if embedded:
        return embedded[0]
    for name in names:
        cells = [cell for cell in table[name].slice(0, 100).to_pylist() if cell]
        if cells and all(isinstance(cell, str) and cell.strip().lower().endswith(SUFFIXES) for cell in cells):
            return name
    return None


def feature_columns(table: pa.Table, used: Iterable[str]) -> list[str]:
    """The first column of lists of numbers, else all unused columns of numbers or of true and false."""
    index = usual("index", table.column_names)
    fields = [field for field in table.schema if field.name not in (*used, index)]
    lists = [field.name for field in fields if is_list(field.type) and is_number(field.type.value_type)]
    numbers = [field.name for field in fields if is_number(field.type) or pa.types.is_boolean(field.type)]
    return lists[:1] or numbers


def unused_columns(path: Path, table: pa.Table, used: Sequence[str]) -> list[str]:
    """The columns that are neither features nor anything else, except an index.

    Raises `InputError` for a column of numbers that are not written as such, or in which a few cells are no numbers:
    leaving it out silently would change the result.
    """
    unused = [name for name in table.column_names if name not in (*used, usual("index", table.column_names))]
    for name in unused:
        if not is_text(table.schema.field(name).type):
            continue
        cells = [(row, cell.strip()) for row, cell in enumerate(table[name].to_pylist()) if cell and cell.strip()]
        wrong = [(row, cell) for row, cell in cells if not _NUMBER.fullmatch(cell)]
        if 2 * len(wrong) > len(cells) or not cells:
            continue
        row, cell = next(((row, cell) for row, cell in wrong), cells[0])
        problem = "not a number like most of the column" if wrong else "a number with a comma: use a decimal point"
        raise InputError(
            f"{path}: {place(row)}, column {name!r} is {cell!r}, {problem}. Correct it, or delete the column."
        )
    return unused


def free_texts(table: pa.Table, used: Iterable[str]) -> list[str]:
    """The unused columns of strings."""
    return [field.name for field in table.schema if field.name not in used and is_text(field.type)]


def text_column(table: pa.Table, used: Sequence[str], *, labels_known: bool) -> str | None:
    """The column of texts, by its name or, if the labels are known, the unused one with the longest texts.

    None if the table has features: an unused column of numbers. Columns of 0 and 1 may be labels that are not known.
    """
    features = feature_columns(table, used)
    if any(labels_known or not is_binary(table[name]) for name in features):
        return None
    free = free_texts(table, used)
    if (guess := usual("text", free)) or not labels_known:
        return guess
    lengths = {name: pa.compute.mean(pa.compute.utf8_length(table[name].cast(pa.string()))).as_py() for name in free}
    longest = max(free, key=lambda name: lengths[name] or 0, default=None)
    return longest if longest is not None and (lengths[longest] or 0) >= _MIN_TEXT else None


def feature_matrix(path: Path, table: pa.Table, names: list[str], first: int = 0) -> npt.NDArray[np.float32]:
    """The columns as a matrix (N, D); every cell must be a number. In errors, rows are counted from `first`."""
    for name in names:
        if table[name].null_count:
            row = table[name].to_pylist().index(None)
            raise InputError(f"{path}: {place(first + row)}, column {name!r} is empty: features must be numbers.")
    if len(names) == 1 and is_list(table.schema.field(names[0]).type):
        lists = table[names[0]].combine_chunks()
        lengths = pa.compute.list_value_length(lists).to_numpy()
        if len(ragged := np.flatnonzero(lengths != lengths[:1])):
            row, length = ragged[0], lengths[ragged[0]]
            raise InputError(f"{path}: {place(first + row)} has {length} features, row {first + 1} has {lengths[0]}.")
        flat = pa.compute.list_flatten(lists).to_numpy(zero_copy_only=False)
        return np.array(flat, np.float32).reshape(len(lists), -1)
    matrix = np.empty((table.num_rows, len(names)), np.float32)
    for column, name in enumerate(names):
        kind = table.schema.field(name).type
        if not (is_number(kind) or pa.types.is_boolean(kind)):
            raise InputError(f"{path}: column {name!r} holds {kind}, not numbers.")
        with np.errstate(over="ignore"):  # too large for float32: reported by its row
            matrix[:, column] = table[name].to_numpy()
    return matrix


def place(row: int) -> str:
    """How errors refer to a row of a table."""
    return f"row {row + 1} (not counting the header)"


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
