"""The loss of an ordinary single-label classifier, whose probabilities are a softmax over the classes."""

import torch
from torch import Tensor

from spml.losses.names import named
from spml.losses.terms import in_full_precision


@named("softmax")
def multinomial(logits: Tensor, labels: Tensor) -> Tensor:
    """Multinomial cross-entropy, -log softmax(g) of the positives, averaged over the positives of a row.

    The entries of a row sum to its cross-entropy against the uniform distribution over its positives. All other
    labels, verified negatives included, have probability 0 in that distribution and stay in the denominator of the
    softmax: leaving verified negatives out would drop what is known about them, and a fully labelled row with one
    positive would teach nothing. A row without a positive costs nothing.

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
    >>> multinomial(logits, labels)  # ln 3
    tensor([[1.0986, 0.0000, 0.0000]])
    """
    cost = -torch.log_softmax(in_full_precision(logits), -1)
    positive = labels > 0
    count = positive.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(positive, cost / count, 0.0)
