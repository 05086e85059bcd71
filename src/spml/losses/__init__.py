"""Losses as pure functions of logits and labels: one value per entry, no state, no reduction.

Positional arguments of a function change at every step (logits, labels, the epoch, a second view); keyword-only
arguments are settings. `loss(name, **settings)` wraps a function in a module that reduces.
"""

from spml.losses.annotator import annotator_choice, log_chance_of_naming
from spml.losses.asymmetric import (
    asymmetric,
    focal,
    leveraged_asymmetric,
    leveraged_asymmetric_with_disambiguation,
    negative_leverage_of,
    risk_consistent_full_loss,
    view_consistency,
)
from spml.losses.cole import (
    assume_negative,
    expected_positive,
    expected_positive_regulariser,
    expected_positives,
    ignore_unobserved,
    pairwise_ranking,
    smoothed_assume_negative,
    smoothed_bce,
    weak_assume_negative,
)
from spml.losses.contrastive import confident_entries, label_aware_consistency, pseudo_label_consistency
from spml.losses.large import large_loss_count, large_loss_rejection, large_loss_temporary_correction, largest_unknown
from spml.losses.module import LOSSES, Loss, loss, settings_of
from spml.losses.robust import RobustSchedule, generalised_robust, hill, self_paced_correction
from spml.losses.terms import entropy, focal_negative_term, focal_positive_term, logit, negative_term, positive_term
from spml.losses.zhou import (
    down_weighted,
    entropy_maximisation,
    entropy_maximisation_with_soft_labels,
    entropy_minimisation,
    l1_regularised,
    l1_regulariser,
    l2_regularised,
    l2_regulariser,
    negative_smoothed,
)

__all__ = [
    "LOSSES",
    "Loss",
    "RobustSchedule",
    "annotator_choice",
    "assume_negative",
    "asymmetric",
    "confident_entries",
    "down_weighted",
    "entropy",
    "entropy_maximisation",
    "entropy_maximisation_with_soft_labels",
    "entropy_minimisation",
    "expected_positive",
    "expected_positive_regulariser",
    "expected_positives",
    "focal",
    "focal_negative_term",
    "focal_positive_term",
    "generalised_robust",
    "hill",
    "ignore_unobserved",
    "l1_regularised",
    "l1_regulariser",
    "l2_regularised",
    "l2_regulariser",
    "label_aware_consistency",
    "large_loss_count",
    "large_loss_rejection",
    "large_loss_temporary_correction",
    "largest_unknown",
    "leveraged_asymmetric",
    "leveraged_asymmetric_with_disambiguation",
    "log_chance_of_naming",
    "logit",
    "loss",
    "negative_leverage_of",
    "negative_smoothed",
    "negative_term",
    "pairwise_ranking",
    "positive_term",
    "pseudo_label_consistency",
    "risk_consistent_full_loss",
    "self_paced_correction",
    "settings_of",
    "smoothed_assume_negative",
    "smoothed_bce",
    "view_consistency",
    "weak_assume_negative",
]
