"""Train the learners that are compared: linear learners and forests, or one registered method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from torch import Tensor

from spml.errors import InputError
from spml.methods import method as registered_method
from spml.models.feature_model import Learner, centred
from spml.training.learners.adam import fit_with_adam
from spml.training.learners.design import Design
from spml.training.learners.discriminant import fit_discriminant
from spml.training.learners.likelihood import HeldOut, choose_shares, fit_temperature
from spml.training.learners.linear import RowLoss, SoftmaxLoss, fit_linear, is_feasible, refit
from spml.training.learners.method_loss import MethodLoss, is_pure, prepared
from spml.training.learners.task import Task
from spml.training.learners.trees import fit_forest, forest_kinds, promising

_ANNOTATOR = "annotator-em"
_MOST_PRODUCTS = 2**29  # rows × classes × columns up to which two losses are used
LARGE = 2**26  # rows × classes from which a table is too large to be copied in double precision


@dataclass(frozen=True, eq=False)
class Trained:
    """A learner that was tried, with the scores (n, L) that it gives to held-out rows."""

    name: str
    final: Callable[[], Learner]  # returns the learner of all rows; trained only if it is used
    scores: Tensor
    held_out: HeldOut


Candidates = list[tuple[str, HeldOut]]
Family = list[Trained]
"""Learners that are averaged with equal shares."""


def train_families(task: Task, base: str) -> tuple[Candidates, list[Family]]:
    """Train linear learners and forests, or only those that `base` names."""
    if base not in ("auto", "linear", "trees"):
        raise InputError(f"base must be 'auto', 'linear' or 'trees', not {base!r}")
    candidates: Candidates = []
    families: list[Family] = []
    if base != "trees":
        candidates, linear = _linear_family(task)
        families.append(linear)
    if base != "linear":
        forests = _forests(task, families, forced=base == "trees")
        candidates += [(forest.name, forest.held_out) for forest in forests]
        families += [[forest] for forest in forests]
    return candidates, families


def _linear_family(task: Task) -> tuple[Candidates, Family]:
    """Linear learners with two losses that read the rest of a row differently.

    Softmax reads every row as having one label, and is best where that is nearly true. The annotator's likelihood, kept
    uncertain by an entropy term, allows several labels; it is left out if the data are large. For very many classes,
    discriminant analysis takes the place of both.
    """
    design, targets = task.design(), task.targets
    if not is_feasible(design, targets.shape[1]):
        return _discriminant(task, design)
    losses: dict[str, RowLoss] = {"softmax": SoftmaxLoss(targets.to(design.device))}
    if task.weight is None and targets.numel() * design.columns <= _MOST_PRODUCTS:
        method = prepared(registered_method(_ANNOTATOR), task.observed, task.k, task.seed)
        losses[_ANNOTATOR] = MethodLoss(method, task.observed, design.device)
    candidates: Candidates = []
    family: Family = []
    for name, loss in losses.items():
        path, best = _linear(task, design, loss, name)
        candidates += path
        family.append(best)
    return candidates, family


def _linear(task: Task, design: Design, loss: RowLoss, name: str) -> tuple[Candidates, Trained]:
    """The candidates of the path of strengths, and the best of them."""
    task.progress(f"linear learner, {name}")
    fits, best = fit_linear(design, loss, task.targets.to(design.device), task.seed)
    names = {fit.strength: f"linear ({name}), strength {fit.strength:.2g}" for fit in fits}
    candidates = [(names[fit.strength], fit.held_out) for fit in fits]
    trained = Trained(names[best.strength], partial(refit, design, loss, best), best.scores.cpu(), best.held_out)
    return candidates, trained


def _discriminant(task: Task, design: Design) -> tuple[Candidates, Family]:
    """The candidates of the path of penalties, and the best of them."""
    task.progress("linear discriminant analysis")
    fit = fit_discriminant(design, task.targets.to(design.device), task.seed)
    names = {strength: f"linear (discriminant analysis), strength {strength:.2g}" for strength, _ in fit.path}
    trained = Trained(names[fit.strength], partial(getattr, fit, "learner"), fit.scores.cpu(), fit.held_out)
    return [(names[strength], held_out) for strength, held_out in fit.path], [trained]


def _forests(task: Task, others: Sequence[Family], *, forced: bool) -> list[Trained]:
    """Forests of several kinds, unless a small one shows that they add nothing to the other learners."""
    kinds = forest_kinds(len(task.rows), task.features.dim, task.targets.shape[1])
    if forced and not kinds:
        raise InputError(
            f"base='trees' is not available for {len(task.rows)} labelled rows of {task.features.dim} features: trees "
            "need at least 20 rows, and too many would take too long. Use base='linear'"
        )
    if not kinds:
        return []
    matrix = task.features.block(task.rows)
    matrix = matrix.astype(np.float32) if task.features.is_sparse else matrix.cpu().numpy()
    if not forced:
        task.progress("do trees help?")
        tables = [average(family)[0] for family in others]
        if not promising(matrix, task.label, task.targets, tables, task.groups, task.seed):
            return []
    trained = []
    for kind in kinds:
        task.progress(kind.name)
        fit = fit_forest(
            matrix, task.label, task.targets.shape[1], kind, task.groups, sample_weight=task.weight, seed=task.seed
        )
        held_out = fit_temperature(fit.scores, task.targets)
        trained.append(Trained(kind.name, partial(getattr, fit, "forest"), fit.scores, held_out))
    return trained


def train_method(task: Task, name: str, settings: Mapping[str, Any]) -> tuple[Candidates, Trained, bool]:
    """Train a linear learner by a registered method.

    Returns
    -------
    candidates : list of (str, HeldOut)
    trained : Trained
    compares_classes : bool
        Whether the scores are normalised over the classes.
    """
    labels = task.labels.subset(task.rows)
    method = registered_method(name, **settings)
    compares_classes = method.activation == "softmax"
    method = prepared(method, labels, task.k, task.seed)
    design = task.design() if compares_classes or is_pure(method, labels) else None
    if task.weight is not None and (design is None or not compares_classes):
        raise InputError(f"sample_weight is supported by the methods 'auto' and 'softmax', not by {name!r}")
    if design is None or not is_feasible(design, labels.num_classes):
        if task.weight is not None:
            raise InputError(f"{name!r} does not support sample_weight for this many rows and classes: use 'auto'")
        task.progress(f"linear learner, {name}")
        learner, scores = fit_with_adam(
            task.features,
            task.rows,
            task.groups,
            labels,
            name,
            settings,
            k=task.k,
            seed=task.seed,
            device=task.device,
        )
        held_out = fit_temperature(scores, task.targets)
        return [(name, held_out)], Trained(name, lambda: learner, scores, held_out), compares_classes
    loss: RowLoss = SoftmaxLoss(task.targets.to(design.device))
    if not compares_classes:
        loss = MethodLoss(method, labels, design.device)
    candidates, best = _linear(task, design, loss, name)
    return candidates, best, compares_classes


def average(family: Family) -> tuple[Tensor, list[float]]:
    """The mean of the centred scores, each at its temperature, and the factors of the learners in it."""
    factors = [trained.held_out.temperature / len(family) for trained in family]
    if not any(factors):  # nothing can be learned from these features
        factors = [1 / len(family)] * len(family)
    tables = (centred(precise(trained.scores)).mul_(factor) for factor, trained in zip(factors, family, strict=True))
    return reduce(Tensor.add_, tables), factors


def combine_families(task: Task, families: Sequence[Family]) -> tuple[Tensor, list[tuple[Trained, float]]]:
    """The evidence of the combination, and its learners with their weights."""
    averages = [average(family) for family in families]
    shares = choose_shares([table for table, _ in averages], task.targets)
    evidence = reduce(Tensor.add_, (table.mul_(share) for share, (table, _) in zip(shares, averages, strict=True)))
    weights = [
        (trained, share * factor)
        for family, share, (_, factors) in zip(families, shares, averages, strict=True)
        for trained, factor in zip(family, factors, strict=True)
    ]
    return evidence, [(trained, weight) for trained, weight in weights if weight > 0]


def precise(table: Tensor) -> Tensor:
    """The table in double precision, unless it is so large that memory matters more."""
    return table.double() if table.numel() <= LARGE else table
