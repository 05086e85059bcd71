"""What a method is: a loss for a batch, and what it remembers between batches."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast, get_args

import torch
from torch import Tensor, nn

from spml.errors import InputError
from spml.labels import Labels
from spml.losses import settings_of
from spml.type_checks import check_type, check_types, hints_of

ViewKind = Literal["plain", "weak", "strong"]

# Fewer steps are too few for a head that starts from nothing, and for strong views: after 500 steps on 1,000 photos of
# VOC both were behind a linear head on weak views that starts as the first look's, the head far behind.
ENOUGH_STEPS = 2000


@dataclass(frozen=True)
class Clock:
    """Where training stands. Epochs count from 1, steps from 0."""

    epoch: int = 1
    epochs: int = 1
    step: int = 0
    steps: int = 1

    @property
    def progress(self) -> float:
        """0 in the first epoch, 1 in the last."""
        return (self.epoch - 1) / max(self.epochs - 1, 1)


@dataclass(frozen=True)
class Needs:
    """What must be there for a method to run, said once."""

    views: tuple[ViewKind, ...] = ("weak",)  # the views of each image, in the order `loss` takes them
    labels: str = "positives"  # "positives": one is enough; "negatives": some known; "full": nothing unknown
    k: bool = False  # the expected number of positives of a row
    head: str = "linear"  # the head the method is made for: "linear" runs on any, "label-wise", "cam"
    pretrained_head: str | None = None  # another one, on a pretrained backbone, from `ENOUGH_STEPS` on
    geometry: bool = False  # which part of the image each view shows
    epoch_predictions: bool = False  # probabilities for all training rows at the end of each epoch
    soft_labels: bool = False  # soft labels from cross-fitted linear probes, where the backbone is pretrained
    grows_with_rows: bool = False  # the cost of a step grows with the number of training rows
    splits: Literal["entries", "rows"] | None = None  # the objective is a mean of entries, or of rows looked at whole

    def __post_init__(self) -> None:
        check_types(self)
        allowed = {"labels": ("positives", "negatives", "full"), "splits": ("entries", "rows", None)}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise InputError(f"needs: {name} must be one of {values}, not {getattr(self, name)!r}")
        known = get_args(ViewKind)
        if not isinstance(self.views, tuple) or not self.views or not set(self.views) <= set(known):
            raise InputError(f"needs: views must be a tuple of {known}, not {self.views!r}")


MEAN_OF_ENTRIES, MEAN_OF_ROWS = Needs(splits="entries"), Needs(splits="rows")


@dataclass(frozen=True)
class Problem:
    """What a method may know of the task before the first step: never the true labels."""

    labels: Labels
    k: float | None = None
    seeds: int | tuple[int, ...] = 0  # one seed, or one for each of many heads trained at once
    soft_labels: bool = False  # whether `Method.receive_soft_labels` will be called before the first step
    steps: int = 0  # of the whole training, where that is known
    whole_network: bool = False  # whether a network learns, from images; else a head alone, from features

    @property
    def heads(self) -> tuple[int, ...]:
        return () if isinstance(self.seeds, int) else (len(self.seeds),)

    @property
    def rows(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return self.labels.num_classes


@dataclass(frozen=True)
class Geometry:
    """Where a view's pixels come from: per image, mirrored or not, and its crop (left, top, width, height) in 0..1."""

    flip: Tensor
    crop: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """One step's rows. Rows and labels are those of the whole batch; a process holds its own share of the views."""

    rows: Tensor
    labels: Tensor
    views: tuple[Tensor, ...]
    geometry: tuple[Geometry, ...] = ()  # of each view, where the method asks for it
    weight: float = 1.0  # of a process that computes the loss of its own rows: their number over that of an even share
    averaged: "Model | None" = None  # the network of averaged weights, in evaluation mode, where the run averages


class ModelOutputs(Protocol):
    """What a classifier returns: logits, and where its head has them embeddings and class maps."""

    @property
    def logits(self) -> Tensor: ...
    @property
    def embeddings(self) -> Tensor | None: ...
    @property
    def maps(self) -> Tensor | None: ...


Model = Callable[[Tensor], ModelOutputs]


class EnsembleMember(NamedTuple):
    """One linear head of an ensemble on features: its method, and its weight in the average of the heads."""

    method: str
    settings: Mapping[str, Any]
    share: float


class Method(nn.Module):
    """The base of every method.

    A method overrides `objective` if one view is enough, `loss` if not, and `end_epoch` if it looks at the whole
    training set between epochs. Per-row state lives in a `RowMemory` made by `prepare`, other state in buffers,
    so that all of it is saved and resumed with the run.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Needs] = Needs()
    f1_threshold: ClassVar[float] = 0.5  # probability above which a label counts as predicted, for F1 scores
    head_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # keyword arguments of the head named by `needs`

    @dataclass(frozen=True)
    class Settings:
        pass

    settings: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        _check_class(type(self))
        known = [f.name for f in dataclasses.fields(self.Settings)]
        for setting in settings:
            if setting not in known:
                there = ", ".join(known) or "none"
                raise InputError(f"method {self.name!r} has no setting {setting!r}; its settings: {there}")
        self.settings = self.Settings(**settings)
        for setting, kind in self.setting_kinds().items():
            value = getattr(self.settings, setting)
            check_type(f"method {self.name!r}: {setting}", value, kind)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"method {self.name!r}: {setting} must be finite, not {value}")
        self.k: float | None = None
        self.classes = 0

    @classmethod
    def setting_kinds(cls) -> dict[str, Any]:
        """The type of every setting; where none is named and the default is a number, a number."""
        hints = hints_of(cls.Settings)
        kinds = {f.name: hints.get(f.name, Any) for f in dataclasses.fields(cls.Settings)}
        numbers = [f.name for f in dataclasses.fields(cls.Settings) if type(f.default) in (int, float)]
        return kinds | {name: float | None for name in numbers if kinds[name] is Any}

    def prepare(self, problem: Problem) -> None:
        """Learn the size of the task and make room for what is remembered."""
        if self.needs.k and problem.k is None and getattr(self.settings, "k", None) is None:
            raise InputError(
                f"method {self.name!r} needs k, the expected number of positive labels of a row: give k, or a few "
                "fully labelled rows to estimate it from"
            )
        own = getattr(self.settings, "k", None)
        self.k = problem.k if own is None else own
        if self.k is not None and not 0 < self.k <= problem.classes:
            raise InputError(
                f"k, the expected number of positive labels of a row, must be above 0 and at most {problem.classes}, "
                f"the number of classes, not {self.k}"
            )
        self.classes = problem.classes
        members = [METHODS[member.method](**member.settings) for member in self.members(problem.classes)]
        for made in members:
            made.prepare(problem)
        self.beside = nn.ModuleList(members)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        """The loss of a batch from one view: (…, B, L) logits give (…) values, any leading dimensions are heads."""
        raise AssertionError(f"{type(self).__name__} defines no objective: what it is on one view, or on features")

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        """The loss of a batch of images; by default the objective of its first view."""
        return self.of_logits(model(batch.views[0]).logits, batch.labels, batch.rows, clock)

    def of_logits(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        """The objective; of logits of several heads beside one another, (…, B, m·L), those of the members, added."""
        classes = labels.shape[-1]
        if logits.shape[-1] == classes:
            return self.objective(logits, labels, rows, clock)
        parts = zip(cast(Iterable[Method], self.beside), logits.split(classes, -1), strict=True)
        return torch.stack([member.objective(part, labels, rows, clock) for member, part in parts]).sum(0)

    @property
    def views(self) -> tuple[ViewKind, ...]:
        """The views of each image, in the order `loss` takes them, once it is prepared."""
        return self.needs.views

    @property
    def is_objective(self) -> bool:
        """Whether `loss` is the objective of the first view, and no more."""
        return type(self).loss is Method.loss

    def receive_soft_labels(self, soft_labels: Tensor) -> None:
        """Called once before the first step if `needs.soft_labels` and the backbone is pretrained: (N, L) calibrated
        probabilities of every label, from linear probes that were not trained on that row."""

    def members(self, classes: int) -> tuple[EnsembleMember, ...]:
        """On features: the methods whose heads learn side by side and become one. Nobody: the method itself does."""
        return ()

    def penalty(self, parameters: Iterable[Tensor], heads: int = 0) -> Tensor | None:
        """A term on the classifier's parameters, one value a head, or None."""
        return None

    def after_step(self, learning_rate: float | Tensor) -> None:
        """Called when the optimiser has moved; a method that moves its own memory does so here."""

    def end_epoch(self, probabilities: Tensor, clock: Clock) -> None:
        """Called after each epoch if `needs.epoch_predictions`, with (…, N, L) predictions made in evaluation mode."""

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """The method's own parameters, each group with the multiple of the classifier's learning rate it moves at."""
        return []


def mean_entry(entries: Tensor) -> Tensor:
    """The published 1/(B·L) Σ, one value a head."""
    return entries.mean((-2, -1))


def mean_row(entries: Tensor) -> Tensor:
    """Summed over classes, averaged over rows, one value a head."""
    return entries.sum(-1).mean(-1)


METHODS: dict[str, type[Method]] = {}

STEP_INPUTS = frozenset({"epoch", "progress"})  # what a loss function may take of the clock


def register(cls: type[Method]) -> type[Method]:
    """Make a method known by its name; those of the package are not replaced."""
    _check_class(cls)
    held = METHODS.get(cls.name)
    if held is not None and held.__module__.startswith("spml.") and held.__module__ != cls.__module__:
        raise TypeError(f"there is a method {cls.name!r} already: take another name")
    METHODS[cls.name] = cls
    return cls


def _check_class(cls: type[Method]) -> None:
    for wanted in ("name", "paper", "summary"):
        if not isinstance(getattr(cls, wanted, None), str):
            raise TypeError(f"{cls.__name__} needs {wanted!r}, a text")
    if cls.objective is Method.objective and cls.loss is Method.loss:
        raise TypeError(f"{cls.__name__} needs 'objective' or 'loss': what is made small")
    if not dataclasses.is_dataclass(cls.Settings):
        raise TypeError(f"{cls.__name__}.Settings needs @dataclass(frozen=True) over it")


def loss_method(
    name: str,
    function: Callable[..., Tensor],
    *,
    paper: str,
    summary: str,
    needs: Needs = Needs(),  # noqa: B008 (frozen)
    reduce: Callable[[Tensor], Tensor] = mean_entry,
    f1_threshold: float = 0.5,
    head_settings: Mapping[str, Any] = MappingProxyType({}),
    **defaults: Any,
) -> type[Method]:
    """A method that is its loss function alone: the function's settings are the method's, with `defaults` changed.

    Of the function's step inputs `epoch` and `progress` are taken from the clock; a setting `k` left open is
    filled with the task's.
    """
    _check_signature(function, defaults)
    step_inputs = set(inspect.signature(function).parameters) & STEP_INPUTS
    hints, fields = hints_of(function), list[tuple[str, Any, Any]]()
    for setting, parameter in settings_of(function).items():
        default = defaults.pop(setting, None if parameter.default is parameter.empty else parameter.default)
        kind = hints.get(setting, Any)
        kind = kind | None if default is None and kind is not Any else kind
        fields.append((setting, kind, dataclasses.field(default=default)))
    if defaults:
        raise TypeError(f"{function.__name__} has no setting {', '.join(defaults)}")

    def objective(self: Method, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        settings = dataclasses.asdict(self.settings)
        if "k" in settings and settings["k"] is None:
            settings["k"] = self.k
        return reduce(function(logits, labels, **{i: getattr(clock, i) for i in step_inputs}, **settings))

    namespace = {
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "name": name,
        "paper": paper,
        "summary": summary,
        "needs": needs,
        "f1_threshold": f1_threshold,
        "head_settings": head_settings,
        "function": staticmethod(function),
        "Settings": dataclasses.make_dataclass("Settings", fields, frozen=True),
        "objective": objective,
    }
    title = function.__name__.title().replace("_", "")
    made: type[Method] = type(f"{title}Method", (Method,), namespace)
    return register(made)


def _check_signature(function: Callable[..., Tensor], defaults: Iterable[str]) -> None:
    """Before the * stand logits, labels and step inputs, behind it the settings, all but k with a default."""
    name = getattr(function, "__name__", None)
    if name is None:
        raise TypeError(f"{function!r} is no function: a loss method is made of one, with a name")
    parameters = list(inspect.signature(function).parameters.values())
    if sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters[:2]) < 2:
        raise TypeError(f"{name} must take logits and labels first, before any *")
    for parameter in parameters[2:]:
        of_the_clock = parameter.name in STEP_INPUTS
        if parameter.kind is parameter.KEYWORD_ONLY:
            if of_the_clock:
                raise TypeError(f"{name}: {parameter.name!r} is given at every step: put it before the *")
            if parameter.default is parameter.empty and parameter.name not in (*defaults, "k"):
                raise TypeError(f"{name}: the setting {parameter.name!r} has no default: give it one")
        elif not of_the_clock or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise TypeError(
                f"{name} cannot be given '{parameter}': before the * stand logits, labels, epoch and progress, behind "
                "it the settings"
            )


def uniform_per_head(seeds: int | tuple[int, ...], shape: Sequence[int], low: float, high: float) -> Tensor:
    """Uniform numbers behind one leading dimension a head; a head's depend on its own seed alone."""
    if isinstance(seeds, int):
        return torch.empty(*shape).uniform_(low, high, generator=torch.Generator().manual_seed(seeds))
    return torch.stack([uniform_per_head(seed, shape, low, high) for seed in seeds])
