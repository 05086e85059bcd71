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
from spml.runs.decisions import DECISIONS, Subject, copy_decisions, read_decisions
from spml.runs.log import tracker
from spml.runs.outputs import RUN_FILES, check_results_folder
from spml.training.device import choose_device, default_precision
from spml.training.distributed import Processes
from spml.training.effort import FEWEST_EPOCHS, default_model, plan_training, several_processes
from spml.training.experiment import Experiment
from spml.training.frozen.stages import Budget, train_in_stages
from spml.training.run_experiment import run_experiment, without_unreadable_rows
from spml.training.settings import TrainSettings
from spml.training.train_features import train_features

MODEL_SIZE = {"lite0": 224, "lite1": 240, "lite2": 260, "small": 64}


def train_data(
    data: str | Path | Dataset,
    out: str | Path,
    *,
    method: str = "auto",
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    weights: str | Path | None = None,
    head: str | None = None,
    size: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    base: str | None = None,
    encoder: str | None = None,
    effort: str = "normal",
    minutes: float | None = None,
    k: float | None = None,
    seed: int = 0,
    device: str = "auto",
    track: str | None = None,
    decisions: str | Path | None = None,
    notify: Callable[[str], None] = print,
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Train a classifier on images, features or texts of which only some labels are observed.

    Parameters
    ----------
    data : str, Path or Dataset
        A path that `open_data` opens, or the data set itself.
    out : str or Path
        Run folder. If it holds an unfinished run with the same settings, training resumes.
    method : str
        Name of the method.
    settings : mapping, optional
        Settings of the method.
    model : str, optional
        Backbone for images; by default lite2 for frozen features, and lite0 where only the whole network is trained.
    weights : str or Path, optional
        A .safetensors file with the weights of `model`, read instead of downloading them.
    head : str, optional
        By default the head that the method prefers.
    size : int, optional
        Side length of the images in pixels. Default: the size a `Dataset` was opened with, or the model's own.
    epochs, batch_size : int, optional
        Of images; by default about 3,000 steps and at least 10 epochs, and 16.
    learning_rate : float, optional
        Highest learning rate, of images; by default 1e-4.
    base : {"auto", "linear", "trees"}, optional
        Learners on features and texts that the method "auto" may use.
    encoder : str, optional
        Encoder of texts; see `fit_encoder`.
    effort : {"quick", "normal", "thorough"}
        For images; see `plan_training`.
    minutes : float, optional
        For images on a CPU: time limit. What remains after the first classifier is used to train the whole network.
    seed : int
    k : float, optional
        Average number of labels per example.
    device : {"auto", "cpu", "cuda"}
    track : {"tensorboard", "trackio"}, optional
        Also log there.
    decisions : str or Path, optional
        Database of answers from `spml review` or `spml annotate`; they are learned as verified labels.
    notify : callable
        Receives messages for the user.
    progress : bool
        Show progress bars.
    **options
        Options of `open_data`.

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
    chosen, out = choose_device(device), Path(out)
    _check_out(out, data)
    make_method(method, **(settings or {}))  # validate early, before any data is read
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    train: dict[str, Any] = {"epochs": FEWEST_EPOCHS, "batch_size": 16, "learning_rate": 1e-4, "seed": seed}
    train |= {name: value for name, value in given.items() if value is not None}
    _train_settings(1, chosen, train)
    network_options: dict[str, Any] = {"head": head, "track": track, "settings": settings or None, **given}
    network_options = {name: value for name, value in network_options.items() if value is not None}
    default = default_model(effort, method=method, device=chosen, options=network_options)
    backbone = model or default.model
    usual_size = default.size if model is None else MODEL_SIZE.get(model, 224)
    dataset = _open(data, usual_size, size, {name: value for name, value in options.items() if value is not None})
    for note in dataset.notes:
        notify(note)
    if not len(dataset.labels.subset(dataset.train).positives()[0]):
        raise InputError(f"{dataset.name}: no training row has a label: training needs at least one observed label")
    if decisions is not None:
        dataset = _with_decisions(dataset, Path(decisions), notify)
    kind = f" (format: {dataset.source['kind']})" if dataset.source else ""
    notify(
        f"{dataset.name}{kind}: {len(dataset.train)} training rows, {len(dataset.validation)} held out, "
        f"{len(dataset.classes)} classes"
    )
    shared: dict[str, Any] = {"device": device, "notify": notify, "progress": progress}
    if isinstance(dataset.store, ImageStore):
        _check_inputs("features and texts", base=base, encoder=encoder)
        image_size = dataset.store.size
        plan = plan_training(
            effort,
            rows=len(dataset.train),
            batch_size=train["batch_size"],
            method=method,
            backbone=backbone,
            device=chosen,
            held_out=len(dataset.validation) > 0,
            minutes=minutes,
            options=network_options,
        )
        notify(plan.reason)
        train["epochs"] = plan.epochs

        def experiment(epochs: int) -> Experiment:
            return Experiment(
                method,
                settings or {},
                _train_settings(len(dataset.train), chosen, {**train, "epochs": epochs}),
                k,
                data=dataset.name,
                backbone=backbone,
                weights=None if weights is None else str(weights),
                head=head,
                image_size=image_size,
            )

        if plan.frozen:
            # before any image is read
            build_classifier(backbone, len(dataset.classes), image_size=image_size, weights=weights)
            if dataset.store.on_bad_image == "skip":
                dataset.store.prepare(progress=progress)
            dataset = without_unreadable_rows(dataset, notify)
            frozen: dict[str, Any] = {"base": "linear", "backbone": backbone, "weights": weights, "k": k, "seed": seed}
            first = partial(train_features, _all_for_training(dataset), out, **frozen, **shared)
            budget = Budget(plan.epochs, minutes)
            best = train_in_stages(dataset, out, first, experiment, budget, **shared) if plan.network else first()
        else:
            trackers = (tracker(track, out),) if track else ()
            best = run_experiment(experiment(plan.epochs), dataset, out, trackers=trackers, **shared)
    else:
        if several_processes():
            raise InputError("features and texts are trained by one process: start it without torchrun")
        _check_inputs("images", model=model, weights=weights, size=size, head=head, track=track, **given)
        best = train_features(
            dataset,
            out,
            method=method,
            settings=settings,
            base=base or "auto",
            encoder=encoder,
            k=k,
            seed=seed,
            **shared,
        )
    if decisions is not None and Processes().first:
        copy_decisions(decisions, out / DECISIONS)
    return best


def _all_for_training(dataset: Dataset) -> Dataset:
    """The data set with its held-out rows for training, unless they were given as such: cross-fitting needs none."""
    given = "split_column" in dataset.source.get("options", {}) or dataset.fully_labelled[dataset.validation].any()
    if given or not dataset.source:
        return dataset
    return replace(dataset, train=np.union1d(dataset.train, dataset.validation), validation=dataset.validation[:0])


def _check_out(out: Path, data: str | Path | Dataset) -> None:
    if file := next((place for place in (out, *out.parents) if place.is_file()), None):
        raise InputError(f"--out {out}: {file} is a file; choose a folder for the run")
    path = data.source.get("path", "") if isinstance(data, Dataset) else data
    if path and Path(path).exists() and out.resolve() == Path(path).resolve():
        raise InputError(f"--out {out} is the data folder itself: choose another folder for the run")
    check_results_folder(out, "run.json", RUN_FILES)


def _with_decisions(dataset: Dataset, path: Path, notify: Callable[[str], None]) -> Dataset:
    """The data set with the answers in a database as verified labels."""
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


def _train_settings(rows: int, device: torch.device, train: dict[str, Any]) -> TrainSettings:
    steps = train["epochs"] * max(rows // train["batch_size"], 1)
    return TrainSettings(
        **train,
        schedule="cosine",
        averaging=1 - 1 / max(steps / 10, 10),  # over about a tenth of all steps, and at least ten
        precision=default_precision(device),
        views=ViewSettings(crop_scale=(0.7, 1.0)),
    )


def _open(data: str | Path | Dataset, usual: int, size: int | None, options: dict[str, Any]) -> Dataset:
    """Open the data with images of this size, or of the usual one, unless they have a fixed size."""
    wanted = size or usual
    if isinstance(data, Dataset):
        return _resized(data, wanted, explicit=size is not None)
    fixed = options.get("kind") in ("features", "texts") or str(data).lower().endswith((".npy", ".npz"))
    if str(data) == "scenes" or fixed or (options.get("kind") is None and is_text_folder(Path(data))):
        return open_data(data, **options)
    return open_data(data, **{"size": wanted, **options})


def _resized(data: Dataset, size: int, explicit: bool) -> Dataset:
    """The data set with images of this size, if it was asked for or the data set was opened without a size."""
    store, opened = data.store, data.source.get("options", {})
    if not isinstance(store, ImageStore) or size == store.size or ("size" in opened and not explicit):
        return data
    if not data.source or data.source["kind"] == "scenes":
        if explicit:
            raise InputError(f"size {size} does not fit the data set, whose images have {store.size} pixels")
        return data
    other = open_data(data.source["path"], **{**opened, "kind": data.source["kind"], "size": size})
    return replace(data, store=other.store, source=other.source) if list(other.names) == list(data.names) else data


def _check_inputs(kind: str, **given: Any) -> None:
    """Raise `InputError` for an option that applies only to another kind of data."""
    for option, value in given.items():
        if value is not None:
            reason = ", where nothing has to be tuned" if option in ("epochs", "batch_size", "learning_rate") else ""
            data = f"this data is features or texts{reason}" if kind == "images" else "this data is images"
            raise InputError(f"--{option.replace('_', '-')} {value} applies only to {kind}, and {data}: leave it out")
