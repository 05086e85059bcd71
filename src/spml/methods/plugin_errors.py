"""Errors in the code of a plug-in, reported as such: they are no mistakes in this package."""

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from spml.errors import InputError

_HOOKS = ("prepare", "objective", "loss", "receive_soft_labels", "members", "penalty", "after_step", "end_epoch")


_is_off = False


@contextmanager
def as_raised() -> Iterator[None]:
    """Let errors of method classes through as they are: the contract of a method has its own sentences for them."""
    global _is_off
    before, _is_off = _is_off, True
    try:
        yield
    finally:
        _is_off = before


def is_plugin(module: str) -> bool:
    """Whether a module lies outside this package."""
    return module.partition(".")[0] != "spml"


@contextmanager
def explained(name: str, function: str, module: str) -> Iterator[None]:
    """Say that an error comes from a function of a plug-in; its traceback is the cause of the `InputError`."""
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:
        if not is_plugin(module):
            raise
        lines = traceback.extract_tb(error.__traceback__)
        own = getattr(sys.modules.get(module), "__file__", None)
        line = next((each for each in reversed(lines) if each.filename == own), lines[-1])
        raise InputError(
            f"method {name!r}: {function} fails in {line.filename}, line {line.lineno} ({one_line(error)}): "
            "correct the plug-in"
        ) from error


def explain_hooks(cls: type[Any]) -> None:
    """Wrap what a method class of a plug-in defines, so that its errors are explained and its losses checked."""
    for hook in _HOOKS:
        defined = vars(cls).get(hook)
        if isinstance(defined, FunctionType):
            setattr(cls, hook, _explained_hook(hook, defined, cls.__module__))


def _explained_hook(hook: str, function: Callable[..., Any], module: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(self: Any, *inputs: Any, **named_inputs: Any) -> Any:
        if _is_off:
            return function(self, *inputs, **named_inputs)
        with explained(self.name, hook, module):
            result = function(self, *inputs, **named_inputs)
        if hook == "objective":
            _check_loss(f"method {self.name!r}: {hook}", result, inputs[0].shape[:-2], inputs[0].requires_grad)
        elif hook == "loss":
            _check_loss(f"method {self.name!r}: {hook}", result, (), False)
        return result

    return wrapped


def _check_loss(what: str, value: object, shape: tuple[int, ...], differentiable: bool) -> None:
    """Check that a loss has one value per head, from which gradients can be computed."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        found = str(value.dtype) if isinstance(value, Tensor) else f"an object of type {type(value).__name__}"
        raise InputError(f"{what} returned {found}: return a tensor of floating-point numbers, one per head")
    if value.shape != shape:
        raise InputError(
            f"{what} returned a tensor of shape {tuple(value.shape)}: return one value per head, here of shape "
            f"{tuple(shape)}"
        )
    if torch.is_grad_enabled() and differentiable and not value.requires_grad:
        raise InputError(f"{what} returned a value that does not depend on the logits: compute it without detach")


def one_line(error: BaseException) -> str:
    """The type and the text of an error, as part of a sentence."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
