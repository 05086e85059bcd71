"""Cole et al. 2021, "Multi-Label Learning from Single Positive Labels": full-label references, AN, EPR and ROLE."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from spml.labels.entries import row_blocks
from spml.losses import assume_negative, logit
from spml.losses.cole import (
    expected_positive,
    ignore_unobserved,
    ignore_unobserved_positives,
    pairwise_ranking,
    smoothed_assume_negative,
    smoothed_bce,
    weak_assume_negative,
)
from spml.losses.terms import in_full_precision, soft_term
from spml.methods.base import Method, mean_entry, mean_row, uniform_per_head
from spml.methods.interface import MEAN_OF_ENTRIES, MEAN_OF_ROWS, Clock, Needs, Problem
from spml.methods.memory import RowMemory
from spml.methods.registry import loss_method, register
from spml.type_checks import NonNegative, Positive, Probability, Range

PAPER = "Cole 2021"

loss_method("bce", ignore_unobserved, paper=PAPER, needs=Needs(labels="full", splits="entries"),
            summary="Cross-entropy on full labels: a reference.")  # fmt: skip
loss_method("bce-ls", smoothed_bce, paper=PAPER, needs=Needs(labels="full", splits="entries"),
            summary="Cross-entropy on full labels with label smoothing.")  # fmt: skip
loss_method("iu", ignore_unobserved, paper=PAPER, needs=Needs(labels="negatives", splits="entries"),
            summary="Cross-entropy on known labels only; needs some known negatives.")  # fmt: skip
loss_method("iun", ignore_unobserved_positives, paper=PAPER, needs=Needs(labels="negatives", splits="entries"),
            summary="Cross-entropy on one positive and all true negatives: for comparison only.")  # fmt: skip
loss_method("an", assume_negative, paper=PAPER, needs=MEAN_OF_ENTRIES,
            summary="Unknown labels are assumed negative: the baseline.")  # fmt: skip
loss_method("an-ls", smoothed_assume_negative, paper=PAPER, needs=MEAN_OF_ENTRIES,
            summary="AN with label smoothing.")  # fmt: skip
loss_method("wan", weak_assume_negative, paper=PAPER, needs=MEAN_OF_ROWS,
            summary="AN, where all assumed negatives of a row together weigh as much as its positive.")  # fmt: skip
loss_method("pr", pairwise_ranking, paper=PAPER, needs=MEAN_OF_ROWS, reduce=mean_row,
            summary="Pairwise ranking: every positive above every other label.")  # fmt: skip
# The paper's tables come from code that divides the positive term by L; so does the method (not the loss).
loss_method("epr", expected_positive, paper=PAPER, needs=Needs(k=True), divide_by_classes=True,
            summary="Cross-entropy on positives, regularised to k predicted positives per row.")  # fmt: skip


@dataclass(frozen=True)
class RoleSettings:
    """ROLE's settings.

    Sec. 6.1: Φ starts in [σ⁻¹(0.4), σ⁻¹(0.6)], observed positives at σ⁻¹(0.995); its learning rate is ten times the
    classifier's; λ = 1. Verified negatives, which the paper does not have, start at σ⁻¹(0.005) as in the authors' code.
    """

    k: Positive | None = None
    start: Annotated[float, Range(0.5, 1, "[)")] = 0.6
    observed_start: Probability = 0.995
    estimate_rate: NonNegative = 10.0
    regulariser_weight: NonNegative = 1.0
    divide_by_classes: bool = True  # divide EPR's positive term by L, as in the authors' code


class _Role(Method):
    """Eq. 11: classifier and label estimates are each other's targets, both regularised to k positives per row.

    L_ROLE = (L'(F | Ỹ) + L'(Ỹ | F)) / 2 with L'(F | Ỹ) = BCE(F, sg Ỹ) + EPR(F).
    """

    paper = PAPER
    Settings = RoleSettings  # type: ignore[assignment]
    settings: RoleSettings

    def estimates(self, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the logits of the label estimates Ỹ of these rows, with a gradient."""
        raise AssertionError

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        logits, estimates = in_full_precision(logits), self.estimates(labels, rows)
        return (self._loss_towards(logits, estimates, labels) + self._loss_towards(estimates, logits, labels)) / 2

    def _loss_towards(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        assert self.k is not None
        agreement = soft_term(student, torch.sigmoid(teacher.detach()))
        weight, divide = self.settings.regulariser_weight, self.settings.divide_by_classes
        regularised = expected_positive(student, labels, k=self.k, weight=weight, divide_by_classes=divide)
        return mean_entry(agreement + regularised)

    def known_estimates(self, labels: Tensor, estimates: Tensor) -> Tensor:
        """Replace the estimates of known labels: σ⁻¹(0.995) for positives, σ⁻¹(0.005) for verified negatives."""
        bound = logit(self.settings.observed_start)
        return torch.where(labels == 0, estimates, torch.where(labels > 0, bound, -bound))

    def initial_estimates(self, problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows and their initial Φ (…, B, L): U(-q, q) with q = σ⁻¹(0.6), known labels at ±σ⁻¹(0.995).

        Rows come in blocks, because with many rows Φ fills the memory.
        """
        bound, alone = logit(self.settings.start), isinstance(problem.seeds, int)
        seeds = (problem.seeds,) if isinstance(problem.seeds, int) else problem.seeds
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for part in row_blocks(problem.rows, problem.classes):
            rows = np.arange(part.start, part.stop)
            drawn = [torch.empty(len(rows), problem.classes).uniform_(-bound, bound, generator=g) for g in generators]
            start = self.known_estimates(torch.from_numpy(problem.labels.dense(rows)), torch.stack(drawn))
            yield torch.from_numpy(rows), start[0] if alone else start


@register
class Role(_Role):
    """ROLE as published: one parameter per (row, class), updated by dense Adam, also for rows outside the batch."""

    name = "role"
    summary = "Estimates every unknown label during training, regularised to k positives per row."
    needs: ClassVar[Needs] = Needs(k=True, grows_with_rows=True)

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        self.memory = RowMemory(problem.rows, (problem.classes,), heads=problem.heads, trainable=True)
        for rows, start in self.initial_estimates(problem):
            self.memory.write(rows, start)

    def estimates(self, labels: Tensor, rows: Tensor) -> Tensor:
        return self.memory.read(rows)

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.memory.parameters()), self.settings.estimate_rate)]


@dataclass(frozen=True)
class FactorisedRoleSettings(RoleSettings):
    rank: Annotated[int, Range(1, 65_536)] = 16


@register
class FactorisedRole(_Role):
    """ROLE with Φ = U·V + b of rank r: N×r + r×L numbers instead of N×L; known labels stay fixed."""

    name = "role-factorised"
    summary = "ROLE with low-rank label estimates, for label matrices that do not fit in memory."
    needs: ClassVar[Needs] = Needs(k=True, grows_with_rows=True)
    Settings = FactorisedRoleSettings
    settings: FactorisedRoleSettings

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        rank = min(self.settings.rank, problem.classes)
        # Factors uniform in (-a, a) give entries of variance r·a⁴/9; matched to U(-q, q)'s q²/3.
        bound = (3.0 * logit(self.settings.start) ** 2 / rank) ** 0.25
        seeds = problem.seeds
        later = seeds + 1 if isinstance(seeds, int) else tuple(seed + 1 for seed in seeds)
        of_rows = uniform_per_head(seeds, (problem.rows, rank), -bound, bound)
        self.memory = RowMemory(problem.rows, (rank,), heads=problem.heads, fill=of_rows, trainable=True)
        self.of_classes = nn.Parameter(uniform_per_head(later, (rank, problem.classes), -bound, bound))
        self.offset = nn.Parameter(torch.zeros(*problem.heads, 1, problem.classes))

    def estimates(self, labels: Tensor, rows: Tensor) -> Tensor:
        product = self.memory.read(rows) @ self.of_classes + self.offset
        return self.known_estimates(labels, product)

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.parameters()), self.settings.estimate_rate)]


@register
class Role16Bit(_Role):
    """ROLE with Φ and its Adam moments in 16 bits, updating only the rows of the batch (row-sparse Adam).

    6 bytes per entry instead of 12, and the cost of a step depends on the batch, not on the training set. Φ is rounded
    stochastically: otherwise a step smaller than half a 16-bit unit would never change it.
    """

    name = "role-16bit"
    summary = "ROLE with 16-bit label estimates, updated only for the rows of the batch."
    needs: ClassVar[Needs] = Needs(k=True)

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        size = (problem.rows, (problem.classes,))
        self.memory = RowMemory(*size, heads=problem.heads, dtype=torch.float16)
        for rows, start in self.initial_estimates(problem):
            self.memory.write(rows, start)
        self.first_moment = RowMemory(*size, heads=problem.heads, dtype=torch.bfloat16)
        self.second_moment = RowMemory(*size, heads=problem.heads, dtype=torch.bfloat16)
        self.visits = RowMemory(problem.rows, (1,), heads=problem.heads, dtype=torch.int32)
        self._leaf: tuple[Tensor, Tensor] | None = None

    def estimates(self, labels: Tensor, rows: Tensor) -> Tensor:
        leaf = self.memory.read(rows).float().requires_grad_()
        self._leaf = (rows, leaf)
        return leaf

    @torch.no_grad()
    def after_step(self, learning_rate: float | Tensor) -> None:
        if self._leaf is None or self._leaf[1].grad is None:
            return
        rows, leaf = self._leaf
        gradient = leaf.grad
        assert gradient is not None
        decay_first, decay_second = 0.9, 0.999
        visits = self.visits.read(rows) + 1
        first = torch.lerp(gradient, self.first_moment.read(rows).float(), decay_first)
        second = torch.lerp(gradient.square(), self.second_moment.read(rows).float(), decay_second)
        corrected = second / (1 - decay_second ** visits.double()).float()
        step = first / (1 - decay_first ** visits.double()).float() / (corrected.sqrt() + 1e-8)
        moved = leaf.detach() - self.settings.estimate_rate * learning_rate * step
        uniform = hashed_uniform(rows, visits, moved.shape[-1])
        self.memory.write(rows, round_stochastically(moved, uniform, torch.float16))
        self.first_moment.write(rows, first)
        self.second_moment.write(rows, second)
        self.visits.write(rows, visits)
        self._leaf = None


def round_stochastically(values: Tensor, uniform: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to a narrower type, up or down so that the expectation is kept; `uniform` in [0, 1) decides."""
    nearest = values.to(dtype)
    error = values - nearest.float()
    neighbour = torch.nextafter(nearest, torch.where(error > 0, math.inf, -math.inf).to(dtype))
    gap = (neighbour.float() - nearest.float()).abs()
    return torch.where(uniform * gap < error.abs(), neighbour, nearest)


def hashed_uniform(rows: Tensor, visits: Tensor, classes: int) -> Tensor:
    """Compute numbers in [0, 1) from row, visit and class alone, so that a resumed run draws the same ones."""
    columns = torch.arange(classes, device=rows.device)
    mixed = rows[:, None] * 73856093 ^ columns * 19349663 ^ visits.long() * 83492791
    mixed = (mixed ^ (mixed >> 13)) * 1540483477 & 0x7FFFFFFF
    return ((mixed ^ (mixed >> 15)) & 0xFFFFFF).float() / 2**24
