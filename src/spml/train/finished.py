"""A finished run: the trained network, what was known of every row, and what the network says of it."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spml.data.dataset import Dataset
from spml.data.detect import open_data
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import SUFFIXES, ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.models import Classifier, classifier_from_description
from spml.models.feature_classifier import FeatureClassifier, feature_classifier_from_description
from spml.runs.checkpoint import read_json, read_record, read_tensors, write_tensors, write_text
from spml.runs.log import read_log
from spml.train.evaluation import predict
from spml.train.loop import Run

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

PREDICTIONS = "predictions.safetensors"

_TABLES = (".csv", ".tsv", ".parquet", ".pq")  # what `open_data` takes for a table


def finish(run: Run, dataset: Dataset, source: dict[str, Any]) -> None:
    """Write beside a trained network what the commands after training need: predictions for all rows, the labels.

    `source` is {"path": …, "options": {…}}: how the data was opened, so that its images can be found again.
    """
    folder, processes = run.folder, run.processes
    network = best_network(folder) if processes.first else _new_network(run.record()["model"])
    network.to(run.device)
    processes.synchronise(list(network.state_dict().values()))  # the first one's files may be on another machine
    rows = np.concatenate([dataset.train, dataset.validation, dataset.test])
    precision = run.settings.precision
    scores = predict(network, dataset.store, rows, device=run.device, precision=precision, processes=processes).cpu()
    if processes.first:
        probabilities = torch.full((len(dataset), len(dataset.classes)), torch.nan)
        probabilities[torch.from_numpy(rows)] = scores
        parts = {name: torch.from_numpy(getattr(dataset, name)) for name in ("train", "validation", "test")}
        dataset.labels.save(folder / "labels.npz")
        if dataset.truth is not None:
            dataset.truth.open().save(folder / "truth.npz")
        write_text(folder / "names.json", json.dumps(dataset.names.tolist()))
        record = {"source": source, "data": dataset.name}
        write_tensors(folder / PREDICTIONS, {"probabilities": probabilities, **parts}, record)
    processes.wait()


def best_network(folder: Path) -> Classifier | FeatureClassifier:
    """The network of a run's best epoch."""
    tensors, record = read_tensors(folder / "best.safetensors")
    network = _new_network(record["model"])
    network.load_state_dict(tensors)
    return network.eval()


def _new_network(model: dict[str, Any]) -> Classifier | FeatureClassifier:
    make = feature_classifier_from_description if "features" in model else classifier_from_description
    network: Classifier | FeatureClassifier = make(model)
    return network


@dataclass(frozen=True)
class FinishedRun:
    """The files of a run folder, read."""

    folder: Path
    record: dict[str, Any]
    """run.json: method, settings of training, model, classes."""
    best: dict[str, Any]
    """{score, epoch, weights} of the best epoch."""
    log: list[dict[str, Any]]
    """log.jsonl: one line of kind "epoch" an epoch, with loss and validation_raw, validation_averaged."""
    names: list[str]
    """One name a row."""
    labels: Labels
    """What was known of every row."""
    truth: Labels | None
    """All labels of every row, where somebody knows them; unknown entries are 0."""
    probabilities: Float32
    """(N, L), NaN for rows in none of the three parts."""
    train: Int64
    validation: Int64
    test: Int64
    source: dict[str, Any]
    """How the data was opened: {"path", "options"}."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def method(self) -> str:
        return str(self.record["method"]["name"])

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels.classes

    def describe(self) -> dict[str, Any]:
        """What the run is, in words and numbers."""
        return {
            "data": self.source["path"],
            "rows": f"{len(self.train)} train, {len(self.validation)} held out, {len(self.test)} test",
            **_begun(self.record, self.log),
            "best epoch": self.best["epoch"],
            "held-out score": "-" if self.best["score"] is None else round(self.best["score"], 4),
            "truth known": "yes" if self.truth is not None else "no",
        }

    def epochs(self) -> list[dict[str, Any]]:
        """The log's lines of epochs."""
        return [line for line in self.log if line["kind"] == "epoch"]

    def network(self) -> Classifier | FeatureClassifier:
        """The trained network, on the CPU, in evaluation mode."""
        return best_network(self.folder)

    @cached_property
    def store(self) -> ImageStore | FeatureStore | None:
        """The rows' images or features, or None where the data is no longer there, or no longer the same rows."""
        try:
            data = open_data(self.source["path"], **self.source["options"])
        except InputError:
            return None
        return data.store if data.names.tolist() == self.names else None


def open_run(folder: str | Path) -> FinishedRun:
    """Read a run folder; says what is missing if it is none, or not finished."""
    path = Path(folder)
    if not (path / "run.json").exists():
        raise InputError(f"{path} is not a run: there is no run.json in it. `spml train DATA --out {path}` makes one")
    if not (path / PREDICTIONS).exists():
        raise InputError(
            unfinished(path)
            or f"the run in {path} is not finished: repeat its `spml train` command, it goes on where it was"
        )
    tensors, extra = read_tensors(path / PREDICTIONS)
    best = read_record(path / "best.safetensors")["best"]
    return FinishedRun(
        folder=path,
        record=read_json(path / "run.json", "method", "train", "model", "classes"),
        best=best,
        log=read_log(path / "log.jsonl"),
        names=read_json(path / "names.json"),
        labels=Labels.load(path / "labels.npz"),
        truth=Labels.load(path / "truth.npz") if (path / "truth.npz").exists() else None,
        probabilities=tensors["probabilities"].numpy(),
        train=tensors["train"].numpy(),
        validation=tensors["validation"].numpy(),
        test=tensors["test"].numpy(),
        source=extra["source"],
    )


def describe(folder: Path) -> dict[str, Any]:
    """What the run in a folder is, in words and numbers, and the files in it; also of one that is not finished."""
    if (folder / "run.json").exists() and not (folder / PREDICTIONS).exists():
        record = read_json(folder / "run.json", "method", "train", "model", "classes")
        told = {"state": "not finished: repeat its `spml train` command, it goes on where it was"}
        told |= _begun(record, read_log(folder / "log.jsonl") if (folder / "log.jsonl").exists() else [])
    else:
        told = open_run(folder).describe()
    return told | {"files": ", ".join(sorted(file.name for file in folder.iterdir() if file.is_file()))}


def _begun(record: dict[str, Any], log: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known of a run from its start on."""
    settings = {name: value for name, value in record["method"].items() if name != "name"}
    done = sum(line["kind"] == "epoch" for line in log)
    return {
        "classes": len(record["classes"]),
        "method": record["method"]["name"],
        "settings": ", ".join(f"{name} {value}" for name, value in settings.items()) or "none",
        "network": record["model"].get("backbone", "linear on features"),
        "epochs": f"{done} of {record['train']['epochs']}",
    }


def unfinished(folder: Path) -> str | None:
    """A sentence on a run that was broken off after its first epoch and before its last; None for any other."""
    log = folder / "log.jsonl"
    lines = read_log(log) if log.exists() else []
    done = sum(line["kind"] == "epoch" for line in lines)
    if not done or any(line["kind"] == "end" for line in lines):
        return None
    epochs = read_json(folder / "run.json", "train")["train"]["epochs"]
    return (
        f"the run in {folder} is not finished, {done} of {epochs} epochs are done: repeat its `spml train` command, it "
        "goes on where it was"
    )


def refuse_among_data(out: Path, folder: Path) -> None:
    """What is made of a run must not replace the data it was trained on, nor lie where it would be taken for data."""
    if not (folder / PREDICTIONS).exists():  # a run broken off does not say where its data was
        return
    source = read_record(folder / PREDICTIONS)["source"]
    place, data, options = out.resolve(), Path(source["path"]), source["options"]
    if place in (data, Path(options.get("labels") or data)):
        raise InputError(f"--out {out} is a file the run was trained on: name another one")
    suffix, home = out.suffix.lower(), data if data.is_dir() else data.parent
    of_images = {home, Path(options.get("image_root") or home)}
    if (suffix in _TABLES and place.parent == data) or (suffix in SUFFIXES and of_images & set(place.parents)):
        raise InputError(
            f"--out {out} lies in the data folder {home}, where it would be taken for data: name a place elsewhere"
        )
