"""The default and its parts: no k, no full labels, nothing to tune."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from spml.losses import annotator_choice, entropy
from spml.losses.terms import in_full_precision, soft_term
from spml.methods.base import (
    ENOUGH_STEPS,
    MEAN_OF_ROWS,
    Batch,
    Clock,
    EnsembleMember,
    Method,
    Model,
    Needs,
    Problem,
    ViewKind,
    loss_method,
    mean_row,
    register,
)
from spml.methods.memory import RowMemory

PAPER = "spml"

loss_method("annotator", annotator_choice, paper=PAPER, needs=MEAN_OF_ROWS, reduce=mean_row,
            summary="How likely the named label was, if each present one is named as readily.")  # fmt: skip


@register
class AnnotatorEM(Method):
    """-log P(named) - α Σ H(p): the annotator's choice, and doubt about what was not named.

    The likelihood of the label the annotator named (losses/annotator.py) needs no k and tells labels that are there
    together from one that is there alone, but takes doubt between two labels for both being there; EM's entropy (Zhou
    2022, Eq. 3) keeps unknown labels in doubt. Where a whole network learns, α falls from epoch to epoch, to 0 in the
    last: what it has seen by then should be said.
    """

    name = "annotator-em"
    paper = PAPER
    summary = "How likely the named label was, with the other labels kept in doubt."
    needs: ClassVar[Needs] = MEAN_OF_ROWS
    f1_threshold = 0.75

    @dataclass(frozen=True)
    class Settings:
        row_weight: float = 4.0
        most: float = 0.2

    settings: Settings
    doubt_falls: bool

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        self.doubt_falls = problem.whole_network

    def doubt(self, classes: int) -> float:
        """α = min(0.2, 4 / L). Zhou et al. tune α on full labels, to 0.2, 0.1, 0.1 and 0.01 for 20, 80, 81 and 312
        classes; together the unknown labels of a row weigh α·L, which is 4, 8, 8 and 3, about as much everywhere."""
        return min(self.settings.most, self.settings.row_weight / classes)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        logits = in_full_precision(logits)
        weight = self.doubt(labels.shape[-1])
        if self.doubt_falls:
            weight *= 1 - clock.progress
        doubt = torch.where(labels == 0, -weight * entropy(logits), 0.0)
        return mean_row(annotator_choice(logits, labels) + doubt)


@register
class Auto(AnnotatorEM):
    """What suits the task: a first look at a pretrained network, two heads on features, else `annotator-em`.

    The first look (train/soft_labels.py) gives probabilities q of the labels not named, calibrated without full
    labels, by heads that did not learn from that row. A weak view is taught q, a strong one from the second fifth of
    training on (q + p̄) / 2, with p̄ what the averaged network says of the weak one:
    Σ -t log p - (1 - t) log(1 - p) of each, added. Short trainings (`ENOUGH_STEPS`) have the weak view alone.

    On features two heads learn side by side: EM's, which leaves unknown labels in doubt, and WAN's, which takes them
    for absent. They err differently, and what they become errs less than either; EM's, the better one alone, has two
    thirds of it.
    """

    name = "auto"
    paper = PAPER
    summary = "The default: a first look at a pretrained network, two heads on features, else annotator-em."
    needs: ClassVar[Needs] = replace(MEAN_OF_ROWS, soft_labels=True, pretrained_head="attention")
    f1_threshold = 0.5

    @dataclass(frozen=True)
    class Settings(AnnotatorEM.Settings):
        teacher_share: float = 0.5
        teacher_from: float = 0.2

    settings: Settings
    memory: RowMemory | None
    two_views: bool

    def members(self, classes: int) -> tuple[EnsembleMember, ...]:
        return EnsembleMember("em", {"entropy_weight": self.doubt(classes)}, 2 / 3), EnsembleMember("wan", {}, 1 / 3)

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        rows, entry = problem.rows, (problem.classes,)
        self.memory = RowMemory(rows, entry, dtype=torch.float16) if problem.soft_labels else None
        self.two_views = problem.soft_labels and problem.steps >= ENOUGH_STEPS

    @property
    def views(self) -> tuple[ViewKind, ...]:
        return ("weak", "strong") if self.two_views else ("weak",)

    @property
    def is_objective(self) -> bool:
        return self.memory is None

    def receive_soft_labels(self, soft_labels: Tensor) -> None:
        assert self.memory is not None
        self.memory.write(torch.arange(len(soft_labels), device=soft_labels.device), soft_labels)

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        if self.memory is None:
            return super().loss(batch, model, clock)
        seen = self.memory.read(batch.rows).float()
        if not self.two_views:
            return mean_row(soft_term(in_full_precision(model(batch.views[0]).logits), seen))
        weak, strong = batch.views
        taught = seen
        if batch.averaged is not None and clock.progress >= self.settings.teacher_from:
            said = torch.sigmoid(in_full_precision(batch.averaged(weak).logits))
            mixed = torch.lerp(seen, said.to(seen.dtype), self.settings.teacher_share)
            taught = torch.where(batch.labels == 0, mixed, seen)
        of_weak = soft_term(in_full_precision(model(weak).logits), seen)
        of_strong = soft_term(in_full_precision(model(strong).logits), taught)
        return mean_row(of_weak + of_strong)
