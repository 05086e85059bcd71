"""Bagged decision trees on the observed labels. Out-of-bag votes are held-out predictions at no extra cost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.models.feature_model import Forest

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ForestKind:
    """How the trees of a forest are grown."""

    name: str
    trees: int
    random_splits: bool = False
    min_rows: int = 1


KINDS = (
    ForestKind("random forest", 150),
    ForestKind("extra trees", 150, random_splits=True),
    ForestKind("random forest, 3 rows per leaf", 150, min_rows=3),
)


@dataclass(frozen=True, eq=False)
class ForestFit:
    """A forest, and the out-of-bag scores (n, L) of its training rows."""

    forest: Forest
    scores: Tensor


def fit_forest(
    features: Any, label: Int64, classes: int, kind: ForestKind, *, sample_weight: Float64 | None = None, seed: int = 0
) -> ForestFit:
    """Grow a forest.

    Parameters
    ----------
    features : float32 array or scipy CSR matrix of shape (n, D)
    label : array of shape (n,)
        Observed class of every row.
    classes : int
    kind : ForestKind
    sample_weight : array of shape (n,), optional
    seed : int
    """
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier  # slow to import

    make = ExtraTreesClassifier if kind.random_splits else RandomForestClassifier
    grown = make(
        kind.trees, bootstrap=True, min_samples_leaf=kind.min_rows, random_state=seed, n_jobs=available_cores()
    ).fit(features, label, sample_weight=sample_weight)
    forest = forest_from_sklearn(grown, classes)
    return ForestFit(forest, _out_of_bag(grown, forest, features))


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forest_from_sklearn(grown: Any, classes: int) -> Forest:
    """Copy the trees of a fitted scikit-learn forest, whose classes are column numbers, into plain arrays."""
    trees = [estimator.tree_ for estimator in grown.estimators_]
    sizes = [tree.node_count for tree in trees]
    roots = np.cumsum([0, *sizes[:-1]])
    children = np.concatenate(
        [
            np.column_stack([tree.children_left, tree.children_right]) + root
            for tree, root in zip(trees, roots, strict=True)
        ]
    )
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


def _out_of_bag(grown: Any, forest: Forest, features: Any) -> Tensor:
    """Log-votes of every row, (n, L), from the trees that did not see it."""
    rows, classes = features.shape[0], forest.classes
    votes, count = np.zeros((rows, classes)), np.zeros((rows, 1))
    for estimator, sampled in zip(grown.estimators_, grown.estimators_samples_, strict=True):
        outside = np.ones(rows, bool)
        outside[sampled] = False
        outside = np.flatnonzero(outside)
        votes[np.ix_(outside, grown.classes_)] += estimator.predict_proba(features[outside])
        count[outside] += 1
    return torch.from_numpy(np.log((votes + 0.5) / (count + 0.5 * classes)))
