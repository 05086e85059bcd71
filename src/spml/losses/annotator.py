"""The exact likelihood of single positive labels: the probability that the annotator picks the observed label.

If the labels of a row are present independently with probabilities p, and the annotator picks uniformly among those
present, then label c is observed with probability

    P(c) = p_c · E[1 / (1 + S)],   S the number of other labels present,

and E[1 / (1 + S)] = ∫₀¹ Π_{j≠c} (1 - p_j (1 - t)) dt, because 1 / (1 + s) = ∫₀¹ t^s dt.
"""

import numpy as np
import torch
from torch import Tensor

from spml.losses.names import named
from spml.losses.terms import constant, in_full_precision, negative_term, positive_term

# Gauss-Legendre nodes after substituting 1 - t = u²: with many labels present the integrand is concentrated near t = 1.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_T = 1 - ((_NODES + 1) / 2) ** 2
_SHARES: list[float] = _T.tolist()
_LOG_SHARES: list[float] = np.log(_T).tolist()
_LOG_MASSES: list[float] = np.log(_WEIGHTS * (_NODES + 1) / 2).tolist()  # dt = 2u du
_AT_ONCE = 2**26  # numbers held at a time; above that, nodes are processed in parts


def _nodes(values: list[float], like: Tensor) -> Tensor:
    """Shape (n, 1, …, 1), to broadcast before a tensor's dimensions; filled on its device without a copy."""
    return torch.stack([constant(value, like) for value in values]).reshape(-1, *[1] * like.dim())


def log_probability_observed(logits: Tensor, labels: Tensor) -> Tensor:
    """log E[m / (m + S)] per row: S unknown labels are present in addition to the m ≥ 1 known positives; 0 where m = 0.

    This is the probability that the first label picked is a known one. Verified negatives are not present.
    """
    logits = in_full_precision(logits)
    present, absent = torch.sigmoid(logits), torch.sigmoid(-logits)
    known = (labels > 0).sum(-1).to(logits.dtype)
    size = max(_AT_ONCE // max(logits.numel(), 1), 1)
    parts = []
    for start in range(0, len(_SHARES), size):
        part = slice(start, start + size)
        # 1 - p (1 - t) = (1 - p) + p t: a sum of positive numbers, nothing cancels
        log_terms = torch.where(labels == 0, torch.log(absent + _nodes(_SHARES[part], logits) * present), 0.0).sum(-1)
        extra = (known - 1).clamp(min=0) * _nodes(_LOG_SHARES[part], log_terms[0])
        parts.append(log_terms + extra + _nodes(_LOG_MASSES[part], log_terms[0]))
    log_probability = torch.logsumexp(torch.cat(parts), dim=0) + known.clamp(min=1).log()
    return torch.where(known > 0, log_probability, 0.0)


@named("annotator")
def annotator_choice(logits: Tensor, labels: Tensor) -> Tensor:
    """-log P(observed label) for single positives; the entries of a row sum to it.

    A known positive costs -log p, a verified negative -log(1 - p). The remaining term, -log E[m / (m + S)], is divided
    evenly among the unknown labels of the row. There is no setting and no k.

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
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, 0]])
    >>> annotator_choice(logits, labels).sum().exp()  # 1 / P, P = ½ · (¼ · 1 + ½ · ½ + ¼ · ⅓)
    tensor(3.4286)
    """
    logits = in_full_precision(logits)
    unknown = labels == 0
    share = log_probability_observed(logits, labels) / unknown.sum(-1).clamp(min=1)
    known = torch.where(labels > 0, positive_term(logits), negative_term(logits))
    return torch.where(unknown, -share[..., None].expand_as(logits), known)
