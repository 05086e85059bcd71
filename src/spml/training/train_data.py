"""Training on a user's data, with defaults that need no fully labelled rows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spml.data import ImageStore, ViewSettings
from spml.data.dataset import Dataset
from spml.data.detect import is_text_folder, open_data
from spml.errors import InputError
from spml.methods import method as make_method
from spml.models import build_classifier
from spml.models.backbones import own_image_size
from spml.runs.decisions import DECISIONS, Subject, copy_decisions, read_decisions
from spml.runs.folder import rows_in_words
from spml.runs.log import tracker
from spml.runs.outputs import RUN_FILES, check_results_folder
from spml.training.device import choose_device, default_precision
from spml.training.distributed import Processes
from spml.training.effort import MIN_EPOCHS, default_model, plan_training, several_processes
from spml.training.experiment import Experiment
from spml.training.frozen.stages import Budget, train_in_stages
from spml.training.options import BATCH_SIZE, LEARNING_RATE, TrainOptions
from spml.training.run_experiment import run_experiment, without_unreadable_rows
from spml.training.settings import TrainSettings
from spml.training.train_features import train_features
from spml.type_checks import check_types

Notify = Callable[[str], None]


def train_data(
    data: str | Path | Dataset,
    out: Path,
    options: TrainOptions | None = None,
    *,
    data_options: Mapping[str, Any] | None = None,
    notify: Notify = print,
    progress: bool = True,
) -> dict[str, Any]:
    """Train a classifier on images, features or texts of which only some labels are observed.

    Parameters
    ----------
    data : str, Path or Dataset
        A path that `open_data` opens, or the data set itself.
    out : Path
        Run folder. If it holds an unfinished run with the same settings, training resumes.
    options : TrainOptions, optional
    data_options : mapping, optional
        Options of `open_data`.
    notify : callable
        Receives messages for the user.
    progress : bool
        Show progress bars.

    Returns
    -------
    dict
        Of images, the best epoch: score (None without held-out rows), epoch, weights; and the seconds of training. Of
        features and texts: score and summary.

    Raises
    ------
    InputError
        If data, options or settings are wrong, or `out` holds another run.
    """
    options = options or TrainOptions()
    check_types(options)
    if not isinstance(options.settings, Mapping) or not all(isinstance(name, str) for name in options.settings):
        raise InputError("settings must be a dictionary of the method's settings, by name")
    device = choose_device(options.device)
    _check_out(out, data)
    make_method(options.method, **options.settings)  # validate early, before any data is read
    _train_settings(options, MIN_EPOCHS if options.epochs is None else options.epochs, 1, device)
    default = default_model(options, device)
    backbone = options.model or default.model
    usual_size = default.size if options.model is None else own_image_size(options.model)
    dataset = _open(data, usual_size, options.size, data_options or {})
    for note in dataset.notes:
        notify(note)
    if not len(dataset.labels.subset(dataset.train).positives()[0]):
        raise InputError(f"{dataset.name}: no training row has a label: training needs at least one observed label")
    if options.decisions is not None:
        dataset = _with_decisions(dataset, options.decisions, notify)
    if isinstance(dataset.store, ImageStore):
        best = _train_on_images(dataset, out, options, backbone, device, notify, progress)
    else:
        best = _train_on_features(dataset, out, options, notify, progress)
    if options.decisions is not None and Processes().first:
        copy_decisions(options.decisions, out / DECISIONS)
    return best


def _describe(dataset: Dataset, *, cross_fitted: bool) -> str:
    kind = f" (format: {dataset.source['kind']})" if dataset.source else ""
    rows = rows_in_words(len(dataset.train), len(dataset.validation), cross_fitted=cross_fitted)
    return f"{dataset.name}{kind}: {len(dataset.classes)} classes, {rows}"


def _train_on_features(
    dataset: Dataset, out: Path, options: TrainOptions, notify: Notify, progress: bool
) -> dict[str, Any]:
    if several_processes():
        raise InputError("features and texts are trained by one process: start it without torchrun")
    _check_no_options(options.image_options, "images", "features or texts")
    notify(_describe(dataset, cross_fitted=True))
    return train_features(
        dataset,
        out,
        method=options.method,
        settings=options.settings,
        base="auto" if options.base is None else options.base,
        encoder=options.encoder,
        k=options.k,
        seed=options.seed,
        device=options.device,
        notify=notify,
        progress=progress,
    )


def _train_on_images(
    dataset: Dataset,
    out: Path,
    options: TrainOptions,
    backbone: str,
    device: torch.device,
    notify: Notify,
    progress: bool,
) -> dict[str, Any]:
    """Train a classifier on frozen features, the whole network, or one after the other, as `plan_training` decides."""
    _check_no_options(options.feature_options, "features and texts", "images")
    assert isinstance(dataset.store, ImageStore)
    image_size, held_out = dataset.store.size, len(dataset.validation) > 0
    plan = plan_training(options, rows=len(dataset.train), backbone=backbone, device=device, held_out=held_out)
    cross_fitted = plan.frozen and not plan.network
    notify(_describe(_all_for_training(dataset) if cross_fitted else dataset, cross_fitted=cross_fitted))
    notify(plan.reason)
    if not plan.frozen:
        return run_experiment(
            _experiment(options, dataset, backbone, device, plan.epochs),
            dataset,
            out,
            device=options.device,
            trackers=(tracker(options.track, out),) if options.track else (),
            notify=notify,
            progress=progress,
        )
    # Raise errors about the network before any image is read.
    build_classifier(backbone, len(dataset.classes), image_size=image_size, weights=options.weights)
    if dataset.store.on_bad_image == "skip":
        dataset.store.prepare(progress=progress)
    dataset = without_unreadable_rows(dataset, notify)
    train_frozen = partial(
        train_features,
        _all_for_training(dataset),
        out,
        base="linear",
        backbone=backbone,
        weights=options.weights,
        zooms=plan.zooms,
        k=options.k,
        seed=options.seed,
        device=options.device,
        notify=notify,
        progress=progress,
    )
    if not plan.network:
        return train_frozen()
    experiment_for = partial(_experiment, options, dataset, backbone, device)
    budget = Budget(plan.epochs, options.minutes)
    return train_in_stages(
        dataset, out, train_frozen, experiment_for, budget, device=options.device, notify=notify, progress=progress
    )


def _experiment(
    options: TrainOptions, dataset: Dataset, backbone: str, device: torch.device, epochs: int
) -> Experiment:
    """Return the training of a whole network on images."""
    assert isinstance(dataset.store, ImageStore)
    return Experiment(
        options.method,
        options.settings,
        _train_settings(options, epochs, len(dataset.train), device),
        options.k,
        data=dataset.name,
        backbone=backbone,
        weights=None if options.weights is None else str(options.weights),
        head=options.head,
        image_size=dataset.store.size,
    )


def _all_for_training(dataset: Dataset) -> Dataset:
    """The data set with its held-out rows for training, unless they were given as such: cross-fitting needs none."""
    given = "split_column" in dataset.source.get("options", {}) or dataset.fully_labelled[dataset.validation].any()
    if given or not dataset.source:
        return dataset
    return replace(dataset, train=np.union1d(dataset.train, dataset.validation), validation=dataset.validation[:0])


def _check_out(out: Path, data: str | Path | Dataset) -> None:
    if file := next((parent for parent in (out, *out.parents) if parent.is_file()), None):
        raise InputError(f"--out {out}: {file} is a file; choose a folder for the run")
    path = data.source.get("path", "") if isinstance(data, Dataset) else data
    if path and Path(path).exists() and out.resolve() == Path(path).resolve():
        raise InputError(f"--out {out} is the data folder itself: choose another folder for the run")
    check_results_folder(out, "run.json", RUN_FILES)


def _with_decisions(dataset: Dataset, path: Path, notify: Notify) -> Dataset:
    """Return the data set with the answers in a database as verified labels."""
    given = dataset.labels
    decided = read_decisions(path, Subject(dataset.names.tolist(), dataset.classes, given))
    positives, negatives, _ = (int(count.sum()) for count in decided.counts())
    rows = np.flatnonzero(decided.entries().per_row(1) + decided.entries().per_row(-1))
    corrected = int((given.dense(rows) * decided.dense(rows) < 0).sum())
    notify(
        f"{path}: {positives + negatives} answers ({positives} yes, {negatives} no) are learned as verified labels"
        + (f"; {corrected} of them correct a given label." if corrected else ".")
    )
    return dataset.with_answers(decided)


def _train_settings(options: TrainOptions, epochs: int, rows: int, device: torch.device) -> TrainSettings:
    settings = TrainSettings(
        epochs=epochs,
        batch_size=BATCH_SIZE if options.batch_size is None else options.batch_size,
        learning_rate=LEARNING_RATE if options.learning_rate is None else options.learning_rate,
        seed=options.seed,
        schedule="cosine",
        precision=default_precision(device),
        views=ViewSettings(crop_scale=(0.7, 1.0)),
    )
    steps = epochs * max(rows // settings.batch_size, 1)
    return replace(settings, averaging=1 - 1 / max(steps / 10, 10))  # over about a tenth of all steps, at least ten


def _open(data: str | Path | Dataset, usual: int, size: int | None, given: Mapping[str, Any]) -> Dataset:
    """Open the data with images of this size, or of the usual one, unless they have a fixed size."""
    options = {name: value for name, value in given.items() if value is not None}
    image_size = size or usual
    if isinstance(data, Dataset):
        return _resized(data, image_size, explicit=size is not None)
    fixed = options.get("kind") in ("features", "texts") or str(data).lower().endswith((".npy", ".npz"))
    if str(data) == "scenes" or fixed or (options.get("kind") is None and is_text_folder(Path(data))):
        return open_data(data, **options)
    return open_data(data, **{"size": image_size, **options})


def _resized(data: Dataset, size: int, explicit: bool) -> Dataset:
    """Return the data set with images of this size, if it was asked for or the data set was opened without a size."""
    store, opened = data.store, data.source.get("options", {})
    if not isinstance(store, ImageStore) or size == store.size or ("size" in opened and not explicit):
        return data
    if not data.source or data.source["kind"] == "scenes":
        if explicit:
            raise InputError(f"size {size} does not fit the data set, whose images have {store.size} pixels")
        return data
    reopened = open_data(data.source["path"], **{**opened, "kind": data.source["kind"], "size": size})
    same_rows = list(reopened.names) == list(data.names)
    return replace(data, store=reopened.store, source=reopened.source) if same_rows else data


def _check_no_options(given: Mapping[str, Any], kind: str, data: str) -> None:
    """Raise `InputError` for an option that applies only to another kind of data."""
    for option, value in given.items():
        reason = ", where nothing has to be tuned" if option in ("epochs", "batch_size", "learning_rate") else ""
        name = f"--{option.replace('_', '-')}"
        raise InputError(f"{name} {value} applies only to {kind}, and this data is {data}{reason}: leave it out")
