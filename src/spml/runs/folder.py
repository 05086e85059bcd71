"""Run folders: the trained network, the observed labels and the predictions, read back from disk."""

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.data.dataset import PARTS, TABLES, Store
from spml.data.detect import open_data
from spml.data.formats.table import labels_beside
from spml.data.stores.decode import SUFFIXES
from spml.errors import InputError
from spml.labels import Labels
from spml.models import Classifier, classifier_from_description
from spml.models.feature_model import FeatureModel, feature_model_from_description
from spml.models.text_encoders import TextEncoder, encoder_from_record
from spml.runs.files import digest, load_weights, read_json, read_record, read_tensors, write_text
from spml.runs.log import read_log
from spml.runs.schema import (
    BestRecord,
    EncoderRecord,
    PredictionsRecord,
    RowNames,
    RunRecord,
    check_parts,
    check_probabilities,
    damaged,
)

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

CROSS_FITTED = "each predicted by classifiers that did not see its label"
"""Of rows; see `RunFolder.cross_fitted`."""

PREDICTIONS = "predictions.safetensors"
ENCODER = "encoder.safetensors"
"""Of texts."""

BOUND_FILES = (
    *("names.json", "labels.npz", "given.npz", "decided.npz", "truth.npz"),
    *("best.safetensors", "best-memory.safetensors", ENCODER),
    PREDICTIONS,
)
"""The files of a finished run whose digests run.json records. `last.safetensors` and the log may still change."""

_MAX_SETTING = 65_536  # of a network: image size, width of a head
_RESTORE = "Restore it from a copy, or train again in another folder"
_RESUME = "Run the same `spml train` command to resume it"


class RunWarning(UserWarning):
    """A run can be used, but not everything about it could be checked."""


Network: TypeAlias = Classifier | FeatureModel


def best_network(folder: Path) -> Network:
    """Return the network of a run's best epoch."""
    path = folder / "best.safetensors"
    tensors, record = read_tensors(path, BestRecord)
    network = stored_network(path, record["model"], tensors)
    return network.eval()


def stored_network(path: Path, model: dict[str, Any], tensors: Mapping[str, Tensor]) -> Network:
    """Return the network that a file describes, with its weights; raises `InputError` if they do not fit each other.

    A damaged description could ask for terabytes: a layer that the file does not hold is never allocated.
    """
    largest = max((max(tensor.shape, default=1) for tensor in tensors.values()), default=0)
    numbers = [value for value in _numbers(model) if isinstance(value, int)]
    if any(abs(number) > max(largest, _MAX_SETTING) for number in numbers):
        raise damaged(path, f"the network is described as larger than its tensors ({max(numbers)})")
    try:
        network = new_network(model)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        raise damaged(path, f"the description of the network: {type(error).__name__}: {error}") from None
    expected = network.state_dict()
    for name, tensor in tensors.items():
        if name in expected and tensor.dtype != expected[name].dtype:
            raise damaged(path, f"the tensor {name!r} is {tensor.dtype}, expected {expected[name].dtype}")
        may_be_infinite = name.endswith((".deviation", ".threshold"))  # of a constant feature; of a tree
        if not bool((~torch.isnan(tensor) if may_be_infinite else torch.isfinite(tensor)).all()):
            raise InputError(
                f"{path}: the tensor {name!r} is not finite: the training diverged, or the file is damaged"
            )
    load_weights(network, tensors, path)
    try:
        for part in network.modules():
            if isinstance(part, FeatureModel):
                part.check()
    except ValueError as error:
        raise damaged(path, error) from None
    return network


def _numbers(value: Any) -> Iterator[float]:
    """Yield all numbers in a nested description."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    elif isinstance(value, int | float):
        yield value


def new_network(model: dict[str, Any]) -> Network:
    """Return a network as described in run.json, with random weights."""
    return feature_model_from_description(model) if "learners" in model else classifier_from_description(model)


def read_encoder(folder: Path) -> TextEncoder | None:
    """Return the encoder of a run on texts; None for any other run."""
    path = folder / ENCODER
    if not path.exists():
        return None
    tensors, record = read_tensors(path, EncoderRecord)
    try:
        return encoder_from_record(record, tensors)
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from None


@dataclass(frozen=True)
class RunFolder:
    """The content of a finished run's folder, as read by `open_run`."""

    folder: Path
    record: dict[str, Any]
    """run.json: method, settings of training, model, classes."""
    best: dict[str, Any]
    """{score, epoch, weights} of the best epoch; of a run on features, score alone has a meaning."""
    log: list[dict[str, Any]]
    """log.jsonl: one line of kind "epoch" per epoch, with loss, validation_raw and validation_averaged; for a run on
    features, one of kind "candidate" per learner that was tried."""
    names: list[str]
    """One name per row."""
    labels: Labels
    """The observed labels of every row."""
    truth: Labels | None
    """The full labels, if known; entries that are unknown are 0."""
    probabilities: Float32
    """Predictions of shape (N, L); NaN for rows outside the three parts. See `cross_fitted`."""
    train: Int64
    validation: Int64
    test: Int64
    source: dict[str, Any]
    """How to open the data again: {"path", "options"}."""
    given: Labels | None = None
    """The labels that came with the data, if people have answered questions; `labels` combines both."""
    decided: Labels | None = None
    """The answers of people, if any: +1 yes, -1 no."""
    unconditional: Float32 | None = None
    """`independent`, if it differs from `probabilities`."""

    @property
    def given_labels(self) -> Labels:
        """The labels that came with the data."""
        return self.labels if self.given is None else self.given

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
        """Return a summary of the run: data, method, settings, best epoch."""
        return {
            "data": self.source["path"],
            "rows": f"{self.rows_in_words}; {len(self.test)} test rows",
            **_summary(self.record, self.log),
            **({"choice": self.choice} if self.cross_fitted else {"best epoch": self.best["epoch"]}),
            "held-out score": "-" if self.best["score"] is None else round(100 * self.best["score"], 1),
            "full labels known": "yes" if self.truth is not None else "no",
        }

    @property
    def rows_in_words(self) -> str:
        """How many rows the network learned from, and which predictions of rows are held out."""
        return rows_in_words(len(self.train), len(self.validation), cross_fitted=self.cross_fitted)

    def epochs(self) -> list[dict[str, Any]]:
        """Return the log lines of kind "epoch"."""
        return [line for line in self.log if line["kind"] == "epoch"]

    @property
    def cross_fitted(self) -> bool:
        """Whether the predictions of training rows come from models that were not trained on the row's label."""
        model = self.record.get("model", {})
        return "learners" in model or model.get("head") == "features"

    @property
    def independent(self) -> Float32:
        """The input of the calibration: predictions that do not take into account that every row has a label."""
        return self.probabilities if self.unconditional is None else self.unconditional

    @property
    def choice(self) -> str:
        """What a training on features chose, in a sentence."""
        return next((line.get("summary", "") for line in reversed(self.log) if line["kind"] == "end"), "")

    @property
    def short_choice(self) -> str:
        """`choice` without names and numbers."""
        candidates = self.candidates()
        chosen = sum(candidate["chosen"] for candidate in candidates)
        if len(candidates) < 2:
            return self.choice
        several = f"Combined {chosen} classifiers, chosen by how well they predict"
        one = f"Chose one of {len(candidates)} classifiers by how well it predicts"
        return f"{several if chosen > 1 else one} held-out labels (details: spml report)"

    def candidates(self) -> list[dict[str, Any]]:
        """Return the log lines of kind "candidate"."""
        return [line for line in self.log if line["kind"] == "candidate"]

    @cached_property
    def encoder(self) -> TextEncoder | None:
        """The encoder of a run on texts."""
        return read_encoder(self.folder)

    def network(self) -> Network:
        """Return the network of the best epoch, on the CPU, in evaluation mode."""
        return best_network(self.folder)

    @cached_property
    def store(self) -> Store | None:
        """The rows' images, features or texts; None if the data is gone or its rows have changed."""
        try:
            data = open_data(self.source["path"], **self.source["options"])
        except InputError:
            return None
        return data.store if data.names.tolist() == self.names else None


def rows_in_words(train: int, held_out: int, *, cross_fitted: bool) -> str:
    """Describe which rows a model learns from, and which predictions are held out.

    Examples
    --------
    >>> rows_in_words(240, 60, cross_fitted=False)
    '240 training rows, 60 held out'
    >>> rows_in_words(300, 0, cross_fitted=True)
    '300 training rows, each predicted by classifiers that did not see its label'
    """
    rows, others = f"{train} training rows", f"{held_out} held out"
    if not cross_fitted:
        return f"{rows}, {others}"
    return f"{rows}, {CROSS_FITTED}" + (f"; {others}" if held_out else "")


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
    record = read_run_record(path)
    check_files(path, record)
    tensors, extra = read_tensors(path / PREDICTIONS, PredictionsRecord)
    if missing := {"probabilities", *PARTS} - tensors.keys():
        raise damaged(path / PREDICTIONS, f"it lacks {', '.join(sorted(missing))}")
    probabilities, *parts = (_array(path / PREDICTIONS, tensors[name]) for name in ("probabilities", *PARTS))
    names = read_json(path / "names.json", RowNames)
    labels = _read_labels(path / "labels.npz", record["classes"], len(names))
    truth, given, decided = (
        _read_labels(file, record["classes"], len(names)) if (file := path / f"{name}.npz").exists() else None
        for name in ("truth", "given", "decided")
    )
    check_parts(path / PREDICTIONS, len(names), dict(zip(PARTS, parts, strict=True)))
    shape = (len(names), len(record["classes"]))
    unconditional = _array(path / PREDICTIONS, tensors["independent"]) if "independent" in tensors else None
    for table in (probabilities, *([] if unconditional is None else [unconditional])):
        check_probabilities(path / PREDICTIONS, table, shape, np.concatenate(parts))
    return RunFolder(
        folder=path,
        record=cast(dict[str, Any], record),
        best=cast(dict[str, Any], read_record(path / "best.safetensors", BestRecord)["best"]),
        log=read_log(path / "log.jsonl"),
        names=names,
        labels=labels,
        truth=truth,
        probabilities=probabilities,
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        source=cast(dict[str, Any], extra["source"]),
        given=given,
        decided=decided,
        unconditional=unconditional,
    )


def run_settings(run: RunFolder) -> dict[str, Any]:
    """Return the arguments of `spml.train` that a run was trained with; None for those that do not apply.

    A file of weights is not among them: a run records its name, not its path.
    """
    method, train, model = (run.record[name] for name in ("method", "train", "model"))
    settings = {name: value for name, value in method.items() if name != "name"}
    frozen = model.get("head") == "features"
    return {
        "method": method["name"],
        "settings": settings or None,
        "model": model.get("backbone"),
        "head": model.get("head") if "backbone" in model and not frozen else None,
        "effort": "quick" if frozen else None,
        "base": None if frozen else train.get("base"),
        **{name: train.get(name) for name in ("epochs", "batch_size", "learning_rate", "seed")},
        "encoder": run.record.get("inputs", {}).get("encoder"),
        "k": run.record.get("k"),
    }


def read_run_record(folder: Path) -> RunRecord:
    """Read run.json."""
    path = folder / "run.json"
    record = read_json(path, RunRecord)
    if len(set(record["classes"])) < len(record["classes"]):
        raise damaged(path, "two classes have the same name")
    return record


def bind_files(folder: Path) -> None:
    """Record the digest of every file of a finished run in run.json, so that they are recognised as one run."""
    path = folder / "run.json"
    record = read_json(path, RunRecord)
    record["files"] = {name: digest(folder / name) for name in BOUND_FILES if (folder / name).exists()}
    write_text(path, json.dumps(record, indent=2))


def check_files(folder: Path, record: RunRecord, names: Collection[str] | None = None) -> None:
    """Check that the files of a run are those that its training wrote.

    Parameters
    ----------
    folder : Path
    record : RunRecord
        run.json.
    names : collection of str, optional
        The files to check; by default all.

    Raises
    ------
    InputError
        If a file is missing, was changed, or belongs to another run.
    """
    files = record.get("files")
    for name in () if files is None else BOUND_FILES if names is None else names:
        path, expected = folder / name, (files or {}).get(name)
        if expected is not None and not path.is_file():
            raise InputError(f"{path} is missing. {_RESTORE}")
        if path.exists() and digest(path) != expected:
            raise InputError(f"{path} was changed after the training, or belongs to another run. {_RESTORE}")
    if files is None and (folder / PREDICTIONS).exists():
        message = f"{folder} was trained by an earlier version of spml, which recorded no digests of its files: "
        warnings.warn(f"{message}changes to them cannot be detected.", RunWarning, stacklevel=1)
    if (folder / "best.safetensors").exists():
        of_best, own_record = dict(read_record(folder / "best.safetensors", BestRecord)), dict(record)
        of_best.pop("best")
        own_record.pop("files", None)
        if of_best != own_record:
            raise InputError(f"{folder / 'best.safetensors'} belongs to another run than run.json. {_RESTORE}")


def _array(path: Path, tensor: Tensor) -> npt.NDArray[Any]:
    try:
        return tensor.numpy()
    except TypeError as error:  # a type that NumPy does not have
        raise damaged(path, error) from None


def _read_labels(path: Path, classes: Sequence[str], rows: int) -> Labels:
    labels = Labels.load(path)
    if list(labels.classes) != list(classes) or len(labels) != rows:
        raise damaged(path, f"its {len(labels)} rows and classes must be those of names.json ({rows}) and run.json")
    return labels


def describe(folder: Path) -> dict[str, Any]:
    """Return a summary of the run in a folder and its files; also works for unfinished runs."""
    if (folder / "run.json").exists() and not (folder / PREDICTIONS).exists():
        record = cast(dict[str, Any], read_run_record(folder))
        summary: dict[str, Any] = {"state": f"unfinished. {_RESUME}"}
        summary |= _summary(record, read_log(folder / "log.jsonl") if (folder / "log.jsonl").exists() else [])
    else:
        summary = open_run(folder).describe()
    return summary | {"files": ", ".join(sorted(file.name for file in folder.iterdir() if file.is_file()))}


def _summary(record: dict[str, Any], log: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known about a run from its start."""
    settings = {name: value for name, value in record["method"].items() if name != "name"}
    done, train = sum(line["kind"] == "epoch" for line in log), record["train"]
    summary = {
        "classes": len(record["classes"]),
        "method": record["method"]["name"],
        "settings": ", ".join(f"{name} {value}" for name, value in settings.items()) or "none",
    }
    if "inputs" in record:
        return summary | {"inputs": record["inputs"]["kind"], "base": train.get("base", "auto")}
    network = record["model"].get("backbone", "linear on features")
    return summary | {"network": network, "epochs": f"{done} of {train['epochs']}"}


def unfinished(folder: Path) -> str | None:
    """A message about a run that was interrupted between its first and its last epoch; None for any other folder."""
    log = folder / "log.jsonl"
    lines = read_log(log) if log.exists() else []
    done = sum(line["kind"] == "epoch" for line in lines)
    if not done or any(line["kind"] == "end" for line in lines):
        return None
    epochs = read_run_record(folder)["train"].get("epochs", "?")
    return f"{folder} is an unfinished run ({done} of {epochs} epochs). {_RESUME}"


def check_output_path(out: Path, folder: Path) -> None:
    """Raise `InputError` if an output file would replace the run's data, or would be mistaken for part of it."""
    if not (folder / PREDICTIONS).exists():  # an unfinished run does not record where its data is
        return
    source = read_record(folder / PREDICTIONS, PredictionsRecord)["source"]
    target, data, options = out.resolve(), Path(source["path"]), source["options"]
    found = data.suffix.lower() in (".npy", ".npz") and not options.get("labels")
    beside = labels_beside(data) if found else []
    if target in (data, Path(options.get("labels") or data), *beside):
        raise InputError(f"--out {out} is a file the run was trained on: use another path")
    suffix, home = out.suffix.lower(), data if data.is_dir() else data.parent
    of_images = {home, Path(options.get("image_root") or home)}
    if (suffix in TABLES and target.parent == data) or (suffix in SUFFIXES and of_images & set(target.parents)):
        raise InputError(
            f"--out {out} lies in the data folder {home}, where it would be mistaken for data: use another folder"
        )
