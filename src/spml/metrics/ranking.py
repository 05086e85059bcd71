"""How well scores rank: average precision down a class, precision and recall at the top of a row."""

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

_STRIP = 1 << 24  # entries of a large table that are checked at one time


def average_precision(
    scores: Array, targets: Array, *, mask: Array | None = None, memory: int = WORKING_MEMORY
) -> Tensor:
    """Average precision of each class, (N, L) -> (L,) in float64 on the scores' device.

    AP_c = mean over positives i of #{positives j: s_j >= s_i} / #{rows j: s_j >= s_i}

    which is scikit-learn's step-wise area: equal scores are one threshold, whatever the order of the rows.
    Scores are compared in the precision they come in. A class without a positive is nan.

    mask: entries to count (bool, N x L); the others are as if their row were absent for that class.
    memory: bytes of working copies; classes are taken as many at a time as fit, and one at the least.

    On a CPU nothing of the tables' size is made beside them, so they may be mapped files larger than memory.
    """
    scores, positive, kept = _checked(scores, targets, mask)
    rows, classes = scores.shape
    on_cpu = scores.device.type == "cpu"
    way, bytes_an_entry = (_by_counting, 10) if on_cpu else (_by_cumulating, 48)
    result = torch.empty(classes, dtype=torch.float64, device=scores.device)
    for block in class_blocks(rows, classes, bytes_an_entry, memory):
        result[block] = way(scores[:, block], positive[:, block], None if kept is None else kept[:, block])
    return result


def _by_counting(scores: Tensor, positive: Tensor, kept: Tensor | None) -> Tensor:
    """The formula as it stands: sort the values alone, and look up the few positives among them.

    numpy sorts plain values several times faster than anything sorts values with their places.
    """
    classes = scores.shape[1]
    # numpy sorts float16 slowly; float32 holds it exactly.
    values = _turned(scores, np.float64 if scores.dtype == torch.float64 else np.float32)
    truths = _turned(positive, np.bool_)
    insides = None if kept is None else _turned(kept, np.bool_)
    result = np.full(classes, np.nan)
    for c in range(classes):
        value, truth = values[c], truths[c]
        if insides is not None:
            value, truth = value[insides[c]], truth[insides[c]]
        hits = value[truth]
        if hits.size:
            hits.sort()
            value.sort()  # in place: `values` is a copy
            hits_at_least = hits.size - np.searchsorted(hits, hits, side="left")
            rows_at_least = value.size - np.searchsorted(value, hits, side="left")
            result[c] = np.mean(hits_at_least / rows_at_least)
    return torch.from_numpy(result)


def _checked(scores: Array, targets: Array, mask: Array | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """`scores_and_truth`; of a large table on the CPU the truth as it came, coded by its sign, and nothing copied."""
    scores, truth = as_table(scores, "scores"), as_table(targets, "targets")
    kept = None if mask is None else as_table(mask, "mask").bool()
    alike = all(table is None or table.shape == scores.shape for table in (truth, kept))
    if scores.device.type != "cpu" or not scores.is_floating_point() or scores.numel() <= _STRIP or not alike:
        return scores_and_truth(scores, truth, kept)
    negative = zero = False
    step = max(1, _STRIP // scores.shape[1])
    for start in range(0, len(scores), step):
        rows = slice(start, start + step)
        inside = None if kept is None else kept[rows]
        try:
            scores_and_truth(scores[rows], truth[rows], inside)
        except InputError:  # all of it together, so that the sentence names the place
            return scores_and_truth(scores, truth, kept)
        if truth.dtype != torch.bool:
            counted = truth[rows] if inside is None else truth[rows][inside]
            negative, zero = negative or bool((counted < 0).any()), zero or bool((counted == 0).any())
    # A strip of 1 and 0 and another of +1 and -1: only together they are wrong.
    return scores_and_truth(scores, truth, kept) if negative and zero else (scores, truth, kept)


def _turned(table: Tensor, dtype: type) -> np.ndarray[Any, Any]:
    """A copy (L, N) with each class in one piece, made in strips of rows that fit the cache; bool: where above 0."""
    array, strip = host_array(table), 512
    result = np.empty(array.shape[::-1], dtype)
    for start in range(0, array.shape[0], strip):
        part = array[start : start + strip].T
        result[:, start : start + strip] = part > 0 if dtype is np.bool_ else part
    return result


def _by_cumulating(scores: Tensor, positive: Tensor, kept: Tensor | None) -> Tensor:
    """The same number from tensor operations alone, without waiting for the device.

    Down the sorted scores, the last entry of each run of equal scores is a threshold; the positives that came
    since the threshold before it all have the precision found there.
    """
    value, place = scores.T.sort(dim=1, descending=True)
    truth = positive.T
    if kept is None:
        seen = torch.arange(1, value.shape[1] + 1, device=scores.device)
    else:
        inside = kept.T
        truth = truth & inside
        # An entry outside the mask before the first one inside has seen nothing, and adds nothing.
        seen = inside.gather(1, place).cumsum(1, dtype=torch.int32).clamp_(min=1)
    found = truth.gather(1, place).cumsum(1, dtype=torch.int32)
    del place
    threshold = torch.ones_like(found, dtype=torch.bool)
    torch.ne(value[:, :-1], value[:, 1:], out=threshold[:, :-1])
    found_before = (found * threshold).cummax(1).values.roll(1, dims=1)
    found_before[:, 0] = 0
    gained = (found - found_before).mul_(threshold)
    return found.double().div_(seen).mul_(gained).sum(1) / found[:, -1]


def mean_average_precision(
    scores: Array,
    targets: Array,
    *,
    mask: Array | None = None,
    empty: Empty = "skip",
    memory: int = WORKING_MEMORY,
) -> float:
    """Mean over classes of `average_precision`.

    A class without a positive is left out (`skip`), or counts 0 and stays in the mean (`zero`), as in the
    tables of Cole et al. and those after them.
    """
    return mean_over_classes(average_precision(scores, targets, mask=mask, memory=memory), empty)


def precision_at(scores: Array, targets: Array, k: int) -> float:
    """Mean over rows of the share of positives among a row's k highest scores.

    Of equal scores the lower class index comes first. A row without a positive counts 0.
    """
    found, _ = _top(scores, targets, k)
    return float(found.double().mean() / k)


def recall_at(scores: Array, targets: Array, k: int) -> float:
    """Mean over rows of the share of a row's positives that are among its k highest scores.

    Of equal scores the lower class index comes first. A row without a positive is left out (nan if all are).
    """
    found, positives = _top(scores, targets, k)
    return float((found.double() / positives).nanmean())


def _top(scores: Array, targets: Array, k: int) -> tuple[Tensor, Tensor]:
    """Per row: positives among the k highest scores, and all positives."""
    scores, positive, _ = scores_and_truth(scores, targets)
    classes = scores.shape[1]
    if not 1 <= k <= classes:
        raise InputError(f"k is {k}; with {classes} classes it must lie in 1 to {classes}.")
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return positive.gather(1, order).sum(1), positive.sum(1)
