"""What the adapters of published data sets share: Cole's protocol, files by name, counts against the papers'."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spml.data.dataset import Dataset, Truth
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Entries, Labels, simulate, split


def from_truth(
    name: str,
    store: ImageStore | FeatureStore,
    names: Iterable[str],
    truth: Truth,
    train_rows: int,
    *,
    positives: int | None = 1,
    seed: int = 1200,
    notes: Iterable[str] = (),
) -> Dataset:
    """Cole et al.'s protocol on fully labelled rows, of which the first `train_rows` are the official training set.

    `positives` of each training row are kept (None: all) by `labels.simulate`, a fifth of the training rows become
    validation by `labels.split`, and of the other rows, the test set, nothing is known.
    """
    if not train_rows:
        raise InputError(f"{name}: no image is for training.")
    full = truth.open()
    drawn = simulate(full.subset(np.arange(train_rows)), positives, seed=seed)
    rows, columns = drawn.positives()
    entries = Entries.from_coordinates(
        rows, columns, np.ones(len(rows)), num_rows=len(full), num_classes=full.num_classes, default=0
    )
    train, validation = split(train_rows, seed=seed)
    row_names = np.array(list(names), dtype=np.str_)
    labels = Labels.from_entries(entries, full.classes, ids=row_names, origin=drawn.origin)
    return Dataset(
        name, store, row_names, labels, truth, train, validation, np.arange(train_rows, len(full)), tuple(notes)
    )


def need_file(path: Path, archive: str) -> Path:
    """The path of an official file; where it is missing, the error says what holds it."""
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file; it comes in {archive}, unpacked with its folders as they are."
        )
    return path


def need_images(folder: Path, names: Sequence[str], archive: str) -> list[Path]:
    """The paths of images in a folder, of which each is there."""
    there = {directory: set(_listed(folder / directory)) for directory in {os.path.dirname(name) for name in names}}
    missing = [name for name in names if os.path.basename(name) not in there[os.path.dirname(name)]]
    if missing:
        raise InputError(
            f"{folder / missing[0]}: there is no such image ({len(missing)} of {len(names)} are missing); "
            f"the images come in {archive}, unpacked with their folders as they are."
        )
    return [folder / name for name in names]


def need_distinct(path: Path, values: Iterable[Hashable], what: str, before: Iterable[Hashable] = ()) -> None:
    """Of the values a file lists no two are equal, and none is in the list before it; an error calls one `what`."""
    earlier, seen = set(before), set()
    for value in values:
        if value in earlier:
            raise InputError(f"{path}: the {what} {value!r} is in the list before it, too: it must be in one of them.")
        if value in seen:
            raise InputError(f"{path}: the {what} {value!r} is there twice: it must be there once.")
        seen.add(value)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


@dataclass(frozen=True)
class PaperCounts:
    """What the papers' tables say of a data set."""

    classes: int
    train: int
    validation: int
    test: int
    positives: str
    """Positives a training image, with the decimals that are printed."""
    fewest: int
    most: int
    where: str


def count_mismatches(dataset: Dataset, paper: PaperCounts) -> list[str]:
    """In words, every count that is not the papers'. Positives are counted over train and validation rows."""
    found: list[tuple[str, Any, Any]] = [
        ("classes", len(dataset.classes), paper.classes),
        ("training images", len(dataset.train), paper.train),
        ("validation images", len(dataset.validation), paper.validation),
        ("test images", len(dataset.test), paper.test),
    ]
    if dataset.truth is not None:
        rows = np.concatenate([dataset.train, dataset.validation])
        per_row = dataset.truth.open().subset(rows).entries().per_row(1)
        decimals = len(paper.positives.partition(".")[2])
        found += [
            ("positives a training image", f"{per_row.mean():.{decimals}f}", paper.positives),
            ("fewest positives of a training image", int(per_row.min()), paper.fewest),
            ("most positives of a training image", int(per_row.max()), paper.most),
        ]
    return [
        f"{what}: {ours} here, {theirs} in the papers ({paper.where})" for what, ours, theirs in found if ours != theirs
    ]


def with_count_notes(dataset: Dataset, mismatches: list[str], strict: bool) -> Dataset:
    """The data set with the mismatches among its notes; under `strict` they are an error."""
    if mismatches and strict:
        raise InputError(f"{dataset.name}: the counts are not those of the papers. {'; '.join(mismatches)}.")
    return replace(dataset, notes=(*dataset.notes, *mismatches))
