"""How much to train on images: heads on a frozen backbone, or the whole network."""

import math
import os
from typing import NamedTuple

import torch

from spml.errors import InputError
from spml.models.backbones import WITHOUT_WEIGHTS
from spml.models.frozen import ZOOMS
from spml.training.options import BATCH_SIZE, TrainOptions

EFFORTS = ("quick", "normal", "thorough")

STEPS = 3000  # of fine-tuning; a small data set gets more epochs
MIN_EPOCHS, MAX_EPOCHS = 10, 60


class TrainingPlan(NamedTuple):
    """What is trained."""

    frozen: bool
    """Whether a classifier on the features of the frozen backbone is trained, first or alone."""
    network: bool
    """Whether the whole network is trained."""
    epochs: int
    """Of the whole network; with `minutes`, at most."""
    zooms: tuple[float, ...]
    """Multiples of the image size whose features the frozen backbone computes."""
    reason: str
    """One sentence for the user."""


def plan_training(
    options: TrainOptions, *, rows: int, backbone: str, device: torch.device, held_out: bool = True
) -> TrainingPlan:
    """Decide what to train on images.

    A classifier on frozen features is trained first. Effort "thorough" continues from it with the whole network and
    keeps the better one. "normal" does the same on a GPU, and on a CPU with `minutes`. "quick" reads the images at one
    size instead of two. An option that applies only to a whole network, such as epochs or head, trains only that.

    Parameters
    ----------
    options : TrainOptions
    rows : int
        Number of training rows.
    backbone : str
    device : torch.device
    held_out : bool
        Whether there are held-out rows, by which the better of the two is chosen.

    Returns
    -------
    TrainingPlan

    Raises
    ------
    InputError
        If an option is invalid, or a method or network cannot be trained that way.

    Examples
    --------
    >>> plan_training(TrainOptions(), rows=1250, backbone="lite0", device=torch.device("cpu"))[:2]
    (True, False)
    >>> plan_training(TrainOptions(), rows=1250, backbone="lite0", device=torch.device("cuda"))[:3]
    (True, True, 38)
    """
    effort, minutes, network_options = options.effort, options.minutes, options.network_options
    if effort not in EFFORTS:
        raise InputError(f"effort is {effort!r}: it must be one of {', '.join(EFFORTS)}")
    if minutes is not None and not minutes > 0:
        raise InputError(f"minutes must be above 0, not {minutes}")
    why_not_frozen = _why_not_frozen(options.method, backbone)
    if effort == "quick" and why_not_frozen:
        raise InputError(f"effort 'quick' trains on features of a frozen network, which {why_not_frozen}")
    if effort == "quick" and network_options:
        raise InputError(
            f"effort 'quick' does not train the network, so {next(iter(network_options))} does not apply: leave it out"
        )
    steps_per_epoch = max(1, math.ceil(rows / (options.batch_size or BATCH_SIZE)))
    thorough = effort == "thorough" or device.type != "cpu"
    usual_epochs = min(max(math.ceil(STEPS / steps_per_epoch), MIN_EPOCHS), MAX_EPOCHS)
    epochs = options.epochs or (usual_epochs if thorough or minutes else MIN_EPOCHS)
    if effort == "quick":
        reason = "Training a classifier on the features of the frozen network (effort quick)."
        return TrainingPlan(frozen=True, network=False, epochs=epochs, zooms=(1.0,), reason=reason)
    if network_options or why_not_frozen or several_processes() or not held_out:
        reason = f"Training the whole network for {epochs} epochs."
        return TrainingPlan(frozen=False, network=True, epochs=epochs, zooms=ZOOMS, reason=reason)
    first = "Training a classifier on the features of the frozen network"
    if not thorough and minutes is None:
        why = "on a CPU, training the whole network takes much longer (try --minutes 30, or --effort thorough)"
        rest = f"{why}. It learns from all rows, and each is predicted by classifiers that did not see its label"
        return TrainingPlan(frozen=True, network=False, epochs=epochs, zooms=ZOOMS, reason=f"{first}: {rest}.")
    limit = "" if minutes is None else f", within {minutes:g} min"
    reason = f"{first}, then the whole network from it{limit}."
    return TrainingPlan(frozen=True, network=True, epochs=epochs, zooms=ZOOMS, reason=reason)


class DefaultModel(NamedTuple):
    """The backbone and image size that are used if the user does not choose them."""

    model: str
    size: int
    """Side of the images in pixels."""


def default_model(options: TrainOptions, device: torch.device) -> DefaultModel:
    """Return the best network that pip installs, or one that is trained fast where a CPU must train all of it.

    Examples
    --------
    >>> default_model(TrainOptions(), torch.device("cpu"))
    DefaultModel(model='lite2', size=320)
    >>> default_model(TrainOptions(method="em"), torch.device("cpu"))
    DefaultModel(model='lite0', size=224)
    """
    may_freeze = options.method == "auto" and not options.network_options and not several_processes()
    return DefaultModel("lite2", 320) if may_freeze or device.type != "cpu" else DefaultModel("lite0", 224)


def _why_not_frozen(method: str, backbone: str) -> str | None:
    """Why features of a frozen network cannot be used, to follow "features of a frozen network, which …".

    None if they can.
    """
    if method != "auto":
        return f"only the method 'auto' supports, not {method!r}"
    if backbone in WITHOUT_WEIGHTS:
        return f"the network {backbone!r} has no pretrained weights for"
    return None


def several_processes() -> bool:
    """Return whether torchrun started this process as one of several: they train one network together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
