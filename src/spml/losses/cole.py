"""Losses of Cole et al. 2021, "Multi-Label Learning from Single Positive Labels".

The published losses divide by the number of classes; entries here are not divided, so their mean is the
published value. A verified negative (-1) is never weakened as assumed negatives are; label smoothing, where asked for,
is for all labels.
"""

import torch
from torch import Tensor

from spml.losses.terms import constant, in_full_precision, positive_term, signed_term, soft_term


def ignore_unobserved(logits: Tensor, labels: Tensor) -> Tensor:
    """IU, Eq. 6: known labels by cross-entropy, unknown ones not at all.

    On fully labelled rows this is BCE (Eq. 5); where all true negatives are known and one positive, IUN (Eq. 7).
    """
    logits = in_full_precision(logits)
    return torch.where(labels == 0, 0.0, signed_term(logits, labels > 0))


def smoothed_bce(logits: Tensor, labels: Tensor, *, smoothing: float = 0.1) -> Tensor:
    """BCE-LS: Eq. 5 with targets 1 - ε/2 and ε/2; unknown labels cost nothing. `smoothing` is ε."""
    logits = in_full_precision(logits)
    half = smoothing / 2
    target = torch.where(labels > 0, constant(1.0 - half, logits), constant(half, logits))
    return torch.where(labels == 0, 0.0, soft_term(logits, target))


def assume_negative(logits: Tensor, labels: Tensor) -> Tensor:
    """AN, Eq. 8: everything that is not a known positive is a negative."""
    return signed_term(in_full_precision(logits), labels > 0)


def _weakened(logits: Tensor, labels: Tensor, weight: float) -> Tensor:
    entries = signed_term(in_full_precision(logits), labels > 0)
    return torch.where(labels == 0, weight * entries, entries)


def weak_assume_negative(logits: Tensor, labels: Tensor, *, negative_weight: float | None = None) -> Tensor:
    """WAN, Sec. 5.1: assumed negatives weigh γ = `negative_weight`, by default 1 / (L - 1)."""
    weight = 1.0 / max(logits.shape[-1] - 1, 1) if negative_weight is None else negative_weight
    return _weakened(logits, labels, weight)


def smoothed_assume_negative(
    logits: Tensor, labels: Tensor, *, positive_smoothing: float = 0.1, negative_smoothing: float = 0.1
) -> Tensor:
    """AN-LS, Eq. 9 and Appendix A: targets 1 - ε_p/2 for positives and ε_n/2 for all others.

    The authors' code smooths by ε where the paper smooths by ε/2: their tables need 0.2 here, not 0.1.
    """
    logits = in_full_precision(logits)
    present, absent = 1.0 - positive_smoothing / 2, negative_smoothing / 2
    return soft_term(logits, torch.where(labels > 0, constant(present, logits), constant(absent, logits)))


def pairwise_ranking(logits: Tensor, labels: Tensor) -> Tensor:
    """PR, Appendix A: Σ over (positive i, other j) of max(0, 1 - f_i + f_j); the entries of a row sum to it.

    Probabilities differ by at most 1, so the hinge is never slack: a pair costs (1 - f_i) + f_j, and the double
    sum falls apart into one weight for every entry. No L × L table.
    """
    logits = in_full_precision(logits)
    positive = labels > 0
    positives = positive.sum(-1, keepdim=True)
    others = labels.shape[-1] - positives
    wrong = torch.sigmoid(torch.where(positive, -logits, logits))
    return torch.where(positive, others, positives) * wrong


def expected_positives(logits: Tensor) -> Tensor:
    """k̂(F_B), Sec. 5.3: the mean over the batch of the number of positives predicted in a row."""
    return torch.sigmoid(in_full_precision(logits)).sum(-1).mean(-1)


def expected_positive_regulariser(logits: Tensor, k: float | Tensor) -> Tensor:
    """R_k, Eq. 10: ((k̂ - k) / L)², one value a batch."""
    return ((expected_positives(logits) - k) / logits.shape[-1]) ** 2


def expected_positive(
    logits: Tensor, labels: Tensor, *, k: float, weight: float = 1.0, divide_by_classes: bool = False
) -> Tensor:
    """EPR, Sec. 5.3: known labels by cross-entropy, and λ R_k for the batch.

    The mean of the entries is the published loss: the positive term is summed over classes, so its entries are
    L times -log p. The authors' code divides it by L: `divide_by_classes` does the same. `weight` is λ.
    """
    logits = in_full_precision(logits)
    scale = 1.0 if divide_by_classes else float(logits.shape[-1])
    # Read twice, for k̂ and for the entries: as few operations as possible keep a compiler from storing them between.
    known = positive_term(torch.where(labels > 0, logits, -logits))
    return (
        torch.where(labels == 0, 0.0, scale * known)
        + weight * expected_positive_regulariser(logits, k)[..., None, None]
    )
