"""From the name of a protocol or study, and the data sets to run it on, to a list of searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spml.bench.data import SCENES, DataSource
from spml.bench.protocols import SEARCHES, Protocol, Search, check_choice, load_protocol
from spml.bench.search import Optuna
from spml.bench.studies import Study, is_study, load_study
from spml.bench.toml_files import packaged_files, read_toml
from spml.data.dataset import Dataset
from spml.errors import InputError
from spml.methods import METHODS, method
from spml.models.heads import HEADS
from spml.training.experiment import Experiment
from spml.training.run_experiment import head_of


@dataclass(frozen=True)
class BenchPlan:
    """Everything that `spml bench` runs.

    Parameters
    ----------
    protocol : Protocol
    study : Study, optional
        The study that changes the protocol.
    sources : tuple of DataSource
        The data sets; empty for a dry run without data.
    datasets : dict of Dataset
        By name, opened.
    searches : list of Search
        One for each method, data set and value of what a study varies.
    seeds : tuple of int
    optuna : Optuna, optional
        Options of the search, if optuna searches.
    notes : list of str
        What the user should know, one sentence each.
    changed : str
        A sentence on what `--set` and `--search` change; empty if everything is as in the file.
    """

    protocol: Protocol
    study: Study | None
    sources: tuple[DataSource, ...]
    datasets: dict[str, Dataset]
    searches: list[Search]
    seeds: tuple[int, ...]
    optuna: Optuna | None
    notes: list[str]
    changed: str = ""

    @property
    def title(self) -> str:
        return self.study.title if self.study else self.protocol.title

    @property
    def where(self) -> str:
        return (self.study.where if self.study else "") or self.protocol.name


def plan(
    name: str,
    data: Sequence[str] = (),
    *,
    kind: str | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] = (),
    features: bool = False,
    heads: Sequence[str] = (),
    search: str | None = None,
    trials: int | None = None,
    storage: str | None = None,
    changes: Sequence[str] = (),
    need_data: bool = True,
) -> BenchPlan:
    """Read a protocol or study and list everything to run.

    Parameters
    ----------
    name : str
        Name of a protocol or study of the package, or the path of a .toml file.
    data : sequence of str
        `name=path` for each data set. May be empty if the protocol runs on the built-in data alone.
    kind : str, optional
        The format of the data, if it cannot be detected.
    methods : sequence of str, optional
        By default all methods of the protocol or study.
    seeds : sequence of int
        By default the protocol's.
    features : bool
        For a study: train linear heads on features instead of networks on images.
    heads : sequence of str
        Heads to run every method with: "own" for the method's own, or names such as "attention". Methods that are
        designed for another head are left out there. By default every method has its own.
    search : {"published", "grid", "none", "optuna"}, optional
        By default the protocol's.
    trials, storage : optional
        Number of optuna trials per search (20), and the database that machines share.
    changes : sequence of str
        `key=value` for each value of the protocol to change.
    need_data : bool
        False: without `data`, plan for all data sets that the protocol names.

    Returns
    -------
    BenchPlan

    Raises
    ------
    InputError
        If a name, option or value is wrong, or no data is given where `need_data`.
    """
    _check_name(name)
    sources = _sources(data or _built_in(name), kind)
    study = load_study(name, features=features, changes=changes) if is_study(name) else None
    protocol = study.protocol if study else load_protocol(name, changes)
    if features and not protocol.features:
        raise InputError(f"{name} trains networks on images. For features, run cole2021-linear or features")
    names = [source.name for source in sources] or _planned_data(protocol, study)
    if need_data and not sources:
        raise InputError(f"no data: pass --data NAME=PATH; the names in {name}: {', '.join(names)}")
    protocol.check_data(names)
    _check_heads(heads, protocol, study)
    asked = None if methods is None else list(dict.fromkeys(methods))
    entries = protocol.entries(asked or (list(study.run) if study else None))
    if not entries:
        raise InputError(f"{name} lists no methods: add a table such as [methods.an], or pass --methods")
    chosen = search or protocol.search
    check_choice("--search", "it", chosen, SEARCHES)
    for option, value in (("--trials", trials), ("--storage", storage)):
        if value is not None and chosen != "optuna":
            raise InputError(f"{option} works only with --search optuna, but the search is {chosen!r}")
    space = "grid" if chosen == "optuna" else chosen
    searches = (study or protocol).searches(names, entries, space)
    _check_varied(searches, sources)
    _check_k(searches)
    datasets = {
        source.name: source.open(features=protocol.features, image_size=protocol.image_size) for source in sources
    }
    searches, notes = _runnable(searches, datasets, asked or ())
    if heads:
        searches, head_notes = _with_heads(searches, heads, datasets)
        notes += head_notes
    notes += [f"{name}: {note}" for name, dataset in datasets.items() for note in dataset.notes]
    changed = _explain_changes("study" if study else "protocol", protocol, chosen)
    optuna = Optuna(trials or Optuna.trials, storage) if chosen == "optuna" else None
    notes = [note for note in (changed, *notes) if note]
    chosen_seeds = tuple(seeds) or protocol.seeds
    return BenchPlan(protocol, study, sources, datasets, searches, chosen_seeds, optuna, notes, changed)


def _explain_changes(file: str, protocol: Protocol, search: str) -> str:
    """Return a sentence on the values that differ from the file, so that no table is taken for the protocol's."""
    changed = [*protocol.changed, *([f"search = {search}"] if search != protocol.search else [])]
    return f"Changed from the {file}: {', '.join(changed)}." if changed else ""


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """Parse `0,1,2`; None gives no seeds."""
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(","))) if text else ()
    except ValueError:
        raise InputError(f"--seeds {text} is not a list of whole numbers such as 0,1,2") from None
    if any(not 0 <= seed < 2**63 for seed in seeds):
        raise InputError(f"--seeds {text}: a seed is a whole number from 0 to 2^63 - 1")
    return seeds


def list_files() -> dict[str, list[tuple[str, str, str]]]:
    """Name, title and kind of data of all protocols and studies of the package."""
    listed: dict[str, list[tuple[str, str, str]]] = {}
    for kind in ("protocols", "studies"):
        for name in packaged_files(kind):
            raw = read_toml(kind, name)
            on = raw.get("kind", " or ".join(side for side in ("images", "features") if side in raw))
            reference = f" ({raw['where']})" if raw.get("where") else ""
            row = (name, raw["title"] + reference, {"linear": "features", "finetune": "images"}.get(on, on))
            listed.setdefault(kind, []).append(row)
    return listed


def _check_name(name: str) -> None:
    if name not in packaged_files("protocols") and name not in packaged_files("studies") and not Path(name).is_file():
        known = ", ".join([*packaged_files("protocols"), *packaged_files("studies")])
        raise InputError(f"No protocol or study {name!r}. Available: {known}; or give the path of a .toml file")


def _built_in(name: str) -> list[str]:
    """Return the built-in data, if a protocol runs on nothing else."""
    exists = name in packaged_files("protocols") or Path(name).is_file()
    data = read_toml("protocols", name).get("data") if exists else None
    return [f"{SCENES}={SCENES}"] if isinstance(data, dict) and set(data) == {SCENES} else []


def _sources(data: Sequence[str], kind: str | None) -> tuple[DataSource, ...]:
    sources = tuple(DataSource.parse(text, kind) for text in data)
    names = [source.name for source in sources]
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InputError(f"--data {repeated[0]}=… is given {names.count(repeated[0])} times: give each data set once")
    return sources


def _planned_data(protocol: Protocol, study: Study | None) -> list[str]:
    """Return all data sets of the protocol; of a study those for which it lists values."""
    listed = [set(values) for values in (study.vary.values() if study else ()) if isinstance(values, dict)]
    return [name for name in protocol.data if all(name in names for names in listed)]


def _check_varied(searches: Sequence[Search], sources: Sequence[DataSource]) -> None:
    """Raise an error if a study varies the network on precomputed features: all its rows would be equal."""
    files = {source.name: source.feature_file for source in sources}
    for search in searches:
        file = files.get(search.base.data)
        if search.base.features and search.varied in ("backbone", "image_size") and file is not None:
            raise InputError(
                f"{search.base.data}: {search.varied} cannot be varied on the precomputed features "
                f"{file.name}: use images, or data without a features*.npy file, whose features are then computed"
            )


def _check_k(searches: Sequence[Search]) -> None:
    for search in searches:
        given = search.base.k, search.base.settings.get("k")
        if METHODS[search.base.method].needs.k and given == (None, None) and "settings.k" not in search.space:
            raise InputError(
                f"{search.base.entry} needs k, the average number of labels per row: set "
                f"data.{search.base.data}.k, or k in the method's settings"
            )


def _check_heads(heads: Sequence[str], protocol: Protocol, study: Study | None) -> None:
    for head in heads:
        if head != "own" and head not in HEADS:
            raise InputError(f"--head {head}: no such head. Choose from own, {', '.join(HEADS)}")
    if heads and protocol.features:
        raise InputError("--head is for networks on images: on features every head is linear")
    if heads and study:
        raise InputError("--head is for protocols. A study can vary the head itself: [vary] head = [...]")


def _with_heads(
    searches: Sequence[Search], heads: Sequence[str], datasets: Mapping[str, Dataset]
) -> tuple[list[Search], list[str]]:
    """Return every search with every head, without methods that are designed for a head of another kind."""
    result, left_out = list[Search](), dict[str, list[str]]()
    for head in dict.fromkeys(heads):
        for search in searches:
            base = search.base
            if head == "own" or (base.data in datasets and _own_head(base, datasets[base.data]) == head):
                result.append(replace(search, head=head))
            elif METHODS[base.method].needs.head != "linear" or base.linear_init:
                left_out.setdefault(head, []).append(base.entry)
            else:
                result.append(replace(search, base=replace(base, head=head, head_settings={}), head=head))
    if not result:
        raise InputError(f"nothing is left to run: none of these methods works with the head {', '.join(heads)}")
    notes = [
        f"{', '.join(dict.fromkeys(entries))}: left out with the head {head}; designed for another head or LinearInit."
        for head, entries in left_out.items()
    ]
    return result, notes


def _own_head(experiment: Experiment, dataset: Dataset) -> str:
    return head_of(experiment, method(experiment.method, **experiment.settings), dataset)


def _runnable(
    searches: Sequence[Search], datasets: Mapping[str, Dataset], asked: Sequence[str]
) -> tuple[list[Search], list[str]]:
    """Leave out references where the full labels they need are unknown; raise an error if the user asked for one."""
    unknown = {name for name, data in datasets.items() if not data.fully_labelled[data.train].all()}
    left_out: dict[str, list[str]] = {}
    kept = []
    for search in searches:
        if search.base.data in unknown and search.base.reference:
            if search.base.entry in asked:
                raise InputError(
                    f"{search.base.entry} learns from more than one positive per row, and the full labels of the "
                    f"training rows of {search.base.data} are unknown: leave it out of --methods"
                )
            left_out.setdefault(search.base.data, []).append(search.base.entry)
        else:
            kept.append(search)
    if not kept:
        raise InputError("nothing is left to run: every method needs full labels, which these data do not have")
    notes = [
        f"{name}: {', '.join(dict.fromkeys(entries))} left out; the full labels of the training rows are unknown."
        for name, entries in left_out.items()
    ]
    return kept, notes
