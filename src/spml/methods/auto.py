"""The default: no k, no full labels, nothing to tune."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..losses import entropy_maximisation
from .base import Clock, Method, Needs, mean_entry, register


@register
class Auto(Method):
    """EM (Zhou 2022, Eq. 3) with an entropy weight that follows from the number of classes: α = min(0.2, 4 / L).

    Zhou et al. tune α on full labels: 0.2, 0.1, 0.1 and 0.01 for 20, 80, 81 and 312 classes. Together the unknown
    labels of a row weigh α·L, which is 4, 8, 8 and 3: about as much everywhere. With few classes α stays at 0.2.
    """

    name = "auto"
    paper = "spml"
    summary = "The default: EM with a weight that follows from the number of classes."
    needs: ClassVar[Needs] = Needs()

    @dataclass(frozen=True)
    class Settings:
        row_weight: float = 4.0
        most: float = 0.2

    settings: Settings

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        weight = min(self.settings.most, self.settings.row_weight / labels.shape[-1])
        return mean_entry(entropy_maximisation(logits, labels, entropy_weight=weight))
