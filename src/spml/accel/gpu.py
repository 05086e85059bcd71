"""The accelerator of a GPU: all parts of this package behind the interface of `spml.training.accelerator`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from spml.accel.bf16_weights import Bf16Weights
from spml.accel.convolution import WeightGradStream, speed_up
from spml.accel.graph import PrefetchStream, Step, StepGraph
from spml.accel.heads import HeadSteps, new_stream, replay_epoch, run_branches
from spml.methods import Batch, Clock


@dataclass(frozen=True)
class Parts:
    """The parts in use, by default all of them; benchmarks/steps.py measures their gains."""

    graph: bool = True  # replay a recorded step; the parts below marked * need it
    prefetch: bool = True  # * prepare the next batch on a separate stream
    norm: bool = True  # fused batch normalisation
    convolutions: bool = True  # depthwise kernels; * weight gradients on a separate stream
    bf16_weights: bool = True  # * convert all weights to bfloat16 at once


class GpuAccelerator:
    """Accelerates training steps on one GPU."""

    def __init__(self, device: torch.device, parts: Parts | None = None) -> None:
        self.device, self.parts = device, parts or Parts()
        self.graph: StepGraph | None = None
        self.weights: Bf16Weights | None = None
        self._gradients: WeightGradStream | None = None
        self._prefetch: PrefetchStream | None = None

    def prepare(self, network: nn.Module, batch_size: int) -> None:
        """Replace layers by faster ones with the same weights."""
        if self.parts.convolutions:
            speed_up(network, batch_size)
        if self.parts.norm and find_spec("triton"):  # Triton comes with torch for GPUs, but not on every system
            from spml.accel.batch_norm import fuse

            fuse(network)

    def record_steps(self, network: nn.Module, *, precision: str, changes_between_epochs: bool) -> None:
        """From now on, record steps of equal shape and replay them."""
        if not self.parts.graph:
            return
        self.graph = StepGraph(self.device, changes_between_epochs=changes_between_epochs)
        if self.parts.bf16_weights and precision == "bf16":
            self.weights = Bf16Weights(network)
        if self.parts.convolutions:
            self._gradients = WeightGradStream(self.device)
        if self.parts.prefetch:
            self._prefetch = PrefetchStream(self.device)

    def forward(self, network: nn.Module, inputs: Tensor) -> Any:
        """Return the network's outputs."""
        if self.weights is not None and network is self.weights.network:
            return self.weights(inputs)
        return network(inputs)

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Around the forward and backward pass of a step; afterwards every weight has its gradient."""
        if self.weights is not None:
            self.weights.refresh()
        with nullcontext() if self._gradients is None else self._gradients.collecting():
            yield
        if self.weights is not None:
            self.weights.hand_over_gradients()

    def run(self, step: Step, batch: Batch, clock: Clock, prepare_next: Callable[[], None]) -> None:
        """Run or replay a step, and prepare the next batch while the GPU computes this one."""
        if self.graph is None:
            step(batch, clock)
        elif self._prefetch is None:
            self.graph.run(step, batch, clock)
        else:
            self._prefetch.wait()
            self.graph.run(step, batch, clock, self._prefetch.batch_read.record)
            with self._prefetch.preparing():
                prepare_next()

    new_stream = staticmethod(new_stream)
    run_branches = staticmethod(run_branches)

    def replay_epoch(self, groups: Sequence[HeadSteps], clock: Clock, rows: int) -> int:
        """Train linear heads on the full batches of an epoch; returns the number of rows used."""
        return replay_epoch(groups, clock, rows, self.device)
