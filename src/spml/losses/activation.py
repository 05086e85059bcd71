"""From logits to probabilities, by the activation that a method was trained with."""

from typing import Literal

import torch
from torch import Tensor

from spml.losses.terms import in_full_precision

Activation = Literal["sigmoid", "softmax"]


def probabilities(logits: Tensor, activation: str = "sigmoid") -> Tensor:
    """Turn logits into probabilities.

    Parameters
    ----------
    logits : Tensor of shape (…, n_classes)
    activation : {"sigmoid", "softmax"}
        Every label for itself, or one distribution over the labels of a row.

    Returns
    -------
    Tensor of shape (…, n_classes)

    Examples
    --------
    >>> logits = torch.zeros(1, 4)
    >>> probabilities(logits), probabilities(logits, "softmax")
    (tensor([[0.5000, 0.5000, 0.5000, 0.5000]]), tensor([[0.2500, 0.2500, 0.2500, 0.2500]]))
    """
    logits = in_full_precision(logits)
    return torch.softmax(logits, -1) if activation == "softmax" else torch.sigmoid(logits)


def ranking_scores(logits: Tensor, activation: str = "sigmoid") -> Tensor:
    """Return scores in the order of the probabilities, but without the ties of probabilities that round to 0 or 1."""
    return torch.log_softmax(logits, -1) if activation == "softmax" else logits


def log_odds(logits: Tensor, activation: str = "sigmoid") -> Tensor:
    """Return log p - log(1 - p) of the probabilities p."""
    if activation != "softmax":
        return logits
    log_p = torch.log_softmax(logits, -1)
    return log_p - torch.log(-torch.expm1(log_p))
