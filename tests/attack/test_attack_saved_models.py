"""Saved models whose config.json was edited: `InputError`, and never other names or confidences than those saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spml
from spml import InputError
from support.attacks import copy, features_of, matrix

NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> spml.Run:
    root = tmp_path_factory.mktemp("run")
    return spml.train(matrix(root), out=root / "run", base="linear", progress=False, device="cpu")


@pytest.fixture(scope="module")
def saved(run: spml.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    run.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def earlier(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as earlier versions saved it: nothing says what config.json must contain."""
    folder = copy(saved, tmp_path_factory.mktemp("earlier") / "model")
    edit(folder, lambda content: content["files"].pop("config.json"))
    return folder


def edit(folder: Path, change: Callable[[Any], Any]) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def in_calibration(name: str, value: Any) -> Callable[[Any], Any]:
    return lambda content: content["decision"]["calibration"].update({name: value})


IDENTITY = [[1.0, 0.0], [0.0, 1.0]]
EDITS: dict[str, Callable[[Any], Any]] = {
    "frequencies are one number": in_calibration("frequencies", 0.5),
    "offsets are one number": in_calibration("offsets", 0.5),
    "a frequency is missing": in_calibration("frequencies", [0.1, None, 0.2]),
    "a frequency is no number": in_calibration("frequencies", [0.1, NAN, 0.2]),
    "a frequency above 1": in_calibration("frequencies", [0.1, 2.0, 0.2]),
    "offsets are texts": in_calibration("offsets", ["1", "2", "3"]),
    "an offset is huge": in_calibration("offsets", [0, 0, 1e300]),
    "an offset has 400 digits": in_calibration("offsets", [0, 0, 10**400]),
    "an offset is infinite": in_calibration("offsets", [0, 0, INFINITE]),
    "no slope": in_calibration("slope", None),
    "slope is no number": in_calibration("slope", NAN),
    "slope is a truth value": in_calibration("slope", True),
    "negative slope": in_calibration("slope", -1.0),
    "no readings": in_calibration("readings", []),
    "readings are numbers": in_calibration("readings", [1, 2]),
    "a reading is no number": in_calibration("readings", [{"slope": 1.0, "offsets": [NAN, 0, 0]}]),
    "a reading of other classes": in_calibration("readings", [{"slope": 1.0, "offsets": [0.0]}]),
    "one correction": in_calibration("corrections", [{"weights": [0, 1], "covariance": IDENTITY}]),
    "a correction without covariance": in_calibration("corrections", [{"weights": [0, 1], "covariance": 1.0}] * 2),
    "a ragged covariance": in_calibration("corrections", [{"weights": [0, 1], "covariance": [[1, 0], [0]]}] * 2),
    "a negative variance": in_calibration("corrections", [{"weights": [0, 1], "covariance": [[-1, 0], [0, 1]]}] * 2),
    "k is a number": in_calibration("k", 1.5),
    "k is no number": in_calibration("k", {"k": NAN, "low": 1.0, "high": 2.0, "rows": 3}),
    "rows of k are a fraction": in_calibration("k", {"k": 1.0, "low": 1.0, "high": 2.0, "rows": 0.5}),
    "at least one is a text": in_calibration("at_least_one", "no"),
    "calibration is a list": lambda content: content["decision"].update(calibration=[]),
    "thresholds are one number": lambda content: content["decision"].update(thresholds=0.5),
    "a threshold is no number": lambda content: content["decision"].update(thresholds=[0.5, NAN, 0.5]),
    "a threshold is huge": lambda content: content["decision"].update(thresholds=[0.5, 1e300, 0.5]),
    "too few thresholds": lambda content: content["decision"].update(thresholds=[0.5]),
    "at most -1 labels": lambda content: content["decision"].update(most=-1),
    "an unknown reading": lambda content: content["decision"].update(reading="highest"),
}


@pytest.mark.parametrize("name", EDITS)
def test_numbers_of_a_calibration_are_checked_in_models_without_digest(
    name: str, earlier: Path, tmp_path: Path
) -> None:
    folder = copy(earlier, tmp_path / "model")
    edit(folder, EDITS[name])
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        spml.load(folder, device="cpu").predictor.decision  # noqa: B018


OTHER_EDITS: dict[str, Callable[[Any], Any]] = {
    "classes in another order": lambda content: content["classes"].reverse(),
    "a class with another name": lambda content: content["classes"].__setitem__(0, "wolf"),
    "a threshold": lambda content: content["decision"].update(thresholds=[0.9, 0.9, 0.9]),
    "no calibration": lambda content: content.update(decision=None),
    "columns": lambda content: content.update(columns=["d", "c", "b", "a"]),
}


@pytest.mark.parametrize("name", [*OTHER_EDITS, *EDITS])
def test_an_edited_config_is_an_error(name: str, saved: Path, tmp_path: Path) -> None:
    folder = copy(saved, tmp_path / "model")
    edit(folder, {**OTHER_EDITS, **EDITS}[name])
    with pytest.raises(InputError, match=r"config\.json (was changed|is damaged)"):
        spml.load(folder, device="cpu")


def test_models_of_earlier_versions_open_and_layout_does_not_matter(
    run: spml.Run, saved: Path, earlier: Path, tmp_path: Path
) -> None:
    expected = run.predict(features_of())
    np.testing.assert_array_equal(spml.load(earlier, device="cpu").predict(features_of()), expected)
    folder = copy(saved, tmp_path / "model")
    edit(folder, lambda content: content.update(files=dict(sorted(content["files"].items(), reverse=True))))
    np.testing.assert_array_equal(spml.load(folder, device="cpu").predict(features_of()), expected)
