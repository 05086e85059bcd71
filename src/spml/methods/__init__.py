"""Training methods, one file per paper.

`method(name, **settings)` creates one, `METHODS` lists them, `register` and `loss_method` add one.
"""

import importlib
import pkgutil

from spml.methods.base import (
    ENOUGH_STEPS,
    Batch,
    Clock,
    EnsembleMember,
    Geometry,
    Method,
    ModelOutputs,
    Needs,
    Problem,
)
from spml.methods.registry import (
    METHODS,
    broken_plugins,
    import_plugins,
    imported_plugins,
    loss_method,
    method,
    register,
)

for _file in pkgutil.iter_modules(__path__):  # each file registers its methods
    importlib.import_module(f"{__name__}.{_file.name}")

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
    "broken_plugins",
    "import_plugins",
    "imported_plugins",
    "loss_method",
    "method",
    "register",
]
