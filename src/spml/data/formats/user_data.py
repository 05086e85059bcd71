"""Common parts of the formats for your own data: a validation split, and notes on the classes."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Unpack

import numpy as np

from spml.data.dataset import PARTS, PHOTO_SIZE, Dataset, ImageOptions, Int64, Store
from spml.data.stores.image_sources import Source
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels, split

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Usual names of the parts of a split (lower case)."""


VALIDATION_SHARE = 0.2
"""Of images. Features and texts need no validation rows: what is chosen there is chosen by cross-validation."""

_LONGEST_NAME = 10_000
_MISSING = {"nan", "na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "?", "-1", "unknown", "missing"}
"""How other programs write empty cells (lower case)."""

_QUOTES = " \"'\u2018\u2019\u201c\u201d"
_WHOLE = re.compile(r"\+?\d+(\.0*)?")

ANNOTATED = "annotated classes are positive; all others are unknown."


class UserOptions(ImageOptions, total=False):
    """Options of all formats for your own images, besides those of `ImageStore`."""

    size: int
    """Side of the decoded images in pixels, by default 320."""
    validation_share: float | None
    """Share of the labelled rows that become validation if the data has no split, by default 0.2."""
    seed: int
    """Of that choice, by default 1200."""


def from_images(
    name: str,
    images: Iterable[Source],
    labels: Labels,
    notes: Iterable[str],
    splits: Sequence[str] | None = None,
    *,
    size: int = PHOTO_SIZE,
    validation_share: float | None = None,
    seed: int = 1200,
    **options: Unpack[ImageOptions],
) -> Dataset:
    """Return a data set of images, see `from_known`."""
    store = ImageStore(images, size, **options)
    return from_known(name, store, labels, notes, splits, validation_share=validation_share, seed=seed)


def from_known(
    name: str,
    store: Store,
    labels: Labels,
    notes: Iterable[str],
    splits: Sequence[str] | None = None,
    *,
    validation_share: float | None,
    seed: int,
) -> Dataset:
    """Return a data set of labels with ids and a split per row: train, validation or test; by default train.

    If no row is for validation, `hold_out` chooses some of the training rows: by default a fifth of images, and none of
    features and texts.
    """
    assert labels.ids is not None
    check_names(name, "class", labels.classes)
    train, validation, test = (np.flatnonzero(np.array(splits or ["train"] * len(labels)) == part) for part in PARTS)
    if not len(train):
        raise InputError(f"{name}: no training rows.")
    rows, columns = labels.positives()
    trained = np.isin(rows, train)
    if not trained.any():
        raise InputError(f"{name}: no training row has a label.")
    if absent := [labels.classes[column] for column in np.setdiff1d(columns, columns[trained]).tolist()]:
        notes = [*notes, f"{_some_of(absent, labels)} no training row and cannot be learned: {_first_names(absent)}."]
    default = VALIDATION_SHARE if isinstance(store, ImageStore) else 0.0
    share = default if validation_share is None else validation_share
    if not len(validation) and share:
        train, validation = hold_out(labels, train, share=share, seed=seed)
    return Dataset(name, store, labels.ids, labels, None, train, validation, test, (*notes, *class_notes(labels)))


def hold_out(labels: Labels, rows: Int64, *, share: float = 0.2, seed: int = 1200) -> tuple[Int64, Int64]:
    """Hold out some of the labelled rows for validation: (train, validation), both ascending.

    Rows without a label stay in train, and so does at least one row of every class, so that it can be learned.
    """
    positive_rows, columns = labels.positives()
    inside = np.isin(positive_rows, rows)
    positive_rows, columns = positive_rows[inside], columns[inside]
    labelled = np.flatnonzero(np.bincount(positive_rows))
    kept, held_out = (labelled[part] for part in split(len(labelled), validation_share=share, seed=seed))
    trained = np.isin(positive_rows, kept)
    total, remaining = (np.bincount(part, minlength=labels.num_classes) for part in (columns, columns[trained]))
    returned = [positive_rows[columns == column][0] for column in np.flatnonzero((total > 0) & (remaining == 0))]
    use = np.zeros(len(labels), np.int8)  # np.setdiff1d needs half a second for a million rows
    use[rows] = 1
    use[held_out] = 2
    use[returned] = 1
    return np.flatnonzero(use == 1), np.flatnonzero(use == 2)


def check_names(source: object, kind: str, names: Iterable[str]) -> None:
    """Raise `InputError` for a name that is too long or invisible, or has control characters.

    A quotation mark may be missing.
    """
    for name in names:
        if len(name) > _LONGEST_NAME:
            raise InputError(
                f"{source}: the {kind} {name!r:.60}… has {len(name):,} characters, more than {_LONGEST_NAME:,}: is a "
                "quotation mark missing?"
            )
        if not name.isprintable() and any(unicodedata.category(character) == "Cc" for character in name):
            shown = f"{name!r:.60}"
            if "\n" in name or "\r" in name:
                raise InputError(f"{source}: the {kind} {shown} contains a line break: is a quotation mark missing?")
            raise InputError(f"{source}: the {kind} {shown} contains a control character: remove it.")
        if name and all(unicodedata.category(character) in ("Cf", "Zs", "Zl", "Zp") for character in name):
            raise InputError(
                f"{source}: the {kind} {name!a:.60} has no visible character: rename it, or leave it empty."
            )


def similar_classes(classes: Iterable[str]) -> list[str]:
    """Notes on class names that differ only in spelling.

    That is in case, blanks, hyphens, quotation marks, invisible characters, the encoding of accents, or as numbers.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in classes:
        plain = unicodedata.normalize("NFKC", name).casefold()
        if not plain.isprintable():
            plain = "".join(character for character in plain if unicodedata.category(character) != "Cf")
        plain = plain.strip(_QUOTES)
        if _WHOLE.fullmatch(plain):
            plain = plain.partition(".")[0].lstrip("+0") or "0"
        elif not plain.lstrip("-").isdecimal():
            plain = plain.replace("_", " ").replace("-", " ")
        groups[" ".join(plain.split())].append(name)
    return [
        f"the classes {', '.join(map(ascii, names))} differ only in spelling and are separate classes: "
        "if they mean the same, use one name."
        for names in groups.values()
        if len(names) > 1
    ]


def class_notes(labels: Labels) -> list[str]:
    """Notes on classes with one row, on look-alikes and on rows without a label."""
    positives = labels.counts().positives
    lonely = [name for name, count in zip(labels.classes, positives, strict=True) if count == 1]
    notes = similar_classes(labels.classes)
    if doubtful := [name for name in labels.classes if name.casefold() in _MISSING]:
        named = ", ".join(map(repr, doubtful))
        notes.append(f"classes named {named}: if they stand for missing labels, leave these cells empty.")
    if len(labels.classes) == 1:
        notes.append(f"there is only one class, {labels.classes[0]!r}: no other label can be recovered.")
    if lonely:
        notes.append(f"{_some_of(lonely, labels)} only one row: {_first_names(lonely)}.")
    if empty := [name for name, count in zip(labels.classes, positives, strict=True) if count == 0]:
        notes.append(f"{_some_of(empty, labels)} no row and cannot be learned: {_first_names(empty)}.")
    unlabelled = np.count_nonzero(np.bincount(labels.positives()[0], minlength=len(labels)) == 0)
    if unlabelled:
        notes.append(f"{unlabelled} of {len(labels)} rows have no label; they are kept as unlabelled rows.")
    return notes


def _some_of(names: Sequence[str], labels: Labels) -> str:
    return f"{len(names)} of {len(labels.classes)} classes have"


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
