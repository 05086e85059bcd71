"""scikit-learn's fit and predict over feature matrices."""

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
from spml.train.linear import FeatureRows, HeadSpec, train_heads

Float64 = npt.NDArray[np.float64]


class SinglePositiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear multi-label classifier from one known label a row.

    `fit(X, y)` takes X dense or sparse and y as

    - one class a row, by any value (index, name): the row has it, and may have any others;
    - a matrix of 1 (the row has the class) and 0 (unknown);
    - a matrix of +1 (has it), -1 (verified: has it not) and 0 (unknown).

    A matrix of one column is one class a row, as everywhere in scikit-learn.

    `predict_proba` gives every class its own probability: labels do not exclude each other, so a row's do not sum
    to 1. Where y was one class a row, `predict` answers in kind, with the most probable one, so that accuracy and
    everything in scikit-learn that expects it works; `predict_labels` gives all labels. Where y was a matrix,
    `predict` gives the matrix of labels.

    Parameters
    ----------
    method: a method's name; settings: its settings, where they are not the paper's.
    k: the mean number of labels a row has, for methods that need it.
    epochs, learning_rate, batch_size: of Adam. The learning rate "auto" is 0.2 over the mean sum of a row's absolute
        features, so that a step moves a logit by about 0.2 whatever the features' number and scale; for the 1,280
        pooled features of a network that is about 0.001.
    threshold: the probability from which on a label counts as present.
    validation_fraction: the share of the rows held out to choose the epoch by mean average precision, every label
        that is not known to be present counting as absent unless some are known to be; 0: the last epoch.
    early_stopping: stop after so many epochs without a better one ("first-drop" is 1); needs held-out rows.
    random_state: decides start, order and held-out rows.
    device: "cpu" or "cuda". verbose: show progress.

    Attributes
    ----------
    classes_: the classes, in the order of the columns. coef_ (L, D), intercept_ (L,): the classifier.
    recovered_labels_: (N, L) bool, the labels believed present in the training rows; the observed ones always.
    learning_rate_: the learning rate used. best_epoch_: the epoch that was kept.
    validation_scores_: mean average precision on the held-out rows by epoch.
    """

    def __init__(
        self,
        method: str = "em",
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
        """Train on X (N, D) and what is known of its labels."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32), multi_output=True)
        labels = self._labels(y)
        generator = check_random_state(self.random_state)
        seed = int(generator.randint(2**31 - 1))
        self.learning_rate_ = _usual_rate(X) if self.learning_rate == "auto" else self.learning_rate
        spec = HeadSpec(self.method, self.settings or {}, self.learning_rate_, self.batch_size, seed)
        if not 0 <= self.validation_fraction < 1:
            raise InputError(f"validation_fraction must be 0 or more and below 1, not {self.validation_fraction}")
        held_out = round(self.validation_fraction * len(labels))
        order = generator.permutation(len(labels)) if held_out else np.arange(len(labels))
        training, held = order[held_out:], order[:held_out]
        store = FeatureStore(X)
        (result,) = train_heads(
            FeatureRows(store, training),
            labels.subset(training),
            [spec],
            epochs=self.epochs,
            validation=(FeatureRows(store, held), labels.subset(held)) if held_out else None,
            k=self.k,
            device=self.device,
            early_stopping=self.early_stopping,
            progress=self.verbose,
        )
        # In double precision a row's scores do not depend on the rows beside it.
        self.coef_: Float64 = result.weight.T.double().numpy().copy()
        self.intercept_: Float64 = result.bias.double().numpy()
        self.best_epoch_ = result.best_epoch
        self.validation_scores_ = result.validation
        known = labels.dense()
        self.recovered_labels_: npt.NDArray[np.bool_] = (known > 0) | ((known == 0) & self._present(X))
        return self

    def decision_function(self, X: Any) -> Float64:
        """Logits (n, L). Of two classes that y gave one a row: that of the second less that of the first, (n,)."""
        logits = self._logits(self._checked(X))
        if self.exclusive_ and logits.shape[1] == 2:
            return np.asarray(logits[:, 1] - logits[:, 0])
        return logits

    def predict_proba(self, X: Any) -> Float64:
        """The probability of every class, (n, L). Rows do not sum to 1: a row may have many labels, or none."""
        probabilities: Float64 = expit(self._logits(self._checked(X)))
        return probabilities

    def predict_labels(self, X: Any, threshold: float | None = None) -> npt.NDArray[np.int64]:
        """Every label whose probability reaches the threshold: (n, L) of 1 and 0."""
        return self._present(self._checked(X), threshold).astype(np.int64)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of every row, (n,), or, where y was a matrix, all labels as 1 and 0, (n, L)."""
        X = self._checked(X)
        if self.exclusive_:
            best: npt.NDArray[Any] = self.classes_[self._logits(X).argmax(axis=1)]
            return best
        return self._present(X).astype(np.int64)

    def score(self, X: Any, y: Any) -> float:
        """How well X is classified.

        Where y was one class a row: how often the given class is the most probable one. Where y was a matrix: mean
        average precision against y, in which 0 means absent, or unknown and left out if there is any -1.
        """
        logits = self._logits(self._checked(X))
        if self.exclusive_:
            return float(np.mean(self.classes_[logits.argmax(axis=1)] == column_or_1d(y)))
        truth = _matrix(y)
        return mean_average_precision(logits, truth > 0, mask=(truth != 0) if (truth < 0).any() else None)

    def _labels(self, y: Any) -> Labels:
        """What y says, and whether it says one class a row."""
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


def _usual_rate(X: Any) -> float:
    """0.2 over the mean l1 norm of a row, by at most 10,000 of them."""
    size = float(abs(X[:: X.shape[0] // 10_000 + 1]).sum(axis=1).mean())
    return 0.2 / size if size > 0 else 1e-3


def _matrix(y: Any) -> npt.NDArray[Any]:
    """A matrix of labels in +1, -1 and 0."""
    matrix: npt.NDArray[Any] = y.toarray() if issparse(y) else check_array(y, dtype=None)
    wrong = np.argwhere(~np.isin(matrix, (-1, 0, 1)))
    if len(wrong):
        row, column = wrong[0]
        raise InputError(
            f"row {row}, column {column} of y is {matrix[row, column]}: a matrix of labels holds 1 (present), "
            "-1 (absent) and 0 (unknown)"
        )
    return matrix
