"""Linear heads on a GPU: the batches of an epoch replayed from one CUDA graph with parallel branches."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from spml.accel.graph import WatchedClock, recording
from spml.methods import Clock


class Branch(Protocol):
    """Work that runs on its own stream: a group of heads, or a method within a group."""

    @property
    def stream(self) -> torch.cuda.Stream | None: ...


class HeadSteps(Branch, Protocol):
    """Heads that are trained on the same batches."""

    batch_size: int
    order: Tensor

    def step(self, rows: Tensor, clock: Clock) -> object: ...


B = TypeVar("B", bound=Branch)
R = TypeVar("R")


def new_stream() -> torch.cuda.Stream:
    """Return a stream for a branch of `run_branches`."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def run_branches(job: Callable[[B], R], branches: Sequence[B]) -> list[R]:
    """Run the job for every branch; on parallel streams while a CUDA graph is recorded."""
    if not branches or branches[0].stream is None or not torch.cuda.is_current_stream_capturing():
        return [job(branch) for branch in branches]
    current = torch.cuda.current_stream()
    results = []
    for branch in branches:
        assert branch.stream is not None
        branch.stream.wait_stream(current)
        with torch.cuda.stream(branch.stream):
            results.append(job(branch))
    for branch in branches:
        current.wait_stream(branch.stream)  # type: ignore[arg-type]
    return results


def replay_epoch(groups: Sequence[HeadSteps], clock: Clock, rows: int, device: torch.device) -> int:
    """Train on the full batches of an epoch and return the number of rows used.

    A step consists of hundreds of small kernels, and launching them one by one takes longer than running them. The
    graph is recorded again in every epoch, since a method may depend on the epoch. Groups and, within a group, methods
    are parallel branches.
    """
    size = groups[0].batch_size
    full = rows // size
    if full < 4:
        return 0
    watched = WatchedClock(clock)
    first = torch.full((), size, device=device)
    within = torch.arange(size, device=device)
    side_stream = new_stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):  # the first batch runs eagerly, as a warm-up outside the default stream
        for group in groups:
            group.step(group.order[:size], watched)
    torch.cuda.current_stream().wait_stream(side_stream)
    if "step" in watched.read:  # a step that depends on its number cannot be replayed
        return size
    graph = torch.cuda.CUDAGraph()
    with recording(graph, stream=side_stream):
        batch = first + within
        kept_alive = run_branches(lambda group: group.step(group.order.index_select(0, batch), clock), groups)
        first += size
    del kept_alive  # not earlier: one branch could overwrite memory that another still reads
    for _ in range(full - 1):
        graph.replay()
    torch.cuda.synchronize(device)
    return full * size
