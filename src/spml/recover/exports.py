"""Write recovered labels in the formats of other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.recover.label_studio import chosen, task_data
from spml.recover.recovered import PROVENANCE, Recovered
from spml.runs.files import atomic_path, explain_write_errors
from spml.runs.outputs import check_overwrite

if TYPE_CHECKING:
    import pyarrow

_SUFFIX_FORMATS = {".csv": "csv", ".parquet": "parquet"}
_JSON_FORMATS = ("coco", "label-studio", "fiftyone")
FORMATS = ("csv", "parquet", *_JSON_FORMATS)

_BLOCK = 1 << 14  # rows converted to Python values at a time
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class _Label(NamedTuple):
    """A label as plain values."""

    label: int
    observed: bool
    confidence: float
    probability: float
    threshold: float
    rank: int
    provenance: str


def export(
    recovered: Recovered,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    prefix: str = "",
    texts: Sequence[str] | None = None,
    overwrite: bool = False,
    allow_formulas: bool = False,
) -> None:
    """Write recovered labels to a file.

    Parameters
    ----------
    recovered : Recovered
    path : str or path
        File to write. It is written atomically.
    format : {"csv", "parquet", "coco", "label-studio", "fiftyone"}, optional
        Default: from the suffix .csv or .parquet. The other formats are JSON files:

        - `csv`, `parquet`: one line per label: name, label, observed, confidence, probability, threshold, rank,
          provenance (given, confirmed by a person, labelled in a fully labelled row, or recovered);
        - `coco`: images, categories, and one annotation per label, with a score and without a box;
        - `label-studio`: tasks with predictions, for the labelling configuration of `label_studio_config`;
        - `fiftyone`: for `fiftyone.Dataset.from_json`, with Classifications in the field `recovered`.
    prefix : str
        Prepended to every name in JSON formats, for images at another address.
    texts : sequence of str, optional
        The text of every row, which `label-studio` shows instead of images.
    overwrite : bool
        Whether to replace an existing file.
    allow_formulas : bool
        CSV: write cells that a spreadsheet would run as formulas as they are. By default an apostrophe is put in front
        of those that start with =, +, -, @, a tab or a line break; spml reads them back without it.

    Raises
    ------
    InputError
        If the format is unknown, or the file exists or cannot be written.
    """
    target = Path(path)
    usual = _SUFFIX_FORMATS.get(target.suffix.lower())
    name = usual if format is None else format
    if name is None and target.suffix.lower() == ".json":
        raise InputError(f"{target}: a .json file can be one of {', '.join(_JSON_FORMATS)}; give the format")
    if name is None:
        raise InputError(f"{target}: use the ending .csv or .parquet, or give a format: {', '.join(FORMATS)}")
    if name not in FORMATS:
        raise InputError(f"unknown format {name!r}. Available formats: {', '.join(FORMATS)}")
    if usual is not None and name != usual:
        raise InputError(f"{target}: the ending means {usual}, but the format is {name}: use another ending")
    if prefix and name not in _JSON_FORMATS:
        raise InputError(f"prefix applies only to {', '.join(_JSON_FORMATS)}, not to {name}: leave it out")
    check_overwrite(target, overwrite)
    with atomic_path(target) as temporary, explain_write_errors(target):
        if name in ("csv", "parquet"):
            with temporary.open("wb") as binary:
                _write_table(recovered, binary, name, allow_formulas)
        else:
            with temporary.open("w", encoding="utf-8") as file:
                if name == "label-studio":
                    _write_label_studio(recovered, file, prefix, texts)
                else:
                    {"coco": _write_coco, "fiftyone": _write_fiftyone}[name](recovered, file, prefix)


def _write_table(recovered: Recovered, file: BinaryIO, name: str, allow_formulas: bool) -> None:
    from pyarrow import parquet

    from spml.data.csv_cells import write_csv

    table = as_table(recovered)
    if name == "csv":
        write_csv(table, file, allow_formulas=allow_formulas)
    else:
        parquet.write_table(table, file)


def as_table(recovered: Recovered) -> pyarrow.Table:
    """The labels as a table, one line per label."""
    import pyarrow as pa

    entries = recovered.entries
    return pa.table(
        {
            "name": pa.array(recovered.names, pa.string()).take(pa.array(entries.row)),
            "label": pa.array(recovered.classes, pa.string()).take(pa.array(entries.label)),
            "observed": entries.observed,
            "confidence": _six_digits(entries.confidence),
            "probability": _six_digits(entries.probability),
            "threshold": _six_digits(entries.threshold),
            "rank": entries.rank,
            "provenance": pa.array(PROVENANCE, pa.string()).take(pa.array(entries.provenance)),
        }
    )


def _six_digits(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    rounded: npt.NDArray[np.float64] = values.astype(np.float64).round(6)
    return rounded


def _by_row(recovered: Recovered) -> Iterator[tuple[int, list[_Label]]]:
    """Every row and its labels, including rows without labels."""
    entries = recovered.entries
    ends = np.searchsorted(entries.row, recovered.rows, side="right")
    first = 0
    for start in range(0, len(recovered.rows), _BLOCK):
        rows, last_of = recovered.rows[start : start + _BLOCK].tolist(), ends[start : start + _BLOCK].tolist()
        block = slice(first, last_of[-1])
        numbers = (_six_digits(column[block]).tolist() for column in entries[3:6])
        columns = (entries.label[block].tolist(), entries.observed[block].tolist(), *numbers)
        origin = (PROVENANCE[index] for index in entries.provenance[block].tolist())
        labels = list(map(_Label, *columns, entries.rank[block].tolist(), origin))
        for row, last in zip(rows, last_of, strict=True):
            yield row, labels[first - block.start : last - block.start]
            first = last


def _write_list(file: TextIO, items: Iterable[Any]) -> None:
    """Write a JSON list one item at a time."""
    separator = "[\n"
    for item in items:
        file.write(separator + _encode(item))
        separator = ",\n"
    file.write("[]" if separator == "[\n" else "\n]")


def _write_coco(recovered: Recovered, file: TextIO, prefix: str) -> None:
    """Ids are row numbers and class indices starting at 1, because some readers treat 0 as missing."""
    file.write('{"info": ' + _encode({"description": f"labels recovered by spml, run {recovered.run}"}))
    file.write(',\n"images": ')
    names = recovered.names
    _write_list(file, ({"id": row + 1, "file_name": prefix + names[row]} for row in recovered.rows.tolist()))
    file.write(',\n"categories": ')
    _write_list(file, ({"id": c, "name": name} for c, name in enumerate(recovered.classes, 1)))
    file.write(',\n"annotations": ')
    numbered = ((row, label) for row, labels in _by_row(recovered) for label in labels)
    _write_list(
        file,
        (
            {
                "id": number,
                "image_id": row + 1,
                "category_id": label.label + 1,
                "score": label.confidence,
                "observed": label.observed,
                "provenance": label.provenance,
            }
            for number, (row, label) in enumerate(numbered, 1)
        ),
    )
    file.write("}\n")


def _write_label_studio(recovered: Recovered, file: TextIO, prefix: str, texts: Sequence[str] | None) -> None:
    """The score of a task is its lowest confidence, so that tasks can be sorted by it."""

    def task(row: int, labels: list[_Label]) -> dict[str, Any]:
        names = [recovered.classes[label.label] for label in labels]
        prediction = {
            "model_version": recovered.run,
            "score": min((label.confidence for label in labels), default=0.0),
            "result": [chosen(names, row=row, texts=texts is not None)] if labels else [],
        }
        return {
            "data": {
                **task_data(recovered.names[row], prefix=prefix, text=None if texts is None else texts[row]),
                "observed": [name for name, label in zip(names, labels, strict=True) if label.observed],
                "confidence": {name: label.confidence for name, label in zip(names, labels, strict=True)},
            },
            "predictions": [prediction],
        }

    _write_list(file, (task(row, labels) for row, labels in _by_row(recovered)))
    file.write("\n")


def _write_fiftyone(recovered: Recovered, file: TextIO, prefix: str) -> None:
    """Observed labels have the tag `observed`; probability, threshold and rank are attributes of each label."""

    def sample(row: int, labels: list[_Label]) -> dict[str, Any]:
        classifications = [
            {
                "_cls": "Classification",
                "tags": ["observed"] if label.observed else [],
                "label": recovered.classes[label.label],
                "confidence": label.confidence,
                "probability": label.probability,
                "threshold": label.threshold,
                "rank": label.rank,
                "provenance": label.provenance,
            }
            for label in labels
        ]
        return {
            "filepath": prefix + recovered.names[row],
            "tags": [],
            "metadata": None,
            "recovered": {"_cls": "Classifications", "classifications": classifications},
        }

    field = "fiftyone.core.fields.EmbeddedDocumentField(fiftyone.core.labels.Classifications)"
    head = {
        "name": recovered.run,
        "media_type": "image",
        "sample_fields": {"recovered": field},
        "classes": {"recovered": list(recovered.classes)},
        "info": {},
    }
    file.write(_encode(head)[:-1] + ',\n"samples": ')
    _write_list(file, (sample(row, labels) for row, labels in _by_row(recovered)))
    file.write("}\n")
