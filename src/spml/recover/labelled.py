"""A few rows somebody has looked at: a table of names and labels, all labels of each row."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from ..errors import InputError
from ..labels import Labels
from ..train.finished import FinishedRun


def read_labelled(path: Path, run: FinishedRun) -> tuple[Labels, npt.NDArray[np.int64]]:
    """Labels of some rows of the run, and the rows' numbers, from a CSV with the columns name and label.

    One line a label; a row without any label is one line with an empty label. What is not listed is absent.
    """
    try:
        table = csv.read_csv(
            path, convert_options=csv.ConvertOptions(column_types={"name": pa.string(), "label": pa.string()})
        )
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except pa.ArrowInvalid as error:
        raise InputError(f"{path}: this is no CSV table ({error})") from None
    for column in ("name", "label"):
        if column not in table.column_names:
            raise InputError(f"{path}: the column {column!r} is missing; there are {', '.join(table.column_names)}")
    row_of = {name: row for row, name in enumerate(run.names)}
    lists: dict[str, list[str]] = {}
    pairs = zip(table["name"].to_pylist(), table["label"].to_pylist(), strict=True)
    for line, (name, label) in enumerate(pairs, start=2):
        if name not in row_of:
            raise InputError(f"{path}, line {line}: the run has no row named {name!r}")
        if label and label not in run.classes:
            raise InputError(f"{path}, line {line}: {label!r} is none of the run's {len(run.classes)} labels")
        lists.setdefault(name, []).extend([label] if label else [])
    if not lists:
        raise InputError(f"{path}: the table is empty")
    labels = Labels.from_lists(lists.values(), run.classes, rest="negative")
    return labels, np.array([row_of[name] for name in lists])
