"""Training methods, one file per paper.

`method(name, **settings)` creates one, `METHODS` lists them, `register` and `loss_method` add one. A plug-in needs no
other module of spml but `spml.losses`, `spml.models` and `spml.testing`.
"""

import importlib
import pkgutil

from spml.methods.base import Method, mean_entry, mean_row, uniform_per_head
from spml.methods.interface import Batch, Clock, EnsembleMember, Geometry, Model, Needs, Problem
from spml.methods.memory import RowMemory
from spml.methods.registry import METHODS, loss_method, method, register
from spml.type_checks import Count, NonNegative, Positive, Range, Share

for _file in pkgutil.iter_modules(__path__):  # each file registers its methods
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = [
    "METHODS",
    "Batch",
    "Clock",
    "Count",
    "EnsembleMember",
    "Geometry",
    "Method",
    "Model",
    "Needs",
    "NonNegative",
    "Positive",
    "Problem",
    "Range",
    "RowMemory",
    "Share",
    "loss_method",
    "mean_entry",
    "mean_row",
    "method",
    "register",
    "uniform_per_head",
]
