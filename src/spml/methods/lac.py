"""Xie et al. 2022, "Label-Aware Global Consistency": PLC on two views, LAC on label-wise embeddings."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from spml.errors import InputError
from spml.losses import assume_negative
from spml.losses.contrastive import (
    confident_entries,
    label_aware_consistency,
    pseudo_label_consistency,
    supervised_contrast,
    target_entries,
)
from spml.methods.base import Method, mean_entry, mean_row
from spml.methods.interface import Batch, Clock, Model, Needs, Problem
from spml.methods.registry import register
from spml.type_checks import Count, NonNegative, Positive, Range, Share

PAPER = "Xie 2022"


@dataclass(frozen=True)
class PlcSettings:
    """Sec. 4.1: λ_PLC = 1; δ = 0.6 as in the authors' code, which also uses observed positives as targets.

    Eq. 2 and 4 sum both terms over classes. With `divide_by_sure` AN is divided by B·L and PLC by the number of its
    targets instead, as in the authors' code, which gives PLC one to five times the weight.
    """

    threshold: Share = 0.6
    consistency_weight: NonNegative = 1.0
    include_observed: bool = True
    divide_by_sure: bool = False


@register
class Plc(Method):
    """L_AN + λ_PLC L_PLC (Eq. 2 and 4): AN on the weak view, whose confident predictions are the strong view's targets.

    On features both views are the same.
    """

    name = "plc"
    paper = PAPER
    summary = "AN, plus consistency: confident predictions for a weak view are the targets of a strong view."
    needs: ClassVar[Needs] = Needs(views=("weak", "strong"), splits="rows")
    pseudo_label_setting = "threshold"
    Settings = PlcSettings  # type: ignore[assignment]
    settings: PlcSettings

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        return self.two_views(logits, logits, labels, self.settings.threshold)

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        if self.settings.divide_by_sure:
            self.needs = replace(self.needs, splits=None)  # type: ignore[misc]

    def two_views(self, weak: Tensor, strong: Tensor, labels: Tensor, threshold: float) -> Tensor:
        assumed, include_observed = assume_negative(weak, labels), self.settings.include_observed
        consistency = pseudo_label_consistency(
            strong, labels, weak, threshold=threshold, include_observed=include_observed
        )
        if self.settings.divide_by_sure:
            sure = torch.logical_or(*target_entries(labels, weak, threshold, include_observed)).sum((-2, -1))
            return mean_entry(assumed) + self.settings.consistency_weight * consistency.sum((-2, -1)) / sure.clamp(1)
        return mean_row(assumed + self.settings.consistency_weight * consistency)

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        weak, strong = (model(view).logits for view in batch.views)
        return self.two_views(weak, strong, batch.labels, self.settings.threshold)


@dataclass(frozen=True)
class LacSettings(PlcSettings):
    """Sec. 3.2 and 4.1: λ_LAC = 1, τ = 0.5, a queue of 512; in the second stage δ = 0.9.

    The paper trains the first stage to its end before the second; `first_stage` is the first stage's share of all
    epochs. At most `most_per_row` embeddings per row take part, the most confident of the batch first: the number is
    fixed, so that the host does not wait for the device to count them. `supervised_contrast` replaces Eq. 7 by the
    supervised contrastive loss of the authors' code: both views and the queue are anchors, averaged.
    """

    second_threshold: Share = 0.9
    contrast_weight: NonNegative = 1.0
    temperature: Positive = 0.5
    queue: Count = 512
    embedding_width: Annotated[int, Range(1, 65_536)] = 128
    first_stage: Share = 0.5
    most_per_row: Count = 64
    supervised_contrast: bool = False


@register
class Lac(Plc):
    """Eq. 3: PLC and, in the second stage, a contrastive loss on label-wise embeddings (Eq. 7).

    Anchors are the weak view's embeddings, keys the strong view's and the queue's; an embedding takes part if its
    label is observed or the weak view predicts it above δ. Features have no label-wise embeddings: there only the first
    stage is used.
    """

    name = "lac"
    summary = "PLC, then a contrastive loss that brings embeddings of the same label together across images."
    needs: ClassVar[Needs] = Needs(views=("weak", "strong"), head="label-wise")
    Settings = LacSettings
    settings: LacSettings
    queue_embeddings: Tensor
    queue_classes: Tensor
    queue_position: Tensor

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        # One slot more than the queue: entries that must not be kept are written there.
        slots = self.settings.queue + 1
        self.register_buffer("queue_embeddings", torch.zeros(slots, self.settings.embedding_width))
        self.register_buffer("queue_classes", torch.full((slots,), -1))
        self.register_buffer("queue_position", torch.zeros((), dtype=torch.long))

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        weak, strong = (model(view) for view in batch.views)
        if clock.epoch <= round(self.settings.first_stage * clock.epochs):
            return self.two_views(weak.logits, strong.logits, batch.labels, self.settings.threshold)
        if weak.embeddings is None or strong.embeddings is None:
            raise InputError("method 'lac' needs label-wise embeddings: train with the head 'label-wise'")
        threshold = self.settings.second_threshold
        consistency = self.two_views(weak.logits, strong.logits, batch.labels, threshold)
        capacity = self.settings.most_per_row * len(batch.rows)
        chosen, valid = confident_entries(batch.labels, weak.logits, threshold, capacity)
        classes = chosen % self.classes
        anchors, keys = (view.embeddings.flatten(0, 1)[chosen] for view in (weak, strong))  # type: ignore[union-attr]
        contrast = self._contrast(anchors, keys, classes, valid, batch.labels.numel())
        if self.training:
            self._remember(keys, classes, valid)
        return consistency + self.settings.contrast_weight * contrast

    def _contrast(self, anchors: Tensor, keys: Tensor, classes: Tensor, valid: Tensor, entries: int) -> Tensor:
        queue, queue_classes = self.queue_embeddings[:-1], self.queue_classes[:-1]
        filled, temperature = queue_classes >= 0, self.settings.temperature
        if self.settings.supervised_contrast:
            all_embeddings, takes_part = torch.cat([anchors, keys, queue]), torch.cat([valid, valid, filled])
            cost = supervised_contrast(
                all_embeddings, torch.cat([classes, classes, queue_classes]), takes_part, temperature=temperature
            )
            return cost.sum() / takes_part.sum().clamp(1)
        keys, key_classes = torch.cat([keys, queue]), torch.cat([classes, queue_classes])
        key_valid = torch.cat([valid, filled])
        cost = label_aware_consistency(anchors, classes, keys, key_classes, valid, key_valid, temperature=temperature)
        return cost.sum() / entries

    @torch.no_grad()
    def _remember(self, embeddings: Tensor, classes: Tensor, valid: Tensor) -> None:
        """Overwrite the oldest entries of the queue with the valid embeddings, without waiting for the device."""
        size = self.settings.queue
        recent = valid & (valid.flip(0).cumsum(0).flip(0) <= size)  # if there are more than fit, the last ones
        slot = torch.where(recent, (self.queue_position + recent.cumsum(0) - 1) % size, size)
        self.queue_embeddings.index_copy_(0, slot, embeddings.detach().to(self.queue_embeddings.dtype))
        self.queue_classes.index_copy_(0, slot, classes)
        self.queue_position.copy_((self.queue_position + recent.sum()) % size)
