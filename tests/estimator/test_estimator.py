"""The scikit-learn estimator: attributes, forms of y and X, and use inside scikit-learn's tools."""

import pickle
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from spml.errors import InputError
from spml.estimator import SinglePositiveClassifier, observed_label_score
from spml.metrics import mean_average_precision
from support.shared_data import shared_data
from support.single_labels import SingleLabels


@pytest.fixture(scope="module")
def data() -> SingleLabels:
    return SingleLabels()


def linear(**changed: Any) -> SinglePositiveClassifier:
    """A classifier that is trained quickly: one linear model, unless a base is given."""
    method = "auto" if "base" in changed else "softmax"
    return SinglePositiveClassifier(**({"method": method, "random_state": 0} | changed))


@pytest.fixture(scope="module")
def fitted(data: SingleLabels) -> SinglePositiveClassifier:
    return linear().fit(data.X, data.y)


# Results


@pytest.mark.parametrize("base", ["linear", "trees", "auto"])
def test_missing_labels_are_recovered(data: SingleLabels, base: str) -> None:
    classifier = linear(base=base).fit(data.X, data.y)
    assert mean_average_precision(classifier.predict_proba(data.X), data.truth) > 0.85
    unknown = data.one_hot == 0
    recovered = classifier.recovered_labels_
    np.testing.assert_array_equal(recovered, classifier.recovered_proba_ >= 0.5)
    assert recovered[~unknown].all()
    precision = (recovered & data.truth)[unknown].sum() / recovered[unknown].sum()
    assert precision > 2 * data.truth[unknown].mean()
    assert any(candidate.chosen for candidate in classifier.candidates_)
    assert classifier.k_.low <= classifier.k_.k <= classifier.k_.high


def test_random_state_determines_the_result(data: SingleLabels) -> None:
    one, other = (linear(base="trees").fit(data.X[:60], data.y[:60]).predict_proba(data.X) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_scale_and_shift_of_the_features_do_not_matter(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    scale, shift = 10.0 ** np.arange(-4, 4), 100.0 * np.arange(8)
    other = linear().fit(data.X * scale + shift * scale, data.y)
    np.testing.assert_allclose(
        other.predict_proba(data.X * scale + shift * scale), fitted.predict_proba(data.X), atol=0.01
    )


def test_constant_columns_do_not_matter(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    X = np.column_stack([np.full(300, 1e6), data.X])
    np.testing.assert_allclose(linear().fit(X, data.y).predict_proba(X), fitted.predict_proba(data.X), atol=0.01)


def test_coefficients_are_those_of_the_unscaled_features(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    assert fitted.coef_.shape == (5, 8)
    scores = data.X @ fitted.coef_.T + fitted.intercept_
    assert mean_average_precision(scores - scores.mean(1, keepdims=True), data.truth) > 0.85
    ranks = [np.corrcoef(np.argsort(np.argsort(scores[:, 0] - scores[:, 1:].max(1))), data.truth[:, 0])[0, 1]]
    assert ranks[0] > 0.5
    scaled = linear().fit(1000 * data.X, data.y)
    np.testing.assert_allclose(1000 * scaled.coef_, fitted.coef_, rtol=1e-3, atol=1e-3)


def test_models_that_are_not_linear_have_no_coefficients(data: SingleLabels) -> None:
    trees = linear(base="trees").fit(data.X[:60], data.y[:60])
    with pytest.raises(AttributeError, match="the model is not linear: use base='linear'"):
        _ = trees.coef_
    assert not hasattr(linear(base=LogisticRegression()).fit(data.X, data.y), "intercept_")


def test_given_k_is_used(data: SingleLabels) -> None:
    few, many = (linear(k=k).fit(data.X, data.y) for k in (1.1, 3.0))
    assert few.k_.k == pytest.approx(1.1, abs=0.2)
    assert many.k_.k == pytest.approx(3.0, abs=0.4)
    assert many.predict_proba(data.X).mean() > few.predict_proba(data.X).mean() + 0.2


def test_thresholds(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    strict = linear(threshold=0.9).fit(data.X, data.y)
    np.testing.assert_array_equal(strict.predict_labels(data.X), fitted.predict_proba(data.X) >= 0.9)
    best = linear(threshold="f1").fit(data.X, data.y)
    assert best.thresholds_.shape == (5,)
    np.testing.assert_array_equal(best.predict_labels(data.X), fitted.predict_proba(data.X) >= best.thresholds_)
    assert len(set(best.thresholds_)) > 1


# Forms of X and y


def test_all_forms_of_y_give_the_same_classifier(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    expected = fitted.predict_proba(data.X)
    frame = pd.DataFrame(data.one_hot, columns=data.classes)
    for y in (data.names, pd.Series(data.names), data.one_hot, scipy.sparse.csr_array(data.one_hot), frame):
        np.testing.assert_array_equal(linear().fit(data.X, y).predict_proba(data.X), expected)
    named = linear().fit(data.X, data.names)
    np.testing.assert_array_equal(named.predict(data.X), data.classes[expected.argmax(1)])
    by_frame = linear().fit(data.X, frame)
    assert by_frame.classes_.tolist() == data.classes.tolist()
    np.testing.assert_array_equal(by_frame.predict(data.X), expected >= 0.5)


def test_verified_negatives_are_used_and_never_recovered(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    signed = linear().fit(data.X, data.signed)
    assert not signed.recovered_labels_[data.signed < 0].any()
    assert signed.recovered_labels_[data.signed > 0].all()
    assert fitted.recovered_labels_[data.signed < 0].any()  # otherwise this test shows nothing


def test_unlabelled_rows_are_predicted_but_not_learned_from(data: SingleLabels) -> None:
    y = data.y.copy()
    y[200:] = -1
    part, whole = linear().fit(data.X[:200], y[:200]), linear().fit(data.X, y)
    np.testing.assert_allclose(whole.predict_proba(data.X), part.predict_proba(data.X), atol=1e-6)
    np.testing.assert_allclose(whole.recovered_proba_[200:], part.predict_proba(data.X[200:]), atol=1e-6)
    names = np.where(y >= 0, data.names, None)
    np.testing.assert_array_equal(linear().fit(data.X, names).predict_proba(data.X), whole.predict_proba(data.X))


def test_sparse_features(data: SingleLabels) -> None:
    X = np.where(np.abs(data.X) > 0.7, data.X, 0.0)
    classifier = linear().fit(scipy.sparse.csr_array(X), data.y)
    np.testing.assert_allclose(classifier.predict_proba(X), classifier.predict_proba(scipy.sparse.coo_array(X)))
    assert mean_average_precision(classifier.predict_proba(X), data.truth) > 0.8


def test_pandas_in_and_out(data: SingleLabels) -> None:
    X = pd.DataFrame(data.X, columns=list("abcdefgh"), index=[f"row {i}" for i in range(300)])
    classifier = linear().set_output(transform="pandas").fit(X, pd.Series(data.names))
    assert classifier.feature_names_in_.tolist() == list("abcdefgh")
    table = classifier.transform(X[:3])
    assert table.columns.tolist() == data.classes.tolist()
    assert table.index.tolist() == ["row 0", "row 1", "row 2"]
    np.testing.assert_array_equal(table, classifier.predict_proba(X[:3]))
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(X.rename(columns={"a": "z"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        classifier.predict(data.X)


def test_sample_weight_changes_the_model(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    weight = np.where(data.y == 0, 10.0, 1.0)
    weighted = linear().fit(data.X, data.y, sample_weight=weight)
    assert (weighted.predict(data.X) == 0).mean() > (fitted.predict(data.X) == 0).mean()
    same = linear().fit(data.X, data.y, sample_weight=np.full(300, 3.0))
    np.testing.assert_allclose(same.predict_proba(data.X), fitted.predict_proba(data.X), atol=1e-4)


# scikit-learn's tools


def test_pipelines_and_searches(data: SingleLabels) -> None:
    pipeline = make_pipeline(make_column_transformer((MinMaxScaler(), [0, 1]), remainder="passthrough"), linear())
    search = GridSearchCV(pipeline, {"singlepositiveclassifier__k": [1.5, 4.9]}, cv=2, n_jobs=2)
    search.fit(data.X, data.names)
    assert search.best_params_ == {"singlepositiveclassifier__k": 1.5}
    again = clone(search.best_estimator_).fit(data.X, data.names)
    np.testing.assert_array_equal(again.predict_proba(data.X), search.predict_proba(data.X))


def test_cross_validation(data: SingleLabels) -> None:
    held_out = cross_val_predict(linear(), data.X, data.names, cv=3, method="predict_proba")
    assert mean_average_precision(held_out, data.truth) > 0.8
    scores = cross_validate(
        linear(), data.X, data.names, cv=3, scoring={"observed": observed_label_score, "accuracy": "accuracy"}
    )
    assert (scores["test_observed"] > np.log(1 / 5)).all()
    default = cross_validate(linear(), data.X, data.names, cv=3)
    np.testing.assert_array_equal(default["test_score"], scores["test_observed"])


def test_calibrated_classifier(data: SingleLabels) -> None:
    calibrated = CalibratedClassifierCV(linear(), cv=2).fit(data.X, data.names)
    np.testing.assert_allclose(calibrated.predict_proba(data.X).sum(axis=1), 1)  # for exclusive classes
    assert (calibrated.predict(data.X) == data.names).mean() > 0.5


@pytest.mark.parametrize("base", ["trees", "linear", ExtraTreesClassifier(10)], ids=["trees", "linear", "external"])
def test_fitted_estimator_can_be_pickled(data: SingleLabels, base: Any, tmp_path: Any) -> None:
    classifier = linear(base=base).fit(data.X[:60], data.names[:60])
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    for again in (pickle.loads(pickle.dumps(classifier)), joblib.load(tmp_path / "classifier.joblib")):
        np.testing.assert_array_equal(again.predict_proba(data.X), classifier.predict_proba(data.X))
        np.testing.assert_array_equal(again.recovered_labels_, classifier.recovered_labels_)


def test_parallel_fits(data: SingleLabels, fitted: SinglePositiveClassifier) -> None:
    jobs = (joblib.delayed(linear().fit)(data.X, data.y) for _ in range(2))
    for result in joblib.Parallel(n_jobs=2)(jobs):
        np.testing.assert_allclose(result.predict_proba(data.X), fitted.predict_proba(data.X), atol=1e-6)


def test_score_is_the_mean_log_probability_of_observed_labels(
    data: SingleLabels, fitted: SinglePositiveClassifier
) -> None:
    assert fitted.score(data.X, data.y) == observed_label_score(fitted, data.X, data.y)
    weight = np.arange(300.0)
    assert fitted.score(data.X, data.y, weight) == observed_label_score(fitted, data.X, data.y, weight)


@pytest.mark.parametrize("name", ["scene", "yeast"])
def test_search_by_score_finds_one_of_the_best_models(name: str) -> None:
    """Chosen by held-out single labels: within 2 mAP of the best model, where the worst is 8 mAP below it."""
    X = np.load(shared_data("tabular", name, "features.npy"))
    with np.load(shared_data("tabular", name, "labels.npz")) as file:
        labels, observed, train, test = (file[key] for key in ("labels", "observed", "train", "test"))
    bases = [
        make_pipeline(StandardScaler(), LogisticRegression(C=10.0)),
        make_pipeline(StandardScaler(), LogisticRegression(C=0.003)),
        ExtraTreesClassifier(100),
        DecisionTreeClassifier(),
    ]
    model = SinglePositiveClassifier(random_state=0)
    search = GridSearchCV(model, {"base": bases}, cv=3, refit=False).fit(X[train], observed[train])
    fitted = [clone(model).set_params(base=base).fit(X[train], observed[train]) for base in bases]
    true_map = [mean_average_precision(each.predict_proba(X[test]), labels[test] > 0) for each in fitted]
    assert max(true_map) - true_map[search.best_index_] < 0.02
    assert max(true_map) - min(true_map) > 0.08
    assert np.argmin(search.cv_results_["mean_test_score"]) == np.argmin(true_map)


# Errors


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "nothing"}, "No method named 'nothing'"),
        ({"settings": {"colour": 1}, "method": "wan"}, "'wan' has no setting 'colour'"),
        ({"threshold": 0}, "threshold must be 'f1' or a number above 0 and at most 1, not 0"),
        ({"threshold": "best"}, "threshold must be 'f1' or"),
        ({"k": 7}, "must be above 0 and at most 5, the number of classes, not 7"),
        ({"base": "boosting"}, "base must be 'auto', 'linear', 'trees' or a scikit-learn classifier, not 'boosting'"),
    ],
)
def test_invalid_parameters_raise(data: SingleLabels, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        linear(**changed).fit(data.X, data.y)


def test_invalid_data_raises(data: SingleLabels) -> None:
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        linear().fit(data.X, data.y[:-1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        linear().fit(scipy.sparse.csr_array(data.X[:-1]), data.y)
    X = data.X.copy()
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        linear().fit(X, data.y)
    with pytest.raises(InputError, match="no row of y has a label"):
        linear().fit(data.X, [None] * 300)
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        linear().fit(data.X, data.y, sample_weight=-np.ones(300))
