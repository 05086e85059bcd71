"""The table of known labels."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from spml.errors import InputError
from spml.labels import conversions
from spml.labels.entries import Entries, Int8, Int32, Int64, row_blocks
from spml.labels.files import FORMAT, read_table, write_table
from spml.labels.inputs import as_array, check_classes, check_ids, check_ordered, row_indices

Ids = Iterable[str | int] | None


class LabelCounts(NamedTuple):
    """Numbers of labels per class.

    Attributes
    ----------
    positives, negatives, unknowns : arrays of shape (n_classes,), int64
        Number of rows with a positive, a negative and an unknown label.

    Examples
    --------
    >>> Labels.from_names(["cat", "dog", "cat"], ["cat", "dog"]).counts().positives
    array([2, 1])
    """

    positives: Int64
    negatives: Int64
    unknowns: Int64


class Labels:
    """Known labels of N rows and L classes: +1 positive, -1 negative (verified), 0 unknown.

    Create one with a `from_…` constructor. A table is immutable.

    Notes
    -----
    If all that is known is at most one positive per row, the table stores one class index (int32) per row, however
    many classes there are. Otherwise it stores sparse rows (`Entries`) that leave out the more frequent of unknown and
    negative. Equal tables are stored equally.

    Examples
    --------
    >>> labels = Labels.from_names(["cat", "horse", None], classes=["cat", "dog", "horse"])
    >>> labels
    Labels(3 rows × 3 classes: 2 positive, 0 negative, 7 unknown)
    >>> labels.dense()
    array([[1, 0, 0],
           [0, 0, 1],
           [0, 0, 0]], dtype=int8)
    """

    __slots__ = ("_classes", "_ids", "_origin", "_store")

    def __init__(
        self, store: Int32 | Entries, classes: Iterable[str], *, ids: Ids = None, origin: dict[str, Any] | None = None
    ) -> None:
        """Wrap checked data. Use a `from_…` constructor instead."""
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

    # Constructors

    @classmethod
    def from_entries(
        cls, entries: Entries, classes: Iterable[str], *, ids: Ids = None, origin: dict[str, Any] | None = None
    ) -> Labels:
        """Create a table from sparse rows.

        Parameters
        ----------
        entries : Entries
        classes : iterable of str
            Class names, in column order.
        ids : iterable of str or int, optional
            One distinct name per row.
        origin : dict, optional
            How the table was created (JSON values).

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If classes or ids do not fit the entries.

        Examples
        --------
        >>> entries = Entries.from_coordinates([0, 1], [2, 0], [1, -1], num_rows=2, num_classes=3, default=0)
        >>> Labels.from_entries(entries, ["cat", "dog", "horse"]).dense()
        array([[ 0,  0,  1],
               [-1,  0,  0]], dtype=int8)
        """
        names = check_classes(classes)
        if entries.num_classes != len(names):
            raise InputError(f"there are {len(names)} class names, but the entries have {entries.num_classes} classes.")
        return cls(entries, names, ids=ids, origin=origin or {"created_by": "from_entries"})

    @classmethod
    def from_indices(cls, indices: Any, classes: Iterable[str], ids: Ids = None) -> Labels:
        """Create a table from one class index per row.

        Parameters
        ----------
        indices : integers of shape (n_rows,)
            Class of each row's single positive; -1 for no label.
        classes : iterable of str
            Class names, in column order.
        ids : iterable of str or int, optional
            One distinct name per row.

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If an index is out of range.

        Examples
        --------
        >>> Labels.from_indices([2, -1], ["cat", "dog", "horse"]).dense()
        array([[0, 0, 1],
               [0, 0, 0]], dtype=int8)
        """
        names = check_classes(classes)
        return cls(
            conversions.single_from_indices(indices, len(names)), names, ids=ids, origin={"created_by": "from_indices"}
        )

    @classmethod
    def from_names(cls, names: Iterable[str | None], classes: Iterable[str] | None = None, ids: Ids = None) -> Labels:
        """Create a table from one class name per row.

        Parameters
        ----------
        names : iterable of str or None
            Class of each row's single positive; None, "" or NaN for no label.
        classes : iterable of str, optional
            Class names, in column order. Default: the names that occur, sorted.
        ids : iterable of str or int, optional
            One distinct name per row.

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If a name is not one of the classes.

        Examples
        --------
        >>> labels = Labels.from_names(["dog", "cat", None])
        >>> labels.classes
        ('cat', 'dog')
        >>> labels.dense()
        array([[0, 1],
               [1, 0],
               [0, 0]], dtype=int8)
        """
        if isinstance(names, str):
            raise InputError(f"names is the string {names!r}: pass one name per row.")
        check_ordered(names, "names")
        values = list(names)
        known = check_classes(conversions.distinct_names(values) if classes is None else classes)
        return cls(conversions.single_from_names(values, known), known, ids=ids, origin={"created_by": "from_names"})

    @classmethod
    def from_lists(
        cls,
        lists: Iterable[Iterable[str] | None],
        classes: Iterable[str] | None = None,
        ids: Ids = None,
        rest: Literal["unknown", "negative"] = "unknown",
        negatives: Iterable[Iterable[str] | None] | None = None,
    ) -> Labels:
        """Create a table from a list of class names per row.

        Parameters
        ----------
        lists : iterable of iterables of str
            Names of each row's positives; None for none.
        classes : iterable of str, optional
            Class names, in column order. Default: the names that occur, sorted.
        ids : iterable of str or int, optional
            One distinct name per row.
        rest : {"unknown", "negative"}
            What the classes are that a row does not list.
        negatives : iterable of iterables of str, optional
            Names of each row's known negatives.

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If a name is not one of the classes, or is both positive and negative in one row.

        Examples
        --------
        >>> Labels.from_lists([["cat", "dog"], []], ["cat", "dog", "horse"], negatives=[["horse"], ["cat"]]).dense()
        array([[ 1,  1, -1],
               [-1,  0,  0]], dtype=int8)
        """
        if rest not in ("unknown", "negative"):
            raise InputError(f"rest is {rest!r}: it must be 'unknown' or 'negative'.")
        present = conversions.name_lists(lists, "lists")
        absent = conversions.name_lists(negatives, "negatives") if negatives is not None else [[] for _ in present]
        if len(absent) != len(present):
            raise InputError(f"negatives has {len(absent)} rows, but lists has {len(present)}.")
        if classes is None:
            classes = conversions.distinct_names(name for names in (*present, *absent) for name in names)
        known = check_classes(classes)
        entries = conversions.entries_from_lists(present, absent, known, default=-1 if rest == "negative" else 0)
        return cls(entries, known, ids=ids, origin={"created_by": "from_lists", "rest": rest})

    @classmethod
    def from_matrix(
        cls, matrix: Any, classes: Iterable[str] | None = None, ids: Ids = None, coding: conversions.Coding = "signed"
    ) -> Labels:
        """Create a table from a matrix.

        Parameters
        ----------
        matrix : array or tensor of shape (n_rows, n_classes)
        classes : iterable of str, optional
            Class names, in column order. Default: the column names of a DataFrame, otherwise "0", "1", …
        ids : iterable of str or int, optional
            One distinct name per row.
        coding : {"signed", "full", "positive"}
            What the numbers mean:

            - "signed": +1 positive, -1 negative, 0 unknown;
            - "full": 1 positive, 0 negative, NaN unknown;
            - "positive": 1 positive, 0 unknown.

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If a value does not fit the coding.

        Examples
        --------
        >>> Labels.from_matrix([[1, 0, -1]]).dense()
        array([[ 1,  0, -1]], dtype=int8)
        >>> Labels.from_matrix([[1, 0, float("nan")]], coding="full").dense()
        array([[ 1, -1,  0]], dtype=int8)
        >>> Labels.from_matrix([[1, 0, 0]], coding="positive").dense()
        array([[1, 0, 0]], dtype=int8)
        """
        if coding not in conversions.CODINGS:
            raise InputError(f"coding is {coding!r}: it must be one of {', '.join(map(repr, conversions.CODINGS))}.")
        columns, array = conversions.column_names(matrix), conversions.as_matrix(matrix)
        names = check_classes(columns or map(str, range(array.shape[1])) if classes is None else classes)
        if len(names) != array.shape[1]:
            raise InputError(f"there are {len(names)} class names, but the matrix has {array.shape[1]} columns.")
        if columns is not None and set(columns) == set(names) and columns != list(names):
            raise InputError("the columns of the table are the classes in another order: pass table[classes].")
        origin = {"created_by": "from_matrix", "coding": coding}
        return cls(conversions.entries_from_matrix(array, coding), names, ids=ids, origin=origin)

    @classmethod
    def from_any(cls, values: Any, classes: Iterable[str] | None = None, ids: Ids = None) -> Labels:
        """Create a table from any of the supported forms, which is detected.

        - one string per row: `from_names`;
        - a list of strings per row: `from_lists`, the rest unknown;
        - one integer per row: `from_indices`; `classes` is required;
        - a matrix with a -1: `from_matrix`, coding "signed";
        - a matrix with a NaN: coding "full";
        - a matrix of 0 and 1 with exactly one 1 in every row: coding "positive", so 0 is unknown;
        - any other matrix of 0 and 1: coding "full", so 0 is a verified negative.

        The last two differ in what 0 means. Use `from_matrix` with a coding if this rule does not fit your data.

        Parameters
        ----------
        values : list, array, tensor or Labels
            Labels are returned unchanged.
        classes : iterable of str, optional
            Class names, in column order.
        ids : iterable of str or int, optional
            One distinct name per row.

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If the form cannot be detected or a value does not fit it.

        Examples
        --------
        >>> Labels.from_any(["cat", "dog"]).origin
        {'created_by': 'from_names'}
        >>> Labels.from_any([[1, 0], [1, 1]]).origin
        {'created_by': 'from_matrix', 'coding': 'full'}
        """
        if isinstance(values, Labels):
            if classes is not None or ids is not None:
                raise InputError("the values are a Labels table already: do not pass classes or ids.")
            return values
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise InputError(f"labels cannot be read from a {type(values).__name__}: pass one entry per row.")
        check_ordered(values, "labels")
        # NumPy would turn numbers in a list with strings into strings, so lists are examined first.
        array = as_array(values) if hasattr(values, "__array__") else None
        if array is None or array.dtype.kind in "OU":
            rows = list(values) if array is None else array.tolist()
            text = conversions.detect_text(rows)
            if text is not None:
                return cls.from_names(rows, classes, ids) if text == "names" else cls.from_lists(rows, classes, ids)
            array = as_array(rows)
        if array.ndim == 1 and array.dtype.kind in "iu":
            if classes is None:
                raise InputError("integers are class indices: pass classes too, here or to Labels.from_indices.")
            return cls.from_indices(array, classes, ids)
        if array.ndim == 2:
            array = conversions.as_matrix(array)
            named = values if conversions.column_names(values) else array
            return cls.from_matrix(named, classes, ids, coding=conversions.detect_coding(array))
        raise InputError(
            f"labels cannot be detected in an array of shape {array.shape} holding {array.dtype}: use "
            "Labels.from_names, from_lists, from_indices or from_matrix."
        )

    # Properties

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the L classes, in column order."""
        return self._classes

    @property
    def ids(self) -> npt.NDArray[np.str_] | None:
        """Distinct names of the rows, or None."""
        return self._ids

    @property
    def origin(self) -> dict[str, Any]:
        """How the table was created (JSON values; a copy)."""
        origin: dict[str, Any] = json.loads(self._origin)
        return origin

    def __len__(self) -> int:
        return len(self._store)

    @property
    def num_classes(self) -> int:
        """Number of classes, L."""
        return len(self._classes)

    @property
    def shape(self) -> tuple[int, int]:
        """(number of rows, number of classes)."""
        return len(self), self.num_classes

    @property
    def nbytes(self) -> int:
        """Bytes used by the labels, without class names and ids."""
        return self._store.nbytes

    @property
    def is_single_positive(self) -> bool:
        """Whether every row has at most one known positive and nothing else is known."""
        return not isinstance(self._store, Entries)

    @property
    def is_full(self) -> bool:
        """Whether no label is unknown."""
        return not self.entries().per_class(0).any()

    # Reading

    def entries(self) -> Entries:
        """Return the table as sparse rows.

        Returns
        -------
        Entries

        Examples
        --------
        >>> Labels.from_indices([2, 0], ["cat", "dog", "horse"]).entries().column
        array([2, 0], dtype=int32)
        """
        if isinstance(self._store, Entries):
            return self._store
        return Entries.from_single(self._store, self.num_classes)

    def batch(self, rows: Any, device: torch.device | str | None = None) -> torch.Tensor:
        """Return some rows as a tensor, the form that losses take.

        Parameters
        ----------
        rows : row numbers, or a mask of all rows
        device : device, optional
            Only the stored entries are copied to it, not the dense rows.

        Returns
        -------
        Tensor of shape (len(rows), n_classes), int8
            +1, -1 and 0.

        Raises
        ------
        InputError
            If a row number is out of range.

        Examples
        --------
        >>> Labels.from_indices([2, 0], ["cat", "dog", "horse"]).batch([0])
        tensor([[0, 0, 1]], dtype=torch.int8)
        """
        part = self._take(row_indices(rows, len(self)))
        out = torch.full((len(part), self.num_classes), part.default, dtype=torch.int8, device=device)
        out.view(-1)[torch.from_numpy(part.flat()).to(out.device)] = torch.from_numpy(part.value).to(out.device)
        return out

    def dense(self, rows: Any = None) -> Int8:
        """Return some rows, or all, as an array.

        Parameters
        ----------
        rows : row numbers, or a mask of all rows, optional
            Default: all rows.

        Returns
        -------
        array of shape (len(rows), n_classes), int8
            +1, -1 and 0.

        Raises
        ------
        InputError
            If a row number is out of range.

        Examples
        --------
        >>> Labels.from_lists([["cat"], ["dog"]], rest="negative").dense()
        array([[ 1, -1],
               [-1,  1]], dtype=int8)
        """
        part = self.entries() if rows is None else self._take(row_indices(rows, len(self)))
        out = np.full((len(part), self.num_classes), part.default, np.int8)
        out.reshape(-1)[part.flat()] = part.value
        return out

    def positives(self) -> tuple[Int64, Int64]:
        """Return the coordinates of every known positive, sorted by row, then class.

        Returns
        -------
        rows, columns : arrays of int64

        Examples
        --------
        >>> rows, columns = Labels.from_lists([["dog"], ["cat", "dog"]]).positives()
        >>> rows, columns
        (array([0, 1, 1]), array([1, 0, 1]))
        """
        entries = self.entries()
        positive = entries.value == 1
        return entries.rows[positive], entries.column[positive].astype(np.int64)

    def single(self) -> Int32:
        """Return the class index of each row's single positive.

        Returns
        -------
        array of shape (n_rows,), int32
            -1 for rows without a positive.

        Raises
        ------
        InputError
            If a row has several positives or a known negative.

        Examples
        --------
        >>> Labels.from_names(["dog", None, "cat"]).single()
        array([ 1, -1,  0], dtype=int32)
        """
        if not isinstance(self._store, Entries):
            return self._store.copy()
        invalid = np.flatnonzero(self._store.per_row(1) + self._store.per_row(-1) > 1)
        row = int(invalid[0]) if len(invalid) else int(np.flatnonzero(self._store.per_row(-1))[0])
        raise InputError(
            f"row {row} has {self._store.per_row(1)[row]} known positives and {self._store.per_row(-1)[row]} known "
            "negatives: these are not single positive labels. Use dense() or positives() instead."
        )

    def counts(self) -> LabelCounts:
        """Count the known positives, known negatives and unknown labels of every class.

        Returns
        -------
        LabelCounts

        Examples
        --------
        >>> counts = Labels.from_lists([["cat"], ["cat"]], ["cat", "dog"], negatives=[["dog"], []]).counts()
        >>> counts.positives, counts.negatives, counts.unknowns
        (array([2, 0]), array([0, 1]), array([0, 1]))
        """
        entries = self.entries()
        return LabelCounts(entries.per_class(1), entries.per_class(-1), entries.per_class(0))

    def subset(self, rows: Any) -> Labels:
        """Return a table of some rows, in the given order.

        Parameters
        ----------
        rows : row numbers, or a mask of all rows
            Without ids, a row may occur several times.

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If a row number is out of range, or a row with an id occurs twice.

        Examples
        --------
        >>> Labels.from_names(["dog", "cat", "cat"]).subset([2, 0]).single()
        array([0, 1], dtype=int32)
        """
        index = row_indices(rows, len(self))
        store = self._store.take(index) if isinstance(self._store, Entries) else self._store[index]
        before = self.origin
        total = before.get("subset", {}).get("of", len(self))
        origin = {**before, "subset": {"rows": len(index), "of": total}}
        ids = None if self._ids is None else self._ids[index]
        return Labels(store, self._classes, ids=ids, origin=origin)

    def updated(self, other: Labels) -> Labels:
        """Return a table in which the known labels of another table replace those of this one.

        Parameters
        ----------
        other : Labels
            A table of the same rows and classes. Its unknown labels change nothing.

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If rows or classes differ.

        Examples
        --------
        >>> given = Labels.from_names(["cat", "dog"])
        >>> given.updated(Labels.from_matrix([[0, 1], [1, -1]], given.classes)).dense()
        array([[ 1,  1],
               [ 1, -1]], dtype=int8)
        """
        self.check_same_classes(other, "the other table")
        if len(other) != len(self):
            raise InputError(f"the other table has {len(other)} rows, this one {len(self)}.")
        current, new = self.entries(), other._known_entries()
        keep = ~np.isin(current.flat(), new.flat())
        entries = Entries.from_coordinates(
            np.concatenate([current.rows[keep], new.rows]),
            np.concatenate([current.column[keep], new.column]),
            np.concatenate([current.value[keep], new.value]),
            num_rows=len(self),
            num_classes=self.num_classes,
            default=current.default,
        )
        return Labels(entries, self._classes, ids=self._ids, origin=self.origin)

    def check_same_classes(self, other: Labels, name: str) -> None:
        """Check that another table has the same classes in the same order.

        Parameters
        ----------
        other : Labels
        name : str
            What the error message calls the other table.

        Raises
        ------
        InputError
            If the classes differ.

        Examples
        --------
        >>> labels = Labels.from_names(["cat", "dog"])
        >>> labels.check_same_classes(labels.subset([1]), "the test table")
        """
        if not isinstance(other, Labels):
            raise InputError(f"{name} must be a Labels table, not a {type(other).__name__}.")
        if other.classes == self.classes:
            return
        if len(other.classes) != len(self.classes):
            raise InputError(
                f"{name} has {len(other.classes)} classes, but the training labels have {len(self.classes)}."
            )
        pairs = zip(self.classes, other.classes, strict=True)
        column, (ours, theirs) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise InputError(
            f"{name} must have the classes of the training labels in the same order: column {column} is {theirs!r}, "
            f"but {ours!r} in the training labels."
        )

    def fingerprint(self) -> str:
        """Return the SHA-256 of classes and labels as hexadecimal digits.

        Ids and origin are not included. Equal tables have equal fingerprints.

        Returns
        -------
        str

        Examples
        --------
        >>> one = Labels.from_names(["cat", "dog"])
        >>> other = Labels.from_indices([0, 1], ["cat", "dog"])
        >>> one.fingerprint() == other.fingerprint()
        True
        """
        entries = self.entries()
        digest = hashlib.sha256(json.dumps([FORMAT, len(self), entries.default, self._classes]).encode())
        for array, dtype in ((entries.start, "<i8"), (entries.column, "<i4"), (entries.value, "i1")):
            digest.update(array.astype(dtype, copy=False).tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        positives, negatives, unknowns = (int(count.sum()) for count in self.counts())
        return (
            f"Labels({len(self)} rows × {self.num_classes} classes: {positives} positive, "
            f"{negatives} negative, {unknowns} unknown)"
        )

    def _known_entries(self) -> Entries:
        """Return the table as sparse rows that list every known label."""
        entries = self.entries()
        if entries.default == 0:
            return entries
        blocks = (self.dense(np.arange(part.start, part.stop)) for part in row_blocks(*self.shape))
        return Entries.from_blocks(blocks, num_classes=self.num_classes, default=0)

    def _take(self, rows: Int64) -> Entries:
        if isinstance(self._store, Entries):
            return self._store.take(rows)
        return Entries.from_single(self._store[rows], self.num_classes)

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to one .npz file, atomically.

        Parameters
        ----------
        path : path-like
            An existing file is replaced.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> labels = Labels.from_names(["cat", "dog"])
        >>> with TemporaryDirectory() as folder:
        ...     labels.save(f"{folder}/labels.npz")
        ...     Labels.load(f"{folder}/labels.npz")
        Labels(2 rows × 2 classes: 2 positive, 0 negative, 2 unknown)
        """
        write_table(path, self._store, self._classes, self._ids, self.origin)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Labels:
        """Read a table that `save` wrote. Nothing in the file is executed.

        Parameters
        ----------
        path : path-like

        Returns
        -------
        Labels

        Raises
        ------
        InputError
            If the file does not exist, is damaged or holds something else.

        Examples
        --------
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     Labels.from_names(["cat", "dog"]).save(f"{folder}/labels.npz")
        ...     Labels.load(f"{folder}/labels.npz").classes
        ('cat', 'dog')
        """
        entries, classes, ids, origin = read_table(path)
        return cls(entries, classes, ids=ids, origin=origin)
