"""The training loop: one way from rows to a trained run, resumable at any step.

Every random number is a function of (seed, step), so a checkpoint holds weights, optimiser, what the method
remembers and the step, and nothing else: a run killed and resumed ends with the bytes of one that was not.
"""

import copy
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from spml import __version__
from spml.accel.bf16_weights import HalfWeights
from spml.accel.convolution import Aside, speed_up
from spml.accel.graph import Beside, StepGraph
from spml.data import augment as views
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import DivergedError, InputError
from spml.labels import Labels
from spml.methods import Batch, Clock, Geometry, Method, Problem
from spml.models import Classifier, Head
from spml.models.feature_classifier import FeatureClassifier
from spml.runs.checkpoint import (
    BackgroundWriter,
    TensorFile,
    load_optimiser,
    optimiser_tensors,
    with_prefix,
    without_prefix,
)
from spml.runs.files import lock_folder, read_json, read_tensors, write_text
from spml.runs.log import RunLog, Tracker
from spml.train.device import choose_device, keep_freed_memory, seed_generators, step_seed
from spml.train.distributed import GatheredOutputs, Processes
from spml.train.evaluation import predict_each, selection_score, unobserved_counts
from spml.train.examples import Examples, batch_numbers, read_rows
from spml.train.settings import TrainSettings


def check_labels(method: Method, labels: Labels) -> None:
    """A method that needs more than positives says so before the first step."""
    if method.needs.labels == "full" and not labels.is_full:
        raise InputError(f"method {method.name!r} needs full labels, but some labels of the training rows are unknown")
    if method.needs.labels == "negatives" and not labels.counts().negatives.any():
        raise InputError(f"method {method.name!r} needs known negatives, but the training rows have none")


class Trainer:
    """One training run in its folder: `fit` starts it, or goes on where its last checkpoint stands.

    The folder holds run.json (all settings), log.jsonl, last.safetensors (the checkpoint), best.safetensors (the
    network of the best epoch, raw or averaged weights, whichever validated better) and best-memory.safetensors
    (what the method remembered then). `source` tells the rows from others with the same labels.
    """

    def __init__(
        self,
        folder: str | Path,
        classifier: nn.Module,
        method: Method,
        training: Examples,
        validation: Examples | None = None,
        settings: TrainSettings | None = None,
        *,
        k: float | None = None,
        start: Mapping[str, Tensor] | None = None,
        device: str = "auto",
        trackers: tuple[Tracker, ...] = (),
        progress: bool = True,
        interrupted: threading.Event | None = None,
        source: str = "",
    ) -> None:
        self.folder, self.source = Path(folder), source
        self.settings = settings or TrainSettings()
        self.method, self.training, self.validation, self.k = method, training, validation, k
        check_labels(method, training.labels)
        if validation is not None:
            training.labels.check_same_classes(validation.labels, "validation")
        self.processes = Processes()
        self.device = choose_device(device)
        if self.device.type == "cuda" and self.processes.count > 1:
            self.device = torch.device("cuda", self.processes.local_rank)
        self.processes.start(self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.progress = progress and self.processes.first
        self._files = BackgroundWriter()
        self.log = RunLog(self.folder / "log.jsonl", trackers if self.processes.first else ())

        self._uses_probes = method.needs.soft_labels and self._supports_probes(classifier)
        self.batches = math.ceil(len(training.rows) / self.settings.batch_size)
        problem = Problem(
            training.labels,
            k=k,
            seeds=self.settings.seed,
            soft_labels=self._uses_probes,
            steps=self.batches * self.settings.epochs,
            features=not isinstance(training.store, ImageStore),
        )
        method.prepare(problem)
        if start is not None:  # what a phase before this one remembered (LinearInit)
            method.load_state_dict({name: value.cpu() for name, value in start.items()}, strict=not self._uses_probes)
        self._head_is_trained = start is not None
        self.method.to(self.device)
        self.classifier = classifier.to(self.device).to(memory_format=torch.channels_last)
        if self.settings.kernels and self.device.type == "cuda":
            speed_up(self.classifier, len(self.processes.share(self.settings.batch_size)))
            if find_spec("triton"):
                from spml.accel.batch_norm import fuse  # Triton comes with torch for GPUs, but not on every system

                fuse(self.classifier)
        self.average = copy.deepcopy(self.classifier).requires_grad_(False).eval() if self.settings.averaging else None
        self.optimiser = self._make_optimiser()
        self.step = 0
        self.best: dict[str, Any] = {"score": None, "epoch": 0, "weights": "raw"}
        self.stale = 0  # epochs since the best
        self._coming = np.zeros(0, np.int64)  # the rows of the next batch
        self._ready: Batch | None = None  # and the batch, if it was made meanwhile
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.own_loss = torch.zeros((), device=self.device)  # this process's, until the next transfer
        self._interrupted = interrupted or threading.Event()  # set: end after the current step, with a checkpoint
        self._stopping = torch.zeros((), device=self.device)  # above 0: it was set in one of the processes
        # A mean over rows is the mean of the processes' own: nothing has to be gathered for it.
        self._by_rows = self.processes.count > 1 and method.is_objective and method.needs.splits is not None
        self._graph = self._make_graph() if self._fixed() else None
        many_small = self._graph is not None and self.settings.precision == "bf16"
        self._half = HalfWeights(self.classifier) if many_small else None
        self._aside = Aside(self.device) if self._graph is not None else None
        self._beside = Beside(self.device) if self._graph is not None else None
        self._forward: Callable[[Tensor], Any] = self._half or self.classifier

    # -- what the run is ------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """Everything that decides the outcome; a resume with other values is refused."""
        return {
            "spml": __version__,
            "method": {"name": self.method.name, **asdict(self.method.settings)},
            "train": self.settings.as_record(),
            "model": getattr(self.classifier, "description", {"module": type(self.classifier).__name__}),
            "data": {
                "rows": len(self.training.rows),
                "labels": self.training.labels.fingerprint(),
                "validation": None if self.validation is None else self.validation.labels.fingerprint(),
                **({"source": self.source} if self.source else {}),
            },
            "k": self.k,
            "classes": list(self.training.labels.classes),
        }

    def _make_optimiser(self) -> torch.optim.Optimizer:
        classifier: Any = self.classifier  # a network of the user's own has no groups
        rate = self.settings.learning_rate
        if isinstance(classifier, FeatureClassifier):
            multiples = classifier.parameter_groups()
        elif self.settings.head_rate != 1 and hasattr(classifier, "head_parameters"):
            backbone, head = list(classifier.backbone_parameters()), list(classifier.head_parameters())
            multiples = [(backbone, 1.0), (head, self.settings.head_rate)]
        else:
            multiples = [(list(classifier.parameters()), 1.0)]
        groups: list[dict[str, Any]] = [{"params": p, "multiple": multiple} for p, multiple in multiples]
        own = [
            {"params": p, "multiple": multiple, "weight_decay": 0.0} for p, multiple in self.method.parameter_groups()
        ]
        for group in groups + own:
            group["lr"] = torch.tensor(rate * group["multiple"], device=self.device)
        make = torch.optim.AdamW if self.settings.optimiser == "adamw" else torch.optim.Adam
        on_gpu = self.device.type == "cuda"
        return make(groups + own, weight_decay=self.settings.weight_decay, fused=on_gpu, capturable=on_gpu)

    def _supports_probes(self, classifier: nn.Module) -> bool:
        from spml.train.soft_labels import supports_probes  # scipy is slow to import, and few methods look

        return supports_probes(classifier, self.training.labels)

    def _probe(self) -> None:
        """Show the method what linear heads on the backbone's features say of the training rows, and start from it."""
        from spml.train.soft_labels import probe

        examples, classifier = self.training, self.classifier
        assert isinstance(classifier, Classifier)
        look = probe(
            classifier,
            examples.store,
            examples.rows,
            examples.labels,
            seed=self.settings.seed,
            device=self.device,
            precision=self.settings.precision,
            progress=self.progress,
        )
        shared, weight, bias = (torch.as_tensor(seen).to(self.device) for seen in look)
        self.processes.synchronise([shared, weight, bias])  # the same in all, whatever their devices round to
        head = classifier.head
        if isinstance(head, Head) and not self._head_is_trained:
            started = head.start_from_linear(weight, bias) or head.start_from_frequencies(shared.mean(0))
            if started and self.average is not None:
                self.average.load_state_dict(classifier.state_dict())
        self.method.receive_soft_labels(shared)

    # -- one step -------------------------------------------------------------------------------------------------

    def _order(self, epoch: int) -> np.ndarray:
        draw, store = np.random.default_rng(step_seed(self.settings.seed, epoch, 0)), self.training.store
        if isinstance(store, FeatureStore):  # a large file has an order of its own
            return store.order(self.training.rows, self.settings.batch_size, draw)
        return draw.permutation(len(self.training.rows))

    def _make_ready(self) -> None:
        """The next batch, while the processes wait for one another's gradients, or a GPU is at this one."""
        if len(self._coming):
            self._ready = self._batch(self._coming, self.step + 1)

    def _batch(self, positions: np.ndarray, step: int) -> Batch:
        """The views of this process's share, the rows and labels of all, or of the share if the loss asks no more."""
        share = positions[self.processes.share(len(positions))]
        known, weight = positions, 1.0
        if self._by_rows:
            own = self.processes.own(len(positions))
            known, weight = share[: max(own, 1)], own * self.processes.count / len(positions)
        pixels = read_rows(self.training.store, self.training.rows[share], self.device)
        rows = torch.from_numpy(known).to(self.device, non_blocking=True)
        labels = self.training.labels.batch(known, self.device)
        kinds = self.method.views
        if pixels.dim() == 2:  # features have no views
            return Batch(rows, labels, (pixels,) * len(kinds), weight=weight)
        drawn, made = [], []
        for stream, kind in enumerate(kinds):
            generator = torch.Generator().manual_seed(step_seed(self.settings.seed, step, 1 + stream))
            parameters = views.draw(kind, len(positions), self.settings.views, generator)
            drawn.append(parameters)
            made.append(views.apply(pixels, parameters.take(self.processes.share(len(positions)))))
        averaged = None if self.average is None else lambda view: self._of_average(view, len(positions))
        geometry = tuple(self._geometry(parameters) for parameters in drawn) if self.method.needs.geometry else ()
        return Batch(rows, labels, tuple(made), geometry, weight, averaged)

    def _geometry(self, parameters: views.ViewParameters) -> Geometry:
        flip, crop = parameters.flip.to(self.device), parameters.crop
        return Geometry(flip, None if crop is None else crop.to(self.device))

    def _loss(self, batch: Batch, clock: Clock) -> Tensor:
        """The loss of the whole batch, or where it is a mean over rows this process's part of it."""
        total = len(batch.rows)  # of all processes, or this one's own
        if self._by_rows:
            logits = self.classifier(batch.views[0]).logits[:total]
            loss = self.method.of_logits(logits, batch.labels, batch.rows, clock) * batch.weight
            penalty = self.method.penalty(self.classifier.parameters())
            return loss if penalty is None else loss + penalty

        loss = self.method.loss(batch, lambda view: self._gathered(self._forward, view, total), clock)
        penalty = self.method.penalty(self.classifier.parameters())
        return loss if penalty is None else loss + penalty

    def _gathered(self, network: Callable[[Tensor], Any], view: Tensor, total: int) -> GatheredOutputs:
        """The outputs of all processes for a view."""
        outputs = network(view.contiguous(memory_format=torch.channels_last) if view.dim() == 4 else view)
        parts = (outputs.logits, outputs.embeddings, outputs.maps)
        return GatheredOutputs(None if part is None else self.processes.gather(part, total) for part in parts)

    @torch.no_grad()
    def _of_average(self, view: Tensor, total: int) -> GatheredOutputs:
        assert self.average is not None
        return self._gathered(self.average, view, total)

    def _optimise(self, batch: Batch, clock: Clock, move: bool) -> None:
        """Forward, backward and, where `move`, a step of the optimiser."""
        if self._half is not None:
            self._half.refresh()
        with nullcontext() if self._aside is None else self._aside.collecting():
            with self._autocast():
                loss = self._loss(batch, clock)
            (loss / self.settings.accumulate).backward()
        if self._half is not None:
            self._half.hand_over_gradients()
        own_loss = self.own_loss if self._by_rows else self.loss_sum
        own_loss += loss.detach()
        if not move:
            return
        # Only the classifier's gradients differ between processes: the method's are those of the whole batch.
        gradients = [p.grad for p in self.classifier.parameters() if p.grad is not None]
        if self.processes.count > 1:
            self._stopping.fill_(self._interrupted.is_set())
        self.processes.average(
            [*gradients, self._stopping, *([self.own_loss] if self._by_rows else [])], self._make_ready
        )
        if self._by_rows:
            self.loss_sum += self.own_loss
            self.own_loss.zero_()
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.classifier.parameters(), self.settings.clip)
        self.optimiser.step()
        self.method.after_step(self.optimiser.param_groups[0]["lr"])
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None and self.settings.averaging is not None:
            decay = self.settings.averaging
            with torch.no_grad():
                mine, theirs = list(self.average.state_dict().values()), list(self.classifier.state_dict().values())
                floats = [(a, b) for a, b in zip(mine, theirs, strict=True) if a.is_floating_point()]
                torch._foreach_lerp_([a for a, _ in floats], [b for _, b in floats], 1 - decay)

    def _train_step(self, positions: np.ndarray, clock: Clock) -> None:
        rate = self.settings.rate_at(clock.step / max(clock.steps, 1))
        for group in self.optimiser.param_groups:
            group["lr"].fill_(rate * group["multiple"])
        batch = self._batch(positions, clock.step) if self._ready is None else self._ready
        self._ready = None
        last_of_epoch = (clock.step + 1) % self.batches == 0
        move = (clock.step + 1) % self.settings.accumulate == 0 or last_of_epoch
        # Dropout's numbers: a function of the step, and different in every process.
        seed_generators(step_seed(self.settings.seed, clock.step, 100 + self.processes.rank), self.device)
        if self._graph is None or self._beside is None:
            self._optimise(batch, clock, move)
            return
        self._beside.wait_for_it()
        self._graph.run(batch, clock, self._beside.taken.record)
        with self._beside.making():
            self._make_ready()

    def _make_graph(self) -> StepGraph:
        changes = self.method.needs.epoch_predictions
        return StepGraph(
            lambda batch, clock: self._optimise(batch, clock, True), self.device, changes_between_epochs=changes
        )

    def _fixed(self) -> bool:
        """Whether every step is the same sequence of kernels, so that one recording serves all."""
        alone = self.processes.count == 1 and self.settings.accumulate == 1
        return self.device.type == "cuda" and self.settings.graphs and alone

    def _autocast(self) -> Any:
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    # -- predictions ----------------------------------------------------------------------------------------------

    def predict(self, examples: Examples) -> Tensor:
        """Probabilities for all rows, in evaluation mode; every process predicts its share and holds all."""
        return self._predict_each([self.classifier], examples)[0]

    def _predict_each(self, networks: Sequence[nn.Module], examples: Examples) -> list[Tensor]:
        return predict_each(
            networks,
            examples.store,
            examples.rows,
            device=self.device,
            batch_size=self.settings.evaluation_batch,
            precision=self.settings.precision,
            processes=self.processes,
        )

    # -- the loop -------------------------------------------------------------------------------------------------

    def fit(self) -> dict[str, Any]:
        """Train to the end; returns the best epoch's {score, epoch, weights}."""
        with lock_folder(self.folder) if self.processes.first else nullcontext(), self._files:
            self._open()
            steps = self.batches * self.settings.epochs
            with self._progress(steps) as advance, self._interruptible():
                while self.step < steps and not self._stopped():
                    epoch = self.step // self.batches + 1
                    self._run_epoch(epoch, steps, advance)
                self._files.wait()
            if self.processes.first and not self.log.has("end"):
                self.log.write("end", self.step, **self.best)
        self.processes.wait()  # the files are the first one's to write
        return self.best

    def _run_epoch(self, epoch: int, steps: int, advance: Callable[[str], None]) -> None:
        order = self._order(epoch)
        started, saved = time.perf_counter(), time.perf_counter()
        size, first = self.settings.batch_size, self.step % self.batches
        self.classifier.train()
        self.method.train()
        for number in batch_numbers(self.training.store, self.training.rows[order], size, first, self.processes.share):
            clock = Clock(epoch, self.settings.epochs, self.step, steps)
            self._coming = order[(number + 1) * size : (number + 2) * size]
            self._train_step(order[number * size : (number + 1) * size], clock)
            self.step += 1
            advance(f"epoch {epoch}/{self.settings.epochs}")
            if number + 1 == self.batches:
                break  # the end of an epoch makes its own checkpoint
            stop = self._shall_stop()
            if stop or time.perf_counter() - saved > self.settings.checkpoint_seconds:
                self._save()
                saved = time.perf_counter()
            if stop:
                self._leave()
        self._end_epoch(epoch, steps, started, self.batches - first)
        if self._shall_stop():
            self._leave()

    def _leave(self) -> NoReturn:
        self._files.wait()
        self.processes.wait()  # torchrun ends the others when one has ended, and the first still writes
        raise KeyboardInterrupt

    def _shall_stop(self) -> bool:
        """Whether to end here: several processes at the same step, since a step needs them all."""
        if self.processes.count == 1:
            return self._interrupted.is_set()
        if self.device.type == "cuda" and self.step % 8 and self.step % self.batches:
            return False  # to ask a GPU is to wait for it
        return bool(self._stopping > 0)

    def _end_epoch(self, epoch: int, steps: int, started: float, batches: int) -> None:
        trained = time.perf_counter() - started
        mean_loss = float(self.loss_sum) / self.batches
        if not math.isfinite(mean_loss):
            if epoch == 1 and self.processes.first:  # nothing is lost, and a lower rate may begin in this folder
                self._files.wait()
                (self.folder / "last.safetensors").unlink(missing_ok=True)
            raise DivergedError(
                f"the loss became {mean_loss} in epoch {epoch}: try a learning rate below {self.settings.learning_rate}"
            )
        self.loss_sum.zero_()
        buffers = [b for b in self.classifier.buffers() if b.is_floating_point()]
        self.processes.synchronise(buffers)
        if self.method.needs.epoch_predictions:
            self.method.end_epoch(self.predict(self.training), Clock(epoch, self.settings.epochs, self.step, steps))
        scores: dict[str, float] = {}
        if self.validation is not None:
            networks = {"raw": self.classifier, **({} if self.average is None else {"averaged": self.average})}
            predictions = self._predict_each(list(networks.values()), self.validation)
            for weights, probabilities in zip(networks, predictions, strict=True):
                scores[weights] = selection_score(probabilities, self.validation.labels)
            if self.processes.first:
                counts = unobserved_counts(predictions[0], self.validation.labels)
                self.log.write("histogram", self.step, epoch=epoch, counts=counts)
        best = self._keep_best(epoch, scores)
        self._log_epoch(epoch, mean_loss, scores, trained, time.perf_counter() - started - trained, batches)
        self._save(*best)

    def _log_epoch(
        self, epoch: int, loss: float, scores: dict[str, float], trained: float, evaluated: float, batches: int
    ) -> None:
        if not self.processes.first:
            return
        self.log.write(
            "epoch",
            self.step,
            epoch=epoch,
            loss=loss,
            **{f"validation_{weights}": score for weights, score in scores.items()},
            seconds=round(trained, 3),
            evaluation_seconds=round(evaluated, 3),
            rows_per_second=round(batches * self.settings.batch_size / trained, 1),
            learning_rate=float(self.optimiser.param_groups[0]["lr"]),
        )

    def _keep_best(self, epoch: int, scores: dict[str, float]) -> list[TensorFile]:
        """The files of this epoch, if it is the best so far.

        Without validation the last epoch is the best, with averaged weights where there are any.
        """
        if scores:
            weights, score = max(scores.items(), key=lambda item: item[1])
            improved = self.best["score"] is None or score > self.best["score"]
        else:
            weights, score, improved = ("averaged" if self.average is not None else "raw"), None, True
        self.stale = 0 if improved else self.stale + 1
        if not improved:
            return []
        self.best = {"score": score, "epoch": epoch, "weights": weights}
        network = self.average if weights == "averaged" and self.average is not None else self.classifier
        record = {**self.record(), "best": self.best}
        return [
            (self.folder / "best-memory.safetensors", self.method.state_dict(), record),
            (self.folder / "best.safetensors", network.state_dict(), record),
        ]

    def _stopped(self) -> bool:
        patience = self.settings.early_stopping
        return patience is not None and self.stale >= patience

    # -- files ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start a new run, or load the checkpoint of one begun with the same settings."""
        path, last = self.folder / "run.json", self.folder / "last.safetensors"
        if path.exists():
            refuse_other_settings(path, self.record())
        elif self.processes.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(self.record(), indent=2))
        if last.exists():
            self._load(last)
        else:
            if self._uses_probes:
                self._probe()
            self._save()  # the first checkpoint: what the very start looked like
        if self.processes.first:
            self.log.cut(self.step)
        self.processes.wait()

    def _save(self, *before: TensorFile) -> None:
        """A checkpoint, after these files."""
        if not self.processes.first:
            return
        tensors = {
            **with_prefix("network", self.classifier.state_dict()),
            **with_prefix("method", self.method.state_dict()),
            **with_prefix("optimiser", optimiser_tensors(self.optimiser)),
            "loss_sum": self.loss_sum,
        }
        if self.average is not None:
            tensors.update(with_prefix("average", self.average.state_dict()))
        record = {"step": self.step, "best": self.best, "stale": self.stale, "labels": self.record()["data"]["labels"]}
        self._files.write(*before, (self.folder / "last.safetensors", tensors, record))

    def _load(self, path: Path) -> None:
        tensors, record = read_tensors(path)
        refuse_other_labels(path, record["labels"], self.training.labels)
        self.classifier.load_state_dict(without_prefix("network", tensors))
        self.method.load_state_dict(without_prefix("method", tensors))
        load_optimiser(self.optimiser, without_prefix("optimiser", tensors))
        if self.average is not None:
            self.average.load_state_dict(without_prefix("average", tensors))
        self.loss_sum.copy_(tensors["loss_sum"])
        self.step, self.best, self.stale = record["step"], record["best"], record["stale"]

    # -- seen and interrupted -------------------------------------------------------------------------------------

    @contextmanager
    def _progress(self, steps: int) -> Iterator[Callable[[str], None]]:
        if not self.progress:
            yield lambda text: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("left"), TimeRemainingColumn()) as bar:
            task = bar.add_task(self.method.name, total=steps, completed=self.step)
            yield lambda text: bar.update(task, advance=1, description=f"{self.method.name} {text}")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C and a polite kill end the run after the current step, with a checkpoint."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {s: signal.signal(s, lambda *_: self._interrupted.set()) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def refuse_other_settings(path: Path, record: dict[str, Any]) -> None:
    """A run goes on only with the settings it was begun with; says which differ."""

    def flat(value: Any, name: str = "") -> dict[str, Any]:
        if isinstance(value, dict):
            parts = [flat(v, f"{name}.{key}" if name else key) for key, v in value.items()]
            return {k: v for part in parts for k, v in part.items()}
        return {name: value}

    old = flat(read_json(path))
    new = flat(json.loads(json.dumps(record)))
    differing = [n for n in sorted(old.keys() | new.keys()) if old.get(n) != new.get(n)]
    differing.sort(key=lambda name: (name != "method.name", name not in _DATA))  # what says most comes first
    if differing:
        shown = "; ".join(_DATA.get(n) or f"{n} was {old.get(n)!r}, now {new.get(n)!r}" for n in differing[:5])
        more = f"; and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise InputError(
            f"{path.parent} was begun with other settings: {shown}{more}. Use them again, or another folder"
        )


_DATA = {  # what fingerprints of another value mean
    "data.source": "its rows or their files are others now",
    "data.labels": "the labels to learn from are others now",
    "data.validation": "the held-out labels are others now",
}


def refuse_other_labels(path: Path, fingerprint: str, labels: Labels) -> None:
    """What was remembered belongs to the labels it was remembered for."""
    if fingerprint != labels.fingerprint():
        raise InputError(f"{path} belongs to another data set: its labels are not those given now")
