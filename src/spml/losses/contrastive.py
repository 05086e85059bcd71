"""Losses of Xie et al. 2022, "Label-Aware Global Consistency": PLC on two views, LAC on label-wise embeddings."""

import torch
from torch import Tensor

from spml.losses.terms import in_full_precision, logit, positive_term


def pseudo_label_consistency(
    logits: Tensor,
    labels: Tensor,
    weak_logits: Tensor,
    *,
    threshold: float = 0.6,
    include_observed: bool = False,
) -> Tensor:
    """PLC, Eq. 4: where the weak view is sure (p ≥ δ or p ≤ 1 - δ), the strong view is taught what it says.

    `logits` are the strong view's. The equation leaves observed labels out; the authors' code teaches the
    observed positives too (`include_observed`, which teaches verified negatives likewise).
    """
    logits = in_full_precision(logits)
    weak = in_full_precision(weak_logits).detach()
    bound = logit(threshold)
    positive, negative = weak >= bound, weak <= -bound
    unknown = labels == 0
    positive, negative = positive & unknown, negative & unknown
    if include_observed:
        positive, negative = positive | (labels > 0), negative | (labels < 0)
    return torch.where(positive | negative, positive_term(torch.where(positive, logits, -logits)), 0.0)


def confident_entries(
    labels: Tensor, weak_logits: Tensor, threshold: float, capacity: int | None = None
) -> tuple[Tensor, Tensor]:
    """Flat indices of the entries whose embedding takes part (p ≥ δ, or observed), and which of them are valid.

    Without `capacity` exactly those entries are returned, which asks the device how many there are. With it,
    the surest `capacity` entries are returned, padded with invalid ones: a fixed shape and no waiting, equal to
    the former as long as no more take part.
    """
    weak = in_full_precision(weak_logits).detach()
    score = torch.where(labels > 0, torch.inf, torch.where(labels < 0, -torch.inf, weak)).flatten()
    takes_part = score >= logit(threshold)
    if capacity is None:
        chosen = takes_part.nonzero().squeeze(-1)
        return chosen, torch.ones_like(chosen, dtype=torch.bool)
    chosen = score.topk(min(capacity, score.numel())).indices.sort().values
    return chosen, takes_part[chosen]


def label_aware_consistency(
    anchors: Tensor,
    anchor_classes: Tensor,
    keys: Tensor,
    key_classes: Tensor,
    anchor_valid: Tensor | None = None,
    key_valid: Tensor | None = None,
    *,
    temperature: float = 0.5,
) -> Tensor:
    """LAC, Eq. 7, over the embeddings that take part: one value an anchor, Σ over same-class keys of -log ratio.

    An anchor z_k is drawn to every key of its class (I, Eq. 5) and away from all keys of other classes (Ī,
    Eq. 6). Keys are the other view's embeddings and, behind them, the queue's. Only entries that take part are
    handed in, so memory is anchors × keys, not (B·q)². Divide the sum by B·q for the published mean. An anchor
    without any key of another class has no denominator and costs nothing.
    """
    anchors, keys = in_full_precision(anchors), in_full_precision(keys)
    similarity = anchors @ keys.T / temperature
    usable = torch.ones_like(key_classes, dtype=torch.bool) if key_valid is None else key_valid
    same = (anchor_classes[:, None] == key_classes[None, :]) & usable[None, :]
    other = (anchor_classes[:, None] != key_classes[None, :]) & usable[None, :]
    separated = other.any(-1)
    # A row without other-class keys is computed on harmless zeros and dropped: its gradient stays finite.
    masked = torch.where(other, similarity, -torch.inf)
    denominator = torch.logsumexp(torch.where(separated[:, None], masked, 0.0), dim=-1)
    cost = torch.where(same, denominator[:, None] - similarity, 0.0).sum(-1)
    counted = separated if anchor_valid is None else separated & anchor_valid
    return torch.where(counted, cost, 0.0)
