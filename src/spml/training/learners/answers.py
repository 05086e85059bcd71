"""Learn from answers: a linear correction of what was learned from the observed labels.

The learners model which label the annotator picked. Answers were not picked: people are asked about doubtful labels. If
the learners were trained on answers, they would predict the classes that people were asked about too often or too
rarely. But given the features, an answer states whether one label is present, whatever the reason for the question. So
the evidence e of the learners is kept, and

    logit P(y_c = 1 | x) = a·e_c + b_c + Δ_c(x),    Δ linear, with an L2 penalty.

Δ minimises the cross-entropy of all labels of the classes with answers. The target of an answer is 0 or 1; that of any
other label is its probability without Δ. So predictions change little where nobody was asked. The penalty is the one
with the highest likelihood of held-out answers; Δ = 0 if the gain may be noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.models.feature_model import LinearLearner
from spml.training.learners.design import Design, assign_folds
from spml.training.learners.linear import PATIENCE, held_out_scores, solve, strength_path

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_FOLDS = 5
_SURE = 2.0  # standard errors by which held-out answers must become more likely


@dataclass(frozen=True, eq=False)
class Correction:
    """What the answers add to the logits.

    Attributes
    ----------
    learner : LinearLearner
        Δ, trained on all rows.
    held_out : array of shape (n, L)
        Δ of the training rows, each from corrections that were not trained on it.
    strength : float
        Of the L2 penalty.
    gain : float
        Gain in mean log-likelihood per held-out answer.
    """

    learner: LinearLearner
    held_out: Float64
    strength: float
    gain: float


class _StrengthFit(NamedTuple):
    """Corrections of one strength, each trained without one fold."""

    gain: float
    error: float
    """Standard error of the gain."""
    strength: float
    weights: Tensor
    scores: Tensor
    """Held-out."""


class SoftTargetLoss:
    """Cross-entropy of soft targets under σ(offset + logit).

    Parameters
    ----------
    offsets, targets : Tensor of shape (n_rows, n_classes)
    """

    def __init__(self, offsets: Tensor, targets: Tensor) -> None:
        self.offsets, self.targets = offsets, targets

    def __call__(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        total, target = logits + self.offsets[positions, None], self.targets[positions, None]
        value = F.softplus(total) - target * total
        return value.sum((0, 2)), torch.sigmoid(total) - target

    def start(self) -> Tensor:
        return torch.zeros(self.offsets.shape[1])


def fit_correction(
    features: FeatureStore,
    rows: Int64,
    logits: Float64,
    answers: npt.NDArray[np.int8],
    *,
    seed: int,
    device: torch.device,
) -> Correction | None:
    """Fit Δ.

    Parameters
    ----------
    features : FeatureStore
    rows : array of shape (n,)
        Rows of the store.
    logits : array of shape (n, L)
        a·e + b of these rows, held out.
    answers : array of shape (n, L)
        +1 yes, −1 no, 0 not asked.
    seed : int
    device : torch.device

    Returns
    -------
    Correction or None
        None if no strength clearly improves the likelihood of held-out answers.
    """
    classes = np.flatnonzero(answers.any(axis=0))
    fold = assign_folds(np.asarray(answers.any(axis=1), np.int64), _FOLDS, seed)  # every fold has answers
    if not len(classes) or fold.max() < 1:
        return None
    design = Design(features, rows, fold, device)
    offsets, asked = (
        torch.from_numpy(np.ascontiguousarray(table[:, classes], np.float32)).to(design.device)
        for table in (logits, answers)
    )
    loss = SoftTargetLoss(offsets, torch.where(asked == 0, torch.sigmoid(offsets), (asked > 0).float()))
    weights = torch.zeros(design.folds, len(classes), design.columns + 1, device=design.device)
    path: list[_StrengthFit] = []
    best, worse = 0.0, 0
    for strength in strength_path(design):
        weights = solve(design, loss, torch.arange(design.folds), strength, weights)
        scores = held_out_scores(design, weights)
        gain, error = _gain(offsets, scores, asked)
        path.append(_StrengthFit(gain, error, strength, weights, scores))
        best, worse = (gain, 0) if gain > best else (best, worse + 1)
        if worse == PATIENCE:
            break
    likeliest = max(path, key=lambda fit: fit.gain)
    if likeliest.gain <= _SURE * likeliest.error:
        return None
    # The strongest penalty that is not clearly worse than the best one.
    chosen = next(fit for fit in path if fit.gain >= likeliest.gain - likeliest.error)
    (final,) = solve(design, loss, torch.tensor([-1]), chosen.strength, chosen.weights.mean(0, keepdim=True))
    weight, bias = torch.zeros(answers.shape[1], features.dim), torch.zeros(answers.shape[1])
    weight[classes], bias[classes] = design.in_features(final[:, :-1]).cpu(), final[:, -1].cpu()
    held_out = np.zeros(answers.shape)
    held_out[:, classes] = chosen.scores.cpu().numpy()
    learner = LinearLearner(weight, bias, design.scaling.mean, design.scaling.deviation)
    return Correction(learner, held_out, chosen.strength, chosen.gain)


def _gain(offsets: Tensor, scores: Tensor, asked: Tensor) -> tuple[float, float]:
    """By how much the scores improve the mean log-likelihood of the answers, and its standard error."""
    rows = (F.logsigmoid(asked * (offsets + scores)) - F.logsigmoid(asked * offsets)).double().mul(asked.abs()).sum(1)
    number = float(asked.abs().double().sum())
    mean = float(rows.sum()) / number
    return mean, float((rows - mean * asked.abs().sum(1)).square().sum().sqrt()) / number
