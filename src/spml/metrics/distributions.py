"""Distributions of the predictions for unobserved labels."""

import torch
from torch import Tensor

from spml.errors import InputError
from spml.metrics.inputs import (
    WORKING_MEMORY,
    Array,
    as_table,
    class_blocks,
    first_position,
    position_text,
    scores_and_truth,
)
from spml.type_checks import check_count


def wasserstein_distance_per_class(
    scores: Array, truth: Array, observed: Array, *, memory: int = WORKING_MEMORY
) -> Tensor:
    """Wasserstein-1 distance between the predictions for unobserved positives and negatives of every class.

    W_c is the integral of ``|F_pos(s) - F_neg(s)|`` over s, with the empirical distribution functions of class c
    (Zhou et al. 2022, figure 4a).

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted scores, finite.
    truth : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    observed : array or tensor of shape (n_samples, n_classes)
        Observed labels, +1/-1/0. Only entries that are 0 count.
    memory : int
        Bytes for working copies. Classes are processed in blocks that fit, at least one at a time.

    Returns
    -------
    Tensor of shape (n_classes,), float64
        nan for classes without unobserved positives or without unobserved negatives.

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> scores, truth = torch.tensor([[0.75], [0.25]]), torch.tensor([[1], [0]])
    >>> wasserstein_distance_per_class(scores, truth, torch.zeros(2, 1))
    tensor([0.5000], dtype=torch.float64)
    """
    scores, positive, unobserved = _unobserved_entries(scores, truth, observed)
    infinite = scores.isinf() & unobserved
    if infinite.any():
        raise InputError(f"scores are infinite in {position_text(*first_position(infinite))}; pass probabilities.")
    rows, classes = scores.shape
    result = torch.empty(classes, dtype=torch.float64, device=scores.device)
    for block in class_blocks(rows, classes, 2 * (scores.element_size() + 8) + 40, memory):
        counted = unobserved[:, block].T
        # Observed entries have no weight: set to 0, they only split an interval of the integral in two.
        value, position = torch.where(counted, scores[:, block].T, 0.0).sort(dim=1)
        true = positive[:, block].T
        difference = _distribution(true & counted, position) - _distribution(~true & counted, position)
        steps = value.double().diff(dim=1, append=value[:, -1:].double())
        result[block] = difference.abs_().mul_(steps).sum(1)
    return result


def _distribution(members: Tensor, position: Tensor) -> Tensor:
    """Share of the members up to each position of the sorted scores, (L, N); nan for a class without members."""
    count = members.gather(1, position).cumsum(1, dtype=torch.int32)
    return count.double().div_(count[:, -1:])


def unobserved_positive_histogram(scores: Array, truth: Array, observed: Array, bins: int = 20) -> Tensor:
    """Histogram of the predictions for unobserved positives, in equal bins of [0, 1].

    One column of Cole et al. (2021), figure 2: `torch.stack(histograms, dim=1)` over epochs gives the picture.

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted probabilities.
    truth : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    observed : array or tensor of shape (n_samples, n_classes)
        Observed labels, +1/-1/0. Only entries that are 0 count.
    bins : int
        A bin includes its lower edge; the last one includes both.

    Returns
    -------
    Tensor of shape (bins,), float64
        Shares with sum 1, or all 0 if there are no unobserved positives.

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> scores, truth = torch.tensor([[0.9, 0.6, 0.2]]), torch.tensor([[1, 1, 1]])
    >>> unobserved_positive_histogram(scores, truth, torch.tensor([[0, 0, 1]]), bins=2)
    tensor([0., 1.], dtype=torch.float64)
    """
    check_count("bins", bins)
    scores, positive, unobserved = _unobserved_entries(scores, truth, observed)
    outside = ((scores < 0) | (scores > 1)) & unobserved
    if outside.any():
        row, column = first_position(outside)
        value = float(scores[row, column])
        raise InputError(
            f"scores contain {value:g} in {position_text(row, column)}; pass probabilities between 0 and 1."
        )
    # i / bins is correctly rounded; linspace is not, and would put scores on an edge into the wrong bin.
    edges = torch.arange(1, bins, dtype=torch.float64, device=scores.device) / bins
    bin_of = torch.bucketize(scores[positive & unobserved].double(), edges, right=True)
    counts = torch.bincount(bin_of, minlength=bins).double()
    return counts / counts.sum().clamp(min=1)


def _unobserved_entries(scores: Array, truth: Array, observed: Array) -> tuple[Tensor, Tensor, Tensor]:
    unobserved = as_table(observed, "observed labels") == 0
    scores, positive, _ = scores_and_truth(scores, truth, unobserved, truth_name="truth", mask_name="observed labels")
    return scores, positive, unobserved
