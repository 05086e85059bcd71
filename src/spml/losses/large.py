"""Large-loss losses (Kim et al. 2022, LL-R and LL-Ct as the LASD paper compares them).

Early in training a network fits the assumed negatives that are true before those that are false: what still
costs most is suspected to be a missed positive. Epochs count from 1.
"""

import math

import torch
from torch import Tensor

from spml.losses.terms import in_full_precision, signed_term


def large_loss_count(rows: int, classes: int, epoch: int, share: float, cumulative: bool = True) -> int:
    """⌈B·L·(t - 1)·Δ/100⌉ entries are suspect in epoch t; without the factor (t - 1) if not `cumulative`."""
    factor = epoch - 1 if cumulative else 1
    return min(math.ceil(rows * classes * factor * share / 100 - 1e-9), rows * classes)


def largest_unknown(entries: Tensor, labels: Tensor, count: int) -> Tensor:
    """A mask over the `count` largest entries of the batch whose label is unknown."""
    if count == 0:
        return torch.zeros_like(entries, dtype=torch.bool)
    unknown = (labels == 0).expand_as(entries)
    candidates = torch.where(unknown, entries.detach(), -torch.inf).flatten(-2)
    chosen = torch.zeros_like(candidates, dtype=torch.bool)
    chosen.scatter_(-1, candidates.topk(count, dim=-1).indices, True)
    return chosen.reshape(entries.shape) & unknown


def large_loss_rejection(logits: Tensor, labels: Tensor, epoch: int, *, share: float = 0.2) -> Tensor:
    """LL-R: AN without the suspect entries of the batch. `share` is Δ in percent of all entries an epoch."""
    entries = signed_term(in_full_precision(logits), labels > 0)
    count = large_loss_count(entries.shape[-2], entries.shape[-1], epoch, share)
    return torch.where(largest_unknown(entries, labels, count), 0.0, entries)


def large_loss_temporary_correction(logits: Tensor, labels: Tensor, epoch: int, *, share: float = 0.2) -> Tensor:
    """LL-Ct: AN with the suspect entries of the batch counted as positives in this step."""
    logits = in_full_precision(logits)
    entries = signed_term(logits, labels > 0)
    count = large_loss_count(entries.shape[-2], entries.shape[-1], epoch, share)
    return signed_term(logits, (labels > 0) | largest_unknown(entries, labels, count))
