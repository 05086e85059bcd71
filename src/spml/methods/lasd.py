"""The LASD paper: leveraged asymmetric loss, with disambiguation and three-view consistency."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from spml.losses.asymmetric import (
    leveraged_asymmetric,
    leveraged_asymmetric_with_disambiguation,
    negative_leverage_of,
    view_consistency,
)
from spml.methods.base import Method, mean_row
from spml.methods.interface import MEAN_OF_ROWS, Batch, Clock, Model, Needs, Problem
from spml.methods.registry import loss_method, register
from spml.type_checks import NonNegative, Positive, Share

PAPER = "LASD"

loss_method("las", leveraged_asymmetric, paper=PAPER, needs=MEAN_OF_ROWS, reduce=mean_row,
            summary="ASL with down-weighted assumed negatives.")  # fmt: skip


@register
class Lasd(Method):
    """Eq. 8: LASD (Eq. 6) plus α times the squared distances between the predictions of three views (Eq. 7).

    λ- follows from λ+ and k by Theorem 5.4; if k is unknown, k = 1. On features all views are the same and the second
    term is zero. With `consistency_weight` 0 the second term and the two strong views are not used.
    """

    name = "lasd"
    paper = PAPER
    summary = "Confident unknown labels count as positives, the rest as weak negatives; three views must agree."
    needs: ClassVar[Needs] = Needs(views=("weak", "strong", "strong"), splits="rows")
    pseudo_label_setting = "threshold"

    @dataclass(frozen=True)
    class Settings:
        positive_leverage: NonNegative = 0.1
        negative_leverage: NonNegative | None = None
        k: Positive | None = None
        threshold: Share = 0.9
        positive_focusing: NonNegative = 0.0
        negative_focusing: NonNegative = 4.0
        consistency_weight: NonNegative = 0.7

    settings: Settings

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        if self.settings.consistency_weight == 0:
            self.needs = replace(self.needs, views=("weak",))  # type: ignore[misc]

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        given = self.settings.negative_leverage
        k = 1.0 if self.k is None else self.k
        self.negative_leverage = (
            negative_leverage_of(self.settings.positive_leverage, k, problem.classes) if given is None else given
        )

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        return mean_row(
            leveraged_asymmetric_with_disambiguation(
                logits,
                labels,
                positive_leverage=self.settings.positive_leverage,
                negative_leverage=self.negative_leverage,
                threshold=self.settings.threshold,
                positive_focusing=self.settings.positive_focusing,
                negative_focusing=self.settings.negative_focusing,
            )
        )

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        views = [model(view).logits for view in batch.views]
        objective = self.objective(views[0], batch.labels, batch.rows, clock)
        if len(views) == 1:
            return objective
        return objective + self.settings.consistency_weight * view_consistency(*views).mean(-1)
