"""Packs: a data set as one folder of zip files of images, `labels.npz` and feature matrices."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.data.dataset import PHOTO_SIZE, Dataset, Truth
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import SUFFIXES, FilePath, ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.inputs import row_indices

Int64 = npt.NDArray[np.int64]

_REQUIRED = ("image", "classes", "labels", "observed", "train", "val", "test")


@dataclass(frozen=True, eq=False)
class Pack:
    """N rows of a data set: what is known of their labels, and where their images and features are."""

    directory: Path
    ids: npt.NDArray[np.str_]
    """(N,) the images' names."""
    classes: tuple[str, ...]
    truth: npt.NDArray[np.int8]
    """(N, L) +1 present, -1 absent, 0 unknown. Where only a row's single positive is known, the rest is 0."""
    observed: Int64
    """(N,) class of the row's one observed positive, -1 for none."""
    train: Int64
    val: Int64
    test: Int64
    largest_share: npt.NDArray[np.float32] | None
    """(N, L) share of the image that the largest box of the class covers, 0 where absent; None where not recorded."""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def known(self) -> npt.NDArray[np.bool_]:
        """(N,) whether all labels of the row are known."""
        known: npt.NDArray[np.bool_] = (self.truth != 0).all(axis=1)
        return known

    def images(self, size: int = 320, **options: Any) -> ImageStore:
        """The images of all rows, in their order; `options` are those of `ImageStore`."""
        where = _members(self.directory)
        missing = [name for name in self.ids.tolist() if name not in where]
        if missing:
            raise InputError(
                f"{self.directory}: image {missing[0]!r} is in none of the .zip files there "
                f"({len(missing)} of {len(self)} are missing)."
            )
        return ImageStore([where[name] for name in self.ids.tolist()], size, **options)

    def features(self, name: str | None = None) -> FeatureStore:
        """The features of all rows, in their order: the file `name`, or the only features*.npy there is."""
        if name is None:
            found = sorted(path.name for path in self.directory.glob("features*.npy"))
            if not found:
                raise InputError(f"{self.directory}: a feature matrix features*.npy is expected there.")
            if len(found) > 1:
                raise InputError(f"{self.directory}: there are several feature files, name one: {', '.join(found)}.")
            name = found[0]
        store = FeatureStore(self.directory / name)
        if len(store) != len(self):
            raise InputError(f"{self.directory / name}: it has {len(store)} rows, labels.npz {len(self)}.")
        return store

    def training_labels(self) -> Labels:
        """The single positives of the rows `train`, in that order."""

        return Labels.from_indices(self.observed[self.train], self.classes, ids=self.ids[self.train].tolist())

    def full_labels(self, rows: Any) -> Labels:
        """All labels of the given rows, in that order; an error where they are not known."""

        index = row_indices(rows, len(self))
        unknown = index[~self.known[index]]
        if len(unknown):
            raise InputError(
                f"{self.directory}: {len(unknown)} of these {len(index)} rows are not fully labelled: of row "
                f"{unknown[0]} ({self.ids[unknown[0]]}) only the observed positive is known."
            )
        return Labels.from_matrix(self.truth[index], self.classes, ids=self.ids[index].tolist())


def load_pack(directory: FilePath) -> Pack:
    """Read `labels.npz` of a pack; images and features are opened when asked for.

    `labels.npz` holds `image` (N names), `classes` (L names), `labels` (N, L; 1 present, 0 absent), `observed`
    (N; a class or -1), row numbers `train`, `val`, `test` and, where there is one, `largest_share` (N, L).
    A row whose labels do not hold its own observed positive is one whose labels are not known.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; a pack is a folder with labels.npz.")
    path = folder / "labels.npz"
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; a pack has its labels there.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: this is not a .npz file of arrays ({error}).") from error
    for name in _REQUIRED:
        if name not in arrays:
            raise InputError(f"{path}: the array {name!r} is missing; a pack has {', '.join(_REQUIRED)}.")
    rows, columns = len(arrays["image"]), len(arrays["classes"])
    shapes = {"image": (rows,), "classes": (columns,), "labels": (rows, columns), "observed": (rows,)}
    for name, shape in (shapes | {"largest_share": (rows, columns)}).items():
        if name in arrays and arrays[name].shape != shape:
            raise InputError(f"{path}: {name!r} has the shape {arrays[name].shape}, expected {shape}.")
    observed = _whole_numbers(path, "observed", arrays["observed"], -1, columns)
    labels = arrays["labels"]
    if not np.isin(labels, (0, 1)).all():
        raise InputError(f"{path}: 'labels' holds other values than 0 and 1.")
    truth = np.where(labels == 1, 1, -1).astype(np.int8)
    seen = np.flatnonzero(observed >= 0)
    unknown = seen[truth[seen, observed[seen]] != 1]
    truth[unknown] = 0
    truth[unknown, observed[unknown]] = 1
    share = arrays.get("largest_share")
    return Pack(
        directory=folder,
        ids=arrays["image"].astype(str),
        classes=tuple(arrays["classes"].astype(str).tolist()),
        truth=truth,
        observed=observed,
        train=_whole_numbers(path, "train", arrays["train"], 0, rows),
        val=_whole_numbers(path, "val", arrays["val"], 0, rows),
        test=_whole_numbers(path, "test", arrays["test"], 0, rows),
        largest_share=None if share is None else share.astype(np.float32),
    )


def from_pack(path: FilePath, *, features: bool | str | None = None, size: int = PHOTO_SIZE, **options: Any) -> Dataset:
    """A pack with its own split and single positives; `options` are those of `ImageStore`.

    `features` True or the name of a file takes features, False images; None images where there are any.
    """
    pack = load_pack(path)
    wanted = features if features is not None else not any(pack.directory.glob("*.zip"))
    name = wanted if isinstance(wanted, str) else None
    store: ImageStore | FeatureStore = pack.features(name) if wanted else pack.images(size, **options)
    names = pack.ids.tolist()
    labels = Labels.from_indices(pack.observed, pack.classes, ids=names)
    truth = Labels.from_matrix(pack.truth, pack.classes, ids=names)
    unknown = int((~pack.known[np.concatenate([pack.train, pack.val, pack.test])]).sum())
    notes = (
        (f"{unknown} rows are not fully labelled: of these only the observed positive is known.",) if unknown else ()
    )
    parts = (pack.train, pack.val, pack.test)
    return Dataset(
        pack.directory.resolve().name, store, pack.ids, labels, Truth(truth, pack.largest_share), *parts, notes
    )


def _whole_numbers(path: Path, name: str, values: npt.NDArray[Any], low: int, high: int) -> Int64:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(f"{path}: {name!r} is a list of whole numbers, not {values.dtype} {values.shape}.")
    if values.size and not (low <= values.min() and values.max() < high):
        raise InputError(f"{path}: {name!r} runs from {values.min()} to {values.max()}, not in {low} to {high - 1}.")
    return values.astype(np.int64)


def _members(directory: Path) -> dict[str, tuple[str, str]]:
    """Image name, with and without its suffix -> the zip file that has it, and its name there."""
    archives = sorted(directory.glob("*.zip"))
    if not archives:
        raise InputError(f"{directory}: the images are expected there in .zip files, and there is none.")
    found: dict[str, tuple[str, str]] = {}
    for archive in archives:
        try:
            with zipfile.ZipFile(archive) as file:
                names = file.namelist()
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{archive}: this is not a zip file that can be read ({error}).") from error
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix.lower() in SUFFIXES:
                found[name] = found[stem] = (str(archive), name)
    return found
