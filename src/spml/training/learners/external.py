"""Any scikit-learn classifier as a learner of the observed labels, cross-fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.models.feature_model import ExternalLearner, external_scores

Int64 = npt.NDArray[np.int64]


def fit_external(
    features: FeatureStore,
    rows: Int64,
    label: Int64,
    targets: Tensor,
    classifier: Any,
    fold: Int64,
    weight: npt.NDArray[np.float64] | None,
) -> tuple[ExternalLearner, Tensor]:
    """The classifier trained on all rows, and the held-out scores (n, L) of copies trained without one fold each."""
    from sklearn.base import clone
    from sklearn.utils.validation import has_fit_parameter

    name = type(classifier).__name__
    if not hasattr(classifier, "fit") or not hasattr(classifier, "predict_proba"):
        raise InputError(f"base: {name} has no fit and predict_proba; use a classifier that predicts probabilities")
    if weight is not None and not has_fit_parameter(classifier, "sample_weight"):
        raise InputError(f"base: {name} does not support sample_weight")
    matrix = features.block(rows)
    matrix = matrix if features.is_sparse else matrix.cpu().numpy()
    classes = targets.shape[1]

    def fitted(part: Int64) -> Any:
        extra = {} if weight is None else {"sample_weight": weight[part]}
        return clone(classifier).fit(matrix[part], label[part], **extra)

    scores = np.zeros((len(rows), classes))
    for f in np.unique(fold):
        outside = np.flatnonzero(fold == f)
        inside = np.flatnonzero(fold != f)
        if not len(inside):  # a single row: nothing is known without it
            continue
        copy = fitted(inside)
        scores[outside] = external_scores(copy.predict_proba(matrix[outside]), copy.classes_, classes)
    return ExternalLearner(fitted(np.arange(len(rows))), classes), torch.from_numpy(scores)
