"""Save a trained classifier without its training data, in the layout of the Hugging Face Hub, and load it again."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load_file

import spml
from spml.atomic import explain_write_errors
from spml.calibration import Calibration, Float64, Presence, Recalibration
from spml.errors import InputError
from spml.labels import KEstimate
from spml.metrics import mean_average_precision
from spml.predict.predictor import Decision, Predictor
from spml.recover import Rule
from spml.runs.files import copy_tensors, digest, read_json, write_safetensors, write_tensors, write_text
from spml.runs.folder import ENCODER, RunFolder, read_encoder, stored_network
from spml.runs.schema import Names, Natural, NetworkRecord, damaged

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"

_Number = Annotated[float, Meta(ge=-1e9, le=1e9)]
_Share = Annotated[float, Meta(ge=-1e-6, le=1 + 1e-6)]


@dataclass(frozen=True)
class TrainingRecord:
    """How a classifier was trained, and its scores."""

    data: str
    """Name of the data."""
    rows: dict[str, int]
    """Number of train, validation and test rows."""
    method: str
    settings: dict[str, float | int | str | bool | None]
    """Settings of the method."""
    train: dict[str, float | int | str]
    """Of images: epochs, batch size, learning rate, seed. Of features and texts: base, seed."""
    best_epoch: int
    """0 for features and texts, which have no epochs."""
    validation_score: float | None
    """mAP on held-out rows, where unknown labels count as absent."""
    test_map: float | None
    """mAP on the test rows, if their full labels are known."""


class PresenceRecord(TypedDict):
    """`Presence`."""

    slope: Annotated[float, Meta(gt=0, le=1e9)]
    offsets: list[_Number]


class CorrectionRecord(TypedDict):
    """`Recalibration`."""

    weights: Annotated[list[_Number], Meta(min_length=2, max_length=2)]
    covariance: Annotated[
        list[Annotated[list[_Number], Meta(min_length=2, max_length=2)]], Meta(min_length=2, max_length=2)
    ]


class KRecord(TypedDict):
    """`KEstimate`."""

    k: Annotated[float, Meta(ge=0, le=1e9)]
    low: Annotated[float, Meta(ge=0, le=1e9)]
    high: Annotated[float, Meta(ge=0, le=1e9)]
    rows: Natural


class CalibrationRecord(PresenceRecord):
    """`Calibration`."""

    readings: Annotated[list[PresenceRecord], Meta(min_length=1)]
    corrections: Annotated[list[CorrectionRecord], Meta(min_length=2, max_length=2)]
    at_least_one: bool
    frequencies: list[_Share]
    k: KRecord
    full_rows: Natural
    log_likelihood: float


class DecisionRecord(TypedDict):
    """Calibration and rule, as stored in config.json; None stands for an infinite threshold."""

    calibration: CalibrationRecord
    reading: Literal["balanced", "cautious"]
    thresholds: list[_Share | None]
    most: Natural | None


class PretrainedConfig(TypedDict):
    """config.json."""

    model: NetworkRecord
    classes: Names
    image_policy: Literal["squash", "crop"]
    decision: DecisionRecord | None
    training: TrainingRecord
    columns: NotRequired[list[str]]
    texts: NotRequired[bool]
    files: NotRequired[dict[str, str]]
    """Digests of the files next to config.json, and of the rest of config.json."""


def is_pretrained(folder: Path) -> bool:
    """Return whether `save_pretrained` wrote this folder."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


def save_pretrained(predictor: Predictor, training: TrainingRecord, folder: Path) -> None:
    """Write model.safetensors, config.json and a model card.

    Parameters
    ----------
    predictor : Predictor
    training : TrainingRecord
        How the classifier was trained, from `training_record`.
    folder : Path
        New or empty folder, or one that an earlier call wrote.

    Raises
    ------
    InputError
        If the folder holds other files, or cannot be written.
    """
    if folder.exists() and not is_pretrained(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: choose a new folder")
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    config = {
        "library_name": "spml",
        "spml_version": spml.__version__,
        "model": predictor.network.description,
        "classes": predictor.classes,
        "image_policy": predictor.spec.policy,
        "columns": predictor.spec.columns,
        "texts": predictor.spec.texts,
        "decision": _decision_record(predictor),
        "training": asdict(training),
    }
    write_safetensors(folder / WEIGHTS, copy_tensors(predictor.network.state_dict()), {"format": "pt"})
    if predictor.encoder is not None:
        write_tensors(folder / ENCODER, predictor.encoder.tensors(), predictor.encoder.record)
    files = {name: digest(folder / name) for name in (WEIGHTS, ENCODER) if (folder / name).exists()}
    config["files"] = {CONFIG: _config_digest(config), **files}
    write_text(folder / CONFIG, json.dumps(config, indent=2, allow_nan=False) + "\n")
    write_text(folder / CARD, _model_card(config, training))


def load_pretrained(folder: Path, device: str = "auto") -> tuple[Predictor, TrainingRecord]:
    """Read what `save_pretrained` wrote: the predictor, and how it was trained."""
    config = read_json(folder / CONFIG, PretrainedConfig)
    for name, expected in config.get("files", {}).items():
        if name in (WEIGHTS, ENCODER) and (not (folder / name).is_file() or digest(folder / name) != expected):
            raise InputError(
                f"{folder / name} is missing, was changed, or belongs to another model than {CONFIG}: copy the whole "
                "folder"
            )
    if config.get("files", {}).get(CONFIG) not in (None, _config_digest(config)):  # earlier versions wrote no digest
        raise InputError(f"{folder / CONFIG} was changed after it was saved: copy the whole folder again")
    training = msgspec.convert(config["training"], TrainingRecord)
    try:
        tensors = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise damaged(folder / WEIGHTS, error) from None
    network = stored_network(folder / WEIGHTS, dict(config["model"]), tensors)
    if network.num_classes != len(config["classes"]):
        raise damaged(folder / CONFIG, f"it has {len(config['classes'])} classes, the network {network.num_classes}")

    def decide() -> Decision:
        if config["decision"] is None:
            raise InputError(f"{folder} holds no calibration: its run had no labelled rows to calibrate with")
        return _read_decision(folder / CONFIG, config["decision"], len(config["classes"]))

    encoder = read_encoder(folder) if config.get("texts") else None
    if config.get("texts") and encoder is None:
        raise InputError(f"{folder / ENCODER} is missing: copy the whole folder")
    predictor = Predictor(
        folder,
        network.eval(),
        tuple(config["classes"]),
        decide,
        policy=config["image_policy"],
        columns=config.get("columns", ()),
        encoder=encoder,
        device=device,
    )
    return predictor, training


def training_record(run: RunFolder) -> TrainingRecord:
    """How a run was trained and how good it is, without paths of this machine."""
    train = run.record["train"]
    return TrainingRecord(
        data=Path(str(run.source["path"])).name,
        rows={"train": len(run.train), "validation": len(run.validation), "test": len(run.test)},
        method=run.method,
        settings={name: value for name, value in run.record["method"].items() if name != "name"},
        train={
            name: train[name] for name in ("epochs", "batch_size", "learning_rate", "base", "seed") if name in train
        },
        best_epoch=run.best["epoch"],
        validation_score=run.best["score"],
        test_map=_test_map(run),
    )


def _test_map(run: RunFolder) -> float | None:
    """Mean average precision on the test rows, if their full labels are known."""
    if run.truth is None or not len(run.test):
        return None
    truth = run.truth.dense(run.test)
    if not (truth > 0).any():
        return None
    return float(mean_average_precision(run.probabilities[run.test], truth > 0, mask=truth != 0))


def _decision_record(predictor: Predictor) -> dict[str, Any] | None:
    try:
        calibration, rule = predictor.decision
    except InputError:  # a run without labelled rows cannot be calibrated, but predicts
        return None
    thresholds = [value if np.isfinite(value) else None for value in rule.thresholds.tolist()]
    record = {"reading": rule.reading, "thresholds": thresholds, "most": rule.most}
    return record | {"calibration": _as_lists(asdict(calibration))}


def _as_lists(value: Any) -> Any:
    """Return a nested record with lists instead of arrays and tuples."""
    if isinstance(value, dict):
        return {name: _as_lists(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_as_lists(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def _config_digest(config: Mapping[str, Any]) -> str:
    """The digest of what config.json says, however it is formatted."""
    content = json.loads(json.dumps({name: value for name, value in config.items() if name != "files"}))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_decision(path: Path, record: DecisionRecord, classes: int) -> Decision:
    numbers = record["calibration"]
    calibration = Calibration(
        slope=float(numbers["slope"]),
        offsets=np.array(numbers["offsets"], np.float64),
        readings=tuple(
            Presence(float(entry["slope"]), np.array(entry["offsets"], np.float64)) for entry in numbers["readings"]
        ),
        corrections=(_recalibration(numbers["corrections"][0]), _recalibration(numbers["corrections"][1])),
        at_least_one=numbers["at_least_one"],
        frequencies=np.array(numbers["frequencies"], np.float64),
        k=KEstimate(numbers["k"]["k"], numbers["k"]["low"], numbers["k"]["high"], numbers["k"]["rows"]),
        full_rows=numbers["full_rows"],
        log_likelihood=float(numbers["log_likelihood"]),
    )
    thresholds = np.array([np.inf if value is None else value for value in record["thresholds"]], np.float64)
    sizes = {len(thresholds), len(calibration.frequencies), *(entry.offsets.size for entry in calibration.readings)}
    if sizes != {classes} or calibration.offsets.size != classes:
        raise damaged(path, f"the calibration does not fit {classes} classes")
    if not all(math.isfinite(number) for number in _floats(numbers)) or np.isnan(thresholds).any():
        raise damaged(path, "the calibration: a number is not finite")
    for entry in calibration.corrections:
        if not _is_covariance(entry.covariance):
            raise damaged(path, "the calibration: a correction's covariance is no covariance")
    return Decision(calibration, Rule(record["reading"], thresholds, record["most"]))


def _floats(value: object) -> Iterator[float]:
    """Yield the floating-point numbers in a nested record."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _floats(part)


def _recalibration(record: CorrectionRecord) -> Recalibration:
    return Recalibration(np.array(record["weights"], np.float64), np.array(record["covariance"], np.float64))


def _is_covariance(matrix: Float64) -> bool:
    """Whether a finite matrix is symmetric and has no negative eigenvalue, up to rounding."""
    tolerance = 1e-9 * max(1.0, float(np.abs(matrix).max()))
    return bool(np.allclose(matrix, matrix.T, 0, tolerance) and np.linalg.eigvalsh(matrix).min() >= -tolerance)


def _model_card(config: dict[str, Any], training: TrainingRecord) -> str:
    model, classes, size = config["model"], config["classes"], config["model"].get("image_size")
    validation, test = training.validation_score, training.test_map
    settings = [f"{name} = {value}" for name, value in training.settings.items()]
    task, example = ("image-classification", '"photo.jpg"') if size else ("tabular-classification", "rows")
    if config["texts"]:
        task, example = "text-classification", '"some text"'
    kinds = dict.fromkeys(f"a {learner['kind']} learner" for learner in model.get("learners", ()))
    return (
        Path(__file__)
        .with_name("model_card.md")
        .read_text(encoding="utf-8")
        .format(
            task=task,
            version=config["spml_version"],
            data=_code(training.data),
            example=f"run.predict({example})",
            rows=", ".join(f"{count} {part}" for part, count in training.rows.items()),
            count=len(classes),
            classes=", ".join(map(_code, classes[:100])) + (", …" if len(classes) > 100 else ""),
            method=_code(training.method) + (f" ({', '.join(settings)})" if settings else ""),
            network=f"{_code(model['backbone'])} with a {model['head']} head, {size}×{size} pixels"
            if size
            else f"{' and '.join(kinds)} on {model['features']} features",
            train=", ".join(f"{name.replace('_', ' ')} {value}" for name, value in training.train.items()),
            epoch=f"; best epoch {training.best_epoch}" if training.best_epoch else "",
            validation="no validation rows" if validation is None else f"{validation:.4f}",
            test="not evaluated on fully labelled data" if test is None else f"{test:.4f}",
        )
    )


def _code(text: str) -> str:
    """Text as Markdown code, whatever characters it holds."""
    return "`" + " ".join(str(text).split()).replace("`", "'") + "`"
