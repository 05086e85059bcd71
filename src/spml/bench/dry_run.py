"""What a plan would run, without running it."""

from __future__ import annotations

from pathlib import Path

from spml.bench.plan import Plan
from spml.bench.protocols import PaperValue, Search, paper_values
from spml.bench.run import BenchTable
from spml.bench.runner import Runner
from spml.train.experiment import Experiment
from spml.train.label_draw import LabelDraw

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
    for search in plan.searches:
        by_optuna = plan.optuna if search.space else None
        points = [search.base] if by_optuna else search.points()
        tried = by_optuna.trials if by_optuna else len(points)
        every = plan.protocol.select_on == "every seed" or tried == 1
        seeds = plan.seeds if every else plan.seeds[:1]
        paper = papers.get((search.paper_setting(plan.protocol.paper), search.base.entry, search.base.data))
        for experiment in points:
            done += sum(runner.done(experiment.seeded(seed)) for seed in seeds) if runner else 0
            rows.append([*_described(search, experiment), ",".join(map(str, seeds)), _number(paper)])
        count += tried * len(seeds) + len(plan.seeds) - len(seeds)  # the chosen setting, with the other seeds
    notes = list(plan.notes)
    if plan.optuna:
        notes.append("optuna searches, for each line: " + "; ".join(dict.fromkeys(map(_space, plan.searches))))
    notes.append(f"{count} runs, {done} of them already done.")
    return BenchTable(f"{plan.title}: {plan.where}", HEADER, rows, notes)


def _described(search: Search, experiment: Experiment) -> list[str]:
    default = LabelDraw()
    draw = {key: value for key, value in vars(experiment.draw or default).items() if value != getattr(default, key)}
    train = experiment.train
    return [
        experiment.data,
        experiment.entry,
        f"{experiment.backbone} {experiment.image_size}",
        f"{search.varied} {search.value}" if search.varied else "",
        ", ".join(f"{key} {value}" for key, value in experiment.settings.items())
        + (" LinearInit" if experiment.linear_init else ""),
        str(train.epochs),
        f"{train.learning_rate:g}",
        str(train.batch_size),
        "" if experiment.k is None else f"{experiment.k:g}",
        ", ".join(f"{key} {value}" for key, value in draw.items()),
    ]


def _number(paper: PaperValue | None) -> str:
    return "" if paper is None else f"{paper.value:.2f}" + ("" if paper.sd is None else f" ± {paper.sd:.2f}")


def _space(search: Search) -> str:
    return ", ".join(f"{key} in {list(values)}" for key, values in search.space.items()) or "nothing"
