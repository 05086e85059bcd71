"""Packs: a fully labelled data set in one folder, with its split and its simulated single positives.

A pack is a folder with

- `labels.npz`, arrays written by `numpy.savez`:
  `image` (N names), `classes` (L names), `labels` (N, L; 1 present, 0 absent), `observed` (N; the class of the row's
  observed positive, -1 for none), row numbers `train`, `validation` (`val` in older packs) and `test`, and optionally
  `largest_share` (N, L; share of the image that the largest box of the class covers, 0 where it is absent).
  A row whose `labels` contradict its `observed` positive counts as not fully labelled: only that positive is known.
- any number of `*.zip` files with the images. The member of row i is called `image[i]`, with or without a suffix.
- any number of feature matrices, (N, D), in the order of the rows: `features*.npy`, or `features*.npz` for sparse ones
  written by `scipy.sparse.save_npz`.
- optionally `texts.jsonl`: a JSON string per row.

There is at least one of images, texts and features.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from spml.arrays import read_npz
from spml.atomic import atomic_path, explain_write_errors
from spml.data.dataset import PARTS, PHOTO_SIZE, ColumnOptions, Dataset, ImageOptions, Store, Truth
from spml.data.detect import open_data
from spml.data.formats.user_data import check_names
from spml.data.stores.decode import SUFFIXES, FilePath
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.data.stores.texts import TextStore
from spml.errors import InputError
from spml.json_text import parse_json
from spml.labels import Labels, simulate, split

Int64 = npt.NDArray[np.int64]

TEXTS = "texts.jsonl"
_REQUIRED = ("image", "classes", "labels", "observed", *PARTS)
_RENAMED = {"val": "validation"}  # the name in older packs


def from_pack(
    path: FilePath, *, features: bool | str | None = None, size: int = PHOTO_SIZE, **options: Unpack[ImageOptions]
) -> Dataset:
    """Open a pack with its own split and single positives.

    Parameters
    ----------
    path : path
        The folder of the pack.
    features : bool or str, optional
        True takes the only feature matrix of the pack, a file name takes that one, False takes the images or texts. By
        default images or texts, where there are any.
    size : int
        Side of the decoded images, in pixels.
    **options
        Options of `ImageStore`.

    Returns
    -------
    Dataset
    """
    folder = Path(path)
    arrays = _read_arrays(folder)
    names, classes = (arrays[name].tolist() for name in ("image", "classes"))
    store: Store
    has_images, texts = any(folder.glob("*.zip")), folder / TEXTS
    if features is None:
        features = not has_images and not texts.is_file()
    if features:
        file = _feature_file(folder) if features is True else folder / features
        store = FeatureStore(file)
        if len(store) != len(names):
            raise InputError(f"{file}: it has {len(store)} rows, labels.npz has {len(names)}.")
    elif not has_images and texts.is_file():
        store = TextStore(_read_texts(texts), str(texts))
        if len(store) != len(names):
            raise InputError(f"{texts}: it has {len(store)} texts, labels.npz has {len(names)} rows.")
    else:
        store = ImageStore(_image_sources(folder, names), size, **options)
    check_names(folder / "labels.npz", "class", classes)
    try:
        labels = Labels.from_indices(arrays["observed"], classes, ids=names)
    except InputError as error:
        raise InputError(f"{folder / 'labels.npz'}: {error}") from error
    truth = Truth(Labels.from_matrix(arrays["labels"], classes, ids=names), arrays.get("largest_share"))
    train, validation, test = parts = [arrays[part] for part in PARTS]
    dataset = Dataset(folder.resolve().name, store, np.array(names), labels, truth, train, validation, test)
    incomplete = int((~dataset.fully_labelled[np.concatenate(parts)]).sum())
    if not incomplete:
        return dataset
    return replace(
        dataset, notes=(f"{incomplete} rows are not fully labelled: only their observed positive is known.",)
    )


def write_pack(
    data: Any,
    labels: FilePath,
    out: FilePath,
    *,
    test: float = 0.25,
    validation: float = 0.2,
    seed: int = 1200,
    **columns: Unpack[ColumnOptions],
) -> Dataset:
    """Make a pack, a benchmark data set, from images, texts or features and a table of full labels.

    Rows are split at random, and one positive of every training and validation row is kept, drawn uniformly as by Cole
    et al. (2021). The pack is written atomically: if anything fails, `out` does not exist.

    Parameters
    ----------
    data : path, array or sparse matrix
        A folder of images, of which the label table contains the paths; a table with an image or a text per row, in the
        order of the label table, which may be the same file; or a feature matrix in that order: an array, a sparse
        matrix, or a .npy or .npz file.
    labels : path
        A CSV or parquet table with a row per example: a column per class (1 present, 0 or -1 absent), or a column with
        all labels of the row, such as ``a|b`` or a list.
    out : path
        The folder to write. It must not exist.
    test, validation : float
        Share of all rows that become the test set, and of the other rows that become validation.
    seed : int
        Of the split and of the single positives.
    **columns
        `image_column`, `text_column`, `label_column`, `class_columns`, `id_column`, `split_column` and `separator` of
        the tables, see `from_table`; guessed by default. If a split column has test rows, it replaces `test`; if it has
        validation rows, it replaces `validation`.

    Returns
    -------
    Dataset
        The pack, opened.

    Raises
    ------
    InputError
        If `out` exists, a label is unknown, an image is missing, cannot be read or occurs twice, or the numbers of rows
        differ.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "labels.csv").write_text("cat,dog\\n" + "1,0\\n1,1\\n" * 10)
    ...     write_pack(np.eye(20), Path(folder, "labels.csv"), Path(folder, "pets"), test=0.5)
    Dataset('pets': 20 rows, 2 classes; 8 train, 2 validation, 10 test)
    """
    folder = Path(out)
    if folder.exists():
        raise InputError(f"{folder} already exists: choose another folder for the pack.")
    for option, share in (("test", test), ("validation", validation)):
        if not 0 < share < 1:
            raise InputError(f"{option} is {share}: it must be a share above 0 and below 1.")
    from spml.data.formats.full_labels import read_examples  # pyarrow is slow to import

    examples = read_examples(data, Path(labels), columns)
    parts = _split(len(examples.truth), examples.splits, test, validation, seed)
    arrays = _label_arrays(examples.truth, parts, seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder) as temporary, explain_write_errors(folder):
        temporary.mkdir()
        if isinstance(examples.store, ImageStore):
            _write_images(temporary / "images.zip", examples.store, arrays["image"].tolist())
        elif isinstance(examples.store, TextStore):
            _write_texts(temporary / TEXTS, examples.store)
        else:
            _write_features(temporary, data)
        np.savez(temporary / "labels.npz", **arrays)
    return open_data(folder)


def _split(
    rows: int, stated: list[str] | None, test_share: float, validation_share: float, seed: int
) -> tuple[Int64, Int64, Int64]:
    """Row numbers of train, validation and test: as stated in the table, or else at random."""
    splits = np.array(stated or ["train"] * rows)
    train, validation, test = (np.flatnonzero(splits == part) for part in PARTS)
    if not len(test):
        others, test = split(rows, validation_share=test_share, seed=seed)
        train, validation = np.intersect1d(train, others), np.intersect1d(validation, others)
    if not len(validation):
        kept, held_out = split(len(train), validation_share=validation_share, seed=seed)
        train, validation = train[kept], train[held_out]
    for part, members in zip(PARTS, (train, validation, test), strict=True):
        if not len(members):
            raise InputError(f"none of the {rows} rows is assigned to {part}: change the shares, or use more rows.")
    return train, validation, test


def _label_arrays(truth: Labels, parts: tuple[Int64, Int64, Int64], seed: int) -> dict[str, Any]:
    """Return the content of `labels.npz`, with single positives of the training and validation rows."""
    assert truth.ids is not None
    rows = np.sort(np.concatenate(parts[:2]))
    observed = np.full(len(truth), -1, np.int32)
    observed[rows] = simulate(truth.subset(rows), seed=seed).single()
    return {
        "image": truth.ids,
        "classes": np.array(truth.classes),
        "labels": (truth.dense() > 0).astype(np.uint8),
        "observed": observed,
        **dict(zip(PARTS, parts, strict=True)),
    }


def _write_images(path: Path, store: ImageStore, names: list[str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:  # images do not compress
        for row, name in enumerate(names):
            content, suffix = store.content(row)
            store.whole(row, longest=1)  # raises an error if the image cannot be decoded
            archive.writestr(name if name.lower().endswith(SUFFIXES) else f"{name}{suffix}", content)


def _write_texts(path: Path, store: TextStore) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(text) + "\n" for text in store.texts())


def _write_features(folder: Path, data: Any) -> None:
    if isinstance(data, (str, os.PathLike)):
        shutil.copyfile(data, folder / f"features{Path(data).suffix.lower()}")
    elif hasattr(data, "tocsr"):
        from scipy import sparse

        sparse.save_npz(folder / "features.npz", data.tocsr())
    else:
        np.save(folder / "features.npy", data)


def _read_texts(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                text = parse_json(line)
                if not isinstance(text, str):
                    raise InputError(f"{path}: line {number} is not a JSON string.")
                yield text
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the texts cannot be read ({error}); a pack has a JSON string per line.") from error


def _read_arrays(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `labels.npz`, checked; `labels` are +1, -1, and 0 where they are unknown."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; a pack is a folder with labels.npz.")
    path = folder / "labels.npz"
    if not path.is_file():
        raise InputError(f"{path}: no such file; a pack has its labels there.")
    arrays = {_RENAMED.get(name, name): array for name, array in read_npz(path).items()}
    for name in _REQUIRED:
        if name not in arrays:
            raise InputError(f"{path}: the array {name!r} is missing; a pack has {', '.join(_REQUIRED)}.")
    for name in ("image", "classes"):
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "US":
            raise InputError(f"{path}: {name!r} must be a list of names, not of shape {arrays[name].shape}.")
        try:
            arrays[name] = arrays[name].astype(str)
        except UnicodeDecodeError:
            raise InputError(f"{path}: {name!r} holds bytes that are not ASCII: save the names as text.") from None
    rows, columns = len(arrays["image"]), len(arrays["classes"])
    shapes = {"image": (rows,), "classes": (columns,), "labels": (rows, columns), "observed": (rows,)}
    for name, shape in (shapes | {"largest_share": (rows, columns)}).items():
        if name in arrays and arrays[name].shape != shape:
            raise InputError(f"{path}: {name!r} has the shape {arrays[name].shape}, expected {shape}.")
    for name, low, high in (("observed", -1, columns), *((part, 0, rows) for part in PARTS)):
        arrays[name] = _whole_numbers(path, name, arrays[name], low, high)
    observed = arrays["observed"]
    if not len(arrays["train"]):
        raise InputError(f"{path}: 'train' is empty: a pack needs training rows.")
    if arrays["labels"].dtype.kind not in "biuf" or not np.isin(arrays["labels"], (0, 1)).all():
        raise InputError(f"{path}: 'labels' holds values other than 0 and 1.")
    truth = np.where(arrays["labels"] == 1, 1, -1).astype(np.int8)
    labelled = np.flatnonzero(observed >= 0)
    unknown = labelled[truth[labelled, observed[labelled]] != 1]
    truth[unknown] = 0
    truth[unknown, observed[unknown]] = 1
    if "largest_share" in arrays:
        shares = arrays["largest_share"]
        if shares.dtype.kind not in "biuf" or not ((shares >= 0) & np.isfinite(shares)).all():
            raise InputError(f"{path}: 'largest_share' holds values that are not finite numbers of at least 0.")
        arrays["largest_share"] = shares.astype(np.float32)
    return arrays | {"labels": truth}


def _whole_numbers(path: Path, name: str, values: npt.NDArray[Any], low: int, high: int) -> Int64:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(f"{path}: {name!r} must be a list of whole numbers, not {values.dtype} {values.shape}.")
    if values.size and not (low <= values.min() and values.max() < high):
        raise InputError(
            f"{path}: {name!r} has values from {values.min()} to {values.max()}, not from {low} to {high - 1}."
        )
    return values.astype(np.int64)


def _feature_file(folder: Path) -> Path:
    found = sorted([*folder.glob("features*.npy"), *folder.glob("features*.npz")])
    if not found:
        raise InputError(f"{folder}: no feature matrix (features*.npy or features*.npz) in this pack.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{folder}: several feature files; choose one with features: {names}.")
    return found[0]


def _image_sources(folder: Path, names: list[str]) -> list[tuple[str, str]]:
    """Zip file and member of each image; a name may leave out the member's suffix."""
    archives = sorted(folder.glob("*.zip"))
    if not archives:
        raise InputError(f"{folder}: no .zip files with images in this pack.")
    found: dict[str, tuple[str, str]] = {}
    twice: set[str] = set()
    for archive in archives:
        if not archive.is_file():  # a pipe would wait for ever
            raise InputError(f"{archive}: this is not a regular file.")
        try:
            with zipfile.ZipFile(archive) as file:
                members = file.namelist()
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{archive}: this is not a readable zip file ({error}).") from error
        for member in members:
            stem, suffix = os.path.splitext(member)
            if suffix.lower() in SUFFIXES:
                twice |= {member, stem} & found.keys()
                found[member] = found[stem] = (str(archive), member)
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"{folder}: image {missing[0]!r} is in none of the .zip files ({len(missing)} of {len(names)} are missing)."
        )
    if ambiguous := next((name for name in names if name in twice), None):
        raise InputError(
            f"{folder}: several images in the .zip files are called {ambiguous!r}: give each its own name."
        )
    return [found[name] for name in names]
