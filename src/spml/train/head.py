"""Which head a network gets, if nobody says."""

import math

from ..methods import Method

# A head that starts from nothing has learned little before: after 500 steps on 1,000 photos of VOC it was far behind a
# linear one that starts as the first look's.
ENOUGH_STEPS = 2000


def head_for(made: Method, backbone: str, rows: int, epochs: int, batch_size: int) -> str:
    """The method's own; on a pretrained backbone its larger one, if there are steps enough to train that."""
    larger = made.needs.pretrained_head
    steps = epochs * math.ceil(rows / batch_size)
    return larger if larger and backbone != "small" and steps >= ENOUGH_STEPS else made.needs.head
