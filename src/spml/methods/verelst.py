"""Verelst et al. 2022, "Spatial Consistency Loss …": expected negatives (EN), with consistency (CL) and on maps (SCL).

The exact published settings were not available: this follows the description in the paper's abstract and in LAC's
comparison, and does not claim to reproduce the numbers of LAC's Table 2.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from spml.errors import InputError
from spml.losses.terms import in_full_precision, signed_term, soft_term
from spml.methods.base import Method, mean_entry
from spml.methods.interface import Batch, Clock, Geometry, Model, Needs, Problem
from spml.methods.memory import RowMemory
from spml.methods.registry import register
from spml.type_checks import Fraction, NonNegative, Range

PAPER = "Verelst 2022"


@dataclass(frozen=True)
class EnSettings:
    """`momentum` of the running average per row, over epochs; `class_momentum` of the one per class, over batches."""

    momentum: Fraction = 0.8
    class_momentum: Fraction = 0.99
    consistency_weight: NonNegative = 0.0


@register
class ExpectedNegative(Method):
    """EN: an unknown label counts as negative only while its running average is below the average of its class.

    Labels above it cost nothing. With `consistency_weight`, predictions for unknown labels are also pulled towards
    their running average (CL).
    """

    name = "en"
    paper = PAPER
    summary = "Unknown labels count as negative only while their average prediction is low."
    Settings = EnSettings  # type: ignore[assignment]
    settings: EnSettings
    class_average: Tensor

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        self.memory = RowMemory(problem.rows, (problem.classes,), heads=problem.heads, fill=torch.nan)
        self.register_buffer("class_average", torch.full((*problem.heads, 1, problem.classes), torch.nan))

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        logits = in_full_precision(logits)
        probabilities = torch.sigmoid(logits).detach()
        average = _update_average(self.memory.read(rows), probabilities, self.settings.momentum)
        level = _update_average(self.class_average, probabilities.mean(-2, keepdim=True), self.settings.class_momentum)
        if self.training:
            self.memory.write(rows, average)
            self.class_average.copy_(level)
        ignored = (labels == 0) & (average > level)
        entries = torch.where(ignored, 0.0, signed_term(logits, labels > 0))
        if self.settings.consistency_weight:
            agreement = torch.where(labels == 0, soft_term(logits, average), 0.0)
            entries = entries + self.settings.consistency_weight * agreement
        return mean_entry(entries)


@dataclass(frozen=True)
class EnClSettings(EnSettings):
    consistency_weight: NonNegative = 0.1


@register
class ExpectedNegativeConsistent(ExpectedNegative):
    """EN + CL: predictions are pulled towards their average over past epochs."""

    name = "en-cl"
    summary = "EN, plus consistency of predictions with their average over past epochs."
    Settings = EnClSettings


@dataclass(frozen=True)
class EnSclSettings(EnSettings):
    """`map_size`: side of the stored heat maps, in image coordinates, independent of the view."""

    spatial_weight: NonNegative = 1.0
    map_size: Annotated[int, Range(1, 1000)] = 10


@register
class SpatiallyConsistent(ExpectedNegative):
    """EN + SCL: class maps are pulled towards running-average heat maps of each training image."""

    name = "en-scl"
    summary = "EN, plus consistency of class maps with their average over past epochs."
    needs: ClassVar[Needs] = Needs(head="cam", geometry=True)
    Settings = EnSclSettings
    settings: EnSclSettings

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        side = self.settings.map_size
        self.heat = RowMemory(problem.rows, (problem.classes, side, side), fill=torch.nan, dtype=torch.float16)

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        outputs = model(batch.views[0])
        if outputs.maps is None:
            raise InputError("method 'en-scl' needs class maps: train with the head 'cam'")
        objective = self.objective(outputs.logits, batch.labels, batch.rows, clock)
        heat = torch.sigmoid(in_full_precision(outputs.maps))
        geometry = batch.geometry[0] if batch.geometry else None
        stored = self.heat.read(batch.rows).float()
        known = ~torch.isnan(stored)
        filled = torch.where(known, stored, 0.0)
        height, width = heat.shape[-2:]
        grid = _view_grid(geometry, heat.shape[0], height, width, heat.device)
        target = F.grid_sample(filled, grid, align_corners=False, padding_mode="border")
        covered = F.grid_sample(known.float(), grid, align_corners=False, padding_mode="border") > 0.5
        spatial = torch.where(covered, (heat - target).square(), 0.0).mean()
        if self.training:
            self._update(batch.rows, heat.detach(), stored, geometry)
        return objective + self.settings.spatial_weight * spatial

    def _update(self, rows: Tensor, heat: Tensor, stored: Tensor, geometry: Geometry | None) -> None:
        side = self.settings.map_size
        grid = _image_grid(geometry, heat.shape[0], side, heat.device)
        in_image = F.grid_sample(heat, grid, align_corners=False, padding_mode="border")
        visible = (grid.abs() <= 1).all(-1)[:, None]
        self.heat.write(rows, torch.where(visible, _update_average(stored, in_image, self.settings.momentum), stored))


def _update_average(average: Tensor, value: Tensor, momentum: float) -> Tensor:
    """Update a running average; the first value replaces NaN."""
    return torch.where(torch.isnan(average), value, torch.lerp(value, average, momentum))


def _cell_centres(size: int, device: torch.device) -> Tensor:
    """Cell centres of a side of `size` cells, in (0, 1)."""
    return (torch.arange(size, device=device) + 0.5) / size


def _view_grid(geometry: Geometry | None, count: int, height: int, width: int, device: torch.device) -> Tensor:
    """Position in the image of each cell of a view, in grid_sample's (-1, 1) coordinates: (B, h, w, 2)."""
    y, x = torch.meshgrid(_cell_centres(height, device), _cell_centres(width, device), indexing="ij")
    x, y = x.expand(count, -1, -1), y.expand(count, -1, -1)
    if geometry is not None:
        flipped = geometry.flip[:, None, None]
        x = torch.where(flipped, 1.0 - x, x)
        if geometry.crop is not None:
            left, top, wide, tall = (side[:, None, None] for side in geometry.crop.unbind(-1))
            x, y = left + wide * x, top + tall * y
    return torch.stack([x, y], -1) * 2 - 1


def _image_grid(geometry: Geometry | None, count: int, size: int, device: torch.device) -> Tensor:
    """Position in the view of each cell of the image; outside (-1, 1) if the view does not show it."""
    y, x = torch.meshgrid(_cell_centres(size, device), _cell_centres(size, device), indexing="ij")
    x, y = x.expand(count, -1, -1), y.expand(count, -1, -1)
    if geometry is not None:
        if geometry.crop is not None:
            left, top, wide, tall = (side[:, None, None] for side in geometry.crop.unbind(-1))
            x, y = (x - left) / wide, (y - top) / tall
        x = torch.where(geometry.flip[:, None, None], 1.0 - x, x)
    return torch.stack([x, y], -1) * 2 - 1
