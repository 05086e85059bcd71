"""A classifier on frozen features first, then the whole network, and the better one is kept."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spml.data import open_data
from spml.data.dataset import Dataset
from spml.errors import InputError
from spml.runs.folder import open_run
from spml.training.experiment import Experiment
from spml.training.frozen import stages as module
from spml.training.frozen.stages import Budget, measure_speed, train_in_stages
from spml.training.settings import TrainSettings
from spml.training.train_features import train_features


@pytest.fixture(scope="module")
def data() -> Dataset:
    return open_data("scenes", train=60, test=6, size=32)


def experiment(epochs: int, seed: int = 0) -> Experiment:
    settings = TrainSettings(epochs=epochs, batch_size=16, averaging=0.9, seed=seed)
    return Experiment("auto", {}, settings, data="scenes", backbone="small", image_size=32)


def trained(data: Dataset, out: Path, seed: int = 0, minutes: float | None = None) -> tuple[dict[str, Any], list[str]]:
    notes: list[str] = []
    options: dict[str, Any] = {"device": "cpu", "progress": False}
    first = partial(train_features, data, out, base="linear", backbone="small", seed=seed, **options)
    make = partial(experiment, seed=seed)
    return train_in_stages(data, out, first, make, Budget(2, minutes), notify=notes.append, **options), notes


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def set_choice(better: bool) -> None:
        monkeypatch.setattr(module, "_compare", lambda dataset, out: ("because", better))

    return set_choice


@pytest.mark.parametrize("better", [False, True])
def test_the_better_stage_is_kept_and_nothing_is_trained_again(
    better: bool, data: Dataset, tmp_path: Path, choose: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(better)
    out = tmp_path / "run"
    best, notes = trained(data, out)
    assert best["summary"] == "because"
    assert any("can be used now" in note for note in notes)
    run = open_run(out)
    assert run.cross_fitted is not better
    assert len(run.epochs()) == (2 if better else 0)
    assert not (out / "fine-tuned").exists()
    monkeypatch.setattr(module, "run_experiment", lambda *args, **options: pytest.fail("trained again"))
    assert trained(data, out)[0] == best


def test_the_first_stage_can_be_used_when_the_second_is_interrupted(
    data: Dataset, tmp_path: Path, choose: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(True)

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_experiment", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trained(data, tmp_path / "run")
    assert open_run(tmp_path / "run").cross_fitted
    trained(data, tmp_path / "run", minutes=1e-9)  # the number of epochs has been chosen before
    assert not open_run(tmp_path / "run").cross_fitted


@pytest.mark.parametrize("moved", [0, 3])
def test_an_interrupted_exchange_is_completed(
    moved: int, data: Dataset, tmp_path: Path, choose: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(True)
    real, left = os.replace, [moved]

    def replace(source: Path, target: Path) -> None:
        if Path(source).parent.name == "fine-tuned":
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            trained(data, tmp_path / "run")
    trained(data, tmp_path / "run")
    assert len(open_run(tmp_path / "run").epochs()) == 2
    assert json.loads((tmp_path / "run" / "stages.json").read_text())["adopting"] is False


def test_other_settings_are_refused(data: Dataset, tmp_path: Path, choose: Callable[[bool], None]) -> None:
    choose(False)
    trained(data, tmp_path / "run")
    with pytest.raises(InputError, match="was started with another seed"):
        trained(data, tmp_path / "run", seed=1)


def test_the_higher_likelihood_of_held_out_labels_decides(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    known = data.labels.dense()
    good = np.where(known > 0, 0.9, 0.1)
    noise = np.random.default_rng(0).uniform(0.1, 0.9, known.shape)
    tables = {"run": noise, "fine-tuned": good}
    monkeypatch.setattr(module, "open_run", lambda folder: SimpleNamespace(probabilities=tables[folder.name]))
    sentence, better = module._compare(data, Path("run"))
    assert better
    assert sentence.startswith("Kept the whole network")
    tables |= {"run": good, "fine-tuned": noise}
    assert module._compare(data, Path("run"))[1] is False


def test_the_time_limits_the_epochs(
    data: Dataset, tmp_path: Path, choose: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(True)
    monkeypatch.setattr(module, "measure_speed", lambda *args: (2.0, 0.5))
    monkeypatch.setattr(module.time, "perf_counter", lambda: 0.0)  # the first stage takes no time
    steps, left = int(np.ceil(len(data.train) / 16)), 0.95 * 60 * 4 - 0.5 * len(data)
    epochs = int(left // (2.0 * steps + 2 * 0.5 * len(data.validation)))
    assert 1 < epochs < 100
    found = module._affordable_epochs(data, experiment, Budget(100, 4), 0.0, "cpu")
    assert found == epochs
    assert module._affordable_epochs(data, experiment, Budget(3, 4), 0.0, "cpu") == 3
    assert module._affordable_epochs(data, experiment, Budget(100, None), 0.0, "cpu") == 100


def test_without_time_the_first_stage_is_the_result(data: Dataset, tmp_path: Path) -> None:
    best, _ = trained(data, tmp_path / "run", minutes=1e-9)
    assert best["summary"].endswith("The time does not suffice for training the whole network")
    assert open_run(tmp_path / "run").cross_fitted
    assert not (tmp_path / "run" / "stages.json").exists()


def test_speed_is_measured(data: Dataset) -> None:
    step, image = measure_speed(experiment(2), data, "cpu")
    assert 0 < image < step
