"""What the files of a run may contain. Each file is read once, and checked against its schema here."""

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from spml.errors import InputError

T = TypeVar("T")

Natural = Annotated[int, Meta(ge=0, le=2**53)]
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Names = Annotated[list[str], Meta(min_length=1)]


class Best(TypedDict):
    """The best epoch of a training."""

    score: float | None
    epoch: Natural
    weights: Literal["raw", "averaged"]


class MethodRecord(TypedDict):
    """The method's name; its settings are further keys."""

    name: str


class TrainRecord(TypedDict):
    """The settings of training that are read again; there are more. Training on features has no epochs."""

    epochs: NotRequired[Size]
    seed: NotRequired[Annotated[int, Meta(ge=0)]]


class DataRecord(TypedDict, total=False):
    """Fingerprints of the data."""

    rows: Natural
    labels: str
    validation: str | None
    source: str


class InputsRecord(TypedDict):
    """The inputs of a run that trained no network, and the columns of the table they come from."""

    kind: Literal["features", "texts", "images"]
    columns: list[str]


class NetworkRecord(TypedDict, total=False):
    """The description of a network, from which it is built again: a classifier of images, or a model of features."""

    backbone: str
    head: str
    head_settings: dict[str, Any]
    num_classes: Size
    image_size: Size
    mean: Annotated[list[float], Meta(min_length=3, max_length=3)]
    std: Annotated[list[Annotated[float, Meta(gt=0)]], Meta(min_length=3, max_length=3)]
    zooms: Annotated[list[Annotated[float, Meta(gt=0, le=16)]], Meta(min_length=1)]
    pooling: Literal["mean", "rms"]
    activation: Literal["sigmoid", "softmax"]
    features: Size
    regions: Natural
    learners: list[dict[str, Any]]
    centred: bool
    normalised: bool
    at_least_one: bool
    correction: bool


class RunRecord(TypedDict):
    """run.json. `files` holds the digest of every file of a finished run."""

    method: MethodRecord
    train: TrainRecord
    model: NetworkRecord
    classes: Names
    spml: NotRequired[str]
    data: NotRequired[DataRecord]
    k: NotRequired[Annotated[float, Meta(gt=0)] | None]
    inputs: NotRequired[InputsRecord]
    files: NotRequired[dict[str, str]]


class StagesRecord(TypedDict):
    """stages.json: a training that continues from the classifier on frozen features."""

    request: dict[str, Any]
    epochs: Size | None
    """Of fine-tuning, once they have been chosen."""
    choice: str | None
    """What is kept and why, once both are trained."""
    adopting: bool
    """Whether the files of the second stage are being moved into the run folder."""


class BestRecord(TypedDict):
    """The record of best.safetensors; run.json's keys are repeated in it."""

    best: Best
    model: NetworkRecord


class CheckpointRecord(TypedDict):
    """The record of last.safetensors."""

    step: Natural
    best: Best
    stale: Natural
    labels: str


class Source(TypedDict):
    """How to open the data again."""

    path: str
    options: dict[str, Any]
    kind: NotRequired[str]


class PredictionsRecord(TypedDict):
    """The record of predictions.safetensors."""

    source: Source
    data: NotRequired[str]


class LogLine(TypedDict):
    """A line of log.jsonl; its kind decides what else it holds."""

    kind: str
    step: Natural


class EpochLine(LogLine):
    epoch: Size
    loss: float
    validation_raw: NotRequired[float]
    validation_averaged: NotRequired[float]
    rows_per_second: NotRequired[float]


class HistogramLine(LogLine):
    epoch: NotRequired[Size]
    counts: Annotated[list[Natural], Meta(min_length=1)]


class CandidateLine(LogLine):
    """A learner that training on features tried."""

    name: str
    log_likelihood: float
    standard_error: float
    chosen: bool
    weight: float


class EndLine(LogLine):
    summary: NotRequired[str]


class BadImagesLine(LogLine):
    count: Natural
    names: list[str]


LOG_LINES: dict[str, type[LogLine]] = {
    "epoch": EpochLine,
    "histogram": HistogramLine,
    "bad images": BadImagesLine,
    "candidate": CandidateLine,
    "end": EndLine,
}


class EncoderRecord(TypedDict):
    """The record of encoder.safetensors; the kind decides what else it holds."""

    kind: str
    vocabularies: NotRequired[list[tuple[str, list[str]]]]
    """The terms of each kind, in the order of the columns."""
    model: NotRequired[str]


RowNames = list[str]
"""names.json."""
Digests = dict[str, str]
"""outputs.json: the digest of every file that a command wrote for the user."""


def check_schema(path: Path, content: Any, schema: type[T], part: str = "") -> T:
    """Return the content of a file; raise `InputError` if it does not have the types that a schema declares.

    Parameters
    ----------
    path : Path
        Named in the error.
    content : object
        As `json.loads` returns it. Keys that the schema does not name are kept.
    schema : type
        A `TypedDict`, or another type that `msgspec.convert` accepts.
    part : str
        The part of the file that was read, such as "line 3: ".

    Examples
    --------
    >>> check_schema(Path("names.json"), ["a", 1], list[str])
    Traceback (most recent call last):
    spml.errors.InputError: names.json is damaged, or was not written by spml (Expected `str`, got `int` - at `$[1]`)
    """
    try:
        msgspec.convert(content, schema)
    except (msgspec.ValidationError, RecursionError) as error:
        raise damaged(path, f"{part}{error}") from None
    checked: T = content
    return checked


def damaged(path: Path, reason: object) -> InputError:
    """The error for a file that cannot be what we wrote."""
    text = " ".join(str(reason).split())
    return InputError(f"{path} is damaged, or was not written by spml ({text[:300]})")


def check_parts(path: Path, rows: int, parts: dict[str, np.ndarray]) -> None:
    """Check that the parts of a data set are disjoint sets of row numbers."""
    count = np.zeros(rows, np.int8)
    for name, part in parts.items():
        if part.dtype != np.int64 or part.ndim != 1 or (len(part) and not 0 <= part.min() <= part.max() < rows):
            raise damaged(path, f"{name} must list row numbers below {rows}")
        np.add.at(count, part, 1)
    if (count > 1).any():
        raise damaged(path, f"row {int(np.argmax(count > 1))} is in two parts")


def check_probabilities(path: Path, probabilities: np.ndarray, shape: tuple[int, int], rows: np.ndarray) -> None:
    """Check that a table of predictions has this shape, and probabilities in these rows."""
    if probabilities.dtype != np.float32 or probabilities.shape != shape:
        found = f"{probabilities.dtype} {probabilities.shape}"
        raise damaged(path, f"the predictions are {found}, expected float32 {shape}")
    for start in range(0, len(rows), 65_536):
        part = probabilities[rows[start : start + 65_536]]
        if part.size and not (part.min() >= -1e-6 and part.max() <= 1 + 1e-6):
            raise damaged(path, "a prediction is not between 0 and 1")
