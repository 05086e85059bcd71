"""Choosing settings by validation mAP: every point of a grid, or optuna with a storage that machines share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from spml.bench.jobs import code_version
from spml.bench.origin import without_password
from spml.bench.protocols import Cell
from spml.bench.trials import Runner, Trial, grid_points
from spml.errors import InputError

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """One run of a cell: `chosen` if it is of the setting that was selected."""

    cell: Cell
    trial: Trial
    row: Row
    chosen: bool


@dataclass(frozen=True)
class Optuna:
    """How optuna searches: so many trials a method and data set in all, counted in the storage."""

    trials: int = 20
    storage: str | None = None
    at_once: int = 8


def seeded(trial: Trial, seed: int) -> Trial:
    return replace(trial, train=replace(trial.train, seed=seed))


def execute(
    cells: Sequence[Cell], seeds: Sequence[int], runner: Runner, select_on: str, optuna: Optuna | None = None
) -> list[Outcome]:
    """Search every cell, then run the chosen setting with every seed. All runs of a stage go out together."""
    judged = list(seeds) if select_on == "every seed" else list(seeds[:1])
    if optuna is None:
        tried = [[cell.base.changed(point) for point in grid_points(cell.space)] for cell in cells]
        # One candidate needs no choosing.
        searched = [of_cell if len(of_cell) > 1 else [] for of_cell in tried]
        runner.rows([seeded(trial, seed) for of_cell in searched for trial in of_cell for seed in judged])
    else:
        storage = _open_storage(optuna.storage)
        with _lost_storage(optuna.storage):
            tried = [
                _ask_optuna(cell, judged, runner, optuna, storage) if cell.space else [cell.base] for cell in cells
            ]
    best = [_best(of_cell, judged, runner) if len(of_cell) > 1 else of_cell[0] for of_cell in tried]
    runner.rows([seeded(trial, seed) for trial in best for seed in seeds])
    outcomes = []
    for cell, of_cell, chosen in zip(cells, tried, best, strict=True):
        for trial in of_cell:
            for seed in seeds if trial == chosen else judged:
                done = seeded(trial, seed)
                row = runner.measured(done) if trial == chosen else runner.rows([done])[0]
                outcomes.append(Outcome(cell, done, row, trial == chosen))
    return outcomes


def _best(trials: Sequence[Trial], seeds: Sequence[int], runner: Runner) -> Trial:
    """The one with the best mean validation mAP; the first of equals."""
    return max(trials, key=lambda trial: _score(trial, seeds, runner))


def _score(trial: Trial, seeds: Sequence[int], runner: Runner) -> float:
    rows = runner.rows([seeded(trial, seed) for seed in seeds])
    return sum(float(row["validation_map"]) for row in rows) / len(rows)


def _open_storage(address: str | None) -> Any:
    """The database at that address; None stands for the memory of this process."""
    try:
        import optuna
    except ImportError:
        raise InputError("--search optuna needs its package: pip install 'spml[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if address is None:
        return None
    # Other machines may hold a file for a while.
    options = {"connect_args": {"timeout": 120}} if address.startswith("sqlite:") else None
    try:
        return optuna.storages.RDBStorage(address, engine_kwargs=options)
    except Exception as error:  # every database has its own
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"--storage {without_password(address)} cannot be opened ({without_password(reason)}): give the address of "
            "a database that can be reached, as sqlite:///search.db"
        ) from None


@contextmanager
def _lost_storage(address: str | None) -> Iterator[None]:
    """A database that goes away in the middle of a search is told in a sentence; what was run is kept."""
    from optuna.exceptions import OptunaError

    try:
        yield
    except OptunaError as error:
        if address is None:
            raise
        reason = str(error.__cause__ or error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"--storage {without_password(address)} no longer answers ({without_password(reason)}): once it does, the "
            "same command goes on where it was"
        ) from None


def _ask_optuna(cell: Cell, seeds: Sequence[int], runner: Runner, options: Optuna, storage: Any) -> list[Trial]:
    """The distinct settings that optuna tried here and on every machine with this storage."""
    import optuna
    from optuna.trial import TrialState

    study = optuna.create_study(
        study_name=_study_name(cell, seeds, runner),
        storage=storage,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(constant_liar=True),
        load_if_exists=True,
    )
    spaces: dict[str, Any] = {
        key: optuna.distributions.CategoricalDistribution(values) for key, values in cell.space.items()
    }

    def complete() -> list[Any]:
        return list(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))

    while (open_trials := options.trials - len(complete())) > 0:
        asked = [study.ask(spaces) for _ in range(min(options.at_once, open_trials))]
        tried = [cell.base.changed(each.params) for each in asked]
        runner.rows([seeded(trial, seed) for trial in tried for seed in seeds])  # all of them side by side
        for each, trial in zip(asked, tried, strict=True):
            study.tell(each, _score(trial, seeds, runner))
    values: dict[str, tuple[float, Trial]] = {}
    for each in complete():
        values[json.dumps(each.params, sort_keys=True)] = (each.value, cell.base.changed(each.params))
    _, best = max(values.values(), key=lambda pair: pair[0])
    # Machines may have folders of their own: what another one tried is taken by its score, and only the best is run.
    return [best, *(trial for _, trial in values.values() if trial != best and runner.done(seeded(trial, seeds[0])))]


def _study_name(cell: Cell, seeds: Sequence[int], runner: Runner) -> str:
    """One study for each cell, its data and the code: scores of other code never mix in."""
    content = [repr(cell), runner.sources[cell.base.data].fingerprint, list(seeds), code_version()]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    return f"{cell.base.data}-{cell.base.entry}-{digest}"
