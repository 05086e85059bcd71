"""Linear heads: how they start, the result of training one, and how the heads of an ensemble are averaged into one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from spml.errors import InputError
from spml.labels import Labels
from spml.losses.activation import probabilities
from spml.methods import METHODS
from spml.training.experiment import Experiment
from spml.training.linear.evaluator import TruthColumns, TruthTable, class_precision
from spml.training.linear.rows import DeviceFeatures, as_features


@dataclass
class HeadResult:
    """A trained head, at its best epoch by validation, or at the last one without validation.

    Parameters
    ----------
    experiment : Experiment
    validation : list of float
        Selection score (mAP) of every epoch up to `stopped_epoch`; empty without validation.
    best_epoch, stopped_epoch : int
    weight : Tensor of shape (D, L)
    bias : Tensor of shape (L,)
    method_state : dict of Tensor
        The method's memory for this head at its best epoch, as in its `state_dict`.
    labels : Labels, optional
        The labels it was trained on.
    """

    experiment: Experiment
    validation: list[float]
    best_epoch: int
    stopped_epoch: int
    weight: Tensor
    bias: Tensor
    method_state: dict[str, Tensor]
    labels: Labels | None = field(default=None, repr=False)

    def _rows(self, features: Any) -> DeviceFeatures:
        store = as_features(features)
        if store.dim != len(self.weight):
            raise InputError(f"{store.dim} features per row, but the head was trained on {len(self.weight)}")
        return DeviceFeatures(store, self.weight.device)

    @torch.no_grad()
    def score(self, features: Any) -> Tensor:
        """Logits of all rows, (N, L)."""
        rows = self._rows(features)
        return torch.cat([x @ self.weight + self.bias for x in rows.blocks()])

    def probabilities(self, features: Any) -> Tensor:
        """Probabilities of all rows, (N, L), by the method's activation."""
        return probabilities(self.score(features), self.experiment.activation)

    @torch.no_grad()
    def average_precision(self, features: Any, truth: TruthTable) -> Tensor:
        """Average precision of every class, (L,); NaN for a class without a positive.

        Classes are evaluated in parts, so that the logits of all rows and classes are never in memory together.
        """
        rows, table = self._rows(features), TruthColumns(truth, self.weight.device)
        if self.labels is not None and isinstance(truth, Labels):
            self.labels.check_same_classes(truth, "the truth")
        if table.shape != (len(rows), len(self.bias)):
            raise InputError(f"the truth is a table of {table.shape}, expected {(len(rows), len(self.bias))}")
        precision = class_precision(rows, self.weight.T, self.bias, table, self.experiment.activation)
        if precision is None:
            raise InputError(f"the head of {self.experiment.entry!r} predicts numbers that are not finite")
        return precision


@dataclass(frozen=True)
class HeadEnsemble:
    """The heads that are averaged into the head of one experiment: one, or one per ensemble member of its method."""

    experiment: Experiment
    heads: tuple[Experiment, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, experiment: Experiment, classes: int) -> "HeadEnsemble":
        name = experiment.method
        members = METHODS[name](**experiment.settings).members(classes) if name in METHODS else ()
        if not members:
            return cls(experiment, (experiment,), (1.0,))
        heads = tuple(replace(experiment, method=member.method, settings=member.settings) for member in members)
        return cls(experiment, heads, tuple(member.share for member in members))

    def merged(self, weight: Tensor, bias: Tensor, features: DeviceFeatures) -> tuple[Tensor, Tensor]:
        """Return the one head, (L, D) and (L,), of the weights and biases of all."""
        if len(self.heads) == 1:
            return weight[0], bias[0]
        return merge_heads(weight, bias, self.shares, features.centre)

    def state(self, states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return the method's memory, as in its `state_dict`, from the memories of its members."""
        if len(self.heads) == 1:
            return states[0]
        return {f"ensemble.{i}.{name}": value for i, state in enumerate(states) for name, value in state.items()}


def merge_heads(
    weight: Tensor, bias: Tensor, shares: Sequence[float], centre: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Merge several linear heads into one: for every class, the mean of their directions.

    The scale of the logits differs between losses, so a plain average would ignore the head with small weights.
    For every class, all heads are therefore scaled to the norm of the longest one and then averaged by their shares.
    At the row `centre` the merged head returns the logits of the longest head, the only ones on a probability scale.

    Parameters
    ----------
    weight : Tensor of shape (n_heads, n_classes, n_features)
    bias : Tensor of shape (n_heads, n_classes)
    shares : sequence of float
        Weight of every head in the average.
    centre : Tensor of shape (n_features,), optional
        Default: zeros.

    Returns
    -------
    weight : Tensor of shape (n_classes, n_features)
    bias : Tensor of shape (n_classes,)

    Examples
    --------
    >>> merge_heads(torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]]), torch.tensor([[1.0], [-1.0]]), (0.5, 0.5))
    (tensor([[2., 2.]]), tensor([1.]))
    """
    length = weight.norm(dim=-1)  # (m, L)
    longest = length.argmax(0, keepdim=True)
    factor = torch.where(length > 0, length.gather(0, longest) / length, 1.0)
    scale = torch.stack([share * row for share, row in zip(shares, factor, strict=True)])
    merged = scale[0, :, None] * weight[0]
    for row, head in zip(scale[1:], weight[1:], strict=True):
        merged = merged.addcmul_(row[:, None], head)  # in place: with many classes a second matrix needs much memory
    if centre is None:
        return merged, bias.gather(0, longest)[0]
    return merged, (bias + weight @ centre).gather(0, longest)[0] - merged @ centre


def linear_start(dim: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weight (L, D) and bias (L,) of `nn.Linear(dim, classes)` built after `torch.manual_seed(seed)`."""
    generator = torch.Generator().manual_seed(seed)
    weight = nn.init.kaiming_uniform_(torch.empty(classes, dim), a=math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(dim)
    return weight, nn.init.uniform_(torch.empty(classes), -bound, bound, generator=generator)
