"""Linear learners solved to convergence: all folds at once, along a path of regularisation strengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spml.models.feature_model import LinearLearner
from spml.training.learners.design import Block, Design
from spml.training.learners.lbfgs import minimise
from spml.training.learners.likelihood import HeldOut, fit_temperature

_RATIO = 10**0.5  # between neighbouring strengths
_LONGEST_PATH = 15
_WORSE = 2  # the path ends after this many strengths in a row that are no better


class RowLoss(Protocol):
    """A loss that is a mean over rows, with its gradient."""

    def __call__(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the rows (H,) and gradients (B, H, L) for logits (B, H, L) of the rows at these positions."""
        ...

    def start(self) -> Tensor:
        """Initial bias (L,)."""
        ...


class SoftmaxLoss:
    """Multinomial cross-entropy of the observed labels; a row with several observed labels counts as a share of each.

    Parameters
    ----------
    targets : Tensor of shape (n_rows, n_classes)
        Shares of the classes, times the row's weight.
    """

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets
        self.weight = targets.sum(1)

    def __call__(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        target, weight = self.targets[positions, None], self.weight[positions, None]
        log_choice = torch.log_softmax(logits, -1)
        value = -torch.einsum("bhl,bl->h", log_choice, target[:, 0])
        return value, log_choice.exp_().mul_(weight[..., None]).sub_(target)

    def start(self) -> Tensor:
        """Logarithms of the class frequencies; a class without rows has half a row."""
        count = self.targets.sum(0) + 0.5
        return torch.log(count / count.sum())


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A linear learner at one strength of regularisation.

    Attributes
    ----------
    strength : float
    weights : Tensor of shape (folds, L, columns + 1)
        Of the heads that were trained without one fold each; the last column is the bias.
    scores : array of shape (n, L)
        Held-out scores of the training rows.
    held_out : HeldOut
        Likelihood of the observed labels under the held-out scores.
    """

    strength: float
    weights: Tensor
    scores: Tensor
    held_out: HeldOut


def strength_path(design: Design) -> list[float]:
    """Strengths from very strong to weak; the largest eigenvalue of the covariance sets the scale."""
    start = max(design.largest_variance, 1e-6)
    return [start / _RATIO**i for i in range(_LONGEST_PATH)]


def fit_path(design: Design, loss: RowLoss, targets: Tensor) -> list[LinearFit]:
    """Fit heads along the path of strengths, each starting from the one before, until the likelihood gets worse."""
    classes = targets.shape[1]
    excluded = torch.arange(design.folds)
    weights = _start(design, loss, classes, design.folds)
    fits: list[LinearFit] = []
    best, worse = -np.inf, 0
    for strength in strength_path(design):
        weights = solve(design, loss, excluded, strength, weights)
        scores = held_out_scores(design, weights)
        held_out = fit_temperature(scores, targets)
        fits.append(LinearFit(strength, weights, scores, held_out))
        if held_out.log_likelihood > best:
            best, worse = held_out.log_likelihood, 0
        else:
            worse += 1
        if worse == _WORSE:
            break
    return fits


def solve(design: Design, loss: RowLoss, excluded: Tensor, strength: float, start: Tensor) -> Tensor:
    """Minimise the mean loss + strength/2·‖W‖² of several heads, head i without the rows of fold `excluded[i]`.

    The bias has a weak penalty, half a row's worth, around the logarithm of the class frequencies, so that it stays
    finite for classes without rows.
    """
    centre = loss.start().to(start)
    rows = len(design)
    per_fold = np.bincount(design.fold, minlength=design.folds)
    counts = torch.tensor([rows - (per_fold[f] if f >= 0 else 0) for f in excluded.tolist()]).clamp(min=1).to(start)

    def objective(weights: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = (
            torch.zeros(len(weights), dtype=torch.float64, device=weights.device),
            torch.zeros_like(weights),
        )
        for block in design.blocks():
            heads = torch.nonzero(excluded != block.fold)[:, 0].to(weights.device)
            if len(heads):
                of_block, by_weight = _block_objective(block, loss, weights[heads])
                value[heads] += of_block.double()
                gradient[heads] += by_weight
        value, gradient = value / counts, gradient / counts[:, None, None]
        drift = weights[..., -1] - centre
        value = value + 0.5 * strength * weights[..., :-1].square().sum((1, 2)) + 0.25 / rows * drift.square().sum(1)
        gradient[..., :-1] += strength * weights[..., :-1]
        gradient[..., -1] += 0.5 / rows * drift
        return value, gradient

    scale = _curvature(design, centre, strength).sqrt()

    def scaled(point: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = objective(point / scale)
        return value, gradient / scale

    solution, _ = minimise(scaled, start * scale)
    return solution / scale


def _curvature(design: Design, centre: Tensor, strength: float) -> Tensor:
    """Rough second derivatives of the objective, (L, columns + 1), by which the weights are scaled."""
    rate = torch.sigmoid(centre)
    of_logit = (rate * (1 - rate))[:, None]
    of_weights = of_logit * design.variance + strength
    return torch.cat([of_weights, of_logit + 0.5 / len(design)], 1)


def _block_objective(block: Block, loss: RowLoss, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the loss over a block's rows (h,), and its gradient by the weights (h, L, columns + 1)."""
    heads, classes, _ = weights.shape
    matrix = weights[..., :-1].reshape(heads * classes, -1).T
    logits = block.times(matrix).add_(weights[..., -1].reshape(-1))
    value, by_logit = loss(logits.view(-1, heads, classes), block.positions)
    flat = by_logit.reshape(len(logits), -1)
    gradient = torch.cat([block.transposed_times(flat), flat.sum(0, keepdim=True)])
    return value, gradient.T.reshape(heads, classes, -1)


def held_out_scores(design: Design, weights: Tensor) -> Tensor:
    """(n, L): every row's logits from the head that was trained without its fold."""
    scores = torch.empty(len(design), weights.shape[1], device=weights.device)
    for block in design.blocks():
        head = weights[block.fold]
        scores[block.positions] = block.times(head[:, :-1].T) + head[:, -1]
    return scores


def refit(design: Design, loss: RowLoss, fit: LinearFit) -> LinearLearner:
    """The learner trained on all rows, starting from the mean of the folds' heads."""
    (weights,) = solve(design, loss, torch.tensor([-1]), fit.strength, fit.weights.mean(0, keepdim=True))
    in_features = design.in_features(weights[:, :-1]).cpu().contiguous()
    return LinearLearner(in_features, weights[:, -1].cpu().contiguous(), design.scaling.mean, design.scaling.deviation)


def _start(design: Design, loss: RowLoss, classes: int, heads: int) -> Tensor:
    weights = torch.zeros(heads, classes, design.columns + 1, device=design.device)
    weights[..., -1] = loss.start().to(weights)
    return weights
