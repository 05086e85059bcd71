"""The table of known labels."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from spml.atomic import atomic_path
from spml.errors import InputError
from spml.labels.entries import Entries, Int8, Int32, Int64, row_blocks
from spml.labels.inputs import (
    CODINGS,
    as_array,
    as_matrix,
    check_classes,
    check_ids,
    is_missing,
    is_name_list,
    name_coordinates,
    name_lists,
    row_indices,
    signed_block,
    unknown_name,
)

Ids = Iterable[str | int] | None

_FORMAT = "spml labels 1"
_UNREADABLE = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, OSError, EOFError),
    *(zipfile.BadZipFile, zlib.error),
)


class LabelCounts(NamedTuple):
    """Per class, how many rows are known to have it, known not to, and unknown. Each (L,) int64."""

    positives: Int64
    negatives: Int64
    unknowns: Int64


class Labels:
    """What is known of N rows and L classes: +1 positive, -1 negative (verified), 0 unknown. Immutable.

    Made by one of the `from_…` constructors. Where a row's only knowledge is one positive, or nothing, the
    table is one class index (int32) a row, however many classes there are; otherwise it is sparse rows
    (`Entries`) that leave out the more common of unknown and negative. Equal tables are stored equally.
    """

    __slots__ = ("_classes", "_ids", "_origin", "_store")

    def __init__(
        self,
        store: Int32 | Entries,
        classes: Iterable[str],
        *,
        ids: Ids = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        """Take over a checked store; users call a `from_…` constructor."""
        if isinstance(store, Entries):
            store = store.compact()
            single = store.as_single()
            store = store if single is None else single
        for array in (store.start, store.column, store.value) if isinstance(store, Entries) else (store,):
            array.flags.writeable = False
        self._store = store
        self._classes = check_classes(classes)
        self._ids = check_ids(ids, len(self))
        if self._ids is not None:
            self._ids.flags.writeable = False
        self._origin = json.dumps(origin or {})

    # Making one

    @classmethod
    def from_entries(
        cls,
        entries: Entries,
        classes: Iterable[str],
        *,
        ids: Ids = None,
        origin: dict[str, Any] | None = None,
    ) -> Labels:
        """From sparse rows."""
        names = check_classes(classes)
        if entries.num_classes != len(names):
            raise InputError(f"there are {len(names)} class names for entries of {entries.num_classes} classes.")
        return cls(entries, names, ids=ids, origin=origin or {"made_by": "from_entries"})

    @classmethod
    def from_indices(cls, indices: Any, classes: Iterable[str], ids: Ids = None) -> Labels:
        """From the class index of each row's one positive, (N,) integers; -1: no label."""
        names = check_classes(classes)
        array = as_array(indices)
        if array.ndim != 1:
            raise InputError(f"class indices are one a row, not an array of shape {array.shape}.")
        if array.size and array.dtype.kind not in "iu":
            raise InputError(f"class indices are integers, not {array.dtype}.")
        outside = (array < -1) | (array >= len(names))
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise InputError(
                f"row {row}: class index {array[row]} is out of range: {len(names)} classes take 0 to "
                f"{len(names) - 1}, or -1 for no label."
            )
        return cls(array.astype(np.int32), names, ids=ids, origin={"made_by": "from_indices"})

    @classmethod
    def from_names(cls, names: Iterable[str | None], classes: Iterable[str] | None = None, ids: Ids = None) -> Labels:
        """From the name of each row's one positive; None, "" or NaN: no label.

        Without `classes`, the classes are the names that occur, sorted.
        """
        if isinstance(names, str):
            raise InputError(f"names is the one text {names!r}: give one name a row.")
        values = list(names)
        if classes is None:
            classes = sorted({name for name in values if isinstance(name, str) and name})
        known = check_classes(classes)
        index = {name: i for i, name in enumerate(known)}
        single = np.full(len(values), -1, np.int32)
        for row, name in enumerate(values):
            if isinstance(name, str) and name in index:
                single[row] = index[name]
            elif not is_missing(name):
                raise unknown_name(row, name, known)
        return cls(single, known, ids=ids, origin={"made_by": "from_names"})

    @classmethod
    def from_lists(
        cls,
        lists: Iterable[Iterable[str] | None],
        classes: Iterable[str] | None = None,
        ids: Ids = None,
        rest: Literal["unknown", "negative"] = "unknown",
        negatives: Iterable[Iterable[str] | None] | None = None,
    ) -> Labels:
        """From the names of each row's positives and, optionally, of each row's known negatives.

        `rest` is what the classes are that a row does not name. Without `classes`, they are the names that
        occur, sorted.
        """
        if rest not in ("unknown", "negative"):
            raise InputError(f"rest is {rest!r}: it must be 'unknown' or 'negative'.")
        has = name_lists(lists, "lists")
        lacks = name_lists(negatives, "negatives") if negatives is not None else [[] for _ in has]
        if len(lacks) != len(has):
            raise InputError(f"negatives has {len(lacks)} rows, lists {len(has)}: they must be the same.")
        if classes is None:
            named = (name for names in (*has, *lacks) for name in names)
            classes = sorted({name for name in named if isinstance(name, str) and name})
        known = check_classes(classes)
        index = {name: i for i, name in enumerate(known)}
        for row, (positive, negative) in enumerate(zip(has, lacks, strict=True)):
            for name in negative:
                if name in positive:
                    raise InputError(f"row {row}: label {name!r} is both positive and negative.")
        rows, columns = name_coordinates(has, index, known)
        negative_rows, negative_columns = name_coordinates(lacks, index, known)
        entries = Entries.from_coordinates(
            np.concatenate([rows, negative_rows]),
            np.concatenate([columns, negative_columns]),
            np.repeat(np.array([1, -1], np.int8), [len(rows), len(negative_rows)]),
            num_rows=len(has),
            num_classes=len(known),
            default=-1 if rest == "negative" else 0,
        )
        return cls(entries, known, ids=ids, origin={"made_by": "from_lists", "rest": rest})

    @classmethod
    def from_matrix(
        cls,
        matrix: Any,
        classes: Iterable[str] | None = None,
        ids: Ids = None,
        coding: Literal["signed", "full", "positive"] = "signed",
    ) -> Labels:
        """From an (N, L) matrix. Without `classes`, the columns are named "0", "1", …

        `signed`: +1 positive, -1 negative, 0 unknown. `full`: 1 positive, 0 negative, NaN unknown.
        `positive`: 1 positive, 0 unknown.
        """
        if coding not in CODINGS:
            raise InputError(f"coding is {coding!r}: it must be one of {', '.join(map(repr, CODINGS))}.")
        array = as_matrix(matrix)
        num_rows, num_classes = array.shape
        names = check_classes(map(str, range(num_classes)) if classes is None else classes)
        if len(names) != num_classes:
            raise InputError(f"there are {len(names)} class names for a matrix of {num_classes} columns.")

        def blocks() -> Iterator[Int8]:
            for rows in row_blocks(num_rows, num_classes):
                yield signed_block(array[rows], coding, rows.start)

        negatives_over_unknowns = sum(
            int(np.count_nonzero(block == -1)) - int(np.count_nonzero(block == 0)) for block in blocks()
        )
        default = -1 if negatives_over_unknowns > 0 else 0
        entries = Entries.from_blocks(blocks(), num_classes=num_classes, default=default)
        return cls(entries, names, ids=ids, origin={"made_by": "from_matrix", "coding": coding})

    @classmethod
    def from_any(cls, values: Any, classes: Iterable[str] | None = None, ids: Ids = None) -> Labels:
        """From whichever of these it is; what is none of them is refused.

        - one text a row: `from_names`;
        - a list of texts a row: `from_lists`, the rest unknown;
        - one integer a row: `from_indices`, and `classes` must be given;
        - a matrix with a -1: `from_matrix`, coding "signed";
        - a matrix with a NaN: coding "full";
        - a matrix of 0 and 1 with exactly one 1 in every row: coding "positive", so 0 is unknown;
        - any other matrix of 0 and 1: coding "full", so 0 is a verified negative.

        The last two differ in what 0 means; name the coding in `from_matrix` where the rule is not yours.
        """
        if isinstance(values, Labels):
            if classes is not None or ids is not None:
                raise InputError("the values are Labels already: classes and ids cannot be given again.")
            return values
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise InputError(f"labels cannot be read from a {type(values).__name__}: give one entry a row.")
        # A list is looked at before numpy turns what stands beside a text into text.
        array = as_array(values) if hasattr(values, "__array__") else None
        if array is None or array.dtype.kind in "OU":
            rows = list(values) if array is None else array.tolist()
            said = [row for row in rows if not is_missing(row)]
            if all(isinstance(row, str) for row in said):
                return cls.from_names(rows, classes, ids)
            if all(is_name_list(row) for row in said):
                return cls.from_lists(rows, classes, ids)
            if any(isinstance(row, str) for row in said):
                row = next(i for i, value in enumerate(rows) if not isinstance(value, str) and not is_missing(value))
                raise InputError(f"row {row} is {rows[row]!r} where others are texts: use Labels.from_lists.")
            array = as_array(rows)
        if array.ndim == 1 and array.dtype.kind in "iu":
            if classes is None:
                raise InputError("one integer a row is a class index: pass classes, here or to Labels.from_indices.")
            return cls.from_indices(array, classes, ids)
        if array.ndim == 2:
            array = as_matrix(array)
            return cls.from_matrix(array, classes, ids, coding=_guess_coding(array))
        raise InputError(
            f"labels cannot be guessed from an array of shape {array.shape} holding {array.dtype}: use "
            "Labels.from_names, from_lists, from_indices or from_matrix."
        )

    # Asking it

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the L classes, in column order."""
        return self._classes

    @property
    def ids(self) -> npt.NDArray[np.str_] | None:
        """The rows' own names, where they have any; no two are equal."""
        return self._ids

    @property
    def origin(self) -> dict[str, Any]:
        """How the table was made (JSON values; a copy)."""
        origin: dict[str, Any] = json.loads(self._origin)
        return origin

    def __len__(self) -> int:
        return len(self._store)

    @property
    def num_classes(self) -> int:
        return len(self._classes)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.num_classes

    @property
    def nbytes(self) -> int:
        """Bytes held for the labels (without class names and ids)."""
        return self._store.nbytes

    @property
    def is_single_positive(self) -> bool:
        """Every row has at most one known positive, and nothing else is known."""
        return not isinstance(self._store, Entries)

    @property
    def is_full(self) -> bool:
        """Nothing is unknown."""
        return not self.entries().per_class(0).any()

    def entries(self) -> Entries:
        """The table as sparse rows."""
        if isinstance(self._store, Entries):
            return self._store
        return Entries.from_single(self._store, self.num_classes)

    def batch(self, rows: Any, device: torch.device | str | None = None) -> torch.Tensor:
        """The given rows as an int8 tensor (B, L) of +1, -1 and 0; only what is listed goes to the device."""
        part = self._take(row_indices(rows, len(self)))
        out = torch.full((len(part), self.num_classes), part.default, dtype=torch.int8, device=device)
        out.view(-1)[torch.from_numpy(part.flat()).to(out.device)] = torch.from_numpy(part.value).to(out.device)
        return out

    def dense(self, rows: Any = None) -> Int8:
        """The given rows, or all, as an int8 array (B, L) of +1, -1 and 0."""
        part = self.entries() if rows is None else self._take(row_indices(rows, len(self)))
        out = np.full((len(part), self.num_classes), part.default, np.int8)
        out.reshape(-1)[part.flat()] = part.value
        return out

    def positives(self) -> tuple[Int64, Int64]:
        """(row, class) of every known positive, by row, then class."""
        entries = self.entries()
        positive = entries.value == 1
        return entries.rows[positive], entries.column[positive].astype(np.int64)

    def single(self) -> Int32:
        """The class index of each row's one positive, (N,) int32; -1 where there is none."""
        if not isinstance(self._store, Entries):
            return self._store.copy()
        more = np.flatnonzero(self._store.per_row(1) + self._store.per_row(-1) > 1)
        row = int(more[0]) if len(more) else int(np.flatnonzero(self._store.per_row(-1))[0])
        raise InputError(
            f"row {row} has {self._store.per_row(1)[row]} known positives and "
            f"{self._store.per_row(-1)[row]} known negatives: these are not single positive labels."
        )

    def refuse_other_classes(self, other: Labels, what: str) -> None:
        """Columns of two tables mean the same only where their classes are the same, in the same order."""
        if other.classes == self.classes:
            return
        if len(other.classes) != len(self.classes):
            raise InputError(f"{what} has {len(other.classes)} classes, the labels to learn from {len(self.classes)}.")
        pairs = zip(self.classes, other.classes, strict=True)
        column, (mine, others) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise InputError(
            f"{what} has other classes than the labels to learn from, or another order: column {column} is {others!r}, "
            f"there {mine!r}."
        )

    def counts(self) -> LabelCounts:
        """Known positives, known negatives and unknowns of every class."""
        entries = self.entries()
        return LabelCounts(entries.per_class(1), entries.per_class(-1), entries.per_class(0))

    def subset(self, rows: Any) -> Labels:
        """A table of the given rows, in the given order. With ids no row can be taken twice."""
        index = row_indices(rows, len(self))
        store = self._store.take(index) if isinstance(self._store, Entries) else self._store[index]
        before = self.origin
        of = before.get("subset", {}).get("of", len(self))
        origin = {**before, "subset": {"rows": len(index), "of": of}}
        ids = None if self._ids is None else self._ids[index]
        return Labels(store, self._classes, ids=ids, origin=origin)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of classes and labels; ids and origin do not enter. Equal tables have equal ones."""
        entries = self.entries()
        digest = hashlib.sha256(json.dumps([_FORMAT, len(self), entries.default, self._classes]).encode())
        for array, kind in ((entries.start, "<i8"), (entries.column, "<i4"), (entries.value, "i1")):
            digest.update(array.astype(kind, copy=False).tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        positives, negatives, unknowns = (int(count.sum()) for count in self.counts())
        return (
            f"Labels({len(self)} rows × {self.num_classes} classes: {positives} positive, "
            f"{negatives} negative, {unknowns} unknown)"
        )

    def _take(self, rows: Int64) -> Entries:
        if isinstance(self._store, Entries):
            return self._store.take(rows)
        return Entries.from_single(self._store[rows], self.num_classes)

    # Keeping it

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one .npz file atomically."""
        header: dict[str, Any] = {"format": _FORMAT, "classes": self._classes, "origin": self.origin}
        arrays: dict[str, npt.NDArray[Any]] = {}
        if isinstance(self._store, Entries):
            header["default"] = self._store.default
            arrays |= {"start": self._store.start, "column": self._store.column, "value": self._store.value}
        else:
            arrays["single"] = self._store
        if self._ids is not None:
            arrays["ids"] = self._ids
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Labels:
        """Read what `save` wrote. Nothing in the file is executed."""
        if not Path(path).is_file():
            raise InputError(f"{path}: there is no such file.")
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            header = json.loads(arrays["header"].tobytes())
            if header["format"] != _FORMAT:
                raise InputError(f"its format is {header['format']!r}, not {_FORMAT!r}.")
            if "single" in arrays:
                entries = Entries.from_single(arrays["single"].astype(np.int32), len(header["classes"]))
            else:
                entries = Entries(
                    arrays["start"].astype(np.int64),
                    arrays["column"].astype(np.int32),
                    arrays["value"].astype(np.int8),
                    int(header["default"]),
                    len(header["classes"]),
                )
            entries.check()
            return cls.from_entries(entries, header["classes"], ids=arrays.get("ids"), origin=header["origin"])
        except _UNREADABLE as error:
            raise InputError(f"{path}: this is not a file of labels that can be read ({error})") from error


def _guess_coding(matrix: npt.NDArray[Any]) -> Literal["signed", "full", "positive"]:
    blocks = [matrix[rows] for rows in row_blocks(*matrix.shape)]
    if any((block == -1).any() for block in blocks):
        return "signed"
    if any((block != block).any() for block in blocks):  # NaN
        return "full"
    return "positive" if all((block.sum(axis=1) == 1).all() for block in blocks) else "full"
