"""Focal and asymmetric losses (Lin 2017, Ridnik 2021) and the leveraged ones of the LASD paper.

Published as sums over the classes of a row; entries here are not summed. A verified negative (-1) is never
weakened nor turned into a pseudo-positive.
"""

import torch
from torch import Tensor

from spml.errors import InputError
from spml.losses.terms import (
    constant,
    focal_negative_term,
    focal_positive_term,
    in_full_precision,
    logit,
    signed_focal_term,
)


def focal(logits: Tensor, labels: Tensor, *, focusing: float = 2.0, balance: float | None = None) -> Tensor:
    """Focal loss with unknowns assumed negative (F_AN in the LASD paper, A.2.2). `focusing` is γ.

    `balance` is the α of Lin et al.: it weighs positives, 1 - α the others. Zhou et al. select 0.75.
    """
    logits = in_full_precision(logits)
    positive = labels > 0
    entries = signed_focal_term(logits, positive, focusing, focusing)
    if balance is None:
        return entries
    return torch.where(positive, balance * entries, (1.0 - balance) * entries)


def asymmetric(
    logits: Tensor,
    labels: Tensor,
    *,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
    shift: float = 0.05,
    detach_weight: bool = False,
) -> Tensor:
    """ASL, Eq. 3 of the LASD paper, with the probability shift m = `shift` (0 leaves it out).

    Of ASL's two published versions one lets the gradient pass through the focal weight (the default here, and
    the formula as written) and one does not (`detach_weight=True`).
    """
    return signed_focal_term(
        in_full_precision(logits),
        labels > 0,
        positive_focusing,
        negative_focusing,
        shift=shift,
        detach_weight=detach_weight,
    )


def leveraged_asymmetric(
    logits: Tensor,
    labels: Tensor,
    *,
    leverage: float = 0.05,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
) -> Tensor:
    """LAS, Eq. 5: ASL without shift, its assumed negatives weighted by λ = `leverage`."""
    logits = in_full_precision(logits)
    weight = torch.where(labels == 0, constant(leverage, logits), constant(1.0, logits))
    return weight * signed_focal_term(logits, labels > 0, positive_focusing, negative_focusing)


def negative_leverage_of(positive_leverage: float, k: float, classes: int) -> float:
    """λ- = (1 + λ+ (k - 1)) / (K - k), Theorem 5.4: consistency with the cost-sensitive Hamming loss."""
    if not 0 < k < classes:
        raise InputError(f"k must lie between 0 and the number of classes ({classes}), not {k}")
    return (1.0 + positive_leverage * (k - 1.0)) / (classes - k)


def _disambiguated(
    logits: Tensor,
    labels: Tensor,
    positive_leverage: float,
    negative_leverage: float,
    threshold: float,
    positive_focusing: float,
    negative_focusing: float,
) -> Tensor:
    logits = in_full_precision(logits)
    unknown = labels == 0
    pseudo_positive = unknown & (logits > logit(threshold))
    entries = signed_focal_term(logits, (labels > 0) | pseudo_positive, positive_focusing, negative_focusing)
    guessed = torch.where(pseudo_positive, constant(positive_leverage, logits), constant(negative_leverage, logits))
    return torch.where(unknown, guessed, constant(1.0, logits)) * entries


def leveraged_asymmetric_with_disambiguation(
    logits: Tensor,
    labels: Tensor,
    *,
    positive_leverage: float = 0.1,
    negative_leverage: float | None = None,
    k: float | None = None,
    threshold: float = 0.9,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
) -> Tensor:
    """LASD, Eq. 6: an unknown label predicted above τ counts as a pseudo-positive, below it as a pseudo-negative.

    `positive_leverage` is λ+, `negative_leverage` λ- (by Theorem 5.4 from λ+ and `k` when not given; with
    neither, k = 1), `threshold` τ, the focusing parameters γ+ and γ-.
    """
    if negative_leverage is None:
        classes = logits.shape[-1]
        # k = 1 leaves no negative among one class, and no weight to give it: there WAN's 1 / max(L - 1, 1) serves.
        negative_leverage = (
            1.0 / max(classes - 1, 1) if k is None else negative_leverage_of(positive_leverage, k, classes)
        )
    return _disambiguated(
        logits, labels, positive_leverage, negative_leverage, threshold, positive_focusing, negative_focusing
    )


def risk_consistent_full_loss(
    logits: Tensor,
    truth: Tensor,
    *,
    positive_leverage: float,
    negative_leverage: float,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
) -> Tensor:
    """Theorem 5.3, Eq. 11: the fully labelled loss that LASD is consistent with, summed over classes, one a row.

    The mean of LASD over every positive that could have been the observed one equals it, as long as each
    pseudo-label is right. `truth` is 1 where present.
    """
    logits = in_full_precision(logits)
    present = truth > 0
    share = 1.0 / present.sum(-1).clamp(min=1).to(logits.dtype)
    zero = logits.new_zeros(())
    positives = torch.where(present, focal_positive_term(logits, positive_focusing), zero).sum(-1)
    negatives = torch.where(present, zero, focal_negative_term(logits, negative_focusing)).sum(-1)
    return (share + positive_leverage * (1.0 - share)) * positives + negative_leverage * negatives


def view_consistency(*views: Tensor) -> Tensor:
    """Φ_consist, Eq. 7: squared distances between the probabilities of every pair of views, one a row."""
    probabilities = [torch.sigmoid(in_full_precision(view)) for view in views]
    pairs = [(a - b).square().sum(-1) for i, a in enumerate(probabilities) for b in probabilities[i + 1 :]]
    return torch.stack(pairs).sum(0)
