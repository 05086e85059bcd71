"""The page of `spml review`: what it can read and change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.recover.labels import recover
from spml.review.contents import contents_of
from spml.review.pictures import Evidence, Pictures
from spml.review.session import ORDERS, SHOWN, Review, brief
from spml.review.web import Reply, Unsaved, application
from spml.runs.decisions import ANSWERS, DECISIONS, Decisions, Question, Recorded, Subject
from spml.runs.folder import RunFolder

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_MOST_ANSWERS = 20_000  # in one action
_MOST_ROWS = 500  # whose contents the page asks for at a time


def subject_of(run: RunFolder) -> Subject:
    """The data of a run, which decisions are bound to."""
    return Subject(run.names, run.classes, run.given_labels)


def open_decisions(run: RunFolder, path: Path | None = None) -> Decisions:
    """The database of a run's review, by default review.db in its folder."""
    return Decisions(path or run.folder / DECISIONS, subject_of(run))


class ReviewApp:
    """A review as a web application.

    Parameters
    ----------
    run : RunFolder
    decisions : Decisions
    who : str
        Name of the person, unless the page gives another one.

    Raises
    ------
    InputError
        If the data of the run is no longer there.
    """

    def __init__(self, run: RunFolder, decisions: Decisions, who: str = "") -> None:
        if run.store is None:
            raise InputError(
                f"the data of {run.folder} cannot be shown: {run.source.get('path')} is gone, or its rows have "
                "changed. Put the data back to review its labels"
            )
        self.who, self.review = who, Review(run, recover(run), decisions)
        self.pictures: Pictures | None = None
        self.evidence: Evidence | None = None
        self.contents = contents_of(run)
        if isinstance(run.store, ImageStore):
            self.pictures = Pictures(run.store, decisions.path.with_suffix(".thumbnails"))
            self.evidence = Evidence(run, run.store)

    def start(self) -> None:
        """Start making thumbnails in the background."""
        if self.pictures is not None:
            self.pictures.make_ahead(self.review.background_order)

    def close(self) -> None:
        """Stop the background work."""
        if self.pictures is not None:
            self.pictures.close()

    def asgi(self, token: str, hosts: Callable[[str], bool]) -> ASGIApp:
        """The web application."""
        read = {
            "api/overview": self._overview,
            "api/changes": self._changes,
            "api/labels/{label:int}": self._by_label,
            "api/rows": lambda values: {"rows": self.review.by_row()},
            "api/rows/{row:int}": self._row,
            "thumbnails/{row:int}": lambda values: self._picture(values, large=False),
            "images/{row:int}": lambda values: self._picture(values, large=True),
            "api/contents/{label:int}": self._contents,
            "evidence/{row:int}/{label:int}": self._evidence,
        }
        write = {"api/answers": self._answer, "api/undo": self._undo}
        return application("review.html", read, write, token=token, hosts=hosts)

    # Reading

    def _overview(self, values: dict[str, Any]) -> Reply:
        kind = "image" if self.pictures is not None else self.contents.kind if self.contents is not None else "name"
        evidence = self.evidence is not None and self.evidence.available
        return {**self.review.overview(), "kind": kind, "evidence": evidence, "who": self.who}

    def _changes(self, values: dict[str, Any]) -> Reply:
        since = values.get("since", "")
        if not (since.isascii() and since.isdigit() and len(since) < 19):  # the database takes no larger number
            raise InputError("since must be the number of a decision")
        self.review.refresh()
        new = self.review.decisions.since(int(since))
        return {"decisions": [brief(each) for each in new], "progress": self.review.progress() if new else None}

    def _by_label(self, values: dict[str, Any]) -> Reply:
        label, order, shown = values["label"], values.get("order", "suggested"), values.get("shown", "open")
        if label >= len(self.review.classes) or order not in ORDERS or shown not in SHOWN:
            return None
        return self.review.by_label(label, order, shown)

    def _contents(self, values: dict[str, Any]) -> Reply:
        """Texts or values of some rows, with what speaks for a label."""
        label, rows = values["label"], values.get("rows", "").split(",")
        if self.contents is None or label >= len(self.review.classes) or len(rows) > _MOST_ROWS:
            return None
        if not all(row.isascii() and row.isdigit() and len(row) < 10 and self._exists(int(row)) for row in rows):
            return None
        return {"contents": self.contents.of([int(row) for row in rows], label, whole="whole" in values)}

    def _row(self, values: dict[str, Any]) -> Reply:
        return self.review.row(values["row"]) if self._exists(values["row"]) else None

    def _picture(self, values: dict[str, Any], large: bool) -> Reply:
        row = values["row"]
        if self.pictures is None or not self._exists(row):
            return None
        return self.pictures.large(row) if large else self.pictures.thumbnail(row)

    def _evidence(self, values: dict[str, Any]) -> Reply:
        if self.evidence is None or not self._exists(values["row"]) or values["label"] >= len(self.review.classes):
            return None
        return self.evidence.picture(values["row"], values["label"])

    def _exists(self, row: int) -> bool:
        return row in self.review

    # Writing

    def _answer(self, posted: dict[str, Any]) -> Reply:
        items = posted.get("items")
        if not isinstance(items, list) or not 0 < len(items) <= _MOST_ANSWERS:
            raise InputError("items must be a list of answers")
        questions = [_question(item) for item in items]
        for question in questions:
            self.review.check(question)
        return self._save(lambda who, request: self.review.answer(questions, who=who, request=request), posted)

    def _undo(self, posted: dict[str, Any]) -> Reply:
        return self._save(lambda who, request: self.review.undo(who=who, request=request), posted)

    def _save(self, act: Callable[[str, str], Recorded], posted: dict[str, Any]) -> Reply:
        who, request = posted.get("who") or self.who, posted.get("request")
        if not isinstance(who, str) or not isinstance(request, str) or not 0 < len(request) <= 100:
            raise InputError("who and request must be texts")
        try:
            recorded = act(who[:100], request)
        except InputError as error:
            raise Unsaved(str(error)) from error
        return {
            "saved": [brief(each) for each in recorded.saved],
            "conflicts": [brief(each) for each in recorded.conflicts],
            "progress": self.review.progress(),
        }


def _question(item: Any) -> Question:
    if not isinstance(item, dict) or type(item.get("row")) is not int or type(item.get("label")) is not int:
        raise InputError("an answer needs the numbers row and label")
    if type(item.get("answer")) is not int or item["answer"] not in ANSWERS.values():
        raise InputError("an answer must be 1 (yes), -1 (no) or 0 (unknown)")
    if type(item.get("seen")) is not int:
        raise InputError("an answer needs the number of the latest decision seen")
    return Question(item["row"], item["label"], item["answer"], seen=item["seen"])
