"""L-BFGS for many independent problems at once, each with its own step length."""

from collections.abc import Callable

import torch
from torch import Tensor

HISTORY = 10
_SUFFICIENT_DECREASE = 1e-4
_TRIES = 20  # halvings of a step before a problem counts as converged

Function = Callable[[Tensor], tuple[Tensor, Tensor]]


def minimise(
    function: Function, start: Tensor, *, tolerance: float = 1e-5, patience: int = 3, steps: int = 500
) -> tuple[Tensor, Tensor]:
    """Minimise every problem of a batch.

    All problems take a step together, so that a function which computes them in one matrix product is called as often
    as the slowest problem needs. A problem stops changing once `patience` steps in a row decreased its value by less
    than `tolerance` (relative to the value), or no step decreases it any more.

    Parameters
    ----------
    function : callable
        Maps parameters of shape (P, …) to the values (P,) and the gradients (P, …).
    start : Tensor of shape (P, …)
    tolerance : float
    patience : int
    steps : int
        Largest number of steps.

    Returns
    -------
    parameters : Tensor of shape (P, …)
    values : Tensor of shape (P,)

    Examples
    --------
    >>> target = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> parameters, values = minimise(lambda x: (((x - target) ** 2).sum(1), 2 * (x - target)), torch.zeros(2, 2))
    >>> parameters
    tensor([[1., 2.],
            [3., 4.]])
    """
    point = start.detach().clone()
    value, gradient = function(point)
    memory = _Memory(point)
    active = torch.ones(len(point), dtype=torch.bool, device=point.device)
    idle = torch.zeros(len(point), dtype=torch.int64, device=point.device)
    for step in range(steps):
        direction = -memory.apply(gradient)
        slope = _dot(gradient, direction).to(value.dtype)
        uphill = ~(slope < 0)
        direction[uphill] = -gradient[uphill]
        slope = torch.where(uphill, -_dot(gradient, gradient).to(value.dtype), slope)
        length = torch.ones_like(value)
        if step == 0:  # no curvature is known yet: a step of length 1 at most
            length = (1 / _dot(gradient, gradient).sqrt().clamp(min=1.0)).to(value.dtype)
        moved = ~active
        for _ in range(_TRIES):
            scaled = torch.where(moved & ~active, 0.0, length)
            candidate = point + _wide(scaled, point) * direction
            new_value, new_gradient = function(candidate)
            moved = ~active | (new_value <= value + _SUFFICIENT_DECREASE * scaled * slope)
            if bool(moved.all()):
                break
            length = torch.where(moved, length, length / 2)
        moved &= active
        keep = _wide(moved, point)
        candidate, new_gradient = torch.where(keep, candidate, point), torch.where(keep, new_gradient, gradient)
        new_value = torch.where(moved, new_value, value)
        memory.add(candidate - point, new_gradient - gradient)
        small = value - new_value <= tolerance * new_value.abs().clamp(min=1e-3)
        idle = torch.where(small, idle + 1, 0)
        active &= moved & (idle < patience)
        point, value, gradient = candidate, new_value, new_gradient
        if not bool(active.any()):
            break
    return point, value


class _Memory:
    """The last steps and changes of the gradient, and the inverse Hessian that they imply."""

    def __init__(self, like: Tensor) -> None:
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._scale = torch.ones(len(like), dtype=like.dtype, device=like.device)

    def add(self, step: Tensor, change: Tensor) -> None:
        curvature = _dot(step, change)
        squared = _dot(change, change)
        valid = curvature > 1e-10 * squared.clamp(min=1e-30)
        inverse = torch.where(valid, 1 / curvature.clamp(min=1e-30), 0.0)  # 0: the pair has no effect
        self._scale = torch.where(valid, curvature / squared.clamp(min=1e-30), self._scale)
        self._pairs = [*self._pairs[-HISTORY + 1 :], (step, change, inverse)]

    def apply(self, gradient: Tensor) -> Tensor:
        """The two-loop recursion (Nocedal and Wright 2006, algorithm 7.4)."""
        result = gradient.clone()
        weights = []
        for step, change, inverse in reversed(self._pairs):
            weight = inverse * _dot(step, result)
            result.sub_(_wide(weight, result) * change)
            weights.append(weight)
        result.mul_(_wide(self._scale, result))
        for (step, change, inverse), weight in zip(self._pairs, reversed(weights), strict=True):
            result.add_(_wide(weight - inverse * _dot(change, result), result) * step)
        return result


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return torch.einsum("pi,pi->p", one.flatten(1), other.flatten(1))


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """Values (P,) in a shape that broadcasts over the other dimensions."""
    values = values if values.dtype == torch.bool else values.to(like.dtype)
    return values.reshape(-1, *[1] * (like.dim() - 1))
