"""A trial is one training of a protocol or study; it runs once, as an image job or as one of many linear heads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spml import metrics
from spml.bench.draws import Draw
from spml.bench.jobs import (
    Job,
    LinearInit,
    code_version,
    diverged_row,
    pack_fingerprint,
    recovery_scores,
    run_jobs,
    test_scores,
)
from spml.bench.linear import LinearData
from spml.bench.packs import SCENES, features_digest, open_pack
from spml.bench.predictions import class_precision, labels_of_all
from spml.bench.workers import in_workers
from spml.data.formats.pack import Pack
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import METHODS
from spml.models import build_classifier
from spml.runs.files import atomic_path, read_tensors, write_tensors, write_text
from spml.runs.folder import RunFolder, open_run
from spml.train.device import choose_device
from spml.train.linear import HeadResult, HeadSpec, train_heads
from spml.train.pooled_features import pooled_features
from spml.train.settings import TrainSettings

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """Everything that decides one training, and where it stands in the table."""

    data: str
    entry: str
    """The method's name in the protocol: two entries may be one method with other settings."""
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    train: TrainSettings = field(default_factory=TrainSettings)
    k: float | None = None
    draw: Draw = field(default_factory=Draw)
    features: bool = False
    """Train a linear head on features; otherwise a network on images."""
    backbone: str = "lite2"
    image_size: int = 320
    head: str | None = None
    head_settings: dict[str, Any] = field(default_factory=dict)
    linear_init: LinearInit | None = None

    def changed(self, values: Mapping[str, Any]) -> Trial:
        """The trial with some values replaced: k, backbone, image_size, head, train.…, settings.…, draw.…"""
        made = self
        for key, given in values.items():
            value: Any = None if given == "none" else given  # TOML has no None
            table, _, name = key.partition(".")
            if table in ("train", "draw") and name in {f.name for f in fields(getattr(made, table))}:
                made = replace(made, **{table: replace(getattr(made, table), **{name: value})})
            elif table in ("settings", "head_settings") and name:
                made = replace(made, **{table: getattr(made, table) | {name: value}})
            elif key in ("k", "backbone", "image_size", "head"):
                made = replace(made, **{key: value})
            else:
                raise InputError(
                    f"{key!r} cannot be varied; what can: k, backbone, image_size, head, and settings.…, train.…, "
                    "draw.… with the name of a setting"
                )
        return made

    def job(self, path: str) -> Job:
        """The trial as a job on images."""
        same = ("method", "settings", "train", "backbone", "image_size", "head", "head_settings", "k", "draw")
        return Job(path, linear_init=self.linear_init, **{name: getattr(self, name) for name in same})

    def head_spec(self) -> HeadSpec:
        """The trial as a linear head."""
        train = self.train
        return HeadSpec(self.method, self.settings, train.learning_rate, train.batch_size, train.seed)

    @property
    def reference(self) -> bool:
        """Whether the method learns from more than one positive a row, by its nature or by its draw."""
        return METHODS[self.method].needs.labels != "positives" or not self.draw.single


@dataclass(frozen=True)
class Source:
    """A data set by its name in a protocol and its place: a pack, an official layout, or a pack's feature file."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> Source:
        """`voc12=PATH`."""
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise InputError(f"--data {text} is not of the form name=path, as in --data voc12=packs/voc12")
        if path == SCENES:
            return cls(name, Path(path))
        if not Path(path).exists():
            raise InputError(f"--data {text}: there is no file or folder {path}")
        here = Path(path) == Path(SCENES)  # ./scenes, which as a path is written like the built-in ones
        return cls(name, Path(path).resolve() if here else Path(path))

    @cached_property
    def folder(self) -> Path:
        return self.path.parent if self.path.suffix == ".npy" else self.path

    @cached_property
    def feature_file(self) -> str | None:
        """The file of features that comes with the data; None: they are computed from the images."""
        if self.path.suffix == ".npy":
            return self.path.name
        return next((path.name for path in sorted(self.folder.glob("features*.npy"))), None)

    @cached_property
    def pack(self) -> Pack:
        return open_pack(self.folder)

    @cached_property
    def fingerprint(self) -> str:
        return pack_fingerprint(self.pack)


class Runner:
    """Runs trials that have not run, finds those that have. All it keeps lies in `out`."""

    def __init__(
        self,
        sources: Sequence[Source],
        out: Path,
        *,
        device: str = "auto",
        workers: int = 1,
        say: Say = lambda line: None,
    ) -> None:
        self.sources = {source.name: source for source in sources}
        self.out, self.device, self.workers, self.say = out, device, workers, say
        self._features: dict[tuple[str, str, int], tuple[FeatureStore, str]] = {}
        self.notes: list[str] = []

    def path(self, trial: Trial) -> Path:
        """Where the trial's result is or will be: named by its settings, its data and the code."""
        source = self.sources[trial.data]
        if not trial.features:
            return self.out / trial.job(str(source.folder)).key(source.fingerprint) / "result.json"
        _, digest = self.features(trial)
        content = {
            "head": dataclasses.asdict(trial.head_spec()),
            "epochs": trial.train.epochs,
            "early_stopping": trial.train.early_stopping,
            "k": trial.k,
            "draw": dataclasses.asdict(trial.draw),
        }
        text = json.dumps([content, source.fingerprint, digest, code_version()], sort_keys=True)
        return self.out / f"{trial.method}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def done(self, trial: Trial) -> bool:
        source = self.sources[trial.data]
        if trial.features and source.feature_file is None and not self._features_path(source, trial).exists():
            return False  # its name is known once there are features
        return self.path(trial).exists()

    def rows(self, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """The result of every trial, in their order; what has not run is run first."""
        self.out.mkdir(parents=True, exist_ok=True)
        missing = {self.path(trial): trial for trial in trials if not self.done(trial)}
        if missing:
            found = len({self.path(trial) for trial in trials}) - len(missing)
            self.say(f"{len(missing)} runs to do" + (f", {found} found from before" if found else ""))
            clock = _Clock(len(missing), self.say)
            self._run_heads([trial for trial in missing.values() if trial.features], clock)
            self._run_jobs([trial for trial in missing.values() if not trial.features], clock)
        return [json.loads(self.path(trial).read_text(encoding="utf-8")) for trial in trials]

    def measured(self, trial: Trial) -> dict[str, Any]:
        """The result of a trial that has run, with what must be computed from its predictions."""
        (row,) = self.rows([trial])
        run = None if trial.features else self.finished(trial)
        if run is None or run.truth is None:
            return row
        values = metrics.predictive_values(run.probabilities[run.test], run.truth.dense(run.test), _threshold(trial))
        return {
            **row,
            "test_ppv": _number(values.ppv),
            "test_npv": _number(values.npv),
            "test_ap": class_precision(run),
        }

    # Images

    def _run_jobs(self, trials: Sequence[Trial], clock: _Clock) -> None:
        jobs = [trial.job(str(self.sources[trial.data].folder)) for trial in trials]
        if jobs:
            for row in run_jobs(jobs, self.out, device=self.device, workers=self.workers):
                told = f"{row['method']} seed {row['seed']}: validation {100 * row['validation_map']:.2f}"
                clock.finished(1, told if row["seconds"] is None else f"{told}, {row['seconds']:.0f} s")

    # Linear heads

    def features(self, trial: Trial) -> tuple[FeatureStore, str]:
        """The features of all rows, and their digest: the pack's own, or made by the protocol's backbone."""
        key = (trial.data, trial.backbone, trial.image_size)
        if key not in self._features:
            source = self.sources[trial.data]
            file = source.feature_file
            if file is not None:
                store = source.pack.features(file if source.path.suffix == ".npy" else None)
                named_network = f"{trial.backbone} at {trial.image_size} pixels"
                self.notes.append(f"{trial.data}: the features are {file}; the protocol names {named_network}.")
            else:
                store = self._made_features(source, trial)
                self.notes.append(f"{trial.data}: the features are {trial.backbone}'s at {trial.image_size} pixels.")
            self._features[key] = (store, features_digest(store))
        return self._features[key]

    def _features_path(self, source: Source, trial: Trial) -> Path:
        return self.out / f"features-{source.name}-{trial.backbone}-{trial.image_size}-{source.fingerprint}.npy"

    def _made_features(self, source: Source, trial: Trial) -> FeatureStore:
        path = self._features_path(source, trial)
        if not path.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            self.say(f"computing features of {len(source.pack)} images by {trial.backbone}")
            device = choose_device(self.device)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # a backbone without trained weights is the same one every time
                classifier = build_classifier(trial.backbone, len(source.pack.classes), image_size=trial.image_size)
            images = source.pack.images(trial.image_size, cache_path=self.out)
            every = np.arange(len(source.pack))
            made = pooled_features(classifier, images, every, device)
            with atomic_path(path) as temporary:
                np.save(temporary, made.batch(every).numpy())
        return FeatureStore(path)

    def _run_heads(self, trials: Sequence[Trial], clock: _Clock) -> None:
        on_gpu = choose_device(self.device).type == "cuda"
        chunks: dict[tuple[Any, ...], list[Trial]] = {}
        for trial in trials:  # heads of one chunk are trained as one matrix; a chunk is what a kill can lose
            train = trial.train
            alone = None if on_gpu else (trial.entry, train.seed)  # on a CPU more than these are no faster together
            seen = (trial.data, trial.backbone, trial.image_size, trial.draw)
            key = (seen, train.epochs, train.early_stopping, trial.k, train.batch_size, alone)
            chunks.setdefault(key, []).append(trial)
        for chunk, seconds in self._run_chunks(list(chunks.values()), 1 if on_gpu else self.workers):
            methods = ", ".join(dict.fromkeys(trial.entry for trial in chunk))
            clock.finished(len(chunk), f"{len(chunk)} heads of {methods} in {seconds:.0f} s")

    def _run_chunks(self, chunks: Sequence[list[Trial]], workers: int) -> Iterator[tuple[list[Trial], float]]:
        """Each chunk once it is done, and the seconds it took."""
        if workers == 1 or len(chunks) == 1:
            for chunk in chunks:
                yield chunk, self.run_chunk(chunk, progress=sys.stderr.isatty())
            return
        places = tuple(Source(source.name, source.path) for source in self.sources.values())
        tasks = [(places, self.out, self.device, chunk) for chunk in chunks]
        names = [chunk[0].entry for chunk in chunks]
        each = in_workers(_run_chunk_in_worker, tasks, names, device=self.device, workers=workers, abrupt=True)
        with closing(each) as done:
            for number, seconds in done:
                yield chunks[number], seconds

    def run_chunk(self, trials: Sequence[Trial], progress: bool) -> float:
        """Train these heads together; returns the seconds that took."""
        started = time.perf_counter()
        first, pack = trials[0], self.sources[trials[0].data].pack
        data = LinearData.from_store(pack, self.features(first)[0], first.draw)
        rows = first.draw.shown(pack)[0]
        results = train_heads(
            data.features,
            data.labels,
            [trial.head_spec() for trial in trials],
            epochs=first.train.epochs,
            validation=data.validation,
            k=first.k,
            device=choose_device(self.device),
            early_stopping=first.train.early_stopping,
            full_labels=data.truth,
            negatives_labels=data.observed_and_negatives,
            progress=progress,
        )
        each = {"seconds": round((time.perf_counter() - started) / len(trials), 2), "code": code_version()}
        for trial, result in zip(trials, results, strict=True):
            path = self.path(trial)
            if not torch.isfinite(result.weight).all():
                row = diverged_row(trial.method, trial.settings, trial.train.seed)
                write_text(path, json.dumps(row | each))
                continue
            row = head_row(trial, result, data, pack, rows) | each
            tensors = {"weight": result.weight, "bias": result.bias}
            write_tensors(path.with_suffix(".safetensors"), tensors, {"trial": path.stem})
            write_text(path, json.dumps(row))
        return time.perf_counter() - started

    # Finished runs, for the report

    def forget_weights(self, trials: Sequence[Trial], chosen: Sequence[Trial]) -> None:
        """Delete the weights of those heads that were not chosen; their results stay."""
        kept = {self.path(trial) for trial in chosen}
        for path in {self.path(trial) for trial in trials if trial.features} - kept:
            path.with_suffix(".safetensors").unlink(missing_ok=True)

    def finished(self, trial: Trial) -> RunFolder | None:
        """The trial as a finished run, as the report takes it; None where its predictions were not kept."""
        path = self.path(trial)
        if not trial.features:
            try:
                return open_run(path.parent)
            except InputError:
                return None
        if not path.with_suffix(".safetensors").exists():
            return None
        source, row = self.sources[trial.data], json.loads(path.read_text(encoding="utf-8"))
        tensors, _ = read_tensors(path.with_suffix(".safetensors"))
        store, _ = self.features(trial)
        pack, shown = source.pack, trial.draw.shown(source.pack)
        blocks = np.array_split(np.arange(len(pack)), max(1, len(pack) // 4096))
        logits = torch.cat([store.batch(rows) @ tensors["weight"] + tensors["bias"] for rows in blocks])
        taught = trial.draw.shown(pack, METHODS[trial.method].needs.labels)[1]
        return RunFolder(
            folder=path.with_suffix(""),
            record={
                "method": {"name": trial.method, **trial.settings},
                "train": trial.train.as_record(),
                "model": {"head": "linear on features"},
                "data": {"labels": taught.fingerprint()},
                "k": trial.k,
            },
            best={"score": row["validation_map"], "epoch": row["best_epoch"], "weights": "raw"},
            log=[],  # a head's loss is not kept, and its validation curve is drawn by the bench's own report
            names=pack.ids.tolist(),
            labels=labels_of_all(pack, shown),
            truth=Labels.from_matrix(pack.truth, pack.classes, ids=pack.ids.tolist()),
            probabilities=torch.sigmoid(logits).numpy(),
            train=shown[0],
            validation=pack.val,
            test=pack.test,
            source={"path": str(source.folder.resolve()), "options": {}},
        )


_runners: dict[tuple[Any, ...], Runner] = {}  # of a worker: with the data it has opened, kept between chunks


def _run_chunk_in_worker(sources: tuple[Source, ...], out: Path, device: str, trials: Sequence[Trial]) -> float:
    key = (sources, out, device)
    if key not in _runners:
        _runners[key] = Runner(sources, out, device=device)
    return _runners[key].run_chunk(trials, progress=False)


def head_row(
    trial: Trial, result: HeadResult, data: LinearData, pack: Pack, rows: npt.NDArray[np.int64]
) -> dict[str, Any]:
    """What is measured of a head, named as an image job names it; `test_ap` has a number a class."""
    scores = torch.sigmoid(result.score(data.test[0]))
    truth = data.test[1].dense() > 0
    on_training = torch.sigmoid(result.score(data.features))
    unobserved = None
    if data.truth is not None:
        hidden = data.labels.dense() == 0
        unobserved = metrics.mean_average_precision(on_training, data.truth.dense() > 0, mask=hidden, empty="zero")
    values = metrics.predictive_values(scores, truth, _threshold(trial))
    finite = [score for score in result.validation if score == score]
    tables = {"positives": data.labels, "full": data.truth, "negatives": data.observed_and_negatives}
    taught = tables[METHODS[trial.method].needs.labels]
    assert taught is not None
    return {
        "method": trial.method,
        "settings": json.dumps(trial.settings),
        "seed": trial.train.seed,
        "best_epoch": result.best_epoch,
        "validation_map": max(finite, default=0.0),
        "validation_curve": result.validation,
        **test_scores(scores, pack, pack.test, METHODS[trial.method].f1_threshold),
        **recovery_scores(on_training, pack, rows),
        "recovery_unobserved_map": unobserved,
        "test_ppv": _number(values.ppv),
        "test_npv": _number(values.npv),
        "labels": int(np.count_nonzero(taught.dense())),
        "test_ap": torch.nan_to_num(metrics.average_precision(scores, truth), nan=0.0).tolist(),
    }


def _threshold(trial: Trial) -> float:
    """Where the method itself calls a label present; one half for those that do not say."""
    defaults = {f.name: f.default for f in fields(METHODS[trial.method].Settings)}
    return float(trial.settings.get("threshold", defaults.get("threshold", 0.5)))


def _number(value: float) -> float | None:
    return None if value != value else float(value)


class _Clock:
    """How many runs are left, and by the time of those that have run, how long they will take."""

    def __init__(self, total: int, say: Say) -> None:
        self.total, self.say, self.count, self.started = total, say, 0, time.perf_counter()

    def finished(self, runs: int, told: str) -> None:
        self.count += runs
        left = (time.perf_counter() - self.started) / self.count * (self.total - self.count)
        rest = f", about {duration(left)} left" if self.count < self.total else ""
        self.say(f"[{self.count}/{self.total}] {told}{rest}")


def duration(seconds: float) -> str:
    """40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def grid_points(space: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of a space."""
    points: list[dict[str, Any]] = [{}]
    for key, values in space.items():
        points = [point | {key: value} for point in points for value in values]
    yield from points
