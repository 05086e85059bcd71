"""The linear protocol (Cole et al. 2021, Sec. 6.1) in one call, for the benchmarks that time or compare it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spml.data.dataset import Dataset
from spml.data.stores.features import FeatureStore
from spml.metrics import mean_average_precision
from spml.training.experiment import Experiment
from spml.training.label_draw import LabelDraw
from spml.training.linear import FeatureRows, HeadResult, train_heads

LEARNING_RATES = (1e-2, 1e-3, 1e-4, 1e-5)
BATCH_SIZES = (8, 16)


def heads_grid(
    data: Dataset,
    methods: Mapping[str, Mapping[str, Any]],
    *,
    learning_rates: Sequence[float] = LEARNING_RATES,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 25,
    k: float | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> list[dict[str, Any]]:
    """One row per method and seed, at the learning rate and batch size with the best mean validation mAP."""
    grid = [
        [Experiment.linear(name, settings, rate, size, seed, epochs=epochs, k=k) for seed in seeds]
        for name, settings in methods.items()
        for rate in learning_rates
        for size in batch_sizes
    ]
    store = data.store
    assert isinstance(store, FeatureStore)
    results = iter(
        train_heads(
            FeatureRows(store, data.train),
            data.labels.subset(data.train),
            [experiment for point in grid for experiment in point],
            validation=(FeatureRows(store, data.validation), data.full_labels(data.validation)),
            full_labels=data.full_labels(data.train),
            negatives_labels=LabelDraw().select(data, "negatives")[1],
            device=device,
            progress=progress,
        )
    )
    points = [[next(results) for _ in point] for point in grid]
    rows = []
    for name in methods:
        of_method = [point for point in points if point[0].experiment.method == name]
        best = max(of_method, key=lambda point: sum(map(best_score, point)))
        rows += [row_of(result, data, store) for result in best]
    return rows


def best_score(result: HeadResult) -> float:
    return max((score for score in result.validation if math.isfinite(score)), default=-math.inf)


def row_of(result: HeadResult, data: Dataset, store: FeatureStore) -> dict[str, Any]:
    train = result.experiment.train
    scores = result.score(FeatureRows(store, data.test))
    return {
        "method": result.experiment.method,
        "learning_rate": train.learning_rate,
        "batch_size": train.batch_size,
        "seed": train.seed,
        "best_epoch": result.best_epoch,
        "validation_map": best_score(result),
        "test_map": mean_average_precision(scores, data.full_labels(data.test).dense()),
    }
