"""Misuse of the Python API: `InputError` with one sentence, and nothing that is silently read as something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import spml
from spml import InputError, Labels
from spml.recover.guarantee import guaranteed_threshold
from support.attacks import ROWS, features_of, matrix

CLASSES = ["bird", "cat", "dog"]
ONES = np.eye(3, dtype=int)
MASKED = np.ma.masked_array(np.zeros((2, 4)), mask=[[True, False, False, False]] * 2)
META = torch.zeros(2, 4, device="meta")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> spml.Run:
    root = tmp_path_factory.mktemp("run")
    return spml.train(matrix(root), out=root / "run", base="linear", progress=False, device="cpu")


def named(*names: str) -> pd.DataFrame:
    return pd.DataFrame(ONES, columns=list(names))


LABELS: dict[str, tuple[Callable[[], Any], str]] = {
    "classes in a set": (lambda: Labels.from_indices([0, 1], {"a", "b"}), "classes are in a set"),
    "a number of classes": (lambda: Labels.from_indices([0, 1], 3), "classes is of type int"),
    "names in a set": (lambda: Labels.from_names({"a", "b"}), "names are in a set"),
    "lists in a dictionary": (lambda: Labels.from_lists({"a": ["b"]}), "in a dict"),
    "labels in a dictionary": (lambda: Labels.from_any({"a": [1]}), "labels are in a dict"),
    "masked values": (lambda: Labels.from_matrix(MASKED), "are masked"),
    "a tensor without values": (lambda: Labels.from_matrix(META), "has no values"),
    "a sparse tensor": (lambda: Labels.from_matrix(torch.eye(3).to_sparse()), "is sparse"),
    "half a character": (lambda: Labels.from_indices([0], ["\udcff"]), "not Unicode text"),
    "columns in another order": (lambda: Labels.from_matrix(named("c", "b", "a"), ["a", "b", "c"]), "another order"),
    "no table": (lambda: Labels.from_names(["a"]).updated(3), "must be a Labels table"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels(name: str) -> None:
    call, message = LABELS[name]
    with pytest.raises(InputError, match=message):
        call()


def test_columns_of_a_data_frame_are_classes() -> None:
    assert Labels.from_matrix(named("c", "b", "a")).classes == ("c", "b", "a")
    assert Labels.from_any(named("c", "b", "a")).classes == ("c", "b", "a")
    assert Labels.from_matrix(named("c", "b", "a"), ["x", "y", "z"]).classes == ("x", "y", "z")


ROWS_OF_FEATURES: dict[str, Any] = {
    "complex": np.ones((2, 4), complex),
    "a complex tensor": torch.ones(2, 4, dtype=torch.complex64),
    "dates": np.zeros((2, 4), "M8[s]"),
    "masked": MASKED,
    "no values": META,
    "tensors of different lengths": [torch.zeros(4), torch.zeros(5)],
    "text": np.array([["1", "2", "3", "4"]]),
}


@pytest.mark.parametrize("name", ROWS_OF_FEATURES)
def test_features(name: str, run: spml.Run) -> None:
    with pytest.raises(InputError, match="rows of 4 numbers"):
        run.predict(ROWS_OF_FEATURES[name])


def test_lists_of_tensors_and_half_precision_are_features(run: spml.Run) -> None:
    values = torch.from_numpy(features_of()).bfloat16()
    np.testing.assert_array_equal(run.predict(list(values)), run.predict(values.float().numpy()))


CALLS: dict[str, tuple[Callable[[spml.Run, Path], Any], str]] = {
    "labelled rows": (lambda run, root: run.recover(labelled=(3, [1])), "labelled must be"),
    "a mask": (lambda run, root: run.recover(labelled=(Labels.from_matrix(ONES, CLASSES), [0.5, 1, 2])), "whole"),
    "weights": (
        lambda run, root: run.recover(labelled=(Labels.from_matrix(ONES[[1, 2, 0]], CLASSES), [0, 1, 2], 3)),
        "one number above 0 per row",
    ),
    "a row twice": (
        lambda run, root: run.recover(labelled=(Labels.from_matrix(ONES[:2], CLASSES), [2, 2])),
        "give each row once",
    ),
    "k as text": (lambda run, root: run.recover(k="2"), "k must be a number"),
    "a threshold as a truth value": (lambda run, root: run.recover(threshold=True), "threshold must be"),
    "answers as a number": (lambda run, root: run.recover(decisions=3), "decisions must be a path"),
    "a report to nowhere": (lambda run, root: run.report(None), "path must be a path"),
    "bytes": (lambda run, root: spml.load(b"run"), "path must be a path"),
    "no device": (lambda run, root: spml.load(run.folder.folder, device=None), "device must be"),
    "half a row": (lambda run, root: run.sample(root / "s.csv", rows=3.5), "rows must be a whole number"),
    "too many rows": (lambda run, root: run.sample(root / "s.csv", rows=ROWS + 1), "has 24 rows"),
    "a device": (lambda run, root: run.save_pretrained("/dev/null"), "choose a new folder"),
    "below a file": (lambda run, root: run.save_pretrained(run.folder.folder / "run.json" / "x"), "cannot be written"),
}


@pytest.mark.parametrize("name", CALLS)
def test_runs(name: str, run: spml.Run, tmp_path: Path) -> None:
    call, message = CALLS[name]
    with pytest.raises(InputError, match=message):
        call(run, tmp_path)


TRAININGS: dict[str, dict[str, Any]] = {
    "no data": {"data": None},
    "an array": {"data": np.zeros((3, 4))},
    "no folder": {"out": None},
    "no device": {"device": None},
    "k as text": {"k": "2"},
    "a truth value as seed": {"seed": True},
    "settings in a list": {"settings": [("a", 1)]},
    "settings without names": {"method": "em", "settings": {1: 2}},
    "an empty base": {"base": ""},
    "an unknown effort": {"effort": "QUICK"},
    "effort on features": {"effort": "quick"},
    "minutes on features": {"minutes": 5},
    "no time": {"minutes": float("nan")},
}


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings(name: str, tmp_path: Path) -> None:
    options = {"data": matrix(tmp_path), "out": tmp_path / "run", "progress": False, "device": "cpu", **TRAININGS[name]}
    with pytest.raises(InputError):
        spml.train(options.pop("data"), **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("weight", [1e200, 1e-200])
def test_only_ratios_of_weights_count(weight: float) -> None:
    scores = np.linspace(0, 1, 60, dtype=np.float32).reshape(30, 2)
    everything, rows = np.ones((30, 2), bool), np.arange(30)
    expected = guaranteed_threshold(scores, everything, rows, everything, np.ones(30), 0.5)
    assert expected is not None
    assert guaranteed_threshold(scores, everything, rows, everything, np.full(30, weight), 0.5) == expected


LOSS_INPUTS: dict[str, tuple[Any, Any]] = {
    "lists": ([[0.0, 0.0]], [[1, 0]]),
    "arrays": (np.zeros((1, 2)), np.array([[1, 0]])),
    "a table": (torch.zeros(1, 2), Labels.from_names(["a"], ["a", "b"])),
    "whole numbers": (torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[1, 0]])),
    "complex": (torch.zeros(1, 2, dtype=torch.complex64), torch.tensor([[1, 0]])),
    "two devices": (torch.zeros(1, 2), torch.zeros(1, 2, device="meta")),
}


@pytest.mark.parametrize("name", LOSS_INPUTS)
def test_losses(name: str) -> None:
    with pytest.raises(InputError):
        spml.loss("em")(*LOSS_INPUTS[name])


@pytest.mark.parametrize("name", [None, 3, ""])
def test_names_of_losses_and_methods(name: Any) -> None:
    for make in (spml.loss, spml.method):
        with pytest.raises(InputError, match="named"):
            make(name)


def test_metrics_of_sparse_tensors() -> None:
    with pytest.raises(InputError, match="scores is a sparse tensor"):
        spml.metrics.f1(torch.eye(3).to_sparse(), torch.eye(3))
