"""Which head a network gets, if nobody says."""

import math

from spml.methods import ENOUGH_STEPS, Method

WITHOUT_WEIGHTS = ("small", "small-nf")  # backbones by name that start from nothing
MOST_CLASSES = 1000  # beyond, a query a class takes more time and memory than the backbone


def head_for(made: Method, backbone: str, classes: int, rows: int, epochs: int, batch_size: int) -> str:
    """The method's own; on a pretrained backbone its larger one, if there are steps enough to train that."""
    larger = made.needs.pretrained_head
    enough = epochs * math.ceil(rows / batch_size) >= ENOUGH_STEPS and classes <= MOST_CLASSES
    return larger if larger and enough and backbone not in WITHOUT_WEIGHTS else made.needs.head
