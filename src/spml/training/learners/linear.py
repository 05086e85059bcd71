"""Linear learners solved to convergence: all folds at once, along a path of regularisation strengths.

Where one pass over the rows takes seconds, the strength is chosen on a sample, and heads are solved once on all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spml.models.feature_model import LinearLearner
from spml.training.learners.design import Block, Design
from spml.training.learners.lbfgs import minimise
from spml.training.learners.likelihood import HeldOutLikelihood, held_out_likelihood

PATIENCE = 2  # a path ends after this many strengths in a row that are no better
_RATIO = 10**0.5  # between neighbouring strengths
_LONGEST_PATH = 15
_MOST_LOGITS = 2**24  # of all heads, in memory at a time

# Limits on the multiplications for the scores of all rows and classes: for solving the whole path on all rows, for
# solving it on a sample, and for solving heads at all. A core needs seconds for 2³³, and a path makes 100 passes.
_PATH_WORK, _MOST_PATH_WORK, _MOST_WORK = 2.0**31, 2.0**33, 2.0**36
_GPU_SPEED = 64.0  # of a GPU, relative to a processor core
_FEWEST_ROWS, _ROWS_PER_CLASS = 5000, 10  # of a sample
_MOST_WEIGHTS = 2**23  # of one head: the solver keeps 26 copies of five


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


class SubsetLoss:
    """A loss for some of its rows.

    Parameters
    ----------
    loss : RowLoss
    rows : Tensor of shape (m,)
    """

    def __init__(self, loss: RowLoss, rows: Tensor) -> None:
        self._loss, self._rows = loss, rows

    def __call__(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss(logits, self._rows[positions])

    def start(self) -> Tensor:
        return self._loss.start()


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
    likelihood : HeldOutLikelihood
        Likelihood of the observed labels under the held-out scores.
    final : Tensor of shape (L, columns + 1), optional
        Of the head that was trained on all rows, if it was solved together with the others.
    """

    strength: float
    weights: Tensor
    scores: Tensor
    likelihood: HeldOutLikelihood
    final: Tensor | None = None


def is_feasible(design: Design, classes: int) -> bool:
    """Whether heads can be solved to convergence in minutes, not hours."""
    work, sample = design.work * classes, sample_size(design, classes)
    scale = _GPU_SPEED if design.device.type == "cuda" else 1.0
    return (
        work <= scale * _MOST_WORK
        and work * sample / len(design) <= scale * _MOST_PATH_WORK
        and classes * design.columns <= _MOST_WEIGHTS
    )


def sample_size(design: Design, classes: int) -> int:
    """Rows on which the strength is chosen: all, unless a path on all of them would take too long."""
    scale = _GPU_SPEED if design.device.type == "cuda" else 1.0
    rows = int(scale * _PATH_WORK * len(design) / (design.work * classes))
    return min(max(rows, _FEWEST_ROWS, _ROWS_PER_CLASS * classes), len(design))


def fit_linear(design: Design, loss: RowLoss, targets: Tensor, seed: int) -> tuple[list[LinearFit], LinearFit]:
    """Fit heads along the path of strengths, on a sample of the rows if all would take too long.

    Returns
    -------
    fits : list of LinearFit
        All fits, ending with that of all rows if the path was solved on a sample.
    best : LinearFit
        The best strength, fitted to all rows.
    """
    number = sample_size(design, targets.shape[1])
    if number == len(design):
        fits = fit_path(design, loss, targets)
        return fits, _best(fits)
    part, chosen = design.sample(number, seed)
    positions = torch.from_numpy(chosen).to(design.device)
    fits = fit_path(part, SubsetLoss(loss, positions), targets[positions])
    best = _best(fits)
    strength = best.strength * number / len(design)  # the penalty counts as much as the same number of rows
    start = torch.cat([best.weights, best.weights.mean(0, keepdim=True)])
    heads = solve(design, loss, torch.tensor([*range(design.folds), -1]), strength, start)
    scores = held_out_scores(design, heads)
    fit = LinearFit(strength, heads[:-1], scores, held_out_likelihood(scores, targets), heads[-1])
    return [*fits, fit], fit


def _best(fits: list[LinearFit]) -> LinearFit:
    return max(fits, key=lambda fit: fit.likelihood.log_likelihood)


def strength_path(design: Design) -> list[float]:
    """Strengths from very strong to weak; the largest eigenvalue of the covariance sets the scale."""
    start = max(design.largest_variance, 1e-6)
    return [start / _RATIO**i for i in range(_LONGEST_PATH)]


def fit_path(design: Design, loss: RowLoss, targets: Tensor) -> list[LinearFit]:
    """Fit heads along the path of strengths, each starting from the previous one, until the likelihood gets worse."""
    classes = targets.shape[1]
    excluded = torch.arange(design.folds)
    weights = _start(design, loss, classes, design.folds)
    fits: list[LinearFit] = []
    best, worse = -np.inf, 0
    for strength in strength_path(design):
        weights = solve(design, loss, excluded, strength, weights)
        scores = held_out_scores(design, weights)
        likelihood = held_out_likelihood(scores, targets)
        fits.append(LinearFit(strength, weights, scores, likelihood))
        if likelihood.log_likelihood > best:
            best, worse = likelihood.log_likelihood, 0
        else:
            worse += 1
        if worse == PATIENCE:
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
        value = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        stored = torch.cat([design.for_blocks(weights[..., :-1]), weights[..., -1:]], -1)
        gradient = torch.zeros_like(stored)
        for block in design.blocks():
            heads = torch.nonzero(excluded != block.fold)[:, 0].to(weights.device)
            if len(heads):
                for part in block.parts(max(1, _MOST_LOGITS // (len(heads) * weights.shape[1]))):
                    part_value, part_gradient = _block_objective(part, loss, stored[heads])
                    value[heads] += part_value.double()
                    gradient[heads] += part_gradient
        gradient = torch.cat([design.from_blocks(gradient[..., :-1]), gradient[..., -1:]], -1)
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
    matrices = design.for_blocks(weights[..., :-1])
    for block in design.blocks():
        scores[block.positions] = block.times(matrices[block.fold].T).add_(weights[block.fold, :, -1])
    return scores


def refit(design: Design, loss: RowLoss, fit: LinearFit) -> LinearLearner:
    """The learner trained on all rows, starting from the mean of the folds' heads."""
    weights = fit.final
    if weights is None:
        (weights,) = solve(design, loss, torch.tensor([-1]), fit.strength, fit.weights.mean(0, keepdim=True))
    return learner_of(design, weights)


def learner_of(design: Design, weights: Tensor) -> LinearLearner:
    """Return the learner with these weights (L, columns + 1)."""
    in_features = design.in_features(weights[:, :-1]).cpu().contiguous()
    return LinearLearner(in_features, weights[:, -1].cpu().contiguous(), design.scaling.mean, design.scaling.deviation)


def _start(design: Design, loss: RowLoss, classes: int, heads: int) -> Tensor:
    weights = torch.zeros(heads, classes, design.columns + 1, device=design.device)
    weights[..., -1] = loss.start().to(weights)
    return weights
