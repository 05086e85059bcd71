"""The default head of a network."""

import math

from spml.methods import Method
from spml.methods.base import ENOUGH_STEPS

WITHOUT_WEIGHTS = ("small", "small-nf")  # backbones without pretrained weights
MOST_CLASSES = 1000  # above, one query per class takes more time and memory than the backbone


def head_for(method: Method, backbone: str, classes: int, rows: int, epochs: int, batch_size: int) -> str:
    """The method's head; on a pretrained backbone its larger one, if there are enough steps to train it."""
    larger = method.needs.pretrained_head
    enough = epochs * math.ceil(rows / batch_size) >= ENOUGH_STEPS and classes <= MOST_CLASSES
    return larger if larger and enough and backbone not in WITHOUT_WEIGHTS else method.needs.head
