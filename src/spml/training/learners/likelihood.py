"""The held-out likelihood of the observed labels: how learners are compared, and how they are combined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

_SMALLEST_WEIGHT = 1e-3
_PRIOR_ROWS, _SMALLEST_SHARE = 150, 0.05
_MOST_ENTRIES = 2**26  # rows × classes; of larger tables, evenly spaced rows are used


@dataclass(frozen=True)
class HeldOutLikelihood:
    """Mean log-likelihood per row of the observed labels, with its standard error, and the temperature used."""

    log_likelihood: float
    standard_error: float
    temperature: float


def held_out_likelihood(scores: Tensor, targets: Tensor) -> HeldOutLikelihood:
    """The likelihood of the observed labels under softmax(a·scores), with the best temperature a.

    Strong regularisation shrinks the scores. Their scale is fitted again later, so shrinkage must not count as a worse
    fit.

    Parameters
    ----------
    scores, targets : Tensor of shape (n_rows, n_classes)
    """
    targets, scores = some_rows(targets, scores)
    weights, rows = combine([scores], targets)
    return _summary(rows, targets, float(weights[0]))


def some_rows(*tables: Tensor) -> list[Tensor]:
    """Evenly spaced rows of tables that are too large for the likelihood, otherwise all."""
    rows, classes = tables[0].shape
    most = max(1, _MOST_ENTRIES // classes)
    if rows <= most:
        return list(tables)
    chosen = torch.linspace(0, rows - 1, most, dtype=torch.float64).long()
    return [table[chosen.to(table.device)] for table in tables]


def combine(scores: list[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Non-negative weights w of Σ wₘ·scoresₘ with the best likelihood, and the log-likelihood of every row.

    The likelihood of the observed labels under the softmax of the weighted sum is concave in w.
    """
    table = torch.stack([score.double() for score in scores])  # (m, n, L)
    targets = targets.double()
    total = targets.sum()
    row_weight = targets.sum(1, keepdim=True)
    observed = torch.einsum("nl,mnl->m", targets, table)

    def objective(weight: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        log_choice = torch.log_softmax(torch.tensordot(torch.from_numpy(weight).to(table), table, 1), -1)
        gradient = torch.einsum("nl,mnl->m", log_choice.exp() * row_weight, table) - observed
        value = -(log_choice * targets).sum() / total
        return float(value), (gradient / total).cpu().numpy()

    start = np.full(len(scores), 1 / len(scores))
    best = minimize(objective, start, jac=True, bounds=[(0, None)] * len(scores), method="L-BFGS-B").x
    weight = torch.from_numpy(np.where(best > _SMALLEST_WEIGHT, best, 0.0))
    rows = (torch.log_softmax(torch.tensordot(weight.to(table), table, 1), -1) * targets).sum(1)
    return weight, rows


def choose_shares(scores: list[Tensor], targets: Tensor) -> list[float]:
    """Shares of the tables in a weighted mean; they sum to 1.

    The shares maximise the likelihood, with a prior for equal shares that counts as much as 150 rows: with few rows the
    likelihood is noisy, and forests are better than the out-of-bag votes of a third of their trees. A share below 0.05
    becomes 0, because it is not worth the computing time.

    Parameters
    ----------
    scores : list of Tensor of shape (n_rows, n_classes)
        Of similar scale.
    targets : Tensor of shape (n_rows, n_classes)
    """
    if len(scores) == 1:
        return [1.0]
    targets, *scores = some_rows(targets, *scores)
    weight, _ = combine(scores, targets)
    if not bool((weight > 0).any()):  # nothing can be learned from these features
        weight = torch.ones_like(weight)
    return with_prior(weight / weight.sum(), len(targets))


def with_prior(shares: Tensor, rows: int) -> list[float]:
    """Shares that are drawn towards equal ones, see `choose_shares`."""
    prior = _PRIOR_ROWS / (_PRIOR_ROWS + rows)
    shares = (1 - prior) * shares + prior / len(shares)
    shares = torch.where(shares < _SMALLEST_SHARE, 0.0, shares)
    return [float(share) for share in shares / shares.sum()]


def gain_of(scores: list[Tensor], more: Tensor, targets: Tensor) -> tuple[float, float]:
    """The gain in log-likelihood per row by one more learner, and its standard error."""
    targets, more, *scores = some_rows(targets, more, *scores)
    rows, others = combine([*scores, more], targets)[1], combine(scores, targets)[1]
    summary = _summary(rows - others, targets, 1.0)
    return summary.log_likelihood, summary.standard_error


def _summary(rows: Tensor, targets: Tensor, temperature: float) -> HeldOutLikelihood:
    total = float(targets.sum())
    mean = float(rows.sum()) / total
    spread = float((rows - mean * targets.sum(1)).square().sum().sqrt()) / total
    return HeldOutLikelihood(mean, spread, temperature)
