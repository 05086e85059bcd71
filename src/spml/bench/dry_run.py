"""What a plan would run, without running it."""

from __future__ import annotations

from pathlib import Path

from spml.bench.compare import without_empty_columns
from spml.bench.paper import paper_values
from spml.bench.plan import BenchPlan
from spml.bench.protocols import Search
from spml.bench.run import BenchTable
from spml.bench.runner import Runner
from spml.data.describe import PAPERS
from spml.methods import METHODS
from spml.training.experiment import Experiment
from spml.training.label_draw import LabelDraw

HEADER = [
    "data",
    "method",
    "head",
    "backbone",
    "varied",
    "settings",
    "epochs",
    "rate",
    "batch",
    "k",
    "draw",
    "seeds",
    "paper",
]

IMAGE_SECONDS = 25 / (10 * 4574)  # measured: 10 epochs of 4,574 images, one view, Lite2 at 320 pixels, on an H200
HEAD_SECONDS = 31 / (264 * 25 * 4574)  # measured: 264 heads, 25 epochs of 4,574 rows, on an H200
RELATIVE_COST = {  # multiply-adds per pixel, relative to Lite2
    **{"lite0": 0.61, "lite1": 0.84, "lite2": 1.0},
    **{"resnet34": 5.5, "resnet50": 6.2, "resnet101": 11.8},
}


def dry_run(plan: BenchPlan, out: Path | None = None) -> BenchTable:
    """List the runs of a plan, with the paper's numbers and an estimate of GPU hours; works without the data.

    Parameters
    ----------
    plan : BenchPlan
    out : Path, optional
        Folder of results; runs that it holds are counted as done.

    Returns
    -------
    BenchTable
        One row for each setting, and notes with the number of runs and the estimate.
    """
    runner = Runner(plan.sources, out / "runs") if plan.sources and out is not None else None
    papers = paper_values(plan.protocol.paper)
    rows, count, done, seconds = [], 0, 0, 0.0
    for search in plan.searches:
        by_optuna = plan.optuna if search.space else None
        points = [search.base] if by_optuna else search.points()
        tried = by_optuna.trials if by_optuna else len(points)
        uses_all_seeds = plan.protocol.select_on == "every seed" or tried == 1
        seeds = plan.seeds if uses_all_seeds else plan.seeds[:1]
        paper = papers.get((search.paper_setting(plan.protocol.paper), search.base.entry, search.base.data))
        for experiment in points:
            done += sum(runner.done(experiment.seeded(seed)) for seed in seeds) if runner else 0
            rows.append([*_cells(search, experiment), ",".join(map(str, seeds)), str(paper or "")])
        runs = tried * len(seeds) + len(plan.seeds) - len(seeds)  # the chosen setting also with the other seeds
        count, seconds = count + runs, seconds + runs * _seconds(search.base, plan)
    notes = list(plan.notes)
    if plan.optuna:
        notes.append("optuna searches, for each line: " + "; ".join(dict.fromkeys(map(_describe_space, plan.searches))))
    notes += [_estimate(seconds, plan), f"{count} runs, {done} of them already done."]
    return BenchTable(f"{plan.title}: {plan.where}", *without_empty_columns(HEADER, rows), notes)


def _seconds(experiment: Experiment, plan: BenchPlan) -> float:
    """Estimated seconds of one run on the reference GPU; 0 if the number of training rows is unknown."""
    share = experiment.draw.rows if experiment.draw else 1.0
    passes = share * _rows(experiment.data, plan) * experiment.train.epochs
    if experiment.features:
        return HEAD_SECONDS * passes
    views = len(METHODS[experiment.method].needs.views)
    pixels = (experiment.image_size / 320) ** 2
    return IMAGE_SECONDS * passes * views * pixels * RELATIVE_COST.get(experiment.backbone.partition(".")[0], 1.0)


def _rows(data: str, plan: BenchPlan) -> int:
    if data in plan.datasets:
        return len(plan.datasets[data].train)
    return PAPERS[data].train if data in PAPERS else 0


def _estimate(seconds: float, plan: BenchPlan) -> str:
    unknown = {search.base.data for search in plan.searches if not _rows(search.base.data, plan)}
    if plan.protocol.features:
        basis = f"{1e6 * HEAD_SECONDS:.1f} µs per head, row and epoch on an H200, without computing features"
    else:
        basis = (
            f"{1e3 * IMAGE_SECONDS:.2f} ms per image, view and epoch (Lite2 at 320 pixels on an H200), scaled by "
            "pixels and by the backbone's multiply-adds"
        )
    if unknown and not seconds:
        return f"No estimate of GPU hours: the size of {', '.join(sorted(unknown))} is unknown."
    left_out = f" Not included: {', '.join(sorted(unknown))}, whose size is unknown." if unknown else ""
    return f"About {_hours(seconds)} GPU hours, assuming {basis}.{left_out}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.0f}" if seconds >= 99.5 * 3600 else f"{seconds / 3600:.2g}"


def _cells(search: Search, experiment: Experiment) -> list[str]:
    default = LabelDraw()
    draw = {key: value for key, value in vars(experiment.draw or default).items() if value != getattr(default, key)}
    train = experiment.train
    return [
        experiment.data,
        experiment.entry,
        search.head,
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


def _describe_space(search: Search) -> str:
    return ", ".join(f"{key} in {list(values)}" for key, values in search.space.items()) or "nothing"
