"""Decisions as files: CSV, parquet and Label Studio tasks, and back from Label Studio."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict
from urllib.parse import unquote

import msgspec

from spml.errors import InputError
from spml.json_text import parse_json
from spml.recover.label_studio import ABSENT, PRESENT, chosen, task_data
from spml.runs.decisions import ANSWERS, Decision, Decisions, Question, Subject
from spml.runs.files import atomic_path, explain_write_errors

FORMATS = {".csv": "csv", ".parquet": "parquet", ".json": "label-studio"}


def export_decisions(
    decisions: Decisions,
    path: Path,
    *,
    texts: Sequence[str] | None = None,
    prefix: str = "",
    history: bool = False,
    allow_formulas: bool = False,
) -> int:
    """Write the decisions that count to a file.

    Parameters
    ----------
    decisions : Decisions
    path : Path
        .csv or .parquet: one line per decision, with the columns name, label, answer, who, at, confidence, model, row,
        id; .json: Label Studio tasks with annotations, for the configuration of `label_studio_config`.
    texts : sequence of str, optional
        The text of every row, if the data is texts: Label Studio tasks then show texts instead of images.
    prefix : str
        Label Studio: prepended to every image path.
    history : bool
        CSV and parquet: every decision ever made, also those that were changed or undone later.
    allow_formulas : bool
        CSV: write cells that a spreadsheet would run as formulas as they are, without an apostrophe in front.

    Returns
    -------
    int
        Number of decisions written.

    Raises
    ------
    InputError
        If the ending is another one, or the file cannot be written.
    """
    form = check_export(path, prefix)
    written = decisions.since() if history and form != "label-studio" else decisions.current()
    with atomic_path(path) as temporary, explain_write_errors(path):
        if form == "label-studio":
            tasks = _tasks(decisions, written, texts, prefix)
            temporary.write_text(json.dumps(tasks, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        else:
            _write_table(decisions, written, temporary, form, allow_formulas)
    return len(written)


def check_export(path: Path, prefix: str = "") -> str:
    """The format of a file for decisions, by its ending; raises `InputError` for another ending."""
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise InputError(f"{path}: decisions are exported to {', '.join(FORMATS)} (Label Studio): use such an ending")
    if prefix and form != "label-studio":
        raise InputError(f"{path}: prefix applies only to .json: leave it out")
    return form


def import_label_studio(
    decisions: Decisions, path: Path, *, texts: Sequence[str] | None = None, rest_absent: bool = False
) -> int:
    """Record the annotations of tasks that Label Studio exported as JSON.

    Parameters
    ----------
    decisions : Decisions
    path : Path
        The export. A task belongs to the row whose name is its `name`, `image` or `text`, or ends its image's address,
        or to the only row with its text. Choices of the list `absent` are answers no; all others are answers yes.
    texts : sequence of str, optional
        The text of every row, if the data is texts.
    rest_absent : bool
        Whether labels that an annotation does not mention are answers no. By default they stay open.

    Returns
    -------
    int
        Number of new decisions. Importing the same annotations again adds none.

    Raises
    ------
    InputError
        If the file is not such an export, or a task or choice is not part of the data. Nothing is recorded then.
    """
    annotations = read_label_studio(path, decisions.subject, texts)
    known = {(decision.row, decision.label): decision.answer for decision in decisions.current()}
    actions: list[tuple[str, list[Question]]] = []
    for annotation in annotations:
        answers = annotation.answers
        if rest_absent:
            answers = {label: answers.get(label, -1) for label in range(len(decisions.subject.classes))}
        new = [
            Question(annotation.row, label, answer)
            for label, answer in answers.items()
            if known.get((annotation.row, label)) != answer
        ]
        known |= {(annotation.row, question.label): question.answer for question in new}
        actions.append((annotation.who, new))
    for who, questions in actions:
        decisions.record(questions, who=who, model="label studio")
    return sum(len(questions) for _, questions in actions)


class Annotation(NamedTuple):
    """The answers of one person about one row."""

    row: int
    who: str
    answers: dict[int, int]
    """By class: 1 yes, -1 no."""


class _Choices(TypedDict):
    choices: NotRequired[list[str]]


class _Result(TypedDict):
    type: NotRequired[str]
    from_name: NotRequired[str]
    value: NotRequired[Any]
    meta: NotRequired[Any]


class _Annotation(TypedDict):
    result: NotRequired[list[_Result] | None]
    was_cancelled: NotRequired[bool | None]
    completed_by: NotRequired[Any]


class _Task(TypedDict):
    data: dict[str, Any]
    annotations: NotRequired[list[_Annotation] | None]


def read_label_studio(path: Path, subject: Subject, texts: Sequence[str] | None = None) -> list[Annotation]:
    """Read the annotations of tasks that Label Studio exported as JSON; see `import_label_studio`."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        content = parse_json(path.read_text(encoding="utf-8-sig"))
        tasks: list[_Task] = msgspec.convert(content, list[_Task])
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is not a list of Label Studio tasks ({error}): export the project as JSON") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error})") from None
    rows, classes = _Names(subject.names, texts or ()), {name: c for c, name in enumerate(subject.classes)}
    found: list[Annotation] = []
    answered: dict[int, dict[int, int]] = {}
    _check_lists(path, tasks)
    for number, task in enumerate(tasks, start=1):
        place = f"{path}, task {number}"
        row = rows.find(task["data"], place)
        for annotation in task.get("annotations") or []:
            if not annotation.get("was_cancelled"):
                found.append(Annotation(row, _annotator(annotation), _answers(annotation, classes, place)))
                _check_agreement(found[-1], answered.setdefault(row, {}), subject, place)
    return found


def _check_lists(path: Path, tasks: Sequence[_Task]) -> None:
    """Raise `InputError` if nothing says which of several lists of choices means absent."""
    results = [
        result
        for task in tasks
        for annotation in task.get("annotations") or []
        for result in annotation.get("result") or []
        if result.get("type") == "choices" and not annotation.get("was_cancelled")
    ]
    others = sorted({result.get("from_name", PRESENT) for result in results} - {ABSENT})
    if len(others) > 1 or (others and others[0].casefold() == ABSENT):
        raise InputError(
            f"{path}: the choices come from the lists {', '.join(map(repr, others))}, and which of them are absent "
            f"labels is open: name that list {ABSENT!r}, the other one {PRESENT!r}"
        )


def _check_agreement(annotation: Annotation, before: dict[int, int], subject: Subject, place: str) -> None:
    """Raise `InputError` if two annotations of a row contradict each other: nobody has decided which one counts."""
    for label, answer in annotation.answers.items():
        if before.setdefault(label, answer) != answer:
            raise InputError(
                f"{place}: two annotations of {subject.names[annotation.row]!r} disagree about "
                f"{subject.classes[label]!r}: correct one of them in Label Studio"
            )


def _write_table(decisions: Decisions, written: list[Decision], path: Path, form: str, allow_formulas: bool) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    from spml.data.csv_cells import write_csv

    names, classes = decisions.subject.names, decisions.subject.classes
    table = pa.table(
        {
            "name": pa.array([names[each.row] for each in written], pa.string()),
            "label": pa.array([classes[each.label] for each in written], pa.string()),
            "answer": pa.array([each.word for each in written], pa.string()),
            "who": pa.array([each.who for each in written], pa.string()),
            "at": pa.array([each.at for each in written], pa.string()),
            "confidence": pa.array([each.confidence for each in written], pa.float64()),
            "model": pa.array([each.model for each in written], pa.string()),
            "row": pa.array([each.row for each in written], pa.int64()),
            "id": pa.array([each.id for each in written], pa.int64()),
        }
    )
    if form == "csv":
        write_csv(table, path, allow_formulas=allow_formulas)
    else:
        parquet.write_table(table, path)


def _tasks(
    decisions: Decisions, written: list[Decision], texts: Sequence[str] | None, prefix: str
) -> list[dict[str, Any]]:
    """One task per row with a decision, and one annotation per person.

    Label Studio refuses annotations of people that it does not know. So they belong to whoever imports them, and
    `meta` says who answered.
    """
    names, classes = decisions.subject.names, decisions.subject.classes
    by_row: defaultdict[int, defaultdict[str, list[Decision]]] = defaultdict(lambda: defaultdict(list))
    for decision in written:
        by_row[decision.row][decision.who].append(decision)
    return [
        {
            "data": task_data(names[row], prefix=prefix, text=None if texts is None else texts[row]),
            "annotations": [
                {"result": _results(row, classes, who, theirs, texts is not None)} for who, theirs in people.items()
            ],
        }
        for row, people in sorted(by_row.items())
    ]


def _results(
    row: int, classes: tuple[str, ...], who: str, decisions: list[Decision], texts: bool
) -> list[dict[str, Any]]:
    results = []
    for among, answer in ((PRESENT, ANSWERS["yes"]), (ABSENT, ANSWERS["no"])):
        choices = [classes[decision.label] for decision in decisions if decision.answer == answer]
        if choices:
            results.append({**chosen(choices, row=row, among=among, texts=texts), "meta": {"text": [who]}})
    return results


def _answers(annotation: _Annotation, classes: dict[str, int], place: str) -> dict[int, int]:
    answers: dict[int, int] = {}
    for result in annotation.get("result") or []:
        kind = result.get("type", "")
        if kind == "taxonomy" or kind.endswith("labels"):  # comments, ratings and the like say nothing about labels
            raise InputError(f"{place}: results of the type {kind!r} cannot be read: use choices for labels")
        if kind != "choices":
            continue
        answer = ANSWERS["no"] if result.get("from_name") == ABSENT else ANSWERS["yes"]
        try:
            value = msgspec.convert(result.get("value", {}), _Choices)
        except msgspec.ValidationError as error:
            raise InputError(f"{place}: its choices cannot be read ({error})") from None
        for choice in value.get("choices", []):
            if choice not in classes:
                raise InputError(f"{place}: the choice {choice!r} is not one of the {len(classes)} classes")
            if answers.setdefault(classes[choice], answer) != answer:
                raise InputError(f"{place}: {choice!r} is both present and absent: correct it in Label Studio")
    return answers


def _annotator(annotation: _Annotation) -> str:
    person = annotation.get("completed_by")
    if isinstance(person, dict):
        person = person.get("email") or person.get("username") or person.get("id")
    for result in annotation.get("result") or []:
        meta = result.get("meta")
        notes = meta.get("text") if isinstance(meta, dict) else None
        if not person and isinstance(notes, list) and notes:
            person = notes[0]
    return str(person or "label studio")


class _Names:
    """Finds the row of a Label Studio task."""

    def __init__(self, names: Iterable[str], texts: Sequence[str]) -> None:
        self.rows = {name: row for row, name in enumerate(names)}
        self.texts = _unique((text.strip(), row) for row, text in enumerate(texts))
        self.ends = _unique((name.rpartition("/")[2], row) for name, row in self.rows.items())

    def find(self, data: dict[str, Any], place: str) -> int:
        """The row, by its name, its text, or the end of an address; texts and file names only if one row has them."""
        candidates = [str(data[key]) for key in ("name", "image", "text") if data.get(key)]
        for candidate in candidates:
            if candidate in self.rows:
                return self.rows[candidate]
        if (text := str(data.get("text", "")).strip()) in self.texts:
            return self.texts[text]
        for candidate in candidates:
            row = self._by_address(candidate)
            if row is not None:
                return row
        name = candidates[0] if candidates else ""
        name = name if len(name) <= 80 else f"{name[:80]}…"
        raise InputError(f"{place}: no row is named {name!r}: add its name to the task")

    def _by_address(self, address: str) -> int | None:
        """The row whose name ends an address: the longest such name, or the only one with this file name."""
        _, local, path = address.partition("?d=")  # /data/local-files/?d=photos/cat/1.jpg
        parts = unquote(path if local else address.partition("?")[0]).split("/")
        for start in range(len(parts)):
            row = self.rows.get("/".join(parts[start:]))
            if row is not None:
                return row
        uploaded = parts[-1].partition("-")[2]  # Label Studio puts eight digits and a hyphen before uploaded files
        return self.ends.get(parts[-1], self.ends.get(uploaded))


def _unique(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The row of every text that only one row has."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for text, row in pairs:
        rows[text].append(row)
    return {text: found[0] for text, found in rows.items() if len(found) == 1}
