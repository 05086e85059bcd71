"""The losses by name."""

from collections.abc import Callable
from typing import ParamSpec

from torch import Tensor

P = ParamSpec("P")

LOSSES: dict[str, Callable[..., Tensor]] = {}


def named(*names: str) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Make a loss function available to `spml.loss` under these names."""

    def add(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
        LOSSES.update(dict.fromkeys(names, function))
        return function

    return add
