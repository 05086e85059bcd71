"""A scikit-learn estimator for feature matrices."""

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.metrics import mean_average_precision
from spml.training.experiment import Experiment
from spml.training.linear import FeatureRows, train_heads

Float64 = npt.NDArray[np.float64]


class SinglePositiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear multi-label classifier trained from one observed label per row.

    Labels do not exclude each other: `predict_proba` gives every class its own probability, so the probabilities of a
    row do not sum to 1.

    Parameters
    ----------
    method : str
        Training method; `spml methods` lists them.
    settings : mapping, optional
        Settings of the method that differ from its defaults.
    k : float, optional
        Average number of labels per row, for methods that need it.
    epochs : int
        Passes over the training rows.
    learning_rate : float or "auto"
        Learning rate of Adam. "auto" is 0.2 divided by the mean l1 norm of a row, so that one step changes a logit by
        about 0.2, whatever the number and scale of the features.
    batch_size : int
    threshold : float
        Probability from which a label counts as present.
    validation_fraction : float
        Share of the rows held out to choose the best epoch by mean average precision. Unknown labels of these rows
        count as absent, unless y has verified negatives. With 0, the last epoch is kept.
    early_stopping : int or "first-drop", optional
        Stop after this many epochs without improvement ("first-drop" is 1). Needs held-out rows.
    random_state : int, RandomState instance or None
        Determines initial weights, order of the rows and held-out rows.
    device : str
        "cpu" or "cuda".
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, in the order of the columns.
    coef_ : ndarray of shape (n_classes, n_features)
    intercept_ : ndarray of shape (n_classes,)
    recovered_labels_ : ndarray of shape (n_samples, n_classes), bool
        Labels predicted to be present in the training rows, including all observed ones.
    learning_rate_ : float
        The learning rate used.
    best_epoch_ : int
        The epoch whose weights were kept.
    validation_scores_ : list of float
        Mean average precision on the held-out rows after every epoch.

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
        settings: Mapping[str, Any] | None = None,
        k: float | None = None,
        epochs: int = 25,
        learning_rate: float | Literal["auto"] = "auto",
        batch_size: int = 16,
        threshold: float = 0.5,
        validation_fraction: float = 0.0,
        early_stopping: Literal["first-drop"] | int | None = None,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.settings = settings
        self.k = k
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.threshold = threshold
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_classes)
            One observed class per row, by any value (index or name); or a matrix of 1 (present) and 0 (unknown); or a
            matrix of 1 (present), -1 (verified absent) and 0 (unknown). A matrix with one column is one class per
            row, as everywhere in scikit-learn.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a parameter is invalid, or y holds other values.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32), multi_output=True)
        labels = self._labels(y)
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        self.learning_rate_ = _default_learning_rate(X) if self.learning_rate == "auto" else self.learning_rate
        experiment = Experiment.linear(
            self.method,
            self.settings or {},
            self.learning_rate_,
            self.batch_size,
            seed,
            epochs=self.epochs,
            early_stopping=1 if self.early_stopping == "first-drop" else self.early_stopping,
            k=self.k,
        )
        if not 0 <= self.validation_fraction < 1:
            raise InputError(f"validation_fraction must be at least 0 and below 1, not {self.validation_fraction}")
        held_out = round(self.validation_fraction * len(labels))
        order = random.permutation(len(labels)) if held_out else np.arange(len(labels))
        training, held = order[held_out:], order[:held_out]
        store = FeatureStore(X)
        (result,) = train_heads(
            FeatureRows(store, training),
            labels.subset(training),
            [experiment],
            validation=(FeatureRows(store, held), labels.subset(held)) if held_out else None,
            device=self.device,
            progress=self.verbose,
        )
        # In double precision, the scores of a row do not depend on the other rows of a call.
        self.coef_: Float64 = result.weight.T.double().numpy().copy()
        self.intercept_: Float64 = result.bias.double().numpy()
        self.best_epoch_ = result.best_epoch
        self.validation_scores_ = result.validation
        known = labels.dense()
        self.recovered_labels_: npt.NDArray[np.bool_] = (known > 0) | ((known == 0) & self._present(X))
        return self

    def decision_function(self, X: Any) -> Float64:
        """Compute the logits.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            If y had one of two classes per row: shape (n_samples,), the second class's logit minus the first's.
        """
        logits = self._logits(self._checked(X))
        if self.exclusive_ and logits.shape[1] == 2:
            return np.asarray(logits[:, 1] - logits[:, 0])
        return logits

    def predict_proba(self, X: Any) -> Float64:
        """Predict the probability of every class.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Rows do not sum to 1: a row may have many labels, or none.
        """
        probabilities: Float64 = expit(self._logits(self._checked(X)))
        return probabilities

    def predict_labels(self, X: Any, threshold: float | None = None) -> npt.NDArray[np.int64]:
        """Predict all labels.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        threshold : float, optional
            Probability from which a label counts as present. Default: the estimator's.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            1 for present, 0 for absent.
        """
        return self._present(self._checked(X), threshold).astype(np.int64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict in the form of y.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            If y had one class per row, the most probable class, so that accuracy and everything in scikit-learn that
            expects it works (`predict_labels` gives all labels). If y was a matrix, all labels as 1 and 0.
        """
        X = self._checked(X)
        if self.exclusive_:
            best: npt.NDArray[Any] = self.classes_[self._logits(X).argmax(axis=1)]
            return best
        return self._present(X).astype(np.int64)

    def score(self, X: Any, y: Any) -> float:
        """Evaluate predictions for X.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_classes)

        Returns
        -------
        float
            If the y of `fit` had one class per row: the share of rows whose given class is the most probable one. If
            it was a matrix: mean average precision, where 0 in y means absent, or unknown if y contains -1.
        """
        logits = self._logits(self._checked(X))
        if self.exclusive_:
            return float(np.mean(self.classes_[logits.argmax(axis=1)] == column_or_1d(y)))
        truth = _matrix(y)
        return mean_average_precision(logits, truth > 0, mask=(truth != 0) if (truth < 0).any() else None)

    def _labels(self, y: Any) -> Labels:
        """The labels in y; also sets `exclusive_`: whether y has one class per row."""
        check_classification_targets(y)
        self.exclusive_ = type_of_target(y) in ("binary", "multiclass")
        if self.exclusive_:
            self.classes_, index = np.unique(column_or_1d(y), return_inverse=True)
            return Labels.from_indices(index, map(str, range(len(self.classes_))))
        matrix = _matrix(y)
        self.classes_ = np.arange(matrix.shape[1])
        return Labels.from_matrix(matrix)

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)

    def _logits(self, X: Any) -> Float64:
        logits: Float64 = safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_
        return logits

    def _present(self, X: Any, threshold: float | None = None) -> npt.NDArray[np.bool_]:
        present: npt.NDArray[np.bool_] = expit(self._logits(X)) >= (self.threshold if threshold is None else threshold)
        return present


def _default_learning_rate(X: Any) -> float:
    """0.2 divided by the mean l1 norm of a row, estimated from at most 10,000 rows."""
    size = float(abs(X[:: X.shape[0] // 10_000 + 1]).sum(axis=1).mean())
    return 0.2 / size if size > 0 else 1e-3


def _matrix(y: Any) -> npt.NDArray[Any]:
    """Check that y is a matrix of +1, -1 and 0."""
    matrix: npt.NDArray[Any] = y.toarray() if issparse(y) else check_array(y, dtype=None)
    wrong = np.argwhere(~np.isin(matrix, (-1, 0, 1)))
    if len(wrong):
        row, column = wrong[0]
        raise InputError(
            f"row {row}, column {column} of y is {matrix[row, column]}: a label matrix may hold 1 (present), -1 "
            "(absent) and 0 (unknown)"
        )
    return matrix
