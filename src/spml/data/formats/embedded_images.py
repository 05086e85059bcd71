"""Images inside parquet tables: columns of file contents, also in the layout of Hugging Face's `datasets`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spml.data.stores.image_sources import ParquetCell, Source
from spml.json_text import parse_json


def holds_images(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds image files: bytes, or Hugging Face's struct of `bytes` and `path`."""
    if pa.types.is_struct(kind):
        if kind.get_field_index("bytes") < 0:
            return False
        kind = kind.field("bytes").type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def image_sources(files: Sequence[Path], column: str, root: Path) -> tuple[list[Source], list[str]]:
    """Where the image of each row of parquet files is, and the rows' names. No image is read.

    A row without bytes has its image at `path` of the struct, relative to `root`. Names are these paths where no two
    are equal, else row numbers.
    """
    sources: list[Source] = []
    paths: list[str | None] = []
    for path in files:
        file = pa.parquet.ParquetFile(path)
        kind = file.schema_arrow.field(column).type
        is_struct = pa.types.is_struct(kind)
        first, rows = len(sources), file.metadata.num_rows
        sources += [ParquetCell(str(path), column, row) for row in range(rows)]
        if is_struct and kind.get_field_index("path") >= 0:
            paths += [(cell or {}).get("path") for cell in file.read(columns=[f"{column}.path"])[column].to_pylist()]
        else:
            paths += [None] * rows
        for row in _rows_without_bytes(file, column, is_struct):
            if paths[first + row]:
                sources[first + row] = root / str(paths[first + row])
    distinct = all(paths) and len(set(paths)) == len(paths)
    return sources, [str(name) for name in (paths if distinct else range(len(paths)))]


def _rows_without_bytes(file: Any, column: str, is_struct: bool) -> list[int]:
    """By the statistics of the file; a row group without them, or with such rows, is read."""
    leaf = f"{column}.bytes" if is_struct else column
    found: list[int] = []
    first = 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = (group.column(index) for index in range(group.num_columns))
        statistics = next(chunk.statistics for chunk in chunks if chunk.path_in_schema == leaf)
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            cells = file.read_row_group(number, columns=[leaf])[column].combine_chunks()
            empty = (cells.field("bytes") if is_struct else cells).is_null()
            found += (first + np.flatnonzero(empty.to_numpy(zero_copy_only=False))).tolist()
        first += group.num_rows
    return found


def class_names(schema: pa.Schema, column: str) -> list[str] | None:
    """Return the names of a column of Hugging Face's class numbers, which the table's metadata hold."""
    try:
        feature = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"][column]
        feature = feature.get("feature", feature)  # of a list
        names = feature["names"] if feature["_type"] == "ClassLabel" else None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return [str(name) for name in names] if names else None
