"""Models on features: presence, saving, and the same scores however rows are given."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix
from scipy.special import expit
from sklearn.ensemble import RandomForestClassifier

from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.models.feature_model import FeatureModel, LinearLearner, feature_model_from_description
from spml.training.learners.trees import forest_from_sklearn


def small_model(**options):
    draw = np.random.default_rng(0)
    x, label = draw.normal(size=(60, 5)), np.arange(60) % 3
    forest = forest_from_sklearn(RandomForestClassifier(5, random_state=0).fit(x, label), 3)
    linear = LinearLearner(
        torch.from_numpy(draw.normal(size=(3, 5))).float(),
        torch.from_numpy(draw.normal(size=3)).float(),
        torch.from_numpy(draw.normal(size=5)),
        torch.from_numpy(1 + draw.random(5)),
    )
    return FeatureModel(
        [linear, forest], [0.7, 0.4], slope=1.3, offsets=np.array([0.1, -0.5, 0.2]), dim=5, **options
    ), x


def test_presence_follows_the_formula():
    model, x = small_model()
    linear, forest = model.learners
    first = ((x - linear.mean.numpy()) / linear.deviation.numpy()) @ linear.weight.numpy().T + linear.bias.numpy()
    second = np.log(forest.votes(torch.from_numpy(x)).numpy() + 0.05 / 3)
    evidence = 0.7 * (first - first.mean(1, keepdims=True)) + 0.4 * (second - second.mean(1, keepdims=True))
    p = expit(1.3 * evidence + np.array([0.1, -0.5, 0.2]))
    np.testing.assert_allclose(model.presence(x), p / (1 - np.prod(1 - p, axis=1, keepdims=True)), rtol=1e-6)


def test_normalised_evidence_is_that_of_log_probabilities():
    model, x = small_model(normalised=True)
    evidence = small_model()[0].evidence(x)
    expected = evidence - np.log(np.exp(evidence).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(model.evidence(x), expected, rtol=1e-9)
    with pytest.raises(InputError, match="normalise=False"):
        FeatureModel([model.learners[0]], [1.0], slope=1.0, offsets=np.zeros(3), dim=5, normalised=True).as_linear()


@pytest.mark.parametrize("normalised", [False, True])
def test_every_form_of_the_rows_gives_the_same_scores(normalised):
    model, x = small_model(normalised=normalised)
    expected = model.presence(x)
    np.testing.assert_allclose(model.presence(csr_matrix(x)), expected, rtol=1e-9)
    np.testing.assert_allclose(model.presence(torch.from_numpy(x)), expected, rtol=1e-9)
    np.testing.assert_allclose(model.presence(FeatureStore(x.astype(np.float32))), expected, rtol=1e-4)
    np.testing.assert_allclose(np.concatenate([model.presence(row[None]) for row in x]), expected, rtol=1e-12)
    logits = model(torch.from_numpy(x).float()).logits
    np.testing.assert_allclose(torch.sigmoid(logits).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"centred": False, "at_least_one": False}, {"normalised": True}])
def test_saved_model_is_the_same(tmp_path, options):
    model, x = small_model(**options)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again = feature_model_from_description(json.loads(json.dumps(model.description)))
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(again.presence(x), model.presence(x))


@pytest.mark.parametrize("centred", [True, False])
def test_linear_head_gives_the_same_probabilities(centred):
    model, x = small_model(centred=centred, at_least_one=False)
    with pytest.raises(InputError, match="not linear"):
        model.as_linear()
    offsets = model.offsets.numpy()
    one = FeatureModel(
        [model.learners[0]], [0.7], slope=1.3, offsets=offsets, dim=5, centred=centred, at_least_one=False
    )
    weight, bias = one.as_linear()
    np.testing.assert_allclose(expit(x @ weight.numpy().T + bias.numpy()), one.presence(x), rtol=1e-9)


def test_wrong_number_of_features_is_an_input_error():
    model, x = small_model()
    with pytest.raises(InputError, match="4 features per row, but the model was trained on 5"):
        model.presence(x[:, :4])
    with pytest.raises(InputError, match="4 features per row"):
        model.presence(FeatureStore(x[:, :4]))
