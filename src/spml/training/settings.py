"""Settings of the training loop."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated

from spml.data.augment import ViewSettings
from spml.type_checks import Count, NonNegative, Positive, Probability, Range, check_rules, check_types

_CHOICES = {
    "optimiser": ("adam", "adamw"),
    "schedule": ("constant", "cosine", "one-cycle"),
    "precision": ("32", "bf16"),
}


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training loop. The defaults follow the fine-tuning protocol of Cole et al. (2021)."""

    epochs: Count = 10
    batch_size: Count = 16
    learning_rate: Positive = 1e-4
    head_rate: NonNegative = 1.0  # the head's learning rate, as a multiple of the learning rate
    optimiser: str = "adam"  # adam, adamw
    weight_decay: NonNegative = 0.0
    schedule: str = "constant"  # constant, cosine, one-cycle
    warm_up: Annotated[float, Range(0, 1, "[)")] = (
        0.0  # share of all steps in which the rate rises; one-cycle uses 0.2 for 0
    )
    averaging: Probability | None = None  # decay of the exponential moving average of the weights
    accumulate: Count = 1  # batches per step of the optimiser
    clip: Positive | None = None  # maximum norm of the gradient
    precision: str = "32"  # 32, bf16
    early_stopping: Count | None = None  # stop after this many epochs without improvement; 1 is the first drop
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    checkpoint_seconds: NonNegative = 60.0  # maximum time between checkpoints; there is one after every epoch as well
    evaluation_batch: Count = 256
    accelerate: bool = True  # on a GPU, use the CUDA graphs and kernels of spml.accel
    views: ViewSettings = field(default_factory=ViewSettings)

    def __post_init__(self) -> None:
        check_types(self)
        check_rules(
            self,
            *(
                (name, getattr(self, name) in allowed, f"be one of {', '.join(allowed)}")
                for name, allowed in _CHOICES.items()
            ),
        )

    def as_record(self) -> dict[str, object]:
        """The settings that decide the outcome, as plain values for a JSON file."""
        record = dataclasses.asdict(self)
        record.pop("checkpoint_seconds")
        return record

    def rate_at(self, progress: float) -> float:
        """The learning rate after the share `progress` of all steps."""
        return self.learning_rate * rate_factor(self.schedule, progress, self.warm_up)


def rate_factor(schedule: str, progress: float, warm_up: float = 0.0) -> float:
    """The learning rate at `progress` in [0, 1], as a share of the highest one."""
    if schedule == "constant":
        return min(1.0, progress / warm_up) if warm_up > 0 else 1.0
    if schedule == "one-cycle":  # from 1/25 to 1, then to 1e-4 / 25, each along half a cosine
        rise = warm_up or 0.2
        if progress < rise:
            return _between(1 / 25, 1.0, progress / rise)
        return _between(1.0, 1e-4 / 25, (progress - rise) / (1 - rise))
    if warm_up > 0 and progress < warm_up:
        return progress / warm_up
    return _between(1.0, 0.0, (progress - warm_up) / (1 - warm_up))


def _between(start: float, end: float, share: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
