"""Check that values have the types and lie in the ranges that their annotations declare."""

from __future__ import annotations

import dataclasses
import math
import numbers
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from spml.errors import InputError

_WORDS: dict[Any, str] = {  # the types that can be checked, as an error message writes them
    **{str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"},
    **{NoneType: "None", tuple[int, ...]: "a list of whole numbers", tuple[float, ...]: "a list of numbers"},
    tuple[float, float]: "a list of two numbers",
}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}  # these include NumPy's number types
_INT64 = 2**63 - 1
_FLOAT32 = 3.4e38


@dataclasses.dataclass(frozen=True)
class Range:
    """The finite numbers between two ends; declared as `Annotated[float, Range(0, 1)]`.

    Parameters
    ----------
    low, high : float
        The ends.
    ends : {"[]", "[)", "(]", "()"}
        Whether the ends belong to the range, written as an interval.

    Examples
    --------
    >>> share = Range(0, 1, "[)")
    >>> str(share), 0 in share, 1 in share
    ('at least 0 and below 1', True, False)
    """

    low: float = -math.inf
    high: float = math.inf
    ends: str = "[]"

    def __contains__(self, value: float) -> bool:
        try:
            finite = math.isfinite(value)
        except OverflowError:  # a whole number above the largest float
            return False
        above = value >= self.low if self.ends[0] == "[" else value > self.low
        below = value <= self.high if self.ends[1] == "]" else value < self.high
        return finite and above and below

    def __str__(self) -> str:
        if self.ends == "[]" and math.isfinite(self.low) and math.isfinite(self.high):
            return f"between {self.low:,} and {self.high:,}"
        low = f"{'at least' if self.ends[0] == '[' else 'above'} {self.low:,}" if math.isfinite(self.low) else ""
        high = f"{'at most' if self.ends[1] == ']' else 'below'} {self.high:,}" if math.isfinite(self.high) else ""
        return " and ".join(filter(None, (low, high))) or "finite"


Real = Annotated[float, Range()]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, ends="(]")]
Share = Annotated[float, Range(0, 1)]
Percentage = Annotated[float, Range(0, 100)]
Fraction = Annotated[float, Range(0, 1, "[)")]
Probability = Annotated[float, Range(0, 1, "()")]
Count = Annotated[int, Range(1, 1_000_000)]


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
        If the value has another type, or lies outside the range of an `Annotated` type.

    Examples
    --------
    >>> check_type("epochs", 10, int)
    >>> check_type("share", 7, Share | None)
    Traceback (most recent call last):
    spml.errors.InputError: share must be between 0 and 1, or None, not 7
    >>> check_type("epochs", 2.5, int | None)
    Traceback (most recent call last):
    spml.errors.InputError: epochs must be a whole number or None, not 2.5
    """
    options = _options(annotation)
    words = [none if option is NoneType else _word(option) for option in options]
    if None in words:
        return
    fitting = [option for option in options if _has_type(value, _plain(option))]
    if not fitting:
        raise InputError(f"{name} must be {' or '.join(map(str, words))}, not {_shown(value)}")
    if isinstance(value, numbers.Integral) and abs(int(value)) > _INT64:  # more than NumPy and torch take
        raise InputError(f"{name} must be below 2^63 in size, not {_shown(value)}")
    if isinstance(value, numbers.Real) and _FLOAT32 < abs(float(value)) < math.inf:  # more than torch takes
        raise InputError(f"{name} must be below {_FLOAT32:g} in size, not {_shown(value)}")
    ranges = [limit for option in fitting if (limit := range_of(option)) is not None]
    if ranges and not any(value in limit for limit in ranges):
        finite = "finite and " if isinstance(value, float) and not math.isfinite(value) else ""
        limits = [f"{finite}{limit}" for limit in ranges] + [none for option in options if option is NoneType]
        raise InputError(f"{name} must be {', or '.join(limits)}, not {_shown(value)}")


def range_of(annotation: Any) -> Range | None:
    """Return the range that an annotation declares, or None."""
    metadata = [item for option in _options(annotation) for item in getattr(option, "__metadata__", ())]
    return next((item for item in metadata if isinstance(item, Range)), None)


def type_name(annotation: Any) -> str:
    """Describe an annotation in words: its range if it declares one, otherwise its type."""
    limit = range_of(annotation)
    plain = [_plain(option) for option in _options(annotation)]
    whole = limit is not None and int in plain
    words = (
        [f"a whole number {limit}" if whole else str(limit)]
        if limit is not None
        else [_word(option) or getattr(option, "__name__", str(option)) for option in plain if option is not NoneType]
    )
    return " or ".join([*words, *(["None"] if NoneType in plain else [])])


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _plain(annotation: Any) -> Any:
    """An annotation without its metadata."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _shown(value: Any) -> str:
    """A value as an error message quotes it; long ones are shortened."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _INT64:  # may have too many digits
        return f"{value:.0e}" if abs(value) < 2**1000 else "a number of that size"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def hints_of(annotated: Any) -> dict[str, Any]:
    """Return the type hints of a class or function, or an empty dictionary if one of them cannot be resolved."""
    try:
        return get_type_hints(annotated, include_extras=True)
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
            raise InputError(f"{prefix}{name} must {demand}, not {_shown(getattr(settings, name))}")


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number as an int; raise `InputError` if it is something else or below `least`."""
    if not _has_type(value, int) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {_shown(value)}")
    return int(value)


def check_epoch(epoch: int, epochs: int | None = None) -> None:
    """Raise `InputError` if an epoch is not counted from 1, or is above the number of epochs.

    Examples
    --------
    >>> check_epoch(0, 10)
    Traceback (most recent call last):
    spml.errors.InputError: epoch counts from 1 to epochs (10), not 0: use for epoch in range(1, epochs + 1)
    """
    if epoch < 1 or (epochs is not None and epoch > epochs):
        last = "epochs" if epochs is None else f"epochs ({epochs})"
        raise InputError(f"epoch counts from 1 to {last}, not {epoch}: use for epoch in range(1, epochs + 1)")


def _word(annotation: Any) -> str | None:
    annotation = _plain(annotation)
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
