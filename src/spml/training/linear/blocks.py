"""What heads share: the data, and the method of the heads that are trained by the same one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spml.errors import InputError
from spml.methods import Clock, Method, Problem, method
from spml.training.accelerator import Accelerator
from spml.training.examples import check_on_features
from spml.training.experiment import Experiment
from spml.training.linear.rows import DeviceFeatures, LabelTables


@dataclass(frozen=True)
class TrainingContext:
    """What all heads of one call share."""

    features: DeviceFeatures
    tables: LabelTables
    epochs: int
    k: float | None
    device: torch.device
    accelerator: Accelerator

    @property
    def rows(self) -> int:
        return len(self.features)

    @property
    def classes(self) -> int:
        return self.tables.shape[1]

    def method(self, experiment: Experiment, seeds: tuple[int, ...]) -> Method:
        """Return the method of an experiment, prepared for one head per seed."""
        name = experiment.method
        prepared = method(name, **experiment.settings)
        check_on_features(type(prepared))
        prepared.prepare(Problem(self.tables.of(prepared).labels, k=self.k, seeds=seeds, features=True))
        for key, state in prepared.state_dict().items():
            if state.shape[:1] != (len(seeds),):
                raise InputError(f"method {name!r} cannot train many heads: its {key!r} has no dimension of heads")
        return prepared.to(self.device)

    def clock(self, epoch: int, batch: int, batch_size: int) -> Clock:
        batches = math.ceil(self.rows / batch_size)
        return Clock(epoch, self.epochs, (epoch - 1) * batches + batch, self.epochs * batches)


class MethodBlock:
    """The heads of one method with the same settings: one `Method` whose memory has a leading dimension of heads."""

    def __init__(self, experiments: Sequence[Experiment], heads: slice, context: TrainingContext) -> None:
        self.heads = heads  # among the group's heads, in order of method
        self.method = context.method(experiments[0], tuple(head.train.seed for head in experiments))
        self.table = context.tables.of(self.method)
        self.rates = [head.train.learning_rate for head in experiments]
        self.rate = torch.tensor(self.rates, device=context.device)[:, None, None]
        self.has_penalty = type(self.method).penalty is not Method.penalty
        self.has_after_step = type(self.method).after_step is not Method.after_step
        self.stream = context.accelerator.new_stream()

    @torch.enable_grad()
    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        """Return the objective of each head (h,), and the leaf (h, B, L) that receives the gradient of their logits."""
        leaf = logits.detach().requires_grad_()
        values = self.method.objective(leaf, labels, rows, clock)
        if values.shape != logits.shape[:1]:
            raise InputError(
                f"method {self.method.name!r} returns numbers of shape {tuple(values.shape)} for {len(logits)} heads: "
                "its objective must take means and sums over the last two dimensions, and return one value per head"
            )
        return values, leaf
