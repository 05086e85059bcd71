"""Tables with a row per image, text or feature vector, and feature matrices with labels next to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spml.arrays import read_npy
from spml.data.dataset import PHOTO_SIZE, TABLES, Dataset, ImageOptions, Store, read_lines
from spml.data.formats import columns
from spml.data.formats.column_names import list_names, row_label, usual_column
from spml.data.formats.embedded_images import image_sources
from spml.data.formats.label_cells import texts
from spml.data.formats.row_names import id_hint
from spml.data.formats.table_files import shards
from spml.data.formats.table_labels import LabelCells, Zeros, check_order, read_labels, with_file_name
from spml.data.formats.user_data import SPLITS, check_names, from_known
from spml.data.stores.decode import FilePath
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.data.stores.texts import TextStore
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.inputs import check_classes

_MAX_CLASSES = 10**6  # class numbers: larger ones are ids


def from_table(
    path: FilePath,
    *,
    image_column: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    class_columns: Sequence[str] | None = None,
    zeros: Zeros = "unknown",
    feature_columns: Sequence[str] | None = None,
    id_column: str | None = None,
    split_column: str | None = None,
    image_root: FilePath | None = None,
    separator: str | None = None,
    size: int = PHOTO_SIZE,
    validation_share: float | None = None,
    seed: int = 1200,
    **options: Unpack[ImageOptions],
) -> Dataset:
    """Open a CSV or parquet table with a row per image, text or feature vector.

    Columns that are not given are guessed from their names and content; the notes report which. An image that occurs
    in several rows becomes one row with all their labels.

    Parameters
    ----------
    path : path
        A .csv, .tsv or .parquet file, or a folder of parquet files named as by Hugging Face
        (train-00000-of-00002.parquet), which state the split.
    image_column : str, optional
        Column of image paths; of a parquet file also of image contents, as bytes or as Hugging Face's struct of
        `bytes` and `path`. Images are read when they are needed.
    text_column : str, optional
        In place of images: column of texts. By default, if the table has neither images nor columns of numbers, a
        column with a usual name such as `text`, or else the one with the longest texts.
    label_column : str, optional
        Column with a label, or a list of labels, per row.
    class_columns : sequence of str, optional
        In place of `label_column`: a column per class, with 1 for positive, -1 for verified negative.
    zeros : {"unknown", "negative"}
        What 0 means in `class_columns`. By default unknown: with one label per row, 0 only says that nobody chose the
        class. Empty cells are always unknown.
    feature_columns : sequence of str, optional
        In place of images: columns of numbers or of true and false, or one of lists. By default all unused ones.
    id_column : str, optional
        Column of unique row names.
    split_column : str, optional
        Column of train, validation or test.
    image_root : path, optional
        Where image paths start. By default the folder of the table.
    separator : str, optional
        What separates several labels in a cell; "" if a cell is one label. Guessed by default.
    size : int
        Side of the decoded images, in pixels.
    validation_share, seed
        Share and seed of the labelled rows that become validation, if the table has no split: by default 0.2 of images
        and 0 of features and texts.
    **options
        Options of `ImageStore`.

    Returns
    -------
    Dataset
    """
    file = Path(path)
    given = {"image_column": image_column, "text_column": text_column, "feature_columns": feature_columns}
    both = [option for option, value in given.items() if value]
    if len(both) > 1:
        raise InputError(f"{file}: {both[0]} and {both[1]} are both given: use one of them.")
    chosen = {
        "image": image_column,
        "text": text_column,
        "label": label_column,
        "id": id_column,
        "split": split_column,
    }
    _check_roles(file, chosen, class_columns, feature_columns)
    table, roles, embedded = columns.open_table(file, chosen, images=not feature_columns)
    if not feature_columns and "image" not in roles and "text" not in roles:
        used = [*roles.values(), *(class_columns or ())]
        if guess := columns.text_column(table, used, labels_known="label" in roles or bool(class_columns)):
            roles["text"] = guess
    cells = LabelCells(label_column, class_columns, zeros, separator)
    used = [*roles.values(), *(feature_columns or ())]
    binary = bool("image" in roles or "text" in roles or feature_columns)
    labels = read_labels(file, table, roles.get("label"), cells, used, binary=binary)
    splits = ["train"] * table.num_rows
    if split := roles.get("split"):
        splits = read_splits(file, split, texts(table[split]))
    ids = _read_ids(file, table, roles["id"]) if "id" in roles else None
    image, root = roles.get("image"), shards(file)[0].parent if image_root is None else Path(image_root)
    if "text" in roles:
        inputs = _text_inputs(file, table, roles["text"])
    elif image is None:
        inputs = _feature_inputs(file, table, feature_columns, [*roles.values(), *labels.columns])
    elif image in embedded:
        sources, paths = image_sources(shards(file), image, root)
        inputs = _Inputs(ImageStore(sources, size, **options), f"images from {image!r}", paths)
    else:
        inputs = _image_inputs(file, table, image, root, size, options)
    if inputs.groups is not None:
        ids = None  # the images name the rows
        roles.pop("id", None)
        labels = labels.merged(file, inputs.names, inputs.groups)
        images = zip(inputs.names, inputs.groups, strict=True)
        splits = [_one_split(file, name, rows, splits) for name, rows in images]
    found = [inputs.description, f"labels from {labels.description}"]
    found += [f"ids from {roles['id']!r}"] if ids else []
    found += [f"the split from {split!r}"] if split else []
    notes = [f"columns of {file.name}: {', '.join(found)}.", *labels.notes, *inputs.notes]
    if not isinstance(inputs.store, FeatureStore):
        notes += _unused_note(table, [*roles.values(), *labels.columns])
    if not ids and inputs.names == _row_numbers(table):
        features = inputs.store.columns if isinstance(inputs.store, FeatureStore) else ()
        notes += id_hint(table, {*roles.values(), *labels.columns}, features)
    known = labels.table(file, ids or inputs.names)
    return from_known(file.stem, inputs.store, known, notes, splits, validation_share=validation_share, seed=seed)


class _Inputs(NamedTuple):
    """What a table has besides labels: images, texts or features."""

    store: Store
    description: str
    names: list[str]
    """Of the rows of the store, if the table has no ids."""
    notes: Sequence[str] = ()
    groups: list[list[int]] | None = None
    """The rows of the table that show each image; None: every row of the table is one of the store."""


def _text_inputs(path: Path, table: pa.Table, column: str) -> _Inputs:
    store, description = read_texts(path, table, column)
    return _Inputs(store, description, _row_numbers(table), store.notes())


def _feature_inputs(path: Path, table: pa.Table, chosen: Sequence[str] | None, taken: Sequence[str]) -> _Inputs:
    """Features in the columns that the user chose, or in all that hold numbers and are not taken by something else."""
    notes = []
    if not chosen:
        unused = columns.unused_columns(path, table, [*taken, *columns.feature_columns(table, taken)])
        text_like = usual_column("text", unused)
        if text_like is not None:
            notes.append(f"column {text_like!r} is not used: to train on texts in place of numbers, set text_column.")
        if others := [name for name in unused if name != text_like]:
            notes.append(f"columns that are not used: {list_names(others)}.")
    names = [columns.existing_column(path, table, "feature_columns", name) for name in chosen or ()]
    names = names or columns.feature_columns(table, taken)
    notes += _doubtful_features(table, names)
    if not names:
        raise InputError(
            f"{path}: no column contains images (image_column), texts (text_column) or numbers (feature_columns); "
            f"its columns are {list_names(table.column_names)}."
        )
    store = FeatureStore(columns.feature_matrix(path, table, names), names, path)
    description = f"{store.dim} features from {names[0]!r}" + (f" to {names[-1]!r}" if len(names) > 1 else "")
    return _Inputs(store, description, _row_numbers(table), notes)


def _unused_note(table: pa.Table, used: Sequence[str]) -> list[str]:
    taken = {*used}
    unused = [name for name in table.column_names if name not in taken]
    return [f"columns that are not used: {list_names(unused)}."] if unused else []


def _doubtful_features(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Notes on features that may reveal the labels or the order of the rows, and on those that are rounded."""
    notes = []
    numbers = [name for name in names if pa.types.is_integer(table.schema.field(name).type)]
    values = {name: table[name].to_numpy() for name in numbers if not table[name].null_count}
    named = [name for name in names if any(usual_column(kind, [name]) for kind in ("label", "id", "split"))]
    counting = [name for name, cells in values.items() if len(cells) > 2 and (np.diff(cells) == 1).all()]
    if doubtful := list(dict.fromkeys([*named, *counting])):
        notes.append(
            f"these features look like labels, ids, a split or row numbers: {list_names(doubtful)}. If they are, "
            "delete these columns."
        )
    if rounded := [name for name, cells in values.items() if (cells.astype(np.float32) != cells).any()]:
        notes.append(f"whole numbers above 2^24 are rounded to seven digits: {list_names(rounded)}.")
    return notes


def _check_roles(
    path: Path,
    chosen: Mapping[str, str | None],
    class_columns: Sequence[str] | None,
    feature_columns: Sequence[str] | None,
) -> None:
    """Raise `InputError` if the user chose one column for two purposes."""
    options: dict[str, str] = {}
    pairs = [(f"{kind}_column", name) for kind, name in chosen.items() if name]
    pairs += [("class_columns", name) for name in class_columns or ()]
    pairs += [("feature_columns", name) for name in feature_columns or ()]
    for option, name in pairs:
        if name in options:
            other = options[name]
            twice = f"twice in {option}" if other == option else f"given as {other} and as {option}"
            raise InputError(f"{path}: column {name!r} is {twice}: choose another one.")
        options[name] = option


def _image_inputs(path: Path, table: pa.Table, column: str, root: Path, size: int, options: ImageOptions) -> _Inputs:
    """Image files, each of which may occur in several rows."""
    names, groups = same_images(path, column, texts(table[column]))
    files = image_files(path, root, names, groups, skipping=options.get("on_bad_image") == "skip")
    repeated = [name for name, group in zip(names, groups, strict=True) if len(group) > 1]
    notes = []
    if repeated:
        notes.append(
            f"{len(repeated)} images occur in more than one row: each is one row with all its labels "
            f"(for example {repeated[0]!r})."
        )
    return _Inputs(ImageStore(files, size, **options), f"images from {column!r}", names, notes, groups)


def _row_numbers(table: pa.Table) -> list[str]:
    return [str(row) for row in range(table.num_rows)]


def _read_ids(path: Path, table: pa.Table, column: str) -> list[str]:
    ids = texts(table[column])
    check_names(path, "id", ids)
    if "" in ids:
        raise InputError(f"{path}: {row_label(ids.index(''))}, column {column!r} is empty: ids name the rows.")
    return ids


def read_texts(path: Path, table: pa.Table, column: str) -> tuple[TextStore, str]:
    """Return the texts of a table, and where they come from."""
    kind = table.schema.field(column).type
    if not columns.is_text(kind):
        raise InputError(f"{path}: column {column!r} holds {kind}, not texts: choose another text_column.")
    return TextStore(table[column].to_pylist(), f"{path}, column {column!r}", column), f"texts from {column!r}"


def labels_beside(matrix: Path) -> list[Path]:
    """Where the labels of a feature matrix are found if nobody names their file.

    Examples
    --------
    >>> [path.name for path in labels_beside(Path("x.npy"))]
    ['x-labels.npy', 'labels.npy', 'x.csv', 'labels.csv']
    """
    names = (f"{matrix.stem}-labels.npy", "labels.npy", f"{matrix.stem}.csv", "labels.csv")
    return [matrix.with_name(name) for name in names]


def from_features(
    path: FilePath,
    labels: FilePath | None = None,
    *,
    classes: Iterable[str] | FilePath | None = None,
    label_column: str | None = None,
    class_columns: Sequence[str] | None = None,
    zeros: Zeros = "unknown",
    separator: str | None = None,
    validation_share: float | None = None,
    seed: int = 1200,
) -> Dataset:
    """Open a feature matrix with labels in the same order.

    Parameters
    ----------
    path : path
        A .npy file of shape (N, D), which stays on disk, or a sparse matrix written by `scipy.sparse.save_npz`.
    labels : path, optional
        A .npy file of class numbers (-1: no label) or of a matrix (see `Labels.from_any`), or a table with a column
        of labels or a column per class. By default <name>-labels.npy, labels.npy, <name>.csv or labels.csv in the same
        folder.
    classes : iterable of str or path, optional
        The names of the classes, or a text file with one per line. By default the class numbers.
    label_column, class_columns, zeros, separator
        Of a table, see `from_table`.
    validation_share, seed
        Share, by default 0, and seed of the labelled rows that become validation.

    Returns
    -------
    Dataset
    """
    file = Path(path)
    store = FeatureStore(file)
    usual = labels_beside(file)
    found = [each for each in usual if each.is_file()]
    if labels is None and not found:
        names = ", ".join(each.name for each in usual)
        raise InputError(f"{file}: no labels next to it ({names}): pass their file as labels.")
    source = found[0] if labels is None else Path(labels)
    notes, splits = [f"labels from {source.name}, next to the features."] if labels is None else [], None
    if labels is None and len(found) > 1:
        notes.append(f"not used: {', '.join(file.name for file in found[1:])}. To choose one, pass it as labels.")
    if isinstance(classes, (str, os.PathLike)):
        classes = read_lines(Path(classes))
    if source.suffix.lower() in TABLES:
        table, roles, _ = columns.open_table(source, {"label": label_column}, images=False)
        only = table.column_names[0] if table.num_columns == 1 else None
        label_cells = LabelCells(label_column, class_columns, zeros, separator)
        parsed = read_labels(
            source, table, roles.get("label") or only, label_cells, roles.values(), binary=True, classes=classes
        )
        check_order(source, table, parsed.columns)
        named = isinstance(parsed.rows, np.ndarray)  # by its columns
        if named and classes is not None and check_classes(classes) != tuple(parsed.columns):
            raise InputError(f"{source}: classes differ from the names of the class columns: leave classes out.")
        known = parsed.table(source, range(table.num_rows))
        if "split" in roles:
            splits = read_splits(source, roles["split"], texts(table[roles["split"]]))
            notes.append(f"the split from {roles['split']!r}.")
        notes += [f"labels from column{'s' * (len(parsed.columns) > 1)} {parsed.description}.", *parsed.notes]
        notes += _unused_note(table, [*roles.values(), *parsed.columns])
    else:
        known = _labels_from_array(source, classes)
        if known.counts().negatives.any() and known.is_full:
            notes.append(
                f"{source.name}: 0 is taken as absent, because some rows do not have exactly one 1. If it means "
                "unknown, give the labels as a table, or use -1 for absent."
            )
    if len(known) != len(store):
        hint = "" if labels is not None else ". It was found next to the features; to use another, pass it as labels"
        raise InputError(f"{source}: it labels {len(known)} rows, {file} has {len(store)}{hint}.")
    return from_known(file.stem, store, known, notes, splits, validation_share=validation_share, seed=seed)


def _class_numbers(values: npt.NDArray[Any], path: Path) -> npt.NDArray[np.int64]:
    """Whole numbers that were saved as floats, because some rows are NaN: these have no label."""
    whole = (np.abs(values) <= _MAX_CLASSES) & (values == np.trunc(values))
    wrong = np.flatnonzero(~np.isnan(values) & ~whole)
    if len(wrong):
        raise InputError(f"{path}: row {wrong[0]} is {values[wrong[0]]}, which is not a class number.")
    return np.where(np.isnan(values), -1, values).astype(np.int64)


def _labels_from_array(path: Path, classes: Iterable[str] | None) -> Labels:
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    if path.suffix.lower() != ".npy":
        raise InputError(f"{path}: labels must be a .npy file or a table ({', '.join(TABLES)}).")
    values = read_npy(path, "a .npy file of labels")
    if values.ndim == 1 and values.dtype.kind == "f":
        values = _class_numbers(values, path)
    largest = int(values.max(initial=0)) if values.dtype.kind in "iu" else -1
    if largest > _MAX_CLASSES:
        raise InputError(f"{path}: the label {largest} is not a class number; they go from 0 to {_MAX_CLASSES:,}.")
    names = [str(index) for index in range(largest + 1)] or None
    if values.ndim not in (1, 2):
        raise InputError(f"{path}: labels must be one class number per row, or a matrix, not of shape {values.shape}.")
    if values.ndim == 2 or classes is not None:
        names = None
    return with_file_name(path, lambda: Labels.from_any(values, classes or names, ids=range(len(values))))


def read_splits(path: Path, column: str, cells: list[str]) -> list[str]:
    """Return the cells of a split column as train, validation or test."""
    unknown = [row for row, cell in enumerate(cells) if cell.casefold() not in SPLITS]
    if unknown:
        location, value = row_label(unknown[0]), cells[unknown[0]]
        raise InputError(f"{path}: {location}, column {column!r} is {value!r}: expected train, validation or test.")
    return [SPLITS[cell.casefold()] for cell in cells]


def same_images(path: Path, column: str, cells: list[str]) -> tuple[list[str], list[list[int]]]:
    """Return the distinct images in the order of their first row, and the rows of each."""
    groups: dict[str, list[int]] = {}
    for row, cell in enumerate(cells):
        if not cell:
            raise InputError(f"{path}: {row_label(row)}, column {column!r} is empty: an image path is expected.")
        groups.setdefault(os.path.normpath(cell.replace("\\", "/")), []).append(row)
    return list(groups), list(groups.values())


def image_files(path: Path, root: Path, names: list[str], groups: list[list[int]], skipping: bool) -> list[Path]:
    """Return the image files. If bad images are skipped, so are missing ones, unless all are missing."""
    files = [root / name for name in names]
    missing = [index for index, file in enumerate(files) if not os.path.isfile(file)]  # also if the name is too long
    if len(missing) > (len(files) - 1 if skipping else 0):
        first = missing[0]
        raise InputError(
            f"{path}: {row_label(groups[first][0])}, no image {str(files[first])[:300]} ({len(missing)} of "
            f"{len(files)} are missing): paths are relative to the table's folder, or to image_root."
        )
    return files


def _one_split(path: Path, name: str, rows: list[int], splits: list[str]) -> str:
    for row in rows[1:]:
        if splits[row] != splits[rows[0]]:
            raise InputError(f"{path}: image {name!r} is in two splits, {row_label(rows[0])} and row {row + 1}.")
    return splits[rows[0]]
