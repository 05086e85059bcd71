"""Train the learners that are compared: linear learners and forests, or one registered method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.errors import InputError
from spml.methods import method as registered_method
from spml.models.feature_model import Learner, LinearLearner, centred
from spml.training.learners.adam import fit_with_adam
from spml.training.learners.design import Design
from spml.training.learners.discriminant import fit_discriminant
from spml.training.learners.likelihood import HeldOutLikelihood, choose_shares, held_out_likelihood, with_prior
from spml.training.learners.linear import RowLoss, SoftmaxLoss, fit_linear, is_feasible, learner_of, refit
from spml.training.learners.method_loss import MethodLoss, is_pure, prepared
from spml.training.learners.task import LARGE, Task
from spml.training.learners.trees import ForestKind, fit_forest, forest_kinds, forests_may_help

_ANNOTATOR = "annotator-em"
_MOST_PRODUCTS = 2**29  # rows × classes × columns up to which two losses are used
_FOREST_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class FoldLearners(NamedTuple):
    """Linear learners that were trained without one fold each, and the fold of every row."""

    learners: list[LinearLearner]
    fold: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainedLearner:
    """A learner that was tried, with the scores (n, L) that it gives to held-out rows."""

    name: str
    final: Callable[[], Learner]  # returns the learner of all rows; trained only if it is used
    scores: Tensor
    likelihood: HeldOutLikelihood
    folds: Callable[[], FoldLearners] | None = None  # what `scores` are computed with; of linear learners only


Likelihoods = list[tuple[str, HeldOutLikelihood]]
"""Of every learner that was tried, by name."""
Family = list[TrainedLearner]
"""Learners that are averaged with equal shares."""


def train_families(task: Task, base: str) -> tuple[Likelihoods, Family, list[TrainedLearner]]:
    """Train linear learners and forests, or only those that `base` names."""
    if base not in ("auto", "linear", "trees"):
        raise InputError(f"base must be 'auto', 'linear' or 'trees', not {base!r}")
    likelihoods: Likelihoods = []
    linear: Family = []
    forests: list[TrainedLearner] = []
    if base != "trees":
        likelihoods, linear = _linear_family(task)
    if base != "linear":
        forests = _forests(task, linear)
        likelihoods += [(forest.name, forest.likelihood) for forest in forests]
    return likelihoods, linear, forests


def _linear_family(task: Task) -> tuple[Likelihoods, Family]:
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
    likelihoods: Likelihoods = []
    family: Family = []
    for name, loss in losses.items():
        path, best = _linear(task, design, loss, name)
        likelihoods += path
        family.append(best)
    return likelihoods, family


def _linear(task: Task, design: Design, loss: RowLoss, name: str) -> tuple[Likelihoods, TrainedLearner]:
    """The likelihoods along the path of strengths, and the best learner."""
    task.progress(f"linear learner, {name}")
    fits, best = fit_linear(design, loss, task.targets.to(design.device), task.seed)
    names = {fit.strength: f"linear ({name}), strength {fit.strength:.2g}" for fit in fits}
    likelihoods = [(names[fit.strength], fit.likelihood) for fit in fits]

    def folds() -> FoldLearners:
        return FoldLearners([learner_of(design, weights) for weights in best.weights], design.fold)

    final = partial(refit, design, loss, best)
    return likelihoods, TrainedLearner(names[best.strength], final, best.scores.cpu(), best.likelihood, folds)


def _discriminant(task: Task, design: Design) -> tuple[Likelihoods, Family]:
    """The likelihoods along the path of penalties, and the best learner."""
    task.progress("linear discriminant analysis")
    fit = fit_discriminant(design, task.targets.to(design.device), task.seed)
    names = {strength: f"linear (discriminant analysis), strength {strength:.2g}" for strength, _ in fit.path}
    trained = TrainedLearner(names[fit.strength], lambda: fit.learner, fit.scores.cpu(), fit.likelihood)
    return [(names[strength], likelihood) for strength, likelihood in fit.path], [trained]


def _forests(task: Task, linear: Family) -> list[TrainedLearner]:
    """Forests of several kinds, unless a small one shows that they add nothing to the linear learners."""
    kinds = forest_kinds(len(task.rows), task.features.dim, task.targets.shape[1])
    if not linear and not kinds:
        raise InputError(
            f"base='trees' is not available for {len(task.rows)} labelled rows of {task.features.dim} features: trees "
            "need at least 20 rows, and too many would take too long. Use base='linear'"
        )
    if not kinds:
        return []
    matrix = task.features.block(task.rows)
    matrix = matrix.astype(np.float32) if task.features.is_sparse else matrix.cpu().numpy()
    if linear:
        task.progress("do trees help?")
        tables = [average_family(linear)[0]]
        if not forests_may_help(matrix, task.first_class, task.targets, tables, task.groups, task.seed):
            return []
    return [_forest(task, matrix, kind) for kind in kinds]


def _forest(task: Task, matrix: Any, kind: ForestKind) -> TrainedLearner:
    """A forest on the rows of a matrix."""
    task.progress(kind.name)
    fit = fit_forest(
        matrix, task.first_class, task.targets.shape[1], kind, task.groups, sample_weight=task.weight, seed=task.seed
    )
    likelihood = held_out_likelihood(fit.scores, task.targets)
    return TrainedLearner(kind.name, lambda: fit.forest, fit.scores, likelihood)


def train_method(task: Task, name: str, settings: Mapping[str, Any]) -> tuple[Likelihoods, TrainedLearner, bool]:
    """Train a linear learner by a registered method.

    Returns
    -------
    likelihoods : list of (str, HeldOutLikelihood)
    trained : TrainedLearner
    compares_classes : bool
        Whether the scores are normalised over the classes.
    """
    labels = task.known.subset(task.rows)
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
        learner, scores, fold_learners, fold = fit_with_adam(
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
        likelihood = held_out_likelihood(scores, task.targets)
        folds = FoldLearners(fold_learners, fold)
        trained = TrainedLearner(name, lambda: learner, scores, likelihood, lambda: folds)
        return [(name, likelihood)], trained, compares_classes
    loss: RowLoss = SoftmaxLoss(task.targets.to(design.device))
    if not compares_classes:
        loss = MethodLoss(method, labels, design.device)
    likelihoods, best = _linear(task, design, loss, name)
    return likelihoods, best, compares_classes


def average_family(family: Family) -> tuple[Tensor, list[float]]:
    """The mean of the centred scores, each at its temperature, and the factors of the learners in it."""
    factors = [trained.likelihood.temperature / len(family) for trained in family]
    if not any(factors):  # nothing can be learned from these features
        factors = [1 / len(family)] * len(family)
    tables = (
        centred(double_unless_large(trained.scores)).mul_(factor)
        for factor, trained in zip(factors, family, strict=True)
    )
    return reduce(Tensor.add_, tables), factors


def combine_families(
    task: Task, linear: Family, forests: Sequence[TrainedLearner]
) -> tuple[Tensor, list[tuple[TrainedLearner, float]]]:
    """The evidence of the combination, and its learners with their weights."""
    families = [*([linear] if linear else []), *([forest] for forest in forests)]
    averages = [average_family(family) for family in families]
    tables = [table for table, _ in averages]
    shares = choose_shares(tables, task.targets)
    if linear and sum(shares[1:]) > 0:
        shares = _share_of_forests(task, tables, shares)
    evidence = reduce(Tensor.add_, (table.mul_(share) for share, (table, _) in zip(shares, averages, strict=True)))
    weights = [
        (trained, share * factor)
        for family, share, (_, factors) in zip(families, shares, averages, strict=True)
        for trained, factor in zip(family, factors, strict=True)
    ]
    return evidence, [(trained, weight) for trained, weight in weights if weight > 0]


def _share_of_forests(task: Task, tables: Sequence[Tensor], shares: Sequence[float]) -> list[float]:
    """The shares, but with the total share of the forests that the annotator's likelihood prefers.

    The likelihood that `choose_shares` maximises reads every row as having one label, and prefers too many trees where
    rows have many.
    """
    total = sum(shares[1:])
    forests = reduce(Tensor.add, (share / total * table for share, table in zip(shares[1:], tables[1:], strict=True)))

    def log_likelihood(share: float) -> float:
        return task.calibrated(torch.lerp(tables[0], forests, share).numpy()).log_likelihood

    best = max(_FOREST_SHARES, key=log_likelihood)
    return with_prior(torch.tensor([1 - best, *(best * share / total for share in shares[1:])]), len(task.rows))


def double_unless_large(table: Tensor) -> Tensor:
    """The table in double precision, unless it is so large that memory matters more."""
    return table.double() if table.numel() <= LARGE else table
