"""The cells of a table's label column: which labels each names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from spml.errors import InputError

_SEPARATORS = (";", "|", ",")


def texts(column: pa.ChunkedArray) -> list[str]:
    """Cells as texts without the blanks around them; empty cells are empty texts."""
    return ["" if cell is None else str(cell).strip() for cell in column.to_pylist()]


def label_lists(
    path: Path, name: str, column: pa.ChunkedArray, separator: str | None
) -> tuple[list[list[str]], list[str]]:
    """The labels each cell names, and notes. `separator` "" takes a cell as one label; None guesses."""
    kind, notes = column.type, []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = [[str(label) for label in cell or ()] for cell in column.to_pylist()]
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)) and not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    ):
        raise InputError(f"{path}: column {name!r} holds {kind}: a label is a name or a whole number.")
    else:
        cells = ["" if cell is None else str(cell) for cell in column.to_pylist()]
        if pa.types.is_floating(kind):  # whole numbers, where some are missing
            cells = ["" if cell == "nan" else cell for cell in cells]
        cells = _whole_numbers(path, name, cells)
        if any(cell.lstrip().startswith("[") for cell in cells):
            raise InputError(f"{path}: column {name!r} writes lists in brackets: write several labels as a;b;c.")
        if separator is None:
            separator = _separator(cells)
            if separator:
                notes.append(f"column {name!r} lists several labels a row, separated by {separator!r}.")
        lists = [cell.split(separator) if separator else [cell] for cell in cells]
    stray = sum(label != label.strip() for labels in lists for label in labels if label.strip())
    if stray and not separator:
        notes.append(f"blanks around {stray} labels of column {name!r} were taken away.")
    return [list(dict.fromkeys(label.strip() for label in labels if label.strip())) for labels in lists], notes


def _whole_numbers(path: Path, name: str, cells: list[str]) -> list[str]:
    """Labels that are numbers must be whole ones; 3.0, as tables with gaps write it, is 3."""
    try:
        numbers = {cell: float(cell) for cell in set(cells) if cell.strip()}
    except ValueError:
        return cells
    for cell, number in numbers.items():
        if not number.is_integer():
            raise InputError(f"{path}: column {name!r} holds numbers such as {cell}: a label is a name.")
    return [str(int(numbers[cell])) if "." in cell else cell for cell in cells]


def _separator(cells: list[str]) -> str:
    """What separates several labels in a cell, "" where a cell is one label.

    A comma may belong to a name ("Paris, France"): it separates only if most of the parts occur in other cells too.
    """
    different = set(cells)
    for separator in _SEPARATORS:
        if not any(separator in cell for cell in different):
            continue
        if separator != ",":
            return separator
        uses = Counter(part.strip() for cell in different for part in set(cell.split(",")) if part.strip())
        parts = {part.strip() for cell in different if "," in cell for part in cell.split(",") if part.strip()}
        if sum(uses[part] > 1 for part in parts) > len(parts) / 2:
            return separator
    return ""
