"""The base class of all methods: the loss of a batch, and the state kept between batches."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, cast, get_args

import torch
from torch import Tensor, nn

from spml.errors import InputError
from spml.losses.activation import Activation
from spml.methods.interface import Batch, Clock, EnsembleMember, Model, Needs, Problem, ViewKind
from spml.methods.plugin_errors import explain_hooks, is_plugin
from spml.type_checks import check_type, hints_of

_NOT_IN_NAMES = "/\\,=;: \t"


class Method(nn.Module):
    """Base class of all methods.

    A method overrides `objective` if one view is enough, `loss` if it needs several views, embeddings or class maps,
    and `end_epoch` if it uses predictions for the whole training set between epochs. Per-row state is a `RowMemory`
    created in `prepare`, other state a registered buffer: both are saved and resumed with the run.

    Class attributes: `name`, `paper` and `summary` (one sentence), the requirements `needs`, the probability
    `f1_threshold` above which F1 scores count a label as predicted, `pseudo_label_setting`, the name of the setting
    above which the method itself counts an unknown label as present, `activation`, which turns logits into
    probabilities ("sigmoid" or "softmax"), and `head_settings`, keyword arguments of the head that `needs` asks for.

    Parameters
    ----------
    **settings
        Fields of the nested dataclass `Settings` that differ from their defaults. Declare the range of a setting in its
        type: `weight: Annotated[float, Range(0, 1)]`, or an alias of `spml.type_checks` such as `Share`.

    Raises
    ------
    InputError
        If a setting is unknown, has the wrong type or lies outside its range. `objective` and `loss` raise it if the
        method was not prepared, or receives fewer views than it needs.

    Examples
    --------
    In your own training loop, call `prepare` once, `loss` and `after_step` per step, and `end_epoch` per epoch:

    >>> import torch
    >>> from spml.labels import Labels
    >>> from spml.methods import Batch, Clock, Problem, method
    >>> from spml.models import Outputs
    >>> labels = Labels.from_indices([0, 1, 2, 0, 1, 2], ["cat", "dog", "bird"])
    >>> features, network = torch.randn(6, 4), torch.nn.Linear(4, 3)
    >>> em = method("em-apl", warm_up=1)
    >>> em.prepare(Problem(labels, features=True))
    >>> groups = [{"params": list(network.parameters())}]
    >>> groups += [{"params": own, "lr": 1e-3 * multiple} for own, multiple in em.parameter_groups()]
    >>> optimiser = torch.optim.Adam(groups, lr=1e-3)
    >>> for epoch in (1, 2):
    ...     for step, rows in enumerate(torch.arange(6).split(3)):
    ...         clock = Clock(epoch, epochs=2, step=2 * (epoch - 1) + step, steps=4)
    ...         views = (features[rows],) * len(em.views)  # for images: one augmented view of each kind in em.views
    ...         value = em.loss(Batch(rows, labels.batch(rows), views), lambda view: Outputs(network(view)), clock)
    ...         value.backward()
    ...         optimiser.step()
    ...         em.after_step(learning_rate=1e-3)
    ...         optimiser.zero_grad()
    ...     if em.needs.epoch_predictions:
    ...         em.end_epoch(torch.sigmoid(network(features)).detach(), clock)
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Needs] = Needs()
    f1_threshold: ClassVar[float] = 0.5
    pseudo_label_setting: ClassVar[str | None] = None
    activation: ClassVar[Activation] = "sigmoid"
    head_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @dataclass(frozen=True)
    class Settings:
        pass

    settings: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_plugin(cls.__module__):
            explain_hooks(cls)
        for name, guard in (("objective", _guard_objective), ("loss", _guard_loss)):
            if name in vars(cls):
                setattr(cls, name, guard(vars(cls)[name]))

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        check_class(type(self))
        types = self.setting_types()
        for setting in settings:
            if setting not in types:
                raise InputError(
                    f"method {self.name!r} has no setting {setting!r}; its settings: {', '.join(types) or 'none'}"
                )
        self.settings = self.Settings(**{name: parsed_setting(value, types[name]) for name, value in settings.items()})
        for setting, annotation in types.items():
            value = getattr(self.settings, setting)
            check_type(f"method {self.name!r}: {setting}", value, annotation)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"method {self.name!r}: {setting} must be finite, not {value}")
        self.k: float | None = None
        self.classes = 0
        self.prepared = False
        self.on_features = False
        self._in_loss = False

    @classmethod
    def setting_types(cls) -> dict[str, Any]:
        """Return the type of every setting: as annotated, or a number if only a numeric default is given."""
        hints = hints_of(cls.Settings)
        types = {f.name: hints.get(f.name, Any) for f in dataclasses.fields(cls.Settings)}
        numbers = [f.name for f in dataclasses.fields(cls.Settings) if type(f.default) in (int, float)]
        return types | {name: float | None for name in numbers if types[name] is Any}

    def prepare(self, problem: Problem) -> None:
        """Set up the method for a task; called once before the first step.

        Parameters
        ----------
        problem : Problem
            Observed labels, k and seeds. Overriding methods call `super().prepare(problem)` and create their memory.

        Raises
        ------
        InputError
            If the method needs k and it is unknown or out of range.
        """
        k = getattr(self.settings, "k", None)
        self.k = problem.k if k is None else k
        if self.needs.k and self.k is None:
            raise InputError(
                f"method {self.name!r} needs k, the average number of labels per row: give k, or a few fully "
                "labelled rows to estimate it from"
            )
        if self.k is not None and not 0 < self.k <= problem.classes:
            raise InputError(
                f"k, the average number of labels per row, must be above 0 and at most {problem.classes}, "
                f"the number of classes, not {self.k}"
            )
        from spml.methods.registry import METHODS  # imports this module

        self.classes, self.on_features, self.prepared = problem.classes, problem.features, True
        members = [METHODS[member.method](**member.settings) for member in self.members(problem.classes)]
        for member in members:
            member.prepare(problem)
        self.ensemble = nn.ModuleList(members)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        """Compute the loss of a batch from one view.

        Parameters
        ----------
        logits : Tensor of shape (…, n_rows, n_classes)
            Leading dimensions are independent heads.
        labels : Tensor of shape (n_rows, n_classes)
            +1 positive, -1 negative, 0 unknown.
        rows : Tensor of shape (n_rows,)
            Row numbers in the training set.
        clock : Clock

        Returns
        -------
        Tensor of shape (…)
            One value per head.
        """
        raise AssertionError(f"{type(self).__name__} does not define an objective, the loss of one view or of features")

    def forward(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Raise an error that shows how to call a method, which is not a function of logits and labels alone."""
        raise InputError(
            f"a method is not called like a loss: once, {self.name}.prepare(Problem(labels)); at each step, "
            f"{self.name}.objective(logits, labels, rows, clock) or {self.name}.loss(batch, model, clock)"
        )

    def loss(self, batch: Batch, model: Model, clock: Clock) -> Tensor:
        """Compute the loss of a batch; by default the objective of its first view.

        Parameters
        ----------
        batch : Batch
        model : callable
            Maps a view to the outputs of the classifier: `logits` and, if its head computes them, `embeddings` and
            `maps`, as in `spml.models.Outputs`.
        clock : Clock

        Returns
        -------
        Tensor of shape ()
        """
        return self.ensemble_objective(model(batch.views[0]).logits, batch.labels, batch.rows, clock)

    def ensemble_objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        """Compute the objective; for the concatenated logits of an ensemble, the sum over its members."""
        classes = labels.shape[-1]
        if logits.shape[-1] == classes:
            return self.objective(logits, labels, rows, clock)
        parts = zip(cast(Iterable[Method], self.ensemble), logits.split(classes, -1), strict=True)
        return torch.stack([member.objective(part, labels, rows, clock) for member, part in parts]).sum(0)

    @property
    def views(self) -> tuple[ViewKind, ...]:
        """Views of each image, in the order in which `loss` receives them; known once the method is prepared."""
        return self.needs.views

    @property
    def is_objective(self) -> bool:
        """Whether `loss` is the objective of the first view and nothing else."""
        return type(self).loss is Method.loss

    def receive_soft_labels(self, soft_labels: Tensor) -> None:
        """Receive soft labels; called once before the first step if `needs.soft_labels` and the backbone is pretrained.

        Parameters
        ----------
        soft_labels : Tensor of shape (n_rows, n_classes)
            Calibrated probability of every label, from linear probes that were not trained on that row.
        """

    def members(self, classes: int) -> tuple[EnsembleMember, ...]:
        """Return the heads that are trained as an ensemble on features; by default none, the method has one head.

        Parameters
        ----------
        classes : int
            Number of classes.

        Returns
        -------
        tuple of EnsembleMember
            Of each head, the name and settings of its method, and its weight in the average.
        """
        return ()

    def penalty(self, parameters: Iterable[Tensor], heads: int = 0) -> Tensor | None:
        """Return a regularisation term on the classifier's parameters.

        Parameters
        ----------
        parameters : iterable of Tensor
        heads : int
            Number of leading dimensions of every parameter that number the heads.

        Returns
        -------
        Tensor or None
            One value per head; a scalar if `heads` is 0. None if there is no penalty.
        """
        return None

    def after_step(self, learning_rate: float | Tensor) -> None:
        """Update state that the optimiser does not; called after each step of the optimiser.

        Parameters
        ----------
        learning_rate : float or Tensor
            The classifier's learning rate in this step.
        """

    def end_epoch(self, probabilities: Tensor, clock: Clock) -> None:
        """Use predictions for all training rows; called after each epoch if `needs.epoch_predictions`.

        Parameters
        ----------
        probabilities : Tensor of shape (…, n_rows, n_classes)
            Predictions made in evaluation mode.
        clock : Clock
        """

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Return the method's own parameters, each group with its multiple of the classifier's learning rate.

        Returns
        -------
        list of (list of Parameter, float)
        """
        return []

    def _check_prepared(self) -> None:
        if not self.prepared:
            raise InputError(
                f"method {self.name!r} is not prepared: call prepare(Problem(labels)) before its loss or objective"
            )


def _guard_objective(objective: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Raise an error if the objective of one view is not the whole method."""

    @functools.wraps(objective)
    def guarded(self: Method, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        self._check_prepared()
        if not self._in_loss and not self.on_features and len(self.views) > 1:
            raise InputError(
                f"method {self.name!r} needs {len(self.views)} views ({', '.join(self.views)}): call loss(Batch(rows, "
                "labels, views), model, clock), or prepare(Problem(labels, features=True)) for a head on features"
            )
        if self.on_features and len(self.ensemble):
            raise InputError(
                f"method {self.name!r} trains {len(self.ensemble)} heads on features: call ensemble_objective or loss "
                f"with the logits of all heads concatenated, {len(self.ensemble)} · {self.classes} columns"
            )
        return objective(self, logits, labels, rows, clock)

    return guarded


def _guard_loss(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Raise an error if a batch has fewer views than the method needs."""

    @functools.wraps(loss)
    def guarded(self: Method, batch: Batch, model: Model, clock: Clock) -> Tensor:
        self._check_prepared()
        if len(batch.views) < len(self.views):
            raise InputError(
                f"method {self.name!r} needs {len(self.views)} views of each image ({', '.join(self.views)}), but the "
                f"batch has {len(batch.views)}"
            )
        outer, self._in_loss = self._in_loss, True
        try:
            return loss(self, batch, model, clock)
        finally:
            self._in_loss = outer

    return guarded


def mean_entry(entries: Tensor) -> Tensor:
    """Average over rows and classes, the published 1/(B·L) Σ.

    Parameters
    ----------
    entries : Tensor of shape (…, n_rows, n_classes)

    Returns
    -------
    Tensor of shape (…)
        One value per head.

    Examples
    --------
    >>> mean_entry(torch.ones(2, 3))
    tensor(1.)
    """
    return entries.mean((-2, -1))


def mean_row(entries: Tensor) -> Tensor:
    """Sum over classes and average over rows.

    Parameters
    ----------
    entries : Tensor of shape (…, n_rows, n_classes)

    Returns
    -------
    Tensor of shape (…)
        One value per head.

    Examples
    --------
    >>> mean_row(torch.ones(2, 3))
    tensor(3.)
    """
    return entries.sum(-1).mean(-1)


def parsed_setting(value: Any, annotation: Any) -> Any:
    """Build a nested dataclass from a table of its fields, as files store it."""
    if isinstance(value, Mapping):
        for option in get_args(annotation) or (annotation,):
            if dataclasses.is_dataclass(option) and set(value) <= {f.name for f in dataclasses.fields(option)}:
                nested = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
                return cast(Any, option)(**nested)
    return value


def check_class(cls: type[Method]) -> None:
    """Raise TypeError if a method class is incomplete."""
    for attribute in ("name", "paper", "summary"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise TypeError(f"{cls.__name__} needs the class attribute {attribute!r}, a string")
    if not cls.name or set(cls.name) & set(_NOT_IN_NAMES) or not cls.name.isprintable():
        raise TypeError(f"{cls.name!r} cannot be the name of a method: it is part of file names and of lists")
    if cls.objective is Method.objective and cls.loss is Method.loss:
        raise TypeError(f"{cls.__name__} must define 'objective' or 'loss'")
    if not dataclasses.is_dataclass(cls.Settings):
        raise TypeError(f"{cls.__name__}.Settings must be decorated with @dataclass(frozen=True)")
    setting = cls.pseudo_label_setting
    if setting is not None and setting not in {field.name for field in dataclasses.fields(cls.Settings)}:
        raise TypeError(f"{cls.__name__}: pseudo_label_setting names {setting!r}, which is no setting")


def uniform_per_head(seeds: int | tuple[int, ...], shape: Sequence[int], low: float, high: float) -> Tensor:
    """Draw uniform numbers, with a leading dimension if there are several seeds, each head from its own seed."""
    if isinstance(seeds, int):
        return torch.empty(*shape).uniform_(low, high, generator=torch.Generator().manual_seed(seeds))
    return torch.stack([uniform_per_head(seed, shape, low, high) for seed in seeds])
