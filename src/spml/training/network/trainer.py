"""The training loop: epochs, interruption, and what happens between epochs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from spml import __version__
from spml.data.stores.images import ImageStore
from spml.errors import DivergedError, InputError
from spml.methods import Clock, Method, Problem
from spml.runs.files import lock_folder
from spml.runs.log import Tracker
from spml.training.accelerator import Accelerator, choose_accelerator
from spml.training.device import keep_freed_memory
from spml.training.distributed import start_processes
from spml.training.evaluation import predict_each, selection_score, unobserved_counts
from spml.training.examples import Examples, batch_numbers, check_labels
from spml.training.network.batches import BatchMaker
from spml.training.network.files import TrainingFiles
from spml.training.network.state import TrainingState
from spml.training.network.step import StepRunner
from spml.training.progress import progress_bar, stop_on_signals
from spml.training.settings import TrainSettings


class Trainer:
    """One training in its folder. `fit` starts it, or resumes it from its last checkpoint.

    The folder holds run.json (settings), log.jsonl, last.safetensors (checkpoint), best.safetensors (network of the
    best epoch, with raw or averaged weights) and best-memory.safetensors (the method's memory at that epoch).

    Parameters
    ----------
    folder : str or Path
        Run folder. If it holds an interrupted run with the same settings, training resumes.
    classifier : nn.Module
        The network; its outputs have `logits`, `embeddings` and `maps`.
    method : Method
        It is prepared here for the training labels.
    training, validation : Examples
        Rows and labels. Without validation the last epoch counts as the best.
    settings : TrainSettings, optional
        Everything about the loop that is not part of the method.
    k : float, optional
        Average number of labels per row.
    start : mapping of str to Tensor, optional
        The method's memory from an earlier phase (LinearInit), with an already trained head.
    device : str
        "auto", "cpu" or "cuda".
    trackers : tuple of Tracker
        Receive all logged numbers.
    progress : bool
        Show progress bars.
    interrupted : threading.Event, optional
        Set it to stop after the current step, with a checkpoint.
    source : str
        A fingerprint of the data.
    accelerator : Accelerator, optional
        By default chosen by `settings.accelerate` and the device.
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
        accelerator: Accelerator | None = None,
    ) -> None:
        self.folder, self.source, self.k = Path(folder), source, k
        self.settings = settings or TrainSettings()
        self.method, self.training, self.validation = method, training, validation
        check_labels(method, training.labels)
        if validation is not None:
            training.labels.check_same_classes(validation.labels, "validation")
        self.processes, self.device = start_processes(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.progress = progress and self.processes.first
        self.batches = math.ceil(len(training.rows) / self.settings.batch_size)
        self.steps = self.batches * self.settings.epochs
        self.uses_probes = method.needs.soft_labels and self._supports_probes(classifier)
        self._keeps_head = start is not None
        self._prepare_method(start)
        self.classifier = classifier.to(self.device).to(memory_format=torch.channels_last)
        self.accelerator = accelerator or choose_accelerator(self.device, self.settings.accelerate)
        self.accelerator.prepare(self.classifier, len(self.processes.share(self.settings.batch_size)))
        self.state = TrainingState.create(self.classifier, method, self.settings, self.device)
        shared = (self.settings, self.processes, self.device)
        self.batch_maker = BatchMaker(training, method, self.state.average, *shared)
        self._interrupted = interrupted or threading.Event()
        self.step_runner = StepRunner(self.state, self.batch_maker, self.accelerator, self._interrupted)
        self.files = TrainingFiles(self.folder, self.state, self.record, self.processes, trackers)

    def _supports_probes(self, classifier: nn.Module) -> bool:
        from spml.training.frozen.soft_labels import supports_probes  # scipy is slow to import, and few methods need it

        return supports_probes(classifier, self.training.labels)

    def _prepare_method(self, start: Mapping[str, Tensor] | None) -> None:
        problem = Problem(
            self.training.labels,
            k=self.k,
            seeds=self.settings.seed,
            soft_labels=self.uses_probes,
            steps=self.steps,
            features=not isinstance(self.training.store, ImageStore),
        )
        self.method.prepare(problem)
        if start is not None:
            values = {name: value.cpu() for name, value in start.items()}
            self.method.load_state_dict(values, strict=not self.uses_probes)
        self.method.to(self.device)

    def record(self) -> dict[str, Any]:
        """Everything that decides the outcome, as in run.json. A run resumes only with equal values."""
        validation = None if self.validation is None else self.validation.labels.fingerprint()
        return {
            "spml": __version__,
            "method": {"name": self.method.name, **asdict(self.method.settings)},
            "train": self.settings.as_record(),
            "model": self._model_record(),
            "data": {
                "rows": len(self.training.rows),
                "labels": self.training.labels.fingerprint(),
                "validation": validation,
                **({"source": self.source} if self.source else {}),
            },
            "k": self.k,
            "classes": list(self.training.labels.classes),
        }

    def _model_record(self) -> dict[str, Any]:
        """The network's description, with the activation of the method that trains it unless it is the sigmoid."""
        description = getattr(self.classifier, "description", {"module": type(self.classifier).__name__})
        activation = self.method.activation
        return description if activation == "sigmoid" else {**description, "activation": activation}

    def predict(self, examples: Examples) -> Tensor:
        """Probabilities for all rows; every process predicts its share and receives all."""
        return self._predict_each([self.classifier], examples)[0]

    def _predict_each(self, networks: Sequence[nn.Module], examples: Examples) -> list[Tensor]:
        return predict_each(
            networks,
            examples.store,
            examples.rows,
            device=self.device,
            activation=self.method.activation,
            batch_size=self.settings.evaluation_batch,
            precision=self.settings.precision,
            processes=self.processes,
        )

    def fit(self) -> dict[str, Any]:
        """Train to the end.

        Returns
        -------
        dict
            {"score", "epoch", "weights"} of the best epoch.

        Raises
        ------
        InputError
            If the folder holds a run with other settings or is in use, or if the loss is no longer finite.
        KeyboardInterrupt
            If training was interrupted; a checkpoint has been written.
        """
        with lock_folder(self.folder) if self.processes.first else nullcontext(), self.files.writer:
            self.files.open(self.training.labels, self._start_from_probes)
            patience = self.settings.early_stopping or math.inf
            with (
                progress_bar(self.method.name, self.steps, self.state.step, visible=self.progress) as advance,
                stop_on_signals(self._interrupted),
            ):
                while self.state.step < self.steps and self.state.stale < patience:
                    self._run_epoch(self.state.step // self.batches + 1, advance)
                self.files.writer.wait()
            if self.processes.first and not self.files.log.has("end"):
                self.files.write_log("end", **self.state.best)
        self.processes.wait()  # only the first process writes
        return self.state.best

    def _start_from_probes(self) -> None:
        if self.uses_probes:
            from spml.training.frozen.soft_labels import start_from_probes

            start_from_probes(self.state, self.batch_maker, keep_head=self._keeps_head, progress=self.progress)

    def _run_epoch(self, epoch: int, advance: Callable[..., None]) -> None:
        order, size = self.batch_maker.order(epoch), self.settings.batch_size
        started = saved = time.perf_counter()
        first = self.state.step % self.batches
        self.classifier.train()
        self.method.train()
        for number in batch_numbers(self.training.store, self.training.rows[order], size, first, self.processes.share):
            clock = Clock(epoch, self.settings.epochs, self.state.step, self.steps)
            rows, following = (order[start * size : (start + 1) * size] for start in (number, number + 1))
            last = number + 1 == self.batches
            try:
                self.step_runner.run(rows, clock, following, last)
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise InputError(
                    f"a batch of {len(rows)} images is too small for batch normalisation at this size: use another "
                    "--batch-size, or a larger --size"
                ) from error
            self.state.step += 1
            advance(1, f"epoch {epoch}/{self.settings.epochs}")
            if last:
                break  # the end of an epoch writes its own checkpoint
            must_stop = self._must_stop()
            if must_stop or time.perf_counter() - saved > self.settings.checkpoint_seconds:
                self.files.save()
                saved = time.perf_counter()
            if must_stop:
                self._leave()
        self._end_epoch(epoch, started, self.batches - first)
        if self._must_stop():
            self._leave()

    def _must_stop(self) -> bool:
        """Return whether to stop here. All processes stop at the same step, since a step needs all of them."""
        if self.processes.count == 1:
            return self._interrupted.is_set()
        if self.device.type == "cuda" and self.state.step % 8 and self.state.step % self.batches:
            return False  # reading the flag waits for the GPU
        return bool(self.step_runner.stopping > 0)

    def _leave(self) -> NoReturn:
        self.files.writer.wait()
        self.processes.wait()  # torchrun kills the others when one ends, and the first process is still writing
        raise KeyboardInterrupt

    def _end_epoch(self, epoch: int, started: float, batches: int) -> None:
        state, trained = self.state, time.perf_counter() - started
        loss = self._mean_loss(epoch)
        self.processes.synchronise([b for b in self.classifier.buffers() if b.is_floating_point()])
        if self.method.needs.epoch_predictions:
            clock = Clock(epoch, self.settings.epochs, state.step, self.steps)
            self.method.end_epoch(self.predict(self.training), clock)
        scores: dict[str, float] = {}
        if self.validation is not None:
            networks, labels = state.networks(), self.validation.labels
            predictions = self._predict_each(list(networks.values()), self.validation)
            scores = {name: selection_score(p, labels) for name, p in zip(networks, predictions, strict=True)}
            self.files.write_log("histogram", epoch=epoch, counts=unobserved_counts(predictions[0], labels))
        best = self.files.best_epoch() if state.compare(epoch, scores) else []
        self.files.write_log(
            "epoch",
            epoch=epoch,
            loss=loss,
            **{f"validation_{weights}": score for weights, score in scores.items()},
            seconds=round(trained, 3),
            evaluation_seconds=round(time.perf_counter() - started - trained, 3),
            rows_per_second=round(batches * self.settings.batch_size / trained, 1),
            learning_rate=float(state.optimiser.param_groups[0]["lr"]),
        )
        self.files.save(*best)

    def _mean_loss(self, epoch: int) -> float:
        """Return the mean loss of this epoch; the sum starts again from 0."""
        loss, rate = float(self.state.loss_sum) / self.batches, self.settings.learning_rate
        if not math.isfinite(loss):
            if epoch == 1:
                self.files.forget_checkpoint()
            raise DivergedError(f"the loss became {loss} in epoch {epoch}: try a learning rate below {rate}")
        self.state.loss_sum.zero_()
        return loss
