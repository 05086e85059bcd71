"""Protocols: TOML files that define how every method is trained and searched on every data set.

    title = "…"                      # description
    kind = "linear"                  # linear: heads on features; finetune: networks on images
    backbone, image_size, head       # the network
    seeds = [0, 1, 2]
    search = "grid"                  # default search: grid, published or none
    select_on = "every seed"         # or "first seed": seeds whose validation mAP selects the settings
    paper = {file, table, setting}   # published numbers to compare with

    [train]                          # settings of `TrainSettings`
    [grid]                           # lists of values to search, for train.… and settings.…
    [draw]                           # which labels of the training rows are observed, see `LabelDraw`
    [data.voc12]                     # a data set, and its average number of labels k
    [methods.NAME]                   # method (default NAME), settings, train, grid, draw, head, head_settings,
                                     # linear_init; values given here are pinned
    [methods.NAME.on.voc12]          # settings, train, grid and linear_init for one data set

A value is pinned for a method, or for a method on a data set, if the paper states it. `grid` searches pinned values
too, `published` only those that the paper leaves open. The string "none" stands for None, which TOML does not have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

from spml.bench.paper import Paper
from spml.bench.toml_files import apply_changes, flatten, lists_to_tuples, packaged_files, parse_none, read_toml
from spml.data.augment import ViewSettings
from spml.errors import InputError, unknown_name
from spml.methods import METHODS, method
from spml.methods.base import parsed_setting
from spml.training.examples import check_on_features
from spml.training.experiment import Experiment, LinearInit
from spml.training.label_draw import LabelDraw
from spml.training.settings import TrainSettings
from spml.type_checks import check_type

SEARCHES = ("published", "grid", "none", "optuna")
PROTOCOL_KEYS = {  # the keys of a file and their types
    **{"title": str, "about": str, "kind": Any, "backbone": str, "image_size": int, "head": str | None},
    **{"seeds": tuple[int, ...], "search": Any, "select_on": Any, "paper": dict | None},
    **dict.fromkeys(("train", "grid", "draw", "data", "methods"), dict),
}
_DATA_KEYS = {**dict.fromkeys(("settings", "train", "grid"), dict), "linear_init": dict}
_METHOD_KEYS = {
    **{"method": str, "draw": dict, "head": str | None, "head_settings": dict, "on": dict},
    **_DATA_KEYS,
    "linear_init": dict | None,
}
_PAPER_KEYS = {"file": str, "table": str | int, "setting": str}
_LINEAR_SETTINGS = ("epochs", "batch_size", "learning_rate", "early_stopping")  # settings that apply to linear heads
_SEED_ADVICE = "seed cannot be set here: use seeds = [0, 1, 2], or --seeds"


@dataclass(frozen=True)
class Search:
    """One method on one data set, and the values to search for some of its settings.

    Parameters
    ----------
    base : Experiment
        The experiment at the values that are not searched.
    space : dict
        Values by name, as `Experiment.changed` takes them; empty: nothing is searched.
    varied : str
        What a study changes here.
    value : object
        And to which value.
    head : str
        The head that `--head` gives every method: "own" for the method's, or one of `HEADS`; "" without that option.
    """

    base: Experiment
    space: dict[str, tuple[Any, ...]]
    varied: str = ""
    value: Any = None
    head: str = ""

    def points(self) -> list[Experiment]:
        """Return the experiment at every combination of the values."""
        names, values = list(self.space), itertools.product(*self.space.values())
        return [self.base.changed(dict(zip(names, point, strict=True))) for point in values]

    def paper_setting(self, paper: Paper | None) -> str:
        """Return the column of the paper's table: the protocol's, or else the varied value."""
        if paper and paper.setting:
            return paper.setting
        return self.value.partition(".")[0] if isinstance(self.value, str) else str(self.value)


@dataclass(frozen=True)
class Protocol:
    """A validated protocol file; see the module's documentation for its fields."""

    name: str
    title: str
    kind: str
    data: dict[str, dict[str, Any]]
    about: str = ""
    backbone: str = "lite2"
    image_size: int = 320
    head: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    search: str = "grid"
    select_on: str = "every seed"
    paper: Paper | None = None
    train: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    draw: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    """The values of `--set` that differ from the file, as `key = value`."""

    @property
    def features(self) -> bool:
        return self.kind == "linear"

    def check_data(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.data:
                raise InputError(
                    f"the protocol {self.name} has no data set {name!r}; it has {', '.join(self.data)}. For your own "
                    f"data, add --set data.{name}.k=NUMBER with its average number of labels per row"
                )

    def entries(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the given entries, or all. A method that the protocol does not list is used with its defaults."""
        for name in names or ():
            if name not in self.methods and name not in METHODS:
                raise InputError(unknown_name("method", name, {*self.methods, *METHODS}))
        return list(self.methods) if names is None else list(names)

    def search_of(self, entry: str, data: str, search: str) -> Search:
        """Return one method on one data set, with what `search` leaves to be searched."""
        location = f"{self.name}: {entry}"
        base = self._experiment(entry, data, location)
        if self.features:
            with prefix_errors(self.name):
                check_on_features(METHODS[base.method])
            if base.head not in (None, "linear") or base.head_settings or base.linear_init:
                raise InputError(
                    f"{location}: on features every head is linear; head, head_settings and linear_init are for images"
                )
        grid = self._grid(entry, data, search)
        _check_searched(location, base.method, grid)
        return Search(base, grid)

    def _entry_tables(self, entry: str, data: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the table of an entry, and its table for one data set."""
        table = self.methods.get(entry, {})
        return table, table.get("on", {}).get(data, {})

    def _experiment(self, entry: str, data: str, location: str) -> Experiment:
        table, on_data = self._entry_tables(entry, data)
        train = {**self.train, **table.get("train", {}), **on_data.get("train", {})}
        return Experiment(
            data=data,
            entry=entry,
            method=table.get("method", entry),
            settings={**table.get("settings", {}), **on_data.get("settings", {})},
            train=_train_settings(train, location, self.features),
            k=self.data[data].get("k"),
            draw=LabelDraw(**{**self.draw, **table.get("draw", {})}),
            validation="full",
            features=self.features,
            backbone=self.backbone,
            image_size=self.image_size,
            head=table.get("head", self.head),
            head_settings=table.get("head_settings", {}),
            linear_init=_linear_init((table, on_data), location),
        )

    def _grid(self, entry: str, data: str, search: str) -> dict[str, tuple[Any, ...]]:
        """Return the values to search; "published" leaves out those that the paper states."""
        if search == "none":
            return {}
        tables = self._entry_tables(entry, data)
        grid = self.grid | {key: values for table in tables for key, values in flatten(table.get("grid", {})).items()}
        if search != "published":
            return grid
        pinned = {f"{kind}.{key}" for table in tables for kind in ("train", "settings") for key in table.get(kind, {})}
        return {key: values for key, values in grid.items() if key not in pinned}

    def searches(self, data: Sequence[str], entries: Sequence[str], search: str) -> list[Search]:
        """Return every method on every data set."""
        return [self.search_of(entry, name, search) for name in data for entry in entries]


def load_protocol(name: str, changes: Sequence[str] = ()) -> Protocol:
    """Load a protocol of the package by name, or another by path; `changes` are the values of `--set`."""
    raw = read_toml("protocols", name)
    changed = apply_changes(raw, changes)
    return replace(make_protocol(Path(name).stem, raw), changed=changed)


def make_protocol(name: str, raw: Mapping[str, Any]) -> Protocol:
    """Validate the content of a file and build the protocol."""
    raw = {**parse_none(raw), "search": raw.get("search", Protocol.search)}  # "none" is a value here
    check_keys(name, raw, PROTOCOL_KEYS)
    for key in ("title", "kind", "data"):
        if key not in raw:
            raise InputError(f"{name}: {key!r} is missing")
    check_choice(name, "kind", raw["kind"], ("linear", "finetune"))
    check_choice(name, "search", raw["search"], SEARCHES[:3])
    check_choice(name, "select_on", raw.get("select_on", Protocol.select_on), ("every seed", "first seed"))
    for data, table in raw["data"].items():
        check_keys(f"{name}: data.{data}", table, {"k": float | None})
        if table.get("k") is not None and not 0 < table["k"] < math.inf:
            raise InputError(f"{name}: data.{data}: k must be a number above 0, not {table['k']}")
    if raw.get("image_size", 1) < 1:
        raise InputError(f"{name}: image_size must be at least 1, not {raw['image_size']}")
    seeds = raw.get("seeds", Protocol.seeds)
    if any(not 0 <= seed < 2**63 for seed in seeds):
        raise InputError(f"{name}: seeds must be whole numbers from 0 to 2^63 - 1, not {seeds}")
    linear = raw["kind"] == "linear"
    _train_settings(raw.get("train", {}), name, linear)
    for entry, table in raw.get("methods", {}).items():
        _check_entry(f"{name}: methods.{entry}", entry, table, raw["data"], linear)
    if (paper := raw.get("paper")) is not None:
        check_keys(f"{name}: paper", paper, _PAPER_KEYS)
        if paper.get("file") not in packaged_files("papers"):
            raise InputError(f"{name}: paper.file must be one of {', '.join(packaged_files('papers'))}")
        paper = Paper(paper["file"], str(paper.get("table", "")), paper.get("setting", ""))
    grid, draw = _checked_grid(name, raw.get("grid", {}), linear), _checked_draw(name, raw.get("draw", {}))
    checked = {"seeds": tuple(dict.fromkeys(seeds)), "paper": paper, "grid": grid, "draw": draw}
    return Protocol(name, **(raw | checked))


@contextmanager
def prefix_errors(location: str) -> Iterator[None]:
    """Add the place in a file to errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{location}: {error}") from None


def check_keys(location: str, table: Any, known: Mapping[str, Any]) -> None:
    """Check that every key is known and its value has the type given in `known`."""
    if not isinstance(table, dict):
        raise InputError(f"{location} must be a table")
    for key in table:
        if key not in known:
            raise InputError(f"{location}: unknown key {key!r}; the keys are {', '.join(sorted(known))}")
        check_value(f"{location}: {key}", table[key], known[key])


def check_value(location: str, value: Any, kind: Any) -> None:
    """Check the type of a value; None is written as "none"."""
    check_type(location, value, kind, none='"none"')


def check_distinct(location: str, values: Sequence[Any]) -> None:
    """Check that no value is repeated: it would run once and count twice."""
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InputError(f"{location} has {value!r} twice: give it once")


def check_settings(location: str, name: str, settings: Mapping[str, Any]) -> None:
    """Check the names and types of a method's settings."""
    kinds = METHODS[name].setting_types()
    with prefix_errors(location):
        parsed = {key: parsed_setting(value, kinds.get(key, Any)) for key, value in settings.items()}
    for key, value in parsed.items():
        check_value(f"{location}: settings.{key}", value, kinds.get(key, Any))
    with prefix_errors(location):
        method(name, **settings)


def check_train_key(location: str, key: str, linear: bool) -> None:
    """Check that a key `train.…` can be searched or varied."""
    can = [f"train.{name}" for name in _train_types(linear) if name != "views"]
    if key == "train.seed":
        raise InputError(f"{location}: train.{_SEED_ADVICE}")
    if key not in can:
        raise InputError(
            f"{location}: {key!r} is not one of {', '.join(can)}{', the settings of a linear head' * linear}"
        )


def check_choice(location: str, key: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"{location}: {key} must be one of {', '.join(allowed)}, not {value!r}")


def _check_entry(location: str, entry: str, table: Any, data: Mapping[str, Any], linear: bool) -> None:
    check_keys(location, table, _METHOD_KEYS)
    name = table.get("method", entry)
    if name not in METHODS:
        hint = "For a method of your own, install its package or add --import FILE.py."
        raise InputError(f"{location}: {unknown_name('method', name, METHODS)} {hint}")
    parts = [(location, table)]
    for data_name, on in table.get("on", {}).items():
        if data_name not in data:
            raise InputError(f"{location}: no data set {data_name!r}; available: {', '.join(data)}")
        check_keys(f"{location}.on.{data_name}", on, _DATA_KEYS)
        parts.append((f"{location}.on.{data_name}", on))
    for part_location, part in parts:
        check_settings(part_location, name, part.get("settings", {}))
        _train_settings(part.get("train", {}), part_location, linear)
        _check_searched(part_location, name, _checked_grid(part_location, part.get("grid", {}), linear))
    _checked_draw(location, table.get("draw", {}))
    for _, on in parts:
        _linear_init((table, on), location)


def _check_searched(location: str, name: str, grid: Mapping[str, Sequence[Any]]) -> None:
    for key, values in grid.items():
        table, _, setting = key.partition(".")
        for value in values if table == "settings" else ():
            check_settings(f"{location}: grid", name, parse_none({setting: value}))


def _checked_draw(location: str, table: Any) -> dict[str, Any]:
    check_keys(f"{location}: draw", table, get_type_hints(LabelDraw))
    with prefix_errors(location):
        LabelDraw(**table)
    return dict(table)


def _train_types(linear: bool) -> dict[str, Any]:
    """Return the settings of training and their types, without the seed, which `seeds` lists."""
    kinds = {**get_type_hints(TrainSettings), "views": dict}
    return {name: kind for name, kind in kinds.items() if name != "seed" and (name in _LINEAR_SETTINGS or not linear)}


def _train_settings(table: Mapping[str, Any], location: str, linear: bool) -> TrainSettings:
    if "seed" in table:
        raise InputError(f"{location}: train.{_SEED_ADVICE}")
    check_keys(f"{location}: train", table, _train_types(linear))
    values = dict(table)
    if "views" in values:
        check_keys(f"{location}: train.views", values["views"], get_type_hints(ViewSettings))
    with prefix_errors(f"{location}: train"):
        if "views" in values:
            values["views"] = ViewSettings(**lists_to_tuples(values["views"]))
        return TrainSettings(**values)


def _linear_init(parts: Iterable[Mapping[str, Any]], location: str) -> LinearInit | None:
    """Return the linear phase of an entry, with the values of its data set; None if the entry has none."""
    tables = [part["linear_init"] for part in parts if part.get("linear_init") is not None]
    for table in tables:
        check_keys(f"{location}: linear_init", table, get_type_hints(LinearInit))
    with prefix_errors(f"{location}: linear_init"):
        return LinearInit(**{key: value for table in tables for key, value in table.items()}) if tables else None


def _checked_grid(location: str, table: Mapping[str, Any], linear: bool) -> dict[str, tuple[Any, ...]]:
    with prefix_errors(f"{location}: grid"):
        grid = flatten(table)
    for key, values in grid.items():
        kind, _, name = key.partition(".")
        if kind not in ("train", "settings") or not name:
            raise InputError(f"{location}: grid: {key!r} must start with settings. or train.")
        check_distinct(f"{location}: grid: {key}", values)
        if kind == "train":
            check_train_key(f"{location}: grid", key, linear)
            for value in values:
                _train_settings(parse_none({name: value}), f"{location}: grid", linear)
    return grid
