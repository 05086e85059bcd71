"""Batches for training: which rows, in which order, in which views."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from spml.data import augment as views
from spml.data.stores.features import FeatureStore
from spml.methods import Batch, Geometry, Method
from spml.models import Outputs
from spml.training.device import step_seed
from spml.training.distributed import Processes
from spml.training.examples import Examples, read_rows
from spml.training.settings import TrainSettings


@dataclass(frozen=True)
class BatchMaker:
    """Makes the batches of a training. Each is a function of seed and step alone."""

    training: Examples
    method: Method
    average: nn.Module | None
    settings: TrainSettings
    processes: Processes
    device: torch.device

    @property
    def by_rows(self) -> bool:
        """Whether the loss is a mean over rows: each process computes that of its rows, and nothing is gathered."""
        return self.processes.count > 1 and self.method.is_objective and self.method.needs.splits is not None

    def order(self, epoch: int) -> np.ndarray:
        """Return the positions of all training rows, in the order of this epoch."""
        draw, store = np.random.default_rng(step_seed(self.settings.seed, epoch, 0)), self.training.store
        if isinstance(store, FeatureStore):  # a large file is read in its own order
            return store.order(self.training.rows, self.settings.batch_size, draw)
        return draw.permutation(len(self.training.rows))

    def make(self, positions: np.ndarray, step: int) -> Batch:
        """Return a batch with this process's share of the views, and the rows and labels that the loss needs.

        These are the rows of all processes, or only the share if the loss is a mean over rows.
        """
        share = positions[self.processes.share(len(positions))]
        loss_positions, weight = positions, 1.0
        if self.by_rows:
            own_rows = self.processes.count_own(len(positions))
            loss_positions = share[: max(own_rows, 1)]
            weight = own_rows * self.processes.count / len(positions)
        pixels = read_rows(self.training.store, self.training.rows[share], self.device)
        rows = torch.from_numpy(loss_positions).to(self.device, non_blocking=True)
        labels = self.training.labels.batch(loss_positions, self.device)
        kinds = self.method.views
        if pixels.dim() == 2:  # features have no views
            return Batch(rows, labels, (pixels,) * len(kinds), weight=weight)
        drawn, images = [], []
        for stream, kind in enumerate(kinds):
            generator = torch.Generator().manual_seed(step_seed(self.settings.seed, step, 1 + stream))
            parameters = views.draw(kind, len(positions), self.settings.views, generator)
            drawn.append(parameters)
            images.append(views.apply(pixels, parameters.take(self.processes.share(len(positions)))))
        averaged = None if self.average is None else lambda view: self._average_outputs(view, len(positions))
        geometry = tuple(self._geometry(parameters) for parameters in drawn) if self.method.needs.geometry else ()
        return Batch(rows, labels, tuple(images), geometry, weight, averaged)

    def _geometry(self, parameters: views.ViewParameters) -> Geometry:
        flip, crop = parameters.flip.to(self.device), parameters.crop
        return Geometry(flip, None if crop is None else crop.to(self.device))

    @torch.no_grad()
    def _average_outputs(self, view: Tensor, total: int) -> Outputs:
        assert self.average is not None
        return self.processes.outputs(self.average, view, total)
