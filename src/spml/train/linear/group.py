"""The heads that see the same batches, trained as one matrix."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spml.errors import InputError
from spml.methods import Clock, Method, Problem, method
from spml.train.accelerator import Accelerator
from spml.train.linear.adam import HeadwiseAdam, PartwiseAdam
from spml.train.linear.evaluator import Judge, logits_of_heads
from spml.train.linear.heads import HeadResult, HeadSpec, Team, linear_start
from spml.train.linear.rows import Rows, Tables, row_order

MANY_ENTRIES = 2**22  # logits of a batch beyond which a step on a CPU goes by parts
PART_ENTRIES = 2**20  # logits of a part
PART_WEIGHTS = 2**23  # and its weights


@dataclass(frozen=True)
class Task:
    """What all heads share."""

    features: Rows
    tables: Tables
    epochs: int
    k: float | None
    device: torch.device
    accelerator: Accelerator

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
        if type(made).objective is Method.objective:
            raise InputError(f"method {spec.method!r} defines no objective, only a loss of images: it needs images")
        made.prepare(Problem(self.tables.of(made).labels, k=self.k, seeds=seeds, features=True))
        for name, state in made.state_dict().items():
            if state.shape[:1] != (len(seeds),):
                raise InputError(f"method {spec.method!r} cannot train many heads: its {name!r} is not one a head")
        return made.to(self.device)

    def clock(self, epoch: int, batch: int, batch_size: int) -> Clock:
        batches = math.ceil(self.rows / batch_size)
        return Clock(epoch, self.epochs, (epoch - 1) * batches + batch, self.epochs * batches)


class Block:
    """The heads of one method with one set of settings: one `Method`, its memory with a leading dimension of heads."""

    def __init__(self, specs: Sequence[HeadSpec], heads: slice, task: Task) -> None:
        self.heads = heads  # among the group's heads, in order of method
        self.method = task.method(specs[0], tuple(spec.seed for spec in specs))
        self.table = task.tables.of(self.method)
        self.rates = [spec.learning_rate for spec in specs]
        self.rate = torch.tensor(self.rates, device=task.device)[:, None, None]
        self.has_penalty = type(self.method).penalty is not Method.penalty
        self.has_after_step = type(self.method).after_step is not Method.after_step
        self.stream = task.accelerator.new_stream()

    @torch.enable_grad()
    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        """The heads' values (h,) and the leaf (h, B, L) that takes the gradient of their logits."""
        leaf = logits.detach().requires_grad_()
        values = self.method.objective(leaf, labels, rows, clock)
        if values.shape != logits.shape[:1]:
            raise InputError(
                f"method {self.method.name!r} gives numbers of shape {tuple(values.shape)} for {len(logits)} heads: "
                "its objective must take means and sums over the last two dimensions, so that each head has its own"
            )
        return values, leaf


@torch.enable_grad()
def gradient_of(block: Block, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
    """The gradient (B, L) of the objective by one head's logits."""
    value, leaf = block.objective(logits[None], labels, rows, clock)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return gradient[0]


def gradient_by_rows(block: Block, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
    """The same, some rows at a time, of an objective that is the mean of its rows'. Written over the logits."""
    count, classes = logits.shape
    step = max(1, PART_ENTRIES // classes)
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        gradient = gradient_of(block, logits[some], labels[some], rows[some], clock)
        logits[some] = gradient.mul_((some.stop - some.start) / count)
    return logits


class Group:
    """The heads that see the same batches: one batch size, one seed. Its weights are one matrix, by learning rate."""

    def __init__(self, teams: Sequence[Team], task: Task) -> None:
        self.task, self.teams = task, teams
        specs = [head for team in teams for head in team.heads]
        self.batch_size, self.seed = specs[0].batch_size, specs[0].seed
        by_rate = sorted(range(len(specs)), key=lambda i: specs[i].learning_rate)
        self.specs, places = [specs[i] for i in by_rate], np.argsort(by_rate)
        firsts = places[np.cumsum([0, *(len(team.heads) for team in teams[:-1])])].tolist()
        # The heads of every team among all of the group; of one rate, they stay together.
        self.heads_of = [slice(h, h + len(team.heads)) for h, team in zip(firsts, teams, strict=True)]
        heads, classes, dim = len(specs), task.classes, task.features.dim

        by_method = sorted(range(heads), key=lambda h: self.specs[h].method_key)  # stable: by rate within a method
        self.by_method = torch.tensor(by_method, device=task.device)
        self.by_rate = self.by_method.argsort()
        self.blocks: list[Block] = []
        start = 0
        for _, run in itertools.groupby(by_method, key=lambda h: self.specs[h].method_key):
            members = [self.specs[h] for h in run]
            self.blocks.append(Block(members, slice(start, start + len(members)), task))
            start += len(members)

        self.tables = {block.table for block in self.blocks}
        weight, bias = linear_start(dim, classes, self.seed)
        self.weight = weight.to(task.device).repeat(heads, 1, 1)  # (H, L, D)
        self.bias = bias.to(task.device).repeat(heads, 1)  # (H, L)
        rates = [spec.learning_rate for spec in self.specs]
        self.by_parts = PartwiseAdam(self.weight, self.bias, rates) if self._goes_by_parts() else None
        if self.by_parts is None:
            self.weight.grad = self.weight_gradient = torch.zeros_like(self.weight)
            self.bias.grad = self.bias_gradient = torch.zeros_like(self.bias)
        self.own = [
            (p, [multiple * rate for rate in block.rates])
            for block in self.blocks
            for parameters, multiple in block.method.parameter_groups()
            for p in parameters
        ]
        self.adam = HeadwiseAdam([(self.weight, rates), (self.bias, rates), *self.own] if not self.by_parts else [])
        self.stream = task.accelerator.new_stream()
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

        def objective(block: Block) -> tuple[Tensor, Tensor]:
            return block.objective(by_method[block.heads], labels[block.table], rows, clock)

        values, leaves = zip(*self.task.accelerator.run_branches(objective, self.blocks), strict=True)
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
        self.task.accelerator.run_branches(lambda block: block.method.after_step(block.rate), moving)
        return x, logits, by_method, labels, values, leaves, gradient, own_gradients

    def _goes_by_parts(self) -> bool:
        """Whether a batch has very many logits, and every method's objective falls apart into smaller ones.

        Not on a GPU: there memory is not what many classes lack first, and a step is recorded as one graph.
        """
        many = self.weight[..., 0].numel() * self.batch_size > MANY_ENTRIES
        fitting = (block.method.needs.splits is not None and not block.has_penalty for block in self.blocks)
        return self.task.device.type == "cpu" and many and all(fitting)

    def _step_by_parts(self, adam: PartwiseAdam, x: Tensor, rows: Tensor, clock: Clock) -> None:
        """The same step with few logits at a time: neither those of all classes and their intermediate values nor
        the gradient of all weights are ever held together."""
        _, classes, dim = self.weight.shape
        width = max(1, min(PART_ENTRIES // self.batch_size, PART_WEIGHTS // dim))  # also in an epoch's last batch
        parts = [slice(start, min(start + width, classes)) for start in range(0, classes, width)]
        labels = {table: table.batch(rows) for table in self.tables}
        by_method = self.by_method.tolist()
        for block in self.blocks:
            known = labels[block.table]
            for head in by_method[block.heads]:
                weight, bias = self.weight[head], self.bias[head]
                whole: Tensor | None = None
                if block.method.needs.splits == "rows":
                    whole = gradient_by_rows(block, torch.addmm(bias, x, weight.T), known, rows, clock)
                for part in parts:
                    if whole is None:
                        logits = torch.addmm(bias[part], x, weight[part].T)
                        gradient = gradient_of(block, logits, known[:, part], rows, clock)
                        gradient.mul_(logits.shape[1] / classes)
                    else:
                        gradient = whole[:, part]
                    adam.move(head, part, (gradient.T @ x, gradient.sum(0)))

    def _add_penalty(self, block: Block) -> None:
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
    def end_epoch(self, epoch: int, judge: Judge | None, patience: int | None) -> None:
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
        for h, score in enumerate(self._scores(judge)):
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

    def _scores(self, judge: Judge) -> list[float]:
        """One score a head; heads that become one have that one's."""
        alone = [heads.start for heads in self.heads_of if heads.stop - heads.start == 1]
        if len(alone) == len(self.specs):
            return judge.scores(self.weight, self.bias)
        scores = dict(zip(alone, judge.scores(self.weight[alone], self.bias[alone]), strict=True)) if alone else {}
        for team, heads in zip(self.teams, self.heads_of, strict=True):
            if heads.start not in scores:
                weight, bias = team.merged(self.weight[heads], self.bias[heads], self.task.features)
                (score,) = judge.scores(weight[None], bias[None])
                scores.update(dict.fromkeys(range(heads.start, heads.stop), score))
        return [scores[h] for h in range(len(self.specs))]

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
            torch.sigmoid(logits_of_heads(x, weight, bias).transpose(0, 1), out=part)
            start += len(x)
        return out

    @property
    def finished(self) -> bool:
        return all(epoch is not None for epoch in self.stopped)

    def results(self) -> list[HeadResult]:
        """What became of every team."""
        states = [block.method.state_dict() for block in self.blocks]
        weight, bias, states = (self.weight, self.bias, states) if self.kept is None else self.kept
        of_head: dict[int, dict[str, Tensor]] = {}
        by_method = self.by_method.tolist()
        for block, state in zip(self.blocks, states, strict=True):
            for place, h in enumerate(by_method[block.heads]):
                of_head[h] = {name: value[place].detach().cpu().clone() for name, value in state.items()}
        made = []
        for team, heads in zip(self.teams, self.heads_of, strict=True):
            one, shift = team.merged(weight[heads], bias[heads], self.task.features)
            first = heads.start
            made.append(
                HeadResult(
                    spec=team.spec,
                    validation=self.scores[first],
                    best_epoch=self.best[first][1],
                    stopped_epoch=self.stopped[first] or self.task.epochs,
                    weight=one.T.cpu().clone(),
                    bias=shift.cpu().clone(),
                    method_state=team.state([of_head[h] for h in range(heads.start, heads.stop)]),
                    labels=self.task.tables.labels,
                )
            )
        return made


def _copy_heads(kept: Tensor, value: Tensor, heads: Tensor) -> None:
    """Overwrite some heads of what is kept."""
    kept.copy_(torch.where(heads.view(-1, *[1] * (value.dim() - 1)), value, kept))
