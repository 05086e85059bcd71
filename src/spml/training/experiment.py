"""One training, with everything that decides its outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from spml.errors import InputError
from spml.methods import METHODS
from spml.training.label_draw import LabelDraw
from spml.training.settings import TrainSettings
from spml.type_checks import Count, Positive, check_types


@dataclass(frozen=True)
class LinearInit:
    """The linear phase that precedes fine-tuning (Cole et al. 2021): its best epoch by validation mAP is kept."""

    epochs: Count = 25
    learning_rate: Positive = 1e-3
    batch_size: Count = 16

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True)
class Experiment:
    """One training: method, settings, model and labels. The same experiment on the same data gives the same result.

    Parameters
    ----------
    method : str
        Name of the method.
    settings : mapping
        Settings of the method that differ from its defaults.
    train : TrainSettings
        How the model is trained: epochs, batch size, learning rate, seed, …
    k : float, optional
        Average number of labels per row, for methods that need it.
    data : str
        Name of the data set, as tables show it.
    entry : str
        Name of the experiment in a table, by default the method's. Two entries may be one method with different
        settings.
    draw : LabelDraw, optional
        How the labels of the training rows are drawn from the full labels; methods that need full labels get them.
        None: the observed labels of the data, whatever the method needs.
    validation : {"observed", "full"}
        Labels of the validation rows that select the best epoch.
    features : bool
        Train a linear head on features; otherwise a network on images.
    backbone : str
        Name of the network.
    weights : str, optional
        A .safetensors file with the weights of the backbone, read instead of downloading them.
    image_size : int
        Side length of the images in pixels.
    head : str, optional
        By default the head that the method prefers.
    head_settings : mapping
        Keyword arguments of the head, in addition to those that the method states.
    linear_init : LinearInit, optional
        Train the head on features of the frozen backbone first.

    Examples
    --------
    >>> experiment = Experiment("em", {"entropy_weight": 0.1})
    >>> experiment.changed({"train.learning_rate": 1e-5, "settings.entropy_weight": 0.2}).settings
    {'entropy_weight': 0.2}
    """

    method: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    train: TrainSettings = field(default_factory=TrainSettings)
    k: float | None = None
    data: str = ""
    entry: str = ""
    draw: LabelDraw | None = None
    validation: str = "observed"
    features: bool = False
    backbone: str = "lite2"
    weights: str | None = None
    image_size: int = 320
    head: str | None = None
    head_settings: Mapping[str, Any] = field(default_factory=dict)
    linear_init: LinearInit | None = None

    def __post_init__(self) -> None:
        for name, value in (("settings", dict(self.settings)), ("head_settings", dict(self.head_settings))):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "entry", self.entry or self.method)
        check_types(self)
        if self.validation not in ("observed", "full"):
            raise InputError(f"validation must be observed or full, not {self.validation!r}")

    def __hash__(self) -> int:
        return hash((self.data, self.entry, json.dumps(self.record(), sort_keys=True, default=repr)))

    @classmethod
    def linear(
        cls,
        method: str,
        settings: Mapping[str, Any] | None = None,
        learning_rate: float = 1e-3,
        batch_size: int = 16,
        seed: int = 0,
        *,
        epochs: int = 25,
        early_stopping: int | None = None,
        k: float | None = None,
    ) -> Self:
        """Return a linear head on features.

        Parameters
        ----------
        method : str
        settings : mapping, optional
            Settings of the method.
        learning_rate, batch_size, seed, epochs, early_stopping
            See `TrainSettings`.
        k : float, optional
            Average number of labels per row.

        Returns
        -------
        Experiment

        Examples
        --------
        >>> Experiment.linear("an", learning_rate=1e-2).train.epochs
        25
        """
        train = TrainSettings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            early_stopping=early_stopping,
        )
        return cls(method, settings or {}, train, k, features=True)

    def changed(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with some values replaced.

        Parameters
        ----------
        values : mapping
            New values by name: k, backbone, image_size, head, or train.…, draw.…, settings.…, head_settings.…
            The string "none" stands for None.

        Returns
        -------
        Experiment
        """
        result = self
        for key, given in values.items():
            value: Any = None if given == "none" else given  # TOML has no None
            table, _, name = key.partition(".")
            part: Any = getattr(result, table, None) if name else None
            change: dict[str, Any]
            if table in ("train", "draw") and name in {f.name for f in fields(part or LabelDraw)}:
                change = {table: replace(part or LabelDraw(), **{name: value})}
            elif table in ("settings", "head_settings") and name:
                change = {table: {**part, name: value}}
            elif key in ("k", "backbone", "image_size", "head"):
                change = {key: value}
            else:
                raise InputError(
                    f"{key!r} cannot be varied. Choose k, backbone, image_size, head, or settings.…, train.…, draw.… "
                    "with the name of a setting"
                )
            result = replace(result, **change)
        return result

    def seeded(self, seed: int) -> Self:
        """Return a copy with another seed."""
        return replace(self, train=replace(self.train, seed=seed))

    def record(self) -> dict[str, Any]:
        """Everything that decides the outcome, as plain values; without the names that tables show."""
        record = {**asdict(self), "train": self.train.as_record()}
        left_out = ("data", "entry", *(() if self.weights else ("weights",)))
        return {name: value for name, value in record.items() if name not in left_out}

    @property
    def method_key(self) -> tuple[str, str]:
        """The method's name and settings: experiments with equal keys can share one instance of the method."""
        return self.method, json.dumps(self.settings, sort_keys=True, default=repr)

    @property
    def activation(self) -> str:
        """The method's activation, which turns logits into probabilities."""
        return METHODS[self.method].activation

    @property
    def reference(self) -> bool:
        """Whether the method learns from more than one positive per row, by its nature or by the draw."""
        return METHODS[self.method].needs.labels != "positives" or not (self.draw is None or self.draw.single)
