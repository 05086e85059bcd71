"""Run a plan: train, search, and write tables and a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spml.bench import compare
from spml.bench.origin import origin_of
from spml.bench.plan import BenchPlan
from spml.bench.report import write_bench_report
from spml.bench.runner import Runner
from spml.bench.search import RunResult, execute
from spml.bench.studies import MEASURES, interval_rows
from spml.errors import InputError
from spml.runs.files import lock_folder, write_text
from spml.training.device import choose_device

OPTUNA_HEADS = 8  # linear heads that optuna asks for at a time: they are trained as one matrix


@dataclass(frozen=True)
class BenchTable:
    """A table to print: of results, or of what would run.

    Parameters
    ----------
    title : str
    header : list of str
    rows : list of list of str
    notes : list of str
        Sentences below the table.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]


def run(
    plan: BenchPlan,
    out: Path,
    *,
    device: str = "auto",
    workers: int = 1,
    notify: Callable[[str], None] = lambda line: None,
) -> BenchTable:
    """Run everything of a plan that has not run before and write the results.

    Parameters
    ----------
    plan : BenchPlan
    out : Path
        Folder for runs, tables and report. Results that it holds are reused.
    device : {"auto", "cpu", "cuda"}
    workers : int
        Number of runs at a time.
    notify : callable
        Receives progress messages.

    Returns
    -------
    BenchTable
        The table of results; `out` holds it as table.md and table.csv, all runs as runs.csv, and report.html.
    """
    folders = [(source.path if source.path.is_dir() else source.path.parent).resolve() for source in plan.sources]
    if out.resolve() in folders and not (out / "runs").exists():
        raise InputError(f"--out {out} is the folder of the data: use another folder")
    with lock_folder(out):
        runner = Runner(plan.sources, out / "runs", device=device, workers=workers, notify=notify)
        at_once = OPTUNA_HEADS if plan.protocol.features else workers
        optuna = replace(plan.optuna, at_once=at_once) if plan.optuna else None
        results = execute(plan.searches, plan.seeds, runner, plan.protocol.select_on, optuna)
        chosen = [result.experiment for result in results if result.chosen]
        runner.forget_weights([result.experiment for result in results], chosen)
        return _write(plan, runner, results, out)


def _write(plan: BenchPlan, runner: Runner, results: Sequence[RunResult], out: Path) -> BenchTable:
    measures = plan.study.y if plan.study else ("test_map",)
    paper = plan.protocol.paper
    by_measure = {measure: compare.table_lines(results, paper, measure) for measure in measures}
    lines = by_measure[measures[0]]
    if not lines:
        raise InputError(compare.explain_diverged(results) or f"no run has a value for {MEASURES[measures[0]]}")
    rows = compare.run_rows(results, origin_of(str(choose_device(runner.device))), plan.protocol.name)
    notes = _notes(plan, runner, results, lines, MEASURES[measures[0]])
    charts = plan.study.charts([row for row in rows if row["chosen"]]) if plan.study else []
    measured, report = MEASURES[measures[0]], out / "report.html"
    # The report reads the runs again: if one of them is damaged, no file has been written yet.
    write_bench_report(report, plan, lines, measured, notes, charts, results, runner)
    compare.write_csv(out / "runs.csv", rows)
    table = [row for measure, part in by_measure.items() for row in compare.csv_rows(part, measure)]
    compare.write_csv(out / "table.csv", table)
    if pairs := compare.pair_rows(lines):
        compare.write_csv(out / "pairs.csv", pairs)
    if plan.study and plan.study.intervals:
        compare.write_csv(out / "intervals.csv", interval_rows(plan.datasets))
    header, cells = compare.display_cells(lines)
    write_text(out / "table.md", compare.markdown(plan.title, header, cells, notes))
    return BenchTable(plan.title, header, cells, notes)


def _notes(
    plan: BenchPlan, runner: Runner, results: Sequence[RunResult], lines: Sequence[compare.TableLine], measured: str
) -> list[str]:
    paper, seeds = plan.protocol.paper, ", ".join(map(str, plan.seeds))
    over = f"mean ± standard deviation over seeds {seeds}" if len(plan.seeds) > 1 else f"seed {seeds} alone"
    notes = [
        f"{measured[0].upper()}{measured[1:]} in percent, {over}.",
        f"The paper's numbers: {paper.file}, Table {paper.table}." if paper and any(x.paper for x in lines) else "",
        "Methods with * are references: they learned from more than one positive per row."
        if any(x.reference for x in lines)
        else "",
        compare.explain_diverged(results),
        *runner.notes,
        *plan.notes,
        compare.explain_p(lines),
    ]
    return [note for note in notes if note]
