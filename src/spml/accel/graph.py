"""A whole training step as one CUDA graph.

At the papers' batch sizes a GPU waits for the host between its many small kernels. A step of fixed shape is recorded
once and replayed for every batch, recorded anew every epoch if it may change with the epoch; batches of another size
run as usual.
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


class Beside:
    """A stream on which the next batch is made while the GPU is at this one: little work, and ahead of the step's."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device, priority=-1)
        self.taken = torch.cuda.Event()  # recorded when nothing more will read the batch before

    def wait_for_it(self) -> None:
        torch.cuda.current_stream().wait_stream(self.stream)

    @contextmanager
    def making(self) -> Iterator[None]:
        """What is made takes the memory of the batch before: not earlier than that has been read."""
        self.stream.wait_event(self.taken)
        with torch.cuda.stream(self.stream):
            yield


WARM_UP = 3  # steps run as usual first: libraries choose their algorithms, the optimiser makes its state


class WatchedClock(Clock):
    """A clock that notes what was read of it: what a recorded step has read stays as it was."""

    def __init__(self, clock: Clock) -> None:
        object.__setattr__(self, "read", set())
        super().__init__(clock.epoch, clock.epochs, clock.step, clock.steps)

    def __getattribute__(self, name: str) -> Any:
        if name in ("epoch", "epochs", "step", "steps"):
            super().__getattribute__("read").add(name)
        return super().__getattribute__(name)


class StepGraph:
    """Runs `step(batch, clock)`, replaying a recording of it wherever the batch has the recorded shape.

    A recording serves later epochs, too, if the step asks the clock nothing and nothing changes between epochs.
    """

    def __init__(self, step: Step, device: torch.device, *, changes_between_epochs: bool) -> None:
        self.step, self.device = step, device
        self.changes_between_epochs = changes_between_epochs
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch | None = None
        self.epoch = 0  # whose step is recorded, or about to be
        self.due = True
        self.seen = 0  # steps run as usual before that
        self.stream = torch.cuda.Stream(device)

    def run(self, batch: Batch, clock: Clock, taken: Callable[[], None] = lambda: None) -> None:
        """Run or replay the step; `taken` is called when all that reads the batch itself has been given to the GPU."""
        if self.changes_between_epochs and self.epoch != clock.epoch:
            self.epoch, self.due = clock.epoch, True
            self.seen = min(self.seen, WARM_UP - 1)  # what an epoch brings that is new must have run before
        if self.seen < WARM_UP or (self.batch is not None and len(batch.rows) != len(self.batch.rows)):
            self.seen += 1
            self._run_aside(batch, clock)
            taken()
            return
        if self.due:
            self._record(batch, clock)
        assert self.graph is not None
        assert self.batch is not None
        for static, given in zip(_tensors(self.batch), _tensors(batch), strict=True):
            static.copy_(given)
        taken()
        self.graph.replay()

    def _run_aside(self, batch: Batch, clock: Clock) -> None:
        """As usual, but on a stream of its own, as recording demands of what comes before it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(batch, clock)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self, batch: Batch, clock: Clock) -> None:
        """Record the step; recording does not run it."""
        self.batch = _copy(batch)
        graph = torch.cuda.CUDAGraph()
        # The old recording lends its memory to the new one, and may only go when that is made.
        pool = None if self.graph is None else self.graph.pool()
        with recording(graph, pool=pool, stream=self.stream):
            watched = WatchedClock(clock)
            self.step(self.batch, watched)
        self.graph, self.epoch, self.due = graph, clock.epoch, False
        self.changes_between_epochs |= bool(watched.read)


def _copy(batch: Batch) -> Batch:
    """The same batch in memory of its own."""
    return replace(
        batch,
        rows=batch.rows.clone(),
        labels=batch.labels.clone(),
        views=tuple(view.clone() for view in batch.views),
        geometry=tuple(Geometry(g.flip.clone(), None if g.crop is None else g.crop.clone()) for g in batch.geometry),
    )


def _tensors(batch: Batch) -> list[Tensor]:
    places = [part for g in batch.geometry for part in (g.flip, g.crop) if part is not None]
    return [batch.rows, batch.labels, *batch.views, *places]


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, undisturbed by threads that read ahead, and by Python's collector: it might free another
    recording, which must not happen now."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local", **options):
            yield
    finally:
        if collects:
            gc.enable()
