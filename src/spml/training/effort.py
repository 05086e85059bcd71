"""How much to train on images: heads on a frozen backbone, or the whole network."""

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from spml.errors import InputError
from spml.training.head import WITHOUT_WEIGHTS

EFFORTS = ("quick", "normal", "thorough")

STEPS = 3000  # of fine-tuning; a small data set gets more epochs
FEWEST_EPOCHS, MOST_EPOCHS = 10, 60
CPU_SECONDS = 0.12  # of one core for training on one image of 224×224 pixels with the default network and method


class Plan(NamedTuple):
    """What is trained."""

    frozen: bool
    """Whether only a classifier on the features of the frozen backbone is trained."""
    epochs: int
    """Of fine-tuning, otherwise."""
    reason: str
    """One sentence for the user."""


def plan_training(
    effort: str = "normal",
    *,
    rows: int,
    batch_size: int,
    image_size: int,
    method: str,
    backbone: str,
    device: torch.device,
    minutes: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Decide what to train.

    Parameters
    ----------
    effort : {"quick", "normal", "thorough"}
        "quick" trains a classifier on frozen features, "thorough" the whole network, and "normal" the whole network
        on a GPU or if it fits into `minutes`.
    rows, batch_size, image_size : int
        Training rows, rows per step, side of the images in pixels.
    method, backbone : str
    device : torch.device
    minutes : float, optional
        Time limit; it decides on a CPU alone, where the time of a training can be estimated.
    options : mapping, optional
        Options that the user gave for training a network, such as epochs or head: it is then trained.

    Returns
    -------
    Plan

    Raises
    ------
    InputError
        If an option is invalid, or a method or network cannot be trained that way.

    Examples
    --------
    >>> plan = plan_training(rows=1250, batch_size=16, image_size=224, method="auto", backbone="lite0",
    ...                      device=torch.device("cpu"))
    >>> plan.frozen
    True
    >>> plan_training(rows=1250, batch_size=16, image_size=224, method="auto", backbone="lite0",
    ...               device=torch.device("cuda")).epochs
    38
    """
    if effort not in EFFORTS:
        raise InputError(f"effort is {effort!r}: it must be one of {', '.join(EFFORTS)}")
    if minutes is not None and not minutes > 0:
        raise InputError(f"minutes must be above 0, not {minutes}")
    given = dict(options or {})
    impossible = _why_not_frozen(method, backbone)
    if effort == "quick" and impossible:
        raise InputError(f"effort 'quick' trains on features of a frozen network, which {impossible}")
    if effort == "quick" and given:
        raise InputError(
            f"effort 'quick' does not train the network, so {next(iter(given))} does not apply: leave it out"
        )
    per_epoch = max(1, math.ceil(rows / batch_size))
    thorough = effort == "thorough" or device.type != "cpu"
    enough = min(max(math.ceil(STEPS / per_epoch), FEWEST_EPOCHS), MOST_EPOCHS)
    wanted = given.get("epochs") or (enough if thorough or minutes else FEWEST_EPOCHS)
    if effort == "quick":
        return Plan(True, wanted, "Training a classifier on the features of the frozen network (effort quick).")
    if given or impossible or thorough or several_processes():
        return Plan(False, wanted, f"Training the whole network for {wanted} epochs.")
    needed = rows * FEWEST_EPOCHS * CPU_SECONDS * (image_size / 224) ** 2 / max(torch.get_num_threads(), 1) / 60
    if minutes is not None and needed <= minutes:
        affordable = min(wanted, int(FEWEST_EPOCHS * minutes / needed))
        return Plan(False, affordable, f"Training the whole network for {affordable} epochs, within {minutes:g} min.")
    return Plan(
        True,
        wanted,
        "Training a classifier on the features of the frozen network: on a CPU, training the whole network would take "
        f"about {needed:.0f} min or more (effort thorough).",
    )


def _why_not_frozen(method: str, backbone: str) -> str | None:
    if method != "auto":
        return f"only the method 'auto' supports, not {method!r}"
    if backbone in WITHOUT_WEIGHTS:
        return f"the network {backbone!r} has no pretrained weights for"
    return None


def several_processes() -> bool:
    """Whether torchrun started this process as one of several: they train one network together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
