"""Several processes as one: torchrun starts them, every batch is split among them and its outputs gathered.

Each process runs its share of a batch through the network, then all of them hold the outputs of the whole batch and
compute the same loss on it. Losses over a batch (EPR, large loss), what is remembered per row, and queues are thus
what one process would have, with no merging. A loss that is a mean over rows needs none of that: every process
computes that of its own rows.
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


class Processes:
    """The group this process belongs to; a group of one needs no set-up and communicates nothing."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    def start(self, device: torch.device) -> None:
        """Join the group torchrun announced."""
        if self.count > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
            atexit.register(_leave)  # a process that just ends now and then aborts in gloo's threads

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, total: int) -> npt.NDArray[np.int64]:
        """The positions of a batch of `total` that this process takes: equal contiguous shares.

        Where the batch does not divide, the last shares repeat its last position; `gather` drops the repeats.
        """
        each = -(-total // self.count)
        return np.minimum(np.arange(self.rank * each, (self.rank + 1) * each), total - 1)

    def own(self, total: int) -> int:
        """How many positions of `share` are no repeats."""
        each = -(-total // self.count)
        return max(0, min(each, total - self.rank * each))

    def gather(self, values: Tensor, total: int) -> Tensor:
        """The values of the whole batch from everybody's share, differentiable; repeats are dropped."""
        if self.count == 1:
            return values
        gathered: Tensor = _Gather.apply(values.contiguous(), self)
        return gathered[:total]

    def average(self, tensors: list[Tensor], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Replace every tensor by its mean over the processes, in one transfer; `meanwhile` is called during it."""
        if self.count == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        transfer = dist.all_reduce(flat, async_op=True)
        meanwhile()
        transfer.wait()
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            torch.div(part.view_as(tensor), self.count, out=tensor)

    def synchronise(self, tensors: list[Tensor]) -> None:
        """Everybody takes the first process's values (network buffers such as running means)."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def wait(self) -> None:
        """Until everybody is here."""
        if self.count > 1:
            dist.barrier()


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def end_process(code: int = 0) -> NoReturn:
    """End this process of several at once, with everything written.

    Left to the interpreter, one in a hundred aborts after all its work is done, in threads of torch.
    """
    _leave()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class _Gather(torch.autograd.Function):
    """all_gather whose gradient needs no transfer.

    Everybody computes the same loss of the gathered batch, so the gradients of all copies of a share sum to
    `count` times this process's own; averaging parameter gradients divides that out again.
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
