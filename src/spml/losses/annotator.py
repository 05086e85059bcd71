"""How likely is it that the annotator named this label? The likelihood of single positives, exactly.

If the labels of a row are present independently with probabilities p, and the annotator names one of those present,
each equally likely, then label c is named with probability

    P(c) = p_c · E[1 / (1 + S)],   S the number of other labels present,

and E[1 / (1 + S)] = ∫₀¹ Π_{j≠c} (1 - p_j (1 - t)) dt, because 1 / (1 + s) = ∫₀¹ t^s dt.
"""

import numpy as np
import torch
from torch import Tensor

from .terms import in_full_precision, negative_term, positive_term

# Gauss and Legendre's nodes after 1 - t = u²: with many labels present the integrand lives near t = 1.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_SHARES = tuple(float(1 - ((x + 1) / 2) ** 2) for x in _NODES)  # t
_MASSES = tuple(float(w * (x + 1) / 2) for x, w in zip(_NODES, _WEIGHTS, strict=True))  # dt = 2u du


def log_chance_of_naming(logits: Tensor, labels: Tensor) -> Tensor:
    """log E[m / (m + S)] for each row: S unknown labels are present beside the m ≥ 1 known positives; 0 where m = 0.

    The chance that the label named first was one of the known ones. Verified negatives are not present.
    """
    logits = in_full_precision(logits)
    present, absent = torch.sigmoid(logits), torch.sigmoid(-logits)
    named = (labels > 0).sum(-1).to(logits.dtype)
    parts = []
    for share, mass in zip(_SHARES, _MASSES, strict=True):
        # 1 - p (1 - t) = (1 - p) + p t: a sum of positive numbers, nothing cancels
        each = torch.where(labels == 0, torch.log(absent + share * present), 0.0)
        parts.append(each.sum(-1) + (named - 1).clamp(min=0) * float(np.log(share)) + float(np.log(mass)))
    chance = torch.logsumexp(torch.stack(parts), dim=0) + named.clamp(min=1).log()
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
