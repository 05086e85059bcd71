"""What is trained on images: the choice by effort, device and options; and runs on frozen features."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spml
from spml.data import open_data
from spml.errors import InputError
from spml.models import build_classifier
from spml.runs.folder import open_run
from spml.training import train_features as module
from spml.training.effort import TrainingPlan, default_model, plan_training
from spml.training.learners import FeatureFit
from spml.training.options import TrainOptions
from spml.training.train_features import train_features

CPU = torch.device("cpu")


def plan(
    rows: int = 1250, backbone: str = "lite0", device: torch.device = CPU, held_out: bool = True, **options: Any
) -> TrainingPlan:
    return plan_training(TrainOptions(**options), rows=rows, backbone=backbone, device=device, held_out=held_out)


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({}, (True, False)),
        ({"effort": "quick", "device": torch.device("cuda")}, (True, False)),
        ({"effort": "thorough"}, (True, True)),
        ({"effort": "thorough", "device": torch.device("cuda")}, (True, True)),
        ({"effort": "thorough", "held_out": False}, (False, True)),
        ({"device": torch.device("cuda")}, (True, True)),
        ({"device": torch.device("cuda"), "epochs": 3}, (False, True)),
        ({"method": "em"}, (False, True)),
        ({"backbone": "small"}, (False, True)),
        ({"epochs": 3}, (False, True)),
        ({"minutes": 1}, (True, True)),
    ],
)
def test_what_is_trained(changes: dict[str, Any], stages: tuple[bool, bool]) -> None:
    found = plan(**changes)
    assert (found.frozen, found.network) == stages


def test_quick_reads_images_at_one_size() -> None:
    assert plan(effort="quick").zooms == (1.0,)
    assert plan().zooms == plan(effort="thorough").zooms == (1.0, 1.5)


@pytest.mark.parametrize(
    ("options", "device", "model"),
    [
        ({}, "cpu", "lite2"),
        ({}, "cuda", "lite2"),
        ({"epochs": 3}, "cpu", "lite0"),
        ({"epochs": 3}, "cuda", "lite2"),
        ({"method": "em"}, "cpu", "lite0"),
    ],
)
def test_default_model(options: dict[str, Any], device: str, model: str) -> None:
    assert default_model(TrainOptions(**options), torch.device(device)).model == model


def test_small_sets_get_more_epochs_and_given_epochs_are_kept() -> None:
    gpu = torch.device("cuda")
    assert [plan(device=gpu, rows=rows).epochs for rows in (10, 1600, 100_000)] == [60, 30, 10]
    assert plan(epochs=3).epochs == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "quick", "method": "em"}, "only the method 'auto' supports"),
        ({"effort": "quick", "backbone": "small"}, "no pretrained weights"),
        ({"effort": "quick", "epochs": 3}, "so epochs does not apply"),
        ({"effort": "fast"}, "it must be one of quick, normal, thorough"),
        ({"minutes": 0}, "minutes must be above 0"),
    ],
)
def test_impossible_plans_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(**options)


@pytest.mark.parametrize("regions", [False, True])
def test_a_run_on_frozen_features_predicts_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regions: bool
) -> None:
    network = build_classifier("small", 10, image_size=32, pooling="auto")
    monkeypatch.setattr(module, "build_classifier", lambda *args, **options: network)
    asked: list[float] = []

    def with_epr_head(fit: FeatureFit, *args: object, **options: object) -> FeatureFit:
        asked.append(fit.calibration.k.k)
        return fit

    def with_regions(fit: FeatureFit, *args: Any, **options: Any) -> FeatureFit:
        return decide(replace(fit, log_likelihood=-np.inf), *args, **options) if regions else fit

    decide = module.with_regions
    monkeypatch.setattr(module, "with_epr_head", with_epr_head)
    monkeypatch.setattr(module, "with_regions", with_regions)
    data = open_data("scenes", train=60, test=10, size=32)
    train_features(data, tmp_path / "run", base="linear", backbone="small", device="cpu", progress=False)
    run = open_run(tmp_path / "run")
    assert run.cross_fitted
    assert run.choice
    assert len(asked) == 1
    loaded = run.network()
    assert loaded.description["pooling"] == "rms"
    assert ("regions" in loaded.description["head_settings"]["model"]) is regions
    with torch.no_grad():
        found = torch.sigmoid(loaded(data.tensor_store.batch(data.test)).logits).numpy()
    assert np.allclose(found, run.probabilities[data.test], atol=1e-4)
    spml.load(tmp_path / "run").export(tmp_path / "model.onnx")  # compares its predictions with the network's
