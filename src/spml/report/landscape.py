"""The loss around a trained network: how flat the minimum is (Zhou et al. 2022, figure 5)."""

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
from spml.models.heads import Outputs
from spml.report.axes import Axis
from spml.report.figures import heat_map
from spml.report.markup import Html
from spml.report.tables import trained_on_more_labels
from spml.runs.files import load_weights, read_tensors
from spml.runs.folder import RunFolder

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of logits (B, L), labels (B, L) and positions in the training rows (B,)."""


@dataclass(frozen=True)
class Landscape:
    """The loss on a grid around a network: values[i, j] at offsets[i] along one direction, offsets[j] along another."""

    values: npt.NDArray[np.float64]
    offsets: npt.NDArray[np.float64]

    def rise(self) -> npt.NDArray[np.float64]:
        """Difference between each value and the lowest."""
        over: npt.NDArray[np.float64] = self.values - self.values.min()
        return over


@torch.no_grad()
def loss_landscape(
    run: RunFolder, examples: int = 256, *, steps: int = 11, reach: float = 0.5, seed: int = 0
) -> Landscape:
    """Compute the loss of a run's method along two random directions around its network.

    Each direction is Gaussian, with every filter scaled to the norm of the network's own filter (Li et al. 2018), so
    that networks with different weights can be compared. Biases and normalisation layers do not change.

    Parameters
    ----------
    run : RunFolder
        A finished run whose data is still available.
    examples : int
        Number of training rows to evaluate.
    steps : int
        Grid points per direction; odd, so that the network itself is one of them.
    reach : float
        Largest distance from the network, in filter norms.
    seed : int
        Seed of the directions and rows.

    Returns
    -------
    Landscape

    Raises
    ------
    InputError
        If `steps` or `examples` is invalid, or the data is no longer available.
    """
    if steps < 3 or steps % 2 == 0:
        raise InputError(f"steps is {steps}: it must be an odd number of at least 3")
    if examples < 1:
        raise InputError(f"examples is {examples}: it must be at least 1")
    if run.store is None:
        raise InputError(
            f"the data of {run.name} was moved or changed, so its loss cannot be computed: restore the data"
        )
    if not isinstance(run.store, ImageStore):
        raise InputError(f"{run.name} was trained on features or texts: a loss landscape needs a network")
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randperm(len(run.train), generator=generator)[:examples].sort().values
    inputs = run.store.batch(run.train[positions.numpy()])
    labels = training_labels(run)
    batch = labels.batch(positions.numpy())
    measure = own_loss(run, labels)

    network = run.network()
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
    """Return the labels the run was trained on: the observed labels, or the truth for a reference."""
    source = run.truth if trained_on_more_labels(run) and run.truth is not None else run.labels
    return source.subset(run.train)


def own_loss(run: RunFolder, labels: Labels) -> Loss:
    """Return the objective of the run's method, with its state at the best epoch."""
    settings: Mapping[str, Any] = {key: value for key, value in run.record["method"].items() if key != "name"}
    trained: Method = method(run.method, **settings)
    state, _ = read_tensors(run.folder / "best-memory.safetensors")
    uses_soft_labels = trained.needs.soft_labels and bool(state)
    # A method with several views is evaluated on one view, as it is on features.
    features = not isinstance(run.store, ImageStore) or len(trained.needs.views) > 1
    seed = run.record["train"]["seed"]
    problem = Problem(labels, run.record["k"], seed, soft_labels=uses_soft_labels, features=features)
    trained.prepare(problem)
    load_weights(trained, state, run.folder / "best-memory.safetensors")
    trained.eval()
    clock = Clock(run.best["epoch"], run.record["train"]["epochs"])
    if uses_soft_labels:  # the loss is a cross-entropy to soft labels, not an objective of the labels
        return lambda logits, known, rows: trained.loss(Batch(rows, known, (logits,)), Outputs, clock)
    return lambda logits, known, rows: trained.ensemble_objective(logits, known, rows, clock)


def landscape_chart(landscape: Landscape, title: str, high: float) -> Html:
    """Plot a landscape as a heat map of the increase in loss; `high` is the end of the colour scale."""
    edge = float(landscape.offsets[-1] + (landscape.offsets[1] - landscape.offsets[0]) / 2)
    return heat_map(
        landscape.rise(),
        title=title,
        x=Axis(-edge, edge, "one random direction"),
        y=Axis(-edge, edge, "another random direction"),
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
