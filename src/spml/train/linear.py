"""Many linear heads at once: the linear protocol, one head for every (method, learning rate, batch size, seed).

Heads of one batch size and one seed see the same batches, so they are one matrix: one product gives all their
logits, each method's objective gives the gradient of its heads' logits, one product gives all weights' gradients.
Heads do not touch each other: each ends as if it were trained alone.
"""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from ..data.features import FeatureStore
from ..errors import InputError
from ..labels import Labels
from ..methods import Clock, Method, Problem, method
from ..metrics import average_precision
from .graph import WatchedClock, recording

Truth = Labels | Tensor | npt.NDArray[Any]
Selection = Literal["map"] | Callable[[Tensor, Tensor], float]

_BLOCK = 2**22  # features handed out at one time when all rows are scored
_SMALL = 2**28  # bytes up to which features and label tables are copied into one matrix, whose batches are quick
_SMALL_STEP = 2**27  # products of weights and features in a step up to which one CPU thread computes it
_MANY_ENTRIES = 2**22  # logits of a batch beyond which a step on a CPU goes by parts
_PART_ENTRIES = 2**20  # logits of a part
_PART_WEIGHTS = 2**23  # and its weights
_JUDGED = 2**26  # logits held at one time when heads are judged


class Features(Protocol):
    """Rows of features: a `FeatureStore`, or some rows of one."""

    @property
    def dim(self) -> int: ...
    def __len__(self) -> int: ...
    def batch(self, rows: Any) -> Tensor: ...
    def ahead(self, rows: Any) -> None: ...
    def check_finite(self) -> None: ...
    def to_device(self, device: torch.device | str) -> bool: ...


class FeatureRows:
    """Some rows of a feature store, without copying them."""

    def __init__(self, store: FeatureStore, rows: Any) -> None:
        self.store = store
        self.rows = torch.as_tensor(rows, dtype=torch.int64)

    @property
    def dim(self) -> int:
        return self.store.dim

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Any) -> Tensor:
        index = torch.as_tensor(rows)
        return self.store.batch(self.rows.to(index.device)[index])

    def ahead(self, rows: Any) -> None:
        index = torch.as_tensor(rows)
        self.store.ahead(self.rows.to(index.device)[index])

    def check_finite(self) -> None:
        self.store.check_finite()

    def to_device(self, device: torch.device | str) -> bool:
        resident = self.store.to_device(device)
        if resident:
            self.rows = self.rows.to(device)
        return resident


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
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be above 0, not {self.learning_rate}")
        if self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {self.batch_size}")

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

    @torch.no_grad()
    def score(self, features: Any) -> Tensor:
        """Logits (N, L) of all rows."""
        rows = _Rows(as_features(features), self.weight.device)
        return torch.cat([x @ self.weight + self.bias for x in rows.blocks()])

    @torch.no_grad()
    def average_precision(self, features: Any, truth: Truth) -> Tensor:
        """Average precision of every class, (L,); NaN without a positive.

        Some classes at a time: the logits of all rows and classes are never held together.
        """
        rows, table = _Rows(as_features(features), self.weight.device), _Truth(truth, self.weight.device)
        if table.shape != (len(rows), len(self.bias)):
            raise InputError(f"the truth is a table of {table.shape}, expected {(len(rows), len(self.bias))}")
        precision = _class_precision(rows, self.weight.T, self.bias, table)
        if precision is None:
            raise InputError(f"the head {self.spec} predicts numbers that are not finite")
        return precision


def as_features(values: Any) -> Features:
    """A feature store of a matrix, path or store."""
    return values if isinstance(values, (FeatureStore, FeatureRows)) else FeatureStore(values)


def train_heads(
    features: Any,
    labels: Labels,
    specs: Sequence[HeadSpec],
    *,
    epochs: int = 25,
    validation: tuple[Any, Truth] | None = None,
    k: float | None = None,
    device: str | torch.device = "cpu",
    early_stopping: Literal["first-drop"] | int | None = None,
    full_labels: Labels | None = None,
    negatives_labels: Labels | None = None,
    selection: Selection = "map",
    memory_limit: int = 2**31,
    progress: bool = True,
) -> list[HeadResult]:
    """Train every head of `specs`, each as a plain loop would train it alone, and return them in that order.

    A head starts as `nn.Linear` does after `torch.manual_seed(seed)` and moves by Adam at its constant learning
    rate over batches in an order drawn from (seed, epoch); the last batch of an epoch may be smaller.

    features: a `FeatureStore`, or a matrix or .npy file one is made of. On a GPU they are kept there if they fit.
    validation: (features, truth); the best epoch is kept by `selection`: mean AP, or a function of (scores,
        truth), higher being better. In truth given as `Labels` unknown entries are left out, or count as absent
        where no negative is known at all.
    early_stopping: a head stops after this many epochs without a better score; "first-drop" is 1.
    full_labels, negatives_labels: the tables for methods that need full labels or known negatives, where
        `labels` is not such a table itself.
    memory_limit: bytes that heads in training at one time may take, with what they remember; never less than one.
    """
    store, target = as_features(features), _device(device)
    if not specs:
        raise InputError("there are no heads to train: specs is empty")
    if epochs < 1:
        raise InputError(f"epochs must be at least 1, not {epochs}")
    if len(store) != len(labels):
        raise InputError(f"there are {len(store)} rows of features, but labels for {len(labels)} rows")
    patience = 1 if early_stopping == "first-drop" else early_stopping
    if patience is not None and patience < 1:
        raise InputError(f"early_stopping must be 'first-drop', at least 1 or None, not {early_stopping!r}")
    if patience is not None and validation is None:
        raise InputError("early_stopping needs validation: give features and their true labels")
    store.check_finite()
    judge = None if validation is None else _Judge(*validation, store.dim, labels.num_classes, selection, target)
    tables = _Tables(labels, full_labels, negatives_labels, target)
    task = _Task(_Rows(store, target), tables, epochs, k, target)

    results: dict[int, HeadResult] = {}
    with _progress(len(specs) * epochs if progress else 0) as advance:
        for team in _teams(specs, task, memory_limit):
            groups = [_Group(indices, [specs[i] for i in indices], task) for indices in team]
            with _threads_for(groups):
                _train_team(groups, task, judge, patience, advance)
            for group in groups:
                results.update(group.results())
    return [results[i] for i in range(len(specs))]


class _Rows:
    """Features as they are read: float32 batches on the device, from a copy there if that is small."""

    def __init__(self, features: Features, device: torch.device) -> None:
        self.features, self.device, self.dim = features, device, features.dim
        self._matrix: Tensor | None = None
        if 4 * len(features) * features.dim <= _SMALL:
            self._matrix = torch.cat(list(self.blocks()))
        self.resident = self._matrix is not None or (device.type != "cpu" and features.to_device(device))

    def __len__(self) -> int:
        return len(self.features)

    def batch(self, rows: Tensor) -> Tensor:
        """(B, D)"""
        if self._matrix is not None:
            return self._matrix.index_select(0, rows)
        return self.features.batch(rows).to(self.device)

    def ahead(self, rows: Tensor) -> None:
        """Start reading the rows of a later batch, where they lie in a file."""
        if not self.resident and len(rows):
            self.features.ahead(rows)

    def blocks(self) -> Iterator[Tensor]:
        """All rows in order, some at a time."""
        step = max(1, _BLOCK // self.dim)
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            if self._matrix is not None:
                yield self._matrix[start:stop]
            else:
                yield self.features.batch(torch.arange(start, stop)).to(self.device)


class _Table:
    """A label table whose batches are made on the device."""

    def __init__(self, labels: Labels, device: torch.device) -> None:
        self.labels, self.device = labels, device
        small = len(labels) * labels.num_classes <= _SMALL
        self._dense = torch.from_numpy(labels.dense()).to(device) if small else None

    def batch(self, rows: Tensor) -> Tensor:
        """int8 (B, L)."""
        return self.labels.batch(rows, self.device) if self._dense is None else self._dense.index_select(0, rows)


class _Tables:
    """The label tables there are, by what a method may need of one."""

    def __init__(self, labels: Labels, full: Labels | None, negatives: Labels | None, device: torch.device) -> None:
        for name, table in (("full_labels", full), ("negatives_labels", negatives)):
            if table is not None and table.shape != labels.shape:
                raise InputError(f"{name} is a table of {table.shape}, but labels one of {labels.shape}")
        self.shape = labels.shape
        self._given = {"positives": labels, "full": full or labels, "negatives": negatives or labels}
        self._device = device
        self._made: dict[str, _Table] = {}

    def of(self, asking: Method) -> _Table:
        """The table for a method; an error if it needs more than is known."""
        need = asking.needs.labels
        if need not in self._made:
            given = self._given[need]
            if need == "full" and not given.is_full:
                raise InputError(f"method {asking.name!r} needs full labels, but some are unknown: give full_labels")
            if need == "negatives" and not given.counts().negatives.any():
                raise InputError(
                    f"method {asking.name!r} needs known negatives, but there are none: give negatives_labels"
                )
            self._made[need] = _Table(given, self._device)
        return self._made[need]


@dataclass(frozen=True)
class _Task:
    """What all heads share."""

    features: _Rows
    tables: _Tables
    epochs: int
    k: float | None
    device: torch.device

    @property
    def rows(self) -> int:
        return len(self.features)

    @property
    def classes(self) -> int:
        return self.tables.shape[1]

    def method(self, spec: HeadSpec, seeds: tuple[int, ...]) -> Method:
        """The method of a head, prepared for as many heads as there are seeds."""
        made = method(spec.method, **spec.settings)
        if made.needs.head != "linear":
            raise InputError(
                f"method {spec.method!r} is made for the head {made.needs.head!r}, which features cannot have: "
                f"it cannot be trained on them"
            )
        made.prepare(Problem(self.tables.of(made).labels, k=self.k, seeds=seeds))
        for name, state in made.state_dict().items():
            if state.shape[:1] != (len(seeds),):
                raise InputError(f"method {spec.method!r} cannot train many heads: its {name!r} is not one a head")
        return made.to(self.device)

    def clock(self, epoch: int, batch: int, batch_size: int) -> Clock:
        batches = math.ceil(self.rows / batch_size)
        return Clock(epoch, self.epochs, (epoch - 1) * batches + batch, self.epochs * batches)


def _teams(specs: Sequence[HeadSpec], task: _Task, memory_limit: int) -> Iterator[list[list[int]]]:
    """Heads (as indices of specs) by batch size and seed, in teams that are trained side by side.

    Heads of one batch size and seed see the same batches and form a group. On a CPU groups take turns, since one
    alone keeps it busy and its weights near; on a GPU those of one batch size share every step.
    """
    bytes_of: dict[tuple[str, str], int] = {}
    groups: dict[int, list[list[int]]] = defaultdict(list)
    order = sorted(range(len(specs)), key=lambda i: (specs[i].batch_size, specs[i].seed))
    for (size, _), members in itertools.groupby(order, key=lambda i: (specs[i].batch_size, specs[i].seed)):
        group: list[int] = []
        taken = 0
        for i in members:
            key = specs[i].method_key
            if key not in bytes_of:
                bytes_of[key] = _bytes_of_head(specs[i], task)
            if group and taken + bytes_of[key] > memory_limit:
                groups[size].append(group)
                group, taken = [], 0
            group.append(i)
            taken += bytes_of[key]
        groups[size].append(group)
    for of_size in groups.values():
        team: list[list[int]] = []
        taken = 0
        for group in of_size:
            needed = sum(bytes_of[specs[i].method_key] for i in group)
            if team and (task.device.type == "cpu" or taken + needed > memory_limit):
                yield team
                team, taken = [], 0
            team.append(group)
            taken += needed
        yield team


def _bytes_of_head(spec: HeadSpec, task: _Task) -> int:
    """What one head takes in training: weights and the method's state, their gradients, moments and best epoch."""
    made = task.method(spec, (spec.seed,))
    parameters = task.classes * (task.features.dim + 1) + sum(p.numel() for p in made.parameters())
    return 5 * 4 * parameters + 2 * sum(b.nbytes for b in made.buffers())


class _Block:
    """The heads of one method with one set of settings: one `Method`, its memory with a leading dimension of heads."""

    def __init__(self, specs: Sequence[HeadSpec], heads: slice, task: _Task) -> None:
        self.heads = heads  # among the group's heads, in order of method
        self.method = task.method(specs[0], tuple(spec.seed for spec in specs))
        self.table = task.tables.of(self.method)
        self.rates = [spec.learning_rate for spec in specs]
        self.rate = torch.tensor(self.rates, device=task.device)[:, None, None]
        self.has_penalty = type(self.method).penalty is not Method.penalty
        self.has_after_step = type(self.method).after_step is not Method.after_step
        self.stream = _new_stream() if task.device.type == "cuda" else None

    @torch.enable_grad()
    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        """The heads' values (h,) and the leaf (h, B, L) that takes the gradient of their logits."""
        leaf = logits.detach().requires_grad_()
        return self.method.objective(leaf, labels, rows, clock), leaf


@torch.enable_grad()
def _gradient(block: _Block, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
    """The gradient (B, L) of the objective by one head's logits."""
    value, leaf = block.objective(logits[None], labels, rows, clock)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return gradient[0]


def _gradient_by_rows(block: _Block, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
    """The same, some rows at a time, of an objective that is the mean of its rows'. Written over the logits."""
    count, classes = logits.shape
    step = max(1, _PART_ENTRIES // classes)
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        gradient = _gradient(block, logits[some], labels[some], rows[some], clock)
        logits[some] = gradient.mul_((some.stop - some.start) / count)
    return logits


class _HeadwiseAdam:
    """Adam over tensors whose first dimension is heads, each head at its own learning rate.

    torch's fused kernel takes one rate, so neighbouring heads of one rate are moved together. It is called without
    the `Optimizer` around it, whose making alone imports two seconds of compiler.
    """

    def __init__(self, tensors: Sequence[tuple[Tensor, Sequence[float]]]) -> None:
        # By rate: what adam() takes, and where the gradients are found.
        self._moved: dict[float, tuple[list[Tensor], ...]] = defaultdict(lambda: ([], [], [], []))
        self._gradients: dict[float, list[tuple[Tensor, slice]]] = defaultdict(list)
        for tensor, rates in tensors:
            first, second = torch.zeros_like(tensor), torch.zeros_like(tensor)
            start = 0
            for rate, run in itertools.groupby(rates):
                heads = slice(start, start + len(list(run)))
                start = heads.stop
                parts = (tensor.detach()[heads], first[heads], second[heads], torch.zeros((), device=tensor.device))
                for column, part in zip(self._moved[rate], parts, strict=True):
                    column.append(part)
                self._gradients[rate].append((tensor, heads))

    def step(self) -> None:
        for rate, columns in self._moved.items():
            places = self._gradients[rate]
            gradients = [tensor.grad[heads] for tensor, heads in places if tensor.grad is not None]
            if len(gradients) < len(places):  # what took no part in the objective does not move
                moving = [tensor.grad is not None for tensor, _ in places]
                columns = tuple(list(itertools.compress(column, moving)) for column in columns)
            parts, first, second, steps = columns
            adam(
                parts,
                gradients,
                first,
                second,
                [],
                steps,
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=rate,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )


class _PartwiseAdam:
    """Adam over some classes of one head at a time, so that the gradient of all weights is never held."""

    def __init__(self, weight: Tensor, bias: Tensor, rates: Sequence[float]) -> None:
        self._values, self._rates = (weight, bias), rates
        self._moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in self._values]
        # Every part counts its own steps, the weights' and the bias's.
        self._steps: dict[tuple[int, int], list[Tensor]] = defaultdict(lambda: [torch.zeros(()), torch.zeros(())])

    def move(self, head: int, classes: slice, gradients: Sequence[Tensor]) -> None:
        """One step of these classes of a head, by the gradients of their weights (l, D) and bias (l,)."""
        adam(
            [value[head, classes] for value in self._values],
            list(gradients),
            [first[head, classes] for first, _ in self._moments],
            [second[head, classes] for _, second in self._moments],
            [],
            self._steps[head, classes.start],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._rates[head],
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class _Group:
    """The heads that see the same batches: one batch size, one seed. Its weights are one matrix, by learning rate."""

    def __init__(self, indices: Sequence[int], specs: Sequence[HeadSpec], task: _Task) -> None:
        self.task = task
        self.batch_size, self.seed = specs[0].batch_size, specs[0].seed
        by_rate = sorted(range(len(specs)), key=lambda i: specs[i].learning_rate)
        self.indices, self.specs = [indices[i] for i in by_rate], [specs[i] for i in by_rate]
        heads, classes, dim = len(specs), task.classes, task.features.dim

        by_method = sorted(range(heads), key=lambda h: self.specs[h].method_key)  # stable: by rate within a method
        self.by_method = torch.tensor(by_method, device=task.device)
        self.by_rate = self.by_method.argsort()
        self.blocks: list[_Block] = []
        start = 0
        for _, run in itertools.groupby(by_method, key=lambda h: self.specs[h].method_key):
            members = [self.specs[h] for h in run]
            self.blocks.append(_Block(members, slice(start, start + len(members)), task))
            start += len(members)

        self.tables = {block.table for block in self.blocks}
        weight, bias = linear_start(dim, classes, self.seed)
        self.weight = weight.to(task.device).repeat(heads, 1, 1)  # (H, L, D)
        self.bias = bias.to(task.device).repeat(heads, 1)  # (H, L)
        rates = [spec.learning_rate for spec in self.specs]
        self.by_parts = _PartwiseAdam(self.weight, self.bias, rates) if self._goes_by_parts() else None
        if self.by_parts is None:
            self.weight.grad = self.weight_gradient = torch.zeros_like(self.weight)
            self.bias.grad = self.bias_gradient = torch.zeros_like(self.bias)
        self.own = [
            (p, [multiple * rate for rate in block.rates])
            for block in self.blocks
            for parameters, multiple in block.method.parameter_groups()
            for p in parameters
        ]
        self.adam = _HeadwiseAdam([(self.weight, rates), (self.bias, rates), *self.own] if not self.by_parts else [])
        self.stream = _new_stream() if task.device.type == "cuda" else None
        self.order = torch.empty(0, dtype=torch.int64)

        self.scores: list[list[float]] = [[] for _ in self.specs]
        self.best = [(-math.inf, 0)] * heads  # score and epoch
        self.stopped: list[int | None] = [None] * heads
        self.kept: tuple[Tensor, Tensor, list[dict[str, Tensor]]] | None = None

    # One step

    def begin_epoch(self, epoch: int) -> None:
        self.order = torch.from_numpy(row_order(self.seed, epoch, self.task.rows)).to(self.task.device)

    @torch.no_grad()
    def step(self, rows: Tensor, clock: Clock) -> object:
        """One batch for every head. Returns what its branches share, to be held until all work has joined."""
        x = self.task.features.batch(rows)
        if self.by_parts is not None:
            self._step_by_parts(self.by_parts, x, rows, clock)
            return None
        heads, classes, dim = self.weight.shape
        logits = torch.addmm(self.bias.view(-1), x, self.weight.view(-1, dim).T).view(-1, heads, classes)
        by_method = logits.index_select(1, self.by_method).transpose(0, 1)
        labels = {table: table.batch(rows) for table in self.tables}

        def objective(block: _Block) -> tuple[Tensor, Tensor]:
            return block.objective(by_method[block.heads], labels[block.table], rows, clock)

        values, leaves = zip(*_side_by_side(objective, self.blocks), strict=True)
        with torch.enable_grad():
            torch.cat(values).sum().backward()  # type: ignore[no-untyped-call]
        gradients = [leaf.grad for leaf in leaves]
        gradient = torch.cat(gradients).transpose(0, 1).index_select(1, self.by_rate)  # (B, H, L)
        torch.mm(gradient.view(len(x), -1).T, x, out=self.weight_gradient.view(-1, dim))
        torch.sum(gradient, 0, out=self.bias_gradient)
        for block in self.blocks:
            if block.has_penalty:
                self._add_penalty(block)
        self.adam.step()
        own_gradients = [parameter.grad for parameter, _ in self.own]
        for parameter, _ in self.own:
            parameter.grad = None
        moving = [block for block in self.blocks if block.has_after_step]
        _side_by_side(lambda block: block.method.after_step(block.rate), moving)
        return x, logits, by_method, labels, values, leaves, gradient, own_gradients

    def _goes_by_parts(self) -> bool:
        """Whether a batch has very many logits, and every method's objective falls apart into smaller ones.

        Not on a GPU: there memory is not what many classes lack first, and a step is recorded as one graph.
        """
        many = self.weight[..., 0].numel() * self.batch_size > _MANY_ENTRIES
        fitting = (block.method.needs.splits is not None and not block.has_penalty for block in self.blocks)
        return self.task.device.type == "cpu" and many and all(fitting)

    def _step_by_parts(self, adam: _PartwiseAdam, x: Tensor, rows: Tensor, clock: Clock) -> None:
        """The same step with few logits at a time: neither those of all classes and their intermediate values nor
        the gradient of all weights are ever held together."""
        _, classes, dim = self.weight.shape
        width = max(1, min(_PART_ENTRIES // self.batch_size, _PART_WEIGHTS // dim))  # also in an epoch's last batch
        parts = [slice(start, min(start + width, classes)) for start in range(0, classes, width)]
        labels = {table: table.batch(rows) for table in self.tables}
        by_method = self.by_method.tolist()
        for block in self.blocks:
            known = labels[block.table]
            for head in by_method[block.heads]:
                weight, bias = self.weight[head], self.bias[head]
                whole: Tensor | None = None
                if block.method.needs.splits == "rows":
                    whole = _gradient_by_rows(block, torch.addmm(bias, x, weight.T), known, rows, clock)
                for part in parts:
                    if whole is None:
                        logits = torch.addmm(bias[part], x, weight[part].T)
                        gradient = _gradient(block, logits, known[:, part], rows, clock).mul_(logits.shape[1] / classes)
                    else:
                        gradient = whole[:, part]
                    adam.move(head, part, (gradient.T @ x, gradient.sum(0)))

    def _add_penalty(self, block: _Block) -> None:
        """The gradient of the method's term on its heads' own parameters."""
        heads = self.by_method[block.heads]
        with torch.enable_grad():
            leaves = [t.index_select(0, heads).requires_grad_() for t in (self.weight, self.bias)]
            penalty = block.method.penalty(leaves, heads=1)
            if penalty is None:
                return
            of_weight, of_bias = torch.autograd.grad(penalty.sum(), leaves)
        self.weight_gradient.index_add_(0, heads, of_weight)
        self.bias_gradient.index_add_(0, heads, of_bias)

    # Between epochs

    @torch.no_grad()
    def end_epoch(self, epoch: int, judge: "_Judge | None", patience: int | None) -> None:
        """Tell the methods what is predicted now, judge every head and keep those that were never better."""
        batches = math.ceil(self.task.rows / self.batch_size)
        clock = self.task.clock(epoch, batches, self.batch_size)
        for block in self.blocks:
            if block.method.needs.epoch_predictions:
                block.method.end_epoch(self._probabilities(self.by_method[block.heads]), clock)
        if judge is None:
            self.best = [(math.nan, epoch)] * len(self.specs)
            return
        better = []
        for h, score in enumerate(judge.scores(self.weight, self.bias)):
            running = self.stopped[h] is None
            # The first epoch is kept even where the head diverged in it: there is nothing better.
            better.append(running and (epoch == 1 or score > self.best[h][0]))
            if running:
                self.scores[h].append(score)
            if better[h]:
                self.best[h] = (score if math.isfinite(score) else -math.inf, epoch)
            elif running and patience is not None and epoch - self.best[h][1] >= patience:
                self.stopped[h] = epoch
        self._keep(better)

    def _keep(self, better: list[bool]) -> None:
        states = [block.method.state_dict() for block in self.blocks]
        if self.kept is None:
            self.kept = (
                self.weight.clone(),
                self.bias.clone(),
                [{name: value.clone() for name, value in state.items()} for state in states],
            )
            return
        by_rate = torch.tensor(better, device=self.task.device)
        by_method = by_rate[self.by_method]
        weight, bias, kept_states = self.kept
        _copy_heads(weight, self.weight, by_rate)
        _copy_heads(bias, self.bias, by_rate)
        for block, state, kept in zip(self.blocks, states, kept_states, strict=True):
            for name, value in state.items():
                _copy_heads(kept[name], value, by_method[block.heads])

    def _probabilities(self, heads: Tensor) -> Tensor:
        """(h, N, L) predictions for all training rows."""
        weight, bias = self.weight[heads], self.bias[heads]
        out = torch.empty(len(heads), self.task.rows, self.task.classes, device=self.task.device)
        start = 0
        for x in self.task.features.blocks():
            part = out[:, start : start + len(x)]
            torch.sigmoid(_logits(x, weight, bias).transpose(0, 1), out=part)
            start += len(x)
        return out

    @property
    def finished(self) -> bool:
        return all(epoch is not None for epoch in self.stopped)

    def results(self) -> dict[int, HeadResult]:
        """What became of every head, by its place among all heads."""
        states = [block.method.state_dict() for block in self.blocks]
        weight, bias, states = (self.weight, self.bias, states) if self.kept is None else self.kept
        of_head: dict[int, dict[str, Tensor]] = {}
        by_method = self.by_method.tolist()
        for block, state in zip(self.blocks, states, strict=True):
            for place, h in enumerate(by_method[block.heads]):
                of_head[h] = {name: value[place].detach().cpu().clone() for name, value in state.items()}
        return {
            index: HeadResult(
                spec=spec,
                validation=self.scores[h],
                best_epoch=self.best[h][1],
                stopped_epoch=self.stopped[h] or self.task.epochs,
                weight=weight[h].T.cpu().clone(),
                bias=bias[h].cpu().clone(),
                method_state=of_head[h],
            )
            for h, (index, spec) in enumerate(zip(self.indices, self.specs, strict=True))
        }


class _Judge:
    """Scores heads on labelled rows, all heads of a group in one product."""

    def __init__(
        self, features: Any, truth: Truth, dim: int, classes: int, selection: Selection, device: torch.device
    ) -> None:
        store = as_features(features)
        self.selection = selection
        if selection != "map" and not callable(selection):
            raise InputError(f"selection must be 'map' or a function of (scores, truth), not {selection!r}")
        if store.dim != dim:
            raise InputError(f"validation has {store.dim} features a row, training {dim}")
        self.truth = _Truth(truth, device)
        if self.truth.shape != (len(store), classes):
            raise InputError(
                f"the validation truth is a table of {self.truth.shape}, expected "
                f"{(len(store), classes)}: a row for each row of features, a column for each class"
            )
        if not self.truth.has_positive:
            raise InputError("the validation truth has no positive: no epoch can be told from another by it")
        store.check_finite()
        self.features = _Rows(store, device)

    def scores(self, weight: Tensor, bias: Tensor) -> list[float]:
        """One score a head; NaN for a head that no longer predicts finite numbers."""
        heads, entries = len(weight), math.prod(self.truth.shape)
        if entries > _JUDGED and not callable(self.selection):
            each = (_class_precision(self.features, weight[h], bias[h], self.truth) for h in range(heads))
            return [math.nan if precision is None else float(precision.nanmean()) for precision in each]
        together = max(1, _JUDGED // entries)  # heads whose logits are held at one time
        return [
            score
            for start in range(0, heads, together)
            for score in self._scores(weight[start : start + together], bias[start : start + together])
        ]

    def _scores(self, weight: Tensor, bias: Tensor) -> list[float]:
        logits = torch.cat([_logits(x, weight, bias) for x in self.features.blocks()])  # (N, h, L)
        rows, heads, classes = logits.shape
        finite = torch.isfinite(logits).all(dim=2).all(dim=0)
        logits = torch.where(finite[:, None], logits, 0.0)
        positive, mask = self.truth.columns(slice(0, classes))
        if callable(self.selection):
            scores = [float(self.selection(logits[:, h], positive)) for h in range(heads)]
        else:
            flat, every = logits.view(rows, -1), positive.repeat(1, heads)
            mask = None if mask is None else mask.repeat(1, heads)
            scores = average_precision(flat, every, mask=mask).view(heads, classes).nanmean(1).tolist()
        return [s if ok else math.nan for s, ok in zip(scores, finite.tolist(), strict=True)]


class _Truth:
    """Where labels are present and which entries count, asked for by columns; of a large sparse table never all."""

    def __init__(self, truth: Truth, device: torch.device) -> None:
        self._device = device
        self._dense: tuple[Tensor, Tensor | None] | None = None
        if isinstance(truth, Labels) and math.prod(truth.shape) > _JUDGED:
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
        """(N, l) bool: present, and counted (None: all are)."""
        if self._dense is not None:
            positive, mask = self._dense
            return positive[:, part], None if mask is None else mask[:, part]
        first, last = np.searchsorted(self._column, (part.start, part.stop))
        table = np.full((self.shape[0], part.stop - part.start), self._default, np.int8)
        table[self._row[first:last], self._column[first:last] - part.start] = self._value[first:last]
        values = torch.from_numpy(table).to(self._device)
        return values > 0, values != 0 if self._masked else None


def _class_precision(features: _Rows, weight: Tensor, bias: Tensor, truth: _Truth) -> Tensor | None:
    """Average precision of every class of a head (L, D), some classes at a time; None where a logit is not finite."""
    classes = len(weight)
    width = max(1, _JUDGED // len(features))
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
        result.append(average_precision(logits, positive, mask=mask))
    return torch.cat(result)


def _train_team(
    groups: list[_Group],
    task: _Task,
    judge: _Judge | None,
    patience: int | None,
    advance: Callable[[int], None],
) -> None:
    """All epochs of groups of one batch size, step by step side by side."""
    size = groups[0].batch_size
    for epoch in range(1, task.epochs + 1):
        active = [group for group in groups if not group.finished]
        for group in active:
            group.begin_epoch(epoch)
        on_gpu = task.device.type == "cuda" and task.features.resident
        done = _replay_epoch(active, task, epoch) if active and on_gpu else 0
        for start in range(done, task.rows, size):
            clock = task.clock(epoch, start // size, size)
            for group in active:
                if len(active) == 1:  # several take turns, each with an order of its own
                    task.features.ahead(group.order[start + size : start + 2 * size])
                group.step(group.order[start : start + size], clock)
        for group in active:
            group.end_epoch(epoch, judge, patience)
        advance(sum(len(group.specs) for group in groups))


@contextmanager
def _threads_for(groups: list[_Group]) -> Iterator[None]:
    """One CPU thread for small steps: they gain little from more, and on a busy machine wait long for each other."""
    threads = torch.get_num_threads()
    products = groups[0].weight.numel() * groups[0].batch_size
    torch.set_num_threads(1 if products < _SMALL_STEP else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _replay_epoch(groups: list[_Group], task: _Task, epoch: int) -> int:
    """The full batches of an epoch on a GPU, from one recorded CUDA graph; returns how many rows that was.

    A step is some hundred small kernels, and starting them one by one takes longer than running them. The graph
    is recorded anew every epoch, since what a method does may depend on it. Its groups and, within a group, its
    methods are parallel branches.
    """
    size = groups[0].batch_size
    full = task.rows // size
    if full < 4:
        return 0
    clock = task.clock(epoch, 0, size)
    watched = WatchedClock(clock)
    aside = _new_stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # the first batch is taken as it is: it warms up, away from the default stream
        for group in groups:
            group.step(group.order[:size], watched)
    torch.cuda.current_stream().wait_stream(aside)
    if "step" in watched.read:  # such a step cannot be recorded once and replayed
        return size
    first = torch.full((), size, device=task.device)
    within = torch.arange(size, device=task.device)
    graph = torch.cuda.CUDAGraph()
    with recording(graph):
        rows = first + within
        held = _side_by_side(lambda group: group.step(group.order.index_select(0, rows), clock), groups)
        first += size
    del held  # streams are few and shared: memory freed earlier could be written by one branch while another reads
    for _ in range(full - 1):
        graph.replay()
    torch.cuda.synchronize(task.device)
    return full * size


def _new_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class _Branch(Protocol):
    @property
    def stream(self) -> torch.cuda.Stream | None: ...


_B = TypeVar("_B", bound=_Branch)
_R = TypeVar("_R")


def _side_by_side(job: Callable[[_B], _R], branches: Sequence[_B]) -> list[_R]:
    """The job for every branch, in parallel streams while a CUDA graph is recorded."""
    if not branches or branches[0].stream is None or not torch.cuda.is_current_stream_capturing():
        return [job(branch) for branch in branches]
    here = torch.cuda.current_stream()
    results = []
    for branch in branches:
        assert branch.stream is not None
        branch.stream.wait_stream(here)
        with torch.cuda.stream(branch.stream):
            results.append(job(branch))
    for branch in branches:
        here.wait_stream(branch.stream)  # type: ignore[arg-type]
    return results


def linear_start(dim: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weight (L, D) and bias (L,) of `nn.Linear(dim, classes)` made after `torch.manual_seed(seed)`."""
    generator = torch.Generator().manual_seed(seed)
    weight = nn.init.kaiming_uniform_(torch.empty(classes, dim), a=math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(dim)
    return weight, nn.init.uniform_(torch.empty(classes), -bound, bound, generator=generator)


def row_order(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    """The order in which an epoch takes the training rows: a function of (seed, epoch)."""
    return np.random.default_rng((seed, epoch)).permutation(rows)


def _logits(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, D) features through (H, L, D) weights: (B, H, L)."""
    heads, classes, dim = weight.shape
    return torch.addmm(bias.reshape(-1), x, weight.reshape(-1, dim).T).view(-1, heads, classes)


def _copy_heads(kept: Tensor, value: Tensor, heads: Tensor) -> None:
    """Overwrite some heads of what is kept."""
    kept.copy_(torch.where(heads.view(-1, *[1] * (value.dim() - 1)), value, kept))


def _positives(truth: Truth) -> tuple[Tensor, Tensor | None]:
    """Where a label is present, (N, L) bool, and which entries count (None: all)."""
    if isinstance(truth, Labels):
        table = torch.from_numpy(truth.dense())
    else:
        table = torch.as_tensor(truth)
        if table.dim() != 2:
            raise InputError(f"the truth must be a table of (rows, classes), not {tuple(table.shape)}")
    known = table != 0
    return table > 0, known if bool((table < 0).any()) and not bool(known.all()) else None


def _device(name: str | torch.device) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"the device is {str(device)!r}, but there is no GPU here: use 'cpu'")
    return device


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over epochs of heads; none where the total is 0."""
    if not total:
        yield lambda heads: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("linear heads"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda heads: bar.update(task, advance=heads)
