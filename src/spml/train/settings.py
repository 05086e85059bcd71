"""Settings of the training loop."""

import dataclasses
import math
from dataclasses import dataclass, field

from spml.data.augment import ViewSettings
from spml.errors import InputError
from spml.type_checks import check_types


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training loop. The defaults follow the fine-tuning protocol of Cole et al. (2021)."""

    epochs: int = 10
    batch_size: int = 16
    learning_rate: float = 1e-4
    head_rate: float = 1.0  # the head's learning rate, as a multiple of the learning rate
    optimiser: str = "adam"  # adam, adamw
    weight_decay: float = 0.0
    schedule: str = "constant"  # constant, cosine, one-cycle
    warm_up: float = 0.0  # share of all steps in which the rate rises; one-cycle uses 0.2 for 0
    averaging: float | None = None  # decay of the exponential moving average of the weights
    accumulate: int = 1  # batches per step of the optimiser
    clip: float | None = None  # maximum norm of the gradient
    precision: str = "32"  # 32, bf16
    early_stopping: int | None = None  # stop after this many epochs without improvement; 1 is the first drop
    seed: int = 0
    checkpoint_seconds: float = 60.0  # maximum time between checkpoints; there is one after every epoch as well
    evaluation_batch: int = 256
    accelerate: bool = True  # on a GPU, use the CUDA graphs and kernels of spml.accel
    views: ViewSettings = field(default_factory=ViewSettings)

    def __post_init__(self) -> None:
        check_types(self)
        for name, allowed in (
            ("optimiser", ("adam", "adamw")),
            ("schedule", ("constant", "cosine", "one-cycle")),
            ("precision", ("32", "bf16")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        for name in ("epochs", "batch_size", "accumulate", "evaluation_batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate must be a finite number above 0, not {self.learning_rate}")
        if self.averaging is not None and not 0 < self.averaging < 1:
            raise InputError(f"averaging must lie between 0 and 1, not {self.averaging}")
        if not 0 <= self.warm_up < 1:
            raise InputError(f"warm_up must be at least 0 and below 1, not {self.warm_up}")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip must be above 0, not {self.clip}")
        if self.early_stopping is not None and self.early_stopping < 1:
            raise InputError(f"early_stopping must be at least 1, not {self.early_stopping}")
        if not self.weight_decay >= 0:
            raise InputError(f"weight_decay must be at least 0, not {self.weight_decay}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number from 0 to 2^63 - 1, not {self.seed}")

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
