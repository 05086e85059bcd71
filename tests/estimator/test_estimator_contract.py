"""scikit-learn's own checks of an estimator; failures are listed with their reason, and the reason is tested."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_train, parametrize_with_checks

from spml.estimator import SinglePositiveClassifier

EXPECTED_FAILURES = {
    "check_classifiers_train": "expects that probabilities of a row sum to 1, but labels do not exclude each other",
    **dict.fromkeys(
        ["check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"],
        "expects that a repeated row equals a row of weight 2, but copies of a row fall into different folds of the "
        "cross-validation, as in scikit-learn's estimators with internal cross-validation",
    ),
}
EXTERNAL = make_pipeline(StandardScaler(with_mean=False), LogisticRegression())


@parametrize_with_checks(
    [SinglePositiveClassifier("softmax", random_state=0), SinglePositiveClassifier(base=EXTERNAL, random_state=0)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


class Exclusive(SinglePositiveClassifier):
    """Probabilities divided by their sum, which scikit-learn assumes if y has one class per row."""

    def predict_proba(self, X: Any) -> Any:
        present = super().predict_proba(X)
        return present / present.sum(axis=1, keepdims=True) if self.exclusive_ else present


def test_check_passes_if_only_the_sum_of_the_probabilities_is_changed() -> None:
    with pytest.raises(AssertionError, match="not almost equal"):
        check_classifiers_train("SinglePositiveClassifier", SinglePositiveClassifier(base=EXTERNAL, random_state=0))
    check_classifiers_train("Exclusive", Exclusive(base=EXTERNAL, random_state=0))


@pytest.mark.parametrize("changed", [{"method": "softmax"}, {"base": EXTERNAL}], ids=["linear", "external"])
def test_rows_of_weight_zero_equal_unlabelled_rows(changed: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 3
    X[np.arange(60), y] += 2
    weight = np.ones(60)
    weight[::4] = 0
    unlabelled = np.where(weight > 0, y, -1)
    weighted = SinglePositiveClassifier(**changed, random_state=0).fit(X, y, sample_weight=weight)
    removed = SinglePositiveClassifier(**changed, random_state=0).fit(X, unlabelled)
    np.testing.assert_allclose(weighted.predict_proba(X), removed.predict_proba(X), rtol=1e-5)
