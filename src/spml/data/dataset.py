"""The one data type: rows of images, features or texts, their known labels, and the truth where it exists."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from spml.data.stores.decode import FilePath, Policy
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore, OnBadImage
from spml.data.stores.texts import TextStore
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.inputs import row_indices

Int64 = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]
Float32 = npt.NDArray[np.float32]
Store: TypeAlias = ImageStore | FeatureStore | TextStore

PHOTO_SIZE = 320
PARTS = ("train", "validation", "test")
TABLES = (".csv", ".tsv", ".parquet", ".pq")
"""Suffixes of tables (lower case)."""

_closed = 0
_lock = threading.Lock()


class ImageOptions(TypedDict, total=False):
    """Options that every format of images passes to `ImageStore`, besides the size."""

    policy: Policy
    cache_limit: int | None
    cache_path: FilePath | None
    on_bad_image: OnBadImage
    max_pixels: int
    workers: int | None


class ColumnOptions(TypedDict, total=False):
    """The columns of a table; see `from_table`."""

    image_column: str | None
    text_column: str | None
    label_column: str | None
    class_columns: Sequence[str] | None
    id_column: str | None
    split_column: str | None
    separator: str | None


@contextmanager
def truth_closed() -> Iterator[None]:
    """Within this context no `Truth` opens, in any thread of the process."""
    global _closed
    with _lock:
        _closed += 1
    try:
        yield
    finally:
        with _lock:
            _closed -= 1


class Truth:
    """The full labels of all rows, for evaluation and simulation only.

    Inside `truth_closed`, which surrounds every training, neither `open` nor `largest_share` gives anything.

    Parameters
    ----------
    labels : Labels
        +1 present, -1 absent, 0 where the label is unknown.
    largest_share : array of shape (N, L), optional
        Share of the image that the largest box of the class covers; 0 where the class is absent.
    """

    __slots__ = ("_labels", "_largest_share")

    def __init__(self, labels: Labels, largest_share: Float32 | None = None) -> None:
        if largest_share is not None and largest_share.shape != labels.shape:
            raise InputError(f"largest_share has shape {largest_share.shape}, the labels {labels.shape}.")
        self._labels = labels
        self._largest_share = largest_share

    def open(self) -> Labels:
        """Return the full labels; unknown entries are 0.

        Raises
        ------
        RuntimeError
            While a training runs.
        """
        self._check_open()
        return self._labels

    def largest_share(self) -> Float32 | None:
        """Return (N, L) shares of the image that the largest box of each class covers; None if not recorded."""
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


class Answers(NamedTuple):
    """Where the labels of a data set come from, if people have answered questions about them."""

    given: Labels
    """The labels that came with the data."""
    decided: Labels
    """The answers: +1 yes, -1 no. They take precedence over given labels."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """N rows of images, features or texts, their known labels, and a split into train, validation and test.

    `open_data` reads one from any supported format.

    Parameters
    ----------
    name : str
    store : ImageStore, FeatureStore or TextStore
        The images, features or texts, one per row.
    names : array of N str
        A unique name per row: a path relative to the data, or an id.
    labels : Labels
        The labels to learn from. Rows outside `train` may have none.
    truth : Truth or None
        The full labels, where they exist.
    train, validation, test : arrays of int64
        Row numbers; no row is in two of them.
    notes : tuple of str
        Sentences about how the data was read, for the user.
    source : dict
        How to open the data again: `open_data(source["path"], **source["options"])`, and its format, `kind`. Empty if
        it was built in memory.
    answers : Answers, optional
        If people have answered questions: the given labels and the answers. `labels` then combines both.

    Examples
    --------
    >>> from spml.data import open_data
    >>> data = open_data("scenes", train=20, test=10)
    >>> data
    Dataset('scenes': 30 rows, 10 classes; 16 train, 4 validation, 10 test)
    >>> data.full_labels(data.test).is_full
    True
    >>> data.source
    {'path': 'scenes', 'kind': 'scenes', 'options': {'train': 20, 'test': 10}}
    """

    name: str
    store: Store
    names: Texts
    labels: Labels
    truth: Truth | None
    train: Int64
    validation: Int64
    test: Int64
    notes: tuple[str, ...] = ()
    source: dict[str, Any] = field(default_factory=dict)
    answers: Answers | None = None

    def __post_init__(self) -> None:
        rows = len(self.store)
        for name, length in (("names", len(self.names)), ("labels", len(self.labels))):
            if length != rows:
                raise InputError(f"{self.name}: there are {length} {name} for {rows} rows.")
        if self.truth is not None and self.truth._labels.shape != self.labels.shape:
            raise InputError(f"{self.name}: the truth is {self.truth!r}, the labels are {self.labels!r}.")
        for name in PARTS:
            object.__setattr__(self, name, row_indices(getattr(self, name), rows))
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
        """The names of the L classes."""
        return self.labels.classes

    @property
    def tensor_store(self) -> ImageStore | FeatureStore:
        """The store, if its batches are tensors: images or features.

        Raises
        ------
        InputError
            For texts, which must be encoded first.
        """
        if isinstance(self.store, TextStore):
            raise InputError(f"{self.name}: the rows are texts; images or features are needed here.")
        return self.store

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self)} rows, {len(self.classes)} classes; {len(self.train)} train, "
            f"{len(self.validation)} validation, {len(self.test)} test)"
        )

    @cached_property
    def fully_labelled(self) -> npt.NDArray[np.bool_]:
        """(N,) whether all labels of the row are known. May be read during training: it reveals no label."""
        known = self.labels if self.truth is None else self.truth._labels
        complete: npt.NDArray[np.bool_] = known.entries().per_row(0) == 0
        return complete

    def full_labels(self, rows: Any) -> Labels:
        """Return all labels of the given rows, in that order.

        Parameters
        ----------
        rows : array of int
            Row numbers.

        Returns
        -------
        Labels
            Without unknown entries.

        Raises
        ------
        InputError
            If a label of one of the rows is unknown.
        RuntimeError
            While a training runs.
        """
        index = row_indices(rows, len(self))
        unknown = index[~self.fully_labelled[index]]
        if len(unknown):
            raise InputError(
                f"{self.name}: {len(unknown)} of these {len(index)} rows are not fully labelled, for example row "
                f"{unknown[0]} ({self.names[unknown[0]]})."
            )
        return (self.labels if self.truth is None else self.truth.open()).subset(index)

    def with_answers(self, decided: Labels) -> Dataset:
        """Return the data set with answers of people, which take precedence over given labels.

        Parameters
        ----------
        decided : Labels
            One row per row of the data: +1 yes, -1 no, 0 not answered.

        Returns
        -------
        Dataset

        Examples
        --------
        >>> from spml.data import open_data
        >>> data = open_data("scenes", train=20, test=10)
        >>> decided = Labels.from_names([None] * 29 + ["nine"], data.classes)
        >>> data.with_answers(decided).labels.dense([29]).tolist()
        [[0, 0, 0, 0, 0, 0, 0, 0, 0, 1]]
        """
        given = self.labels if self.answers is None else self.answers.given
        return replace(self, labels=given.updated(decided), answers=Answers(given, decided))

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that differ if anything a training depends on differs.

        They cover names, labels, truth, split and inputs: the bytes of features, texts and images in memory, sizes and
        checksums of image files (see `ImageSources.fingerprint`). Copies of the data in other folders agree.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256("\0".join([*self.names.tolist(), self.labels.fingerprint()]).encode())
        if self.truth is not None:
            digest.update(self.truth._labels.fingerprint().encode())
            if self.truth._largest_share is not None:
                digest.update(self.truth._largest_share.tobytes())
        for part in (self.train, self.validation, self.test):
            digest.update(repr(len(part)).encode() + part.tobytes())
        digest.update(self.store.fingerprint().encode())
        return digest.hexdigest()[:16]


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file, without blank ones and without surrounding blanks."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the text file cannot be read ({error}).") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
