"""Run experiments once: networks on images one by one or in processes, linear heads many at a time."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from spml.bench.code_version import code_version
from spml.bench.data import DataSource
from spml.bench.head_files import head_as_run, write_head
from spml.bench.measure import Row, diverged_row, identity_columns, measure, read_row
from spml.bench.workers import in_workers, interrupted
from spml.data.dataset import Dataset
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.data.stores.texts import TextStore
from spml.errors import DivergedError, InputError
from spml.methods import method
from spml.models import build_classifier
from spml.runs.files import atomic_path, write_text
from spml.runs.folder import RunFolder, open_run
from spml.training.device import choose_device
from spml.training.experiment import Experiment
from spml.training.frozen.pooled_features import pooled_features
from spml.training.label_draw import LabelDraw
from spml.training.linear import FeatureRows, train_heads
from spml.training.run_experiment import head_of, run_experiment
from spml.training.train_features import with_encoded_texts

Notify = Callable[[str], None]
T = TypeVar("T")


class Runner:
    """Runs experiments that have not run and finds the results of those that have.

    A result is identified by the experiment, its data and the code that can change it.

    Parameters
    ----------
    sources : sequence of DataSource
    out : Path
        Folder for all results.
    device : {"auto", "cpu", "cuda"}
    workers : int
        Runs at a time. On a GPU linear heads are always trained in one process.
    notify : callable
        Receives progress messages.
    """

    def __init__(
        self,
        sources: Sequence[DataSource],
        out: Path,
        *,
        device: str = "auto",
        workers: int = 1,
        notify: Notify = lambda line: None,
    ) -> None:
        self.sources = {source.name: source for source in sources}
        self.out, self.device, self.workers, self.notify = out, device, workers, notify
        self._with_features: dict[tuple[str, str, int], Dataset] = {}
        self.notes: list[str] = []
        self.interrupted: threading.Event | None = None  # in a worker: set when a run should end soon

    def rows(self, experiments: Sequence[Experiment]) -> list[Row]:
        """Return the result of every experiment, in their order; missing ones are run first."""
        self.out.mkdir(parents=True, exist_ok=True)
        done = [self.done(experiment) for experiment in experiments]
        paths = [self.path(experiment) for experiment in experiments]
        missing = {path: each for path, each, exists in zip(paths, experiments, done, strict=True) if not exists}
        if missing:
            finished = len(set(paths)) - len(missing)
            self.notify(f"{plural(len(missing), 'run')} to do" + (f", {finished} already done" if finished else ""))
            clock = _Progress(len(missing), self.notify)
            self._run_heads([experiment for experiment in missing.values() if experiment.features], clock)
            self._run_networks([experiment for experiment in missing.values() if not experiment.features], clock)
        return [read_row(path, experiment) for path, experiment in zip(paths, experiments, strict=True)]

    def path(self, experiment: Experiment) -> Path:
        """Return the file of an experiment's result."""
        identity = [experiment.record(), self.dataset(experiment).fingerprint(), code_version(experiment.method)]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        name = f"{experiment.method}-{digest}"
        return self.out / f"{name}.json" if experiment.features else self.out / name / "result.json"

    def done(self, experiment: Experiment) -> bool:
        """Return whether the experiment has a result. Does not compute features."""
        source = self.sources[experiment.data]
        if experiment.features and source.feature_file is None:
            inputs = self._images(experiment)
            if isinstance(inputs.store, ImageStore) and not self._feature_path(inputs, experiment).exists():
                return False
        return self.path(experiment).exists()

    def dataset(self, experiment: Experiment) -> Dataset:
        """Return the images of an experiment's data set, or its features: those that come with it, or computed ones."""
        if not experiment.features:
            return self._images(experiment)
        key = (experiment.data, experiment.backbone, experiment.image_size)
        if key not in self._with_features:
            self._with_features[key] = self._features(experiment)
        return self._with_features[key]

    def finished(self, experiment: Experiment) -> RunFolder | None:
        """Return the experiment as a finished run, for the report; None if its predictions were not kept."""
        path = self.path(experiment)
        if experiment.features:
            exists = path.with_suffix(".safetensors").exists()
            return head_as_run(path, experiment, self.dataset(experiment)) if exists else None
        try:
            return open_run(path.parent)
        except InputError:
            return None

    def forget_weights(self, experiments: Sequence[Experiment], chosen: Sequence[Experiment]) -> None:
        """Delete the weights of heads that were not chosen; their results stay."""
        kept = {self.path(experiment) for experiment in chosen}
        for path in {self.path(experiment) for experiment in experiments if experiment.features} - kept:
            path.with_suffix(".safetensors").unlink(missing_ok=True)

    # Data

    def _images(self, experiment: Experiment) -> Dataset:
        source = self.sources[experiment.data]
        return source.open(features=False, image_size=experiment.image_size, cache_path=self.out)

    def _features(self, experiment: Experiment) -> Dataset:
        source, size = self.sources[experiment.data], experiment.image_size
        if source.feature_file is not None:
            self.notes.append(
                f"{source.name}: the features are {source.feature_file.name}. The protocol names "
                f"{experiment.backbone} at {size} pixels; numbers from other features are not comparable with its own."
            )
            return source.open(features=True, image_size=size)
        images = self._images(experiment)
        if isinstance(images.store, TextStore):
            dataset, encoder = with_encoded_texts(images)
            self.notes.append(f"{source.name}: the features are {encoder.description}, fitted on the training texts.")
            return dataset
        self.notes.append(f"{source.name}: the features are {experiment.backbone}'s at {size} pixels.")
        path = self._feature_path(images, experiment)
        if not path.exists():
            self._compute_features(images, experiment, path)
        return replace(images, store=FeatureStore(path))

    def _feature_path(self, images: Dataset, experiment: Experiment) -> Path:
        name = f"{experiment.data}-{experiment.backbone}-{experiment.image_size}-{images.fingerprint()}"
        return self.out / f"features-{name}.npy"

    def _compute_features(self, images: Dataset, experiment: Experiment, path: Path) -> None:
        assert isinstance(images.store, ImageStore)
        self.out.mkdir(parents=True, exist_ok=True)
        self.notify(f"computing features of {len(images)} images with {experiment.backbone}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # a backbone without pretrained weights is always the same
            classifier = build_classifier(experiment.backbone, len(images.classes), image_size=experiment.image_size)
        rows = np.arange(len(images))
        features = pooled_features(classifier, images.store, rows, choose_device(self.device))
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, features.batch(rows).numpy())

    # Networks on images

    def _run_networks(self, experiments: Sequence[Experiment], clock: _Progress) -> None:
        names = [experiment.entry for experiment in experiments]
        for number, row in self._run_tasks(Runner.run_network, experiments, names, self.workers):
            name = names[number] + (f" ({experiments[number].head} head)" if experiments[number].head else "")
            result = f"{name} seed {row['seed']}: validation {100 * row['validation_map']:.2f}"
            clock.finished(1, result if row["seconds"] is None else f"{result}, {row['seconds']:.0f} s", self.workers)

    def _run_tasks(
        self, work: Callable[[Runner, T], Any], tasks: Sequence[T], names: Sequence[str], workers: int, **options: Any
    ) -> Iterator[tuple[int, Any]]:
        """Run all tasks, here or in workers; yield the number and the result of each when it has finished."""
        paths = [self._paths(task) for task in tasks]
        if workers == 1 or len(tasks) < 2:
            for number, task in enumerate(tasks):
                self.check_unchanged(task, paths[number])
                yield number, work(self, task)
            return
        spec = (tuple(self.sources.values()), self.out, self.device)
        calls = [(spec, work, task, expected) for task, expected in zip(tasks, paths, strict=True)]
        yield from in_workers(_work_in_worker, calls, names, device=self.device, workers=workers, **options)

    def _paths(self, task: Any) -> list[Path]:
        """Return the files of the results of a task, an experiment or a sequence of them."""
        return [self.path(each) for each in ([task] if isinstance(task, Experiment) else task)]

    def check_unchanged(self, task: Any, expected: Sequence[Path]) -> None:
        """Raise an error if the code or the data changed since the benchmark started: results would not belong to it.

        Workers import the code anew, and plug-ins may be edited at any time.
        """
        if self._paths(task) != list(expected):
            raise InputError(
                "the code or the data changed while the benchmark ran. Finished runs are kept. Run the same command "
                "again to resume it"
            )

    def run_network(self, experiment: Experiment) -> Row:
        """Train a network, unless it has a result, and return that."""
        path, dataset, device = self.path(experiment), self.dataset(experiment), choose_device(self.device)
        if path.exists():
            return read_row(path, experiment)
        resumed = (path.parent / "last.safetensors").exists()
        resident = _start_memory_count(dataset, device)
        head = head_of(experiment, method(experiment.method, **experiment.settings), dataset)
        row = identity_columns(experiment) | {"head": head, "code": code_version(experiment.method)}
        options: dict[str, Any] = {"device": self.device, "progress": False, "interrupted": self.interrupted}
        try:
            best = run_experiment(experiment, dataset, path.parent, **options)
        except DivergedError:
            if (path.parent / "best.safetensors").exists():
                raise  # it diverged later: its earlier epochs are kept
            row = diverged_row(experiment) | row
        else:
            row |= network_row(experiment, dataset, open_run(path.parent), best)
            row["seconds"] = None if resumed else round(best["seconds"], 2)
            row["memory_gib"] = None if resident is None else _peak_memory(resident)
        write_text(path, json.dumps(row))
        return row

    # Linear heads

    def _run_heads(self, experiments: Sequence[Experiment], clock: _Progress) -> None:
        on_gpu = choose_device(self.device).type == "cuda"
        chunks: dict[tuple[Any, ...], list[Experiment]] = {}
        for experiment in experiments:  # the heads of a chunk are trained as one matrix; a kill loses at most a chunk
            train = experiment.train
            alone = None if on_gpu else (experiment.entry, train.seed)  # on a CPU larger chunks are no faster
            inputs = (experiment.data, experiment.backbone, experiment.image_size, experiment.draw)
            key = (inputs, train.epochs, train.early_stopping, experiment.k, train.batch_size, alone)
            chunks.setdefault(key, []).append(experiment)
        tasks, workers = list(chunks.values()), 1 if on_gpu else self.workers
        names = [chunk[0].entry for chunk in tasks]
        for number, seconds in self._run_tasks(Runner.run_chunk, tasks, names, workers, abrupt=True):
            heads = len(tasks[number])
            methods = ", ".join(dict.fromkeys(experiment.entry for experiment in tasks[number]))
            clock.finished(heads, f"{plural(heads, 'head')} of {methods} in {seconds:.0f} s", workers)

    def run_chunk(self, experiments: Sequence[Experiment]) -> float:
        """Train heads on the same data together, write their results and return the seconds."""
        started, paths = time.perf_counter(), self._paths(experiments)
        dataset, draw = self.dataset(experiments[0]), experiments[0].draw or LabelDraw()
        store, (rows, labels) = dataset.store, draw.select(dataset)
        assert isinstance(store, FeatureStore)
        known = bool(dataset.fully_labelled[rows].all())
        results = train_heads(
            FeatureRows(store, rows),
            labels,
            experiments,
            validation=(FeatureRows(store, dataset.validation), dataset.full_labels(dataset.validation)),
            device=choose_device(self.device),
            full_labels=dataset.full_labels(rows) if known else None,
            negatives_labels=draw.select(dataset, "negatives")[1] if known else None,
            progress=sys.stderr.isatty() and self.interrupted is None,  # not in a worker
        )
        seconds = round((time.perf_counter() - started) / len(experiments), 2)
        for path, experiment, result in zip(paths, experiments, results, strict=True):
            write_head(path, experiment, dataset, rows, result, seconds)
        return time.perf_counter() - started


_runners: dict[tuple[Any, ...], Runner] = {}  # of a worker: kept between tasks, with the data it has opened


def _work_in_worker(spec: tuple[Any, ...], work: Callable[[Runner, T], Any], task: T, expected: Sequence[Path]) -> Any:
    if spec not in _runners:
        sources, out, device = spec
        _runners[spec] = Runner(sources, out, device=device)
        _runners[spec].interrupted = interrupted
    _runners[spec].check_unchanged(task, expected)
    return work(_runners[spec], task)


def network_row(experiment: Experiment, dataset: Dataset, run: RunFolder, best: dict[str, Any]) -> Row:
    """What is measured of a trained network."""
    test, training = (torch.from_numpy(run.probabilities[rows]) for rows in (run.test, run.train))
    return {
        "best_epoch": best["epoch"],
        "weights": best["weights"],
        "validation_map": best["score"],
        **measure(experiment, dataset, test, training),
        "rows_per_second": round(float(np.median([line["rows_per_second"] for line in run.epochs()])), 1),
    }


def _start_memory_count(dataset: Dataset, device: torch.device) -> int | None:
    """Bytes on the GPU before training, with the images; None without a GPU."""
    if device.type != "cuda":
        return None
    dataset.tensor_store.to_device(device)
    gc.collect()  # the run before this one refers to itself; it must not be freed during this one
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak_memory(resident: int) -> float:
    return round((torch.cuda.max_memory_allocated() - resident) / 2**30, 3)


class _Progress:
    """Counts runs and estimates the time that is left."""

    def __init__(self, total: int, notify: Notify) -> None:
        self.total, self.notify, self.started = total, notify, time.perf_counter()
        self.count = self.tasks = 0

    def finished(self, runs: int, result: str, workers: int) -> None:
        """Report a task of so many runs; there is no estimate before every worker has finished one."""
        self.count, self.tasks = self.count + runs, self.tasks + 1
        rest = ""
        if self.count < self.total and self.tasks >= workers:
            rest = f", about {duration(self._seconds_left(workers))} left"
        self.notify(f"[{self.count}/{self.total}] {result}{rest}")

    def _seconds_left(self, workers: int) -> float:
        """The runs of the other workers are half done, on average."""
        others = min((workers - 1) * self.count / self.tasks, self.total - self.count)
        done = self.count + others / 2
        return (time.perf_counter() - self.started) / done * (self.total - done)


def plural(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
