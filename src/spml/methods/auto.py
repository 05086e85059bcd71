"""The default: no k, no full labels, nothing to tune."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..losses import focal_negative_term, positive_term
from ..losses.terms import in_full_precision
from ..memory import RowMemory
from .base import Clock, Method, Needs, Problem, mean_row, register


@register
class Auto(Method):
    """Unknown labels are believed as far as they look like the observed positives of their class.

    Every row remembers the logits it was given on its past visits. In each class, running averages say how high
    observed positives score (μ+) and how high unknown labels do (μ-); a label whose remembered logit lies between
    them at share s is believed present to K = σ(steepness · (s - middle)). It then costs

        K λ+ (-log p) + (1 - K) λ- (-p^γ log(1 - p)),   λ- = (1 + λ+ n) / (L - 1 - n),   n = Σ K over the row,

    the LASD loss with a soft, per-class and self-made decision, and its Theorem 5.4 with the row's own n for k - 1.
    """

    name = "auto"
    paper = "spml"
    summary = "The default: unknown labels are believed as far as they look like observed positives of their class."
    needs: ClassVar[Needs] = Needs()

    @dataclass(frozen=True)
    class Settings:
        middle: float = 0.6
        steepness: float = 8.0
        positive_leverage: float = 0.3
        negative_focusing: float = 2.0
        momentum: float = 0.5
        class_momentum: float = 0.99

    settings: Settings
    observed_level: Tensor
    unknown_level: Tensor

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        heads, classes = problem.heads, problem.classes
        self.memory = RowMemory(problem.rows, (classes,), heads=heads, fill=torch.nan, dtype=torch.float16)
        self.register_buffer("observed_level", torch.full((*heads, 1, classes), torch.nan))
        self.register_buffer("unknown_level", torch.full((*heads, 1, classes), torch.nan))

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        logits, settings = in_full_precision(logits), self.settings
        past = self.memory.read(rows).float()
        now = logits.detach().clamp(-30, 30)
        if self.training:
            self._remember(rows, past, now, labels)
        belief = self._belief(past, labels)
        count = belief.sum(-1, keepdim=True)
        lever = settings.positive_leverage
        weak = (1 + lever * count) / (labels.shape[-1] - 1 - count).clamp(min=1)
        absent = focal_negative_term(logits, settings.negative_focusing)
        unknown = lever * belief * positive_term(logits) + weak * (1 - belief) * absent
        return mean_row(torch.where(labels > 0, positive_term(logits), torch.where(labels < 0, absent, unknown)))

    def _belief(self, past: Tensor, labels: Tensor) -> Tensor:
        """K, zero where the label is known, the row was never seen or the class has no observed positive yet."""
        low, high = self.unknown_level, self.observed_level
        share = (past - low) / (high - low).clamp(min=0.5)
        belief = torch.sigmoid(self.settings.steepness * (share - self.settings.middle))
        return torch.where((labels == 0) & ~torch.isnan(belief), belief, 0.0)

    @torch.no_grad()
    def _remember(self, rows: Tensor, past: Tensor, now: Tensor, labels: Tensor) -> None:
        settings = self.settings
        self.memory.write(rows, _moved(past, now, settings.momentum))
        for level, counted in ((self.observed_level, labels > 0), (self.unknown_level, labels == 0)):
            number = counted.sum(-2, keepdim=True)
            mean = torch.where(counted, now, 0.0).sum(-2, keepdim=True) / number.clamp(min=1)
            # A class's average moves by how many of it the batch has: rare classes are not rushed.
            momentum = settings.class_momentum**number if level is self.observed_level else settings.class_momentum
            level.copy_(torch.where(number > 0, _moved(level, mean, momentum), level))


def _moved(average: Tensor, value: Tensor, momentum: float | Tensor) -> Tensor:
    """One step of a running average; the first value where there is none yet."""
    return torch.where(torch.isnan(average), value, value + momentum * (average - value))
