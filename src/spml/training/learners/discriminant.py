"""Linear discriminant analysis: a linear learner in closed form, for so many classes that solving heads takes hours.

Class c has the mean m_c, shrunken towards 0 as by three rows at 0, and all classes share the covariance of the rows.
In the coordinates of a `Design` the covariance is diagonal. With the penalty λ, and the frequency f_c of the class,

    score_c(x) = w_c·x − w_c·m_c / 2 + log f_c,    w_c = m_c / (variance + λ).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from spml.models.feature_model import LinearLearner
from spml.training.learners.design import Block, Design
from spml.training.learners.likelihood import HeldOutLikelihood, held_out_likelihood
from spml.training.learners.linear import PATIENCE, strength_path

_PRIOR_ROWS = 3.0
_SAMPLE_ENTRIES, _FEWEST_ROWS = 2**24, 500  # rows × classes by which the penalty is chosen
_MOST_SCORES = 2**26  # in memory at a time


@dataclass(frozen=True, eq=False)
class DiscriminantFit:
    """A discriminant analysis.

    Attributes
    ----------
    path : list of (float, HeldOutLikelihood)
        Penalties, and the likelihood of the observed labels of a sample of the rows.
    strength : float
        The best penalty.
    learner : LinearLearner
        Of all rows.
    scores : Tensor of shape (n, L)
        Held-out scores of the rows.
    likelihood : HeldOutLikelihood
        Likelihood at the best penalty.
    """

    path: list[tuple[float, HeldOutLikelihood]]
    strength: float
    learner: LinearLearner
    scores: Tensor
    likelihood: HeldOutLikelihood


def fit_discriminant(design: Design, targets: Tensor, seed: int) -> DiscriminantFit:
    """Fit the analysis, cross-fitted; the penalty maximises the likelihood of held-out labels.

    Parameters
    ----------
    design : Design
    targets : Tensor of shape (n, L)
        Shares of the observed classes, times the row's weight.
    seed : int

    Returns
    -------
    DiscriminantFit
    """
    means = _ClassMeans(design, targets)
    part, chosen = design.sample(max(_FEWEST_ROWS, _SAMPLE_ENTRIES // targets.shape[1]), seed)
    observed = targets[torch.from_numpy(chosen).to(targets.device)]
    path: list[tuple[float, HeldOutLikelihood]] = []
    best, worse = -np.inf, 0
    for strength in strength_path(design):
        likelihood = held_out_likelihood(_held_out_scores(part, means, strength), observed)
        path.append((strength, likelihood))
        best, worse = (likelihood.log_likelihood, 0) if likelihood.log_likelihood > best else (best, worse + 1)
        if worse == PATIENCE:
            break
    strength, likelihood = max(path, key=lambda item: item[1].log_likelihood)
    weights, bias = means.head(None, strength)
    learner = LinearLearner(
        design.in_features(weights).cpu().contiguous(), bias.cpu(), design.scaling.mean, design.scaling.deviation
    )
    return DiscriminantFit(path, strength, learner, _held_out_scores(design, means, strength), likelihood)


class _ClassMeans:
    """Sums of the rows of every class, of all rows and by fold."""

    def __init__(self, design: Design, targets: Tensor) -> None:
        self._design, self._targets = design, targets
        fold = torch.from_numpy(design.fold).to(targets.device)
        self._rows = torch.stack([targets[fold == f].sum(0) for f in range(design.folds)])  # (folds, L)
        self._total = self._sums(range(design.folds))
        self._of_fold: tuple[int, Tensor] | None = None  # the last one asked for

    def head(self, without: int | None, strength: float) -> tuple[Tensor, Tensor]:
        """Weights (L, columns) and bias (L,), learned without a fold."""
        total, count = self._total, self._rows.sum(0)
        if without is not None:
            if self._of_fold is None or self._of_fold[0] != without:
                self._of_fold = without, self._sums([without])
            total, count = total - self._of_fold[1], count - self._rows[without]
        means = total / (count + _PRIOR_ROWS)[:, None]
        weights = means / (self._design.variance + strength)
        frequency = (count + 0.5) / (count + 0.5).sum()
        return weights, torch.log(frequency) - 0.5 * torch.einsum("lc,lc->l", weights, means)

    def _sums(self, folds: range | list[int]) -> Tensor:
        """Sum over the rows of every class, (L, columns)."""
        design = self._design
        out: Tensor | None = None
        for block in design.blocks():
            if block.fold in folds:
                of_block = _class_sums(block, self._targets[block.positions])
                out = of_block if out is None else out.add_(of_block)
        if out is None:
            return torch.zeros(self._targets.shape[1], design.columns, device=design.device)
        return design.from_blocks(out)


def _class_sums(block: Block, targets: Tensor) -> Tensor:
    """Sum over the rows of a block, by class, times their targets."""
    rows, columns = torch.nonzero(targets, as_tuple=True)
    share = targets[rows, columns]
    if isinstance(block.features, Tensor):
        out = torch.zeros(targets.shape[1], block.features.shape[1], device=targets.device)
        return out.index_add_(0, columns, share[:, None] * block.features[rows])
    of_rows = csr_matrix((share.numpy(), (columns.numpy(), rows.numpy())), shape=targets.T.shape)
    return torch.from_numpy(np.asarray((of_rows @ block.features).todense(), np.float32))


def _held_out_scores(design: Design, means: _ClassMeans, strength: float) -> Tensor:
    """(n, L): every row's scores by the analysis without its fold."""
    scores: Tensor | None = None
    for f in range(design.folds):
        weights, bias = means.head(f, strength)
        if scores is None:
            scores = torch.empty(len(design), len(bias), device=bias.device)
        matrix = design.for_blocks(weights).T
        for block in design.blocks():
            if block.fold == f:
                for part in block.parts(max(1, _MOST_SCORES // len(bias))):
                    scores[part.positions] = part.times(matrix).add_(bias)
    assert scores is not None
    return scores
