"""Measures of a multi-label prediction, batched over classes, with a stated rule for ties and empty classes.

Everywhere scores are (N, L), larger meaning more positive; the truth is coded 1/0 or +1/-1; inputs are numpy
arrays or tensors, both on one device. NaN, a wrong shape or another coding is an `InputError`.
"""

from spml.metrics.decisions import PredictiveValues, PseudoLabelPrecision, f1, predictive_values, pseudo_label_precision
from spml.metrics.distributions import unobserved_positive_histogram, wasserstein_distance_per_class
from spml.metrics.inputs import mean_over_classes
from spml.metrics.ranking import average_precision, mean_average_precision, precision_at, recall_at

__all__ = [
    "PredictiveValues",
    "PseudoLabelPrecision",
    "average_precision",
    "f1",
    "mean_average_precision",
    "mean_over_classes",
    "precision_at",
    "predictive_values",
    "pseudo_label_precision",
    "recall_at",
    "unobserved_positive_histogram",
    "wasserstein_distance_per_class",
]
