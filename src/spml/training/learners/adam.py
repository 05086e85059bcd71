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
    labels: Labels,
    method: str,
    settings: Mapping[str, Any],
    *,
    k: float | None,
    seed: int,
    device: torch.device,
) -> tuple[LinearLearner, Tensor]:
    """The head trained on all rows, and the held-out scores (n, L) of heads trained without one fold each.

    Features that do not fit into memory are used as they are; standardised ones are copied.
    """
    scaling = Scaling.measure(features, rows)
    store, places = features, rows
    if 4 * len(rows) * features.dim <= _RESIDENT:
        store, places = FeatureStore(scaling.apply(features.batch(rows))), np.arange(len(rows))
    else:
        scaling = Scaling(torch.zeros(features.dim).double(), torch.ones(features.dim).double())

    def trained(part: npt.NDArray[np.int64]) -> HeadResult:
        epochs = min(max(math.ceil(_STEPS * _BATCH_SIZE / len(part)), _FEWEST_EPOCHS), _MOST_EPOCHS)
        experiment = Experiment.linear(method, settings, _LEARNING_RATE, _BATCH_SIZE, seed, epochs=epochs, k=k)
        inside = FeatureRows(store, places[part])
        return train_heads(inside, labels.subset(part), [experiment], device=device, progress=False)[0]

    fold = np.random.default_rng([seed, 0xF01D]).permutation(len(rows)) % min(_FOLDS, len(rows))
    scores = torch.zeros(len(rows), labels.num_classes)
    for f in range(int(fold.max()) + 1):
        inside, outside = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        if len(inside):
            scores[torch.from_numpy(outside)] = trained(inside).score(FeatureRows(store, places[outside])).cpu()
    final = trained(np.arange(len(rows)))
    learner = LinearLearner(final.weight.T.cpu().contiguous(), final.bias.cpu(), scaling.mean, scaling.deviation)
    return learner, scores
