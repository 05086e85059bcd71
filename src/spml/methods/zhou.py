"""Zhou et al. 2022, "Acknowledging the Unknown": EM, EM with asymmetric pseudo-labels, and the AN variants compared."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from spml.losses import assume_negative
from spml.losses.zhou import (
    down_weighted,
    entropy_maximisation,
    entropy_maximisation_with_soft_labels,
    entropy_minimisation,
    negative_smoothed,
)
from spml.methods.base import Method, mean_entry
from spml.methods.interface import MEAN_OF_ENTRIES, Clock, Needs, Problem
from spml.methods.memory import RowMemory
from spml.methods.registry import loss_method, register
from spml.type_checks import NonNegative, Range, Share

PAPER = "Zhou 2022"

loss_method("em", entropy_maximisation, paper=PAPER, needs=MEAN_OF_ENTRIES, f1_threshold=0.75,
            summary="The entropy of unknown labels is maximised, which keeps them uncertain.")  # fmt: skip
loss_method("entmin", entropy_minimisation, paper=PAPER, needs=MEAN_OF_ENTRIES,
            summary="The entropy of unknown labels is minimised (a negative result).")  # fmt: skip
loss_method("dw", down_weighted, paper=PAPER, needs=MEAN_OF_ENTRIES,
            summary="AN with assumed negatives at a tenth of the weight.")  # fmt: skip
loss_method("n-ls", negative_smoothed, paper=PAPER, needs=MEAN_OF_ENTRIES,
            summary="AN with label smoothing for assumed negatives only.")  # fmt: skip


@register
class AsymmetricPseudoLabels(Method):
    """EM+APL, Algorithm 1 and Eq. 8.

    After each epoch from `warm_up` (T_w) on, the unknown labels of every class with the lowest predictions receive the
    prediction as a soft label: an equal share per epoch, until `proportion` (θ) of the class's unknown labels have one.
    Soft labels are never updated. The variants of Sec. 4.3 are settings: `hard` labels, `positive_proportion` for
    positive pseudo-labels, `soft_weight` 1.
    """

    name = "em-apl"
    paper = PAPER
    summary = "EM, then the most confident negatives receive soft pseudo-labels, a share per epoch."
    needs: ClassVar[Needs] = Needs(epoch_predictions=True)
    f1_threshold = 0.75

    @dataclass(frozen=True)
    class Settings:
        entropy_weight: NonNegative = 0.2
        soft_weight: NonNegative = 0.02
        proportion: Share = 0.9
        positive_proportion: Share = 0.0
        warm_up: Annotated[int, Range(0, 1_000_000)] = 5
        hard: bool = False

    settings: Settings

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        self.memory = RowMemory(problem.rows, (problem.classes,), heads=problem.heads, fill=torch.nan)
        unknown = torch.from_numpy(problem.labels.dense()) == 0
        self.unknown: Tensor
        self.register_buffer("unknown", unknown, persistent=False)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        soft_labels, settings = self.memory.read(rows), self.settings
        entries = entropy_maximisation_with_soft_labels(
            logits, labels, soft_labels, entropy_weight=settings.entropy_weight, soft_weight=settings.soft_weight
        )
        return mean_entry(entries)

    @torch.no_grad()
    def end_epoch(self, probabilities: Tensor, clock: Clock) -> None:
        rounds = clock.epochs - self.settings.warm_up
        if clock.epoch < self.settings.warm_up or clock.epoch >= clock.epochs or rounds <= 0:
            return
        self._assign(probabilities, self.settings.proportion / rounds, lowest=True)
        if self.settings.positive_proportion > 0:
            self._assign(probabilities, self.settings.positive_proportion / rounds, lowest=False)

    def _assign(self, probabilities: Tensor, share: float, lowest: bool) -> None:
        """Assign soft labels to ⌊share · U_c⌋ entries of each class c with U_c unknown labels at the start."""
        open_entries = self.unknown & torch.isnan(self.memory.values)
        count = (share * self.unknown.sum(-2, dtype=torch.float64)).long()
        scores = torch.where(open_entries, probabilities if lowest else -probabilities, torch.inf)
        order = scores.argsort(dim=-2, stable=True)
        rank = torch.arange(scores.shape[-2], device=scores.device)[:, None]
        chosen = torch.zeros_like(open_entries).scatter(-2, order, (rank < count).expand_as(order)) & open_entries
        if self.settings.hard:
            probabilities = torch.full_like(probabilities, 0.0 if lowest else 1.0)
        self.memory.values.copy_(torch.where(chosen, probabilities, self.memory.values))


class _Regularised(Method):
    """AN with a term on all parameters of the classifier."""

    paper = PAPER
    magnitude: ClassVar[Callable[[Tensor], Tensor]]

    @dataclass(frozen=True)
    class Settings:
        weight: NonNegative = 1e-6

    settings: Settings

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        return mean_entry(assume_negative(logits, labels))

    def penalty(self, parameters: Iterable[Tensor], heads: int = 0) -> Tensor | None:
        sums = [type(self).magnitude(p).flatten(heads).sum(-1) for p in parameters if p.dim() > heads]
        return self.settings.weight * torch.stack(sums).sum(0)


@register
class L1Regularised(_Regularised):
    """L1R, Appendix C: AN + λ Σ|w|."""

    name = "l1r"
    summary = "AN with L1 regularisation."
    magnitude = torch.abs


@register
class L2Regularised(_Regularised):
    """L2R, Appendix C: AN + λ Σ w²."""

    name = "l2r"
    summary = "AN with L2 regularisation."
    magnitude = torch.square
