"""The HTML report of a bench: ranking, table, curves, and the runs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from spml.bench.compare import TableLine, display_cells
from spml.bench.plan import BenchPlan
from spml.bench.runner import Runner, plural
from spml.bench.search import RunResult
from spml.methods import METHODS
from spml.report.comparison import comparison, comparison_opening
from spml.report.figures import Series, Spread, figure, line_chart, spreads
from spml.report.markup import Html, join, tag
from spml.report.page import page
from spml.report.sections import Section
from spml.report.studies import StudyChart, studies_section
from spml.report.tables import RunTables
from spml.runs.files import write_text
from spml.runs.folder import RunFolder

_MAX_PICTURED = 12  # largest number of runs that a report shows individually


def write_bench_report(
    path: Path, plan: BenchPlan, lines: Sequence[TableLine], measure: str, notes: Sequence[str],
    charts: Sequence[StudyChart], results: Sequence[RunResult], runner: Runner,
) -> None:  # fmt: skip
    """Write the table, the charts and, if there are not too many, the runs as one HTML file.

    A study starts with its charts, a protocol with its table.
    """
    lead = " ".join(filter(None, (_count(results), plan.changed)))
    table = join(_html_table(*display_cells(lines)), tag("ul", *(tag("li", note) for note in notes if note)))
    opening = join(tag("p", lead, class_="lead"), *([] if charts else [*_ranking(lines, measure), table]))
    parts: list[Section] = [studies_section(charts), Section("numbers", "The numbers", table)] if charts else []
    curves = _curves(results)
    if curves is not None and not charts:
        parts.append(Section("curves-of-heads", "Over the epochs", tag("div", curves, class_="figures")))
    pictured, without_weights = _pictured(results, runner)
    if len(pictured) > 1:
        tables = [RunTables(run) for run in pictured]  # uncalibrated probabilities, as in the papers
        _, _, compared = comparison_opening(tables)
        intro = explain_thresholds([run.method for run in pictured])
        if without_weights:
            intro += f" Without {', '.join(without_weights)}, whose weights were not kept."
        parts.append(Section("methods", "What the runs recover", compared, intro))
        parts += comparison(tables, {})
    write_text(path, page(plan.title, plan.where, opening, parts))


def _count(results: Sequence[RunResult]) -> str:
    """State the number of runs and, if settings were searched, how many have the selected ones."""
    chosen = sum(result.chosen for result in results)
    runs = plural(len(results), "run")
    return f"{runs}." if chosen == len(results) else f"{runs}, {chosen} of them with the selected settings."


def explain_thresholds(methods: Sequence[str]) -> str:
    """State above which probability a label counts as present: the `f1_threshold` of each method."""
    by_threshold: dict[float, list[str]] = {}
    for name in sorted(set(methods)):
        by_threshold.setdefault(METHODS[name].f1_threshold, []).append(name)
    usual = max(by_threshold, key=lambda threshold: len(by_threshold[threshold]))
    others = [
        f"{threshold:g} for {', '.join(by_threshold[threshold])}" for threshold in by_threshold if threshold != usual
    ]
    stated = "; ".join([*others, f"{usual:g} for all others"]) if others else f"{usual:g}"
    return (
        "As in the papers, probabilities are not calibrated, and a label counts as present above the method's own "
        f"threshold: {stated}."
    )


def _ranking(lines: Sequence[TableLine], measure: str) -> Iterator[Html]:
    """For each data set, its methods from best to worst with a dot per run; nothing for a single method."""
    for data in dict.fromkeys(line.data for line in lines if not line.varied):
        ranked = sorted((line for line in lines if line.data == data), key=lambda line: -line.mean)
        if len(ranked) < 2:
            continue
        entries = [
            Spread(
                line.method + ("*" if line.reference else "") + (f", {line.head} head" if line.head else ""),
                list(line.scores.values()),
                f"{line.mean:.1f}",
                line.paper.value if line.paper else None,
                "s2" if line.reference else "s1",
            )
            for line in ranked
        ]
        note = "Every dot is a run" + (", a ring is the paper's number" if any(line.paper for line in ranked) else "")
        if any(line.reference for line in ranked):
            note += "; * trained on more than one positive per row"
        yield figure(f"{measure[0].upper()}{measure[1:]} on {data}", spreads(entries), note=f"{note}.")


def _curves(results: Sequence[RunResult]) -> Html | None:
    """Validation mAP of linear heads over epochs: the first seed of each method, with the selected settings."""
    series: dict[str, Series] = {}
    for result in results:
        curve = result.row.get("validation_curve")
        if result.chosen and curve:
            points = [100 * value for value in curve]
            series.setdefault(
                result.experiment.entry, Series(result.experiment.entry, list(range(1, len(curve) + 1)), points)
            )
    if not series:
        return None
    note = "On the fully labelled validation rows, with the selected learning rate and batch size."
    return line_chart(
        list(series.values()), title="Validation mAP", x_label="epoch", y_label="mAP", whole_x=True, note=note
    )


def _pictured(results: Sequence[RunResult], runner: Runner) -> tuple[list[RunFolder], list[str]]:
    """Return the chosen runs of a protocol on one data set, at most of the first seed; and entries without weights."""
    heads = [result.search.head for result in results]
    chosen = [result for result in results if result.chosen and not result.search.varied]
    chosen = [result for result in chosen if result.search.head == heads[0]]  # of one head: names appear once
    if len({result.experiment.data for result in chosen}) != 1:
        return [], []
    if len(chosen) > _MAX_PICTURED:
        seed = chosen[0].experiment.train.seed
        chosen = [result for result in chosen if result.experiment.train.seed == seed]
    runs = [runner.finished(result.experiment) for result in chosen]
    unseen = [result for result, run in zip(chosen, runs, strict=True) if run is None]
    without_weights = dict.fromkeys(result.experiment.entry for result in unseen if not result.row.get("diverged"))
    return [run for run in runs if run is not None], list(without_weights)


def _html_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> Html:
    head = tag("tr", *(tag("th", name, scope="col") for name in header))
    rows = [
        tag("tr", *(tag("td" if column else "th", cell, data_name=header[column]) for column, cell in enumerate(row)))
        for row in cells
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="card compare")
