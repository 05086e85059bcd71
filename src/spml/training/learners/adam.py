"""Methods with state, random parts or a schedule: cross-fitted linear heads trained with Adam on standardised rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.models.feature_model import LinearLearner
from spml.training.experiment import Experiment
from spml.training.learners.design import Scaling
from spml.training.linear import FeatureRows, HeadResult, train_heads

_FOLDS = 3
_LEARNING_RATE, _BATCH_SIZE, _STEPS = 1e-3, 64, 2000
_FEWEST_EPOCHS, _MOST_EPOCHS = 10, 100
_RESIDENT = 2**31  # bytes of standardised features that are kept in memory


def fit_with_adam(
    features: FeatureStore,
    rows: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
    labels: Labels,
    method: str,
    settings: Mapping[str, Any],
    *,
    k: float | None,
    seed: int,
    device: torch.device,
) -> tuple[LinearLearner, Tensor, list[LinearLearner], npt.NDArray[np.int64]]:
    """Train a head on all rows, and one head without each fold.

    Features are standardised if a standardised copy fits into memory; otherwise they are used as they are.

    Returns
    -------
    learner : LinearLearner
        The head trained on all rows.
    scores : Tensor of shape (n, L)
        Scores of every row by the head that was trained without its fold.
    fold_learners : list of LinearLearner
        These heads.
    fold : array of shape (n,)
        The fold of every row.
    """
    scaling = Scaling.measure(features, rows)
    store, store_rows = features, rows
    if 4 * len(rows) * features.dim <= _RESIDENT:
        store, store_rows = FeatureStore(scaling.apply(features.batch(rows))), np.arange(len(rows))
    else:
        scaling = Scaling(torch.zeros(features.dim).double(), torch.ones(features.dim).double())

    def train_on(part: npt.NDArray[np.int64]) -> HeadResult:
        epochs = min(max(math.ceil(_STEPS * _BATCH_SIZE / len(part)), _FEWEST_EPOCHS), _MOST_EPOCHS)
        experiment = Experiment.linear(method, settings, _LEARNING_RATE, _BATCH_SIZE, seed, epochs=epochs, k=k)
        part_features = FeatureRows(store, store_rows[part])
        return train_heads(part_features, labels.subset(part), [experiment], device=device, progress=False)[0]

    def learner_of(head: HeadResult) -> LinearLearner:
        return LinearLearner(head.weight.T.cpu().contiguous(), head.bias.cpu(), scaling.mean, scaling.deviation)

    _, group = np.unique(groups, return_inverse=True)
    number = int(group.max()) + 1
    fold = (np.random.default_rng([seed, 0xF01D]).permutation(number) % min(_FOLDS, number))[group]
    scores = torch.zeros(len(rows), labels.num_classes)
    fold_learners: list[LinearLearner] = []
    for f in range(int(fold.max()) + 1):
        inside, outside = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        if len(inside):
            head = train_on(inside)
            fold_learners.append(learner_of(head))
            scores[torch.from_numpy(outside)] = head.score(FeatureRows(store, store_rows[outside])).cpu()
        else:  # all rows are equal
            fold_learners.append(LinearLearner.empty(features.dim, labels.num_classes))
    return learner_of(train_on(np.arange(len(rows)))), scores, fold_learners, fold
