"""The practitioner's training: from a path to a finished run, with nothing fully labelled."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spml.data import ImageStore, ViewSettings
from spml.data.dataset import Dataset, truth_closed
from spml.data.detect import open_data
from spml.errors import InputError
from spml.methods import Method, method
from spml.models import build_classifier
from spml.models.feature_classifier import FeatureClassifier
from spml.runs.files import lock_folder, read_json, read_record
from spml.runs.log import tracker
from spml.train.device import choose_device
from spml.train.examples import Examples
from spml.train.finish import finish
from spml.train.head import head_for
from spml.train.settings import TrainSettings
from spml.train.trainer import Trainer

DEFAULT_SIZE = {"lite0": 224, "lite1": 240, "lite2": 260, "small": 64}
DEFAULT_MODEL = "lite0"
MEASURED_ROWS = 4096  # of a feature matrix, to learn its scale from


@dataclass(frozen=True)
class TrainJob:
    """What `spml train` was asked for."""

    data: str | Dataset
    options: dict[str, Any] = field(default_factory=dict)
    method: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    """None: lite0."""
    head: str | None = None
    size: int | None = None
    epochs: int = 10
    batch_size: int = 16
    learning_rate: float | None = None
    """None: 1e-4, on features 1e-3."""
    k: float | None = None
    seed: int = 0
    device: str = "auto"
    track: str | None = None


def train_job(job: TrainJob, out: Path, *, say: Callable[[str], None] = print, progress: bool = True) -> dict[str, Any]:
    """Open the data, train, write what the later commands need; returns the best epoch."""
    device = choose_device(job.device)
    if blocking := next((place for place in (out, *out.parents) if place.is_file()), None):
        raise InputError(f"--out {out}: {blocking} is a file; name a folder for the run")
    if isinstance(job.data, str) and Path(job.data).exists() and out.resolve() == Path(job.data).resolve():
        raise InputError(f"--out {out} is the data itself: name another folder, or the run would lie among them")
    made = method(job.method, **job.settings)
    _train_settings(job, 1, device, images=True)  # what is wrong with them is said before anything is read
    dataset = _open(job)
    source = dataset.source or {"path": dataset.name, "options": {}}
    for note in dataset.notes:
        say(note)
    images = isinstance(dataset.store, ImageStore)
    network = _network(job, made, dataset) if images else None  # what is wrong with it, too
    dataset.store.prepare(progress=progress)
    opened, dataset = dataset, _without_bad_rows(dataset, say)
    say(
        f"{dataset.name}: {len(dataset.train)} rows to learn from, {len(dataset.validation)} held out, "
        f"{len(dataset.classes)} classes"
    )
    if images and device.type == "cuda":
        dataset.store.to_device(device)
    settings = _train_settings(job, len(dataset.train), device, images=images)
    if network is None or dataset is not opened:
        network = _network(job, made, dataset)
    held_out = None
    if len(dataset.validation):
        held_out = Examples(dataset.store, dataset.validation, dataset.labels.subset(dataset.validation))
    run = Trainer(
        out,
        network,
        made,
        Examples(dataset.store, dataset.train, dataset.labels.subset(dataset.train)),
        held_out,
        settings,
        k=job.k,
        device=job.device,
        trackers=(tracker(job.track, out),) if job.track else (),
        progress=progress,
        source=dataset.fingerprint(),
    )
    _make_way(run)
    with truth_closed():
        best = run.fit()
    bad = [image.name for image in dataset.store.bad] if isinstance(dataset.store, ImageStore) else []
    if bad and not run.files.log.has("bad images"):
        run.files.write_log("bad images", count=len(bad), names=bad)
    finish(run, dataset, source)
    return best


def _train_settings(job: TrainJob, rows: int, device: torch.device, *, images: bool) -> TrainSettings:
    return TrainSettings(
        epochs=job.epochs,
        batch_size=job.batch_size,
        learning_rate=(1e-4 if images else 1e-3) if job.learning_rate is None else job.learning_rate,
        schedule="cosine",
        averaging=_averaging(rows, job),
        precision="bf16" if device.type == "cuda" else "32",
        seed=job.seed,
        views=ViewSettings(crop_scale=(0.7, 1.0)),
    )


def _make_way(run: Trainer) -> None:
    """A run begun with other settings that has made no step is forgotten: nothing is lost, and it blocks nobody."""
    begun, last, best = (run.folder / name for name in ("run.json", "last.safetensors", "best.safetensors"))
    if run.processes.first and begun.exists():
        with lock_folder(run.folder):
            before = read_json(begun, "spml", "method", "train") if begun.exists() else None
            made_steps = best.exists() or (last.exists() and read_record(last)["step"] > 0)
            if before not in (None, json.loads(json.dumps(run.record()))) and not made_steps:
                last.unlink(missing_ok=True)
                begun.unlink()
    run.processes.wait()  # the others must not read what goes away


def _open(job: TrainJob) -> Dataset:
    """Open the data, at the model's image size unless the data set is given or its images have a fixed size."""
    if isinstance(job.data, Dataset):
        fixed = getattr(job.data.store, "size", None)
        if job.size is not None and job.size != fixed:
            raise InputError(f"size {job.size} does not fit the data set: open it with `open_data(path, size=…)`")
        return job.data
    if job.data == "scenes" or job.options.get("kind") == "features" or job.data.lower().endswith(".npy"):
        return open_data(job.data, **job.options)
    size = job.size or DEFAULT_SIZE.get(job.model or DEFAULT_MODEL, 224)
    return open_data(job.data, **{"size": size, **job.options})


def _averaging(rows: int, job: TrainJob) -> float:
    """Average over about a tenth of all steps, and at least ten."""
    steps = job.epochs * max(rows // job.batch_size, 1)
    return 1 - 1 / max(steps / 10, 10)


def _without_bad_rows(dataset: Dataset, say: Callable[[str], None]) -> Dataset:
    """Rows whose image cannot be read are left out of every part, and said."""
    good = dataset.store.good_rows
    if len(good) == len(dataset):
        return dataset
    bad = np.setdiff1d(np.arange(len(dataset)), good)
    named = ", ".join(dataset.names[bad[:3]].tolist()) + (", …" if len(bad) > 3 else "")
    say(f"{len(bad)} of {len(dataset)} images cannot be read and are left out: {named}")
    train, validation, test = (np.intersect1d(part, good) for part in (dataset.train, dataset.validation, dataset.test))
    return replace(dataset, train=train, validation=validation, test=test)


def _network(job: TrainJob, made: Method, dataset: Dataset) -> nn.Module:
    torch.manual_seed(job.seed)
    classes = len(dataset.classes)
    if isinstance(dataset.store, ImageStore):
        model = job.model or DEFAULT_MODEL
        head = job.head or head_for(made, model, classes, len(dataset.train), job.epochs, job.batch_size)
        return build_classifier(model, classes, head, image_size=dataset.store.size, **made.head_settings)
    for option, value in (("model", job.model), ("size", job.size), ("head", job.head)):
        if value not in (None, "linear"):
            raise InputError(f"--{option} {value} is for images: on features the classifier is linear")
    if made.needs.head != "linear":
        raise InputError(f"method {made.name!r} needs images: features have no {made.needs.head} head")
    shares = [member.share for member in made.members(classes)] or [1.0]
    network = FeatureClassifier(dataset.store.dim, classes, shares)
    network.measure(dataset.store.batch(dataset.train[:MEASURED_ROWS]))
    return network
