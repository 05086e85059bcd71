"""The files of a linear head: its result and its weights, from which a report reads it as a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from spml.bench.code_version import code_version
from spml.bench.measure import diverged_row, identity_columns, measure, read_row
from spml.data.dataset import Dataset
from spml.data.stores.features import FeatureStore
from spml.losses.activation import probabilities
from spml.methods import METHODS
from spml.runs.files import read_tensors, write_tensors, write_text
from spml.runs.folder import RunFolder
from spml.runs.schema import damaged
from spml.training.experiment import Experiment
from spml.training.label_draw import LabelDraw
from spml.training.linear import FeatureRows, HeadResult
from spml.training.run_experiment import with_drawn_labels


def write_head(
    path: Path, experiment: Experiment, dataset: Dataset, rows: np.ndarray, result: HeadResult, seconds: float
) -> None:
    """Measure a trained head, and write its result to `path` and its weights next to it.

    Parameters
    ----------
    path : Path
        The .json file.
    experiment : Experiment
    dataset : Dataset
        Features.
    rows : array of int
        The training rows.
    result : HeadResult
    seconds : float
        The time that its training took.
    """
    common = {"seconds": seconds, "code": code_version(experiment.method)}
    if not torch.isfinite(result.weight).all():
        write_text(path, json.dumps(diverged_row(experiment) | common))
        return
    store = dataset.store
    assert isinstance(store, FeatureStore)
    test, training = (result.probabilities(FeatureRows(store, part)) for part in (dataset.test, rows))
    row = {
        **identity_columns(experiment),
        "best_epoch": result.best_epoch,
        "validation_map": max((score for score in result.validation if score == score), default=0.0),  # NaN if diverged
        "validation_curve": result.validation,
        **measure(experiment, dataset, test, training),
        **common,
    }
    write_tensors(path.with_suffix(".safetensors"), {"weight": result.weight, "bias": result.bias}, {})
    write_text(path, json.dumps(row))


def head_as_run(path: Path, experiment: Experiment, dataset: Dataset) -> RunFolder:
    """Read a head that `write_head` wrote, with its predictions for all rows."""
    row, file = read_row(path, experiment), path.with_suffix(".safetensors")
    tensors, _ = read_tensors(file)
    store, classes = dataset.store, len(dataset.classes)
    assert isinstance(store, FeatureStore)
    shapes = {"weight": (store.dim, classes), "bias": (classes,)}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != shapes:
        raise damaged(file, "its tensors do not fit the data; delete it, and run the same command again")
    blocks = np.array_split(np.arange(len(dataset)), max(1, len(dataset) // 4096))
    logits = torch.cat([store.batch(rows) @ tensors["weight"] + tensors["bias"] for rows in blocks])
    draw = experiment.draw or LabelDraw()
    learned = draw.select(dataset, METHODS[experiment.method].needs.labels)[1]
    drawn = with_drawn_labels(dataset, draw)
    return RunFolder(
        folder=path.with_suffix(""),
        record={
            "method": {"name": experiment.method, **experiment.settings},
            "train": experiment.train.as_record(),
            "model": {"head": "linear on features"},
            "data": {"labels": learned.fingerprint()},
            "k": experiment.k,
        },
        best={"score": row["validation_map"], "epoch": row["best_epoch"], "weights": "raw"},
        log=[],  # the loss of a head is not kept; the report of the benchmark draws its validation curve
        names=dataset.names.tolist(),
        labels=drawn.labels,
        truth=None if dataset.truth is None else dataset.truth.open(),
        probabilities=probabilities(logits, experiment.activation).numpy(),
        train=drawn.train,
        validation=dataset.validation,
        test=dataset.test,
        source=dataset.source,
    )
