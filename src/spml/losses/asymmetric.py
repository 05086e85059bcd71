"""Focal and asymmetric losses (Lin 2017, Ridnik 2021) and the leveraged ones of the LASD paper.

Published as sums over the classes of a row; entries here are not summed. A verified negative (-1) is never
down-weighted or turned into a pseudo-positive.
"""

import torch
from torch import Tensor

from spml.errors import InputError
from spml.losses.names import named
from spml.losses.terms import constant, in_full_precision, logit, signed_focal_term
from spml.type_checks import Fraction, NonNegative, Positive, Share


@named("focal")
def focal(logits: Tensor, labels: Tensor, *, focusing: NonNegative = 2.0, balance: Share | None = None) -> Tensor:
    """Focal loss with unknown labels assumed negative (F_AN in the LASD paper, A.2.2).

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    focusing : float
        γ.
    balance : float, optional
        α of Lin et al.: the weight of positives; all others have weight 1 - α. Zhou et al. select 0.75.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> focal(logits, labels)
    tensor([[0.0018, 1.6501, 1.6501]])
    >>> focal(logits, labels, balance=0.75)
    tensor([[0.0014, 0.4125, 0.4125]])
    """
    logits = in_full_precision(logits)
    positive = labels > 0
    entries = signed_focal_term(logits, positive, focusing, focusing)
    if balance is None:
        return entries
    return torch.where(positive, balance * entries, (1.0 - balance) * entries)


@named("asl")
def asymmetric(
    logits: Tensor,
    labels: Tensor,
    *,
    positive_focusing: NonNegative = 0.0,
    negative_focusing: NonNegative = 4.0,
    shift: Fraction = 0.05,
    detach_weight: bool = False,
) -> Tensor:
    """ASL, Eq. 3 of the LASD paper: a focal loss with different γ for negatives, and a probability shift m.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    positive_focusing, negative_focusing : float
        γ+ and γ-.
    shift : float
        m; 0 disables the shift.
    detach_weight : bool
        Block the gradient through the focal weight. ASL was published in both versions; the formula does not block it.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, -4.0]]), torch.tensor([[1, 0, -1]])
    >>> asymmetric(logits, labels)  # p = 0.018 is below the shift: no loss
    tensor([[0.1269, 0.8464, 0.0000]])
    """
    logits, positive = in_full_precision(logits), labels > 0
    return signed_focal_term(
        logits, positive, positive_focusing, negative_focusing, shift=shift, detach_weight=detach_weight
    )


@named("las")
def leveraged_asymmetric(
    logits: Tensor,
    labels: Tensor,
    *,
    leverage: NonNegative = 0.05,
    positive_focusing: NonNegative = 0.0,
    negative_focusing: NonNegative = 4.0,
) -> Tensor:
    """LAS, Eq. 5: ASL without shift and with assumed negatives weighted by λ.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    leverage : float
        λ.
    positive_focusing, negative_focusing : float
        γ+ and γ-.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> leveraged_asymmetric(logits, labels)
    tensor([[0.1269, 0.0640, 1.2801]])
    """
    logits = in_full_precision(logits)
    weight = torch.where(labels == 0, constant(leverage, logits), constant(1.0, logits))
    return weight * signed_focal_term(logits, labels > 0, positive_focusing, negative_focusing)


def negative_leverage_of(positive_leverage: float, k: float, classes: int) -> float:
    """λ- = (1 + λ+ (k - 1)) / (K - k), Theorem 5.4: consistency with the cost-sensitive Hamming loss.

    Examples
    --------
    >>> round(negative_leverage_of(0.1, k=1.46, classes=20), 5)  # VOC
    0.05642
    """
    if not 0 < k < classes:
        raise InputError(f"k must lie between 0 and the number of classes ({classes}), not {k}")
    return (1.0 + positive_leverage * (k - 1.0)) / (classes - k)


@named("lasd")
def leveraged_asymmetric_with_disambiguation(
    logits: Tensor,
    labels: Tensor,
    *,
    positive_leverage: NonNegative = 0.1,
    negative_leverage: NonNegative | None = None,
    k: Positive | None = None,
    threshold: Share = 0.9,
    positive_focusing: NonNegative = 0.0,
    negative_focusing: NonNegative = 4.0,
) -> Tensor:
    """LASD, Eq. 6: an unknown label predicted above τ counts as a pseudo-positive, otherwise as a pseudo-negative.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    positive_leverage : float
        λ+, the weight of pseudo-positives.
    negative_leverage : float, optional
        λ-, the weight of pseudo-negatives; by default from λ+ and k by Theorem 5.4.
    k : float, optional
        Average number of positives per row; by default 1.
    threshold : float
        τ.
    positive_focusing, negative_focusing : float
        γ+ and γ-.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[0.0, 3.0, 0.0]]), torch.tensor([[1, 0, 0]])
    >>> leveraged_asymmetric_with_disambiguation(logits, labels)  # p = 0.95: a pseudo-positive
    tensor([[0.6931, 0.0049, 0.0217]])
    """
    if negative_leverage is None:
        classes = logits.shape[-1]
        # With one class, k = 1 leaves no negatives and no weight for them: use WAN's 1 / max(L - 1, 1).
        negative_leverage = (
            1.0 / max(classes - 1, 1) if k is None else negative_leverage_of(positive_leverage, k, classes)
        )
    logits = in_full_precision(logits)
    unknown = labels == 0
    pseudo_positive = unknown & (logits > logit(threshold))
    entries = signed_focal_term(logits, (labels > 0) | pseudo_positive, positive_focusing, negative_focusing)
    pseudo = torch.where(pseudo_positive, constant(positive_leverage, logits), constant(negative_leverage, logits))
    return torch.where(unknown, pseudo, constant(1.0, logits)) * entries


def view_consistency(*views: Tensor) -> Tensor:
    """Φ_consist, Eq. 7: squared distances between the probabilities of every pair of views, summed per row.

    Examples
    --------
    >>> view_consistency(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 30.0]]))  # (1 - 0.5)²
    tensor([0.2500])
    """
    probabilities = [torch.sigmoid(in_full_precision(view)) for view in views]
    pairs = [(a - b).square().sum(-1) for i, a in enumerate(probabilities) for b in probabilities[i + 1 :]]
    return torch.stack(pairs).sum(0)
