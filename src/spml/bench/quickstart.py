"""The demo: three methods on scenes of handwritten digits with one observed label per scene."""

from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from spml import metrics
from spml.data import ViewSettings, open_data
from spml.data.formats.scenes import QUICKSTART
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import METHODS
from spml.runs.folder import PREDICTIONS, RunFolder, open_run
from spml.runs.log import read_log
from spml.training.experiment import Experiment
from spml.training.label_draw import LabelDraw
from spml.training.progress import bars
from spml.training.run_experiment import run_experiment
from spml.training.settings import TrainSettings

REFERENCE = "bce"
DEMO_METHODS = ("an", "auto", REFERENCE)
SETTINGS = TrainSettings(
    epochs=7,
    batch_size=64,
    learning_rate=6e-3,
    optimiser="adamw",
    weight_decay=1e-2,
    schedule="one-cycle",
    averaging=0.98,
    views=ViewSettings(flip=0.0, crop_scale=(0.7, 1.0)),
)


@dataclass(frozen=True)
class DemoResult:
    """The result of one method.

    Parameters
    ----------
    run : RunFolder
    test_map : float
    recovered, missing : int
        Labels missing from the training scenes: how many were recovered, of how many.
    precision : float
        Share of the recovered labels that are correct.
    """

    run: RunFolder
    test_map: float
    recovered: int
    missing: int
    precision: float


def quickstart(
    folder: Path, names: tuple[str, ...] = DEMO_METHODS, *, scale: float = 1.0, progress: bool = True
) -> list[DemoResult]:
    """Train each method on the built-in scenes, unless its folder holds a finished run.

    The methods run in parallel with one thread each, since a small network gains nothing from more threads.

    Parameters
    ----------
    folder : Path
        Folder for the runs, one folder per method.
    names : tuple of str
        The methods.
    scale : float
        Share of the scenes to use.
    progress : bool
        Show progress bars.

    Returns
    -------
    list of DemoResult
        In the order of `names`.

    Raises
    ------
    InputError
        If the folder holds runs on another number of scenes.
    """
    options = {part: round(rows * scale) for part, rows in QUICKSTART.items()}
    unfinished = [name for name in names if not (folder / name / PREDICTIONS).exists()]
    for name in (name for name in names if name not in unfinished):
        existing = open_run(folder / name).source["options"]
        if existing != options:
            raise InputError(
                f"{folder / name} is a run on {existing['train']:,} scenes, not {options['train']:,}: choose another "
                "folder, or the same scale as before"
            )
    if unfinished:
        folder.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(len(unfinished), get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            jobs = {name: pool.submit(_train, folder / name, name, options) for name in unfinished}
            _watch(folder, jobs, progress)
    return [_result(open_run(folder / name)) for name in names]


def _train(folder: Path, name: str, options: dict[str, Any]) -> None:
    dataset = open_data("scenes", **options)
    draw = LabelDraw() if METHODS[name].needs.labels == "full" else None  # only the reference learns from full labels
    experiment = Experiment(name, train=SETTINGS, draw=draw, backbone="small", image_size=48)
    run_experiment(experiment, dataset, folder, progress=False)


def _watch(folder: Path, jobs: dict[str, Future[None]], progress: bool) -> None:
    """Show the progress of each run from its log until all are done; raise the error of a run."""
    with bars(progress) as bar:
        tasks = {name: bar.add_task(f"{name}, epochs", total=SETTINGS.epochs) for name in jobs}
        while True:
            waiting = wait(jobs.values(), timeout=0.5, return_when=FIRST_EXCEPTION).not_done
            for name, job in jobs.items():
                log = folder / name / "log.jsonl"
                lines = read_log(log) if log.exists() else []
                bar.update(tasks[name], completed=sum(line["kind"] == "epoch" for line in lines))
                if job.done():
                    job.result()
            if not waiting:
                return


def _result(run: RunFolder) -> DemoResult:
    """Test mAP, and how many of the labels missing from the training scenes were recovered."""
    from spml.recover import recover

    assert run.truth is not None
    truth: Labels = run.truth
    scores = torch.from_numpy(run.probabilities[run.test])
    test_map = metrics.mean_average_precision(scores, truth.dense(run.test) > 0)
    recovered = recover(run).present(run.train) & ~(run.labels.dense(run.train) > 0)
    missing = (truth.dense(run.train) > 0) & ~(run.labels.dense(run.train) > 0)
    correct = int((recovered & missing).sum())
    return DemoResult(run, test_map, correct, int(missing.sum()), correct / max(int(recovered.sum()), 1))
