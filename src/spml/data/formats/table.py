"""Tables: a row an image path or features, with a label; and feature matrices with labels beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from spml.data.dataset import PHOTO_SIZE, Dataset, ImageOptions, read_lines
from spml.data.formats import columns
from spml.data.formats import label_cells as cells
from spml.data.formats.user_data import SPLITS, from_known
from spml.data.stores.decode import FilePath
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels

_MOST_CLASSES = 10**7


def from_table(
    path: FilePath,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    feature_columns: Sequence[str] | None = None,
    id_column: str | None = None,
    split_column: str | None = None,
    image_root: FilePath | None = None,
    separator: str | None = None,
    size: int = PHOTO_SIZE,
    validation_share: float = 0.2,
    seed: int = 1200,
    **options: Unpack[ImageOptions],
) -> Dataset:
    """Rows from a CSV or parquet table. Columns that are not named are guessed, and the notes say which.

    Image paths are relative to `image_root`, or to the table's folder; an image that occurs in several rows is one
    row with all their labels. Without images, the features are `feature_columns`, or all columns of numbers, or one
    column of lists. A column of train, validation and test is the split; without one a share is carved off.
    """
    file = Path(path)
    if image_column and feature_columns:
        raise InputError(f"{file}: image_column and feature_columns are both given: a row is the one or the other.")
    given = {"image": image_column, "label": label_column, "id": id_column, "split": split_column}
    table = columns.read_table(file, texts=[name for name in given.values() if name])
    roles = columns.roles(file, table, given, images=not feature_columns)
    image, label, ids, split = (roles.get(kind) for kind in ("image", "label", "id", "split"))
    assert label is not None
    lists, notes = cells.label_lists(file, label, table[label], separator)
    splits = _splits(file, split, cells.texts(table[split])) if split else ["train"] * len(lists)
    store: ImageStore | FeatureStore
    if image is not None:
        names, groups = _same_images(file, image, cells.texts(table[image]))
        root = Path(image_root) if image_root is not None else file.parent
        skipping = options.get("on_bad_image") == "skip"
        store = ImageStore(_image_files(file, root, names, groups, skipping), size, **options)
        lists = [list(dict.fromkeys(label for row in group for label in lists[row])) for group in groups]
        splits = [_one_split(file, name, group, splits) for name, group in zip(names, groups, strict=True)]
        repeated = [name for name, group in zip(names, groups, strict=True) if len(group) > 1]
        if repeated:
            notes.append(
                f"{len(repeated)} images occur in more than one row: each is one row with all its labels "
                f"(for example {repeated[0]!r})."
            )
        taken = f"images from {image!r}"
    else:
        wanted = [columns.chosen(file, table, "feature_columns", name) for name in feature_columns or ()]
        wanted = wanted or columns.feature_columns(file, table, roles.values())
        store = FeatureStore(columns.feature_matrix(file, table, wanted))
        names = cells.texts(table[ids]) if ids else [str(row) for row in range(len(lists))]
        taken = f"{store.dim} features from {wanted[0]!r}" + (f" to {wanted[-1]!r}" if len(wanted) > 1 else "")
    if not any(lists):
        raise InputError(f"{file}: no row has a label: column {label!r} is empty.")
    said = [taken, f"labels from {label!r}"]
    said += [f"ids from {ids!r}"] if ids and image is None else []
    said += [f"the split from {split!r}"] if split else []
    notes.insert(0, f"columns of {file.name}: {', '.join(said)}.")
    labels = _naming(file, lambda: Labels.from_lists(lists, ids=names))
    return from_known(file.stem, store, labels, splits, notes, validation_share=validation_share, seed=seed)


def from_features(
    path: FilePath,
    labels: FilePath | None = None,
    *,
    classes: Iterable[str] | FilePath | None = None,
    label_column: str | None = None,
    separator: str | None = None,
    validation_share: float = 0.2,
    seed: int = 1200,
) -> Dataset:
    """Rows from a `.npy` feature matrix, which stays on disk, and labels in the same order.

    Labels are a `.npy` of class indices (-1: none) or of a matrix (`Labels.from_any`), or a table with a label
    column; without `labels` one of <name>-labels.npy, labels.npy, <name>.csv and labels.csv beside the matrix.
    `classes` are the names, or a text file with one a line; without it the indices are the names.
    """
    file = Path(path)
    store = FeatureStore(file)
    usual = [f"{file.stem}-labels.npy", "labels.npy", f"{file.stem}.csv", "labels.csv"]
    found = [file.with_name(name) for name in usual if file.with_name(name).is_file()]
    if labels is None and not found:
        raise InputError(f"{file}: there are no labels beside it ({', '.join(usual)}): name their file.")
    source = found[0] if labels is None else Path(labels)
    notes = [f"labels from {source.name}, beside the features."] if labels is None else []
    if isinstance(classes, (str, os.PathLike)):
        classes = read_lines(Path(classes))
    if source.suffix.lower() in columns.TABLES:
        table = columns.read_table(source, texts=[label_column] if label_column else [])
        if label_column is None and table.num_columns == 1:
            label_column = table.column_names[0]
        label = columns.roles(source, table, {"label": label_column}, images=False)["label"]
        lists, more = cells.label_lists(source, label, table[label], separator)
        known = _naming(source, lambda: Labels.from_lists(lists, classes, ids=range(len(lists))))
        notes += [f"labels from column {label!r}.", *more]
    else:
        known = _labels_from_array(source, classes)
        if known.counts().negatives.any() and known.is_full:
            notes.append(
                f"{source.name}: 0 is taken for absent, since not every row has just one 1; where it means unknown, "
                "give the labels as a table, or -1 for what is absent."
            )
    if len(known) != len(store):
        beside = "" if labels is not None else "; it was found beside the features, name another file as the labels"
        raise InputError(f"{source}: it labels {len(known)} rows, {file} has {len(store)}{beside}.")
    splits = ["train"] * len(known)
    return from_known(file.stem, store, known, splits, notes, validation_share=validation_share, seed=seed)


def _naming(path: Path, make: Callable[[], Labels]) -> Labels:
    """Labels, with the file's name before what is wrong with them."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _labels_from_array(path: Path, classes: Iterable[str] | None) -> Labels:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file.")
    if path.suffix.lower() != ".npy":
        raise InputError(f"{path}: labels are a .npy file, or a table ({', '.join(columns.TABLES)}).")
    try:
        values = np.load(path, allow_pickle=False)
        largest = int(values.max(initial=0)) if values.dtype.kind in "iu" else -1
        if largest > _MOST_CLASSES:
            raise InputError(f"{path}: the label {largest} is no class number; those are counted from 0.")
        names = [str(index) for index in range(largest + 1)] or None
    except (ValueError, OSError, EOFError, AttributeError) as error:
        reason = "it holds Python objects; save class numbers, or names as texts" if "pickle" in str(error) else error
        raise InputError(f"{path}: this is not a .npy file of labels ({reason}).") from error
    if values.ndim not in (1, 2):
        raise InputError(f"{path}: labels are a class number a row, or a matrix, not {values.shape}.")
    if values.ndim == 2 or classes is not None:
        names = None
    return _naming(path, lambda: Labels.from_any(values, classes or names, ids=range(len(values))))


def _splits(path: Path, column: str, cells: list[str]) -> list[str]:
    unknown = [row for row, cell in enumerate(cells) if cell.casefold() not in SPLITS]
    if unknown:
        where, what = columns.place(unknown[0]), cells[unknown[0]]
        raise InputError(f"{path}: {where}, column {column!r} is {what!r}: a split is train, validation or test.")
    return [SPLITS[cell.casefold()] for cell in cells]


def _same_images(path: Path, column: str, cells: list[str]) -> tuple[list[str], list[list[int]]]:
    """The different images in the order they come in, and the rows of each."""
    groups: dict[str, list[int]] = {}
    for row, cell in enumerate(cells):
        if not cell:
            raise InputError(f"{path}: {columns.place(row)}, column {column!r} is empty: it must name an image.")
        groups.setdefault(os.path.normpath(cell.replace("\\", "/")), []).append(row)
    return list(groups), list(groups.values())


def _image_files(path: Path, root: Path, names: list[str], groups: list[list[int]], skipping: bool) -> list[Path]:
    """The images' files. If what cannot be read is skipped, so is what is not there, unless that is all of them."""
    files = [root / name for name in names]
    missing = [place for place, file in enumerate(files) if not file.is_file()]
    if len(missing) > (len(files) - 1 if skipping else 0):
        first = missing[0]
        raise InputError(
            f"{path}: {columns.place(groups[first][0])} names the image {files[first]}, which is not there "
            f"({len(missing)} of {len(files)} are missing): paths start from the table's folder, or from the image "
            "root that is given."
        )
    return files


def _one_split(path: Path, name: str, rows: list[int], splits: list[str]) -> str:
    for row in rows[1:]:
        if splits[row] != splits[rows[0]]:
            raise InputError(f"{path}: image {name!r} is in two splits, {columns.place(rows[0])} and row {row + 1}.")
    return splits[rows[0]]
