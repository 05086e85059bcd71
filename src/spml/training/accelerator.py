"""The only place where training reaches `spml.accel`. That package may be absent: then every step runs eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from spml.methods import Batch, Clock

if TYPE_CHECKING:
    from spml.accel import GpuAccelerator

B = TypeVar("B")
R = TypeVar("R")


class EagerAccelerator:
    """Runs every step eagerly, with the interface of `GpuAccelerator`."""

    def prepare(self, network: nn.Module, batch_size: int) -> None:
        """Replace layers of the network by faster ones; here none."""

    def record_steps(self, network: nn.Module, *, precision: str, changes_between_epochs: bool) -> None:
        """Prepare the recording of steps; here they are not recorded."""

    def forward(self, network: nn.Module, inputs: Tensor) -> Any:
        """Return the network's outputs."""
        return network(inputs)

    def gradients(self) -> AbstractContextManager[None]:
        """Return a context for the forward and backward pass of a step."""
        return nullcontext()

    def run(
        self, step: Callable[[Batch, Clock], None], batch: Batch, clock: Clock, prepare_next: Callable[[], None]
    ) -> None:
        """Run a step."""
        step(batch, clock)

    def new_stream(self) -> torch.cuda.Stream | None:
        """Return a stream for a branch; here None."""
        return None

    def run_branches(self, job: Callable[[B], R], branches: Sequence[B]) -> list[R]:
        """Run the job for every branch, one after another."""
        return [job(branch) for branch in branches]

    def replay_epoch(self, groups: Sequence[object], clock: Clock, rows: int) -> int:
        """Replay recorded steps; return the number of rows that were trained on, here 0."""
        return 0


class CpuAccelerator(EagerAccelerator):
    """Eager execution; layers that a CPU computes more slowly in bfloat16 are computed in float32 under autocast."""

    def prepare(self, network: nn.Module, batch_size: int) -> None:
        """Replace these layers."""
        with suppress(ImportError):  # the package was removed
            from spml.accel.cpu import speed_up

            speed_up(network)


Accelerator: TypeAlias = "EagerAccelerator | GpuAccelerator"


def choose_accelerator(device: torch.device, accelerate: bool = True) -> Accelerator:
    """Return the device's accelerator if wanted and available, else eager execution."""
    if accelerate and device.type == "cpu":
        return CpuAccelerator()
    if accelerate and device.type == "cuda":
        try:
            from spml.accel import GpuAccelerator

            return GpuAccelerator(device)
        except ImportError:  # the package was removed
            pass
    return EagerAccelerator()
