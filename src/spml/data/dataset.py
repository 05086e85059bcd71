"""What every adapter hands over: rows, what is known of them, and the truth where it exists."""

from __future__ import annotations

import threading
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from spml.data.features import FeatureStore
from spml.data.images import FilePath, ImageStore, OnBadImage, Policy, Source
from spml.errors import InputError
from spml.labels import Labels, split
from spml.labels.inputs import row_indices

Int64 = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]
Float32 = npt.NDArray[np.float32]

PHOTO_SIZE = 320
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""How people name the parts of a split (lower case)."""

_closed = 0
_lock = threading.Lock()


class ImageOptions(TypedDict, total=False):
    """What an adapter passes on to `ImageStore`, beside the size."""

    policy: Policy
    cache_limit: int | None
    cache_path: FilePath | None
    on_bad_image: OnBadImage
    max_pixels: int
    workers: int | None


@contextmanager
def truth_closed() -> Iterator[None]:
    """While this lasts no `Truth` opens, in any thread of the process."""
    global _closed
    with _lock:
        _closed += 1
    try:
        yield
    finally:
        with _lock:
            _closed -= 1


class Truth:
    """The full labels of all rows, for evaluation and simulation only: inside `truth_closed` they cannot be read."""

    __slots__ = ("_labels", "_largest_share")

    def __init__(self, labels: Labels, largest_share: Float32 | None = None) -> None:
        if largest_share is not None and largest_share.shape != labels.shape:
            raise InputError(f"largest_share has shape {largest_share.shape}, the labels {labels.shape}.")
        self._labels = labels
        self._largest_share = largest_share

    def open(self) -> Labels:
        """The full labels; rows or entries that nobody knows are 0."""
        self._check_open()
        return self._labels

    def largest_share(self) -> Float32 | None:
        """(N, L) share of the image that the largest box of the class covers, 0 where absent; None: not recorded."""
        self._check_open()
        return self._largest_share

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        return f"Truth({len(self)} rows × {self._labels.num_classes} classes)"

    @staticmethod
    def _check_open() -> None:
        if _closed:
            raise RuntimeError("the true labels are closed during training: open them before or after it.")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """N rows of images or features, what may be learned from, and which rows are for what."""

    name: str
    store: ImageStore | FeatureStore
    names: Texts
    """(N,) one name a row, no two equal: a path relative to the data, or an id."""
    labels: Labels
    """What may be learned from. Rows outside `train` may have nothing known."""
    truth: Truth | None
    train: Int64
    validation: Int64
    test: Int64
    notes: tuple[str, ...] = ()
    """What a user should know of how the data was read, a sentence each."""

    def __post_init__(self) -> None:
        rows = len(self.store)
        for what, length in (("names", len(self.names)), ("labels", len(self.labels))):
            if length != rows:
                raise InputError(f"{self.name}: there are {length} {what} for {rows} rows.")
        if self.truth is not None and self.truth._labels.shape != self.labels.shape:
            raise InputError(f"{self.name}: the truth is {self.truth!r}, the labels are {self.labels!r}.")
        for what in ("train", "validation", "test"):
            index = row_indices(getattr(self, what), rows)
            index.flags.writeable = False
            object.__setattr__(self, what, index)
        used = np.concatenate([self.train, self.validation, self.test])
        if len(np.unique(used)) != len(used):
            raise InputError(f"{self.name}: a row is in two of train, validation and test, or twice in one.")
        for text in (*self.names.tolist(), *self.classes):
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise InputError(f"{self.name}: the name {text!r} is not valid UTF-8; rename it.") from None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels.classes

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self)} rows, {len(self.classes)} classes; {len(self.train)} train, "
            f"{len(self.validation)} validation, {len(self.test)} test)"
        )


def carve(labels: Labels, rows: Int64, *, share: float = 0.2, seed: int = 1200) -> tuple[Int64, Int64]:
    """Some of the labelled rows for validation: (train, validation), both ascending.

    Rows without a label stay in train, and so does one row of every class: what is not trained on is not learned.
    """
    positive_rows, columns = labels.positives()
    inside = np.isin(positive_rows, rows)
    positive_rows, columns = positive_rows[inside], columns[inside]
    labelled = np.unique(positive_rows)
    kept, held_out = (labelled[part] for part in split(len(labelled), validation_share=share, seed=seed))
    trained = np.isin(positive_rows, kept)
    orphans = np.setdiff1d(columns, columns[trained])
    back = [positive_rows[columns == column][0] for column in orphans]
    validation = np.setdiff1d(held_out, back)
    return np.setdiff1d(rows, validation), validation


def open_store(
    sources: Sequence[Source], features: FilePath | None, size: int, **options: Unpack[ImageOptions]
) -> ImageStore | FeatureStore:
    """The images, or in their place the rows of a feature matrix in the same order."""
    if features is None:
        return ImageStore(sources, size, **options)
    store = FeatureStore(features)
    if len(store) != len(sources):
        raise InputError(f"{features}: it has {len(store)} rows, the data {len(sources)}.")
    return store


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, without the blanks around them."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: this text cannot be read ({error}).") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def look_alikes(classes: Iterable[str]) -> list[str]:
    """A note on every group of class names that differ only in case, blanks, hyphens or the form of accents."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in classes:
        plain = unicodedata.normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ")
        groups[" ".join(plain.split())].append(name)
    return [
        f"the classes {', '.join(map(repr, names))} differ only in how they are written and are kept apart: "
        "if they mean the same, name them alike."
        for names in groups.values()
        if len(names) > 1
    ]


def class_notes(labels: Labels) -> list[str]:
    """Notes on classes with one row, on look-alikes and on rows without a label."""
    positives = labels.counts().positives
    lonely = [name for name, count in zip(labels.classes, positives, strict=True) if count == 1]
    notes = look_alikes(labels.classes)
    if lonely:
        named = ", ".join(map(repr, lonely[:5])) + (", …" if len(lonely) > 5 else "")
        notes.append(f"{len(lonely)} of {len(labels.classes)} classes have only one row: {named}.")
    unlabelled = len(labels) - len(np.unique(labels.positives()[0]))
    if unlabelled:
        notes.append(f"{unlabelled} of {len(labels)} rows have no label; they are kept, with nothing known.")
    return notes


def from_known(
    name: str,
    store: ImageStore | FeatureStore,
    labels: Labels,
    splits: Sequence[str],
    notes: Iterable[str],
    *,
    validation_share: float,
    seed: int,
) -> Dataset:
    """A user's own rows: labels with ids, and of each row whether it is for train, validation or test.

    Where no row is for validation, some of the training rows become it (`carve`).
    """
    assert labels.ids is not None
    parts: dict[str, Int64] = {
        part: np.flatnonzero(np.array(splits) == part) for part in ("train", "validation", "test")
    }
    if not len(parts["train"]):
        raise InputError(f"{name}: no row is for training.")
    if not len(parts["validation"]):
        parts["train"], parts["validation"] = carve(labels, parts["train"], share=validation_share, seed=seed)
    return Dataset(name, store, labels.ids, labels, None, **parts, notes=(*notes, *class_notes(labels)))
