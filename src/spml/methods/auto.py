"""The default: no k, no full labels, nothing to tune."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..losses import annotator_choice, entropy
from ..losses.terms import in_full_precision
from .base import MEAN_OF_ROWS, Clock, Method, Needs, loss_method, mean_row, register

PAPER = "spml"

loss_method("annotator", annotator_choice, paper=PAPER, needs=MEAN_OF_ROWS, reduce=mean_row,
            summary="How likely the named label was, if each present one is named as readily.")  # fmt: skip


@register
class Auto(Method):
    """The likelihood of the label the annotator named, and EM's entropy on the unknown: -log P(named) - α Σ H(p).

    The likelihood (losses/annotator.py) needs no k and tells labels that are there together from one that is there
    alone, but takes doubt between two labels for both being there; EM (Zhou 2022, Eq. 3) keeps unknown labels in
    doubt. α = min(0.2, 4 / L): Zhou et al. tune α on full labels, to 0.2, 0.1, 0.1 and 0.01 for 20, 80, 81 and 312
    classes; together the unknown labels of a row weigh α·L, which is 4, 8, 8 and 3, about as much everywhere.
    """

    name = "auto"
    paper = PAPER
    summary = "The default: how likely the named label was, and unknown labels kept in doubt."
    needs: ClassVar[Needs] = MEAN_OF_ROWS

    @dataclass(frozen=True)
    class Settings:
        row_weight: float = 4.0
        most: float = 0.2

    settings: Settings

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        logits = in_full_precision(logits)
        weight = min(self.settings.most, self.settings.row_weight / labels.shape[-1])
        doubt = torch.where(labels == 0, -weight * entropy(logits), 0.0)
        return mean_row(annotator_choice(logits, labels) + doubt)
