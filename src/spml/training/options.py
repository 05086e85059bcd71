"""What a user can choose about a training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spml.type_checks import Positive

BATCH_SIZE, LEARNING_RATE = 16, 1e-4


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `spml.train` and of the command `spml train`, except those of the data.

    `spml.train` describes each of them. None stands for a default that depends on the data and the device.

    Examples
    --------
    >>> TrainOptions(epochs=3, seed=1).network_options
    {'epochs': 3}
    """

    method: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    weights: Path | None = None
    head: str | None = None
    size: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    base: str | None = None
    encoder: str | None = None
    effort: str = "normal"
    minutes: Positive | None = None
    k: Positive | None = None
    seed: int = 0
    device: str = "auto"
    track: str | None = None
    decisions: Path | None = None

    @property
    def network_options(self) -> dict[str, Any]:
        """The given options that only the training of a whole network has."""
        options = {"head": self.head, "track": self.track, "settings": self.settings or None, **self._loop_options}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def image_options(self) -> dict[str, Any]:
        """The given options that apply only to images."""
        options: dict[str, Any] = {"model": self.model, "weights": self.weights, "size": self.size, "head": self.head}
        options |= {"track": self.track, "minutes": self.minutes, **self._loop_options}
        options |= {"effort": None if self.effort == "normal" else self.effort}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def feature_options(self) -> dict[str, Any]:
        """The given options that apply only to features and texts."""
        options = {"base": self.base, "encoder": self.encoder}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def _loop_options(self) -> dict[str, Any]:
        return {"epochs": self.epochs, "batch_size": self.batch_size, "learning_rate": self.learning_rate}
