"""A whole training step as one CUDA graph.

At small batch sizes a GPU waits for the host between many small kernels. A step of fixed shape is recorded once and
replayed for every batch. It is recorded again in every epoch if it may depend on the epoch. Batches of another size run
eagerly.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spml.methods import Batch, Clock, Geometry

Step = Callable[[Batch, Clock], None]


class PrefetchStream:
    """A stream with high priority that prepares the next batch while the GPU computes this one."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.batch_read = torch.cuda.Event()  # recorded when the previous batch has been read

    def wait(self) -> None:
        """Make the current stream wait for the prepared batch."""
        torch.cuda.current_stream().wait_stream(self.stream)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Prepare a batch in this context. It reuses the memory of the previous one, so that must have been read."""
        self.stream.wait_event(self.batch_read)
        with torch.cuda.stream(self.stream):
            yield


WARM_UP = 3  # eager steps before recording: libraries choose algorithms, the optimiser creates its state


class WatchedClock(Clock):
    """A clock that notes which attributes were read: a recorded step cannot read them again."""

    def __init__(self, clock: Clock) -> None:
        object.__setattr__(self, "read", set())
        super().__init__(clock.epoch, clock.epochs, clock.step, clock.steps)

    def __post_init__(self) -> None:
        """Check nothing: the clock was checked when it was created, and reading its epoch here would be noted."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("epoch", "epochs", "step", "steps"):
            super().__getattribute__("read").add(name)
        return super().__getattribute__(name)


class StepGraph:
    """Runs a step, replaying a recording of it if the batch has the recorded shape.

    A recording also serves later epochs, if the step does not read the clock and nothing changes between epochs.
    """

    def __init__(self, device: torch.device, *, changes_between_epochs: bool) -> None:
        self.device = device
        self.changes_between_epochs = changes_between_epochs
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch | None = None
        self.epoch = 0  # of the recorded step, or the one about to be recorded
        self.due = True
        self.warm_up_steps = 0
        self.stream = torch.cuda.Stream(device)

    def run(self, step: Step, batch: Batch, clock: Clock, batch_read: Callable[[], None] = lambda: None) -> None:
        """Run or replay the step; `batch_read` is called once everything that reads the batch itself is launched."""
        if self.changes_between_epochs and self.epoch != clock.epoch:
            self.epoch, self.due = clock.epoch, True
            self.warm_up_steps = min(self.warm_up_steps, WARM_UP - 1)  # new code must run before it is recorded
        if self.warm_up_steps < WARM_UP or (self.batch is not None and len(batch.rows) != len(self.batch.rows)):
            self.warm_up_steps += 1
            self._run_eagerly(step, batch, clock)
            batch_read()
            return
        if self.due:
            self._record(step, batch, clock)
        assert self.graph is not None
        assert self.batch is not None
        for static, given in zip(_tensors(self.batch), _tensors(batch), strict=True):
            static.copy_(given)
        batch_read()
        self.graph.replay()

    def _run_eagerly(self, step: Step, batch: Batch, clock: Clock) -> None:
        """Run on the recording's stream, which CUDA requires of the steps before a recording."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            step(batch, clock)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self, step: Step, batch: Batch, clock: Clock) -> None:
        """Record the step without running it."""
        self.batch = _copy(batch)
        graph = torch.cuda.CUDAGraph()
        # The new recording uses the memory of the old one, which must stay alive until then.
        pool = None if self.graph is None else self.graph.pool()
        with recording(graph, pool=pool, stream=self.stream):
            watched = WatchedClock(clock)
            step(self.batch, watched)
        self.graph, self.epoch, self.due = graph, clock.epoch, False
        self.changes_between_epochs |= bool(watched.read)


def _copy(batch: Batch) -> Batch:
    """Return a copy of the batch."""
    return replace(
        batch,
        rows=batch.rows.clone(),
        labels=batch.labels.clone(),
        views=tuple(view.clone() for view in batch.views),
        geometry=tuple(Geometry(g.flip.clone(), None if g.crop is None else g.crop.clone()) for g in batch.geometry),
    )


def _tensors(batch: Batch) -> list[Tensor]:
    geometry = [part for g in batch.geometry for part in (g.flip, g.crop) if part is not None]
    return [batch.rows, batch.labels, *batch.views, *geometry]


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, undisturbed by threads that prefetch and by garbage collection of another recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local", **options):
            yield
    finally:
        if collects:
            gc.enable()
