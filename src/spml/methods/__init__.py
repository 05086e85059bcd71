"""Every method, a file a paper. `method(name, **settings)` makes one; `METHODS` lists them."""

import importlib
import pkgutil
from typing import Any

from spml.errors import InputError
from spml.methods.base import (
    ENOUGH_STEPS,
    METHODS,
    Batch,
    Clock,
    EnsembleMember,
    Geometry,
    Method,
    ModelOutputs,
    Needs,
    Problem,
    loss_method,
    register,
)

for _file in pkgutil.iter_modules(__path__):  # each file registers its methods
    importlib.import_module(f"{__name__}.{_file.name}")


def method(name: str, **settings: Any) -> Method:
    """The method `name` with its paper's defaults, changed by `settings`."""
    if name not in METHODS:
        raise InputError(f"there is no method named {name!r}; there are {', '.join(sorted(METHODS))}")
    return METHODS[name](**settings)


__all__ = [
    "ENOUGH_STEPS",
    "METHODS",
    "Batch",
    "Clock",
    "EnsembleMember",
    "Geometry",
    "Method",
    "ModelOutputs",
    "Needs",
    "Problem",
    "loss_method",
    "method",
    "register",
]
