"""Bagged decision trees on the observed labels. Out-of-bag votes are held-out predictions at no extra cost."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.models.feature_model import Forest, centred, log_votes
from spml.training.learners.likelihood import gain_of

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ForestKind:
    """How the trees of a forest are grown."""

    name: str
    trees: int
    random_splits: bool = False
    min_rows: int = 1


_TREES, _FEWEST_TREES, _FEWEST_ROWS = 300, 50, 20
# Comparisons for all trees of a forest, up to a minute on one core.
_BEST_SPLITS, _RANDOM_SPLITS = 6e8, 12e8
_CHEAP = 1.5e8  # forests that grow in seconds are grown without asking a pilot
_PILOT_TREES, _PILOT_ROWS = 100, 3000


def forest_kinds(rows: int, dim: int, classes: int) -> tuple[ForestKind, ...]:
    """Return the forests that grow fast enough for these sizes, with fewer trees if need be."""
    if rows < _FEWEST_ROWS:  # hardly any row is out of bag in enough trees
        return ()
    per_tree = _comparisons(rows, dim)
    best = min(_TREES, int(_BEST_SPLITS / (per_tree * (1 + classes / 50))))
    random = min(_TREES, int(_RANDOM_SPLITS / (per_tree * (1 + classes / 500))))
    kinds = (
        ForestKind("random forest", best),
        ForestKind("random forest, 3 rows per leaf", best, min_rows=3),
        ForestKind("extra trees", random, random_splits=True),
    )
    return tuple(kind for kind in kinds if kind.trees >= _FEWEST_TREES)


def forests_take_long(rows: int, dim: int, classes: int) -> bool:
    """Return whether forests are grown, and growing them takes more than seconds."""
    return bool(forest_kinds(rows, dim, classes)) and _comparisons(rows, dim) * _TREES >= _CHEAP


def _comparisons(rows: int, dim: int) -> float:
    """Approximate number of comparisons for growing one tree."""
    return rows * math.log2(rows + 1) * math.sqrt(dim)


def forests_may_help(
    matrix: Any, label: Int64, targets: Tensor, others: Sequence[Tensor], groups: Int64, seed: int
) -> bool:
    """Return whether forests are worth growing.

    They are if they are cheap, or if a few trees, grown on some of the rows, improve the likelihood by more than its
    standard error.
    """
    if not forests_take_long(len(label), matrix.shape[1], targets.shape[1]):
        return True
    rows = np.random.default_rng([seed, 0x7EE5]).permutation(len(label))[:_PILOT_ROWS]
    kind = ForestKind("pilot", _PILOT_TREES, random_splits=True)
    fit = fit_forest(matrix[rows], label[rows], targets.shape[1], kind, groups[rows], seed=seed)
    part = targets[torch.from_numpy(rows)]
    tables = [centred(scores[torch.from_numpy(rows)].double()) for scores in others]
    gain, error = gain_of(tables, centred(fit.scores), part)
    return bool(gain > error)


@dataclass(frozen=True, eq=False)
class ForestFit:
    """A forest, and the out-of-bag scores (n, L) of its training rows."""

    forest: Forest
    scores: Tensor


def fit_forest(
    features: Any,
    label: Int64,
    classes: int,
    kind: ForestKind,
    groups: Int64,
    *,
    sample_weight: Float64 | None = None,
    seed: int = 0,
) -> ForestFit:
    """Grow a forest.

    Parameters
    ----------
    features : float32 array or scipy CSR matrix of shape (n, D)
    label : array of shape (n,)
        Observed class of every row.
    classes : int
    kind : ForestKind
    groups : array of shape (n,)
        A row is out of the bag of a tree that saw no row of its group.
    sample_weight : array of shape (n,), optional
    seed : int

    Returns
    -------
    ForestFit
    """
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier  # slow to import

    make = ExtraTreesClassifier if kind.random_splits else RandomForestClassifier
    grown = make(
        kind.trees, bootstrap=True, min_samples_leaf=kind.min_rows, random_state=seed, n_jobs=available_cores()
    ).fit(features, label, sample_weight=sample_weight)
    forest = forest_from_sklearn(grown, classes)
    return ForestFit(forest, _out_of_bag(grown, forest, features, groups))


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forest_from_sklearn(grown: Any, classes: int) -> Forest:
    """Copy the trees of a fitted scikit-learn forest, whose classes are column numbers, into plain arrays."""
    trees = [estimator.tree_ for estimator in grown.estimators_]
    sizes = [tree.node_count for tree in trees]
    roots = np.cumsum([0, *sizes[:-1]])
    pairs = [np.column_stack([tree.children_left, tree.children_right]) for tree in trees]
    children = np.concatenate([pair + root for pair, root in zip(pairs, roots, strict=True)])
    is_leaf = np.concatenate([tree.children_left < 0 for tree in trees])
    nodes = np.arange(len(is_leaf))
    children = np.where(is_leaf[:, None], nodes[:, None], children)
    leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, 0)
    shares = np.concatenate([tree.value[tree.children_left < 0, 0, :] for tree in trees])
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-30)
    width = max(1, int((shares > 0).sum(axis=1).max()))
    order = np.argsort(-shares, axis=1, kind="stable")[:, :width]
    arrays = {
        "roots": roots,
        "branches": children,
        "feature": np.where(is_leaf, 0, np.concatenate([tree.feature for tree in trees])),
        "leaf": leaf,
        "leaf_class": np.asarray(grown.classes_)[order],
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)).int() for name, value in arrays.items()}
    # sklearn compares float32 features with float64 thresholds: round down, so that x <= threshold stays the same.
    exact = np.concatenate([tree.threshold for tree in trees])
    threshold = exact.astype(np.float32)
    threshold = np.where(threshold > exact, np.nextafter(threshold, np.float32(-np.inf)), threshold)
    tensors["threshold"] = torch.from_numpy(threshold)
    tensors["leaf_share"] = torch.from_numpy(np.take_along_axis(shares, order, axis=1)).float()
    return Forest(tensors, max(tree.max_depth for tree in trees), classes)


def _out_of_bag(grown: Any, forest: Forest, features: Any, groups: Int64) -> Tensor:
    """Log-votes of every row, (n, L), from the trees that saw neither the row nor a copy of it."""
    rows, classes = features.shape[0], forest.classes
    votes, count = np.zeros((rows, classes)), np.zeros((rows, 1))
    for estimator, sampled in zip(grown.estimators_, grown.estimators_samples_, strict=True):
        outside = np.flatnonzero(~np.isin(groups, groups[sampled]))
        if not len(outside):
            continue
        votes[np.ix_(outside, grown.classes_)] += estimator.predict_proba(features[outside])
        count[outside] += 1
    return log_votes(torch.from_numpy(votes / np.maximum(count, 1)))
