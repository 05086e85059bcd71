"""Ranking metrics: average precision of a class; precision and recall among the top scores of a row."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spml.errors import InputError
from spml.metrics.inputs import (
    WORKING_MEMORY,
    Array,
    Empty,
    as_table,
    class_blocks,
    host_array,
    mean_over_classes,
    scores_and_truth,
)

_STRIP = 1 << 24  # large tables are checked in strips of this many entries


def average_precision(
    scores: Array, targets: Array, *, mask: Array | None = None, memory: int = WORKING_MEMORY
) -> Tensor:
    """Average precision of every class.

    AP_c is the mean, over the positives i of class c, of #{positives j: s_j >= s_i} / #{rows j: s_j >= s_i}. This is
    scikit-learn's step-wise area: equal scores share one threshold, so the order of the rows does not matter.

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted scores; higher means more likely. Logits and probabilities give the same result. They are compared
        in the precision they have.
    targets : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    mask : array or tensor of shape (n_samples, n_classes), optional
        True for the entries that count.
    memory : int
        Bytes for working copies. Classes are processed in blocks that fit, at least one at a time.

    Returns
    -------
    Tensor of shape (n_classes,), float64
        On the device of the scores. nan for classes without positives.

    Raises
    ------
    InputError
        If the inputs are invalid.

    Notes
    -----
    On a CPU the tables are not copied as a whole, so they may be memory-mapped files larger than memory.

    Examples
    --------
    >>> average_precision(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[0], [1], [0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    scores, positive, included = _checked(scores, targets, mask)
    rows, classes = scores.shape
    on_cpu = scores.device.type == "cpu"
    compute, bytes_per_entry = (_by_counting, 10) if on_cpu else (_by_cumulating, 48)
    result = torch.empty(classes, dtype=torch.float64, device=scores.device)
    for block in class_blocks(rows, classes, bytes_per_entry, memory):
        result[block] = compute(scores[:, block], positive[:, block], None if included is None else included[:, block])
    return result


def _by_counting(scores: Tensor, positive: Tensor, included: Tensor | None) -> Tensor:
    """Compute the formula directly: sort the scores, and look up the few positives among them.

    NumPy sorts plain values several times faster than any library sorts values together with their positions.
    """
    classes = scores.shape[1]
    # NumPy sorts float16 slowly; float32 represents it exactly.
    values = _transposed(scores, np.float64 if scores.dtype == torch.float64 else np.float32)
    truths = _transposed(positive, np.bool_)
    masks = None if included is None else _transposed(included, np.bool_)
    result = np.full(classes, np.nan)
    for c in range(classes):
        value, truth = values[c], truths[c]
        if masks is not None:
            value, truth = value[masks[c]], truth[masks[c]]
        hits = value[truth]
        if hits.size:
            hits.sort()
            value.sort()  # in place: `values` is a copy
            hits_at_least = hits.size - np.searchsorted(hits, hits, side="left")
            rows_at_least = value.size - np.searchsorted(value, hits, side="left")
            result[c] = np.mean(hits_at_least / rows_at_least)
    return torch.from_numpy(result)


def _checked(scores: Array, targets: Array, mask: Array | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """`scores_and_truth`, but large tables on the CPU are checked in strips and returned without a copy."""
    scores, truth = as_table(scores, "scores"), as_table(targets, "targets")
    included = None if mask is None else as_table(mask, "mask").bool()
    same_shape = all(table is None or table.shape == scores.shape for table in (truth, included))
    if scores.device.type != "cpu" or not scores.is_floating_point() or scores.numel() <= _STRIP or not same_shape:
        return scores_and_truth(scores, truth, included)
    negative = zero = False
    step = max(1, _STRIP // scores.shape[1])
    for start in range(0, len(scores), step):
        rows = slice(start, start + step)
        strip_mask = None if included is None else included[rows]
        try:
            scores_and_truth(scores[rows], truth[rows], strip_mask)
        except InputError:  # check the whole table, so that the message names the right row
            return scores_and_truth(scores, truth, included)
        if truth.dtype != torch.bool:
            counted = truth[rows] if strip_mask is None else truth[rows][strip_mask]
            negative, zero = negative or bool((counted < 0).any()), zero or bool((counted == 0).any())
    # Strips of 1/0 and strips of +1/-1 are valid alone, but not together.
    return scores_and_truth(scores, truth, included) if negative and zero else (scores, truth, included)


def _transposed(table: Tensor, dtype: type) -> np.ndarray[Any, Any]:
    """Copy to (L, N), class by class contiguous, in strips of rows that fit the cache; for bool: whether above 0."""
    array, strip = host_array(table), 512
    result = np.empty(array.shape[::-1], dtype)
    for start in range(0, array.shape[0], strip):
        part = array[start : start + strip].T
        result[:, start : start + strip] = part > 0 if dtype is np.bool_ else part
    return result


def _by_cumulating(scores: Tensor, positive: Tensor, included: Tensor | None) -> Tensor:
    """Compute the same values by tensor operations only, without synchronising the device.

    In the sorted scores, the last entry of each run of equal scores is a threshold. All positives since the previous
    threshold have the precision at this one.
    """
    value, position = scores.T.sort(dim=1, descending=True)
    truth = positive.T
    if included is None:
        ranked = torch.arange(1, value.shape[1] + 1, device=scores.device)
    else:
        mask = included.T
        truth = truth & mask
        # Entries outside the mask before the first one inside add nothing; 1 avoids a division by 0.
        ranked = mask.gather(1, position).cumsum(1, dtype=torch.int32).clamp_(min=1)
    hits = truth.gather(1, position).cumsum(1, dtype=torch.int32)
    del position
    threshold = torch.ones_like(hits, dtype=torch.bool)
    torch.ne(value[:, :-1], value[:, 1:], out=threshold[:, :-1])
    hits_before = (hits * threshold).cummax(1).values.roll(1, dims=1)
    hits_before[:, 0] = 0
    new_hits = (hits - hits_before).mul_(threshold)
    return hits.double().div_(ranked).mul_(new_hits).sum(1) / hits[:, -1]


def mean_average_precision(
    scores: Array, targets: Array, *, mask: Array | None = None, empty: Empty = "skip", memory: int = WORKING_MEMORY
) -> float:
    """Mean average precision (mAP): the mean of `average_precision` over classes.

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted scores; higher means more likely.
    targets : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    mask : array or tensor of shape (n_samples, n_classes), optional
        True for the entries that count.
    empty : {"skip", "zero"}
        How a class without positives counts: left out of the mean, or as 0 (as in Cole et al. 2021 and later papers).
    memory : int
        Bytes for working copies.

    Returns
    -------
    float
        Between 0 and 1; nan if all classes are left out.

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> scores, targets = torch.tensor([[0.9, 0.3], [0.8, 0.7]]), torch.tensor([[1, 0], [0, 0]])
    >>> mean_average_precision(scores, targets), mean_average_precision(scores, targets, empty="zero")
    (1.0, 0.5)
    """
    return mean_over_classes(average_precision(scores, targets, mask=mask, memory=memory), empty)


def precision_at(scores: Array, targets: Array, k: int) -> float:
    """Precision at k: the share of positives among the k highest scores of a row, averaged over rows.

    A row without positives counts as 0.

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted scores. Among equal scores, the lower class index comes first.
    targets : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    k : int
        From 1 to the number of classes.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> precision_at(torch.tensor([[0.9, 0.2, 0.8], [0.1, 0.7, 0.6]]), torch.tensor([[1, 0, 1], [1, 1, 0]]), k=2)
    0.75
    """
    hits, _ = _top(scores, targets, k)
    return float(hits.double().mean() / k)


def recall_at(scores: Array, targets: Array, k: int) -> float:
    """Recall at k: the share of a row's positives that are among its k highest scores, averaged over rows.

    Rows without positives are left out; nan if all are.

    Parameters
    ----------
    scores : array or tensor of shape (n_samples, n_classes)
        Predicted scores. Among equal scores, the lower class index comes first.
    targets : array or tensor of shape (n_samples, n_classes)
        1 for positive, 0 or -1 for negative.
    k : int
        From 1 to the number of classes.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If the inputs are invalid.

    Examples
    --------
    >>> recall_at(torch.tensor([[0.9, 0.2, 0.8], [0.1, 0.7, 0.6]]), torch.tensor([[1, 0, 1], [1, 1, 0]]), k=2)
    0.75
    """
    hits, positives = _top(scores, targets, k)
    return float((hits.double() / positives).nanmean())


def _top(scores: Array, targets: Array, k: int) -> tuple[Tensor, Tensor]:
    """Return, for every row, the number of positives among the k highest scores, and of all positives."""
    scores, positive, _ = scores_and_truth(scores, targets)
    classes = scores.shape[1]
    if not 1 <= k <= classes:
        raise InputError(f"k is {k}; with {classes} classes it must be between 1 and {classes}.")
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return positive.gather(1, order).sum(1), positive.sum(1)
