"""A score for observed labels that does not reward predicting only them."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spml.errors import InputError
from spml.estimator.targets import read_targets
from spml.labels.entries import row_blocks
from spml.losses.annotator import log_probability_observed

Float64 = npt.NDArray[np.float64]
_SMALLEST = float(np.finfo(np.float64).eps)  # as in scikit-learn's log_loss


def observed_label_score(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Mean log-probability of the observed labels; higher is better.

    Accuracy asks whether the observed label has the highest probability, and so prefers a classifier that predicts
    nothing else. This score asks how probable the observed label was, if somebody picked it at random among the labels
    that the classifier believes to be present. It needs no full labels and compares any classifiers.

    Parameters
    ----------
    estimator : fitted classifier
        Anything with `predict_proba` and `classes_`, such as a pipeline. Probabilities that sum to 1 are those of
        exclusive classes: the score then equals the negative of scikit-learn's `log_loss`.
    X : array of shape (n_samples, n_features)
    y : array of shape (n_samples,) or (n_samples, n_classes)
        Observed labels, as in `SinglePositiveClassifier.fit`. Unlabelled rows do not count, nor do entries of 0 and -1.
        A row with several observed labels counts as their mean.
    sample_weight : array of shape (n_samples,), optional

    Returns
    -------
    float

    Raises
    ------
    InputError
        If y has no label, or a class that the classifier does not have.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_iris(return_X_y=True)
    >>> scores = cross_val_score(LogisticRegression(max_iter=1000), X, y, scoring=observed_label_score)
    >>> round(float(scores.mean()), 1)
    -0.1
    """
    labels = read_targets(y, estimator.classes_).labels
    rows, columns = labels.positives()
    if not len(rows):
        raise InputError("no row of y has a label, so the predictions cannot be scored")
    present = np.asarray(estimator.predict_proba(X), np.float64)
    if present.shape != labels.shape:
        raise InputError(f"predict_proba returned the shape {present.shape}, but y has the shape {labels.shape}")
    weight = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    weight = weight[rows] / np.bincount(rows, minlength=len(labels))[rows]
    return float(np.average(log_probability_of_choice(present[rows], columns), weights=weight))


def log_probability_of_choice(present: Float64, choice: npt.NDArray[np.int64]) -> Float64:
    """log P(a label is picked) for one label of every row, picked uniformly among those present.

    Parameters
    ----------
    present : array of shape (n, n_classes)
        P(label present | the row has a label). Labels are independent, except that there is at least one.
    choice : array of shape (n,)
        Column of the picked label.

    Returns
    -------
    array of shape (n,)

    Examples
    --------
    >>> np.exp(log_probability_of_choice(np.array([[0.25, 0.75], [1.0, 1.0]]), np.array([1, 0]))).round(3)
    array([0.75, 0.5 ])
    """
    result = np.empty(len(present))
    for block in row_blocks(*present.shape):
        table = np.clip(present[block], _SMALLEST, 1.0)
        independent = torch.from_numpy(table * _probability_of_a_label(table)[:, None])
        picked = np.zeros(table.shape, np.int8)
        index = np.arange(len(table)), choice[block]
        picked[index] = 1
        others = log_probability_observed(torch.logit(independent), torch.from_numpy(picked)).numpy()
        result[block] = np.log(table[index]) + others
        result[block] -= np.log(np.minimum(table.sum(axis=1), 1.0))
    return result


def _probability_of_a_label(present: Float64) -> Float64:
    """s such that independent labels of probability s·q_c have at least one with probability s; 0 if Σq ≤ 1.

    s = 1 − Π(1 − s·q_c). The right side is concave in s, so Newton's method from s = 1 decreases to the root.
    """
    s = np.ones(len(present))
    for _ in range(60):
        absent = np.maximum(1 - s[:, None] * present, _SMALLEST)
        none = absent.prod(axis=1)
        slope = none * (present / absent).sum(axis=1) - 1
        step = np.where(slope < 0, (1 - none - s) / np.minimum(slope, -_SMALLEST), s)
        s = np.clip(s - step, 0.0, 1.0)
    s[present.sum(axis=1) <= 1] = 0.0
    return s
