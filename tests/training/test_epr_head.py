"""EPR's head joins those of `auto` where rows have many labels and held-out labels become more likely."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from spml.calibration import calibrate
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.metrics import mean_average_precision
from spml.training.frozen.epr_head import with_epr_head
from spml.training.learners import FeatureFit, fit_features

CLASSES = 8
Fits = tuple[FeatureFit, FeatureFit, np.ndarray, np.ndarray, Labels]


def rows(k: float, number: int = 700) -> tuple[np.ndarray, np.ndarray, Labels]:
    """Features that are noisy sums of class patterns, the true labels, and one observed label per row of the first."""
    draw = np.random.default_rng(0)
    true = draw.random((number, CLASSES)) < k / CLASSES
    true[np.arange(number), draw.integers(0, CLASSES, number)] |= ~true.any(axis=1)
    features = true @ draw.normal(size=(CLASSES, 30)) + draw.normal(scale=2.5, size=(number, 30))
    observed = np.where(true, draw.random(true.shape), -1).argmax(axis=1)
    labels = Labels.from_indices(observed[: number // 2], [str(c) for c in range(CLASSES)])
    return features.astype(np.float32), true, labels


@pytest.fixture(scope="module")
def many() -> Fits:
    features, true, labels = rows(k=4)
    store = FeatureStore(features[: len(labels)])
    fit = fit_features(store, labels, base="linear")
    return fit, with_epr_head(fit, store, labels), features, true, labels


def test_held_out_labels_become_more_likely(
    many: Fits,
) -> None:
    before, after, features, true, labels = many
    assert any("epr" in each.name and each.chosen for each in after.candidates)
    assert "epr" in after.summary
    assert after.log_likelihood > before.log_likelihood
    evidence = after.evidence.astype(float)
    again = calibrate(expit(evidence), labels.dense(), at_least_one=True, uncertainty=False)
    assert after.log_likelihood == pytest.approx(again.log_likelihood, abs=1e-4)
    rest = slice(len(labels), None)
    scores = [mean_average_precision(fit.model.presence(features[rest]), true[rest]) for fit in (before, after)]
    assert scores[1] > scores[0] - 0.01


def test_the_model_is_the_weighted_sum_of_its_learners(
    many: Fits,
) -> None:
    _, after, features, _, _ = many
    row = torch.from_numpy(features[:5]).double()
    evidence = torch.zeros(5, CLASSES).double()
    for weight, learner in zip(after.model.weights, after.model.learners, strict=True):
        scores = learner(row)
        evidence += weight * (scores - scores.mean(1, keepdim=True))
    p = expit(float(after.model.slope) * evidence.numpy() + after.model.offsets.numpy())
    expected = p / (1 - np.prod(1 - p, axis=1, keepdims=True))
    assert np.allclose(after.model.presence(features[:5]), expected, atol=1e-6)
    assert np.allclose(after.held_out, after.model.presence_of(torch.from_numpy(after.evidence).double()), atol=1e-5)


def test_rows_with_few_labels_are_left_alone() -> None:
    features, _, labels = rows(k=1)
    store = FeatureStore(features[: len(labels)])
    fit = fit_features(store, labels, base="linear")
    assert with_epr_head(fit, store, labels, k=1.2) is fit
