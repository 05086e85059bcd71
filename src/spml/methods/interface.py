"""What a method needs, and what it receives: the problem, the clock, and the batch of a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from torch import Tensor

from spml.errors import InputError
from spml.labels import Labels
from spml.type_checks import check_epoch, check_types

ViewKind = Literal["plain", "weak", "strong"]

# Shorter trainings keep a linear head and weak views: after 500 steps on 1,000 photos of VOC, strong views and a head
# trained from scratch both scored below a linear head that starts as the probes' (the new head by far).
ENOUGH_STEPS = 2000


@dataclass(frozen=True)
class Clock:
    """Progress of training.

    Parameters
    ----------
    epoch, epochs : int
        The current epoch, counted from 1, and the number of epochs.
    step, steps : int
        The current step, counted from 0 over the whole training, and the number of steps.

    Raises
    ------
    InputError
        If the epoch is 0, or above the number of epochs.

    Examples
    --------
    >>> Clock(epoch=3, epochs=5).progress
    0.5
    """

    epoch: int = 1
    epochs: int = 1
    step: int = 0
    steps: int = 1

    def __post_init__(self) -> None:
        check_epoch(self.epoch, self.epochs)

    @property
    def progress(self) -> float:
        """0 in the first epoch, 1 in the last."""
        return (self.epoch - 1) / max(self.epochs - 1, 1)


@dataclass(frozen=True)
class Needs:
    """Requirements of a method.

    Parameters
    ----------
    views : tuple of {"plain", "weak", "strong"}
        Views of each image, in the order in which `Method.loss` receives them.
    labels : {"positives", "negatives", "full"}
        Observed positives are enough; some negatives must be known; or every label must be known.
    k : bool
        The average number of positives per row must be given.
    head : {"linear", "label-wise", "cam"}
        Head the method is designed for. A method for the linear head works with every head.
    pretrained_head : str, optional
        Head to use instead on a pretrained backbone, if training has at least `ENOUGH_STEPS` steps.
    geometry : bool
        `Batch.geometry` must give the part of the image that each view shows.
    epoch_predictions : bool
        `Method.end_epoch` must be called with predictions for all training rows.
    soft_labels : bool
        `Method.receive_soft_labels` must be called if the backbone is pretrained.
    grows_with_rows : bool
        The cost of a step grows with the number of training rows.
    splits : {"entries", "rows"}, optional
        The objective is a mean over entries, or over whole rows, and can be computed in parts.

    Examples
    --------
    >>> needs = Needs(views=("weak", "strong"), k=True)
    >>> needs.head, needs.labels
    ('linear', 'positives')
    """

    views: tuple[ViewKind, ...] = ("weak",)
    labels: str = "positives"
    k: bool = False
    head: str = "linear"
    pretrained_head: str | None = None
    geometry: bool = False
    epoch_predictions: bool = False
    soft_labels: bool = False
    grows_with_rows: bool = False
    splits: Literal["entries", "rows"] | None = None

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
    """The task as a method may know it before the first step. It never holds the true labels.

    Parameters
    ----------
    labels : Labels
        Observed labels of the training rows.
    k : float, optional
        Average number of positives per row.
    seeds : int or tuple of int
        One seed, or one per head if many heads are trained at once.
    soft_labels : bool, optional
        Whether `Method.receive_soft_labels` will be called before the first step.
    steps : int
        Number of steps of the whole training, if known.
    features : bool
        A head is trained on features. Otherwise a network is trained on images.

    Examples
    --------
    >>> problem = Problem(Labels.from_names(["cat", "dog"], ["cat", "dog"]), k=1.5)
    >>> problem.rows, problem.k
    (2, 1.5)
    """

    labels: Labels
    k: float | None = None
    seeds: int | tuple[int, ...] = 0
    soft_labels: bool | None = None
    steps: int = 0
    features: bool = False

    @property
    def heads(self) -> tuple[int, ...]:
        """Leading dimensions of per-head state: (number of heads,), or () for a single head."""
        return () if isinstance(self.seeds, int) else (len(self.seeds),)

    @property
    def rows(self) -> int:
        """Number of training rows."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.labels.num_classes


@dataclass(frozen=True)
class Geometry:
    """The part of each image that a view shows.

    Parameters
    ----------
    flip : bool Tensor of shape (n_images,)
        Whether the view is mirrored.
    crop : Tensor of shape (n_images, 4), optional
        Left, top, width and height of the crop, as fractions of the image.
    """

    flip: Tensor
    crop: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """The rows of one step.

    Parameters
    ----------
    rows : Tensor of shape (n_rows,)
        Row numbers in the training set, of the whole batch if several processes share it.
    labels : Tensor of shape (n_rows, n_classes)
        +1, -1 or 0, of the whole batch.
    views : tuple of Tensor
        The views that `Method.views` asks for; each process holds its own part.
    geometry : tuple of Geometry
        One per view, if `needs.geometry`.
    weight : float
        Number of rows of this process divided by an even share, where processes compute the loss of their own rows.
    averaged : callable, optional
        The network with averaged weights in evaluation mode, if the run averages weights.

    Examples
    --------
    >>> import torch
    >>> images = torch.zeros(2, 3, 8, 8)
    >>> batch = Batch(rows=torch.tensor([4, 7]), labels=torch.tensor([[1, 0], [0, 1]]), views=(images,))
    >>> len(batch.views)
    1
    """

    rows: Tensor
    labels: Tensor
    views: tuple[Tensor, ...]
    geometry: tuple[Geometry, ...] = ()
    weight: float = 1.0
    averaged: "Model | None" = None


class ModelOutputs(Protocol):
    """Outputs of a classifier: logits and, if its head computes them, embeddings and class maps."""

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
