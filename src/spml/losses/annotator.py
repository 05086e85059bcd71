"""How likely is it that the annotator named this label? The likelihood of single positives, exactly.

If the labels of a row are present independently with probabilities p, and the annotator names one of those present,
each equally likely, then label c is named with probability

    P(c) = p_c · E[1 / (1 + S)],   S the number of other labels present,

and E[1 / (1 + S)] = ∫₀¹ Π_{j≠c} (1 - p_j (1 - t)) dt, because 1 / (1 + s) = ∫₀¹ t^s dt.
"""

import numpy as np
import torch
from torch import Tensor

from spml.losses.terms import constant, in_full_precision, negative_term, positive_term

# Gauss and Legendre's nodes after 1 - t = u²: with many labels present the integrand lives near t = 1.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_SHARES = 1 - ((_NODES + 1) / 2) ** 2  # t
_MASSES = _WEIGHTS * (_NODES + 1) / 2  # dt = 2u du
_AT_ONCE = 2**26  # numbers held at a time: beyond, the nodes go in parts


def _nodes(values: np.ndarray, like: Tensor) -> Tensor:
    """(n, 1, …, 1), to stand before a tensor's own dimensions; filled on its device, nothing is copied there."""
    return torch.stack([constant(float(value), like) for value in values]).reshape(-1, *[1] * like.dim())


def log_chance_of_naming(logits: Tensor, labels: Tensor) -> Tensor:
    """log E[m / (m + S)] for each row: S unknown labels are present beside the m ≥ 1 known positives; 0 where m = 0.

    The chance that the label named first was one of the known ones. Verified negatives are not present.
    """
    logits = in_full_precision(logits)
    present, absent = torch.sigmoid(logits), torch.sigmoid(-logits)
    named = (labels > 0).sum(-1).to(logits.dtype)
    size = max(_AT_ONCE // max(logits.numel(), 1), 1)
    parts = []
    for start in range(0, len(_SHARES), size):
        some = slice(start, start + size)
        # 1 - p (1 - t) = (1 - p) + p t: a sum of positive numbers, nothing cancels
        each = torch.where(labels == 0, torch.log(absent + _nodes(_SHARES[some], logits) * present), 0.0).sum(-1)
        extra = (named - 1).clamp(min=0) * _nodes(np.log(_SHARES[some]), each[0])
        parts.append(each + extra + _nodes(np.log(_MASSES[some]), each[0]))
    chance = torch.logsumexp(torch.cat(parts), dim=0) + named.clamp(min=1).log()
    return torch.where(named > 0, chance, 0.0)


def annotator_choice(logits: Tensor, labels: Tensor) -> Tensor:
    """-log P(named label), for single positives; the entries of a row sum to it.

    A known positive costs -log p, a verified negative -log(1 - p); the chance of being named is shared out evenly
    over the row's unknown labels. No setting, no k: an unknown label costs the more the less room the others leave it.
    """
    logits = in_full_precision(logits)
    unknown = labels == 0
    chance = log_chance_of_naming(logits, labels) / unknown.sum(-1).clamp(min=1)
    known = torch.where(labels > 0, positive_term(logits), negative_term(logits))
    return torch.where(unknown, -chance[..., None].expand_as(logits), known)
