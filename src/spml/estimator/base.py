"""Any scikit-learn classifier, trained on the observed labels by cross-fitting."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from spml.errors import InputError
from spml.labels import Labels
from spml.training.learners import Candidate

FOLDS = 5
_LEAST_PRIOR = 1e-4  # so that no probability is 0: the logarithm of an observed label's must be finite

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BaseModel:
    """A fitted classifier whose probabilities are mixed with the frequencies of the observed labels.

    Attributes
    ----------
    classifier : fitted classifier
        Its classes are column numbers; a class that it has not seen has probability 0.
    frequencies : array of shape (n_classes,)
        Of the observed labels.
    share : float
        Share of the frequencies in the mixture.
    """

    classifier: Any
    frequencies: Float64
    share: float

    def presence(self, X: Any) -> Float64:
        """P(label is the observed one | x), of shape (n, n_classes)."""
        return self.mixed(_probabilities(self.classifier, X, len(self.frequencies)))

    def mixed(self, probabilities: Float64) -> Float64:
        return (1 - self.share) * probabilities + self.share * self.frequencies


@dataclass(frozen=True)
class BaseFit:
    """Result of `fit_base`: the model, and predictions for the training rows by models that did not see them."""

    model: BaseModel
    held_out: Float64
    candidate: Candidate


def fit_base(base: Any, X: Any, labels: Labels, sample_weight: Float64, seed: int) -> BaseFit:
    """Train a classifier to predict the observed label, on all rows and cross-fitted.

    Parameters
    ----------
    base : scikit-learn classifier with `predict_proba`
        It is cloned; where its random states are None, they are set.
    X : array, sparse matrix or DataFrame
        Passed to the classifier as it is.
    labels : Labels
        Rows without a positive are predicted but not trained on. A row with several positives is used once for each.
    sample_weight : array of shape (n_samples,)
    seed : int

    Returns
    -------
    BaseFit

    Raises
    ------
    InputError
        If `base` is not a classifier with `predict_proba`, cannot use weights, or fewer than two rows have a label.
    """
    _check_base(base)
    prepared = _with_random_states(base, seed)
    rows, columns = labels.positives()
    entry_weight = sample_weight[rows] / np.bincount(rows, minlength=len(labels))[rows]
    labelled = np.unique(rows)
    if len(labelled) < 2:
        raise InputError("base= needs at least two rows with a label, but y has only one sample with a label")

    def fitted(use: npt.NDArray[np.bool_]) -> Any:
        weight = entry_weight[use]
        options = {} if np.all(weight == weight[0]) else _weight_option(prepared, weight)
        return _fit(clone(prepared), _safe_indexing(X, rows[use]), columns[use], options)

    whole = fitted(np.ones(len(rows), bool))
    frequencies = np.bincount(columns, entry_weight, minlength=labels.num_classes)
    frequencies = (frequencies + 1) / (frequencies + 1).sum()
    held_out = np.empty(labels.shape)
    unlabelled = np.setdiff1d(np.arange(len(labels)), labelled)
    if len(unlabelled):
        held_out[unlabelled] = _probabilities(whole, _safe_indexing(X, unlabelled), labels.num_classes)
    fold = _folds(labelled, labels, seed)
    for number in range(fold.max() + 1):
        part = labelled[fold == number]
        model = fitted(~np.isin(rows, part))
        held_out[part] = _probabilities(model, _safe_indexing(X, part), labels.num_classes)
    share = _best_share(held_out[rows, columns], frequencies[columns], entry_weight)
    model = BaseModel(whole, frequencies, share)
    held_out = model.mixed(held_out)
    likelihood = _by_row(np.log(held_out[rows, columns]), rows, labelled)
    error = float(likelihood.std() / len(likelihood) ** 0.5)
    candidate = Candidate(type(base).__name__, float(likelihood.mean()), error, chosen=True, weight=1.0)
    return BaseFit(model, held_out, candidate)


def _check_base(base: Any) -> None:
    name = base.__name__ if isinstance(base, type) else type(base).__name__
    if isinstance(base, type):
        raise InputError(f"base is the class {name}: pass an object of it, {name}()")
    if not hasattr(base, "fit"):
        raise InputError(f"base must be 'auto', 'linear', 'trees' or a scikit-learn classifier, not {base!r}")
    if not hasattr(base, "predict_proba"):
        raise InputError(f"base={name} has no predict_proba: wrap it in sklearn.calibration.CalibratedClassifierCV")


def _with_random_states(base: Any, seed: int) -> Any:
    """A clone with a fixed seed where a random state is None, so that our random state determines everything."""
    prepared = clone(base)
    states = [name for name in prepared.get_params() if name == "random_state" or name.endswith("__random_state")]
    return prepared.set_params(**{name: seed for name in states if prepared.get_params()[name] is None})


def _weight_option(base: Any, weight: Float64) -> dict[str, Float64]:
    """The argument of `fit` that holds the weights; those of a pipeline belong to its last step."""
    name, last = "sample_weight", base
    while isinstance(last, Pipeline):
        step, last = last.steps[-1]
        name = f"{step}__{name}"
    if not has_fit_parameter(last, "sample_weight"):
        raise InputError(f"base={type(last).__name__} does not accept sample_weight: use another base or no weights")
    return {name: weight}


class _OneClass:
    """Predicts the only class of the rows it was fitted on."""

    def __init__(self, only: int) -> None:
        self.classes_ = np.array([only])

    def predict_proba(self, X: Any) -> Float64:
        return np.ones((X.shape[0] if hasattr(X, "shape") else len(X), 1))


def _fit(classifier: Any, X: Any, y: Int64, options: dict[str, Float64]) -> Any:
    """Fit a classifier; many of them raise an error if there is only one class."""
    return classifier.fit(X, y, **options) if len(np.unique(y)) > 1 else _OneClass(int(y[0]))


def _probabilities(classifier: Any, X: Any, num_classes: int) -> Float64:
    """Probabilities of all classes, 0 for those that the classifier has not seen."""
    out = np.zeros((X.shape[0] if hasattr(X, "shape") else len(X), num_classes))
    out[:, np.asarray(classifier.classes_, np.int64)] = classifier.predict_proba(X)
    return out


def _folds(labelled: Int64, labels: Labels, seed: int) -> Int64:
    """A fold for every labelled row; each class is divided as evenly as its rows allow."""
    rows, columns = labels.positives()
    first = columns[np.searchsorted(rows, labelled)]
    shuffled = np.random.default_rng(seed).permutation(len(labelled))
    order = shuffled[np.argsort(first[shuffled], kind="stable")]
    fold = np.empty(len(labelled), np.int64)
    fold[order] = np.arange(len(labelled)) % min(FOLDS, len(labelled))
    return fold


def _best_share(observed: Float64, frequencies: Float64, weight: Float64) -> float:
    """The share of the frequencies with the best held-out likelihood of the observed labels."""

    def loss(share: float) -> float:
        return -float(np.average(np.log((1 - share) * observed + share * frequencies), weights=weight))

    return float(minimize_scalar(loss, bounds=(_LEAST_PRIOR, 1.0), method="bounded").x)


def _by_row(values: Float64, rows: Int64, labelled: Int64) -> Float64:
    """Means over the observed labels of each row."""
    row_index = np.searchsorted(labelled, rows)
    means: Float64 = np.bincount(row_index, values) / np.bincount(row_index)
    return means
