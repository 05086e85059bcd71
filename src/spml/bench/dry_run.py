"""What a plan would run, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spml.bench.draws import Draw
from spml.bench.plan import Plan
from spml.bench.protocols import Cell, PaperValue, paper_values
from spml.bench.run import BenchTable
from spml.bench.search import seeded
from spml.bench.trials import Runner, Trial, grid_points

HEADER = ["data", "method", "backbone", "at", "settings", "epochs", "rate", "batch", "k", "draw", "seeds", "paper"]


def dry_run(plan: Plan, out: Path | None = None) -> BenchTable:
    """List the runs of a plan, with the paper's numbers; works without the data.

    Parameters
    ----------
    plan : Plan
    out : Path, optional
        Folder of results; runs that it holds are counted as done.

    Returns
    -------
    BenchTable
        One row for each setting, and notes with the number of runs.
    """
    runner = Runner(plan.sources, out / "runs") if plan.sources and out is not None else None
    papers = paper_values(plan.protocol.paper)
    rows, count, done = [], 0, 0
    for cell in plan.cells:
        by_optuna = plan.optuna if cell.space else None
        points: list[dict[str, Any]] = [{}] if by_optuna else list(grid_points(cell.space))
        tried = by_optuna.trials if by_optuna else len(points)
        every = plan.protocol.select_on == "every seed" or tried == 1
        seeds = plan.seeds if every else plan.seeds[:1]
        paper = papers.get((cell.paper_setting(plan.protocol.paper), cell.base.entry, cell.base.data))
        for point in points:
            trial = cell.base.changed(point)
            done += sum(runner.done(seeded(trial, seed)) for seed in seeds) if runner else 0
            rows.append([*_described(cell, trial), ",".join(map(str, seeds)), _number(paper)])
        count += tried * len(seeds) + len(plan.seeds) - len(seeds)  # the chosen setting, with the other seeds
    notes = list(plan.notes)
    if plan.optuna:
        notes.append("optuna searches, for each line: " + "; ".join(dict.fromkeys(_space(cell) for cell in plan.cells)))
    notes.append(f"{count} runs, {done} of them already done.")
    return BenchTable(f"{plan.title}: {plan.where}", HEADER, rows, notes)


def _described(cell: Cell, trial: Trial) -> list[str]:
    draw = {key: value for key, value in vars(trial.draw).items() if value != getattr(Draw(), key)}
    train = trial.train
    return [
        trial.data,
        trial.entry,
        f"{trial.backbone} {trial.image_size}",
        f"{cell.varied} {cell.value}" if cell.varied else "",
        ", ".join(f"{key} {value}" for key, value in trial.settings.items())
        + (" LinearInit" if trial.linear_init else ""),
        str(train.epochs),
        f"{train.learning_rate:g}",
        str(train.batch_size),
        "" if trial.k is None else f"{trial.k:g}",
        ", ".join(f"{key} {value}" for key, value in draw.items()),
    ]


def _number(paper: PaperValue | None) -> str:
    return "" if paper is None else f"{paper.value:.2f}" + ("" if paper.sd is None else f" ± {paper.sd:.2f}")


def _space(cell: Cell) -> str:
    return ", ".join(f"{key} in {list(values)}" for key, values in cell.space.items()) or "nothing"
