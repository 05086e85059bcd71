"""Answers that people give about labels, in a SQLite database that only grows.

A decision answers one question: does this row have this label? The latest decision about a row and a label counts.
Undoing a decision adds another one, so that nothing a person entered is ever lost or overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from spml.atomic import atomic_path, explain_write_errors
from spml.errors import InputError
from spml.labels import Entries, Labels

FORMAT = "spml decisions 1"
DECISIONS = "review.db"
"""The database in the folder of a run."""
ANSWERS = {"yes": 1, "no": -1, "unknown": 0}
"""What a person can answer; `unknown` means that the question cannot be decided."""

_HEADER = b"SQLite format 3\0"
_WAIT = 20.0  # seconds to wait for another process that writes
_TEXT = 200  # characters of names that come from a browser

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  row INTEGER NOT NULL CHECK (row >= 0),
  label INTEGER NOT NULL CHECK (label >= 0),
  answer INTEGER CHECK (answer IN (-1, 0, 1)),  -- NULL: the question is open again
  who TEXT NOT NULL,
  at TEXT NOT NULL,
  confidence REAL,
  model TEXT NOT NULL,
  draw TEXT,
  request TEXT NOT NULL,
  undoes INTEGER,
  UNIQUE (request, row, label)
);
CREATE INDEX latest ON decisions (row, label, id);
CREATE INDEX undone ON decisions (undoes);
CREATE TRIGGER no_update BEFORE UPDATE ON decisions BEGIN SELECT RAISE(ABORT, 'decisions are never changed'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON decisions BEGIN SELECT RAISE(ABORT, 'decisions are never deleted'); END;
"""
_COLUMNS = "id, row, label, answer, who, at, confidence, model, draw, request, undoes"

_FITTING_TYPES = " AND ".join(
    [
        "id > 0",
        *(f"typeof({name}) = 'text'" for name in ("who", "at", "model", "request")),
        "typeof(draw) IN ('text', 'null')",
        "typeof(undoes) IN ('integer', 'null')",
        "typeof(confidence) IN ('real', 'null')",
    ]
)
_NOT_UNDONE = "d.undoes IS NULL AND NOT EXISTS (SELECT 1 FROM decisions WHERE undoes = d.id)"
_COUNTS = (
    f"{_NOT_UNDONE} AND NOT EXISTS (SELECT 1 FROM decisions AS e WHERE e.row = d.row AND e.label = d.label "
    "AND e.id > d.id AND e.undoes IS NULL AND NOT EXISTS (SELECT 1 FROM decisions WHERE undoes = e.id))"
)


@dataclass(frozen=True)
class Subject:
    """The data that decisions are about. Decisions about other data cannot be mixed in.

    Parameters
    ----------
    names : sequence of str
        Name of each row.
    classes : tuple of str
    given : Labels, optional
        The labels that came with the data.
    """

    names: Sequence[str]
    classes: tuple[str, ...]
    given: Labels | None = None

    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ if names, classes or given labels differ.

        Examples
        --------
        >>> Subject(["a.jpg"], ("cat", "dog")).fingerprint() == Subject(["b.jpg"], ("cat", "dog")).fingerprint()
        False
        """
        digest = hashlib.sha256(json.dumps([list(self.names), list(self.classes)]).encode())
        digest.update((self.given.fingerprint() if self.given is not None else "").encode())
        return digest.hexdigest()[:16]


class Question(NamedTuple):
    """An answered question, before it is recorded."""

    row: int
    label: int
    answer: int | None
    """1 yes, -1 no, 0 unknown; None opens the question again."""
    confidence: float | None = None
    """The confidence that the person was shown."""
    seen: int | None = None
    """Id of the latest decision on this row and label that the person knew, 0 for none; None does not check it."""
    draw: str | None = None
    """How the question was chosen (JSON), for annotation."""
    undoes: int | None = None


class Decision(NamedTuple):
    """A recorded decision."""

    id: int
    row: int
    label: int
    answer: int | None
    who: str
    at: str
    confidence: float | None
    model: str
    draw: str | None
    request: str
    undoes: int | None

    @property
    def word(self) -> str:
        """yes, no or unknown; empty if the question is open again."""
        return next((word for word, value in ANSWERS.items() if value == self.answer), "")


class Recorded(NamedTuple):
    """The result of `Decisions.record`."""

    saved: list[Decision]
    conflicts: list[Decision]
    """The decisions of others that came first; the questions were not recorded."""


class Decisions:
    """A database of decisions, safe for several threads and processes.

    Parameters
    ----------
    path : path
        The database; created if it does not exist, unless `read_only`.
    subject : Subject
        The data that the decisions are about.
    read_only : bool
        Open an existing database without changing anything next to it.

    Raises
    ------
    InputError
        If the file is not such a database, belongs to other data, or cannot be opened or created.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> subject = Subject(["a.jpg", "b.jpg"], ("cat", "dog"))
    >>> with Decisions(f"{folder.name}/review.db", subject) as decisions:
    ...     _ = decisions.record([Question(0, 1, ANSWERS["yes"])], who="Ada")
    ...     _ = decisions.record([Question(1, 1, ANSWERS["no"])], who="Ada")
    ...     _ = decisions.undo("Ada")
    ...     decisions.labels().dense().tolist()
    [[0, 1], [0, 0]]
    """

    def __init__(self, path: str | os.PathLike[str], subject: Subject, *, read_only: bool = False) -> None:
        self.path, self.subject = Path(path), subject
        self._lock = threading.RLock()
        if read_only and not self.path.is_file():
            raise InputError(f"{self.path}: no such file; `spml review` and `spml annotate` write decisions")
        with self._explained():
            self._check_header()
            self._connection = self._connect(read_only)
            try:
                self._prepare(read_only)
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; closing twice is harmless."""
        with self._lock:
            self._connection.close()

    # Writing

    def record(
        self, questions: Iterable[Question], *, who: str, model: str = "", request: str | None = None
    ) -> Recorded:
        """Append decisions in one transaction: all of them are on disk when this returns, or none.

        Parameters
        ----------
        questions : iterable of Question
        who : str
            Who answered.
        model : str
            The model whose confidences were shown.
        request : str, optional
            A unique text per action. Repeating a request, for example after a lost reply, records nothing twice.

        Returns
        -------
        Recorded
            Questions that somebody else has answered differently in the meantime are not recorded.

        Raises
        ------
        InputError
            If a question does not fit the data, or the database cannot be written.
        """
        wanted = [self._checked(question) for question in questions]
        name, request = who[:_TEXT] or "unknown", (request or os.urandom(12).hex())[:_TEXT]
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        saved, conflicts = [], []
        with self._lock, self._explained(), self._transaction():
            for question in wanted:
                repeated = self._select("WHERE request = ? AND row = ? AND label = ?", request, *question[:2])
                latest = repeated or self._select("WHERE row = ? AND label = ? ORDER BY id DESC LIMIT 1", *question[:2])
                if not repeated and latest and question.seen is not None and latest[0].id > question.seen:
                    if latest[0].answer == question.answer:
                        saved += latest
                        continue
                    if latest[0].answer is not None:  # an undone answer is nobody's: there is nothing to overwrite
                        conflicts += latest
                        continue
                if not repeated:
                    self._connection.execute(
                        f"INSERT INTO decisions ({_COLUMNS}) VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (
                            *(question.row, question.label, question.answer, name, now, question.confidence),
                            *(model[:_TEXT], question.draw, request, question.undoes),
                        ),
                    )
                saved += self._select("WHERE request = ? AND row = ? AND label = ?", request, *question[:2])
        return Recorded(saved, conflicts)

    def undo(self, who: str, request: str | None = None) -> Recorded:
        """Undo this person's latest action that still counts, with all its decisions, by adding new decisions.

        Repeated, it goes back further. Entries that somebody else has changed since are left alone.
        """
        with self._lock, self._explained(), self._transaction():
            last = self._select(f"AS d WHERE who = ? AND {_COUNTS} ORDER BY id DESC LIMIT 1", who)
            mine = (
                self._select(f"AS d WHERE who = ? AND request = ? AND {_COUNTS}", who, last[0].request) if last else []
            )
            back = []
            for decision in mine:
                before = self._select(
                    f"AS d WHERE row = ? AND label = ? AND id < ? AND {_NOT_UNDONE} ORDER BY id DESC LIMIT 1",
                    *(decision.row, decision.label, decision.id),
                )
                answer = before[0].answer if before else None
                back.append(Question(decision.row, decision.label, answer, decision.confidence, undoes=decision.id))
            return self.record(back, who=who, model=mine[0].model if mine else "", request=request)

    # Reading

    def since(self, last: int = 0) -> list[Decision]:
        """All decisions after a given id, in the order in which they were made."""
        with self._lock, self._explained():
            return self._select("WHERE id > ? ORDER BY id", last)

    def current(self) -> list[Decision]:
        """The decisions that count: the latest of each row and label, without those that were undone."""
        with self._lock, self._explained():
            return self._select(
                "WHERE id IN (SELECT MAX(id) FROM decisions GROUP BY row, label) AND answer IS NOT NULL ORDER BY id"
            )

    def labels(self) -> Labels:
        """The answers yes and no as verified labels: +1 and −1; everything else is 0."""
        decided = [decision for decision in self.current() if decision.answer]
        entries = Entries.from_coordinates(
            *(np.array([decision[place] for decision in decided], np.int64) for place in (1, 2, 3)),
            num_rows=len(self.subject.names),
            num_classes=len(self.subject.classes),
            default=0,
        )
        return Labels.from_entries(entries, self.subject.classes)

    # Inside

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        """A connection; in a read-only folder, to the file as it is, if no other process has written to it since."""

        def connect(address: str, uri: bool) -> sqlite3.Connection:
            return sqlite3.connect(address, timeout=_WAIT, isolation_level=None, check_same_thread=False, uri=uri)

        if not read_only:
            return connect(str(self.path), uri=False)
        address = self.path.resolve().as_uri()
        try:
            connection = connect(f"{address}?mode=ro", uri=True)
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
            return connection
        except sqlite3.OperationalError:
            log = self.path.with_name(self.path.name + "-wal")
            if os.access(self.path.parent, os.W_OK) or (log.exists() and log.stat().st_size):
                raise
            return connect(f"{address}?mode=ro&immutable=1", uri=True)

    def _check_header(self) -> None:
        """Raise `InputError` for a file of another kind; SQLite itself overwrites files of one byte."""
        if not self.path.is_file():
            return
        try:
            with self.path.open("rb") as file:
                start = file.read(len(_HEADER))
        except OSError:  # SQLite says why
            return
        unfinished = any(self.path.with_name(self.path.name + end).exists() for end in ("-journal", "-wal"))
        if start and start != _HEADER and not unfinished:  # an empty file: whoever created it was interrupted
            raise InputError(f"{self.path} is not a database of decisions: choose another file")

    def _prepare(self, read_only: bool) -> None:
        connection = self._connection
        if not read_only:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
            if tables and "meta" not in tables:  # the next line would change the file
                raise InputError(f"{self.path} is not a database of decisions: choose another file")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # an answer survives a power cut
            with self._transaction():
                if not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall():
                    for statement in _SCHEMA.split(";\n"):  # one by one: a script would end the transaction
                        if statement.strip():
                            connection.execute(statement)
                    connection.executemany("INSERT INTO meta VALUES (?, ?)", self._meta().items())
        try:
            meta = dict(connection.execute("SELECT key, value FROM meta"))
        except sqlite3.OperationalError:
            meta = {}
        if meta.get("format") != FORMAT:
            raise InputError(f"{self.path} is not a database of decisions: choose another file")
        if meta.get("subject") != self.subject.fingerprint():
            raise InputError(
                f"{self.path} holds decisions about other data ({meta.get('rows')} rows, {meta.get('classes')} "
                f"classes); this data has {len(self.subject.names)} rows and {len(self.subject.classes)} classes, or "
                "other names or labels: use the database of this data, or another file"
            )
        odd = connection.execute(
            "SELECT id FROM decisions WHERE typeof(row) != 'integer' OR row NOT BETWEEN 0 AND ? "
            "OR typeof(label) != 'integer' OR label NOT BETWEEN 0 AND ? "
            "OR answer NOT IN (-1, 0, 1) LIMIT 1",
            (len(self.subject.names) - 1, len(self.subject.classes) - 1),
        ).fetchone()
        if odd is not None:
            raise InputError(f"{self.path}: decision {odd[0]} is not about a row and a class of this data")
        odd = connection.execute(f"SELECT id FROM decisions WHERE NOT ({_FITTING_TYPES}) LIMIT 1").fetchone()
        if odd is not None:
            raise InputError(f"{self.path} is damaged: decision {odd[0]} has a value of the wrong type")

    def _meta(self) -> dict[str, str]:
        return {
            "format": FORMAT,
            "subject": self.subject.fingerprint(),
            "rows": str(len(self.subject.names)),
            "classes": str(len(self.subject.classes)),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _checked(self, question: Question) -> Question:
        """The question, if it is about an existing row and class."""
        row, label, answer = question[:3]
        for value, name, limit in ((row, "row", len(self.subject.names)), (label, "label", len(self.subject.classes))):
            if type(value) is not int or not 0 <= value < limit:
                raise InputError(f"{name} {value!r} does not exist: it must be from 0 to {limit - 1}")
        if answer is not None and (type(answer) is not int or answer not in ANSWERS.values()):
            raise InputError(f"answer {answer!r} is not 1 (yes), -1 (no), 0 (unknown) or None")
        return question

    def _select(self, where: str, *values: Any) -> list[Decision]:
        decisions = map(Decision._make, self._connection.execute(f"SELECT {_COLUMNS} FROM decisions {where}", values))
        rows, labels = len(self.subject.names), len(self.subject.classes)
        return [decision for decision in decisions if decision.row < rows and decision.label < labels]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A write transaction; several writers wait for each other."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of SQLite as a sentence."""
        try:
            yield
        except sqlite3.Error as error:
            if not self.path.parent.is_dir():
                raise InputError(f"{self.path} cannot be opened: the folder does not exist") from error
            reason, place = str(error), self.path
            if "not a database" in reason or "malformed" in reason:
                raise InputError(f"{place} is not a database of decisions, or is damaged ({reason})") from error
            if "full" in reason:
                raise InputError(f"{place} cannot be written: the disk is full. Earlier answers are saved") from error
            if "readonly" in reason or "unable to open" in reason:
                option = " with --decisions" if place.name == DECISIONS else ""
                raise InputError(f"{place} cannot be written: choose a file in another folder{option}") from error
            raise InputError(f"{place} cannot be used: {reason}. Earlier answers are saved") from error


def read_decisions(path: str | os.PathLike[str], subject: Subject) -> Labels:
    """The verified labels in a database of decisions: +1 for yes, −1 for no.

    Parameters
    ----------
    path : path
    subject : Subject
        The data that the decisions must be about.

    Returns
    -------
    Labels

    Raises
    ------
    InputError
        If the file is missing, is no such database, or belongs to other data.
    """
    with Decisions(path, subject, read_only=True) as decisions:
        return decisions.labels()


def copy_decisions(path: str | os.PathLike[str], target: Path) -> None:
    """Copy a database, also while somebody answers, so that the review of a new run starts with these answers.

    An existing target is kept.
    """
    if target.exists():
        return
    with atomic_path(target) as temporary, explain_write_errors(target):
        source = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, timeout=_WAIT)
        copy = sqlite3.connect(temporary)
        try:
            source.backup(copy)
        except sqlite3.Error as error:
            raise OSError(str(error)) from error
        finally:
            copy.close()
            source.close()
