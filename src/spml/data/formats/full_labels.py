"""Examples with full labels: images, texts or features, and a table that states every label."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spml.data.dataset import PHOTO_SIZE, TABLES, ColumnOptions, Store
from spml.data.formats import columns
from spml.data.formats.column_names import row_label
from spml.data.formats.embedded_images import image_sources
from spml.data.formats.label_cells import texts
from spml.data.formats.table import image_files, read_splits, read_texts, same_images
from spml.data.formats.table_files import shards
from spml.data.formats.table_labels import LabelCells, TableLabels, check_order, read_labels
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels


class LabelledExamples(NamedTuple):
    """Images, texts or features with full labels and, if the table states it, their split."""

    store: Store
    truth: Labels
    splits: list[str] | None


def read_examples(data: Any, labels: Path, chosen: ColumnOptions) -> LabelledExamples:
    """Read images, texts or features and their full labels; `write_pack` describes the arguments."""
    data_path = Path(data) if isinstance(data, (str, os.PathLike)) else None
    if data_path is not None and not data_path.exists():
        raise InputError(f"{data_path}: no such file or folder.")
    of_folder = data_path is not None and data_path.is_dir()
    image, text, label = chosen.get("image_column"), chosen.get("text_column"), chosen.get("label_column")
    if image and text:
        raise InputError(f"{labels}: image_column and text_column are both given: use one of them.")
    in_table = data_path is not None and data_path.suffix.lower() in TABLES
    for option, value in (("text_column", text), ("image_column", None if of_folder else image)):
        if value and not in_table:
            raise InputError(f"{option} applies to a table of images or texts, not to {data_path or 'a matrix'}")
    given = {"label": label, "id": chosen.get("id_column"), "split": chosen.get("split_column")}
    same = data_path is not None and not of_folder and data_path.resolve() == labels.resolve()
    own_inputs = {"image": image, "text": text} if same else {"image": image if of_folder else None}
    table, roles, _ = columns.open_table(labels, given | own_inputs)
    cells = LabelCells(label, chosen.get("class_columns"), "negative", chosen.get("separator"))
    if same and not {"image", "text"} & roles.keys():
        known = "label" in roles or bool(cells.class_columns)
        if guess := columns.text_column(table, [*roles.values(), *(cells.class_columns or ())], labels_known=known):
            roles["text"] = guess
    parsed = read_labels(labels, table, roles.get("label"), cells, roles.values(), binary=True)
    names = texts(table[roles["id"]]) if "id" in roles else [str(row) for row in range(table.num_rows)]
    store: Store
    if data_path is not None and of_folder:
        store, names = _images(labels, table, roles.get("image"), data_path)
    elif data_path is not None and data_path.suffix.lower() in TABLES:
        inputs, found, _ = (
            (table, roles, None) if same else columns.open_table(data_path, {"image": image, "text": text})
        )
        if not same:
            _check_same_rows((labels, table, roles), (data_path, inputs, found))
        used = [name for kind, name in found.items() if kind != "text"]
        column = found.get("text") or columns.text_column(inputs, used, labels_known=True)
        if "image" in found or column is None:
            store, names = _images(data_path, inputs, found.get("image"), data_path.parent)
        else:
            store, _ = read_texts(data_path, inputs, column)
    else:
        store = FeatureStore(data)
        store.check_finite()
        check_order(labels, table, parsed.columns)
    if len(store) != table.num_rows:
        raise InputError(f"{labels}: it has {table.num_rows} rows for {len(store)} images, texts or rows of features.")
    split = roles.get("split")
    splits = read_splits(labels, split, texts(table[split])) if split else None
    return LabelledExamples(store, _full(labels, parsed, names), splits)


def _check_same_rows(*tables: tuple[Path, pa.Table, dict[str, str]]) -> None:
    """Raise `InputError` if two tables name their rows and differ: rows belong together by their order."""
    (first, one, its_roles), (second, other, other_roles) = tables
    for kind in {"id", "image"} & its_roles.keys() & other_roles.keys():
        pairs = zip(texts(one[its_roles[kind]]), texts(other[other_roles[kind]]), strict=False)
        for row, (name, other_name) in enumerate(pairs):
            if name != other_name:
                raise InputError(
                    f"{first}: {row_label(row)} is {name!r}, but {other_name!r} in {second}: both tables must have "
                    "the same rows in the same order."
                )


def _images(path: Path, table: pa.Table, column: str | None, root: Path) -> tuple[ImageStore, list[str]]:
    """Return the images of a table and their names."""
    if column is None:
        raise InputError(f"{path}: no column contains image paths or texts: set image_column or text_column.")
    if column in columns.image_columns(path):
        sources, names = image_sources(shards(path), column, root)
        return ImageStore(sources, PHOTO_SIZE, cache_limit=0), names
    names, groups = same_images(path, column, texts(table[column]))
    twice = next((index for index, group in enumerate(groups) if len(group) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: the image {names[twice]!r} occurs twice: a table of full labels has it once.")
    store = ImageStore(image_files(path, root, names, groups, False), PHOTO_SIZE, cache_limit=0)
    return store, [_relative(name, root, row) for row, name in enumerate(names)]


def _relative(name: str, root: Path, row: int) -> str:
    """Return the path of an image from its root; for images elsewhere, the row number and the file name."""
    path = Path(os.path.relpath(root / name, root))
    return f"{row}-{path.name}" if ".." in path.parts else path.as_posix()


def _full(path: Path, parsed: TableLabels, names: list[str]) -> Labels:
    """Return all labels: what a list does not contain is absent."""
    labels = parsed.table(path, names)
    matrix = labels.dense()
    if isinstance(parsed.rows, list):
        return Labels.from_matrix(matrix, labels.classes, ids=names, coding="full")
    unknown = np.argwhere(matrix == 0)
    if len(unknown):
        row, column = unknown[0].tolist()
        raise InputError(
            f"{path}: {row_label(row)}, column {labels.classes[column]!r} is empty: all labels must be known."
        )
    return labels
