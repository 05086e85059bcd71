"""Metrics of multi-label predictions, computed for all classes at once, with explicit rules for ties and empty classes.

Scores have shape (n_samples, n_classes); higher means more likely. Targets are 1/0 or +1/-1. Inputs are NumPy arrays or
tensors on the same device. NaN, a wrong shape or another coding raises `InputError`.

Examples
--------
>>> import torch
>>> scores = torch.tensor([[0.9, 0.2], [0.8, 0.7], [0.1, 0.6]])
>>> targets = torch.tensor([[1, 0], [0, 1], [0, 1]])
>>> mean_average_precision(scores, targets)
1.0
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
