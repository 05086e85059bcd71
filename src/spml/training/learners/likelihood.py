"""The held-out likelihood of the observed labels: how learners are compared, and how they are combined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS = 30


@dataclass(frozen=True)
class HeldOut:
    """Mean log-likelihood per row of the observed labels, with its standard error, and the temperature used."""

    log_likelihood: float
    standard_error: float
    temperature: float


def fit_temperature(scores: Tensor, targets: Tensor) -> HeldOut:
    """The likelihood of the observed labels under softmax(a·scores), with the best a.

    Strong regularisation shrinks the scores, and the scale is fitted again later: without a, shrinkage would count
    as a worse fit.

    Parameters
    ----------
    scores, targets : Tensor of shape (n_rows, n_classes)
    """
    weights, rows = combine([scores], targets)
    return _summary(rows, targets, float(weights[0]))


def combine(scores: list[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Non-negative weights w of Σ wₘ·scoresₘ with the best likelihood, and the log-likelihood of every row.

    Newton's method on log w, with the likelihood of the observed labels under the softmax of the weighted sum.
    """
    table = torch.stack([torch.log_softmax(score.double(), -1) for score in scores])  # (m, n, L)
    targets = targets.double()
    count = len(scores)
    log_weight = torch.full((count,), -float(torch.tensor(count).log()), dtype=torch.float64, device=table.device)
    for _ in range(_STEPS):
        weight = log_weight.exp()
        choice = torch.softmax(torch.tensordot(weight, table, 1), -1)
        row_weight = targets.sum(1, keepdim=True)
        expected = torch.einsum("nl,mnl->mn", choice * row_weight, table)
        slope = torch.einsum("nl,mnl->m", targets, table) - expected.sum(1)
        second = torch.einsum("nl,mnl,pnl->mp", choice * row_weight, table, table)
        mean = torch.einsum("nl,mnl->mn", choice, table)
        hessian = second - torch.einsum("mn,pn,n->mp", mean, mean, row_weight[:, 0])
        gradient = slope * weight
        curvature = hessian * weight[:, None] * weight + torch.diag(gradient.abs() + 1e-6 * len(targets))
        step = torch.linalg.solve(curvature, gradient).clamp(-2.0, 2.0)
        log_weight = (log_weight + step).clamp(-12.0, 6.0)
        if float(step.abs().max()) < 1e-4:
            break
    weight = torch.where(log_weight > -7, log_weight.exp(), 0.0)
    rows = (torch.log_softmax(torch.tensordot(weight, table, 1), -1) * targets).sum(1)
    return weight, rows


def _summary(rows: Tensor, targets: Tensor, temperature: float) -> HeldOut:
    total = float(targets.sum())
    mean = float(rows.sum()) / total
    spread = float((rows - mean * targets.sum(1)).square().sum().sqrt()) / total
    return HeldOut(mean, spread, temperature)
