"""A head to train, how it starts and what became of it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from spml.errors import InputError
from spml.labels import Labels
from spml.methods import METHODS
from spml.models.feature_classifier import merge_heads
from spml.train.linear.evaluator import KnownTruth, Truth, class_precision
from spml.train.linear.rows import Rows, as_features
from spml.type_checks import check_types


@dataclass(frozen=True)
class HeadSpec:
    """One head to train. Hashable; `dataclasses.asdict` of it is plain JSON."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float = 1e-3
    batch_size: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", dict(self.settings))
        check_types(self)
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be above 0, not {self.learning_rate}")
        if self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {self.batch_size}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number from 0 to 2^63 - 1, not {self.seed}")

    def __hash__(self) -> int:
        return hash((self.method_key, self.learning_rate, self.batch_size, self.seed))

    @property
    def method_key(self) -> tuple[str, str]:
        """What heads of one method instance have in common: its name and its settings."""
        return self.method, json.dumps(self.settings, sort_keys=True, default=repr)


@dataclass
class HeadResult:
    """A trained head: its best epoch by validation, or its last where there was none."""

    spec: HeadSpec
    validation: list[float]
    """The selection score (mAP) of every epoch up to `stopped_epoch`; empty without validation."""
    best_epoch: int
    stopped_epoch: int
    weight: Tensor
    """(D, L)"""
    bias: Tensor
    """(L,)"""
    method_state: dict[str, Tensor]
    """What the method remembered for this head at its best epoch, as its `state_dict` names it."""
    labels: Labels | None = field(default=None, repr=False)
    """Those it learned from."""

    def _rows(self, features: Any) -> Rows:
        store = as_features(features)
        if store.dim != len(self.weight):
            raise InputError(f"there are {store.dim} features a row, but the head learned from {len(self.weight)}")
        return Rows(store, self.weight.device)

    @torch.no_grad()
    def score(self, features: Any) -> Tensor:
        """Logits (N, L) of all rows."""
        rows = self._rows(features)
        return torch.cat([x @ self.weight + self.bias for x in rows.blocks()])

    @torch.no_grad()
    def average_precision(self, features: Any, truth: Truth) -> Tensor:
        """Average precision of every class, (L,); NaN without a positive.

        Some classes at a time: the logits of all rows and classes are never held together.
        """
        rows, table = self._rows(features), KnownTruth(truth, self.weight.device)
        if self.labels is not None and isinstance(truth, Labels):
            self.labels.check_same_classes(truth, "the truth")
        if table.shape != (len(rows), len(self.bias)):
            raise InputError(f"the truth is a table of {table.shape}, expected {(len(rows), len(self.bias))}")
        precision = class_precision(rows, self.weight.T, self.bias, table)
        if precision is None:
            raise InputError(f"the head {self.spec} predicts numbers that are not finite")
        return precision


@dataclass(frozen=True)
class Team:
    """The heads that one head is made of: itself, or those of its method's members, learning side by side."""

    spec: HeadSpec
    heads: tuple[HeadSpec, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, spec: HeadSpec, classes: int) -> "Team":
        members = METHODS[spec.method](**spec.settings).members(classes) if spec.method in METHODS else ()
        if not members:
            return cls(spec, (spec,), (1.0,))
        heads = tuple(replace(spec, method=member.method, settings=member.settings) for member in members)
        return cls(spec, heads, tuple(member.share for member in members))

    def merged(self, weight: Tensor, bias: Tensor, features: Rows) -> tuple[Tensor, Tensor]:
        """The one head, (L, D) and (L,), of the weights and biases of all."""
        if len(self.heads) == 1:
            return weight[0], bias[0]
        return merge_heads(weight, bias, self.shares, features.centre)

    def state(self, states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """What the method remembers, as its `state_dict` names it, of what its members do."""
        if len(self.heads) == 1:
            return states[0]
        return {f"ensemble.{i}.{name}": value for i, state in enumerate(states) for name, value in state.items()}


def linear_start(dim: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weight (L, D) and bias (L,) of `nn.Linear(dim, classes)` made after `torch.manual_seed(seed)`."""
    generator = torch.Generator().manual_seed(seed)
    weight = nn.init.kaiming_uniform_(torch.empty(classes, dim), a=math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(dim)
    return weight, nn.init.uniform_(torch.empty(classes), -bound, bound, generator=generator)
