"""The held-out likelihood of the observed labels: how learners are compared, and how they are combined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS = 30
_NOTICEABLE = 1e-3  # gain in log-likelihood per row for which a learner is kept


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


def choose_weights(scores: list[Tensor], targets: Tensor) -> list[float]:
    """Weights of the learners that improve the likelihood of the combination noticeably, 0 for the others.

    The learner that contributes least is dropped as long as the log-likelihood per row falls by less than 0.001.
    """
    kept = list(range(len(scores)))
    weight, rows = combine(scores, targets)
    while len(kept) > 1:
        without = []
        for each in kept:
            rest = [other for other in kept if other != each]
            rest_weight, rest_rows = combine([scores[other] for other in rest], targets)
            gain, _ = _difference(rows, rest_rows, targets)
            without.append((gain, rest, rest_weight, rest_rows))
        gain, rest, rest_weight, rest_rows = min(without, key=lambda entry: entry[0])
        if gain > _NOTICEABLE:
            break
        kept, weight, rows = rest, rest_weight, rest_rows
    weights = [0.0] * len(scores)
    for each, value in zip(kept, weight.tolist(), strict=True):
        weights[each] = value
    return weights


def gain_of(scores: list[Tensor], more: Tensor, targets: Tensor) -> tuple[float, float]:
    """By how much one more learner improves the likelihood per row, and the standard error of that difference."""
    return _difference(combine([*scores, more], targets)[1], combine(scores, targets)[1], targets)


def _difference(rows: Tensor, others: Tensor, targets: Tensor) -> tuple[float, float]:
    summary = _summary(rows - others, targets, 1.0)
    return summary.log_likelihood, summary.standard_error


def _summary(rows: Tensor, targets: Tensor, temperature: float) -> HeldOut:
    total = float(targets.sum())
    mean = float(rows.sum()) / total
    spread = float((rows - mean * targets.sum(1)).square().sum().sqrt()) / total
    return HeldOut(mean, spread, temperature)
