"""The default: no k, no full labels, nothing to tune."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..losses import entropy_maximisation
from .base import Clock, Method, Needs, mean_entry, register


@register
class Auto(Method):
    """EM (Zhou 2022, Eq. 3) with an entropy weight that follows from the number of classes: α = strength / L.

    Zhou et al. tune α on full labels: 0.2, 0.1, 0.1 and 0.01 for 20, 80, 81 and 312 classes. Times the number of
    classes that is 4, 8, 8 and 3: the unknown labels of a row together weigh about as much everywhere. Their
    geometric mean, 5, is the strength here, so that nothing is left to tune.
    """

    name = "auto"
    paper = "spml"
    summary = "The default: EM with a weight that follows from the number of classes."
    needs: ClassVar[Needs] = Needs()

    @dataclass(frozen=True)
    class Settings:
        strength: float = 5.0

    settings: Settings

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        weight = min(self.settings.strength / labels.shape[-1], 1.0)
        return mean_entry(entropy_maximisation(logits, labels, entropy_weight=weight))
