"""Examples with full labels: images or features, and a table that states every label."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spml.data.dataset import PHOTO_SIZE, TABLES, ColumnOptions
from spml.data.formats import columns
from spml.data.formats.embedded_images import image_sources
from spml.data.formats.label_cells import texts
from spml.data.formats.table import image_files, read_splits, same_images
from spml.data.formats.table_labels import LabelCells, TableLabels, read_labels
from spml.data.stores.decode import FilePath
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels


class LabelledExamples(NamedTuple):
    """Images or features with full labels and, if the table states it, their split."""

    store: ImageStore | FeatureStore
    truth: Labels
    splits: list[str] | None


def read_examples(data: FilePath | npt.NDArray[Any], labels: Path, chosen: ColumnOptions) -> LabelledExamples:
    """Read images or features and their full labels; `write_pack` describes the arguments."""
    place = Path(data) if isinstance(data, (str, os.PathLike)) else None
    if place is not None and not place.exists():
        raise InputError(f"{place}: no such file or folder.")
    of_folder = place is not None and place.is_dir()
    image, label = chosen.get("image_column"), chosen.get("label_column")
    given = {"label": label, "id": chosen.get("id_column"), "split": chosen.get("split_column")}
    table, roles, _ = columns.open_table(labels, given | {"image": image if of_folder else None})
    cells = LabelCells(label, chosen.get("class_columns"), "negative", chosen.get("separator"))
    parsed = read_labels(labels, table, roles.get("label"), cells, roles.values(), binary=True)
    names = texts(table[roles["id"]]) if "id" in roles else [str(row) for row in range(table.num_rows)]
    store: ImageStore | FeatureStore
    if place is not None and of_folder:
        store, names = _images(labels, table, roles.get("image"), place)
    elif place is not None and place.suffix.lower() in TABLES:
        images, found, _ = columns.open_table(place, {"image": image})
        store, names = _images(place, images, found.get("image"), place.parent)
    else:
        store = FeatureStore(data)
        store.check_finite()
    if len(store) != table.num_rows:
        raise InputError(f"{labels}: it has {table.num_rows} rows for {len(store)} images or rows of features.")
    split = roles.get("split")
    splits = read_splits(labels, split, texts(table[split])) if split else None
    return LabelledExamples(store, _full(labels, parsed, names), splits)


def _images(path: Path, table: pa.Table, column: str | None, root: Path) -> tuple[ImageStore, list[str]]:
    """The images of a table and their names."""
    if column is None:
        raise InputError(f"{path}: no column contains image paths: set image_column.")
    if column in columns.image_columns(path):
        sources, names = image_sources(columns.shards(path), column, root)
        return ImageStore(sources, PHOTO_SIZE, cache_limit=0), names
    names, groups = same_images(path, column, texts(table[column]))
    twice = next((place for place, group in enumerate(groups) if len(group) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: the image {names[twice]!r} occurs twice: a table of full labels has it once.")
    store = ImageStore(image_files(path, root, names, groups, False), PHOTO_SIZE, cache_limit=0)
    return store, [_relative(name, root, row) for row, name in enumerate(names)]


def _relative(name: str, root: Path, row: int) -> str:
    """The path of an image from its root; for images elsewhere, the row number and the file name."""
    path = Path(os.path.relpath(root / name, root))
    return f"{row}-{path.name}" if ".." in path.parts else path.as_posix()


def _full(path: Path, parsed: TableLabels, names: list[str]) -> Labels:
    """All labels: what a list does not contain is absent."""
    labels = parsed.table(path, names)
    matrix = labels.dense()
    if isinstance(parsed.rows, list):
        return Labels.from_matrix(matrix, labels.classes, ids=names, coding="full")
    unknown = np.argwhere(matrix == 0)
    if len(unknown):
        row, column = unknown[0].tolist()
        raise InputError(
            f"{path}: {columns.place(row)}, column {labels.classes[column]!r} is empty: all labels must be known."
        )
    return labels
