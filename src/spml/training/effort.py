"""How much to train on images: heads on a frozen backbone, or the whole network."""

import math
import os
from typing import NamedTuple

import torch

from spml.errors import InputError
from spml.models.backbones import WITHOUT_WEIGHTS
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
    reason: str
    """One sentence for the user."""


def plan_training(
    options: TrainOptions, *, rows: int, backbone: str, device: torch.device, held_out: bool = True
) -> TrainingPlan:
    """Decide what to train on images.

    Effort "quick" trains a classifier on frozen features; "thorough" continues from it with the whole network and keeps
    the better one. "normal" trains the whole network on a GPU, and on a CPU it is "thorough" with `minutes` and
    otherwise "quick". An option that applies only to a whole network, such as epochs or head, trains only that.

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
    (False, True, 38)
    """
    effort, minutes, given = options.effort, options.minutes, options.network_options
    if effort not in EFFORTS:
        raise InputError(f"effort is {effort!r}: it must be one of {', '.join(EFFORTS)}")
    if minutes is not None and not minutes > 0:
        raise InputError(f"minutes must be above 0, not {minutes}")
    impossible = _why_not_frozen(options.method, backbone)
    if effort == "quick" and impossible:
        raise InputError(f"effort 'quick' trains on features of a frozen network, which {impossible}")
    if effort == "quick" and given:
        raise InputError(
            f"effort 'quick' does not train the network, so {next(iter(given))} does not apply: leave it out"
        )
    steps_per_epoch = max(1, math.ceil(rows / (options.batch_size or BATCH_SIZE)))
    thorough = effort == "thorough" or device.type != "cpu"
    enough = min(max(math.ceil(STEPS / steps_per_epoch), MIN_EPOCHS), MAX_EPOCHS)
    epochs = options.epochs or (enough if thorough or minutes else MIN_EPOCHS)
    if effort == "quick":
        return TrainingPlan(
            True, False, epochs, "Training a classifier on the features of the frozen network (effort quick)."
        )
    direct = given or impossible or several_processes() or not held_out
    if direct or (effort == "normal" and device.type != "cpu"):
        return TrainingPlan(False, True, epochs, f"Training the whole network for {epochs} epochs.")
    if effort == "normal" and minutes is None:
        reason = "on a CPU, training the whole network takes much longer (try --minutes 30, or --effort thorough)"
        rest = f"{reason}. It learns from all rows, and each is predicted by classifiers that did not see its label"
        return TrainingPlan(
            True, False, epochs, f"Training a classifier on the features of the frozen network: {rest}."
        )
    limit = "" if minutes is None else f", within {minutes:g} min"
    reason = "then the whole network from it"
    return TrainingPlan(
        True, True, epochs, f"Training a classifier on the features of the frozen network, {reason}{limit}."
    )


class DefaultModel(NamedTuple):
    """The backbone and image size that are used if the user does not choose them."""

    model: str
    size: int
    """Side of the images in pixels."""


def default_model(options: TrainOptions, device: torch.device) -> DefaultModel:
    """Return a backbone with good frozen features where these are used, otherwise one that is trained fast.

    Examples
    --------
    >>> default_model(TrainOptions(), torch.device("cpu"))
    DefaultModel(model='lite2', size=320)
    >>> default_model(TrainOptions(method="em"), torch.device("cpu"))
    DefaultModel(model='lite0', size=224)
    """
    may_freeze = options.method == "auto" and not options.network_options and not several_processes()
    if may_freeze and (options.effort != "normal" or device.type == "cpu"):
        return DefaultModel("lite2", 320)
    return DefaultModel("lite0", 224)


def _why_not_frozen(method: str, backbone: str) -> str | None:
    if method != "auto":
        return f"only the method 'auto' supports, not {method!r}"
    if backbone in WITHOUT_WEIGHTS:
        return f"the network {backbone!r} has no pretrained weights for"
    return None


def several_processes() -> bool:
    """Return whether torchrun started this process as one of several: they train one network together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
