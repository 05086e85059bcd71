"""Evaluation of heads by average precision: all heads in one product, or very many classes in parts."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.errors import InputError
from spml.labels import Labels
from spml.losses.activation import ranking_scores
from spml.metrics import average_precision
from spml.training.linear.rows import DeviceFeatures, as_features

TruthTable = Labels | Tensor | npt.NDArray[Any]
Selection = Literal["map"] | Callable[[Tensor, Tensor], float]

MAX_LOGITS = 2**26  # logits in memory at a time


class Evaluator:
    """Scores heads on labelled rows, all heads of a group in one product."""

    def __init__(
        self, features: Any, truth: TruthTable, dim: int, classes: int, selection: Selection, device: torch.device
    ) -> None:
        store = as_features(features)
        self.selection = selection
        if selection != "map" and not callable(selection):
            raise InputError(f"selection must be 'map' or a function of (scores, truth), not {selection!r}")
        if store.dim != dim:
            raise InputError(f"validation has {store.dim} features per row, training {dim}")
        self.truth = TruthColumns(truth, device)
        if self.truth.shape != (len(store), classes):
            raise InputError(
                f"the validation truth is a table of {self.truth.shape}, expected "
                f"{(len(store), classes)}: a row for each row of features, a column for each class"
            )
        if not self.truth.has_positive:
            raise InputError("the validation truth has no positive, so the best epoch cannot be selected")
        store.check_finite()
        self.features = DeviceFeatures(store, device)

    def scores(self, weight: Tensor, bias: Tensor, activations: Sequence[str]) -> list[float]:
        """One score per head, each with its activation; NaN for a head whose predictions are not finite."""
        heads, entries = len(weight), math.prod(self.truth.shape)
        if entries > MAX_LOGITS and not callable(self.selection):
            precisions = (
                class_precision(self.features, weight[h], bias[h], self.truth, activations[h]) for h in range(heads)
            )
            return [math.nan if precision is None else float(precision.nanmean()) for precision in precisions]
        together = max(1, MAX_LOGITS // entries)  # heads evaluated at a time
        parts = [slice(start, start + together) for start in range(0, heads, together)]
        return [score for part in parts for score in self._scores(weight[part], bias[part], activations[part])]

    def _scores(self, weight: Tensor, bias: Tensor, activations: Sequence[str]) -> list[float]:
        logits = torch.cat([logits_of_heads(x, weight, bias) for x in self.features.blocks()])  # (N, h, L)
        rows, heads, classes = logits.shape
        finite = torch.isfinite(logits).all(dim=2).all(dim=0)
        logits = torch.where(finite[:, None], logits, 0.0)
        for h, activation in enumerate(activations):
            logits[:, h] = ranking_scores(logits[:, h], activation)
        positive, mask = self.truth.columns(slice(0, classes))
        if callable(self.selection):
            scores = [float(self.selection(logits[:, h], positive)) for h in range(heads)]
        else:
            flat, all_positive = logits.view(rows, -1), positive.repeat(1, heads)
            mask = None if mask is None else mask.repeat(1, heads)
            scores = average_precision(flat, all_positive, mask=mask).view(heads, classes).nanmean(1).tolist()
        return [s if ok else math.nan for s, ok in zip(scores, finite.tolist(), strict=True)]


class TruthColumns:
    """Which labels are present and which entries count, by columns; a large sparse table is never made dense."""

    def __init__(self, truth: TruthTable, device: torch.device) -> None:
        self._device = device
        self._dense: tuple[Tensor, Tensor | None] | None = None
        if isinstance(truth, Labels) and math.prod(truth.shape) > MAX_LOGITS:
            counts = truth.counts()
            self.shape, self.has_positive = truth.shape, bool(counts.positives.any())
            self._masked = bool(counts.negatives.any() and counts.unknowns.any())
            entries = truth.entries()
            order = np.argsort(entries.column, kind="stable")
            self._column, self._row, self._value = entries.column[order], entries.rows[order], entries.value[order]
            self._default = entries.default
        else:
            positive, mask = _positives(truth)
            self._dense = positive.to(device), None if mask is None else mask.to(device)
            self.shape, self.has_positive = (positive.shape[0], positive.shape[1]), bool(positive.any())

    def columns(self, part: slice) -> tuple[Tensor, Tensor | None]:
        """(N, l) bool: which labels are present, and which entries count (None: all)."""
        if self._dense is not None:
            positive, mask = self._dense
            return positive[:, part], None if mask is None else mask[:, part]
        first, last = np.searchsorted(self._column, (part.start, part.stop))
        table = np.full((self.shape[0], part.stop - part.start), self._default, np.int8)
        table[self._row[first:last], self._column[first:last] - part.start] = self._value[first:last]
        values = torch.from_numpy(table).to(self._device)
        return values > 0, values != 0 if self._masked else None


def class_precision(
    features: DeviceFeatures, weight: Tensor, bias: Tensor, truth: TruthColumns, activation: str = "sigmoid"
) -> Tensor | None:
    """Average precision of every class of a head (L, D), in parts; None if a logit is not finite."""
    classes = len(weight)
    width = max(1, MAX_LOGITS // len(features))
    total = _log_total(features, weight, bias) if activation == "softmax" else None
    result = []
    for start in range(0, classes, width):
        part = slice(start, min(start + width, classes))
        logits = torch.empty(len(features), part.stop - part.start, device=weight.device)
        row = 0
        for x in features.blocks():
            torch.addmm(bias[part], x, weight[part].T, out=logits[row : row + len(x)])
            row += len(x)
        if not bool(torch.isfinite(logits).all()):
            return None
        positive, mask = truth.columns(part)
        scores = logits if total is None else logits.sub_(total)
        result.append(average_precision(scores, positive, mask=mask))
    return torch.cat(result)


def _log_total(features: DeviceFeatures, weight: Tensor, bias: Tensor) -> Tensor:
    """log Σ exp over all classes of every row, (N, 1): the softmax's denominator."""
    return torch.cat([torch.logsumexp(torch.addmm(bias, x, weight.T), 1, keepdim=True) for x in features.blocks()])


def logits_of_heads(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, D) features through (H, L, D) weights: (B, H, L)."""
    heads, classes, dim = weight.shape
    return torch.addmm(bias.reshape(-1), x, weight.reshape(-1, dim).T).view(-1, heads, classes)


def _positives(truth: TruthTable) -> tuple[Tensor, Tensor | None]:
    """Which labels are present, (N, L) bool, and which entries count (None: all)."""
    if isinstance(truth, Labels):
        table = torch.from_numpy(truth.dense())
    else:
        table = torch.as_tensor(truth)
        if table.dim() != 2:
            raise InputError(f"the truth must be a table of (rows, classes), not {tuple(table.shape)}")
    known = table != 0
    return table > 0, known if bool((table < 0).any()) and not bool(known.all()) else None
