"""The scikit-learn estimator: scikit-learn's own checks, forms of y, pipelines and grid search."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.special import softmax
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_classifiers_train,
    check_decision_proba_consistency,
    check_estimator,
)

from spml.errors import InputError
from spml.estimator import SinglePositiveClassifier
from spml.labels import Labels
from spml.metrics import mean_average_precision
from spml.training.experiment import Experiment
from spml.training.linear import train_heads

NOT_EXCLUSIVE = "labels do not exclude each other; each has its own probability"
EXPECTED_FAILURES = {
    "check_classifiers_train": f"expects that probabilities of a row sum to 1, but {NOT_EXCLUSIVE}",
    "check_decision_proba_consistency": (
        f"expects that the second class's probability rises with the decision value, but {NOT_EXCLUSIVE}"
    ),
}


class Exclusive(SinglePositiveClassifier):
    """Probabilities that sum to 1, which scikit-learn assumes if y has one class per row."""

    def predict_proba(self, X: Any) -> Any:
        proba = super().predict_proba(X)
        return softmax(np.log(proba) - np.log1p(-proba), axis=1) if self.exclusive_ else proba


class Data:
    """Rows with one to three labels by a linear rule, one of which is observed."""

    def __init__(self, rows: int = 300, dim: int = 8, classes: int = 5) -> None:
        rng = np.random.default_rng(0)
        scores = (X := rng.normal(size=(rows, dim))) @ rng.normal(size=(dim, classes)) - 1.5
        self.X = X
        self.truth = (scores > 0) | (scores == scores.max(1, keepdims=True))
        self.y = np.array([rng.choice(np.flatnonzero(row)) for row in self.truth])
        self.one_hot = np.eye(classes, dtype=int)[self.y]
        self.signed = np.where(self.truth, self.one_hot, -(rng.random(self.truth.shape) < 0.3).astype(int))
        self.names = np.array(["ant", "bee", "cow", "dog", "eel"])[self.y]


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


def classifier(**changed: Any) -> SinglePositiveClassifier:
    return SinglePositiveClassifier(
        **({"method": "wan", "epochs": 5, "learning_rate": 1e-2, "random_state": 0} | changed)
    )


def test_scikit_learn_estimator_checks() -> None:
    results = check_estimator(SinglePositiveClassifier(random_state=0), on_skip=None, on_fail=None)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert failed.keys() == EXPECTED_FAILURES.keys(), failed
    assert sum(result["status"] == "passed" for result in results) > 50


@pytest.mark.parametrize("check", [check_classifiers_train, check_decision_proba_consistency])
def test_expected_failures_have_the_stated_reason(check: Any) -> None:
    """The check passes if probabilities are made exclusive and nothing else is changed."""
    with pytest.raises(AssertionError):
        check("SinglePositiveClassifier", SinglePositiveClassifier(random_state=0))
    check("Exclusive", Exclusive(random_state=0))


def test_fit_equals_train_heads(data: Data) -> None:
    fitted = classifier().fit(data.X, data.y)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    labels = Labels.from_indices(data.y, list("abcde"))
    (head,) = train_heads(data.X, labels, [Experiment.linear("wan", {}, 1e-2, 16, seed, epochs=5)], progress=False)
    np.testing.assert_allclose(fitted.coef_, head.weight.T, atol=1e-6)
    np.testing.assert_allclose(fitted.decision_function(data.X), head.score(data.X), atol=1e-4)


def test_all_forms_of_y_give_the_same_classifier(data: Data) -> None:
    by_index = classifier().fit(data.X, data.y)
    by_name = classifier().fit(data.X, data.names)
    by_matrix = classifier().fit(data.X, data.one_hot)
    by_sparse_matrix = classifier().fit(data.X, scipy.sparse.csr_array(data.one_hot))
    for other in (by_name, by_matrix, by_sparse_matrix):
        np.testing.assert_array_equal(by_index.coef_, other.coef_)
    assert by_name.classes_.tolist() == ["ant", "bee", "cow", "dog", "eel"]
    best = by_index.predict(data.X)
    assert best.shape == (300,)
    np.testing.assert_array_equal(by_name.predict(data.X), by_name.classes_[best])
    labels = by_matrix.predict(data.X)
    np.testing.assert_array_equal(labels, by_matrix.predict_proba(data.X) >= 0.5)
    np.testing.assert_array_equal(labels, by_index.predict_labels(data.X))
    np.testing.assert_array_equal(by_index.predict_labels(data.X, 0.9), by_index.predict_proba(data.X) >= 0.9)


def test_verified_negatives_are_used_and_never_recovered(data: Data) -> None:
    without = classifier().fit(data.X, data.one_hot)
    fitted = classifier().fit(data.X, data.signed)
    assert np.abs(fitted.coef_ - without.coef_).max() > 0.01
    recovered = fitted.recovered_labels_
    assert recovered[data.signed > 0].all()
    assert not recovered[data.signed < 0].any()
    unknown = data.signed == 0
    np.testing.assert_array_equal(recovered[unknown], fitted.predict(data.X)[unknown] == 1)
    assert (without.predict(data.X)[data.signed < 0] == 1).any()  # otherwise this test shows nothing


def test_missing_labels_are_recovered(data: Data) -> None:
    fitted = classifier(epochs=30).fit(data.X, data.y)
    missing = data.truth & (data.one_hot == 0)
    found = fitted.recovered_labels_ & (data.one_hot == 0)
    assert (fitted.recovered_labels_ >= (data.one_hot == 1)).all()
    precision, recall = (found & missing).sum() / found.sum(), (found & missing).sum() / missing.sum()
    chance = missing.sum() / (data.one_hot == 0).sum()
    assert precision > 3 * chance, (precision, chance)
    assert recall > 0.7, recall


def test_score_is_accuracy_or_mean_average_precision(data: Data) -> None:
    by_index = classifier().fit(data.X, data.y)
    assert by_index.score(data.X, data.y) == np.mean(by_index.predict(data.X) == data.y) > 0.5
    by_matrix = classifier().fit(data.X, data.one_hot)
    logits = by_matrix.decision_function(data.X)
    assert by_matrix.score(data.X, data.truth) == mean_average_precision(logits, data.truth)
    partly = mean_average_precision(logits, data.signed > 0, mask=data.signed != 0)
    assert by_matrix.score(data.X, data.signed) == partly


def test_auto_learning_rate_scales_with_the_features(data: Data) -> None:
    small, large = (classifier(learning_rate="auto").fit(scale * data.X, data.y) for scale in (1.0, 1000.0))
    assert small.learning_rate_ == pytest.approx(0.2 / np.abs(data.X).sum(1).mean())
    assert large.learning_rate_ == pytest.approx(small.learning_rate_ / 1000)
    sparse = classifier(learning_rate="auto").fit(scipy.sparse.csr_array(data.X), data.y)
    assert sparse.learning_rate_ == pytest.approx(small.learning_rate_)
    assert classifier(learning_rate="auto").fit(np.zeros((4, 2)), [0, 1, 0, 1]).learning_rate_ == 1e-3
    assert classifier(learning_rate=0.5).fit(data.X, data.y).learning_rate_ == 0.5


def test_sparse_features_equal_dense_features(data: Data) -> None:
    X = np.where(np.abs(data.X) > 0.7, data.X, 0.0)
    dense, sparse = classifier().fit(X, data.y), classifier().fit(scipy.sparse.csr_array(X), data.y)
    np.testing.assert_allclose(dense.coef_, sparse.coef_, atol=1e-6)
    np.testing.assert_allclose(dense.predict_proba(X), sparse.predict_proba(scipy.sparse.coo_array(X)), atol=1e-6)


def test_two_classes(data: Data) -> None:
    y = np.where(data.X[:, 0] > 0, "yes", "no")
    fitted = classifier().fit(data.X, y)
    decision = fitted.decision_function(data.X)
    assert decision.shape == (300,)
    np.testing.assert_array_equal(fitted.predict(data.X), np.where(decision > 0, "yes", "no"))
    assert fitted.predict_proba(data.X).shape == (300, 2)
    assert fitted.score(data.X, y) > 0.9


@pytest.mark.parametrize("kind", ["y", "one_hot"])
def test_pipeline_and_grid_search(data: Data, kind: str) -> None:
    y = getattr(data, kind)
    scaled = make_pipeline(StandardScaler(), classifier(epochs=3))
    grid = {
        "singlepositiveclassifier__method": ["an", "role"],
        "singlepositiveclassifier__k": [1.7],
        "singlepositiveclassifier__learning_rate": [1e-6, 1e-2],
    }
    search = GridSearchCV(scaled, grid, cv=2).fit(data.X * 100 + 5, y)
    assert search.best_params_["singlepositiveclassifier__learning_rate"] == 1e-2
    assert search.best_score_ > 0.15 + search.cv_results_["mean_test_score"].min()
    again = clone(search.best_estimator_).fit(data.X * 100 + 5, y)
    np.testing.assert_array_equal(again.predict(data.X), search.predict(data.X))


def test_held_out_rows_select_the_epoch(data: Data) -> None:
    fitted = classifier(validation_fraction=0.2, epochs=6).fit(data.X, data.y)
    assert len(fitted.validation_scores_) == 6
    assert fitted.best_epoch_ == 1 + int(np.argmax(fitted.validation_scores_))
    assert fitted.recovered_labels_.shape == data.truth.shape
    # Held-out rows are not trained on: their features do not change the result of one epoch.
    order = np.random.RandomState(0)
    order.randint(2**31 - 1)
    held = order.permutation(300)[:60]
    X = data.X.copy()
    X[held] += 3.0
    once = classifier(validation_fraction=0.2, epochs=1)
    np.testing.assert_array_equal(clone(once).fit(X, data.y).coef_, clone(once).fit(data.X, data.y).coef_)
    stopped = classifier(validation_fraction=0.2, epochs=40, early_stopping="first-drop").fit(data.X, data.y)
    assert len(stopped.validation_scores_) == stopped.best_epoch_ + 1 < 40


def test_matrix_without_zeros_gives_full_labels(data: Data) -> None:
    full = np.where(data.truth, 1, -1)
    fitted = classifier(method="bce", epochs=20).fit(data.X, full)
    assert fitted.score(data.X, full) > classifier(method="an", epochs=20).fit(data.X, data.one_hot).score(data.X, full)
    np.testing.assert_array_equal(fitted.recovered_labels_, data.truth)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "epr"}, "'epr' needs k"),
        ({"method": "nothing"}, "No method named 'nothing'"),
        ({"method": "lac"}, "'lac' needs the head 'label-wise'"),
        ({"method": "bce"}, "'bce' needs full labels"),
        ({"settings": {"colour": 1}}, "'wan' has no setting 'colour'"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0"),
        ({"validation_fraction": 1.0}, "validation_fraction must be"),
        ({"early_stopping": 2}, "early_stopping needs validation"),
    ],
)
def test_invalid_parameters_raise(data: Data, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        classifier(**changed).fit(data.X, data.y)


def test_matrix_with_other_values_raises(data: Data) -> None:
    y = data.one_hot.copy()
    y[7, 2] = 3
    with pytest.raises(InputError, match="row 7, column 2 of y is 3"):
        classifier().fit(data.X, y)
    with pytest.raises(InputError, match="row 7, column 2 of y is 3"):
        classifier().fit(data.X, data.one_hot).score(data.X, y)
