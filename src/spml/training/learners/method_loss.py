"""Any registered method as a loss for the converged solver, if it is a pure function of logits and labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spml.labels import Labels
from spml.methods import Clock, Method, Problem
from spml.training.examples import check_labels, check_on_features
from spml.training.linear.rows import DeviceLabels

_ROWS = 8  # rows on which a method is probed


class MethodLoss:
    """The objective of a method as a sum over rows.

    Parameters
    ----------
    method : Method
        Prepared, and pure (see `is_pure`).
    labels : Labels
        Of the training rows.
    device : torch.device
    """

    def __init__(self, method: Method, labels: Labels, device: torch.device) -> None:
        self._method, self._table, self._labels = method.to(device), DeviceLabels(labels, device), labels

    @torch.enable_grad()
    def __call__(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        leaf = logits.detach().transpose(0, 1).contiguous().requires_grad_()
        value = self._method.objective(leaf, self._table.batch(positions), positions, Clock()) * len(positions)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient.transpose(0, 1)

    def start(self) -> Tensor:
        """Logits of the class frequencies; a class without rows has half a row."""
        count = torch.from_numpy(self._labels.counts().positives.astype(np.float32)) + 0.5
        return torch.logit(count / (len(self._labels) + 1))


def prepared(method: Method, labels: Labels, k: float | None, seed: int) -> Method:
    """The method, set up for training on features."""
    check_on_features(type(method))
    check_labels(method, labels)
    method.prepare(Problem(labels, k=k, seeds=seed, features=True))
    return method


def is_pure(method: Method, labels: Labels) -> bool:
    """Whether a prepared method's objective is a mean over rows that depends only on their logits and labels.

    It is not for methods with state, views or their own parameters. Whether it changes with the epoch, is random, or
    does not split into rows is found by evaluating it on a few rows.
    """
    hooks = ("loss", "penalty", "after_step", "end_epoch", "parameter_groups")
    overridden = any(getattr(type(method), hook) is not getattr(Method, hook) for hook in hooks)
    if overridden or method.needs.epoch_predictions:
        return False
    if len(method.ensemble) or any(True for _ in method.buffers()) or any(True for _ in method.parameters()):
        return False
    rows = torch.arange(min(_ROWS, len(labels)))
    table = labels.batch(rows)
    logits = 3 * torch.randn(1, len(rows), labels.num_classes, generator=torch.Generator().manual_seed(0))

    def value(part: slice, epoch: int = 1) -> float:
        clock = Clock(epoch, 10, 10 * epoch, 101)
        return float(method.objective(logits[:, part], table[part], rows[part], clock)) * len(rows[part])

    everything = value(slice(None))
    others = [value(slice(None)), value(slice(None), 10), value(slice(None), 5)]
    others.append(sum(value(slice(i, i + 1)) for i in range(len(rows))))
    return bool(np.allclose(others, everything, rtol=1e-4, atol=1e-6))
