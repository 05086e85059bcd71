"""Run folders: the trained network, the observed labels and the predictions, read back from disk."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.data.dataset import Store
from spml.data.detect import open_data
from spml.data.stores.decode import SUFFIXES
from spml.errors import InputError
from spml.labels import Labels
from spml.models import Classifier, classifier_from_description
from spml.models.feature_classifier import FeatureClassifier, feature_classifier_from_description
from spml.runs.files import read_json, read_record, read_tensors
from spml.runs.log import read_log

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

PREDICTIONS = "predictions.safetensors"

_RESUME = "Run the same `spml train` command to resume it"
_TABLES = (".csv", ".tsv", ".parquet", ".pq")  # suffixes that `open_data` takes for tables


def best_network(folder: Path) -> Classifier | FeatureClassifier:
    """The network of a run's best epoch."""
    tensors, record = read_tensors(folder / "best.safetensors")
    network = new_network(record["model"])
    network.load_state_dict(tensors)
    return network.eval()


def new_network(model: dict[str, Any]) -> Classifier | FeatureClassifier:
    """A network as described in run.json, with random weights."""
    make = feature_classifier_from_description if "features" in model else classifier_from_description
    network: Classifier | FeatureClassifier = make(model)
    return network


@dataclass(frozen=True)
class RunFolder:
    """The content of a finished run's folder, as read by `open_run`."""

    folder: Path
    record: dict[str, Any]
    """run.json: method, settings of training, model, classes."""
    best: dict[str, Any]
    """{score, epoch, weights} of the best epoch."""
    log: list[dict[str, Any]]
    """log.jsonl: one line of kind "epoch" per epoch, with loss, validation_raw and validation_averaged."""
    names: list[str]
    """One name per row."""
    labels: Labels
    """The observed labels of every row."""
    truth: Labels | None
    """The full labels, if known; entries that are unknown are 0."""
    probabilities: Float32
    """Predictions of shape (N, L); NaN for rows outside the three parts."""
    train: Int64
    validation: Int64
    test: Int64
    source: dict[str, Any]
    """How to open the data again: {"path", "options"}."""

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
        """A summary of the run: data, method, settings, best epoch."""
        return {
            "data": self.source["path"],
            "rows": f"{len(self.train)} train, {len(self.validation)} held out, {len(self.test)} test",
            **_summary(self.record, self.log),
            "best epoch": self.best["epoch"],
            "held-out score": "-" if self.best["score"] is None else round(self.best["score"], 4),
            "full labels known": "yes" if self.truth is not None else "no",
        }

    def epochs(self) -> list[dict[str, Any]]:
        """The log lines of kind "epoch"."""
        return [line for line in self.log if line["kind"] == "epoch"]

    def network(self) -> Classifier | FeatureClassifier:
        """The network of the best epoch, on the CPU, in evaluation mode."""
        return best_network(self.folder)

    @cached_property
    def store(self) -> Store | None:
        """The rows' images, features or texts; None if the data is gone or its rows have changed."""
        try:
            data = open_data(self.source["path"], **self.source["options"])
        except InputError:
            return None
        return data.store if data.names.tolist() == self.names else None


def open_run(folder: str | Path) -> RunFolder:
    """Read the folder of a finished run.

    Parameters
    ----------
    folder : str or Path
        A folder written by `spml train`.

    Returns
    -------
    RunFolder

    Raises
    ------
    InputError
        If the folder is not a run, or the run is unfinished.
    """
    path = Path(folder)
    if not (path / "run.json").exists():
        raise InputError(f"{path} is not a run: it has no run.json. Create one with `spml train DATA --out {path}`")
    if not (path / PREDICTIONS).exists():
        raise InputError(unfinished(path) or f"{path} is an unfinished run. {_RESUME}")
    tensors, extra = read_tensors(path / PREDICTIONS)
    best = read_record(path / "best.safetensors")["best"]
    return RunFolder(
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
    """A summary of the run in a folder and its files; also works for unfinished runs."""
    if (folder / "run.json").exists() and not (folder / PREDICTIONS).exists():
        record = read_json(folder / "run.json", "method", "train", "model", "classes")
        summary: dict[str, Any] = {"state": f"unfinished. {_RESUME}"}
        summary |= _summary(record, read_log(folder / "log.jsonl") if (folder / "log.jsonl").exists() else [])
    else:
        summary = open_run(folder).describe()
    return summary | {"files": ", ".join(sorted(file.name for file in folder.iterdir() if file.is_file()))}


def _summary(record: dict[str, Any], log: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known about a run from its start."""
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
    """A message about a run that was interrupted between its first and its last epoch; None for any other folder."""
    log = folder / "log.jsonl"
    lines = read_log(log) if log.exists() else []
    done = sum(line["kind"] == "epoch" for line in lines)
    if not done or any(line["kind"] == "end" for line in lines):
        return None
    epochs = read_json(folder / "run.json", "train")["train"]["epochs"]
    return f"{folder} is an unfinished run ({done} of {epochs} epochs). {_RESUME}"


def check_output_path(out: Path, folder: Path) -> None:
    """Raise `InputError` if an output file would replace the run's data, or would be mistaken for part of it."""
    if not (folder / PREDICTIONS).exists():  # an unfinished run does not record where its data is
        return
    source = read_record(folder / PREDICTIONS)["source"]
    place, data, options = out.resolve(), Path(source["path"]), source["options"]
    if place in (data, Path(options.get("labels") or data)):
        raise InputError(f"--out {out} is a file the run was trained on: use another path")
    suffix, home = out.suffix.lower(), data if data.is_dir() else data.parent
    of_images = {home, Path(options.get("image_root") or home)}
    if (suffix in _TABLES and place.parent == data) or (suffix in SUFFIXES and of_images & set(place.parents)):
        raise InputError(
            f"--out {out} lies in the data folder {home}, where it would be mistaken for data: use another folder"
        )
