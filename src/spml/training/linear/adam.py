"""Adam for many heads: each with its own learning rate, or some classes of one head at a time."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

_OPTIONS: dict[str, Any] = {
    **{"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    **{"fused": True, "amsgrad": False, "maximize": False},
}


class HeadwiseAdam:
    """Adam over tensors whose first dimension is heads, each head with its own learning rate.

    torch's fused kernel takes one rate, so neighbouring heads with the same rate are updated together. The kernel is
    called without an `Optimizer`, whose construction alone imports two seconds of compiler.
    """

    def __init__(self, tensors: Sequence[tuple[Tensor, Sequence[float]]]) -> None:
        # By rate: the arguments of adam(), and where the gradients are.
        self._updated: dict[float, tuple[list[Tensor], ...]] = defaultdict(lambda: ([], [], [], []))
        self._gradients: dict[float, list[tuple[Tensor, slice]]] = defaultdict(list)
        for tensor, rates in tensors:
            first, second = torch.zeros_like(tensor), torch.zeros_like(tensor)
            start = 0
            for rate, run in itertools.groupby(rates):
                heads = slice(start, start + len(list(run)))
                start = heads.stop
                parts = (tensor.detach()[heads], first[heads], second[heads], torch.zeros((), device=tensor.device))
                for column, part in zip(self._updated[rate], parts, strict=True):
                    column.append(part)
                self._gradients[rate].append((tensor, heads))

    def step(self) -> None:
        for rate, columns in self._updated.items():
            locations = self._gradients[rate]
            gradients = [tensor.grad[heads] for tensor, heads in locations if tensor.grad is not None]
            if len(gradients) < len(locations):  # tensors without a gradient are not updated
                has_gradient = [tensor.grad is not None for tensor, _ in locations]
                columns = tuple(list(itertools.compress(column, has_gradient)) for column in columns)
            parts, first, second, steps = columns
            adam(parts, gradients, first, second, [], steps, lr=rate, **_OPTIONS)


class PartwiseAdam:
    """Adam over some classes of one head at a time, so that the gradient of all weights is never in memory."""

    def __init__(self, weight: Tensor, bias: Tensor, rates: Sequence[float]) -> None:
        self._values, self._rates = (weight, bias), rates
        self._moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in self._values]
        # Every part counts its own steps, for the weights and for the bias.
        self._steps: dict[tuple[int, int], list[Tensor]] = defaultdict(lambda: [torch.zeros(()), torch.zeros(())])

    def update(self, head: int, classes: slice, gradients: Sequence[Tensor]) -> None:
        """One step for some classes of a head, given the gradients of their weights (l, D) and bias (l,)."""
        adam(
            [value[head, classes] for value in self._values],
            list(gradients),
            [first[head, classes] for first, _ in self._moments],
            [second[head, classes] for _, second in self._moments],
            [],
            self._steps[head, classes.start],
            lr=self._rates[head],
            **_OPTIONS,
        )
