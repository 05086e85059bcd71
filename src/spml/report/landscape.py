"""The loss around a trained network: how flat the place is where training ended (Zhou et al., figure 5)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import Batch, Clock, Method, Problem, method
from spml.models.feature_classifier import FeatureClassifier
from spml.models.heads import Outputs
from spml.report.axes import Axis
from spml.report.beliefs import saw_more
from spml.report.figures import heat_map
from spml.report.markup import Html
from spml.runs.files import read_tensors
from spml.runs.folder import RunFolder

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of logits (B, L), labels (B, L) and positions among the training rows (B,)."""


@dataclass(frozen=True)
class Landscape:
    """The loss on a grid around a network: values[i, j] at offsets[i] along one direction, offsets[j] along another."""

    values: npt.NDArray[np.float64]
    offsets: npt.NDArray[np.float64]

    def rise(self) -> npt.NDArray[np.float64]:
        """How far each value lies over the lowest."""
        over: npt.NDArray[np.float64] = self.values - self.values.min()
        return over


@torch.no_grad()
def loss_landscape(
    run: RunFolder,
    examples: int = 256,
    *,
    steps: int = 11,
    reach: float = 0.5,
    seed: int = 0,
    loss: Loss | None = None,
) -> Landscape:
    """The run's loss on some of its training rows, along two random directions through its network.

    A direction is drawn from a Gaussian and each of its filters scaled to the length of the network's own filter
    (Li et al. 2018), so that networks of different weights can be compared; biases and batch norms stay. The grid
    has steps × steps points (odd, so that the network itself is one) up to `reach` filter lengths away. Without
    `loss` it is the run's own method with what it remembered, in evaluation mode.
    """
    if steps < 3 or steps % 2 == 0:
        raise InputError(f"steps is {steps}: it must be an odd number of at least 3.")
    if examples < 1:
        raise InputError(f"examples is {examples}: it must be at least 1.")
    if run.store is None:
        raise InputError(
            f"the data of {run.name} is no longer there, or has other rows now: its loss cannot be computed."
        )
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randperm(len(run.train), generator=generator)[:examples].sort().values
    inputs = run.store.batch(run.train[positions.numpy()])
    labels = training_labels(run)
    batch = labels.batch(positions.numpy())
    measure = loss or own_loss(run, labels)

    network = run.network()
    if loss is None and isinstance(network, FeatureClassifier):
        network.train()  # its heads as they learned: side by side
    centre = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    first, second = (_direction(centre, generator) for _ in range(2))
    offsets = np.linspace(-reach, reach, steps)
    values = np.empty((steps, steps))
    for i, along in enumerate(offsets):
        for j, across in enumerate(offsets):
            for name, parameter in network.named_parameters():
                parameter.copy_(centre[name] + float(along) * first[name] + float(across) * second[name])
            values[i, j] = float(measure(_logits(network, inputs), batch, positions))
    return Landscape(values, offsets)


def training_labels(run: RunFolder) -> Labels:
    """What the run learned from: the labels given, or for a reference on full labels the truth."""
    source = run.truth if saw_more(run) and run.truth is not None else run.labels
    return source.subset(run.train)


def own_loss(run: RunFolder, labels: Labels) -> Loss:
    """The objective of the run's method, with what it remembered at the best epoch."""
    settings: Mapping[str, Any] = {key: value for key, value in run.record["method"].items() if key != "name"}
    made: Method = method(run.method, **settings)
    remembered = read_tensors(run.folder / "best-memory.safetensors")[0]
    looked = made.needs.soft_labels and bool(remembered)
    # A method of several views is measured by what it computes on one, as on features.
    features = not isinstance(run.store, ImageStore) or len(made.needs.views) > 1
    problem = Problem(labels, run.record["k"], run.record["train"]["seed"], soft_labels=looked, features=features)
    made.prepare(problem)
    made.load_state_dict(remembered)
    made.eval()
    clock = Clock(run.best["epoch"], run.record["train"]["epochs"])
    if looked:  # what it saw is taught, and that is no objective
        return lambda logits, known, rows: made.loss(Batch(rows, known, (logits,)), Outputs, clock)
    return lambda logits, known, rows: made.of_logits(logits, known, rows, clock)


def landscape_chart(landscape: Landscape, title: str, high: float) -> Html:
    """One landscape as a picture: how far the loss rises, on a scale up to `high` that several can share."""
    edge = float(landscape.offsets[-1] + (landscape.offsets[1] - landscape.offsets[0]) / 2)
    return heat_map(
        landscape.rise(),
        title=title,
        x=Axis(-edge, edge, "one random direction"),
        y=Axis(-edge, edge, "another"),
        low=0.0,
        high=high,
    )


def _direction(centre: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    direction = {}
    for name, weight in centre.items():
        drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        if weight.dim() < 2:
            direction[name] = torch.zeros_like(weight)
            continue
        lengths = drawn.flatten(1).norm(dim=1).clamp(min=1e-12)
        scale = weight.flatten(1).norm(dim=1) / lengths
        direction[name] = drawn * scale.view(-1, *[1] * (weight.dim() - 1))
    return direction


def _logits(network: nn.Module, inputs: Tensor, batch: int = 128) -> Tensor:
    return torch.cat([network(inputs[start : start + batch]).logits.float() for start in range(0, len(inputs), batch)])
