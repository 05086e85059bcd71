"""spml bench: a protocol or a study, from its file to tables and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spml.errors import InputError

if TYPE_CHECKING:
    from spml.bench.protocols import Cell, Protocol
    from spml.bench.studies import Study
    from spml.bench.trials import Runner, Source


def bench(
    name: str,
    *,
    data: Sequence[str],
    out: Path | None,
    methods: str | None,
    seeds: str | None,
    features: bool,
    search: str | None,
    trials: int | None,
    storage: str | None,
    workers: int,
    device: str,
    changes: Sequence[str],
    dry_run: bool,
) -> None:
    """Run the protocol or study `name`; the arguments are the options of `spml bench`."""
    _check_name(name)
    from spml.bench.trials import Runner, Source
    from spml.train.loop import choose_device

    choose_device(device)  # what is wrong with it is said now
    sources = [Source.parse(text) for text in data or _built_in(name)]
    if not sources:
        raise InputError("give the data: --data voc12=PATH")
    names = [source.name for source in sources]
    if twice := [each for each in dict.fromkeys(names) if names.count(each) > 1]:
        raise InputError(f"--data {twice[0]}=… is given {names.count(twice[0])} times: give each data set once")
    if out is None and not dry_run:
        raise InputError("give the folder for the results: --out DIR")
    plan = _plan(name, sources, methods, seeds, features, search, changes)
    runner = Runner(sources, (out or Path()) / "runs", device=device, workers=workers, say=typer.echo)
    for option, given in (("--trials", trials), ("--storage", storage)):
        if given is not None and plan.search != "optuna":
            raise InputError(f"{option} is for --search optuna, and the search here is {plan.search!r}")
    for note in plan.notes:
        typer.echo(note)
    if dry_run:
        _print_runs(plan, runner, trials)
        return
    assert out is not None
    from spml.runs.checkpoint import claimed

    with claimed(out):
        _run(plan, runner, out, trials, storage)


def _built_in(name: str) -> list[str]:
    """The built-in data, for a protocol on nothing else."""
    from spml.bench.packs import SCENES
    from spml.bench.protocols import read_toml, shipped

    there = name in shipped("protocols") or Path(name).is_file()
    data = read_toml("protocols", name).get("data") if there else None
    return [f"{SCENES}={SCENES}"] if isinstance(data, dict) and set(data) == {SCENES} else []


@dataclass(frozen=True)
class Plan:
    """What a command was asked for: the cells to run, and how."""

    protocol: Protocol
    study: Study | None
    cells: list[Cell]
    seeds: tuple[int, ...]
    search: str
    notes: list[str]

    @property
    def title(self) -> str:
        return self.study.title if self.study else self.protocol.title

    @property
    def where(self) -> str:
        return (self.study.where if self.study else "") or self.protocol.name


def _plan(
    name: str,
    sources: Sequence[Source],
    methods: str | None,
    seeds: str | None,
    features: bool,
    search: str | None,
    changes: Sequence[str],
) -> Plan:
    from spml.bench.protocols import SEARCHES, load_protocol, one_of
    from spml.bench.studies import is_study, load_study

    study = load_study(name, features=features, changes=changes) if is_study(name) else None
    protocol = study.protocol if study else load_protocol(name, changes)
    if features and not protocol.features:
        raise InputError(f"{name} trains networks on images; on features run cole2021-linear or features")
    data = [source.name for source in sources]
    protocol.check_data(data)
    asked = None if methods is None else list(dict.fromkeys(methods.split(",")))
    entries = protocol.entries(asked or (list(study.run) if study else None))
    if not entries:
        raise InputError(f"{name} names no methods: give it a table [methods.an], or name some with --methods")
    chosen = search or protocol.search
    one_of("--search", "it", chosen, SEARCHES)
    space = "grid" if chosen == "optuna" else chosen
    cells = study.cells(data, entries, space) if study else list(protocol.cells(data, entries, space))
    _check_varied(cells, sources)
    _check_k(cells)
    cells, notes = _runnable(cells, sources, asked or ())
    notes += [f"{source.name}: {note}" for source in sources for note in getattr(source.pack, "notes", ())]
    return Plan(protocol, study, cells, _seeds(seeds) or protocol.seeds, chosen, notes)


def _check_name(name: str) -> None:
    from spml.bench.protocols import shipped

    if name not in shipped("protocols") and name not in shipped("studies") and not Path(name).is_file():
        known = ", ".join([*shipped("protocols"), *shipped("studies")])
        raise InputError(f"there is no protocol or study {name!r}; there are {known}, or give the path of a .toml file")


def _check_varied(cells: Sequence[Cell], sources: Sequence[Source]) -> None:
    """Features that come with the data are the same, whatever network a cell names."""
    given = {source.name: source.feature_file for source in sources}
    for cell in cells:
        file = given[cell.base.data]
        if cell.base.features and cell.varied in ("backbone", "image_size") and file is not None:
            raise InputError(
                f"{cell.base.data}: {cell.varied} cannot be varied on the features of {file}, which are given; it can "
                "on images, or on data without a features*.npy, whose features are computed"
            )


def _check_k(cells: Sequence[Cell]) -> None:
    from spml.methods import METHODS

    for cell in cells:
        told = cell.base.k, cell.base.settings.get("k")
        if METHODS[cell.base.method].needs.k and told == (None, None) and "settings.k" not in cell.space:
            raise InputError(
                f"{cell.base.entry} needs k, the mean number of labels of a row: give k to data.{cell.base.data}, or "
                "to its settings"
            )


def _runnable(cells: Sequence[Cell], sources: Sequence[Source], asked: Sequence[str]) -> tuple[list[Cell], list[str]]:
    """Without references where nobody has the full labels they learn from; one asked for by name is an error."""
    packs = {source.name: source.pack for source in sources}
    unknown = {name for name, pack in packs.items() if not pack.known[pack.train].all()}
    left: dict[str, list[str]] = {}
    kept = []
    for cell in cells:
        if cell.base.data in unknown and cell.base.reference:
            if cell.base.entry in asked:
                raise InputError(
                    f"{cell.base.entry} learns from more than one positive a row, and nobody has the full labels of "
                    f"the training rows of {cell.base.data}: leave it out of --methods"
                )
            left.setdefault(cell.base.data, []).append(cell.base.entry)
        else:
            kept.append(cell)
    if not kept:
        raise InputError("nothing is left to run: every method needs full labels, which these data do not have")
    notes = [
        f"{name}: {', '.join(dict.fromkeys(entries))} left out; nobody has the full labels of the training rows here."
        for name, entries in left.items()
    ]
    return kept, notes


def _seeds(text: str | None) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(","))) if text else ()
    except ValueError:
        raise InputError(f"--seeds {text} is not a list of whole numbers, as 0,1,2") from None
    if any(not 0 <= seed < 2**63 for seed in seeds):
        raise InputError(f"--seeds {text}: a seed is a whole number from 0 to 2^63 - 1")
    return seeds


def _run(plan: Plan, runner: Runner, out: Path, trials: int | None, storage: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from spml.bench import compare
    from spml.bench.origin import made_by
    from spml.bench.protocols import paper_values
    from spml.bench.search import Optuna, execute
    from spml.bench.studies import MEASURES, interval_rows
    from spml.runs.checkpoint import write_text
    from spml.train.loop import choose_device

    optuna = None
    if plan.search == "optuna":
        at_once = 8 if plan.protocol.features else runner.workers
        optuna = Optuna(trials or 20, storage, at_once)
    outcomes = execute(plan.cells, plan.seeds, runner, plan.protocol.select_on, optuna)
    chosen = [outcome.trial for outcome in outcomes if outcome.chosen]
    runner.forget_weights([outcome.trial for outcome in outcomes], chosen)
    paper, measures = plan.protocol.paper, plan.study.y if plan.study else ("test_map",)
    setting = paper.setting if paper else ""
    measured = MEASURES[measures[0]]
    by_measure = {m: compare.lines_of(outcomes, paper_values(paper, m), setting, m) for m in measures}
    lines = by_measure[measures[0]]
    diverged = compare.explain_diverged(outcomes)
    if not lines:
        raise InputError(diverged or f"nothing was measured of {measured}")
    rows = compare.run_rows(outcomes, made_by(str(choose_device(runner.device))), plan.protocol.name)
    charts = plan.study.charts([row for row in rows if row["chosen"]]) if plan.study else []
    several = f"mean ± standard deviation over seeds {', '.join(map(str, plan.seeds))}"
    notes = [
        f"{measured} in percent, {several if len(plan.seeds) > 1 else f'seed {plan.seeds[0]} alone'}.",
        f"The paper's numbers: {paper.file}, Table {paper.table}." if paper and any(x.paper for x in lines) else "",
        "* a reference: it learned from more than one positive a row." if any(x.reference for x in lines) else "",
        diverged,
        *runner.notes,
        *plan.notes,
        compare.explain_p(lines),
    ]
    out.mkdir(parents=True, exist_ok=True)
    compare.write_csv(out / "runs.csv", rows)
    table = [row for measure, found in by_measure.items() for row in compare.table_rows(found, measure)]
    compare.write_csv(out / "table.csv", table)
    pairs = compare.pair_rows(lines)
    if pairs:
        compare.write_csv(out / "pairs.csv", pairs)
    if plan.study and plan.study.intervals:
        compare.write_csv(out / "intervals.csv", interval_rows(list(runner.sources.values())))
    header, cells = compare.shown_rows(lines)
    write_text(out / "table.md", compare.markdown(plan.title, header, cells, notes))
    shown = Table(title=plan.title)
    for place, column in enumerate(header):
        shown.add_column(column, justify="left" if place == 0 else "right")
    for row in cells:
        shown.add_row(*row)
    Console().print(shown)
    for note in filter(None, notes):
        typer.echo(note)
    compare.write_report(out / "report.html", plan.title, plan.where, lines, measured, notes, charts, outcomes, runner)
    typer.echo(f"Tables: {out / 'table.md'}, {out / 'runs.csv'}. Report: {out / 'report.html'}")


def _print_runs(plan: Plan, runner: Runner, trials: int | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from spml.bench.search import Optuna, seeded
    from spml.bench.trials import grid_points

    table = Table(title=f"{plan.title}: {plan.where}")
    for column in ("data", "method", "at", "settings", "epochs", "rate", "batch", "k", "draw", "seeds"):
        table.add_column(column)
    count = done = 0
    for cell in plan.cells:
        by_optuna = plan.search == "optuna" and bool(cell.space)
        points: list[dict[str, Any]] = [{}] if by_optuna else list(grid_points(cell.space))
        tried = (trials or Optuna.trials) if by_optuna else len(points)
        every = plan.protocol.select_on == "every seed" or tried == 1
        seeds = plan.seeds if every else plan.seeds[:1]
        for point in points:
            trial = cell.base.changed(point)
            done += sum(runner.done(seeded(trial, seed)) for seed in seeds)
            table.add_row(*_described(cell, trial), ",".join(map(str, seeds)))
        count += tried * len(seeds) + len(plan.seeds) - len(seeds)  # the chosen one, with the other seeds
    Console(width=200).print(table)
    if plan.search == "optuna":
        typer.echo("optuna searches, for each line: " + "; ".join({_space(cell) for cell in plan.cells}))
    typer.echo(f"{count} runs, {done} of them done before.")


def _described(cell: Cell, trial: Any) -> list[str]:
    from spml.bench.draws import Draw

    draw = {key: value for key, value in vars(trial.draw).items() if value != getattr(Draw(), key)}
    train = trial.train
    return [
        trial.data,
        trial.entry,
        f"{cell.varied} {cell.value}" if cell.varied else "",
        ", ".join(f"{key} {value}" for key, value in trial.settings.items())
        + (" LinearInit" if trial.linear_init else ""),
        str(train.epochs),
        f"{train.learning_rate:g}",
        str(train.batch_size),
        "" if trial.k is None else f"{trial.k:g}",
        ", ".join(f"{key} {value}" for key, value in draw.items()),
    ]


def _space(cell: Cell) -> str:
    return ", ".join(f"{key} in {list(values)}" for key, values in cell.space.items()) or "nothing"
