"""Common parts of the published data sets: Cole et al.'s protocol, checks of files, and counts against the papers'."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from spml.data.dataset import PHOTO_SIZE, Dataset, ImageOptions, Truth
from spml.data.stores.decode import FilePath
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Entries, Labels, simulate, split


class OfficialOptions(ImageOptions, total=False):
    """Options of all published data sets, besides those of `ImageStore`."""

    positives: int | None
    """Observed positives per training image, by default 1; None keeps all."""
    seed: int
    """Of the split and of the single positives, by default 1200."""
    strict: bool
    """Whether counts that differ from the papers' are an error. By default they are notes."""
    features: FilePath | None
    """A feature matrix to use in place of the images."""
    size: int
    """Side of the decoded images in pixels, by default 320."""


def official_dataset(
    name: str,
    truth: Truth,
    train_rows: int,
    mismatches: Callable[[Dataset], list[str]],
    *,
    folder: Path,
    archive: str,
    notes: Iterable[str] = (),
    positives: int | None = 1,
    seed: int = 1200,
    strict: bool = False,
    features: FilePath | None = None,
    size: int = PHOTO_SIZE,
    **options: Unpack[ImageOptions],
) -> Dataset:
    """A published data set by Cole et al.'s protocol, see `from_truth`. The ids of the truth are paths in `folder`."""
    ids = truth.open().ids
    assert ids is not None
    names: list[str] = ids.tolist()
    store: ImageStore | FeatureStore
    if features is None:
        store = ImageStore(_need_images(folder, names, archive), size, **options)
    else:
        store = FeatureStore(features)
        if len(store) != len(names):
            raise InputError(f"{features}: it has {len(store)} rows, the data has {len(names)}.")
    dataset = from_truth(name, store, truth, train_rows, positives=positives, seed=seed)
    differences = mismatches(dataset)
    if differences and strict:
        raise InputError(f"{name}: the counts differ from the papers'. {'; '.join(differences)}.")
    return replace(dataset, notes=(*notes, *differences))


def from_truth(
    name: str,
    store: ImageStore | FeatureStore,
    truth: Truth,
    train_rows: int,
    *,
    positives: int | None = 1,
    seed: int = 1200,
) -> Dataset:
    """Apply Cole et al.'s protocol to fully labelled rows. The first `train_rows` are the official training set.

    Each training row keeps `positives` labels (None: all) by `labels.simulate`. A fifth of the training rows become
    validation by `labels.split`. The labels of all other rows, the test set, are unknown.
    """
    if not train_rows:
        raise InputError(f"{name}: no training images.")
    full = truth.open()
    drawn = simulate(full.subset(np.arange(train_rows)), positives, seed=seed)
    rows, columns = drawn.positives()
    entries = Entries.from_coordinates(
        rows, columns, np.ones(len(rows)), num_rows=len(full), num_classes=full.num_classes, default=0
    )
    train, validation = split(train_rows, seed=seed)
    assert full.ids is not None
    labels = Labels.from_entries(entries, full.classes, ids=full.ids, origin=drawn.origin)
    return Dataset(name, store, full.ids, labels, truth, train, validation, np.arange(train_rows, len(full)))


def need_file(path: Path, archive: str) -> Path:
    """Return the path of an official file; if it is missing, the error names the archive."""
    if not path.is_file():
        raise InputError(f"{path}: no such file. Unpack {archive} and keep its folders.")
    return path


def _need_images(folder: Path, names: Sequence[str], archive: str) -> list[Path]:
    """Return the paths of images in a folder; raises if one is missing."""
    files_in = {directory: set(_listed(folder / directory)) for directory in {os.path.dirname(name) for name in names}}
    missing = [name for name in names if os.path.basename(name) not in files_in[os.path.dirname(name)]]
    if missing:
        raise InputError(
            f"{folder / missing[0]}: no such image ({len(missing)} of {len(names)} are missing); "
            f"unpack {archive} and keep its folders."
        )
    return [folder / name for name in names]


def need_distinct(path: Path, values: Iterable[Hashable], kind: str, before: Iterable[Hashable] = ()) -> None:
    """Raise if a value occurs twice in a file, or is also in the previous list. `kind` describes a value."""
    earlier, found = set(before), set()
    for value in values:
        if value in earlier:
            raise InputError(
                f"{path}: the {kind} {value!r} is also in the previous list: it must be in only one of them."
            )
        if value in found:
            raise InputError(f"{path}: the {kind} {value!r} occurs twice.")
        found.add(value)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


@dataclass(frozen=True)
class PaperCounts:
    """Counts of a data set in the papers' tables."""

    classes: int
    train: int
    validation: int
    test: int
    positives: str
    """Positives per training image, with the printed decimals."""
    fewest: int
    most: int
    where: str

    def mismatches(self, dataset: Dataset) -> list[str]:
        """Describe every count that differs from the papers'. Positives are counted over train and validation rows."""
        counts: list[tuple[str, Any, Any]] = [
            ("classes", len(dataset.classes), self.classes),
            ("training images", len(dataset.train), self.train),
            ("validation images", len(dataset.validation), self.validation),
            ("test images", len(dataset.test), self.test),
        ]
        if dataset.truth is not None:
            rows = np.concatenate([dataset.train, dataset.validation])
            per_row = dataset.truth.open().subset(rows).entries().per_row(1)
            decimals = len(self.positives.partition(".")[2])
            counts += [
                ("positives per training image", f"{per_row.mean():.{decimals}f}", self.positives),
                ("fewest positives of a training image", int(per_row.min()), self.fewest),
                ("most positives of a training image", int(per_row.max()), self.most),
            ]
        return [
            f"{name}: {ours} here, {theirs} in the papers ({self.where})"
            for name, ours, theirs in counts
            if ours != theirs
        ]
