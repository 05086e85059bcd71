"""Parallel branches of a CUDA graph: one for every group of heads, and within it for every method."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch


def new_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class Branch(Protocol):
    @property
    def stream(self) -> torch.cuda.Stream | None: ...


B = TypeVar("B", bound=Branch)
R = TypeVar("R")


def side_by_side(job: Callable[[B], R], branches: Sequence[B]) -> list[R]:
    """The job for every branch, in parallel streams while a CUDA graph is recorded."""
    if not branches or branches[0].stream is None or not torch.cuda.is_current_stream_capturing():
        return [job(branch) for branch in branches]
    here = torch.cuda.current_stream()
    results = []
    for branch in branches:
        assert branch.stream is not None
        branch.stream.wait_stream(here)
        with torch.cuda.stream(branch.stream):
            results.append(job(branch))
    for branch in branches:
        here.wait_stream(branch.stream)  # type: ignore[arg-type]
    return results
