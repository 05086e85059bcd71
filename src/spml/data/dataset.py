"""What every adapter hands over: rows, what is known of them, and the truth where it exists."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from spml.data.stores.features import FeatureStore
from spml.data.stores.images import FilePath, ImageStore, OnBadImage, Policy, Source
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.inputs import row_indices

Int64 = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]
Float32 = npt.NDArray[np.float32]

PHOTO_SIZE = 320

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
            object.__setattr__(self, what, row_indices(getattr(self, what), rows))
        used = np.concatenate([self.train, self.validation, self.test])
        if len(used) and np.bincount(used).max() > 1:
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
