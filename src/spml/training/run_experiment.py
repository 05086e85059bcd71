"""From an experiment and a data set to a finished run folder: the path that training and benchmark share."""

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spml.data import ImageStore
from spml.data.dataset import Dataset, truth_closed
from spml.errors import InputError
from spml.labels import Entries, Labels
from spml.methods import Method
from spml.methods import method as make_method
from spml.methods.interface import ENOUGH_STEPS
from spml.models import Classifier, build_classifier
from spml.models.backbones import WITHOUT_WEIGHTS
from spml.runs.files import lock_folder, read_json, read_record
from spml.runs.log import Tracker
from spml.runs.schema import CheckpointRecord, RunRecord
from spml.training.device import choose_device
from spml.training.examples import Examples
from spml.training.experiment import Experiment
from spml.training.frozen.linear_init import linear_init
from spml.training.label_draw import LabelDraw
from spml.training.network.finish import finish
from spml.training.network.trainer import Trainer

MAX_CLASSES = 1000  # with more classes, one query per class takes more time and memory than the backbone


def run_experiment(
    experiment: Experiment,
    dataset: Dataset,
    folder: Path,
    *,
    device: str = "auto",
    trackers: Sequence[Tracker] = (),
    notify: Callable[[str], None] = lambda line: None,
    progress: bool = True,
    interrupted: threading.Event | None = None,
) -> dict[str, Any]:
    """Train an experiment and write everything that makes its folder a finished run.

    An unfinished run of the same experiment in the folder is resumed.

    Parameters
    ----------
    experiment : Experiment
    dataset : Dataset
        Images.
    folder : Path
        The run folder.
    device : {"auto", "cpu", "cuda"}
    trackers : sequence of Tracker
        Receive everything that the log does.
    notify : callable
        Receives messages for the user.
    progress : bool
        Show progress bars.
    interrupted : threading.Event, optional
        Once it is set, training ends with a checkpoint.

    Returns
    -------
    dict
        The best epoch: score, epoch, weights (raw or averaged); and the seconds of training.

    Raises
    ------
    InputError
        If experiment and data do not fit, or the folder holds another run.
    DivergedError
        If the loss is no longer finite.
    """
    target = choose_device(device)
    method = make_method(experiment.method, **experiment.settings)
    network = build_network(experiment, method, dataset)  # before any image is read: this validates the experiment
    dataset.store.prepare(progress=progress)
    dataset = without_unreadable_rows(dataset, notify)
    if isinstance(dataset.store, ImageStore) and target.type == "cuda":
        dataset.store.to_device(target)
    started = time.perf_counter()
    rows, labels = _training_labels(experiment, method, dataset)
    training, validation = Examples(dataset.tensor_store, rows, labels), _validation(experiment, dataset)
    start = None
    if experiment.linear_init and not (folder / "last.safetensors").exists():  # an interrupted run is past that stage
        assert validation is not None
        start = linear_init(network, experiment, training, validation, str(target)).method_state
    run = Trainer(
        folder,
        network,
        method,
        training,
        validation,
        experiment.train,
        k=experiment.k,
        start=start,
        device=device,
        trackers=tuple(trackers),
        progress=progress,
        interrupted=interrupted,
        source=dataset.fingerprint(),
    )
    _discard_unstarted_run(run)
    with truth_closed():
        best = run.fit()
    seconds = time.perf_counter() - started
    _log_unreadable_images(run, dataset)
    finish(run, with_drawn_labels(dataset, experiment.draw))
    return {**best, "seconds": seconds}


def build_network(experiment: Experiment, method: Method, dataset: Dataset) -> Classifier:
    """Return the untrained network of an experiment; its weights depend on the seed alone."""
    torch.manual_seed(experiment.train.seed)
    classes = len(dataset.classes)
    store = dataset.tensor_store
    if not isinstance(store, ImageStore):
        raise InputError(f"{dataset.name} holds no images: linear heads on features are trained together (train_heads)")
    head = head_of(experiment, method, dataset)
    settings = {**(method.head_settings if head == method.needs.head else {}), **experiment.head_settings}
    settings |= {"image_size": store.size, "weights": experiment.weights}
    if method.needs.soft_labels and experiment.backbone not in WITHOUT_WEIGHTS:
        settings["pooling"] = "auto"  # of the probes, and of a linear head that starts as they do
    return build_classifier(experiment.backbone, classes, head, **settings)


def head_of(experiment: Experiment, method: Method, dataset: Dataset) -> str:
    """Return the head of an experiment on images. LinearInit trains the method's own head, which is linear."""
    if experiment.head or experiment.linear_init:
        return experiment.head or method.needs.head
    rows = len(dataset.train) if experiment.draw is None else experiment.draw.count(dataset)
    train = experiment.train
    return default_head(method, experiment.backbone, len(dataset.classes), rows, train.epochs, train.batch_size)


def default_head(method: Method, backbone: str, classes: int, rows: int, epochs: int, batch_size: int) -> str:
    """Return the method's head; on a pretrained backbone its larger one, if there are enough steps to train it."""
    larger = method.needs.pretrained_head
    enough = epochs * math.ceil(rows / batch_size) >= ENOUGH_STEPS and classes <= MAX_CLASSES
    return larger if larger and enough and backbone not in WITHOUT_WEIGHTS else method.needs.head


def without_unreadable_rows(dataset: Dataset, notify: Callable[[str], None]) -> Dataset:
    """Return the data set without rows whose image cannot be read; the user gets a message."""
    good = dataset.store.good_rows
    if len(good) == len(dataset):
        return dataset
    bad = np.setdiff1d(np.arange(len(dataset)), good)
    names = ", ".join(dataset.names[bad[:3]].tolist()) + (", …" if len(bad) > 3 else "")
    notify(f"{len(bad)} of {len(dataset)} images cannot be read and are left out: {names}")
    train, validation, test = (np.intersect1d(part, good) for part in (dataset.train, dataset.validation, dataset.test))
    return replace(dataset, train=train, validation=validation, test=test)


def _training_labels(experiment: Experiment, method: Method, dataset: Dataset) -> tuple[np.ndarray, Labels]:
    if experiment.draw is not None:
        return experiment.draw.select(dataset, method.needs.labels)
    return dataset.train, dataset.labels.subset(dataset.train)


def _validation(experiment: Experiment, dataset: Dataset) -> Examples | None:
    rows = dataset.validation
    if not len(rows):
        return None
    labels = dataset.full_labels(rows) if experiment.validation == "full" else dataset.labels.subset(rows)
    return Examples(dataset.tensor_store, rows, labels)


def _discard_unstarted_run(run: Trainer) -> None:
    """Delete a run with other settings that has not taken a step: it would block this one, and nothing is lost."""
    record, last, best = (run.folder / name for name in ("run.json", "last.safetensors", "best.safetensors"))
    if run.processes.first and record.exists():
        with lock_folder(run.folder):
            before = dict(read_json(record, RunRecord)) if record.exists() else None
            has_steps = best.exists() or (last.exists() and read_record(last, CheckpointRecord)["step"] > 0)
            if before not in (None, json.loads(json.dumps(run.record()))) and not has_steps:
                last.unlink(missing_ok=True)
                record.unlink()
    run.processes.wait()  # the other processes must not read files that are about to be deleted


def _log_unreadable_images(run: Trainer, dataset: Dataset) -> None:
    bad = [image.name for image in dataset.store.bad] if isinstance(dataset.store, ImageStore) else []
    if bad and not run.files.log.has("bad images"):
        run.files.write_log("bad images", count=len(bad), names=bad)


def with_drawn_labels(dataset: Dataset, draw: LabelDraw | None) -> Dataset:
    """Return the data set with the training rows and labels of a draw, and no known labels for other rows."""
    if draw is None or draw == LabelDraw():
        return dataset
    rows, labels = draw.select(dataset)
    dense = labels.dense()
    known, columns = np.nonzero(dense)
    entries = Entries.from_coordinates(
        rows[known],
        columns,
        dense[known, columns],
        num_rows=len(dataset),
        num_classes=len(dataset.classes),
        default=0,
    )
    return replace(
        dataset, labels=Labels.from_entries(entries, dataset.classes, ids=dataset.names.tolist()), train=rows
    )
