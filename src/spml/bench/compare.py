"""Tables of results: mean and standard deviation over seeds, the paper's number, the difference, paired tests."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from spml.bench.paper import Paper, PaperValue, mean_and_sd, paper_values
from spml.bench.search import RunResult
from spml.bench.significance import paired_test, with_corrected
from spml.data.csv_cells import guard_text
from spml.runs.files import write_text
from spml.training.experiment import Experiment


@dataclass(frozen=True)
class TableLine:
    """One row of the table: the chosen runs of one method on one data set (at one value of what a study varies)."""

    data: str
    method: str
    varied: str
    value: Any
    reference: bool
    """Whether it learned from more than one positive per row."""
    scores: dict[int, float]
    """By seed, in percent."""
    paper: PaperValue | None
    chosen: str
    """The selected settings, as text."""
    head: str = ""
    """The head that `--head` gave every method; empty without that option."""

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.scores.values())))

    @property
    def sd(self) -> float | None:
        return float(np.std(list(self.scores.values()), ddof=1)) if len(self.scores) > 1 else None


def table_lines(
    results: Iterable[RunResult],
    paper: Paper | None = None,
    measure: str = "test_map",
) -> list[TableLine]:
    """Return the table's rows in the order of the runs, with the paper's numbers for this measure."""
    papers = paper_values(paper, measure)
    grouped: dict[tuple[str, ...], list[RunResult]] = {}
    for result in results:
        if result.chosen and result.row.get(measure) is not None:
            search = result.search
            key = (search.base.data, search.base.entry, search.varied, repr(search.value), search.head)
            grouped.setdefault(key, []).append(result)
    lines = []
    for members in grouped.values():
        first = members[0]
        search, experiment = first.search, first.experiment
        number = papers.get((search.paper_setting(paper), experiment.entry, experiment.data))
        lines.append(
            TableLine(
                data=experiment.data,
                method=experiment.entry,
                varied=search.varied,
                value=search.value,
                reference=experiment.reference,
                scores={member.experiment.train.seed: 100 * float(member.row[measure]) for member in members},
                paper=number if search.head in ("", "own") else None,
                chosen=", ".join(
                    f"{_short(key)} {_value(experiment, key)}"
                    for key, values in search.space.items()
                    if len(values) > 1
                ),
                head=search.head,
            )
        )
    return lines


def _short(key: str) -> str:
    name = key.rpartition(".")[2]
    return {"learning_rate": "rate", "batch_size": "batch"}.get(name, name)


def _value(experiment: Experiment, key: str) -> Any:
    table, _, name = key.partition(".")
    part = getattr(experiment, table)
    return part[name] if isinstance(part, dict) else getattr(part, name)


def best_of(lines: Sequence[TableLine], data: str, head: str = "") -> TableLine | None:
    """Return the best method trained on one positive per row with this head; if there is none, the best of all."""
    candidates = [line for line in lines if (line.data, line.head) == (data, head) and not line.varied]
    usable = [line for line in candidates if not line.reference] or candidates
    return max(usable, key=lambda line: line.mean, default=None)


def csv_rows(lines: Sequence[TableLine], measure: str = "test_map") -> list[dict[str, Any]]:
    """Return the table as plain values, for a csv file."""
    rows = []
    for line in lines:
        best = best_of(lines, line.data, line.head)
        compared = best is not None and best is not line and not line.varied
        tested = paired_test(line.scores, best.scores) if best is not None and compared else None
        rows.append(
            {
                "data": line.data,
                "method": line.method,
                "head": line.head,
                "varied": line.varied,
                "value": "" if line.value is None else line.value,
                "measure": measure,
                "runs": len(line.scores),
                "mean": round(line.mean, 3),
                "sd": "" if line.sd is None else round(line.sd, 3),
                "paper": "" if line.paper is None else line.paper.value,
                "paper_sd": "" if line.paper is None or line.paper.sd is None else line.paper.sd,
                "difference": "" if line.paper is None else round(line.mean - line.paper.value, 3),
                "chosen": line.chosen,
                "best": "" if best is None else best.method,
                "to_best": "" if tested is None else round(tested.difference, 3),
                "p": None if tested is None else tested.p,
                "test": "" if tested is None else tested.name,
            }
        )
    return with_corrected(rows, "data", "head")


def pair_rows(lines: Sequence[TableLine]) -> list[dict[str, Any]]:
    """Return every two methods on one data set."""
    rows = []
    plain = [line for line in lines if not line.varied]
    for index, first in enumerate(plain):
        for second in plain[index + 1 :]:
            if (first.data, first.head) != (second.data, second.head):
                continue
            if (tested := paired_test(first.scores, second.scores)) is not None:
                row = {"data": first.data, "head": first.head, "method": first.method, "other": second.method}
                numbers = {"difference": round(tested.difference, 3), "p": tested.p, "test": tested.name}
                rows.append({**row, **numbers})
    return with_corrected(rows, "data", "head")


def display_cells(lines: Sequence[TableLine]) -> tuple[list[str], list[list[str]]]:
    """Return the table for a reader, the best first: header and cells, without empty columns."""
    lines = ranked(lines)
    rows = csv_rows(lines)
    groups = Counter((line.data, line.head) for line in lines)
    tops = [best_of(lines, *group) for group, size in groups.items() if size > 1]
    several = len({line.data for line in lines}) > 1
    header = ["data", "method", "head", "varied", "measured", "paper", "difference", "to the best", "p", "chosen"]
    cells = []
    for line, row in zip(lines, rows, strict=True):
        cells.append(
            [
                line.data if several else "",
                line.method + ("*" if line.reference else ""),
                line.head,
                f"{_short(line.varied)} {line.value}" if line.varied else "",
                mean_and_sd(line.mean, line.sd),
                str(line.paper or ""),
                "" if line.paper is None else f"{line.mean - line.paper.value:+.2f}",
                f"{row['to_best']:+.2f}"
                if row["to_best"] != ""
                else "best"
                if any(line is top for top in tops)
                else "",
                str(row["p_holm"]),
                line.chosen,
            ]
        )
    return without_empty_columns(header, cells)


def ranked(lines: Sequence[TableLine]) -> list[TableLine]:
    """Return the lines of each data set and head by score; those of a study in the order of its values."""
    if any(line.varied for line in lines):
        return list(lines)
    groups = {group: number for number, group in enumerate(dict.fromkeys((line.data, line.head) for line in lines))}
    return sorted(lines, key=lambda line: (groups[line.data, line.head], -line.mean))


def without_empty_columns(header: list[str], cells: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and cells without the columns that are empty in every row."""
    filled = [column for column in range(len(header)) if any(row[column] for row in cells)]
    return [header[column] for column in filled], [[row[column] for column in filled] for row in cells]


def explain_p(lines: Sequence[TableLine]) -> str:
    """Sentences on the p-values, or on why there are none; empty if nothing is compared."""
    compared = [row for row in csv_rows(lines) if row["to_best"] != ""]
    tested = [row for row in compared if row["test"]]
    if not tested:
        return "No p-values: a test needs at least three seeds." if compared else ""
    names = " or ".join(sorted({str(row["test"]) for row in tested}))
    best = [best_of(lines, row["data"], row["head"]) for row in tested]
    which = "" if any(line is not None and line.reference for line in best) else " trained on one positive per row"
    return (
        f"p: {names}, two-sided, against the best method{which}, corrected for the number of comparisons by Holm's "
        "method. A small p means that other seeds would probably give the same order on this data, split and draw of "
        "labels; it says nothing about other data."
    )


def markdown(title: str, header: Sequence[str], cells: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return the table in Markdown."""
    rows = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *cells)]
    return "\n".join([f"# {title}", "", *rows, "", *(f"- {note}" for note in notes if note)]) + "\n"


def explain_diverged(results: Sequence[RunResult]) -> str:
    """Return a sentence on entries that diverged at all settings."""
    lost = dict.fromkeys(result.experiment.entry for result in results if result.chosen and result.row.get("diverged"))
    if not lost:
        return ""
    return (
        f"{', '.join(lost)}: diverged in the first epoch with all settings that were tried. Use lower "
        "learning rates, or check the loss at large logits."
    )


def run_rows(results: Sequence[RunResult], origin: Mapping[str, str], title: str) -> list[dict[str, Any]]:
    """Return all runs, chosen or not, with their origin; a run that two heads of `--head` share is listed once."""
    rows, listed = [], set[tuple[Any, ...]]()
    for result in results:
        experiment = result.experiment
        key = (experiment, result.search.varied, repr(result.search.value), result.chosen)
        if key in listed:
            continue
        listed.add(key)
        row = {key: value for key, value in result.row.items() if not isinstance(value, list)}
        rows.append(
            {
                "bench": title,
                "data": experiment.data,
                "method": experiment.entry,
                "varied": result.search.varied,
                "value": "" if result.search.value is None else result.search.value,
                "settings": json.dumps(experiment.settings),
                "learning_rate": experiment.train.learning_rate,
                "batch_size": experiment.train.batch_size,
                "epochs": experiment.train.epochs,
                "seed": experiment.train.seed,
                "chosen": result.chosen,
                **{key: value for key, value in row.items() if key not in ("method", "settings", "seed")},
                **origin,
            }
        )
    return rows


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, which may have different columns, atomically."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: guard_text("" if value is None else value) for key, value in row.items()} for row in rows)
    write_text(path, text.getvalue())
