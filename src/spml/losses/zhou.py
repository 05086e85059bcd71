"""Losses of Zhou et al. 2022, "Acknowledging the Unknown for Multi-label Learning with Single Positive Labels"."""

from collections.abc import Iterable

import torch
from torch import Tensor

from spml.losses.cole import smoothed_assume_negative, weak_assume_negative
from spml.losses.terms import entropy, in_full_precision, signed_term, soft_term


def entropy_maximisation(logits: Tensor, labels: Tensor, *, entropy_weight: float = 0.2) -> Tensor:
    """EM, Eq. 3: known labels by cross-entropy, unknown ones by -α H(p). `entropy_weight` is α."""
    logits = in_full_precision(logits)
    return torch.where(labels == 0, -entropy_weight * entropy(logits), signed_term(logits, labels > 0))


def entropy_maximisation_with_soft_labels(
    logits: Tensor,
    labels: Tensor,
    soft_labels: Tensor,
    *,
    entropy_weight: float = 0.2,
    soft_weight: float = 0.02,
) -> Tensor:
    """EM+APL, Eq. 8: as EM, but an unknown label that has a pseudo-label s costs β times the cross-entropy to s.

    `soft_labels` holds s in [0, 1], and NaN where no pseudo-label was given. `soft_weight` is β.
    """
    logits = in_full_precision(logits)
    given = ~torch.isnan(soft_labels)
    target = torch.where(given, soft_labels, 0.5).to(logits.dtype)
    unknown = torch.where(given, soft_weight * soft_term(logits, target), -entropy_weight * entropy(logits))
    return torch.where(labels == 0, unknown, signed_term(logits, labels > 0))


def entropy_minimisation(logits: Tensor, labels: Tensor, *, entropy_weight: float = 0.01) -> Tensor:
    """EntMin, Sec. 4.1: known labels by cross-entropy, unknown ones by +α H(p)."""
    return entropy_maximisation(logits, labels, entropy_weight=-entropy_weight)


def down_weighted(logits: Tensor, labels: Tensor, *, negative_weight: float = 0.1) -> Tensor:
    """DW, Appendix C: AN with the assumed negatives weighted by a tuned constant."""
    return weak_assume_negative(logits, labels, negative_weight=negative_weight)


def negative_smoothed(logits: Tensor, labels: Tensor, *, smoothing: float = 0.3) -> Tensor:
    """N-LS, Appendix C: AN-LS with only the assumed negatives smoothed; verified ones stay hard."""
    smoothed = smoothed_assume_negative(logits, labels, positive_smoothing=0.0, negative_smoothing=smoothing)
    return torch.where(labels < 0, signed_term(in_full_precision(logits), labels > 0), smoothed)


def l1_regulariser(parameters: Iterable[Tensor]) -> Tensor:
    """Σ |w| over all parameters, for L1R (Appendix C)."""
    return torch.stack([parameter.abs().sum() for parameter in parameters]).sum()


def l2_regulariser(parameters: Iterable[Tensor]) -> Tensor:
    """Σ w² over all parameters, for L2R (Appendix C)."""
    return torch.stack([parameter.square().sum() for parameter in parameters]).sum()


def l1_regularised(logits: Tensor, labels: Tensor, parameters: Iterable[Tensor], *, weight: float = 1e-6) -> Tensor:
    """L1R: AN plus `weight` · Σ |w|, added once to the mean of the entries."""
    return signed_term(in_full_precision(logits), labels > 0) + weight * l1_regulariser(parameters)


def l2_regularised(logits: Tensor, labels: Tensor, parameters: Iterable[Tensor], *, weight: float = 1e-6) -> Tensor:
    """L2R: AN plus `weight` · Σ w², added once to the mean of the entries."""
    return signed_term(in_full_precision(logits), labels > 0) + weight * l2_regulariser(parameters)
