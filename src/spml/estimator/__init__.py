"""A scikit-learn estimator for tables and feature matrices, and a scorer for observed labels."""

from spml.estimator.classifier import SinglePositiveClassifier
from spml.estimator.scoring import observed_label_score

__all__ = ["SinglePositiveClassifier", "observed_label_score"]
