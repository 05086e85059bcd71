"""Train multi-label classifiers from one label per example, and recover the labels that are missing.

Examples
--------
>>> import spml, torch
>>> criterion = spml.loss("em")
>>> bool(criterion(torch.zeros(1, 3), torch.tensor([[1, 0, 0]])) < 1)
True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spml.api import Run, load, train
    from spml.data import Dataset, open_data
    from spml.errors import InputError
    from spml.estimator import SinglePositiveClassifier
    from spml.labels import Labels
    from spml.losses import Loss, loss
    from spml.methods import method, register

__version__ = "0.1.0"

# Resolved on first access, so that `import spml` and `spml --help` stay fast.
_LAZY_ATTRIBUTES = {
    "Dataset": "spml.data",
    "InputError": "spml.errors",
    "Labels": "spml.labels",
    "Loss": "spml.losses",
    "Run": "spml.api",
    "SinglePositiveClassifier": "spml.estimator",
    "load": "spml.api",
    "loss": "spml.losses",
    "method": "spml.methods",
    "open_data": "spml.data",
    "register": "spml.methods",
    "train": "spml.api",
}
_LAZY_MODULES = ("api", "errors", "estimator", "labels", "losses", "methods", "metrics")


def __getattr__(name: str) -> Any:
    try:
        if name in _LAZY_MODULES:
            return importlib.import_module(f"spml.{name}")
        if name in _LAZY_ATTRIBUTES:
            return getattr(importlib.import_module(_LAZY_ATTRIBUTES[name]), name)
    except ModuleNotFoundError as error:
        from spml.errors import missing_package

        raise missing_package(error, f"spml.{name}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY_ATTRIBUTES])


__all__ = [
    "Dataset",
    "InputError",
    "Labels",
    "Loss",
    "Run",
    "SinglePositiveClassifier",
    "load",
    "loss",
    "method",
    "open_data",
    "register",
    "train",
]
