"""Every method, a file a paper. `method(name, **settings)` makes one; `METHODS` lists them."""

from typing import Any

from ..errors import InputError
from . import asymmetric, auto, cole, lac, large_loss, lasd, robust, verelst, zhou  # each registers its methods
from .base import METHODS, Batch, Clock, Method, Needs, Outputs, Problem, loss_method, register


def method(name: str, **settings: Any) -> Method:
    """The method `name` with its paper's defaults, changed by `settings`."""
    if name not in METHODS:
        raise InputError(f"there is no method named {name!r}; there are {', '.join(sorted(METHODS))}")
    return METHODS[name](**settings)


__all__ = [
    "METHODS",
    "Batch",
    "Clock",
    "Method",
    "Needs",
    "Outputs",
    "Problem",
    "asymmetric",
    "auto",
    "cole",
    "lac",
    "large_loss",
    "lasd",
    "loss_method",
    "method",
    "register",
    "robust",
    "verelst",
    "zhou",
]
