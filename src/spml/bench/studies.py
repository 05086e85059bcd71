"""Studies: TOML files that name a protocol, what to vary, what to measure, and the published figure.

title, about, where              # description; the paper's figure or table
run = ["an", "role"]             # entries of the protocol, or of [methods.…] in this file
seeds                            # default: the protocol's
paper = {file, table, setting}   # published numbers; by default the varied value is the setting
intervals = true                 # also write intervals of k estimated from a few rows (Cole et al., Table A2)

[images]                         # protocol = "…" (a name, or a path relative to this file), keys of the protocol
                                 # to change, and optionally run and vary
[features]                       # the same for --features
[methods.NAME]                   # more entries, or changes of the protocol's
[draw]                           # as in a protocol
[vary]                           # settings.…, train.…, draw.…, k, backbone: a list of values, or one list per data set.
                                 # Several keys are varied one at a time
[show]                           # x: a column instead of the varied value; y: the measures; x_label; log_x
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from spml.bench.protocols import (
    PROTOCOL_KEYS,
    Protocol,
    Search,
    check_distinct,
    check_keys,
    check_settings,
    check_train_key,
    check_value,
    make_protocol,
    prefix_errors,
)
from spml.bench.toml_files import apply_changes, flatten, packaged_files, read_toml
from spml.data.dataset import Dataset
from spml.errors import InputError
from spml.labels import k_intervals
from spml.methods import METHODS
from spml.report.studies import StudyChart

_STUDY_KEYS = {
    **{"title": str, "about": str, "where": str, "run": Any, "seeds": Any, "paper": Any, "intervals": bool},
    **dict.fromkeys(("images", "features", "methods", "draw", "vary", "show"), dict),
}
_MERGED_TABLES = ("train", "data", "draw", "methods")  # tables that are merged with the protocol's; others replace it
_SIDE_KEYS = {
    **dict.fromkeys(PROTOCOL_KEYS, Any),  # checked as part of the protocol
    **dict.fromkeys((*_MERGED_TABLES, "vary"), dict),
    **{"protocol": str, "run": Any},
}
_SHOW_KEYS = {"x": str, "y": Any, "x_label": str, "log_x": bool}
_VARIED_TYPES = {"k": float | None, "backbone": str, "image_size": int, "head": str | None}


@dataclass(frozen=True)
class Study:
    """A validated study file, on images or on features; see the module's documentation for its fields."""

    name: str
    protocol: Protocol
    run: tuple[str, ...]
    vary: dict[str, Any]
    """The values of each varied key, or its values by data set."""
    y: tuple[str, ...]
    title: str
    about: str = ""
    where: str = ""
    x: str = ""
    x_label: str = ""
    log_x: bool = False
    intervals: bool = False

    def searches(self, data: Sequence[str], entries: Sequence[str], search: str) -> list[Search]:
        """Return every entry at every value, on every data set."""
        searches = []
        methods = [METHODS[self.protocol.methods.get(entry, {}).get("method", entry)] for entry in entries]
        if "k" in self.vary and not any(method.needs.k or "k" in method.setting_types() for method in methods):
            raise InputError(f"{self.name}: vary.k has no effect: k is not used by {', '.join(entries)}")
        for given in self.protocol.searches(data, entries, search):
            if not self.vary:
                searches.append(given)
            for key, values in self.vary.items():
                for value in self._values(key, values, given.base.data):
                    space = {name: choices for name, choices in given.space.items() if name != key}
                    with prefix_errors(f"{self.name}: vary"):
                        base = given.base.changed({key: value})
                    check_settings(f"{self.name}: {base.entry}", base.method, base.settings)
                    searches.append(Search(base, space, key, value))
        return searches

    def _values(self, key: str, values: Any, data: str) -> Sequence[Any]:
        if isinstance(values, dict):
            if data not in values:
                raise InputError(
                    f"the study {self.name} has no values of {key} for {data}, only for {', '.join(values)}"
                )
            values = values[data]
        return cast(Sequence[Any], values)

    def charts(self, rows: Sequence[Mapping[str, Any]]) -> list[StudyChart]:
        """One chart per data set, varied key and measure, if the values are numbers."""
        charts = []
        for data in dict.fromkeys(row["data"] for row in rows):
            for key in dict.fromkeys(row["varied"] for row in rows):
                for measure in self.y:
                    x = self.x or "value"
                    part = [
                        row
                        for row in rows
                        if (row["data"], row["varied"]) == (data, key) and row.get(measure) not in (None, "")
                    ]
                    if not key or not all(isinstance(row[x], (int, float)) for row in part):
                        continue
                    part = [row for row in part if row[x] > 0 or not self.log_x]  # a logarithmic axis has no 0
                    if not part:
                        continue
                    charts.append(
                        StudyChart(
                            f"{self.title}: {data}",
                            part,
                            x,
                            measure,
                            x_label=self.x_label or key,
                            y_label=MEASURES.get(measure, measure),
                            log_x=self.log_x,
                            note=self.about,
                        )
                    )
        return charts


COLUMNS = ("labels", "epochs", "learning_rate", "batch_size", "seconds")  # possible values of show.x

MEASURES = {
    "test_map": "test mAP",
    "recovery_map": "mAP on the training labels",
    "recovery_unobserved_map": "mAP on the unobserved labels",
    "test_ppv": "positive predictive value",
    "test_npv": "negative predictive value",
    "test_micro_f1": "micro F1",
    "test_macro_f1": "macro F1",
}


def is_study(name: str) -> bool:
    """Return whether this is the name or the file of a study."""
    if name in packaged_files("protocols") or name in packaged_files("studies"):
        return name in packaged_files("studies")
    return not {"run", "images", "features"}.isdisjoint(read_toml("studies", name))


def load_study(name: str, *, features: bool, changes: Sequence[str] = ()) -> Study:
    """Load a study of the package by name, or another by path.

    Parameters
    ----------
    name : str
    features : bool
        Take the side of the study that is on features, not the one on images.
    changes : sequence of str
        `key=value` for each value of the protocol to change.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        If the file does not exist or is not valid.
    """
    raw = read_toml("studies", name)
    stem = Path(name).stem
    check_keys(stem, raw, _STUDY_KEYS)
    side = _side(stem, raw, "features" if features else "images")
    run, vary = (side.pop(key, raw.get(key)) for key in ("run", "vary"))
    _check_run(stem, raw, run)
    protocol = _apply_changes(stem, raw, side, Path(name).parent, changes)
    with prefix_errors(f"{stem}: vary"):
        varied = flatten(vary or {}, protocol.data)
    for key, values in varied.items():
        _check_varied(f"{stem}: vary", key, values, protocol.features)
    show = raw.get("show", {})
    chart = {**show, "y": _check_show(stem, show)}
    texts = {key: raw[key] for key in ("title", "about", "where", "intervals") if key in raw}
    return Study(stem, protocol, tuple(protocol.entries(run)), varied, **texts, **chart)


def _side(stem: str, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the table [images] or [features]."""
    other = "images" if name == "features" else "features"
    if name not in raw:
        hint = "leave --features out" if name == "features" else "give --features"
        raise InputError(f"the study {stem} runs on {other} only: {hint}" if other in raw else f"{stem}: no protocol")
    side = dict(raw[name])
    check_keys(f"{stem}: {name}", side, _SIDE_KEYS)
    if "protocol" not in side:
        raise InputError(f"{stem}: {name}.protocol is missing")
    return side


def _check_run(stem: str, raw: Mapping[str, Any], run: Any) -> None:
    if "title" not in raw or run is None:
        raise InputError(f"{stem}: {'run' if 'title' in raw else 'title'!r} is missing")
    if not isinstance(run, list) or not run or not all(isinstance(name, str) for name in run):
        raise InputError(f'{stem}: run must be a list of methods, such as ["an", "em"]')
    check_distinct(f"{stem}: run", run)


def _apply_changes(
    stem: str, raw: Mapping[str, Any], side: dict[str, Any], folder: Path, changes: Sequence[str]
) -> Protocol:
    """Return the protocol of a study, with the changes of its side, of its file and of the user."""
    name = side.pop("protocol")
    merged = read_toml("protocols", name, folder=folder)
    make_protocol(Path(name).stem, merged)  # so that an error in that file names that file
    _merge(stem, merged, side)
    _merge(stem, merged, {str(key): raw[key] for key in ("methods", "draw", "seeds", "paper") if key in raw})
    if "paper" not in raw and "paper" not in side:
        merged.pop("paper", None)
    changed = apply_changes(merged, changes)
    return replace(make_protocol(stem, merged), changed=changed)


def _check_show(stem: str, show: Any) -> tuple[str, ...]:
    """Check the table [show] and return its measures."""
    check_keys(f"{stem}: show", show, _SHOW_KEYS)
    y = show.get("y", "test_map")
    measures = [y] if isinstance(y, str) else y
    if not isinstance(measures, list) or not measures:
        raise InputError(f"{stem}: show.y must be a measure or a list of measures: {', '.join(MEASURES)}")
    for measure in measures:
        if measure not in list(MEASURES):
            raise InputError(f"{stem}: show.y must be one of {', '.join(MEASURES)}, not {measure!r}")
    if show.get("x", "labels") not in COLUMNS:
        raise InputError(f"{stem}: show.x must be one of {', '.join(COLUMNS)}, not {show['x']!r}")
    return tuple(measures)


def _merge(location: str, protocol: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merge `_MERGED_TABLES`, and the tables of methods, with the protocol's; replace other values."""
    for key, value in changes.items():
        if key == "methods":
            existing = protocol.setdefault("methods", {})
            check_keys(f"{location}: methods", value, dict.fromkeys(value, dict))
            for entry, table in value.items():
                existing[entry] = {**existing.get(entry, {}), **table}
        elif key in _MERGED_TABLES:
            protocol[key] = {**protocol.get(key, {}), **value}
        else:
            protocol[key] = value


def _check_varied(location: str, key: str, values: Any, features: bool) -> None:
    """Raise an error for variations that cannot change the result, and for values of the wrong type."""
    table = key.partition(".")[0]
    if table == "train":
        check_train_key(location, key, features)
    if features and table in ("head", "head_settings"):
        raise InputError(f"{location}: on features every head is linear, so {key} cannot be varied; it can on images")
    for choices in values.values() if isinstance(values, dict) else [values]:
        check_distinct(f"{location}.{key}", choices)
        for value in choices:
            check_value(f"{location}.{key}", None if value == "none" else value, _VARIED_TYPES.get(key, Any))


def interval_rows(datasets: Mapping[str, Dataset]) -> list[dict[str, Any]]:
    """Cole et al., Table A2: the interval of nine in ten estimates of k from M fully labelled rows, and the paper's."""
    published: dict[tuple[str, str, str], str] = {}
    with packaged_files("papers")["cole2021"].open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["table"] == "A2":
                published[row["dataset"], row["setting"], row["measure"]] = row["value"]
    rows = []
    for name, dataset in datasets.items():
        if not dataset.fully_labelled[dataset.train].all():
            continue
        for size, (low, high) in k_intervals(dataset.full_labels(dataset.train)).items():
            paper = {f"paper_{end}": published.get((name, str(size), f"k_{end}"), "") for end in ("low", "high")}
            rows.append({"data": name, "rows": size, "low": round(low, 2), "high": round(high, 2), **paper})
    return rows
