"""Classifiers: a backbone (timm, pip-installed weights, built in, or your own module) and a head.

Examples
--------
>>> from spml.models import build_classifier
>>> classifier = build_classifier("small", num_classes=10, head="cam", image_size=64)
>>> classifier.description["head_settings"]
{'dropout': 0.0, 'boost': 1.0, 'peak': 0.0}
"""

from spml.models.classifier import Classifier, LogitsOnly, build_classifier, classifier_from_description
from spml.models.heads import Head, Outputs

__all__ = ["Classifier", "Head", "LogitsOnly", "Outputs", "build_classifier", "classifier_from_description"]
