"""The columns of a table: which hold images, texts, labels, ids, the split and features."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from spml.data.formats.column_names import NUMBER, index_columns, list_names, row_label, usual_column
from spml.data.formats.embedded_images import holds_images
from spml.data.formats.table_files import read_table, shards, without_guards
from spml.data.stores.decode import SUFFIXES
from spml.errors import InputError

_MIN_TEXT = 20  # characters: a column whose cells are shorter on average looks like names, not like texts


def existing_column(path: Path, table: pa.Table, option: str, name: str) -> str:
    """Return the column the user chose, or an error that lists the columns."""
    if name in table.column_names:
        return name
    near = difflib.get_close_matches(name, table.column_names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise InputError(f"{path}: no column {name!r}{hint}; {option} must be one of {list_names(table.column_names)}.")


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
        kind: name if kind == "image" and name in embedded else existing_column(path, table, f"{kind}_column", name)
        for kind, name in named.items()
    }

    def free() -> list[str]:
        return [name for name in table.column_names if name not in found.values()]

    if images and "image" not in found and "text" not in found and (guess := image_column(table, free(), embedded)):
        found["image"] = guess
    for kind in ("id", "split", "label"):
        if kind not in found and (guess := usual_column(kind, free())):
            found[kind] = guess
    cells = [found[kind] for kind in ("image", "id", "split") if kind in found and found[kind] not in embedded]
    return without_guards(path, table, cells), found, embedded


def image_columns(path: Path) -> list[str]:
    """Return the columns of a parquet file, or of a folder of them, that hold image contents."""
    path = shards(path)[0]
    if path.suffix.lower() not in (".parquet", ".pq"):
        return []
    return [field.name for field in pa.parquet.read_schema(path) if holds_images(field.type)]


def guess_labels(path: Path, table: pa.Table, used: Iterable[str], *, binary: bool) -> str | list[str]:
    """The labels where no column has a usual name: the only text column or, if `binary`, the columns of 0 and 1."""
    taken = {*used, *index_columns(table.column_names)}
    free = [name for name in table.column_names if name not in taken]
    texts: list[str] = [name for name in free if is_text(table.schema.field(name).type)]
    classes = [name for name in free if binary and is_binary(table[name])]
    classes = classes if len(classes) > 1 else []
    if (
        len(texts) == 1
        and not classes
        and not (usual_column("text", texts) and _mean_length(table[texts[0]]) >= _MIN_TEXT)
    ):
        return texts[0]
    if classes and len(texts) != 1:
        _check_others(path, table, [name for name in free if name not in classes])
        return classes
    if classes:
        raise InputError(
            f"{path}: the labels may be in column {texts[0]!r} or in the columns of 0 and 1 ({list_names(classes)}): "
            "choose with label_column or class_columns, or with id_column if it names the rows."
        )
    raise InputError(
        f"{path}: none of the columns {list_names(table.column_names)} looks like labels: set label_column, "
        "or class_columns for several columns of 0 and 1."
    )


def _check_others(path: Path, table: pa.Table, names: Iterable[str]) -> None:
    """Raise `InputError` if another column also holds mostly 0 and 1: leaving it out would lose a class."""
    for name in names:
        wrong = _mostly_binary(table[name])
        if wrong is not None:
            raise InputError(
                f"{path}: {row_label(wrong)}, column {name!r} is {table[name][wrong]}, not 1, 0 or -1 like most of the "
                "column. Correct it, delete the column, or choose the others with class_columns."
            )


def label_matrix(
    path: Path, table: pa.Table, names: Sequence[str], zeros: Literal["unknown", "negative"]
) -> npt.NDArray[np.int8]:
    """(N, L) from a column per class: 1 positive, -1 negative, empty unknown, and 0 according to `zeros`."""
    matrix = np.empty((table.num_rows, len(names)), np.int8)
    for column, name in enumerate(names):
        kind = table.schema.field(name).type
        if not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
            raise InputError(f"{path}: column {name!r} holds {kind}, not 0 and 1.")
        values = pa.compute.cast(table[name], pa.float64()).to_numpy()  # NaN where a cell is empty
        wrong = np.flatnonzero(~np.isin(values, (-1, 0, 1)) & ~np.isnan(values))
        if len(wrong):
            raise InputError(
                f"{path}: {row_label(int(wrong[0]))}, column {name!r} is {values[wrong[0]]:g}, not 1, 0 or -1."
            )
        if zeros == "negative":
            values = np.where(values == 0, -1, values)
        matrix[:, column] = np.nan_to_num(values)
    return matrix


def is_binary(column: pa.ChunkedArray) -> bool:
    """Return whether all cells are 0, 1, -1 or empty, and not all of them empty."""
    if pa.types.is_boolean(column.type):
        return True
    if not is_number(column.type):
        return False
    different = _as_floats(pa.compute.unique(column))
    different = different[~np.isnan(different)]
    return bool(len(different) and np.isin(different, (-1, 0, 1)).all())


def _mostly_binary(column: pa.ChunkedArray) -> int | None:
    """Return the first row that is neither 0, 1, -1 nor empty, if more than half of the others are; else None."""
    if not is_number(column.type):
        return None
    cells = _as_floats(column)
    wrong = np.flatnonzero(~np.isin(cells, (-1, 0, 1)) & ~np.isnan(cells))
    filled = np.count_nonzero(~np.isnan(cells))
    return int(wrong[0]) if len(wrong) and 2 * len(wrong) < filled else None


def _as_floats(column: Any) -> npt.NDArray[np.float64]:
    """Return an array or column of numbers with NaN for empty cells."""
    numbers = pa.compute.cast(column, pa.float64(), safe=False)
    return np.asarray(numbers.to_numpy(**({} if isinstance(numbers, pa.ChunkedArray) else {"zero_copy_only": False})))


def image_column(table: pa.Table, names: list[str], embedded: Sequence[str]) -> str | None:
    """Return the column of images: by its name, or because it holds image files, or paths of them."""
    if guess := usual_column("image", [*embedded, *names]):
        return guess
    if embedded:
        return embedded[0]
    for name in names:
        cells = [cell for cell in table[name].slice(0, 100).to_pylist() if cell]
        if cells and all(isinstance(cell, str) and cell.strip().lower().endswith(SUFFIXES) for cell in cells):
            return name
    return None


def feature_columns(table: pa.Table, used: Iterable[str]) -> list[str]:
    """Return the first column of lists of numbers, else all unused columns of numbers or of true and false."""
    taken = {*used, *index_columns(table.column_names)}
    fields = [field for field in table.schema if field.name not in taken]
    lists = [field.name for field in fields if is_list(field.type) and is_number(field.type.value_type)]
    numbers = [field.name for field in fields if is_number(field.type) or pa.types.is_boolean(field.type)]
    return lists[:1] or numbers


def unused_columns(path: Path, table: pa.Table, used: Sequence[str]) -> list[str]:
    """Return the columns that are neither features nor anything else.

    Raises `InputError` for a column of numbers that are not written as such, or in which a few cells are no numbers:
    leaving it out silently would change the result.
    """
    taken = {*used}
    unused = [name for name in table.column_names if name not in taken]
    for name in unused:
        if not is_text(table.schema.field(name).type):
            continue
        cells = [(row, cell.strip()) for row, cell in enumerate(table[name].to_pylist()) if cell and cell.strip()]
        wrong = [(row, cell) for row, cell in cells if not NUMBER.fullmatch(cell)]
        if 2 * len(wrong) > len(cells) or not cells:
            continue
        row, cell = next(((row, cell) for row, cell in wrong), cells[0])
        problem = "not a number like most of the column"
        if not wrong:
            problem = "a number with a comma: use a decimal point" if "," in cell else "a number among other characters"
        raise InputError(
            f"{path}: {row_label(row)}, column {name!r} is {cell!r}, {problem}. Correct it, or delete the column."
        )
    return unused


def free_texts(table: pa.Table, used: Iterable[str]) -> list[str]:
    """Return the unused columns of strings."""
    return [field.name for field in table.schema if field.name not in used and is_text(field.type)]


def text_column(table: pa.Table, used: Sequence[str], *, labels_known: bool) -> str | None:
    """Return the column of texts, by its name or, if the labels are known, the unused one with the longest texts.

    None if the table has features: an unused column of numbers. Columns of 0 and 1 may be labels that are not known.
    """
    features = feature_columns(table, used)
    if any(labels_known or not _may_be_class(table[name]) for name in features):
        return None
    free = free_texts(table, used)
    if (guess := usual_column("text", free)) or not labels_known:
        return guess
    lengths = {name: _mean_length(table[name]) for name in free}
    longest = max(free, key=lambda name: lengths[name], default=None)
    return longest if longest is not None and lengths[longest] >= _MIN_TEXT else None


def _may_be_class(column: pa.ChunkedArray) -> bool:
    """Return whether a column is empty or holds mostly 0 and 1."""
    return column.null_count == len(column) or is_binary(column) or _mostly_binary(column) is not None


def _mean_length(column: pa.ChunkedArray) -> float:
    """Mean number of characters in the cells of a column of strings."""
    return pa.compute.mean(pa.compute.utf8_length(column.cast(pa.string()))).as_py() or 0.0


def feature_matrix(path: Path, table: pa.Table, names: list[str], first: int = 0) -> npt.NDArray[np.float32]:
    """Return the columns as a matrix (N, D); every cell must be a number. In errors, rows are counted from `first`."""
    for name in names:
        if table[name].null_count:
            row = table[name].to_pylist().index(None)
            raise InputError(f"{path}: {row_label(first + row)}, column {name!r} is empty: features must be numbers.")
    if len(names) == 1 and is_list(table.schema.field(names[0]).type):
        lists = table[names[0]].combine_chunks()
        lengths = pa.compute.list_value_length(lists).to_numpy()
        if len(ragged := np.flatnonzero(lengths != lengths[:1])):
            row, length = ragged[0], lengths[ragged[0]]
            raise InputError(
                f"{path}: {row_label(first + row)} has {length} features, row {first + 1} has {lengths[0]}."
            )
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


def is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
