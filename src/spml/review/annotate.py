"""Label images from nothing by yes/no questions (LASD, Section 5.1).

For every image a class is drawn uniformly at random among those not yet asked, until an answer is yes. The yes is the
image's single positive label, and every no is a verified negative. The single positive is then a uniform draw among the
labels that are present, which is what methods for single positive labels assume.

With a model, classes are drawn by its probabilities, so that a yes comes sooner. The single positive is then no uniform
draw, so the probability of every draw is recorded with its answer.
"""

from __future__ import annotations

import json
import os
import threading
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spml.data.dataset import read_lines
from spml.data.formats.column_names import index_columns, usual_column
from spml.data.formats.folder import files_below
from spml.data.stores.decode import SUFFIXES
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.review.pictures import Pictures
from spml.review.session import brief
from spml.review.web import Reply, Unsaved, application
from spml.runs.decisions import ANSWERS, Decision, Decisions, Question
from spml.runs.files import atomic_path, explain_write_errors

if TYPE_CHECKING:
    from starlette.types import ASGIApp

IMAGE_COLUMN = "image"
_UNIFORM_SHARE = 0.2  # with a model: share of the draws that are uniform, so that no class is left out
_LEASE = 300.0  # seconds for which an image is shown to one browser only

Likely = Callable[[int], npt.NDArray[np.float64]]
"""Probability of every class in a row, by a model."""


def find_images(folder: Path) -> list[Path]:
    """The images in a folder and its subfolders, sorted by path; hidden ones are left out."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of images")
    images = sorted(folder / name for name in files_below(folder, SUFFIXES)[0])
    if not images:
        raise InputError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    return images


def read_classes(path: Path) -> tuple[str, ...]:
    """The class names in a text file, one per line."""
    classes = read_lines(path)
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise InputError(f"{path}: the class {twice!r} is listed twice")
    if len(classes) < 2:
        raise InputError(f"{path}: list at least two classes, one per line")
    if IMAGE_COLUMN in classes:
        raise InputError(f"{path}: a class cannot be called {IMAGE_COLUMN!r}, the column of paths: use another name")
    for name in classes:
        if any(unicodedata.category(letter) == "Cc" for letter in name):
            raise InputError(f"{path}: the class {name!r} contains a control character: correct the name")
        if index_columns([name]) or any(usual_column(kind, [name]) for kind in ("id", "split", "label", "text")):
            raise InputError(
                f"{path}: a class cannot be called {name!r}: `spml train` would read its column of the table as "
                f"something else. Use another name, such as {name + ' (class)'!r}"
            )
    return Labels.from_names([None], classes).classes


class Annotation:
    """The questions about some images. Safe for several threads.

    Parameters
    ----------
    decisions : Decisions
        The answers so far; more are added.
    seed : int, optional
        Of the draws; by default unpredictable.
    likely : callable, optional
        Probabilities by a model, to ask about likely classes first.
    model : str
        Name of the model.

    Examples
    --------
    >>> import tempfile
    >>> from spml.runs.decisions import Subject
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Decisions(f"{folder.name}/labels.db", Subject(["a.jpg"], ("cat", "dog"))) as decisions:
    ...     annotation = Annotation(decisions, seed=0)
    ...     first = annotation.question("a browser")
    ...     _ = annotation.answer(first, -1, who="Ada", request="1")
    ...     second = annotation.question("a browser")
    >>> {first["label"], second["label"]} == {0, 1}
    True
    """

    def __init__(
        self, decisions: Decisions, *, seed: int | None = None, likely: Likely | None = None, model: str = ""
    ) -> None:
        self.decisions, self._likely, self._model = decisions, likely, model
        self._draw = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._leases: dict[int, tuple[str, float]] = {}
        self._asked: dict[int, dict[int, int]] = {}
        self._drawn: dict[int, dict[str, Any]] = {}  # questions that wait for an answer, by image
        self._last = 0
        self.refresh()

    @property
    def rows(self) -> int:
        return len(self.decisions.subject.names)

    def refresh(self) -> None:
        """Take new decisions into account, also those of other processes."""
        with self._lock:
            for decision in self.decisions.since(self._last):
                asked = self._asked.setdefault(decision.row, {})
                if decision.answer is None:
                    asked.pop(decision.label, None)
                else:
                    asked[decision.label] = decision.answer
                self._last = decision.id

    def is_done(self, row: int) -> bool:
        """Whether an image has its single positive label, or every class was asked."""
        asked = self._asked.get(row, {})
        return 1 in asked.values() or len(asked) == len(self.decisions.subject.classes)

    def progress(self) -> dict[str, int]:
        """Numbers of images, of finished ones, of those with a label, and of answers."""
        with self._lock:
            return {
                "rows": self.rows,
                "done": sum(self.is_done(row) for row in self._asked),
                "labelled": sum(1 in asked.values() for asked in self._asked.values()),
                "answers": sum(len(asked) for asked in self._asked.values()),
            }

    def question(self, client: str) -> dict[str, Any] | None:
        """The next question for a browser: row, label, and how the label was drawn; None if all images are done.

        Two browsers get different images, unless only one is left. A question stays the same until it is answered:
        nobody can draw again by loading the page again.
        """
        with self._lock:
            self.refresh()
            now = time.monotonic()
            waiting = [row for row in range(self.rows) if not self.is_done(row)]
            mine = [row for row in waiting if self._leases.get(row, ("", 0.0))[0] == client]
            free = [row for row in waiting if self._leases.get(row, ("", -_LEASE))[1] + _LEASE <= now]
            row = next(iter(mine or free or waiting), None)
            if row is None:
                return None
            self._leases = {row_: lease for row_, lease in self._leases.items() if lease[0] != client}
            self._leases[row] = (client, now)
            later = [other for other in free if other != row]
            if self._drawn.get(row, {}).get("label") not in self._open(row):
                self._drawn[row] = self._draw_label(row)
            return {"row": row, **self._drawn[row], "next": later[0] if later else None}

    def _open(self, row: int) -> list[int]:
        """The labels of an image that nobody was asked about."""
        asked = self._asked.get(row, {})
        return [label for label in range(len(self.decisions.subject.classes)) if label not in asked]

    def _draw_label(self, row: int) -> dict[str, Any]:
        """A label that nobody was asked about, and how it was drawn."""
        left = np.array(self._open(row))
        chance = np.full(len(left), 1 / len(left))
        if self._likely is not None:
            likely = self._likely(row)[left]
            chance = _UNIFORM_SHARE * chance + (1 - _UNIFORM_SHARE) * likely / max(likely.sum(), 1e-12)
            chance /= chance.sum()
        place = int(self._draw.choice(len(left), p=chance))
        draw = {
            "rule": "uniform" if self._likely is None else "model",
            "among": len(left),
            "probability": round(float(chance[place]), 8),
        }
        return {"label": int(left[place]), "draw": draw}

    def answer(self, question: dict[str, Any], answer: int, *, who: str, request: str) -> list[Decision]:
        """Record an answer with its draw. An image that somebody finished in the meantime is left alone."""
        with self._lock:
            self.refresh()
            row, label = question["row"], question["label"]
            done = self.is_done(row) or label in self._asked.get(row, {})
            if done and not any(each.request == request for each in self.decisions.current()):
                return []
            item = Question(row, label, answer, draw=json.dumps(question["draw"], sort_keys=True))
            saved = self.decisions.record([item], who=who, model=self._model, request=request).saved
            self.refresh()
            return saved

    def undo(self, *, who: str, request: str) -> list[Decision]:
        """Undo the latest answer of a person; the same question waits for an answer again."""
        with self._lock:
            saved = self.decisions.undo(who, request).saved
            for number in (each.undoes for each in saved if each.undoes is not None):
                undone = self.decisions.since(number - 1)[0]
                if undone.draw is not None:
                    self._drawn[undone.row] = {"label": undone.label, "draw": json.loads(undone.draw)}
            self.refresh()
            return saved

    def reserve(self, row: int, client: str) -> None:
        """Show an image to this browser next."""
        with self._lock:
            self._leases = {other: lease for other, lease in self._leases.items() if lease[0] != client}
            self._leases[row] = (client, time.monotonic())


def write_table(decisions: Decisions, images: Sequence[Path], path: Path) -> int:
    """Write the answered images as a table that `spml train` opens: a path, and 1 or -1 per class that was answered.

    Returns
    -------
    int
        Number of images.
    """
    import pyarrow as pa

    from spml.data.csv_cells import write_csv

    labels = decisions.labels()
    entries = labels.entries()
    rows = np.flatnonzero(entries.per_row(1) + entries.per_row(-1))
    if not len(rows):
        return 0
    dense = labels.dense(rows)
    folder = path.resolve().parent
    columns: dict[str, Any] = {
        IMAGE_COLUMN: pa.array(
            [os.path.relpath(str(images[row].resolve()), str(folder)) for row in rows.tolist()], pa.string()
        )
    }
    for column, name in enumerate(labels.classes):
        values = dense[:, column]
        if values.any():  # an empty column would look like one of texts
            columns[name] = pa.array(values, pa.int8(), mask=values == 0)
    with atomic_path(path) as temporary, explain_write_errors(path):
        write_csv(pa.table(columns), temporary)
    return len(rows)


class AnnotateApp:
    """Annotation as a web application.

    Parameters
    ----------
    annotation : Annotation
    images : sequence of Path
    who : str
        Name of the person, unless the page gives another one.
    """

    def __init__(self, annotation: Annotation, images: Sequence[Path], who: str = "") -> None:
        self.annotation, self.who = annotation, who
        self.pictures = Pictures(ImageStore(images, 64, cache_limit=0))

    def close(self) -> None:
        """Stop the background work."""
        self.pictures.close()

    def asgi(self, token: str, hosts: Callable[[str], bool]) -> ASGIApp:
        """The web application."""
        read = {"api/overview": self._overview, "api/question": self._question, "images/{row:int}": self._image}
        write = {"api/answers": self._answer, "api/undo": self._undo}
        return application("annotate.html", read, write, token=token, hosts=hosts)

    def _overview(self, values: dict[str, Any]) -> Reply:
        subject = self.annotation.decisions.subject
        fixed = {"subject": subject.fingerprint(), "classes": list(subject.classes), "who": self.who}
        return {**fixed, **self.annotation.progress()}

    def _question(self, values: dict[str, Any]) -> Reply:
        return self._next(values.get("client", "")[:100])

    def _next(self, client: str) -> dict[str, Any]:
        question = self.annotation.question(client)
        name = None if question is None else self.annotation.decisions.subject.names[question["row"]]
        return {"question": question, "name": name, "progress": self.annotation.progress()}

    def _image(self, values: dict[str, Any]) -> Reply:
        return self.pictures.large(values["row"]) if values["row"] < self.annotation.rows else None

    def _answer(self, posted: dict[str, Any]) -> Reply:
        question, answer = self._checked(posted.get("question")), posted.get("answer")
        if type(answer) is not int or answer not in ANSWERS.values():
            raise InputError("an answer must be 1 (yes), -1 (no) or 0 (unknown)")
        who, request, client = self._texts(posted)
        try:
            saved = self.annotation.answer(question, answer, who=who, request=request)
        except InputError as error:
            raise Unsaved(str(error)) from error
        return {"saved": [brief(each) for each in saved], **self._next(client)}

    def _undo(self, posted: dict[str, Any]) -> Reply:
        who, request, client = self._texts(posted)
        try:
            saved = self.annotation.undo(who=who, request=request)
        except InputError as error:
            raise Unsaved(str(error)) from error
        if saved:
            self.annotation.reserve(saved[0].row, client)
        return {"saved": [brief(each) for each in saved], **self._next(client)}

    def _texts(self, posted: dict[str, Any]) -> tuple[str, str, str]:
        texts = (posted.get("who") or self.who, posted.get("request"), posted.get("client"))
        if not all(isinstance(text, str) and len(text) <= 100 for text in texts) or not texts[1]:
            raise InputError("who, request and client must be texts")
        return texts[0], str(texts[1]), str(texts[2])

    def _checked(self, question: Any) -> dict[str, Any]:
        subject = self.annotation.decisions.subject
        numbers = question if isinstance(question, dict) else {}
        for name, limit in (("row", len(subject.names)), ("label", len(subject.classes))):
            if type(numbers.get(name)) is not int or not 0 <= numbers[name] < limit:
                raise InputError(f"the question needs a {name} from 0 to {limit - 1}")
        draw = numbers.get("draw")
        if not isinstance(draw, dict) or draw.get("rule") not in ("uniform", "model") or len(json.dumps(draw)) > 200:
            raise InputError("the question must say how it was drawn")
        return {"row": numbers["row"], "label": numbers["label"], "draw": draw}
