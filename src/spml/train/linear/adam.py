"""Adam for many heads: each at its own rate, or some classes of one head at a time."""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam


class HeadwiseAdam:
    """Adam over tensors whose first dimension is heads, each head at its own learning rate.

    torch's fused kernel takes one rate, so neighbouring heads of one rate are moved together. It is called without
    the `Optimizer` around it, whose making alone imports two seconds of compiler.
    """

    def __init__(self, tensors: Sequence[tuple[Tensor, Sequence[float]]]) -> None:
        # By rate: what adam() takes, and where the gradients are found.
        self._moved: dict[float, tuple[list[Tensor], ...]] = defaultdict(lambda: ([], [], [], []))
        self._gradients: dict[float, list[tuple[Tensor, slice]]] = defaultdict(list)
        for tensor, rates in tensors:
            first, second = torch.zeros_like(tensor), torch.zeros_like(tensor)
            start = 0
            for rate, run in itertools.groupby(rates):
                heads = slice(start, start + len(list(run)))
                start = heads.stop
                parts = (tensor.detach()[heads], first[heads], second[heads], torch.zeros((), device=tensor.device))
                for column, part in zip(self._moved[rate], parts, strict=True):
                    column.append(part)
                self._gradients[rate].append((tensor, heads))

    def step(self) -> None:
        for rate, columns in self._moved.items():
            places = self._gradients[rate]
            gradients = [tensor.grad[heads] for tensor, heads in places if tensor.grad is not None]
            if len(gradients) < len(places):  # what took no part in the objective does not move
                moving = [tensor.grad is not None for tensor, _ in places]
                columns = tuple(list(itertools.compress(column, moving)) for column in columns)
            parts, first, second, steps = columns
            adam(
                parts,
                gradients,
                first,
                second,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


class PartwiseAdam:
    """Adam over some classes of one head at a time, so that the gradient of all weights is never held."""

    def __init__(self, weight: Tensor, bias: Tensor, rates: Sequence[float]) -> None:
        self._values, self._rates = (weight, bias), rates
        self._moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in self._values]
        # Every part counts its own steps, the weights' and the bias's.
        self._steps: dict[tuple[int, int], list[Tensor]] = defaultdict(lambda: [torch.zeros(()), torch.zeros(())])

    def move(self, head: int, classes: slice, gradients: Sequence[Tensor]) -> None:
        """One step of these classes of a head, by the gradients of their weights (l, D) and bias (l,)."""
        adam(
            [value[head, classes] for value in self._values],
            list(gradients),
            [first[head, classes] for first, _ in self._moments],
            [second[head, classes] for _, second in self._moments],
            [],
            self._steps[head, classes.start],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._rates[head],
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
