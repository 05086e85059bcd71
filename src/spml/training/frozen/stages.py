"""A classifier on frozen features first, then the whole network from there; the better one is kept.

The run folder holds a finished run as soon as the first stage is done. The second stage trains in the subfolder
`fine-tuned`. Its files replace those of the first if it predicts the observed labels of held-out rows better: if their
likelihood is higher, each after its own calibration. The first stage predicts held-out rows by cross-fitting, so
neither has learned from them. `stages.json` records the progress, so that the same command resumes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from spml.calibration import calibrate
from spml.data.dataset import Dataset, truth_closed
from spml.errors import InputError
from spml.methods import Clock
from spml.methods import method as make_method
from spml.runs.files import lock_folder, read_json, write_text
from spml.runs.folder import open_run
from spml.runs.outputs import RUN_FILES
from spml.runs.schema import StagesRecord
from spml.training.evaluation import predict
from spml.training.examples import Examples
from spml.training.experiment import Experiment
from spml.training.network.trainer import Trainer
from spml.training.run_experiment import build_network, run_experiment

STAGES = "stages.json"
FINE_TUNED = "fine-tuned"
MIN_EPOCHS = 5  # fewer are not worth the time
_TIMED_STEPS = 3
_RESERVE = 0.05  # of the time, for writing files and for steps that take longer than those that were timed


class Budget(NamedTuple):
    """How long fine-tuning may take."""

    epochs: int
    """At most."""
    minutes: float | None
    """Of both stages together, if they are limited."""


def train_in_stages(
    dataset: Dataset,
    out: Path,
    train_first_stage: Callable[[], dict[str, Any]],
    experiment_for: Callable[[int], Experiment],
    budget: Budget,
    *,
    device: str,
    notify: Callable[[str], None],
    progress: bool,
) -> dict[str, Any]:
    """Train both stages, or only the first if there is no time for the second.

    Parameters
    ----------
    dataset : Dataset
        Images, some of them held out.
    out : Path
        The run folder. What is finished in it is not trained again.
    train_first_stage : callable
        Trains the first stage and writes it as a finished run to `out`.
    experiment_for : callable
        Returns the second stage for a number of epochs.
    budget : Budget
    device : str
    notify : callable
        Receives messages for the user.
    progress : bool
        Show progress bars.

    Returns
    -------
    dict
        {"score": of the run that is kept, "summary": what was chosen and why}.

    Raises
    ------
    InputError
        If the folder holds another run.
    """
    started = time.perf_counter()
    request = _request(dataset, experiment_for(1))
    state = _read(out / STAGES, request)

    def save() -> None:
        write_text(out / STAGES, json.dumps(state, indent=2))

    if state["choice"] is None:
        result = train_first_stage()
        epochs = state["epochs"]
        if epochs is None:
            epochs = _affordable_epochs(dataset, experiment_for, budget, started, device)
            if epochs < min(MIN_EPOCHS, budget.epochs):
                summary = f"{result['summary']}. The time does not suffice for training the whole network"
                return {**result, "summary": summary}
            state["epochs"] = epochs
            save()
        notify(
            f"{out} can be used now: it holds a classifier on the features of the frozen network. Training the whole "
            f"network from it, for {epochs} epochs; the better one is kept."
        )
        run_experiment(
            experiment_for(epochs), dataset, out / FINE_TUNED, device=device, notify=notify, progress=progress
        )
        state["choice"], state["adopting"] = _compare(dataset, out)
        save()
    if state["adopting"]:
        _adopt(out)
        state["adopting"] = False
        save()
    if (out / FINE_TUNED).is_dir():
        shutil.rmtree(out / FINE_TUNED)
    assert state["choice"] is not None
    return {"score": open_run(out).best["score"], "summary": state["choice"]}


def _request(dataset: Dataset, experiment: Experiment) -> dict[str, Any]:
    """Everything that decides the outcome except the time limit."""
    return {
        "method": experiment.method,
        "model": experiment.backbone,
        "weights": experiment.weights,
        "size": experiment.image_size,
        "batch_size": experiment.train.batch_size,
        "seed": experiment.train.seed,
        "k": experiment.k,
        "labels": dataset.labels.fingerprint(),
        "images": dataset.fingerprint(),
    }


def _read(path: Path, request: dict[str, Any]) -> StagesRecord:
    if not path.exists():
        return {"request": request, "epochs": None, "choice": None, "adopting": False}
    state = read_json(path, StagesRecord)
    before = state["request"]
    if changed := [name for name in request if before.get(name) != request[name]]:
        names = ", ".join(changed)
        raise InputError(f"{path.parent} was started with another {names}: use the same settings or another folder")
    return state


def _affordable_epochs(
    dataset: Dataset, experiment_for: Callable[[int], Experiment], budget: Budget, started: float, device: str
) -> int:
    """Return the number of epochs that the budget allows."""
    if budget.minutes is None:
        return budget.epochs
    seconds_first = time.perf_counter() - started  # an upper bound for the probes, whose features are kept
    seconds_per_step, seconds_per_image = measure_speed(experiment_for(budget.epochs), dataset, device)
    seconds_left = (1 - _RESERVE) * 60 * budget.minutes - (time.perf_counter() - started)
    seconds_left -= seconds_first + len(dataset) * seconds_per_image
    steps = math.ceil(len(dataset.train) / experiment_for(1).train.batch_size)
    predictions = 2 * len(dataset.validation)  # raw and averaged weights are evaluated
    seconds_per_epoch = steps * seconds_per_step + predictions * seconds_per_image
    return min(budget.epochs, max(0, math.floor(seconds_left / seconds_per_epoch)))


def measure_speed(experiment: Experiment, dataset: Dataset, device: str) -> tuple[float, float]:
    """Seconds per training step, and per image that is predicted, measured on the first rows."""
    method = make_method(experiment.method, **experiment.settings)
    network = build_network(experiment, method, dataset)
    labels, size = dataset.labels.subset(dataset.train), experiment.train.batch_size
    training = Examples(dataset.tensor_store, dataset.train, labels)
    with tempfile.TemporaryDirectory() as folder, truth_closed():
        trainer = Trainer(
            Path(folder), network, method, training, None, experiment.train,
            k=experiment.k, device=device, progress=False,
        )  # fmt: skip
        if trainer.uses_probes:
            method.receive_soft_labels(torch.zeros(labels.shape, device=trainer.device))
        network.train()
        method.train()
        order, seconds = trainer.batch_maker.order(1), []
        for number in range(_TIMED_STEPS + 1):
            before = time.perf_counter()
            rows = order[number * size : (number + 1) * size]
            rows = rows if len(rows) == size else order[:size]
            trainer.step_runner.run(rows, Clock(1, experiment.train.epochs, number, trainer.steps), order[:0], False)
            seconds.append(time.perf_counter() - before)
        sample = dataset.train[: 2 * size]
        before = time.perf_counter()
        predict(network, training.store, sample, device=trainer.device, precision=experiment.train.precision)
        return median(seconds[1:]), (time.perf_counter() - before) / len(sample)  # the first step compiles


def _compare(dataset: Dataset, out: Path) -> tuple[str, bool]:
    """What is kept and why, in a sentence, and whether it is the whole network."""
    rows = dataset.validation
    known = dataset.labels.dense(rows)
    frozen, tuned = (
        calibrate(open_run(folder).probabilities[rows], known, uncertainty=False).log_likelihood
        for folder in (out, out / FINE_TUNED)
    )
    network_is_better = tuned > frozen
    kept = "the whole network" if network_is_better else "the classifier on frozen features"
    word = "better" if network_is_better else "no better"
    return (
        f"Kept {kept}: training the whole network predicts held-out labels {word} "
        f"(log-likelihood {tuned:.3f} against {frozen:.3f})",
        network_is_better,
    )


def _adopt(out: Path) -> None:
    """Move the files of the second stage into the run folder; `run.json`, which binds them, comes last."""
    with lock_folder(out):
        for name in (*(name for name in RUN_FILES if name != "run.json"), "log.jsonl", "run.json"):
            if (out / FINE_TUNED / name).exists():
                os.replace(out / FINE_TUNED / name, out / name)
