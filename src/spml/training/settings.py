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
    """Settings of the training loop. The defaults follow the fine-tuning protocol of Cole et al. (2021).

    Parameters
    ----------
    epochs, batch_size : int
    learning_rate : float
        Peak learning rate.
    head_rate : float
        The head's learning rate, as a multiple of `learning_rate`.
    optimiser : {"adam", "adamw"}
    weight_decay : float
    schedule : {"constant", "cosine", "one-cycle"}
        How the learning rate changes during training.
    warm_up : float
        Share of all steps in which the learning rate rises; "one-cycle" uses 0.2 instead of 0.
    averaging : float, optional
        Decay of the exponential moving average of the weights. Default: weights are not averaged.
    accumulate : int
        Batches per step of the optimiser.
    clip : float, optional
        Maximum norm of the gradient.
    precision : {"32", "bf16"}
    early_stopping : int, optional
        Stop after this many epochs without improvement.
    seed : int
    checkpoint_seconds : float
        Maximum time between checkpoints, in addition to the one after every epoch.
    evaluation_batch : int
        Rows per batch when predictions are made.
    accelerate : bool
        Use `spml.accel`: CUDA graphs and kernels on a GPU, faster bfloat16 layers on a CPU.
    views : ViewSettings
        Augmentation.
    """

    epochs: Count = 10
    batch_size: Count = 16
    learning_rate: Positive = 1e-4
    head_rate: NonNegative = 1.0
    optimiser: str = "adam"
    weight_decay: NonNegative = 0.0
    schedule: str = "constant"
    warm_up: Annotated[float, Range(0, 1, "[)")] = 0.0
    averaging: Probability | None = None
    accumulate: Count = 1
    clip: Positive | None = None
    precision: str = "32"
    early_stopping: Count | None = None
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    checkpoint_seconds: NonNegative = 60.0
    evaluation_batch: Count = 256
    accelerate: bool = True
    views: ViewSettings = field(default_factory=ViewSettings)

    def __post_init__(self) -> None:
        check_types(self)
        for name, allowed in _CHOICES.items():
            check_rules(self, (name, getattr(self, name) in allowed, f"be one of {', '.join(allowed)}"))

    def as_record(self) -> dict[str, object]:
        """Return the settings that decide the outcome, as plain values for a JSON file."""
        record = dataclasses.asdict(self)
        record.pop("checkpoint_seconds")
        return record

    def rate_at(self, progress: float) -> float:
        """Return the learning rate after the share `progress` of all steps."""
        return self.learning_rate * rate_factor(self.schedule, progress, self.warm_up)


def rate_factor(schedule: str, progress: float, warm_up: float = 0.0) -> float:
    """Return the learning rate at `progress` in [0, 1], as a share of the highest one."""
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
