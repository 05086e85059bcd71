"""Whether values are of the types that dataclasses name for them."""

from __future__ import annotations

import dataclasses
import numbers
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from spml.errors import InputError

WORDS: dict[Any, str] = {  # what can be checked, and how an error calls it
    **{str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"},
    **{NoneType: "None", tuple[int, ...]: "a list of whole numbers", tuple[float, ...]: "a list of numbers"},
    tuple[float, float]: "a list of two numbers",
}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}  # NumPy's, too


def check_kind(where: str, value: Any, kind: Any, none: str = "None") -> None:
    """The value must be of that type; one that cannot be checked is right. `none` is what None is written as."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    words = [none if each is NoneType else _word(each) for each in kinds]
    if None not in words and not any(_fits(value, each) for each in kinds):
        raise InputError(f"{where} must be {' or '.join(map(str, words))}, not {value!r}")


def hints_of(annotated: Any) -> dict[str, Any]:
    """The types that a class or function names; where one cannot be found, none."""
    try:
        return get_type_hints(annotated)
    except NameError:
        return {}


def check_types(settings: Any) -> None:
    """Values of a dataclass must be of the types its fields name."""
    for name, kind in hints_of(type(settings)).items():
        check_kind(name, getattr(settings, name), kind)


def _word(kind: Any) -> str | None:
    if kind in WORDS:
        return WORDS[kind]
    return f"a {kind.__name__}" if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


def _fits(value: Any, kind: Any) -> bool:
    """In a file a tuple is a list, and one of any length has at least one value."""
    if get_origin(kind) is tuple:
        first, last = get_args(kind)
        right = isinstance(value, list | tuple) and (len(value) > 0 if last is ... else len(value) == 2)
        return right and all(_fits(each, first) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, _NUMBERS.get(kind, kind))
