"""The default method and its parts: no k, no full labels, nothing to tune."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from spml.errors import InputError
from spml.losses.annotator import annotator_choice
from spml.losses.terms import entropy, in_full_precision, soft_term
from spml.methods.base import Method, mean_row
from spml.methods.interface import (
    ENOUGH_STEPS,
    MEAN_OF_ROWS,
    Batch,
    Clock,
    EnsembleMember,
    Model,
    Needs,
    Problem,
    ViewKind,
)
from spml.methods.memory import RowMemory
from spml.methods.registry import loss_method, register
from spml.type_checks import NonNegative, Share

PAPER = "spml"

loss_method("annotator", annotator_choice, paper=PAPER, needs=MEAN_OF_ROWS, reduce=mean_row,
            summary="Maximum likelihood of the observed label, assuming the annotator picks uniformly among the "
                    "present ones.")  # fmt: skip


@register
class AnnotatorEM(Method):
    """-log P(observed label) - α Σ H(p): the annotator's choice, with the entropy of unknown labels maximised.

    The likelihood of the observed label (losses/annotator.py) needs no k and distinguishes labels that occur together
    from labels that occur alone, but it reads uncertainty between two labels as both being present. EM's entropy term
    (Zhou 2022, Eq. 3) keeps unknown labels uncertain. Where a whole network is trained, α is annealed to 0 over the
    epochs, so that final predictions are confident.
    """

    name = "annotator-em"
    paper = PAPER
    summary = "`annotator` with the entropy of unknown labels maximised, as in EM."
    needs: ClassVar[Needs] = MEAN_OF_ROWS
    f1_threshold = 0.75

    @dataclass(frozen=True)
    class Settings:
        row_weight: NonNegative = 4.0
        most: NonNegative = 0.2

    settings: Settings

    def entropy_weight(self, classes: int) -> float:
        """α = min(0.2, 4 / L).

        Zhou et al. tune α on full labels, to 0.2, 0.1, 0.1 and 0.01 for 20, 80, 81 and 312 classes. The unknown labels
        of a row then weigh α·L = 4, 8, 8 and 3 together: roughly a constant.
        """
        return min(self.settings.most, self.settings.row_weight / classes)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        logits = in_full_precision(logits)
        weight = self.entropy_weight(labels.shape[-1])
        if not self.on_features:
            weight *= 1 - clock.progress
        uncertainty = torch.where(labels == 0, -weight * entropy(logits), 0.0)
        return mean_row(annotator_choice(logits, labels) + uncertainty)


@register
class Auto(AnnotatorEM):
    """Soft labels on a pretrained backbone, linear learners and forests on features, otherwise `annotator-em`.

    Features, tables and texts are trained by `spml.training.learners.fit_features`: converged linear learners and
    forests, combined by the likelihood of held-out labels.

    Cross-fitted linear probes on the backbone's features (training/frozen/soft_labels.py) give each row soft labels q,
    from probes that were not trained on it, calibrated without full labels. The target of the weak view is q; the
    target of the strong view is q at first and (q + p̄) / 2 after a fifth of training, where p̄ is the averaged
    network's prediction for the weak view. The loss of a view is Σ -t log p - (1 - t) log(1 - p). Trainings of fewer
    than `ENOUGH_STEPS` steps use the weak view alone.

    In protocols that train linear heads with Adam, two heads are trained: EM's, which keeps unknown labels uncertain,
    and WAN's, which assumes them negative. Their errors are partly independent, so the average is more accurate than
    either; EM's, the better one alone, has weight 2/3.
    """

    name = "auto"
    summary = (
        "Default. Soft labels from cross-fitted linear probes (pretrained backbone), linear learners and forests "
        "combined by cross-validation (features, texts), or `annotator-em` (from scratch)."
    )
    needs: ClassVar[Needs] = replace(MEAN_OF_ROWS, soft_labels=True, pretrained_head="attention")
    f1_threshold = 0.5

    @dataclass(frozen=True)
    class Settings(AnnotatorEM.Settings):
        teacher_share: Share = 0.5
        teacher_from: Share = 0.2

    settings: Settings
    memory: RowMemory | None
    two_views: bool

    def members(self, classes: int) -> tuple[EnsembleMember, ...]:
        em = {"entropy_weight": self.entropy_weight(classes)}
        return EnsembleMember("em", em, 2 / 3), EnsembleMember("wan", {}, 1 / 3)

    def prepare(self, problem: Problem) -> None:
        if problem.soft_labels is None and not problem.features:
            raise InputError(
                "method 'auto' must know whether it receives soft labels: prepare it with Problem(labels, "
                "soft_labels=True) and call receive_soft_labels (pretrained backbone), or with soft_labels=False "
                "(training from scratch)"
            )
        super().prepare(problem)
        rows, entry = problem.rows, (problem.classes,)
        self.memory = RowMemory(rows, entry, dtype=torch.float16) if problem.soft_labels else None
        self.two_views = bool(problem.soft_labels) and problem.steps >= ENOUGH_STEPS
        self._received = False

    @property
    def views(self) -> tuple[ViewKind, ...]:
        return ("weak", "strong") if self.two_views else ("weak",)

    @property
    def is_objective(self) -> bool:
        return self.memory is None

    def receive_soft_labels(self, soft_labels: Tensor) -> None:
        if self.memory is None:
            raise InputError("method 'auto' was prepared without soft labels: use Problem(labels, soft_labels=True)")
        self.memory.write(torch.arange(len(soft_labels), device=soft_labels.device), soft_labels)
        self._received = True

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        self._received = self._received or "memory.values" in state_dict
        return super().load_state_dict(state_dict, strict, assign)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        if self.memory is not None:
            raise InputError("method 'auto' trains on soft labels: call loss(batch, model, clock), not objective")
        return super().objective(logits, labels, rows, clock)

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        if self.memory is None:
            return super().loss(batch, model, clock)
        if not self._received:
            raise InputError("method 'auto' has no soft labels yet: call receive_soft_labels before the first step")
        soft_labels = self.memory.read(batch.rows).float()
        if not self.two_views:
            return mean_row(soft_term(in_full_precision(model(batch.views[0]).logits), soft_labels))
        weak, strong = batch.views
        target = soft_labels
        if batch.averaged is not None and clock.progress >= self.settings.teacher_from:
            teacher = torch.sigmoid(in_full_precision(batch.averaged(weak).logits))
            mixed = torch.lerp(soft_labels, teacher.to(soft_labels.dtype), self.settings.teacher_share)
            target = torch.where(batch.labels == 0, mixed, soft_labels)
        of_weak = soft_term(in_full_precision(model(weak).logits), soft_labels)
        of_strong = soft_term(in_full_precision(model(strong).logits), target)
        return mean_row(of_weak + of_strong)
