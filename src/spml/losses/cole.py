"""Losses of Cole et al. 2021, "Multi-Label Learning from Single Positive Labels".

The published losses divide by the number of classes; entries here are not divided, so their mean is the published
value. Verified negatives (-1) keep their full weight where assumed negatives are down-weighted; label smoothing applies
to all labels.
"""

import torch
from torch import Tensor

from spml.losses.names import named
from spml.losses.terms import constant, in_full_precision, signed_term, soft_term
from spml.type_checks import NonNegative, Positive, Share


@named("bce", "iu")
def ignore_unobserved(logits: Tensor, labels: Tensor) -> Tensor:
    """IU, Eq. 6: cross-entropy on known labels; unknown labels are ignored.

    On fully labelled rows this is BCE (Eq. 5).

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> ignore_unobserved(logits, labels)  # ln 2 for each known label
    tensor([[0.6931, 0.0000, 0.6931]])
    """
    logits = in_full_precision(logits)
    return torch.where(labels == 0, 0.0, signed_term(logits, labels > 0))


@named("iun")
def ignore_unobserved_positives(logits: Tensor, labels: Tensor, *, positives_only: bool = False) -> Tensor:
    """IUN, Eq. 7: cross-entropy on one positive and all true negatives; the other positives are ignored.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    positives_only : bool
        Leave out the negatives, as the authors' code does unintentionally: it searches a 0/1 matrix for -1.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> ignore_unobserved_positives(logits, labels)
    tensor([[0.6931, 0.0000, 0.6931]])
    >>> ignore_unobserved_positives(logits, labels, positives_only=True)
    tensor([[0.6931, 0.0000, 0.0000]])
    """
    entries = ignore_unobserved(logits, labels)
    return torch.where(labels > 0, entries, 0.0) if positives_only else entries


@named("bce-ls")
def smoothed_bce(logits: Tensor, labels: Tensor, *, smoothing: Share = 0.1) -> Tensor:
    """BCE-LS: Eq. 5 with targets 1 - ε/2 and ε/2; unknown labels are ignored.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    smoothing : float
        ε.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> smoothed_bce(logits, labels)  # 0.127 and 2.127 without smoothing
    tensor([[0.2269, 0.0000, 2.0269]])
    """
    logits = in_full_precision(logits)
    half = smoothing / 2
    target = torch.where(labels > 0, constant(1.0 - half, logits), constant(half, logits))
    return torch.where(labels == 0, 0.0, soft_term(logits, target))


@named("an")
def assume_negative(logits: Tensor, labels: Tensor) -> Tensor:
    """AN: every label except known positives is assumed negative (Cole et al. 2021, Eq. 8).

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)
        The loss of every entry, in float32 or wider.

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> assume_negative(logits, labels)
    tensor([[0.1269, 2.1269, 2.1269]])
    """
    return signed_term(in_full_precision(logits), labels > 0)


@named("wan")
def weak_assume_negative(logits: Tensor, labels: Tensor, *, negative_weight: NonNegative | None = None) -> Tensor:
    """WAN, Sec. 5.1: AN with down-weighted assumed negatives.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    negative_weight : float, optional
        γ, by default 1 / (L - 1).

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> weak_assume_negative(logits, labels)  # an unknown label weighs half of a verified negative
    tensor([[0.1269, 1.0635, 2.1269]])
    """
    weight = 1.0 / max(logits.shape[-1] - 1, 1) if negative_weight is None else negative_weight
    entries = signed_term(in_full_precision(logits), labels > 0)
    return torch.where(labels == 0, weight * entries, entries)


@named("an-ls")
def smoothed_assume_negative(
    logits: Tensor, labels: Tensor, *, positive_smoothing: Share = 0.1, negative_smoothing: Share = 0.1
) -> Tensor:
    """AN-LS, Eq. 9 and Appendix A: AN with targets 1 - ε_p/2 for positives and ε_n/2 for all others.

    The authors' code smooths by ε instead of ε/2: to reproduce their tables, use 0.2.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    positive_smoothing, negative_smoothing : float
        ε_p and ε_n.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> smoothed_assume_negative(logits, labels)  # 0.127 and 2.127 without smoothing
    tensor([[0.2269, 2.0269, 2.0269]])
    """
    logits = in_full_precision(logits)
    present, absent = 1.0 - positive_smoothing / 2, negative_smoothing / 2
    return soft_term(logits, torch.where(labels > 0, constant(present, logits), constant(absent, logits)))


@named("pr")
def pairwise_ranking(logits: Tensor, labels: Tensor, *, divide_by_classes: bool = False) -> Tensor:
    """PR, Appendix A: Σ over pairs (positive i, other j) of max(0, 1 - f_i + f_j).

    Probabilities differ by at most 1, so the hinge is never 0: a pair costs (1 - f_i) + f_j, and the double sum becomes
    one weight per entry, without an L × L table. The entries of a row sum to the published value.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    divide_by_classes : bool
        Divide by L, as the authors' code does.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> pairwise_ranking(logits, labels)  # 2 pairs: 1 - 0.5 + 0.5 each
    tensor([[1.0000, 0.5000, 0.5000]])
    """
    logits = in_full_precision(logits)
    positive = labels > 0
    positives = positive.sum(-1, keepdim=True)
    others = labels.shape[-1] - positives
    wrong = torch.sigmoid(torch.where(positive, -logits, logits))
    pairs = torch.where(positive, others, positives)
    return pairs * wrong / labels.shape[-1] if divide_by_classes else pairs * wrong


def expected_positives(logits: Tensor) -> Tensor:
    """k̂(F_B), Sec. 5.3: the number of predicted positives per row, averaged over the batch."""
    return torch.sigmoid(in_full_precision(logits)).sum(-1).mean(-1)


def expected_positive_regulariser(logits: Tensor, k: float | Tensor) -> Tensor:
    """R_k, Eq. 10: ((k̂ - k) / L)², one value per batch."""
    return ((expected_positives(logits) - k) / logits.shape[-1]) ** 2


@named("epr")
def expected_positive(
    logits: Tensor, labels: Tensor, *, k: Positive, weight: NonNegative = 1.0, divide_by_classes: bool = False
) -> Tensor:
    """EPR, Sec. 5.3: cross-entropy on known labels, plus λ R_k for the batch.

    The mean of the entries is the published loss: the positive term is summed over classes, so its entries are L times
    -log p.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    k : float
        Average number of positives per row.
    weight : float
        λ.
    divide_by_classes : bool
        Divide the positive term by L, as the authors' code does.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> expected_positive(logits, labels, k=1.5)  # 1.5 positives are predicted: no penalty
    tensor([[2.0794, 0.0000, 2.0794]])
    >>> expected_positive(logits, labels, k=1.5).mean()  # the published loss, a sum over known labels
    tensor(1.3863)
    """
    logits = in_full_precision(logits)
    scale = 1.0 if divide_by_classes else float(logits.shape[-1])
    known = torch.where(labels == 0, 0.0, scale * signed_term(logits, labels > 0))
    return known + weight * expected_positive_regulariser(logits, k)[..., None, None]
