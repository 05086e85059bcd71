"""Where the predictions lie for labels nobody gave: how far apart the two sides are, and a histogram of one."""

import torch
from torch import Tensor

from spml.errors import InputError
from spml.metrics.inputs import WORKING_MEMORY, Array, as_table, at, class_blocks, first_place, scores_and_truth


def wasserstein_distance_per_class(
    scores: Array, truth: Array, observed: Array, *, memory: int = WORKING_MEMORY
) -> Tensor:
    """Wasserstein-1 distance between the predictions for unannotated positives and unannotated negatives.

    W_c = integral of |F_pos(s) - F_neg(s)| ds, with the empirical distribution functions of class c (Zhou et
    al., figure 4a). (N, L) -> (L,) in float64, nan where one of the two sides is empty.

    observed: the labels that were given, +1/-1/0; entries other than 0 are left out.
    memory: bytes of working copies; classes are taken as many at a time as fit, and one at the least.
    """
    scores, positive, unannotated = _unannotated_entries(scores, truth, observed)
    infinite = scores.isinf() & unannotated
    if infinite.any():
        raise InputError(f"scores are infinite in {at(*first_place(infinite))}; give probabilities.")
    rows, classes = scores.shape
    result = torch.empty(classes, dtype=torch.float64, device=scores.device)
    for block in class_blocks(rows, classes, 2 * (scores.element_size() + 8) + 40, memory):
        counted = unannotated[:, block].T
        # An observed entry weighs nothing; put at 0, it only cuts an interval of the integral in two.
        value, place = torch.where(counted, scores[:, block].T, 0.0).sort(dim=1)
        true = positive[:, block].T
        difference = _distribution(true & counted, place) - _distribution(~true & counted, place)
        steps = value.double().diff(dim=1, append=value[:, -1:].double())
        result[block] = difference.abs_().mul_(steps).sum(1)
    return result


def _distribution(members: Tensor, place: Tensor) -> Tensor:
    """Share of the members at or before each place, (L, N); nan all along for a class without members."""
    count = members.gather(1, place).cumsum(1, dtype=torch.int32)
    return count.double().div_(count[:, -1:])


def unobserved_positive_histogram(scores: Array, truth: Array, observed: Array, bins: int = 20) -> Tensor:
    """Shares of the predictions for unobserved positives in equal bins of [0, 1], (bins,) in float64.

    One column of Cole et al., figure 2: `torch.stack(histograms, dim=1)` over epochs is the picture. A bin
    holds its lower edge, the last one both. Shares sum to 1, or are all 0 with no unobserved positive.

    observed: the labels that were given, +1/-1/0; entries other than 0 are left out.
    """
    if bins < 1:
        raise InputError(f"bins must be at least 1, not {bins}.")
    scores, positive, unannotated = _unannotated_entries(scores, truth, observed)
    outside = ((scores < 0) | (scores > 1)) & unannotated
    if outside.any():
        row, column = first_place(outside)
        raise InputError(
            f"scores hold {float(scores[row, column]):g} in {at(row, column)}; give probabilities, between 0 and 1."
        )
    # i / bins is the nearest number to each edge; linspace misses some, and scores on them with it.
    edges = torch.arange(1, bins, dtype=torch.float64, device=scores.device) / bins
    bin_of = torch.bucketize(scores[positive & unannotated].double(), edges, right=True)
    counts = torch.bincount(bin_of, minlength=bins).double()
    return counts / counts.sum().clamp(min=1)


def _unannotated_entries(scores: Array, truth: Array, observed: Array) -> tuple[Tensor, Tensor, Tensor]:
    unannotated = as_table(observed, "observed labels") == 0
    scores, positive, _ = scores_and_truth(scores, truth, unannotated, truth_name="truth", mask_name="observed labels")
    return scores, positive, unannotated
