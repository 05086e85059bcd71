"""The scikit-learn estimator."""

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state, get_tags, indexable
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data

from spml.calibration import calibrate, expected_f1_thresholds
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.estimator.base import BaseModel, fit_base
from spml.estimator.scoring import observed_label_score
from spml.estimator.targets import read_targets
from spml.labels import Labels
from spml.models.feature_model import FeatureModel, LinearLearner
from spml.training.learners import Candidate, fit_features

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


class SinglePositiveClassifier(TransformerMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Multi-label classifier trained from one observed label per row.

    Every row has one or more labels, but y names only one of them. `predict_proba` estimates for every class the
    probability that the row has the label. Labels do not exclude each other, so the probabilities of a row do not sum
    to 1. There is nothing to tune: features are standardised, the strength of regularisation and the kind of model are
    chosen by the likelihood of held-out observed labels, and the probabilities are calibrated on the same rows.

    Parameters
    ----------
    method : str
        Training method of the linear model; `spml methods` lists them.
    base : {"auto", "linear", "trees"} or scikit-learn classifier
        The kind of model. "auto" chooses between linear models and trees, or combines them. A classifier with
        `predict_proba`, such as a forest, boosting or a pipeline, is trained to predict the observed label; X is
        passed to it as it is, so that it may have strings or missing values if the classifier can use them.
    settings : mapping, optional
        Settings of the method that differ from its defaults.
    k : float, optional
        Average number of labels per row, if you know it. Default: estimated (`k_`).
    threshold : float or "f1"
        Probability from which a label counts as present. "f1" chooses the value with the best expected F1 per class.
    random_state : int, RandomState instance or None
        Determines the folds of the cross-validation and all random numbers of the models.
    device : str
        "cpu" or "cuda".
    verbose : bool
        Print which models were compared.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, in the order of the columns: the sorted values of y, or the columns of a matrix.
    k_ : KEstimate
        Estimated number of labels per row, `k_.k`, with a 90% interval from `k_.low` to `k_.high`.
    recovered_proba_ : ndarray of shape (n_samples, n_classes)
        Probabilities of the labels of the training rows, by models that were not trained on the row. An observed label
        has probability 1, a label known to be absent 0.
    recovered_labels_ : ndarray of shape (n_samples, n_classes), bool
        Labels of the training rows whose probability reaches the threshold, including all observed ones.
    thresholds_ : ndarray of shape (n_classes,)
        The threshold of every class.
    coef_ : ndarray of shape (n_classes, n_features)
        Weights of a linear model for the features as given, only if the model is linear: softmax or sigmoid scores
        before calibration, depending on the method.
    intercept_ : ndarray of shape (n_classes,)
        Its intercepts.
    candidates_ : tuple of Candidate
        The models that were compared, with the held-out log-likelihood of each.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X had string names for all of them.

    See Also
    --------
    spml.estimator.observed_label_score : The score, for any classifier.

    Notes
    -----
    `score` is the mean log-probability of the observed labels, so that `GridSearchCV` compares classifiers as they
    should be compared. Accuracy and average precision against single labels prefer classifiers that predict the
    observed label and no other.

    `partial_fit` is not supported: regularisation and calibration are chosen on all rows.

    Examples
    --------
    >>> import numpy as np
    >>> import spml
    >>> draw = np.random.default_rng(0)
    >>> truth = draw.random((200, 3)) < 0.5
    >>> truth[np.arange(200), draw.integers(0, 3, 200)] = True  # every row has at least one label
    >>> X = truth + 0.1 * draw.normal(size=truth.shape)
    >>> y = [draw.choice(np.flatnonzero(row)) for row in truth]  # of which one is observed
    >>> classifier = spml.SinglePositiveClassifier(random_state=0).fit(X, y)
    >>> classifier.predict_proba(X).shape
    (200, 3)
    >>> round(spml.metrics.mean_average_precision(classifier.predict_proba(X), truth), 2)
    1.0
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        base: Any = "auto",
        settings: Mapping[str, Any] | None = None,
        k: float | None = None,
        threshold: float | Literal["f1"] = 0.5,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.base = base
        self.settings = settings
        self.k = k
        self.threshold = threshold
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        if self._external and not isinstance(self.base, type) and hasattr(self.base, "fit"):
            tags.input_tags = get_tags(self.base).input_tags
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _external(self) -> bool:
        """Whether the base is a scikit-learn classifier."""
        return not isinstance(self.base, str)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_samples, n_features)
            If `base` is a scikit-learn classifier: anything that it accepts.
        y : array, Series or DataFrame of shape (n_samples,) or (n_samples, n_classes)
            One observed class per row, by any value (number or name). Rows without a label have -1 among numbers, as in
            scikit-learn's semi-supervised classifiers, or None, NaN or "" among names. If -1 and one other number are
            the only values, they are two classes. To have -1 as one of more classes, use names: `y.astype(str)`.

            Or a matrix: 1 for present, 0 for unknown and, if verified, -1 for absent; the columns of a DataFrame
            name the classes. A matrix with one column is one class per row, as everywhere in scikit-learn.
        sample_weight : array of shape (n_samples,), optional
            Weights of the rows. Rows of weight 0 are only predicted. The calibration uses the other rows unweighted.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a parameter or y is invalid.
        ValueError
            If X is invalid.
        """
        self._check_parameters()
        X = self._checked(X, reset=True)
        targets = read_targets(y)
        check_consistent_length(X, targets.labels)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self.classes_, self.exclusive_ = targets.classes, targets.exclusive
        labels = _without_labels(targets.labels, weight == 0)
        held_out, independent = self._fit_model(X, labels, weight)
        known = targets.labels.dense()
        used = np.flatnonzero((labels.dense() != 0).any(axis=1))
        self._calibration = calibrate(
            independent[used], known[used], k=self.k, at_least_one=not (known[used] < 0).all(axis=1).any()
        )
        self.k_ = self._calibration.k
        self.recovered_proba_ = self._calibration.confidences(independent, known)
        unlabelled = ~(known != 0).any(axis=1)
        if unlabelled.any():
            self.recovered_proba_[unlabelled] = self._calibrated(held_out[unlabelled])
        if self.threshold == "f1":
            self.thresholds_: Float64 = expected_f1_thresholds(self.recovered_proba_)
        else:
            self.thresholds_ = np.full(len(self.classes_), float(self.threshold))
        return self

    def _calibrated(self, presence: npt.NDArray[Any]) -> Float64:
        """Probabilities of rows without known labels; the presence from spml's own models is calibrated already."""
        if isinstance(self._model, BaseModel):
            presence = self._calibration.confidences(presence)
        return np.asarray(presence, np.float64)

    def _check_parameters(self) -> None:
        if not isinstance(self.method, str):
            raise InputError(f"method must be the name of a method, not of type {type(self.method).__name__}")
        if not isinstance(self.settings, Mapping | None):
            raise InputError(f"settings must be a dictionary or None, not of type {type(self.settings).__name__}")
        if self.k is not None and not _is_number(self.k):
            raise InputError(f"k must be a number or None, not of type {type(self.k).__name__}")
        named = isinstance(self.threshold, str) and self.threshold == "f1"
        if not named and not (_is_number(self.threshold) and 0 < self.threshold <= 1):
            raise InputError(f"threshold must be 'f1' or a number above 0 and at most 1, not {self.threshold!r}")
        if not self._external and self.base not in ("auto", "linear", "trees"):
            raise InputError(f"base must be 'auto', 'linear', 'trees' or a scikit-learn classifier, not {self.base!r}")
        if self._external and (self.method != "auto" or self.settings):
            given = f"method={self.method!r}" if self.method != "auto" else "settings"
            raise InputError(f"{given} applies to base='linear' only: a scikit-learn classifier has its own loss")

    def _checked(self, X: Any, reset: bool) -> Any:
        """X as the model expects it; a scikit-learn classifier checks it itself."""
        if not self._external:
            _check_values(X)
            return validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=reset)
        (X,) = indexable(X)
        if getattr(X, "ndim", 2) == 2:
            validate_data(self, X, skip_check_array=True, reset=reset)
        return X

    def _fit_model(self, X: Any, labels: Labels, weight: Float64) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Train the model; return held-out predictions of all rows, and those that the calibration needs."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self._external:
            of_base = fit_base(self.base, X, labels, weight, seed)
            self._model: FeatureModel | BaseModel = of_base.model
            self.candidates_: tuple[Candidate, ...] = (of_base.candidate,)
            return of_base.held_out, of_base.held_out
        fit = fit_features(
            FeatureStore(X),
            labels,
            method=self.method,
            settings=self.settings,
            base=self.base,
            k=self.k,
            sample_weight=weight if len(np.unique(weight[weight > 0])) > 1 else None,
            seed=seed,
            device=self.device,
            progress=print if self.verbose else None,
        )
        self._model, self.candidates_ = fit.model, fit.candidates
        if self.verbose:
            print(fit.summary)
        return fit.held_out, fit.independent

    @property
    def coef_(self) -> Float64:
        """Weights of a linear model for the features as given."""
        return self._linear()[0]

    @property
    def intercept_(self) -> Float64:
        """Intercepts of a linear model for the features as given."""
        return self._linear()[1]

    def _linear(self) -> tuple[Float64, Float64]:
        """Weights and intercepts, without the scaling; a model that is not linear has no such attributes."""
        check_is_fitted(self)
        learners = list(self._model.learners) if isinstance(self._model, FeatureModel) else []
        if len(learners) != 1 or not isinstance(learners[0], LinearLearner):
            raise AttributeError("the model is not linear: use base='linear' to get coef_ and intercept_")
        weight, bias, mean, deviation = (
            getattr(learners[0], name).double().cpu().numpy() for name in ("weight", "bias", "mean", "deviation")
        )
        coef: Float64 = weight / deviation
        return coef, bias - coef @ mean

    @property
    def recovered_labels_(self) -> Bool:
        """Labels of the training rows whose probability reaches the threshold."""
        check_is_fitted(self)
        labels: Bool = self.recovered_proba_ >= self.thresholds_
        return labels

    def predict_proba(self, X: Any) -> Float64:
        """Predict the probability that a row has a label, for every class.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows do not sum to 1: a row may have many labels.
        """
        check_is_fitted(self)
        return self._calibrated(self._model.presence(self._checked(X, reset=False)))

    def predict_labels(self, X: Any) -> npt.NDArray[np.int64]:
        """Predict all labels of a row.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            1 where the probability reaches the threshold, otherwise 0.
        """
        return (self.predict_proba(X) >= self.thresholds_).astype(np.int64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict in the form of y.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            If y had one class per row, the most probable class, as scikit-learn expects (`predict_labels` gives all
            labels). If y was a matrix, all labels as 1 and 0.
        """
        check_is_fitted(self)
        if not self.exclusive_:
            return self.predict_labels(X)
        best: npt.NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return best

    def transform(self, X: Any) -> Float64:
        """Compute `predict_proba` as features for another estimator, or as a DataFrame.

        After `set_output(transform="pandas")`, the result is a DataFrame with the index of X and the classes as
        columns.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray or DataFrame of shape (n_samples, n_classes)
        """
        return self.predict_proba(X)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Return the names of the columns of `transform`: the classes.

        Parameters
        ----------
        input_features : ignored
            For the signature that scikit-learn expects.

        Returns
        -------
        ndarray of str
        """
        check_is_fitted(self)
        return np.array([str(name) for name in self.classes_], dtype=object)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the mean log-probability of the observed labels; higher is better.

        It is not accuracy: `spml.estimator.observed_label_score` explains the difference.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_classes)
            Observed labels, in the form of `fit`. Unlabelled rows do not count.
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        float
        """
        return observed_label_score(self, X, y, sample_weight)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _check_values(X: Any) -> None:
    """Raise `InputError` for features that NumPy would read as other numbers: masked ones, and dates."""
    if np.ma.is_masked(X):
        raise InputError("some features are masked: replace them first, for example with `filled`")
    if isinstance(X, torch.Tensor) and (X.is_meta or X.layout != torch.strided):
        raise InputError("X is a tensor that is sparse or has no values: pass a dense one")
    types = getattr(X, "dtypes", None) if hasattr(X, "columns") else [getattr(X, "dtype", None)]
    if any(getattr(kind, "kind", "") in ("M", "m") for kind in ([] if types is None else types)):
        raise InputError("X contains dates or durations: pass numbers")


def _without_labels(labels: Labels, rows: Bool) -> Labels:
    """The table with the given rows unlabelled."""
    if not rows.any():
        return labels
    table = labels.dense()
    table[rows] = 0
    return Labels.from_matrix(table)
