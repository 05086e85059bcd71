"""Losses of Zhou et al. 2022, "Acknowledging the Unknown for Multi-label Learning with Single Positive Labels"."""

from collections.abc import Iterable

import torch
from torch import Tensor

from spml.losses.cole import smoothed_assume_negative, weak_assume_negative
from spml.losses.names import named
from spml.losses.terms import entropy, in_full_precision, signed_term, soft_term
from spml.type_checks import NonNegative, Share


@named("em")
def entropy_maximisation(logits: Tensor, labels: Tensor, *, entropy_weight: NonNegative = 0.2) -> Tensor:
    """EM, Eq. 3: cross-entropy on known labels, -α H(p) on unknown labels.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    entropy_weight : float
        α.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> entropy_maximisation(logits, labels)  # -0.2 ln 2 for the unknown label
    tensor([[ 0.6931, -0.1386,  0.6931]])
    """
    logits = in_full_precision(logits)
    return torch.where(labels == 0, -entropy_weight * entropy(logits), signed_term(logits, labels > 0))


@named("em-apl")
def entropy_maximisation_with_soft_labels(
    logits: Tensor,
    labels: Tensor,
    soft_labels: Tensor,
    *,
    entropy_weight: NonNegative = 0.2,
    soft_weight: NonNegative = 0.02,
) -> Tensor:
    """EM+APL, Eq. 8: EM, where an unknown label with a pseudo-label s costs β times the cross-entropy to s.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    soft_labels : Tensor of shape (…, n_rows, n_classes)
        Pseudo-labels s in [0, 1]; NaN where there is none.
    entropy_weight : float
        α.
    soft_weight : float
        β.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> soft_labels = torch.tensor([[torch.nan, 0.1, torch.nan]])
    >>> entropy_maximisation_with_soft_labels(logits, labels, soft_labels, soft_weight=1.0)
    tensor([[0.1269, 1.9269, 2.1269]])
    """
    logits = in_full_precision(logits)
    given = ~torch.isnan(soft_labels)
    target = torch.where(given, soft_labels, 0.5).to(logits.dtype)
    unknown = torch.where(given, soft_weight * soft_term(logits, target), -entropy_weight * entropy(logits))
    return torch.where(labels == 0, unknown, signed_term(logits, labels > 0))


@named("entmin")
def entropy_minimisation(logits: Tensor, labels: Tensor, *, entropy_weight: NonNegative = 0.01) -> Tensor:
    """EntMin, Sec. 4.1: cross-entropy on known labels, +α H(p) on unknown labels.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    entropy_weight : float
        α.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> entropy_minimisation(logits, labels, entropy_weight=0.2)
    tensor([[0.6931, 0.1386, 0.6931]])
    """
    return entropy_maximisation(logits, labels, entropy_weight=-entropy_weight)


@named("dw")
def down_weighted(logits: Tensor, labels: Tensor, *, negative_weight: NonNegative = 0.1) -> Tensor:
    """DW, Appendix C: AN with assumed negatives weighted by a tuned constant.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    negative_weight : float
        Weight of assumed negatives.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[2.0, 2.0, 2.0]]), torch.tensor([[1, 0, -1]])
    >>> down_weighted(logits, labels)
    tensor([[0.1269, 0.2127, 2.1269]])
    """
    return weak_assume_negative(logits, labels, negative_weight=negative_weight)


@named("n-ls")
def negative_smoothed(logits: Tensor, labels: Tensor, *, smoothing: Share = 0.3) -> Tensor:
    """N-LS, Appendix C: AN-LS that smooths only assumed negatives; verified negatives stay hard.

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
    >>> negative_smoothed(logits, labels)  # only the unknown label is smoothed
    tensor([[0.1269, 1.8269, 2.1269]])
    """
    smoothed = smoothed_assume_negative(logits, labels, positive_smoothing=0.0, negative_smoothing=smoothing)
    return torch.where(labels < 0, signed_term(in_full_precision(logits), labels > 0), smoothed)


def l1_regulariser(parameters: Iterable[Tensor]) -> Tensor:
    """Σ |w| over all parameters, for L1R (Appendix C)."""
    return torch.stack([parameter.abs().sum() for parameter in parameters]).sum()


def l2_regulariser(parameters: Iterable[Tensor]) -> Tensor:
    """Σ w² over all parameters, for L2R (Appendix C)."""
    return torch.stack([parameter.square().sum() for parameter in parameters]).sum()


@named("l1r")
def l1_regularised(
    logits: Tensor, labels: Tensor, parameters: Iterable[Tensor], *, weight: NonNegative = 1e-6
) -> Tensor:
    """L1R: AN plus λ Σ |w|, added once to the mean of the entries.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    parameters : iterable of Tensor
        The network's parameters w.
    weight : float
        λ.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> l1_regularised(logits, labels, [torch.tensor([3.0, -4.0])], weight=0.1)  # ln 2 + 0.1 · 7
    tensor([[1.3931, 1.3931, 1.3931]])
    """
    return signed_term(in_full_precision(logits), labels > 0) + weight * l1_regulariser(parameters)


@named("l2r")
def l2_regularised(
    logits: Tensor, labels: Tensor, parameters: Iterable[Tensor], *, weight: NonNegative = 1e-6
) -> Tensor:
    """L2R: AN plus λ Σ w², added once to the mean of the entries.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    parameters : iterable of Tensor
        The network's parameters w.
    weight : float
        λ.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> l2_regularised(logits, labels, [torch.tensor([3.0, -4.0])], weight=0.1)  # ln 2 + 0.1 · 25
    tensor([[3.1931, 3.1931, 3.1931]])
    """
    return signed_term(in_full_precision(logits), labels > 0) + weight * l2_regulariser(parameters)
