"""The linear protocol (Cole et al. 2021, Sec. 6.1): every method at every learning rate and batch size, on features."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from spml.bench.draws import Draw
from spml.data.formats.pack import Pack
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import METHODS
from spml.metrics import mean_average_precision
from spml.train.linear import FeatureRows, Features, HeadResult, HeadSpec, train_heads

LEARNING_RATES = (1e-2, 1e-3, 1e-4, 1e-5)
BATCH_SIZES = (8, 16)


@dataclass(frozen=True)
class LinearData:
    """What the linear protocol takes of a data set. `truth` is that of the training rows, where anyone has it."""

    features: Features
    labels: Labels
    validation: tuple[Features, Labels]
    test: tuple[Features, Labels]
    truth: Labels | None = None

    @classmethod
    def from_pack(cls, pack: Pack, features: str | None = None) -> "LinearData":
        """The rows of a pack by its split; `features` names the file where there are several."""
        return cls.from_store(pack, pack.features(features))

    @classmethod
    def from_store(cls, pack: Pack, store: FeatureStore, draw: Draw | None = None) -> "LinearData":
        """The rows of a pack with these features, its training rows labelled by `draw`."""
        rows, labels = (draw or Draw()).shown(pack)
        return cls(
            features=FeatureRows(store, rows),
            labels=labels,
            validation=(FeatureRows(store, pack.val), pack.full_labels(pack.val)),
            test=(FeatureRows(store, pack.test), pack.full_labels(pack.test)),
            truth=pack.full_labels(rows) if pack.known[rows].all() else None,
        )

    @cached_property
    def observed_and_negatives(self) -> Labels | None:
        """The observed labels and every true negative: what IUN is trained on. Negatives that are observed stay."""
        if self.labels.counts().negatives.any():
            return self.labels
        if self.truth is None:
            return None
        observed, truth = self.labels.dense(), self.truth.dense()
        return Labels.from_matrix(np.where(truth < 0, truth, observed), self.labels.classes)


def linear_grid(
    data: LinearData | Pack,
    methods: Sequence[str | tuple[str, Mapping[str, Any]]],
    *,
    learning_rates: Sequence[float] = LEARNING_RATES,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seeds: Sequence[int] = (0, 1, 2),
    epochs: int = 25,
    k: float | None = None,
    device: str | torch.device = "cpu",
    early_stopping: Literal["first-drop"] | int | None = None,
    memory_limit: int = 2**31,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """The Linear half of Cole et al.'s Table 1 for one data set: one row for every method and seed.

    A method is a name, or a name with settings. Its learning rate and batch size are those with the best
    validation mAP, averaged over the seeds. `test_map` is the mAP of the test rows, a class without a positive
    left out; `train_recovery_map` that of the training rows' labels that were not observed (None where nobody
    knows them). All are shares of 1.
    """
    if isinstance(data, Pack):
        data = LinearData.from_pack(data)
    named = [(m, {}) if isinstance(m, str) else (m[0], dict(m[1])) for m in methods]
    for name, _ in named:
        if name not in METHODS:
            raise InputError(f"No method named {name!r}. Available methods: {', '.join(sorted(METHODS))}")
    specs = [
        HeadSpec(name, settings, rate, size, seed)
        for name, settings in named
        for rate in learning_rates
        for size in batch_sizes
        for seed in seeds
    ]
    results = train_heads(
        data.features,
        data.labels,
        specs,
        epochs=epochs,
        validation=data.validation,
        k=k,
        device=device,
        early_stopping=early_stopping,
        full_labels=data.truth,
        negatives_labels=data.observed_and_negatives,
        memory_limit=memory_limit,
        progress=progress,
    )
    rows: list[dict[str, Any]] = []
    per_method = len(results) // len(named)
    for m in range(len(named)):
        starts = range(m * per_method, (m + 1) * per_method, len(seeds))
        by_setting = [results[start : start + len(seeds)] for start in starts]
        best = max(by_setting, key=lambda runs: sum(_best_score(run) for run in runs))
        rows += [_grid_row(result, data) for result in best]
    return rows


def _best_score(result: HeadResult) -> float:
    return max((score for score in result.validation if math.isfinite(score)), default=-math.inf)


def _grid_row(result: HeadResult, data: LinearData) -> dict[str, Any]:
    features, truth = data.test
    recovery = None
    if data.truth is not None:
        unobserved = data.labels.dense() == 0
        recovery = mean_average_precision(result.score(data.features), data.truth.dense(), mask=unobserved)
    spec = result.spec
    return {
        "method": spec.method,
        "settings": dict(spec.settings),
        "learning_rate": spec.learning_rate,
        "batch_size": spec.batch_size,
        "seed": spec.seed,
        "best_epoch": result.best_epoch,
        "validation_map": _best_score(result),
        "test_map": mean_average_precision(result.score(features), truth.dense()),
        "train_recovery_map": recovery,
    }
