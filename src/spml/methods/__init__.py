"""Training methods, one file per paper.

`method(name, **settings)` creates one, `METHODS` lists them, `register` and `loss_method` add one.
"""

import importlib
import pkgutil

from spml.methods.base import Batch, Clock, Geometry, Method, Needs, Problem
from spml.methods.registry import METHODS, loss_method, method, register

for _file in pkgutil.iter_modules(__path__):  # each file registers its methods
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["METHODS", "Batch", "Clock", "Geometry", "Method", "Needs", "Problem", "loss_method", "method", "register"]
