"""Heads that see the same batches, trained as one matrix."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from spml.losses.activation import probabilities
from spml.methods import Clock
from spml.training.experiment import Experiment
from spml.training.linear.adam import HeadwiseAdam, PartwiseAdam
from spml.training.linear.best import BestEpochs
from spml.training.linear.blocks import MethodBlock, TrainingContext
from spml.training.linear.evaluator import Evaluator, logits_of_heads
from spml.training.linear.heads import HeadEnsemble, HeadResult, linear_start
from spml.training.linear.rows import row_order

MANY_ENTRIES = 2**22  # logits per batch above which a step on a CPU is computed in parts
PART_ENTRIES = 2**20  # logits per part
PART_WEIGHTS = 2**23  # weights per part


@torch.enable_grad()
def gradient_of(block: MethodBlock, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
    """Return the gradient (B, L) of the objective by one head's logits."""
    value, leaf = block.objective(logits[None], labels, rows, clock)
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return gradient[0]


def gradient_by_rows(block: MethodBlock, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
    """`gradient_of` for an objective that is a mean over rows, some rows at a time. Overwrites the logits."""
    count, classes = logits.shape
    step = max(1, PART_ENTRIES // classes)
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        gradient = gradient_of(block, logits[part], labels[part], rows[part], clock)
        logits[part] = gradient.mul_((part.stop - part.start) / count)
    return logits


class HeadGroup:
    """Heads that see the same batches. Their weights form one matrix, sorted by learning rate."""

    def __init__(self, ensembles: Sequence[HeadEnsemble], context: TrainingContext) -> None:
        self.context, self.ensembles = context, ensembles
        first = ensembles[0].heads[0].train
        self.batch_size, self.seed = first.batch_size, first.seed
        self.heads, self.heads_of = _sorted_by_rate(ensembles)
        rates = [head.train.learning_rate for head in self.heads]
        by_method = sorted(range(len(rates)), key=lambda h: self.heads[h].method_key)  # stable: by rate within a method
        self.by_method = torch.tensor(by_method, device=context.device)
        self.by_rate = self.by_method.argsort()
        self.blocks = list(_method_blocks([self.heads[h] for h in by_method], context))
        self.tables = {block.table for block in self.blocks}
        self.best = BestEpochs(len(rates))
        self.stream = context.accelerator.new_stream()
        self.order = torch.empty(0, dtype=torch.int64)

        weight, bias = linear_start(context.features.dim, context.classes, self.seed)
        self.weight = weight.to(context.device).repeat(len(rates), 1, 1)  # (H, L, D)
        self.bias = bias.to(context.device).repeat(len(rates), 1)  # (H, L)
        self.method_parameters = [
            (parameter, [multiple * rate for rate in block.rates])
            for block in self.blocks
            for parameters, multiple in block.method.parameter_groups()
            for parameter in parameters
        ]
        self.by_parts = PartwiseAdam(self.weight, self.bias, rates) if self._needs_parts() else None
        if self.by_parts is None:
            self.weight.grad = self.weight_gradient = torch.zeros_like(self.weight)
            self.bias.grad = self.bias_gradient = torch.zeros_like(self.bias)
            self.adam = HeadwiseAdam([(self.weight, rates), (self.bias, rates), *self.method_parameters])

    # One step

    def begin_epoch(self, epoch: int) -> None:
        self.order = torch.from_numpy(row_order(self.seed, epoch, self.context.rows)).to(self.context.device)

    @torch.no_grad()
    def step(self, rows: Tensor, clock: Clock) -> object:
        """One batch for every head. Returns tensors that its streams share: keep them until all streams have joined."""
        x = self.context.features.batch(rows)
        if self.by_parts is not None:
            self._step_by_parts(self.by_parts, x, rows, clock)
            return None
        logits = logits_of_heads(x, self.weight, self.bias)
        by_method = logits.index_select(1, self.by_method).transpose(0, 1)
        labels = {table: table.batch(rows) for table in self.tables}

        def objective(block: MethodBlock) -> tuple[Tensor, Tensor]:
            return block.objective(by_method[block.heads], labels[block.table], rows, clock)

        values, leaves = zip(*self.context.accelerator.run_branches(objective, self.blocks), strict=True)
        with torch.enable_grad():
            torch.cat(values).sum().backward()  # type: ignore[no-untyped-call]
        gradients = [leaf.grad for leaf in leaves]
        gradient = torch.cat(gradients).transpose(0, 1).index_select(1, self.by_rate)  # (B, H, L)
        torch.mm(gradient.view(len(x), -1).T, x, out=self.weight_gradient.view(-1, x.shape[1]))
        torch.sum(gradient, 0, out=self.bias_gradient)
        for block in self.blocks:
            if block.has_penalty:
                self._add_penalty(block)
        self.adam.step()
        own_gradients = [parameter.grad for parameter, _ in self.method_parameters]
        for parameter, _ in self.method_parameters:
            parameter.grad = None
        moving = [block for block in self.blocks if block.has_after_step]
        self.context.accelerator.run_branches(lambda block: block.method.after_step(block.rate), moving)
        return x, logits, by_method, labels, values, leaves, gradient, own_gradients

    def _needs_parts(self) -> bool:
        """Return whether a batch has very many logits, and every method's objective splits into parts.

        Never on a GPU: there memory is not the bottleneck, and a step is recorded as one graph.
        """
        many = self.weight[..., 0].numel() * self.batch_size > MANY_ENTRIES
        splits = (block.method.needs.splits is not None and not block.has_penalty for block in self.blocks)
        return self.context.device.type == "cpu" and many and all(splits)

    def _step_by_parts(self, adam: PartwiseAdam, x: Tensor, rows: Tensor, clock: Clock) -> None:
        """The same step in parts: the logits of all classes and the gradient of all weights are never in memory."""
        _, classes, dim = self.weight.shape
        width = max(1, min(PART_ENTRIES // self.batch_size, PART_WEIGHTS // dim))  # also for the last batch of an epoch
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
                    adam.update(head, part, (gradient.T @ x, gradient.sum(0)))

    def _add_penalty(self, block: MethodBlock) -> None:
        """Add the gradient of the method's penalty on the parameters of its heads."""
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
    def end_epoch(self, epoch: int, evaluator: Evaluator | None, patience: int | None) -> None:
        """Pass predictions to the methods, evaluate every head and keep those that improved."""
        batches = math.ceil(self.context.rows / self.batch_size)
        clock = self.context.clock(epoch, batches, self.batch_size)
        for block in self.blocks:
            if block.method.needs.epoch_predictions:
                block.method.end_epoch(self._probabilities(block), clock)
        if evaluator is None:
            self.best.take_last(epoch)
            return
        improved = self.best.update(epoch, self._scores(evaluator), patience)
        self.best.keep(improved, improved[self.by_method.tolist()], self.weight, self.bias, self.blocks)

    def _scores(self, evaluator: Evaluator) -> list[float]:
        """One score per head; the heads of an ensemble have the score of the merged head."""
        alone = [heads.start for heads in self.heads_of if heads.stop - heads.start == 1]
        if len(alone) == len(self.heads):
            return evaluator.scores(self.weight, self.bias, [head.activation for head in self.heads])
        activations = [self.heads[h].activation for h in alone]
        scores_alone = evaluator.scores(self.weight[alone], self.bias[alone], activations) if alone else []
        scores = dict(zip(alone, scores_alone, strict=True))
        for ensemble, heads in zip(self.ensembles, self.heads_of, strict=True):
            if heads.start not in scores:
                weight, bias = ensemble.merged(self.weight[heads], self.bias[heads], self.context.features)
                (score,) = evaluator.scores(weight[None], bias[None], [ensemble.experiment.activation])
                scores.update(dict.fromkeys(range(heads.start, heads.stop), score))
        return [scores[h] for h in range(len(self.heads))]

    def _probabilities(self, block: MethodBlock) -> Tensor:
        """(h, N, L) predictions of a method's heads for all training rows."""
        heads = self.by_method[block.heads]
        weight, bias = self.weight[heads], self.bias[heads]
        out = torch.empty(len(heads), self.context.rows, self.context.classes, device=self.context.device)
        start = 0
        for x in self.context.features.blocks():
            logits = logits_of_heads(x, weight, bias).transpose(0, 1)
            out[:, start : start + len(x)] = probabilities(logits, block.method.activation)
            start += len(x)
        return out

    @property
    def finished(self) -> bool:
        """Whether every head has stopped."""
        return all(epoch is not None for epoch in self.best.stopped)

    def results(self) -> list[HeadResult]:
        """Return the result of every ensemble."""
        weight, bias = self.weight, self.bias
        states = [block.method.state_dict() for block in self.blocks]
        if self.best.kept is not None:
            weight, bias, states = self.best.kept
        state_of_head: dict[int, dict[str, Tensor]] = {}
        by_method = self.by_method.tolist()
        for block, state in zip(self.blocks, states, strict=True):
            for index, h in enumerate(by_method[block.heads]):
                state_of_head[h] = {name: value[index].detach().cpu().clone() for name, value in state.items()}
        results = []
        for ensemble, heads in zip(self.ensembles, self.heads_of, strict=True):
            merged_weight, merged_bias = ensemble.merged(weight[heads], bias[heads], self.context.features)
            first = heads.start
            results.append(
                HeadResult(
                    experiment=ensemble.experiment,
                    validation=self.best.scores[first],
                    best_epoch=self.best.epochs[first],
                    stopped_epoch=self.best.stopped[first] or self.context.epochs,
                    weight=merged_weight.T.cpu().clone(),
                    bias=merged_bias.cpu().clone(),
                    method_state=ensemble.state([state_of_head[h] for h in range(heads.start, heads.stop)]),
                    labels=self.context.tables.labels,
                )
            )
        return results


def _sorted_by_rate(ensembles: Sequence[HeadEnsemble]) -> tuple[list[Experiment], list[slice]]:
    """All heads, so that those with the same learning rate are neighbours; and where the heads of each ensemble are."""
    heads = [head for ensemble in ensembles for head in ensemble.heads]
    by_rate = sorted(range(len(heads)), key=lambda i: heads[i].train.learning_rate)
    position_of = np.argsort(by_rate)
    sizes = [len(ensemble.heads) for ensemble in ensembles]
    firsts = position_of[np.cumsum([0, *sizes[:-1]])].tolist()
    return [heads[i] for i in by_rate], [slice(h, h + size) for h, size in zip(firsts, sizes, strict=True)]


def _method_blocks(heads: Sequence[Experiment], context: TrainingContext) -> Iterator[MethodBlock]:
    """Yield a block for every run of heads with the same method and settings."""
    start = 0
    for _, run in itertools.groupby(heads, key=lambda head: head.method_key):
        members = list(run)
        yield MethodBlock(members, slice(start, start + len(members)), context)
        start += len(members)
