"""spml: multi-label classifiers from one positive label a row."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spml.errors import InputError
    from spml.estimator import SinglePositiveClassifier
    from spml.labels import Labels
    from spml.losses import Loss, loss

__version__ = "0.1.0"

# Every name is fetched when it is asked for, so that `import spml` and `spml --help` stay quick.
_HOME = {
    "InputError": ".errors",
    "Labels": ".labels",
    "Loss": ".losses",
    "loss": ".losses",
    "SinglePositiveClassifier": ".estimator",
}


_ROOMS = ("errors", "labels", "losses", "metrics")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


__all__ = ["InputError", "Labels", "Loss", "SinglePositiveClassifier", "loss"]
