"""Losses as pure functions of logits and labels: one value per entry, no state, no reduction.

Positional arguments of a function change at every step (logits, labels, the epoch, a second view); keyword-only
arguments are settings. `loss(name, **settings)` wraps a function in a module that reduces.
"""

from spml.losses.annotator import annotator_choice
from spml.losses.asymmetric import (
    asymmetric,
    focal,
    leveraged_asymmetric,
    leveraged_asymmetric_with_disambiguation,
)
from spml.losses.cole import (
    assume_negative,
    expected_positive,
    ignore_unobserved,
    pairwise_ranking,
    smoothed_assume_negative,
    smoothed_bce,
    weak_assume_negative,
)
from spml.losses.contrastive import label_aware_consistency, pseudo_label_consistency
from spml.losses.large import large_loss_rejection, large_loss_temporary_correction
from spml.losses.module import Loss, loss
from spml.losses.names import LOSSES
from spml.losses.robust import RobustSchedule, generalised_robust, hill, self_paced_correction
from spml.losses.terms import entropy, logit
from spml.losses.zhou import (
    down_weighted,
    entropy_maximisation,
    entropy_maximisation_with_soft_labels,
    entropy_minimisation,
    l1_regularised,
    l2_regularised,
    negative_smoothed,
)

__all__ = [
    "LOSSES",
    "Loss",
    "RobustSchedule",
    "annotator_choice",
    "assume_negative",
    "asymmetric",
    "down_weighted",
    "entropy",
    "entropy_maximisation",
    "entropy_maximisation_with_soft_labels",
    "entropy_minimisation",
    "expected_positive",
    "focal",
    "generalised_robust",
    "hill",
    "ignore_unobserved",
    "l1_regularised",
    "l2_regularised",
    "label_aware_consistency",
    "large_loss_rejection",
    "large_loss_temporary_correction",
    "leveraged_asymmetric",
    "leveraged_asymmetric_with_disambiguation",
    "logit",
    "loss",
    "negative_smoothed",
    "pairwise_ranking",
    "pseudo_label_consistency",
    "self_paced_correction",
    "smoothed_assume_negative",
    "smoothed_bce",
    "weak_assume_negative",
]
