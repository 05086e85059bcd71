"""Regions of images: labels that are visible in a part of an image, used if held-out labels become more likely."""

import numpy as np
import pytest
import torch

from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.models import build_classifier, classifier_from_description
from spml.models.classifier import zoomed
from spml.models.feature_model import FeatureModel, LinearLearner, feature_model_from_description
from spml.models.heads import REGIONS, Pooling, pool_regions
from spml.training.frozen.epr_head import with_epr_head
from spml.training.frozen.regions import image_part, with_regions
from spml.training.learners import FeatureFit, fit_features

CLASSES = ["cat", "dog", "bird", "horse"]
DIM = 6


def rows_with_regions(strength: float, rows: int = 400) -> tuple[np.ndarray, np.ndarray, Labels]:
    """Features (N, 10, D) of images and regions, true labels, and one observed label per row.

    Every label is visible in one region with `strength`, and in the whole image with the share of that region's area.
    """
    draw = np.random.default_rng(0)
    truth = draw.random((rows, len(CLASSES))) < 0.3
    truth[~truth.any(axis=1), 0] = True
    signs = np.eye(len(CLASSES), DIM)
    regions = draw.normal(scale=0.3, size=(rows, REGIONS, DIM))
    for row, label in zip(*np.nonzero(truth), strict=True):
        regions[row, draw.integers(REGIONS)] += strength * signs[label]
    whole = regions.mean(1) + draw.normal(scale=0.1, size=(rows, DIM))
    observed = [draw.choice(np.flatnonzero(present)) for present in truth]
    return np.concatenate([whole[:, None], regions], 1), truth, Labels.from_indices(observed, CLASSES)


def fitted(features: np.ndarray, labels: Labels) -> tuple[FeatureFit, FeatureStore]:
    store = FeatureStore(features.reshape(len(features), -1).astype(np.float32))
    return fit_features(image_part(store, 0), labels, base="linear"), store


def test_regions_are_pooled_like_slices() -> None:
    features = torch.randn(2, 5, 7, 10, dtype=torch.float64)
    found = pool_regions(features, "rms")
    assert found.shape == (2, REGIONS, 5)
    for number, (top, left) in enumerate((top, left) for top in (0, 1, 3) for left in (0, 2, 5)):
        part = features[:, :, top : top + 4, left : left + 5]
        torch.testing.assert_close(found[:, number], (part**2).mean((2, 3)) ** 0.5)


def test_pooled_features_are_those_of_every_region() -> None:
    features = torch.randn(3, 4)
    assert torch.equal(pool_regions(features), features[:, None].expand(3, REGIONS, 4))


@pytest.mark.parametrize("normalised", [False, True])
def test_evidence_is_the_mean_of_the_whole_and_the_strongest_region(normalised: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(3, 4, generator=draw), torch.randn(3, generator=draw)
    learner = LinearLearner(weight, bias, torch.zeros(4), torch.ones(4))
    correction = LinearLearner(torch.ones(3, 4), torch.zeros(3), torch.zeros(4), torch.ones(4))
    offsets = np.array([-1.0, 0.0, 1.0])
    model = FeatureModel(
        [learner],
        [2.0],
        slope=1.5,
        offsets=offsets,
        dim=40,
        num_regions=9,
        normalised=normalised,
        correction=correction,
    )
    rows = torch.randn(5, 10, 4, generator=draw)
    scores = rows.double() @ weight.T.double() + bias.double()
    evidence = 2 * (scores - scores.mean(-1, keepdim=True))
    if normalised:
        evidence = evidence - evidence.exp().sum(-1, keepdim=True).log()
    strongest = torch.stack([evidence[:, number] for number in range(1, 10)]).max(0).values
    expected = (evidence[:, 0] + strongest) / 2 + rows[:, 0].sum(-1, keepdim=True)
    np.testing.assert_allclose(model.evidence(rows.flatten(1).numpy()), expected.numpy(), rtol=1e-5)
    again = feature_model_from_description(model.description)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(rows.flatten(1)).logits, model(rows.flatten(1)).logits)


@pytest.mark.parametrize("pooling", ["mean", "rms"])
def test_the_network_computes_what_the_model_predicts(pooling: Pooling) -> None:
    torch.manual_seed(0)
    classifier = build_classifier("small", 3, image_size=32, zooms=(1.0, 1.5), pooling=pooling).eval()
    learner = LinearLearner(torch.randn(3, 192), torch.randn(3), torch.zeros(192), torch.ones(192))
    model = FeatureModel([learner], [0.1], slope=1.2, offsets=np.zeros(3), dim=10 * 192, num_regions=9)
    classifier.replace_head(model)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    power = 1 if pooling == "mean" else 2
    with torch.no_grad():
        small, large = (classifier.feature_map(zoomed(images, zoom)) for zoom in (1.0, 1.5))
        whole = sum((part**power).mean((2, 3)) ** (1 / power) for part in (small, large)) / 2
        rows = torch.cat([whole[:, None], pool_regions(large, pooling)], 1)
        found = torch.sigmoid(classifier(images).logits)
    np.testing.assert_allclose(found.numpy(), model.presence(rows.flatten(1).numpy()), atol=1e-5)
    again = classifier_from_description(classifier.description)
    again.load_state_dict(classifier.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(images).logits, classifier(images).logits)


def test_regions_find_labels_that_the_whole_image_hides() -> None:
    features, truth, labels = rows_with_regions(strength=3.0)
    fit, store = fitted(features, labels)
    better = with_regions(fit, store, labels)
    assert better.model.num_regions == REGIONS
    assert "strongest region" in better.summary
    assert better.log_likelihood > fit.log_likelihood
    unobserved = labels.dense() == 0

    def error(table: np.ndarray) -> float:
        return float(((table - truth) ** 2)[unobserved].mean())

    assert error(better.held_out) < 0.8 * error(fit.held_out)


def test_regions_without_evidence_are_not_used() -> None:
    features, _, labels = rows_with_regions(strength=0.0)
    features[:, 0, :4] += 2 * (labels.dense() > 0)  # visible in the whole image alone
    fit, store = fitted(features, labels)
    assert with_regions(fit, store, labels) is fit


@pytest.mark.parametrize("method", ["auto", "em", "epr"])
def test_models_of_the_folds_give_the_held_out_evidence(method: str) -> None:
    features, _, labels = rows_with_regions(strength=3.0, rows=120)
    table = labels.dense().copy()
    table[7] = 0  # a row without a label is scored by the model of all rows
    labels = Labels.from_matrix(table, CLASSES)
    store = FeatureStore(features[:, 0].astype(np.float32))
    fit = fit_features(store, labels, base="linear", method=method, k=1.4)
    if method == "auto":
        fit = with_epr_head(fit, store, labels, k=2.5)
    assert fit.evidence_in is not None
    np.testing.assert_allclose(fit.evidence_in(store), fit.evidence, rtol=1e-3, atol=1e-3)


def test_forests_have_no_evidence_in_other_features() -> None:
    features, _, labels = rows_with_regions(strength=3.0, rows=120)
    store = FeatureStore(features.reshape(len(features), -1).astype(np.float32))
    trees = fit_features(image_part(store, 0), labels, base="trees")
    assert trees.evidence_in is None
    assert with_regions(trees, store, labels) is trees
