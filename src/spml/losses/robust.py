"""Robust losses past the four papers: SPLC and Hill (Zhang et al. 2021), GR (Chen et al. 2024)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .terms import focal_positive_term, in_full_precision, logit, positive_term, signed_focal_term


def _margined(logits: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Observed positives must be predicted by `margin` more than others to cost the same."""
    return torch.where(labels > 0, logits - margin, logits)


def self_paced_correction(
    logits: Tensor,
    labels: Tensor,
    epoch: int = 2,
    *,
    threshold: float = 0.6,
    margin: float = 1.0,
    positive_focusing: float = 2.0,
    negative_focusing: float = 2.0,
    first_epoch: int = 2,
) -> Tensor:
    """SPLC: from `first_epoch` on (epochs count from 1) an unknown label predicted above τ counts as a positive."""
    logits = in_full_precision(logits)
    corrected = (labels == 0) & (logits > logit(threshold))
    positive = (labels > 0) | corrected if epoch >= first_epoch else labels > 0
    return signed_focal_term(_margined(logits, labels, margin), positive, positive_focusing, negative_focusing)


def hill(
    logits: Tensor,
    labels: Tensor,
    *,
    crest: float = 1.5,
    margin: float = 1.0,
    positive_focusing: float = 2.0,
) -> Tensor:
    """Hill: positives by focal loss with a margin, all others by (λ - p) p², whose gradient falls again near 1.

    `crest` is λ.
    """
    logits = in_full_precision(logits)
    probability = torch.sigmoid(logits)
    positive = focal_positive_term(_margined(logits, labels, margin), positive_focusing)
    return torch.where(labels > 0, positive, (crest - probability) * probability.square())


@dataclass(frozen=True)
class RobustSchedule:
    """GR's four scalars at the start and at the end of training; in between they move linearly."""

    slope: tuple[float, float] = (0.0, 2.0)  # w
    offset: tuple[float, float] = (-2.0, -2.0)  # b
    centre: tuple[float, float] = (0.5, 0.8)  # μ
    width: tuple[float, float] = (2.0, 0.5)  # σ

    def at(self, progress: float) -> tuple[float, float, float, float]:
        """(w, b, μ, σ) when the share `progress` of training is done."""
        ends = (self.slope, self.offset, self.centre, self.width)
        w, b, mu, sigma = (start + (end - start) * progress for start, end in ends)
        return w, b, mu, sigma


def generalised_robust(
    logits: Tensor,
    labels: Tensor,
    progress: float = 0.0,
    *,
    schedule: RobustSchedule | None = None,
    positive_power: float = 0.01,
    negative_power: float = 1.0,
) -> Tensor:
    """GR: an unknown label costs V·[K (1 - p^q2)/q2 + (1 - K)(1 - (1 - p)^q3)/q3].

    K = σ(w p + b) is the belief that it is positive, V = exp(-(p - μ)²/2σ²) its weight, both without gradient;
    (w, b, μ, σ) move with `progress` in [0, 1]. `positive_power` is q2, `negative_power` q3. Known positives
    cost -log p, verified negatives the full (1 - (1 - p)^q3)/q3.
    """
    logits = in_full_precision(logits)
    slope, offset, centre, width = (schedule or RobustSchedule()).at(progress)
    probability = torch.sigmoid(logits).detach()
    belief = torch.sigmoid(slope * probability + offset)
    weight = torch.exp(-((probability - centre) ** 2) / (2.0 * width**2))
    as_positive = -torch.expm1(positive_power * F.logsigmoid(logits)) / positive_power
    as_negative = (
        torch.sigmoid(logits)
        if negative_power == 1
        else -torch.expm1(negative_power * F.logsigmoid(-logits)) / negative_power
    )
    unknown = weight * (belief * as_positive + (1.0 - belief) * as_negative)
    return torch.where(labels > 0, positive_term(logits), torch.where(labels < 0, as_negative, unknown))
