"""The quickstart: scenes of handwritten digits, one label kept a scene, three ways to learn from it."""

from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spml import metrics
from spml.data import ImageStore, ViewSettings
from spml.data.dataset import truth_closed
from spml.data.formats.scenes import QUICKSTART, scenes
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import method
from spml.models import build_classifier
from spml.runs.folder import PREDICTIONS, RunFolder, open_run
from spml.runs.log import read_log
from spml.train.examples import Examples
from spml.train.finish import finish
from spml.train.settings import TrainSettings
from spml.train.trainer import Trainer

REFERENCE = "bce"
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
class Outcome:
    """What one method reached."""

    run: RunFolder
    test_map: float
    recovered: int
    missing: int
    precision: float


def quickstart(
    folder: Path, names: tuple[str, ...] = ("an", "auto", REFERENCE), *, scale: float = 1.0, progress: bool = True
) -> list[Outcome]:
    """Train each method on the scenes in its own folder, or take it from there if that was done before.

    A small network gains nothing from several threads, so the methods run side by side with one each; all at once,
    so that no core is left without work while the last one ends.
    """
    options = {part: round(rows * scale) for part, rows in QUICKSTART.items()}
    left = [name for name in names if not (folder / name / PREDICTIONS).exists()]
    for name in names:
        there = options if name in left else open_run(folder / name).source["options"]
        if there != options:
            raise InputError(
                f"{folder / name} is a run on {there['train']:,} scenes, not {options['train']:,}: name another "
                "folder, or the scale it was made with"
            )
    if left:
        folder.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(len(left), get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            jobs = {name: pool.submit(_train, folder / name, name, options) for name in left}
            _watch(folder, jobs, progress)
    return [_outcome(open_run(folder / name)) for name in names]


def _train(folder: Path, name: str, options: dict[str, Any]) -> None:
    data, made = scenes(**options), method(name)
    labels = data.labels.subset(data.train)
    if made.needs.labels == "full":  # the reference, and only it, learns from the truth
        assert data.truth is not None
        labels = data.truth.open().subset(data.train)
    torch.manual_seed(0)
    assert isinstance(data.store, ImageStore)
    classifier = build_classifier("small", len(data.classes), made.needs.head, image_size=data.store.size)
    training = Examples(data.store, data.train, labels)
    validation = Examples(data.store, data.validation, data.labels.subset(data.validation))
    run = Trainer(folder, classifier, made, training, validation, SETTINGS, progress=False)
    with truth_closed():
        run.fit()
    finish(run, data, {"path": "scenes", "options": options})


def _watch(folder: Path, jobs: dict[str, Future[None]], progress: bool) -> None:
    """Show how far each run's log has come, until all are done; a run's error is raised here."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"))
    with Progress(*columns, TimeElapsedColumn(), disable=not progress) as bar:
        tasks = {name: bar.add_task(name, total=SETTINGS.epochs) for name in jobs}
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


def _outcome(run: RunFolder) -> Outcome:
    """Test mAP, and of the labels missing from the training scenes how many the believed ones hold."""
    from spml.recover import recover

    assert run.truth is not None
    truth: Labels = run.truth
    scores = torch.from_numpy(run.probabilities[run.test])
    test_map = metrics.mean_average_precision(scores, truth.dense(run.test) > 0)
    believed = recover(run).present(run.train) & ~(run.labels.dense(run.train) > 0)
    missing = (truth.dense(run.train) > 0) & ~(run.labels.dense(run.train) > 0)
    right = int((believed & missing).sum())
    return Outcome(run, test_map, right, int(missing.sum()), right / max(int(believed.sum()), 1))
