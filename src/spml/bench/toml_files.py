"""TOML files of the package or of the user: reading them, and the changes of `--set`."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any

from spml.errors import InputError

_MAX_DEPTH = 8  # levels of tables in a file


def packaged_files(kind: str) -> dict[str, Path]:
    """Return the files of the package in `files/protocols`, `files/studies` or `files/papers`, by name."""
    folder = Path(str(resources.files(__package__))) / "files" / kind
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".toml", ".csv")}


def read_toml(kind: str, name: str, folder: Path | None = None) -> dict[str, Any]:
    """Read a file of the package by name, or another by path, relative to `folder`."""
    path = packaged_files(kind).get(name) or (folder or Path()) / name
    if not path.is_file():
        raise InputError(
            f"No file {str(path)!r}, and no {kind} of that name. Available {kind}: {', '.join(packaged_files(kind))}"
        )
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # includes TOMLDecodeError and UnicodeDecodeError
        raise InputError(f"{path}: this is not a valid TOML file ({error})") from None
    _check_depth(str(path), raw)
    return raw


def _check_depth(location: str, raw: Any) -> None:
    """Raise `InputError` if tables are nested more deeply than any protocol's; dotted keys nest without limit."""
    level: list[Any] = [raw]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise InputError(f"{location}: tables and lists are nested more than {_MAX_DEPTH} levels deep")


def apply_changes(raw: dict[str, Any], changes: Sequence[str]) -> tuple[str, ...]:
    """Apply the changes of `--set` to the content of a file, and return those that differ from it, as `key = value`."""
    before = deepcopy(raw)
    for change in changes:
        change_value(raw, change)
    last = {change.partition("=")[0]: change.partition("=")[2].strip() for change in changes}
    return tuple(f"{key} = {text}" for key, text in last.items() if _value_at(raw, key) != _value_at(before, key))


def _value_at(table: Any, key: str) -> Any:
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


def change_value(raw: dict[str, Any], change: str) -> None:
    """Apply a change such as `train.epochs=2`; the value is TOML, or else a string."""
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InputError(f"--set {change} is not of the form key=value, as in --set train.epochs=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    table = raw
    *above, last = key.split(".")
    if len(above) >= _MAX_DEPTH or not all([*above, last]):
        raise InputError(f"--set {change[:80]}: a key has at most {_MAX_DEPTH} parts, none of them empty")
    for part in above:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {change}: {part} is not a table")
    table[last] = value


def parse_none(table: Mapping[str, Any]) -> dict[str, Any]:
    """Replace "none" by None, also in nested tables."""
    return {
        key: parse_none(value) if isinstance(value, dict) else None if value == "none" else value
        for key, value in table.items()
    }


def lists_to_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """Replace lists, which TOML has, by tuples, which settings have."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def flatten(table: Mapping[str, Any], data: Collection[str] = (), above: str = "") -> dict[str, Any]:
    """Return {train: {learning_rate: […]}} as {train.learning_rate: (…)}; a table by data set is not flattened."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = above + key
        if isinstance(value, dict) and value and set(value) <= set(data):
            flat[name] = {data_name: _list(f"{name}.{data_name}", values) for data_name, values in value.items()}
        elif isinstance(value, dict):
            flat |= flatten(value, data, f"{name}.")
        else:
            flat[name] = _list(name, value)
    return flat


def _list(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{name} must be a list of values, not {value!r}")
    return tuple(value)
