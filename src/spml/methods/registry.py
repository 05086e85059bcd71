"""The methods by name: those of this package, those of installed plug-ins, and those imported by the user."""

import dataclasses
import importlib
import importlib.util
import inspect
import os
import sys
import warnings
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from spml.errors import InputError, unknown_name
from spml.losses.activation import Activation
from spml.losses.module import settings_of
from spml.methods.base import Method, check_class, mean_entry
from spml.methods.interface import Clock, Needs
from spml.methods.plugin_errors import explained, one_line
from spml.type_checks import hints_of

ENTRY_POINTS = "spml.methods"
STEP_INPUTS = frozenset({"epoch", "epochs", "progress"})
"""Positional inputs of a loss function that come from the clock."""


class PluginWarning(UserWarning):
    """An installed plug-in cannot be loaded."""


class _Methods(UserDict[str, type[Method]]):
    """Method classes by name. Plug-ins are loaded when all names are listed or a name is not built in."""

    loaded = False

    def load_plugins(self) -> None:
        if self.loaded:
            return
        self.loaded = True
        for entry_point in entry_points(group=ENTRY_POINTS):
            before = dict(self.data)
            package = entry_point.dist.name if entry_point.dist else entry_point.name
            try:
                entry_point.load()
            except (Exception, SystemExit) as error:  # a broken plug-in must not break the others
                self.data = before
                _broken[package] = (
                    f"The plug-in package {package!r} cannot be loaded ({entry_point.value}: {one_line(error)}). "
                    "Fix or uninstall it."
                )
                warnings.warn(_broken[package], PluginWarning, stacklevel=2)

    def __contains__(self, name: object) -> bool:
        if name not in self.data:
            self.load_plugins()
        return name in self.data

    def __getitem__(self, name: str) -> type[Method]:
        if name not in self:
            raise KeyError(name)
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        self.load_plugins()
        return iter(self.data)

    def __len__(self) -> int:
        self.load_plugins()
        return len(self.data)


METHODS = _Methods()
_broken: dict[str, str] = {}
_imported: list[str] = []


def import_plugins(names: Sequence[str]) -> None:
    """Import modules or files that register methods.

    Parameters
    ----------
    names : sequence of str
        Importable names (`my_package`; the current folder is searched too) or paths of Python files (`my_file.py`).

    Raises
    ------
    InputError
        If one of them does not exist or fails on import.
    """
    for name in names:
        try:
            path = Path(name).expanduser().resolve() if name.endswith(".py") else None
            key = str(path or name)
            if key in _imported:
                continue
            if path is not None:
                _import_file(path)
            else:
                if os.getcwd() not in sys.path:
                    sys.path.append(os.getcwd())
                importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise InputError(f"Cannot import the plug-in {name!r}: {one_line(error)}") from error
        _imported.append(key)


def imported_plugins() -> tuple[str, ...]:
    """The names and absolute paths imported so far by `import_plugins`, so that worker processes can repeat it."""
    return tuple(_imported)


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise InputError("the file does not exist")
    package = path.stem == "__init__"
    name = path.parent.name if package else path.stem
    if name in sys.modules:
        if getattr(sys.modules[name], "__file__", None) == str(path):
            return
        raise InputError(f"a module named {name!r} is already imported; rename the file")
    locations = [str(path.parent)] if package else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise


def method(name: str, /, **settings: Any) -> Method:
    """Create a method by name.

    Parameters
    ----------
    name : str
        One of ours (`spml methods` lists them), or a method registered by a plug-in.
    **settings
        Settings that differ from the paper's defaults.

    Returns
    -------
    Method

    Raises
    ------
    InputError
        If the name or a setting is unknown, or a value has the wrong type or is out of range. `spml methods NAME`
        lists the settings of a method with their ranges.

    Examples
    --------
    >>> import spml.methods
    >>> spml.methods.method("em", entropy_weight=0.1).settings
    Settings(entropy_weight=0.1)
    """
    if name not in METHODS:
        raise InputError(" ".join([unknown_name("method", name, METHODS), *_broken.values()]))
    return METHODS[name](**settings)


def register(cls: type[Method]) -> type[Method]:
    """Make a method class known by its name; usable as a decorator.

    Parameters
    ----------
    cls : subclass of Method

    Returns
    -------
    subclass of Method
        The class itself.

    Raises
    ------
    TypeError
        If the class lacks a name, a paper, a summary, or an objective.
    InputError
        If another module has registered a method of the same name.

    Examples
    --------
    >>> import spml
    >>> @spml.register
    ... class SquaredError(spml.methods.Method):
    ...     name = "squared-error"
    ...     paper = "an example"
    ...     summary = "Squared error, with unknown labels as negatives."
    ...
    ...     def objective(self, logits, labels, rows, clock):
    ...         return (logits.sigmoid() - (labels > 0).float()).square().mean((-2, -1))
    >>> spml.method("squared-error").summary
    'Squared error, with unknown labels as negatives.'
    >>> del spml.methods.METHODS.data["squared-error"]  # so that this example leaves no trace
    """
    check_class(cls)
    existing = METHODS.data.get(cls.name)
    if existing is not None and existing.__module__ != cls.__module__:
        raise InputError(
            f"Method {cls.name!r} of {cls.__module__} is already registered by {existing.__module__}. "
            "Choose another name."
        )
    METHODS.data[cls.name] = cls
    return cls


def loss_method(
    name: str,
    function: Callable[..., Tensor],
    *,
    paper: str,
    summary: str,
    needs: Needs = Needs(),  # noqa: B008 (frozen)
    reduce: Callable[[Tensor], Tensor] = mean_entry,
    f1_threshold: float = 0.5,
    pseudo_label_setting: str | None = None,
    activation: Activation = "sigmoid",
    head_settings: Mapping[str, Any] = MappingProxyType({}),
    **defaults: Any,
) -> type[Method]:
    """Register a method that consists of a loss function.

    Parameters
    ----------
    name : str
        Name of the method.
    function : callable
        `function(logits, labels, *, settings…)`, returning one value per entry. Positional parameters called
        `epoch`, `epochs` and `progress` are taken from the clock. Keyword-only parameters become the method's
        settings; a setting `k` left at None is set to the task's.
    paper, summary : str
        Source, and one sentence for `spml methods`.
    needs : Needs
        Requirements of the method.
    reduce : callable
        Reduces the entries to one value per head: `mean_entry` or `mean_row`.
    f1_threshold, pseudo_label_setting, activation, head_settings
        See `Method`.
    **defaults
        Defaults of settings, where they differ from the function's.

    Returns
    -------
    subclass of Method

    Raises
    ------
    TypeError
        If the function's signature does not fit.

    Examples
    --------
    >>> import torch.nn.functional as F
    >>> def example_loss(logits, labels, *, weight: float = 0.5):
    ...     positive = (labels > 0).to(logits.dtype)
    ...     return -positive * F.logsigmoid(logits) - weight * (1 - positive) * F.logsigmoid(-logits)
    >>> cls = loss_method("doctest-example", example_loss, paper="none", summary="AN with weighted negatives.")
    >>> METHODS.pop("doctest-example")().settings.weight
    0.5
    """
    _check_signature(function, defaults)
    step_inputs = set(inspect.signature(function).parameters) & STEP_INPUTS
    hints, fields = hints_of(function), list[tuple[str, Any, Any]]()
    for setting, parameter in settings_of(function).items():
        default = defaults.pop(setting, None if parameter.default is parameter.empty else parameter.default)
        annotation = hints.get(setting, Any)
        annotation = annotation | None if default is None and annotation is not Any else annotation
        fields.append((setting, annotation, dataclasses.field(default=default)))
    if defaults:
        raise TypeError(f"{function.__name__} has no setting {', '.join(defaults)}")

    def objective(self: Method, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        settings = {setting: getattr(self.settings, setting) for setting, *_ in fields}
        if "k" in settings and settings["k"] is None:
            settings["k"] = self.k
        inputs = {i: getattr(clock, i) for i in step_inputs}
        with explained(name, function.__name__, function.__module__):
            entries = function(logits, labels, **inputs, **settings)
        _check_entries(f"method {name!r}: {function.__name__}", entries, logits)
        return reduce(entries)

    namespace = {
        "__doc__": function.__doc__,
        "__module__": sys._getframe(1).f_globals["__name__"],  # the module that registers it, as for a class
        "name": name,
        "paper": paper,
        "summary": summary,
        "needs": needs,
        "f1_threshold": f1_threshold,
        "pseudo_label_setting": pseudo_label_setting,
        "activation": activation,
        "head_settings": head_settings,
        "function": staticmethod(function),
        "Settings": dataclasses.make_dataclass("Settings", fields, frozen=True),
        "objective": objective,
    }
    title = function.__name__.title().replace("_", "")
    cls: type[Method] = type(f"{title}Method", (Method,), namespace)
    return register(cls)


def _check_entries(what: str, entries: object, logits: Tensor) -> None:
    """Check that a loss function returned one number per entry, from which gradients can be computed."""
    if not isinstance(entries, Tensor) or not entries.is_floating_point() or entries.layout != torch.strided:
        found = str(entries.dtype) if isinstance(entries, Tensor) else f"an object of type {type(entries).__name__}"
        raise InputError(f"{what} returned {found}: return a dense tensor of floating-point numbers, one per entry")
    if entries.shape != logits.shape:
        raise InputError(
            f"{what} returned a tensor of shape {tuple(entries.shape)} for logits of shape {tuple(logits.shape)}: "
            "return one value per entry, which the method averages"
        )
    if torch.is_grad_enabled() and logits.requires_grad and not entries.requires_grad:
        raise InputError(f"{what} returned numbers that do not depend on the logits: compute them without detach")


def _check_signature(function: Callable[..., Tensor], defaults: Iterable[str]) -> None:
    """Check that logits, labels and step inputs are positional, and settings keyword-only with a default (except k)."""
    name = getattr(function, "__name__", None)
    if name is None:
        raise TypeError(f"{function!r} is not a named function, which loss_method requires")
    parameters = list(inspect.signature(function).parameters.values())
    if sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters[:2]) < 2:
        raise TypeError(f"{name}: the first two positional parameters must be logits and labels")
    for parameter in parameters[2:]:
        from_clock = parameter.name in STEP_INPUTS
        if parameter.kind is parameter.KEYWORD_ONLY:
            if from_clock:
                raise TypeError(f"{name}: {parameter.name!r} changes at every step: make it positional (before the *)")
            if parameter.default is parameter.empty and parameter.name not in (*defaults, "k"):
                raise TypeError(f"{name}: the setting {parameter.name!r} needs a default")
        elif not from_clock or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise TypeError(
                f"{name}: the parameter '{parameter}' is not supported: positional parameters are logits, labels, "
                "epoch, epochs and progress, and settings are keyword-only (after a *)"
            )
