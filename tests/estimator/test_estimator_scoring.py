"""The score of observed labels: its formula by enumeration, and what it prefers."""

import itertools

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from spml.errors import InputError
from spml.estimator import observed_label_score
from spml.estimator.scoring import log_probability_of_choice


def by_enumeration(independent: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """P(label present | there is a label) and P(label picked | there is a label), over all sets of labels."""
    present, picked, some = np.zeros(len(independent)), np.zeros(len(independent)), 0.0
    for subset in itertools.product([0, 1], repeat=len(independent)):
        chosen = np.array(subset)
        if chosen.any():
            probability = np.prod(np.where(chosen, independent, 1 - independent))
            some += probability
            present += probability * chosen
            picked += probability * chosen / chosen.sum()
    return present / some, picked / some


@given(st.lists(st.floats(1e-3, 1 - 1e-3), min_size=2, max_size=6))
def test_probability_of_choice_equals_enumeration(probabilities: list[float]) -> None:
    present, picked = by_enumeration(np.array(probabilities))
    classes = len(probabilities)
    computed = np.exp(log_probability_of_choice(np.tile(present, (classes, 1)), np.arange(classes)))
    np.testing.assert_allclose(computed, picked, rtol=2e-3, atol=1e-9)
    assert computed.sum() == pytest.approx(1, abs=2e-3)


def test_certain_labels_share_the_choice() -> None:
    table = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(np.exp(log_probability_of_choice(table, np.array([1, 0]))), [1 / 3, 1])


def test_score_of_exclusive_classes_equals_log_loss() -> None:
    X, y = make_classification(200, n_classes=3, n_informative=4, random_state=0)
    names = np.array(["ant", "bee", "cow"])[y]
    classifier = LogisticRegression().fit(X, names)
    expected = -log_loss(names, classifier.predict_proba(X))
    assert observed_label_score(classifier, X, names) == pytest.approx(expected, rel=1e-9)
    weight = np.arange(200.0)
    weighted = -log_loss(names, classifier.predict_proba(X), sample_weight=weight)
    assert observed_label_score(classifier, X, names, weight) == pytest.approx(weighted, rel=1e-9)


def test_unlabelled_rows_do_not_count() -> None:
    X, y = make_classification(200, n_classes=3, n_informative=4, random_state=0)
    classifier = LogisticRegression().fit(X, y)
    part = np.where(np.arange(200) < 50, y, -1)
    assert observed_label_score(classifier, X, part) == pytest.approx(observed_label_score(classifier, X[:50], y[:50]))
    missing = pd.Series(np.where(part >= 0, y, np.nan))
    assert observed_label_score(classifier, X, missing) == observed_label_score(classifier, X, part)


class Fixed(DummyClassifier):
    """Predicts the same probabilities for every row."""

    def __init__(self, probabilities: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.probabilities = probabilities
        self.classes_ = np.arange(len(probabilities))

    def predict_proba(self, X: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.tile(self.probabilities, (len(X), 1))


def test_predicting_all_present_labels_is_best() -> None:
    """Every row has the labels 0 and 1, one of them observed: accuracy cannot tell these classifiers apart."""
    X, y = np.zeros((100, 1)), np.arange(100) % 2
    both, one, all_three = Fixed((0.99, 0.99, 0.01)), Fixed((0.99, 0.01, 0.01)), Fixed((0.99, 0.99, 0.99))
    scores = [observed_label_score(each, X, y) for each in (both, one, all_three)]
    assert scores[0] > max(scores[1:]) + 0.3
    assert scores[0] == pytest.approx(np.log(0.5), abs=0.02)


def test_several_observed_labels_of_a_row_count_as_their_mean() -> None:
    classifier = Fixed((0.5, 0.3, 0.2))
    score = observed_label_score(classifier, np.zeros((2, 1)), np.array([[1, 1, 0], [0, 0, 1]]))
    assert score == pytest.approx(((np.log(0.5) + np.log(0.3)) / 2 + np.log(0.2)) / 2)


def test_labels_that_cannot_be_scored_raise() -> None:
    classifier = Fixed((0.5, 0.3, 0.2))
    with pytest.raises(InputError, match="no row of y has a label, so the predictions cannot be scored"):
        observed_label_score(classifier, np.zeros((2, 1)), [-1, -1])
    with pytest.raises(InputError, match="row 1 of y is 7, which is not one of the fitted classes"):
        observed_label_score(classifier, np.zeros((2, 1)), [0, 7])
