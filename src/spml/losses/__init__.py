"""Losses as pure functions of logits and labels: one value per entry, no state, no reduction.

Positional arguments of a function change at every step (logits, labels, the epoch, a second view); keyword-only
arguments are settings. `loss(name, **settings)` wraps a function in a module that reduces. There is one file per
family; `LOSSES` holds the functions of all files by name.
"""

from spml.losses import (  # noqa: F401 (each file registers its losses)
    annotator,
    asymmetric,
    contrastive,
    large,
    multinomial,
    zhou,
)
from spml.losses.cole import assume_negative
from spml.losses.module import Loss, loss
from spml.losses.names import LOSSES
from spml.losses.robust import RobustSchedule
from spml.losses.terms import logit

__all__ = ["LOSSES", "Loss", "RobustSchedule", "assume_negative", "logit", "loss"]
