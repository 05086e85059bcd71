"""Check that values have the types their annotations declare."""

from __future__ import annotations

import dataclasses
import numbers
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from spml.errors import InputError

_WORDS: dict[Any, str] = {  # the types that can be checked, as an error message writes them
    **{str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"},
    **{NoneType: "None", tuple[int, ...]: "a list of whole numbers", tuple[float, ...]: "a list of numbers"},
    tuple[float, float]: "a list of two numbers",
}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}  # these include NumPy's number types


def check_type(name: str, value: Any, annotation: Any, none: str = "None") -> None:
    """Check that a value has its annotated type.

    Parameters
    ----------
    name : str
        What the error message calls the value: an option or a setting.
    value : object
        The value to check.
    annotation : type or union of types
        The declared type. Annotations that cannot be checked, such as `Any`, accept every value.
    none : str
        How `None` is written where the value comes from; TOML files use "none" in quotes.

    Raises
    ------
    InputError
        If the value has another type.

    Examples
    --------
    >>> check_type("epochs", 10, int)
    >>> check_type("epochs", 2.5, int | None)
    Traceback (most recent call last):
    spml.errors.InputError: epochs must be a whole number or None, not 2.5
    """
    options = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    words = [none if option is NoneType else _word(option) for option in options]
    if None not in words and not any(_has_type(value, option) for option in options):
        raise InputError(f"{name} must be {' or '.join(map(str, words))}, not {value!r}")


def hints_of(annotated: Any) -> dict[str, Any]:
    """Return the type hints of a class or function, or an empty dictionary if one of them cannot be resolved."""
    try:
        return get_type_hints(annotated)
    except NameError:
        return {}


def check_types(settings: Any) -> None:
    """Check that every field of a dataclass instance has its annotated type."""
    for name, annotation in hints_of(type(settings)).items():
        check_type(name, getattr(settings, name), annotation)


def check_rules(settings: Any, *rules: tuple[str, bool, str], prefix: str = "") -> None:
    """Raise `InputError` for the first rule that does not hold: the name of a setting, whether it holds, what it asks.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> check_rules(SimpleNamespace(epochs=0), ("epochs", False, "be at least 1"))
    Traceback (most recent call last):
    spml.errors.InputError: epochs must be at least 1, not 0
    """
    for name, holds, demand in rules:
        if not holds:
            raise InputError(f"{prefix}{name} must {demand}, not {getattr(settings, name)!r}")


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number as an int; raise `InputError` if it is something else or below `least`."""
    if not _has_type(value, int) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def _word(annotation: Any) -> str | None:
    if annotation in _WORDS:
        return _WORDS[annotation]
    return f"a {annotation.__name__}" if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else None


def _has_type(value: Any, annotation: Any) -> bool:
    """A list counts as a tuple, because files have no tuples; a tuple of any length must not be empty."""
    if get_origin(annotation) is tuple:
        first, last = get_args(annotation)
        fits = isinstance(value, list | tuple) and (len(value) > 0 if last is ... else len(value) == 2)
        return fits and all(_has_type(item, first) for item in value)
    if isinstance(value, bool):
        return annotation is bool
    return isinstance(value, _NUMBERS.get(annotation, annotation))
