"""Large-loss losses: LL-R and LL-Ct of Kim et al. 2022, as compared in the LASD paper.

Early in training a network fits true negatives before false ones, so assumed negatives with a large loss are suspected
to be missed positives. Epochs count from 1.
"""

import math

import torch
from torch import Tensor

from spml.losses.names import named
from spml.losses.terms import in_full_precision, signed_term
from spml.type_checks import Percentage


def large_loss_count(rows: int, classes: int, epoch: int, share: float, cumulative: bool = True) -> int:
    """⌈B·L·(t - 1)·Δ/100⌉, the number of suspected entries in epoch t; if not `cumulative`, without (t - 1).

    Examples
    --------
    >>> large_loss_count(rows=16, classes=20, epoch=3, share=0.2)  # 1.28, rounded up
    2
    """
    factor = epoch - 1 if cumulative else 1
    return min(math.ceil(rows * classes * factor * share / 100 - 1e-9), rows * classes)


def largest_unknown(entries: Tensor, labels: Tensor, count: int) -> Tensor:
    """Select the `count` largest entries of the batch whose label is unknown, as a mask."""
    if count == 0:
        return torch.zeros_like(entries, dtype=torch.bool)
    unknown = (labels == 0).expand_as(entries)
    candidates = torch.where(unknown, entries.detach(), -torch.inf).flatten(-2)
    chosen = torch.zeros_like(candidates, dtype=torch.bool)
    chosen.scatter_(-1, candidates.topk(count, dim=-1).indices, True)
    return chosen.reshape(entries.shape) & unknown


@named("ll-r")
def large_loss_rejection(logits: Tensor, labels: Tensor, epoch: int, *, share: Percentage = 0.2) -> Tensor:
    """LL-R: AN without the suspected entries of the batch.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    epoch : int
        Current epoch, from 1.
    share : float
        Δ, in percent of all entries per epoch.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[1.0, 4.0, 2.0]]), torch.tensor([[1, 0, 0]])
    >>> large_loss_rejection(logits, labels, epoch=1)
    tensor([[0.3133, 4.0181, 2.1269]])
    >>> large_loss_rejection(logits, labels, epoch=2)  # the largest loss is dropped
    tensor([[0.3133, 0.0000, 2.1269]])
    """
    entries = signed_term(in_full_precision(logits), labels > 0)
    count = large_loss_count(entries.shape[-2], entries.shape[-1], epoch, share)
    return torch.where(largest_unknown(entries, labels, count), 0.0, entries)


@named("ll-ct")
def large_loss_temporary_correction(logits: Tensor, labels: Tensor, epoch: int, *, share: Percentage = 0.2) -> Tensor:
    """LL-Ct: AN with the suspected entries of the batch counted as positives in this step.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    epoch : int
        Current epoch, from 1.
    share : float
        Δ, in percent of all entries per epoch.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[1.0, 4.0, 2.0]]), torch.tensor([[1, 0, 0]])
    >>> large_loss_temporary_correction(logits, labels, epoch=2)  # the largest loss becomes a positive's
    tensor([[0.3133, 0.0181, 2.1269]])
    """
    logits = in_full_precision(logits)
    entries = signed_term(logits, labels > 0)
    count = large_loss_count(entries.shape[-2], entries.shape[-1], epoch, share)
    return signed_term(logits, (labels > 0) | largest_unknown(entries, labels, count))
