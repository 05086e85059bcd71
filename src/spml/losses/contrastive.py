"""Losses of Xie et al. 2022, "Label-Aware Global Consistency": PLC on two views, LAC on label-wise embeddings."""

import torch
from torch import Tensor

from spml.losses.names import named
from spml.losses.terms import in_full_precision, logit, signed_term
from spml.type_checks import Positive, Share


@named("plc")
def pseudo_label_consistency(
    logits: Tensor, labels: Tensor, weak_logits: Tensor, *, threshold: Share = 0.6, include_observed: bool = False
) -> Tensor:
    """PLC, Eq. 4: confident predictions of the weak view (p ≥ δ or p ≤ 1 - δ) are the targets of the strong view.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
        Logits of the strong view.
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    weak_logits : Tensor of shape (…, n_rows, n_classes)
        Logits of the weak view.
    threshold : float
        δ.
    include_observed : bool
        Also use observed labels as targets. The equation excludes them; the authors' code includes positives.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> weak = torch.tensor([[0.0, 3.0, 0.0]])
    >>> pseudo_label_consistency(logits, labels, weak)  # the weak view is sure of the unknown label: p = 0.95
    tensor([[0.0000, 0.6931, 0.0000]])
    """
    logits = in_full_precision(logits)
    positive, negative = target_entries(labels, weak_logits, threshold, include_observed)
    return torch.where(positive | negative, signed_term(logits, positive), 0.0)


def target_entries(
    labels: Tensor, weak_logits: Tensor, threshold: float, include_observed: bool = False
) -> tuple[Tensor, Tensor]:
    """Return which entries are targets of PLC: as positives, and as negatives."""
    weak, bound = in_full_precision(weak_logits).detach(), logit(threshold)
    positive, negative = (weak >= bound) & (labels == 0), (weak <= -bound) & (labels == 0)
    if include_observed:
        positive, negative = positive | (labels > 0), negative | (labels < 0)
    return positive, negative


def supervised_contrast(embeddings: Tensor, classes: Tensor, valid: Tensor, *, temperature: float = 0.5) -> Tensor:
    """Supervised contrastive loss, as in LAC's code: one value per embedding, the mean over all others of its class.

    Every embedding is an anchor. The denominator of the log-ratio has all other embeddings, those of the same class
    included. An anchor without another embedding of its class costs nothing.

    Parameters
    ----------
    embeddings : Tensor of shape (n_embeddings, width)
        Both views, followed by the queue.
    classes : Tensor of shape (n_embeddings,)
    valid : bool Tensor of shape (n_embeddings,)
        Which embeddings take part.
    temperature : float
        τ.

    Returns
    -------
    Tensor of shape (n_embeddings,)

    Examples
    --------
    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> supervised_contrast(embeddings, torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.bool))
    tensor([0.1269, 0.1269, 0.0000])
    """
    embeddings = in_full_precision(embeddings)
    similarity = embeddings @ embeddings.T / temperature
    others = valid[None, :] & ~torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)
    same = others & (classes[:, None] == classes[None, :])
    counted = valid & same.any(-1)
    # A row that does not count is computed on harmless zeros and dropped: its gradient stays finite.
    masked = torch.where(others, similarity, -torch.inf)
    denominator = torch.logsumexp(torch.where(counted[:, None], masked, 0.0), dim=-1)
    cost = torch.where(same, denominator[:, None] - similarity, 0.0).sum(-1) / same.sum(-1).clamp(min=1)
    return torch.where(counted, cost, 0.0)


def confident_entries(
    labels: Tensor, weak_logits: Tensor, threshold: float, capacity: int | None = None
) -> tuple[Tensor, Tensor]:
    """Select the entries whose embedding takes part (p ≥ δ, or observed): flat indices, and which of them are valid.

    Without `capacity` exactly those entries are returned, which waits for the device to count them. With it, the most
    confident `capacity` entries are returned, padded with invalid ones: the shape is fixed, and the result is the same
    as long as no more take part.
    """
    weak = in_full_precision(weak_logits).detach()
    score = torch.where(labels > 0, torch.inf, torch.where(labels < 0, -torch.inf, weak)).flatten()
    takes_part = score >= logit(threshold)
    if capacity is None:
        chosen = takes_part.nonzero().squeeze(-1)
        return chosen, torch.ones_like(chosen, dtype=torch.bool)
    chosen = score.topk(min(capacity, score.numel())).indices.sort().values
    return chosen, takes_part[chosen]


@named("lac")
def label_aware_consistency(
    anchors: Tensor,
    anchor_classes: Tensor,
    keys: Tensor,
    key_classes: Tensor,
    anchor_valid: Tensor | None = None,
    key_valid: Tensor | None = None,
    *,
    temperature: Positive = 0.5,
) -> Tensor:
    """LAC, Eq. 7: one value per anchor, Σ over keys of the same class of -log ratio.

    An anchor z_k is attracted by every key of its class (I, Eq. 5) and repelled by all other keys (Ī, Eq. 6).
    Only entries that take part are passed, so memory is anchors × keys, not (B·q)². Divide the sum by B·q for the
    published mean. An anchor without a key of another class has no denominator and costs nothing.

    Parameters
    ----------
    anchors : Tensor of shape (n_anchors, width)
        Embeddings of the weak view.
    anchor_classes : Tensor of shape (n_anchors,)
    keys : Tensor of shape (n_keys, width)
        Embeddings of the strong view, followed by those of the queue.
    key_classes : Tensor of shape (n_keys,)
    anchor_valid : bool Tensor of shape (n_anchors,), optional
    key_valid : bool Tensor of shape (n_keys,), optional
        Which anchors and keys take part; by default all.
    temperature : float
        τ.

    Returns
    -------
    Tensor of shape (n_anchors,)

    Examples
    --------
    >>> anchors, keys = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> label_aware_consistency(anchors, torch.tensor([0]), keys, torch.tensor([0, 1]))  # log(e² / e⁰)
    tensor([-2.])
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
