"""Choose settings by validation mAP: every point of a grid, or optuna with a storage that machines share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spml.bench.code_version import code_version
from spml.bench.measure import Row
from spml.bench.origin import without_password
from spml.bench.protocols import Search
from spml.bench.runner import Runner
from spml.errors import InputError, install_command
from spml.training.experiment import Experiment


@dataclass(frozen=True)
class RunResult:
    """One run of a search.

    Parameters
    ----------
    search : Search
    experiment : Experiment
        With its seed and the values that were tried.
    row : dict
        What was measured.
    chosen : bool
        Whether the settings are those that were selected.
    """

    search: Search
    experiment: Experiment
    row: Row
    chosen: bool


@dataclass(frozen=True)
class Optuna:
    """How optuna searches.

    Parameters
    ----------
    trials : int
        Number of trials per search, counted in the storage over all machines.
    storage : str, optional
        Address of a database that machines share; None: the memory of this process.
    at_once : int
        Number of trials to ask for at a time.
    """

    trials: int = 20
    storage: str | None = None
    at_once: int = 8


def execute(
    searches: Sequence[Search], seeds: Sequence[int], runner: Runner, select_on: str, optuna: Optuna | None = None
) -> list[RunResult]:
    """Run every search, then the chosen settings with every seed.

    Parameters
    ----------
    searches : sequence of Search
    seeds : sequence of int
    runner : Runner
    select_on : {"every seed", "first seed"}
        Seeds whose validation mAP selects the settings.
    optuna : Optuna, optional
        Search with optuna instead of the whole grid.

    Returns
    -------
    list of RunResult
    """
    selecting = list(seeds) if select_on == "every seed" else list(seeds[:1])
    if optuna is None:
        tried = [search.points() for search in searches]
        # A single candidate needs no selection.
        candidates = [candidate for points in tried if len(points) > 1 for candidate in points]
        runner.rows([candidate.seeded(seed) for candidate in candidates for seed in selecting])
    else:
        storage = _open_storage(optuna.storage)
        with _explain_lost_storage(optuna.storage):
            tried = [
                _ask_optuna(search, selecting, runner, optuna, storage) if search.space else [search.base]
                for search in searches
            ]
    best = [_best(points, selecting, runner) for points in tried]
    runner.rows([candidate.seeded(seed) for candidate in best for seed in seeds])
    results = []
    for search, points, chosen in zip(searches, tried, best, strict=True):
        for candidate in points:
            runs = [candidate.seeded(seed) for seed in (seeds if candidate == chosen else selecting)]
            rows = zip(runs, runner.rows(runs), strict=True)
            results += [RunResult(search, run, row, candidate == chosen) for run, row in rows]
    return results


def _best(experiments: Sequence[Experiment], seeds: Sequence[int], runner: Runner) -> Experiment:
    """Return the experiment with the highest score, the first of equals; a single one need not have run."""
    if len(experiments) == 1:
        return experiments[0]
    return max(experiments, key=lambda candidate: _score(candidate, seeds, runner))


def _score(experiment: Experiment, seeds: Sequence[int], runner: Runner) -> float:
    """Mean validation mAP."""
    rows = runner.rows([experiment.seeded(seed) for seed in seeds])
    return sum(float(row["validation_map"]) for row in rows) / len(rows)


def _open_storage(address: str | None) -> Any:
    """Open the database at an address; None: the memory of this process."""
    try:
        import optuna
    except ImportError:
        raise InputError(f"--search optuna needs the package optuna: {install_command('search')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if address is None:
        return None
    # Other machines may lock the file for a while.
    options = {"connect_args": {"timeout": 120}} if address.startswith("sqlite:") else None
    try:
        return optuna.storages.RDBStorage(address, engine_kwargs=options)
    except Exception as error:  # each database raises its own
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"--storage {without_password(address)} cannot be opened ({without_password(reason)}): give the address of "
            "a reachable database, such as sqlite:///search.db"
        ) from None


@contextmanager
def _explain_lost_storage(address: str | None) -> Iterator[None]:
    """Raise a clear error if the database becomes unreachable during the search; results are kept."""
    from optuna.exceptions import OptunaError

    try:
        yield
    except OptunaError as error:
        if address is None:
            raise
        reason = str(error.__cause__ or error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"--storage {without_password(address)} no longer answers ({without_password(reason)}): once it does, "
            "run the same command to resume"
        ) from None


def _ask_optuna(
    search: Search, seeds: Sequence[int], runner: Runner, options: Optuna, storage: Any
) -> list[Experiment]:
    """Return the distinct settings that optuna tried on all machines with this storage."""
    import optuna
    from optuna.trial import TrialState

    study = optuna.create_study(
        study_name=_study_name(search, seeds, runner),
        storage=storage,
        direction="maximize",
        sampler=optuna.samplers.TPESampler(constant_liar=True),
        load_if_exists=True,
    )
    spaces: dict[str, Any] = {
        key: optuna.distributions.CategoricalDistribution(values) for key, values in search.space.items()
    }

    def complete() -> list[Any]:
        return list(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))

    while (open_trials := options.trials - len(complete())) > 0:
        trials = [study.ask(spaces) for _ in range(min(options.at_once, open_trials))]
        experiments = [search.base.changed(trial.params) for trial in trials]
        runner.rows([experiment.seeded(seed) for experiment in experiments for seed in seeds])  # all of them together
        for trial, experiment in zip(trials, experiments, strict=True):
            study.tell(trial, _score(experiment, seeds, runner))
    values: dict[str, tuple[float, Experiment]] = {}
    for trial in complete():
        values[json.dumps(trial.params, sort_keys=True)] = (trial.value, search.base.changed(trial.params))
    _, best = max(values.values(), key=lambda pair: pair[0])
    # Machines may have their own folders: the scores of other machines count, and only the best setting is run here.
    others = [experiment for _, experiment in values.values() if experiment != best]
    return [best, *(experiment for experiment in others if runner.done(experiment.seeded(seeds[0])))]


def _study_name(search: Search, seeds: Sequence[int], runner: Runner) -> str:
    """One study per search, data and code, so that scores of other code never mix in."""
    base = search.base
    fingerprint = runner.dataset(base).fingerprint()
    content = [base.record(), search.space, fingerprint, list(seeds), code_version(base.method)]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return f"{base.data}-{base.entry}-{digest}"
