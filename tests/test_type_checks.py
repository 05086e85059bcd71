"""Ranges of settings: declared for every method, checked wherever a value comes from."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spml
from spml.errors import InputError
from spml.losses import LOSSES
from spml.losses.module import settings_of
from spml.losses.robust import RobustSchedule
from spml.methods import METHODS
from spml.training.settings import TrainSettings
from spml.type_checks import Count, Range, Share, check_type, hints_of, range_of, type_name

SETTINGS = [(name, field.name) for name in METHODS for field in dataclasses.fields(METHODS[name].Settings)]
NUMERIC = [
    (name, setting)
    for name, setting in SETTINGS
    if isinstance(getattr(METHODS[name].Settings, setting), int | float | None)
    and not isinstance(getattr(METHODS[name].Settings, setting), bool)
    and (name, setting) != ("gr", "schedule")
]


def outside(limit: Range) -> list[Any]:
    """Values just outside a range, and values that lie in no range."""
    below = [limit.low - 1e-9 * max(1, abs(limit.low))] if limit.ends[0] == "[" else [limit.low]
    above = [limit.high + 1e-9 * max(1, abs(limit.high))] if limit.ends[1] == "]" else [limit.high]
    return [value for value in below + above if math.isfinite(value)] + [math.nan, math.inf, -math.inf, 10**400]


@pytest.mark.parametrize(("name", "setting"), NUMERIC)
def test_every_numeric_setting_has_a_range_that_is_checked(name: str, setting: str) -> None:
    annotation = METHODS[name].setting_types()[setting]
    limit = range_of(annotation)
    assert limit is not None, f"{name}: declare the range of {setting}"
    for value in [-3, *outside(limit)]:
        with pytest.raises(InputError, match=setting):
            spml.method(name, **{setting: value})


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_check_the_same_ranges_as_methods(name: str) -> None:
    hints = hints_of(LOSSES[name])
    of_method = METHODS[name].setting_types() if name in METHODS else {}
    for setting in settings_of(LOSSES[name]):
        limit = range_of(hints[setting])
        if setting in of_method:
            assert limit == range_of(of_method[setting])
        if limit is not None:
            with pytest.raises(InputError, match=setting):
                spml.loss(name, **({"k": 1.0} if name == "epr" else {}) | {setting: -3.0})


def test_schedule_of_gr_is_checked() -> None:
    with pytest.raises(InputError, match="width must hold numbers above 0"):
        RobustSchedule(width=(0.0, 1.0))
    with pytest.raises(InputError, match="slope"):
        spml.method("gr", schedule={"slope": [math.nan, 1.0]})


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.sampled_from(["[]", "[)", "(]", "()"]), st.floats())
def test_range_contains_what_the_interval_contains(low: float, high: float, ends: str, value: float) -> None:
    expected = math.isfinite(value) and low <= value <= high
    expected = expected and not (value == low and ends[0] == "(") and not (value == high and ends[1] == ")")
    assert (value in Range(low, high, ends)) == expected


def test_descriptions() -> None:
    assert type_name(Share | None) == "between 0 and 1 or None"
    assert type_name(Count) == "a whole number between 1 and 1,000,000"
    with pytest.raises(InputError, match="share must be between 0 and 1, or None, not 7"):
        check_type("share", 7, Share | None)


@pytest.mark.parametrize(
    "settings",
    [
        *({name: 10**30} for name in ("epochs", "batch_size", "accumulate", "evaluation_batch", "early_stopping")),
        *({name: -3} for name in ("epochs", "batch_size", "seed", "weight_decay", "learning_rate", "clip")),
        *({name: math.nan} for name in ("learning_rate", "head_rate", "weight_decay", "clip", "checkpoint_seconds")),
        {"epochs": 0},
        {"epochs": 10**5000},
        {"averaging": 1.0},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_training_settings_have_ranges(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(settings))} must be"):
        TrainSettings(**settings)
