"""The numbers of one run: test, recovery and agreement with the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, cast

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from spml import metrics
from spml.data.dataset import Dataset
from spml.errors import InputError
from spml.json_text import parse_json
from spml.methods import Method, method
from spml.runs.files import read_json
from spml.runs.schema import damaged
from spml.training.experiment import Experiment
from spml.training.label_draw import LabelDraw

Row = dict[str, Any]
"""The result of one run, by column of the table of runs."""

Score = Annotated[float, Meta(ge=0, le=1)]


class StoredRow(TypedDict):
    """The file of a result. A run that diverged has no measurements; other keys are columns of the table."""

    method: str
    settings: str
    seed: int
    validation_map: Score | None
    seconds: float | None
    best_epoch: NotRequired[int]
    diverged: NotRequired[bool]
    test_map: NotRequired[Score | None]
    test_ap: NotRequired[list[Score]]
    validation_curve: NotRequired[list[float]]
    recovery_map: NotRequired[Score | None]
    recovery_unobserved_map: NotRequired[Score | None]


def read_row(path: Path, experiment: Experiment) -> Row:
    """Read the result of a run; raises `InputError` if the file is damaged, or is the result of another experiment."""
    try:
        row = cast(Row, read_json(path, StoredRow))
    except InputError as error:
        raise InputError(f"{error}: delete it, and run the same command again to compute it") from None
    if not ({"test_map", "best_epoch"} <= row.keys() or row.get("diverged")):
        raise damaged(path, "it has no measurements: delete it, and run the same command again to compute it")
    if _identity(row) != _identity(identity_columns(experiment)):
        raise damaged(
            path,
            f"it is the result of another experiment than {experiment.entry}, seed {experiment.train.seed}: delete it, "
            "and run the same command again to compute it",
        )
    return row


def _identity(row: Row) -> tuple[Any, ...]:
    """What names an experiment; its settings in any order."""
    try:
        settings = parse_json(row["settings"])
    except ValueError:
        settings = None
    return row["method"], row["seed"], settings


def identity_columns(experiment: Experiment) -> Row:
    """Return the columns that name an experiment in a table of runs."""
    return {
        "method": experiment.method,
        "settings": json.dumps(experiment.settings),
        "seed": experiment.train.seed,
    }


def diverged_row(experiment: Experiment) -> Row:
    """Return the row of a run whose model was not finite after any epoch: it ranks last and has no measurements."""
    return identity_columns(experiment) | {"validation_map": 0.0, "seconds": None, "diverged": True}


def measure(experiment: Experiment, dataset: Dataset, test: Tensor, training: Tensor) -> Row:
    """Compare predictions with the truth.

    Parameters
    ----------
    experiment : Experiment
    dataset : Dataset
    test : Tensor of shape (n_test, n_classes)
        Probabilities for the test rows.
    training : Tensor of shape (n_training, n_classes)
        Probabilities for the training rows of the experiment.

    Returns
    -------
    dict
        test_map: mAP, a class without positives counting 0 as in the papers. test_micro_f1, test_macro_f1: F1 at the
        method's threshold. test_ppv, test_npv: predictive values at `pseudo_label_threshold`. test_ap: average
        precision per class.
        recovery_map, recovery_unobserved_map: mAP of the training rows, on all and on the unobserved labels; None
        where their full labels are unknown. labels: number of labels learned from.
    """
    trained, draw = method(experiment.method, **experiment.settings), experiment.draw or LabelDraw()
    truth = torch.from_numpy(dataset.full_labels(dataset.test).dense() > 0).to(test.device)
    values = metrics.predictive_values(test, truth, pseudo_label_threshold(trained))
    learned = draw.select(dataset, trained.needs.labels)[1]
    return {
        "test_map": metrics.mean_average_precision(test, truth, empty="zero"),
        "test_micro_f1": metrics.f1(test, truth, trained.f1_threshold, "micro"),
        "test_macro_f1": metrics.f1(test, truth, trained.f1_threshold, "macro"),
        "f1_threshold": trained.f1_threshold,
        **_recovery(draw, dataset, training),
        "test_ppv": _number(values.ppv),
        "test_npv": _number(values.npv),
        "labels": int(np.count_nonzero(learned.dense())),
        "test_ap": torch.nan_to_num(metrics.average_precision(test, truth), nan=0.0).tolist(),
    }


def pseudo_label_threshold(trained: Method) -> float:
    """Return the probability above which the method itself counts an unknown label as present; 0.5 if none does."""
    name = trained.pseudo_label_setting
    return 0.5 if name is None else float(getattr(trained.settings, name))


def _recovery(draw: LabelDraw, dataset: Dataset, training: Tensor) -> Row:
    """mAP of the training rows against their true labels (Cole et al., Table 2)."""
    rows, observed = draw.select(dataset)
    if not dataset.fully_labelled[rows].all():
        return {"recovery_map": None, "recovery_unobserved_map": None}
    truth = torch.from_numpy(dataset.full_labels(rows).dense() > 0).to(training.device)
    hidden = torch.from_numpy(observed.dense() == 0).to(training.device)
    return {
        "recovery_map": metrics.mean_average_precision(training, truth, empty="zero"),
        "recovery_unobserved_map": metrics.mean_average_precision(training, truth, mask=hidden, empty="zero"),
    }


def _number(value: float) -> float | None:
    return None if value != value else float(value)
