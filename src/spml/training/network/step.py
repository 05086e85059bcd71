"""One training step: batch, loss, gradients, optimiser."""

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spml.methods import Batch, Clock
from spml.training.accelerator import Accelerator
from spml.training.device import seed_generators, step_seed
from spml.training.network.batches import BatchMaker
from spml.training.network.state import TrainingState


class StepRunner:
    """Runs training steps on a state. The loss is added to `state.loss_sum`; `state.step` is left to the caller."""

    def __init__(
        self, state: TrainingState, batches: BatchMaker, accelerator: Accelerator, interrupted: threading.Event
    ) -> None:
        self.state, self.batches, self.accelerator, self.interrupted = state, batches, accelerator, interrupted
        self.settings, self.processes, self.device = batches.settings, batches.processes, batches.device
        self.stopping = torch.zeros((), device=self.device)  # above 0: one of the processes was interrupted
        self._own_loss = torch.zeros((), device=self.device)  # this process's loss until the next transfer
        self._next: tuple[np.ndarray, int] | None = None  # positions and step of the next batch
        self._prepared: Batch | None = None  # the next batch, once it is prepared
        settings = self.settings
        if self.processes.count == 1 and settings.accumulate == 1:  # every step is the same sequence of kernels
            changes = state.method.needs.epoch_predictions
            accelerator.record_steps(state.classifier, precision=settings.precision, changes_between_epochs=changes)

    def run(self, positions: np.ndarray, clock: Clock, following: np.ndarray, last: bool) -> None:
        """Train on a batch.

        Parameters
        ----------
        positions : array of shape (batch_size,)
            Positions among the training rows.
        clock : Clock
            The epoch and step.
        following : array
            The positions of the next batch, which may be prepared meanwhile; empty at the end of an epoch.
        last : bool
            Whether this is the last batch of its epoch.
        """
        rate = self.settings.rate_at(clock.step / max(clock.steps, 1))
        for group in self.state.optimiser.param_groups:
            group["lr"].fill_(rate * group["multiple"])
        batch = self.batches.make(positions, clock.step) if self._prepared is None else self._prepared
        self._prepared, self._next = None, (following, clock.step + 1)
        update = (clock.step + 1) % self.settings.accumulate == 0 or last
        # Dropout is a function of the step, and different in every process.
        seed_generators(step_seed(self.settings.seed, clock.step, 100 + self.processes.rank), self.device)
        self.accelerator.run(
            lambda batch, clock: self._optimise(batch, clock, update), batch, clock, self._prepare_next
        )

    def _prepare_next(self) -> None:
        """Prepare the next batch while gradients are being reduced or the GPU computes this one."""
        if self._next is not None and len(self._next[0]):
            self._prepared = self.batches.make(*self._next)

    def _optimise(self, batch: Batch, clock: Clock, update: bool) -> None:
        """Forward and backward pass and, if `update`, a step of the optimiser."""
        state, by_rows = self.state, self.batches.by_rows
        with self.accelerator.gradients():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
                loss = self._loss(batch, clock)
            (loss / self.settings.accumulate).backward()  # type: ignore[no-untyped-call]
        loss_sum = self._own_loss if by_rows else state.loss_sum
        loss_sum += loss.detach()
        if not update:
            return
        self._reduce()
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(state.classifier.parameters(), self.settings.clip)
        state.optimiser.step()
        state.method.after_step(state.optimiser.param_groups[0]["lr"])
        state.optimiser.zero_grad(set_to_none=True)
        if self.settings.averaging is not None:
            state.update_average(self.settings.averaging)

    def _loss(self, batch: Batch, clock: Clock) -> Tensor:
        """Return the loss of the whole batch; if it is a mean over rows, this process's part of it."""
        method, classifier = self.state.method, self.state.classifier
        total = len(batch.rows)  # of all processes, or this one's own
        if self.batches.by_rows:
            logits = classifier(batch.views[0]).logits[:total]
            loss = method.ensemble_objective(logits, batch.labels, batch.rows, clock) * batch.weight
        else:
            loss = method.loss(batch, lambda view: self.processes.outputs(self._forward, view, total), clock)
        penalty = method.penalty(classifier.parameters())
        return loss if penalty is None else loss + penalty

    def _forward(self, view: Tensor) -> Any:
        return self.accelerator.forward(self.state.classifier, view)

    def _reduce(self) -> None:
        """Average over the processes. Only the classifier's gradients differ: the method's are of the whole batch."""
        if self.processes.count > 1:
            self.stopping.fill_(self.interrupted.is_set())
        gradients = [p.grad for p in self.state.classifier.parameters() if p.grad is not None]
        shared = [*gradients, self.stopping, *([self._own_loss] if self.batches.by_rows else [])]
        self.processes.average(shared, self._prepare_next)
        if self.batches.by_rows:
            self.state.loss_sum += self._own_loss
            self._own_loss.zero_()
