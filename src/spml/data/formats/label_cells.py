"""The cells of a label column: one label, or several."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from spml.data.formats.columns import is_list, is_number, is_text
from spml.errors import InputError

_SEPARATORS = (";", "|", ",")


def texts(column: pa.ChunkedArray) -> list[str]:
    """Cells as text without surrounding blanks; "" for empty cells."""
    return ["" if cell is None else str(cell).strip() for cell in column.to_pylist()]


def label_lists(
    path: Path, name: str, column: pa.ChunkedArray, separator: str | None
) -> tuple[list[list[str]], list[str]]:
    """Return the labels in each cell, and notes. With `separator` "" a cell is one label; None guesses it."""
    kind, notes = column.type, []
    inner = kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind
    if not (is_text(inner) or is_number(inner) or pa.types.is_null(inner)):
        raise InputError(f"{path}: column {name!r} holds {kind}: labels must be names or whole numbers.")
    if is_list(kind):
        lists = [["" if label is None else str(label) for label in cell or ()] for cell in column.to_pylist()]
        if is_number(inner):
            numbers = _whole_numbers(path, name, ["" if label == "nan" else label for cell in lists for label in cell])
            remaining = iter(numbers)
            lists = [[next(remaining) for _ in cell] for cell in lists]
    else:
        cells = ["" if cell is None else str(cell) for cell in column.to_pylist()]
        if pa.types.is_floating(inner):  # whole numbers, where some are missing
            cells = ["" if cell == "nan" else cell for cell in cells]
        cells = _whole_numbers(path, name, cells)
        if any(cell.lstrip().startswith("[") for cell in cells):
            raise InputError(f"{path}: column {name!r} contains lists in brackets: write several labels as a;b;c.")
        if separator is None:
            separator = _separator(path, name, cells)
            if separator:
                notes.append(f"column {name!r} contains several labels per row, separated by {separator!r}.")
            elif commas := sum("," in cell for cell in cells):
                notes.append(
                    f"{commas} labels of column {name!r} contain a comma as part of the name: if it separates labels, "
                    "write them as a;b;c."
                )
        lists = [cell.split(separator) if separator else [cell] for cell in cells]
    padded = sum(label != label.strip() for labels in lists for label in labels if label.strip())
    if padded and not separator:
        notes.append(f"blanks around {padded} labels of column {name!r} were removed.")
    return [list(dict.fromkeys(label.strip() for label in labels if label.strip())) for labels in lists], notes


def _whole_numbers(path: Path, name: str, cells: list[str]) -> list[str]:
    """Numeric labels must be whole numbers; 3.0, as in columns with empty cells, becomes 3."""
    try:
        numbers = {cell: float(cell) for cell in set(cells) if cell.strip()}
    except ValueError:
        return cells
    for cell, number in numbers.items():
        if not number.is_integer():
            raise InputError(
                f"{path}: column {name!r} contains numbers such as {cell}: labels must be names or whole numbers."
            )
        if abs(number) >= 2**53 and ("." in cell or "e" in cell.lower()):
            raise InputError(
                f"{path}: column {name!r} contains {cell}: numbers above 2^53 with a decimal point or exponent are not "
                "exact, so different labels could become one; write labels as text or whole numbers."
            )
    return [str(int(numbers[cell])) if "." in cell else cell for cell in cells]


def _separator(path: Path, name: str, cells: list[str]) -> str:
    """Return the separator of several labels in a cell; "" if a cell is one label.

    A comma may belong to a name ("Paris, France"). It is a separator only if most parts also occur in other cells.
    """
    different = set(cells)
    for separator in _SEPARATORS:
        if not any(separator in cell for cell in different):
            continue
        if separator != ",":
            if separator == ";" and (both := next((cell for cell in different if "|" in cell), None)):
                raise InputError(
                    f"{path}: labels of column {name!r} are separated by ';' and by '|', as in {both!r:.60}: use one."
                )
            return separator
        uses = Counter(part.strip() for cell in different for part in set(cell.split(",")) if part.strip())
        parts = {part.strip() for cell in different if "," in cell for part in cell.split(",") if part.strip()}
        if sum(uses[part] > 1 for part in parts) > len(parts) / 2:
            return separator
    return ""
