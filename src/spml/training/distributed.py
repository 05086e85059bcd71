"""Training with several processes, started by torchrun, that computes what one process computes.

Each process runs its share of a batch through the network. Then the outputs are gathered, and every process computes
the same loss on the whole batch. Losses over a batch (EPR, large loss), per-row memory and queues are therefore
identical in all processes, without merging. A loss that is a mean over rows needs no gathering: every process computes
it on its own rows.
"""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from spml.models import Outputs
from spml.training.device import choose_device


class Processes:
    """The group of processes this one belongs to. A group of one needs no setup and no communication."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, total: int) -> npt.NDArray[np.int64]:
        """This process's positions in a batch of `total` rows: equal, contiguous shares.

        If the batch does not divide evenly, the last shares repeat the last position; `gather` drops the repeats.
        """
        size = -(-total // self.count)
        return np.minimum(np.arange(self.rank * size, (self.rank + 1) * size), total - 1)

    def count_own(self, total: int) -> int:
        """Return the number of positions in `share` that are not repeats."""
        size = -(-total // self.count)
        return max(0, min(size, total - self.rank * size))

    def gather(self, values: Tensor, total: int) -> Tensor:
        """Return the whole batch from the shares of all processes. Differentiable."""
        if self.count == 1:
            return values
        gathered: Tensor = _Gather.apply(values.contiguous(), self)
        return gathered[:total]

    def outputs(self, network: Callable[[Tensor], Any], view: Tensor, total: int) -> Outputs:
        """Return the network's outputs for the whole batch, of which `view` is this process's share."""
        outputs = network(view.contiguous(memory_format=torch.channels_last) if view.dim() == 4 else view)
        others = (None if part is None else self.gather(part, total) for part in (outputs.embeddings, outputs.maps))
        return Outputs(self.gather(outputs.logits, total), *others)

    def average(self, tensors: list[Tensor], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Replace every tensor by its mean over the processes, in one transfer; call `meanwhile` during it."""
        if self.count == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        transfer = dist.all_reduce(flat, async_op=True)
        meanwhile()
        transfer.wait()
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            torch.div(part.view_as(tensor), self.count, out=tensor)

    def synchronise(self, tensors: list[Tensor]) -> None:
        """Copy the first process's values to all others (e.g. running means)."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier()


def start_processes(name: str) -> tuple[Processes, torch.device]:
    """Join the other processes, if there are any, and choose this one's device."""
    processes, device = Processes(), choose_device(name)
    if device.type == "cuda" and processes.count > 1:
        device = torch.device("cuda", processes.local_rank)
    if processes.count > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)  # otherwise gloo's threads occasionally abort at exit
    return processes, device


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def end_process(code: int = 0) -> NoReturn:
    """Flush the output and end this process immediately.

    In a normal exit about one process in a hundred aborts in torch's threads, after all its work is done.
    """
    _leave()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class _Gather(torch.autograd.Function):
    """all_gather with a gradient that needs no communication.

    All processes compute the same loss on the gathered batch, so the gradients of all copies of a share sum to
    `count` times this process's own; averaging the parameter gradients divides by `count` again.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, processes: Processes) -> Any:
        ctx.processes, ctx.size = processes, values.shape[0]
        parts = [torch.empty_like(values) for _ in range(processes.count)]
        dist.all_gather(parts, values)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        start = ctx.processes.rank * ctx.size
        return gradients[0][start : start + ctx.size] * ctx.processes.count, None
