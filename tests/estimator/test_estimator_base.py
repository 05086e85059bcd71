"""Any scikit-learn classifier as base: cross-fitting, weights, all kinds of X, and errors."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from spml.errors import InputError
from spml.estimator import SinglePositiveClassifier
from spml.estimator.base import FOLDS, fit_base
from spml.labels import Labels
from spml.metrics import mean_average_precision
from support.single_labels import SingleLabels


@pytest.fixture(scope="module")
def data() -> SingleLabels:
    return SingleLabels()


def classifier(base: Any, **changed: Any) -> SinglePositiveClassifier:
    return SinglePositiveClassifier(**({"base": base, "random_state": 0} | changed))


def test_held_out_predictions_do_not_use_the_label_of_the_row() -> None:
    """A tree that memorises random labels predicts other rows at chance level."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 2)), rng.integers(0, 4, 400)
    labels = Labels.from_indices(y, list("abcd"))
    fit = fit_base(DecisionTreeClassifier(), X, labels, np.ones(400), seed=0)
    assert (fit.model.classifier.predict(X) == y).all()
    assert fit.model.share > 0.9  # the classifier is useless, so the frequencies are used
    assert np.exp(fit.candidate.log_likelihood) == pytest.approx(0.25, abs=0.02)


class Recorder(LogisticRegression):
    """Logistic regression that keeps the numbers of the rows of every fit; X has them as the last column."""

    fits: list[set[int]] = []  # noqa: RUF012

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "Recorder":
        self.fits.append(set(X[:, -1].astype(int)))
        return super().fit(X, y, sample_weight)


def test_every_fold_holds_out_each_row_once(data: SingleLabels) -> None:
    Recorder.fits.clear()
    X = np.column_stack([data.X, np.arange(300)])
    labels = Labels.from_indices(np.where(np.arange(300) < 280, data.y, -1), list("abcde"))
    fit_base(Recorder(), X, labels, np.ones(300), seed=0)
    whole, *folds = Recorder.fits
    assert whole == set(range(280))
    assert len(folds) == FOLDS
    held_out = [whole - fold for fold in folds]
    assert sorted(row for part in held_out for row in part) == list(range(280))
    for label in range(5):  # each class is spread evenly
        counts = [sum(data.y[row] == label for row in part) for part in held_out]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    "base",
    [
        RandomForestClassifier(30),
        HistGradientBoostingClassifier(max_iter=10),
        KNeighborsClassifier(15),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=lambda base: type(base).__name__,
)
def test_missing_labels_are_recovered(data: SingleLabels, base: Any) -> None:
    fitted = classifier(base).fit(data.X, data.names)
    assert mean_average_precision(fitted.predict_proba(data.X), data.truth) > 0.8
    unknown = data.one_hot == 0
    assert fitted.recovered_labels_[~unknown].all()
    found = fitted.recovered_labels_ & unknown
    assert (found & data.truth).sum() > 2 * found.sum() * data.truth[unknown].mean()
    (candidate,) = fitted.candidates_
    assert candidate.name == type(base).__name__
    assert candidate.chosen


def test_random_state_determines_the_result(data: SingleLabels) -> None:
    forest = RandomForestClassifier(10)
    one, other, third = (classifier(forest, random_state=s).fit(data.X, data.y) for s in (0, 0, 1))
    np.testing.assert_array_equal(one.predict_proba(data.X), other.predict_proba(data.X))
    assert (one.predict_proba(data.X) != third.predict_proba(data.X)).any()
    assert forest.random_state is None
    assert not hasattr(forest, "classes_")


def test_data_frame_with_strings_and_missing_values(data: SingleLabels) -> None:
    table = pd.DataFrame(data.X, columns=[f"f{i}" for i in range(8)], index=range(7, 307))
    table["colour"] = np.where(data.truth[:, 0], "red", "blue")
    table.loc[10:20, "f0"] = np.nan
    columns = make_column_transformer((OneHotEncoder(), ["colour"]), remainder="passthrough")
    fitted = classifier(make_pipeline(columns, HistGradientBoostingClassifier(max_iter=10))).fit(table, data.names)
    assert fitted.feature_names_in_.tolist() == [*(f"f{i}" for i in range(8)), "colour"]
    assert fitted.n_features_in_ == 9
    assert mean_average_precision(fitted.predict_proba(table), data.truth) > 0.7
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(table[table.columns[::-1]])


def test_texts() -> None:
    texts = ["a cat and a dog", "the dog barks", "my cat", "cats and dogs", "dog", "cat", "stock market", "the market"]
    y = ["cat", "dog", "cat", "dog", "dog", "cat", "market", "market"]
    fitted = classifier(make_pipeline(TfidfVectorizer(), LogisticRegression(C=100.0))).fit(texts, y)
    assert fitted.predict(["dog", "market stock"]).tolist() == ["dog", "market"]
    assert fitted.recovered_labels_.shape == (8, 3)


def test_weights_reach_the_last_step_of_a_pipeline(data: SingleLabels) -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(1, 4, 300).astype(float)
    base = make_pipeline(LogisticRegression(tol=1e-8, max_iter=1000))
    fitted = classifier(base).fit(data.X, data.y, sample_weight=weight)
    expected = LogisticRegression(tol=1e-8, max_iter=1000).fit(data.X, data.y, sample_weight=weight)
    np.testing.assert_allclose(
        fitted._model.classifier.predict_proba(data.X), expected.predict_proba(data.X), atol=1e-5
    )


def test_class_with_one_row_and_fewer_rows_than_folds(data: SingleLabels) -> None:
    y = np.where(np.arange(300) == 5, "rare", data.names)
    fitted = classifier(LogisticRegression()).fit(data.X, y)
    assert np.isfinite(fitted.predict_proba(data.X)).all()
    assert fitted.recovered_proba_[5, 5] == 1
    few = classifier(LogisticRegression()).fit(data.X[:3], ["a", "b", "a"])
    assert few.predict_proba(data.X).shape == (300, 2)


@pytest.mark.parametrize(
    ("base", "changed", "message"),
    [
        (RandomForestClassifier, {}, r"base is the class RandomForestClassifier: pass an object of it"),
        (LinearSVC(), {}, "base=LinearSVC has no predict_proba: wrap it"),
        (3, {}, "base must be 'auto', 'linear', 'trees' or a scikit-learn classifier, not 3"),
        ("forest", {}, "base must be 'auto', 'linear', 'trees' or a scikit-learn classifier, not 'forest'"),
        (LogisticRegression(), {"method": "em"}, "method='em' applies to base='linear' only"),
        (LogisticRegression(), {"settings": {"alpha": 1}}, "settings applies to base='linear' only"),
    ],
)
def test_invalid_bases_raise(data: SingleLabels, base: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        classifier(base, **changed).fit(data.X, data.y)


def test_base_without_weights_raises_if_there_are_weights(data: SingleLabels) -> None:
    with pytest.raises(InputError, match="base=KNeighborsClassifier does not accept sample_weight"):
        classifier(KNeighborsClassifier()).fit(data.X, data.y, sample_weight=np.arange(1, 301))
    classifier(KNeighborsClassifier()).fit(data.X, data.y, sample_weight=np.full(300, 2.0))
