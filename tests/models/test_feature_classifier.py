"""The linear classifier on features, with one head or an ensemble of two."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spml.data import FeatureStore
from spml.labels import Labels
from spml.methods import method
from spml.models.feature_classifier import FeatureClassifier, feature_classifier_from_description, merge_heads
from spml.training.examples import Examples
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings


@pytest.mark.parametrize("rows", [200, 2000])
@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_feature_classifier_normalises_its_inputs(rows: int, mean: float) -> None:
    torch.manual_seed(0)
    features = (mean + 2 * torch.randn(rows, 12)).float()
    features[:, 3] = 5.0  # a constant column is only shifted
    classifier = FeatureClassifier(12, 4)
    classifier.measure(features)
    deviation, shift = torch.std_mean(features.double(), 0, correction=0)
    deviation[3] = 1.0
    weight, bias = classifier.linear.weight.double(), classifier.linear.bias.double()
    wanted = ((features.double() - shift) / deviation) @ weight.T + bias
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = classifier(features).logits
        torch.testing.assert_close(logits.double(), wanted, rtol=0, atol=2e-6 * (1 + mean))


def test_ensemble_of_heads_is_merged_into_their_average() -> None:
    generator = torch.Generator().manual_seed(0)
    direction, centre = torch.randn(2, 3, 8, generator=generator), torch.randn(8, generator=generator)
    weight, bias = direction * torch.tensor([0.1, 5.0])[:, None, None], torch.randn(2, 3, generator=generator)
    merged, shift = merge_heads(weight, bias, (2 / 3, 1 / 3), centre)
    unit = F.normalize(direction, dim=-1)
    wanted = (2 * unit[0] + unit[1]) / 3 * weight[1].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(merged, wanted)  # independent of the scale of each head
    torch.testing.assert_close(merged @ centre + shift, weight[1] @ centre + bias[1])
    alike, same = merge_heads(weight[[1, 1]], bias[[1, 1]], (2 / 3, 1 / 3), centre)
    torch.testing.assert_close(alike, weight[1])
    torch.testing.assert_close(same, bias[1])
    weight[:, 1] = 0.0
    assert torch.isfinite(torch.cat([part.flatten() for part in merge_heads(weight, bias, (0.5, 0.5))])).all()


def test_separate_and_merged_heads() -> None:
    torch.manual_seed(0)
    features = torch.randn(30, 12)
    classifier = FeatureClassifier(12, 4, (2 / 3, 1 / 3))
    classifier.measure(features)
    joint = classifier(features).logits.unflatten(-1, (2, 4))
    for head in (0, 1):
        alone = FeatureClassifier(12, 4)
        rows = slice(4 * head, 4 * head + 4)
        parts = {"linear.weight": classifier.linear.weight[rows], "linear.bias": classifier.linear.bias[rows]}
        alone.load_state_dict(parts | {"mean": classifier.mean, "deviation": classifier.deviation})
        torch.testing.assert_close(joint[:, head], alone(features).logits)
    again = feature_classifier_from_description(json.loads(json.dumps(classifier.description)))
    again.load_state_dict(classifier.state_dict())
    one = again.eval()(features).logits
    assert one.shape == (30, 4)
    unit = [(joint[:, head] - joint[:, head].mean(0)) / norm for head, norm in enumerate(norms(classifier))]
    longest = torch.stack(norms(classifier)).amax(0)
    torch.testing.assert_close(one - one.mean(0), (2 * unit[0] + unit[1]) / 3 * longest)
    many = features.repeat(100, 1)
    torch.testing.assert_close(again(many).logits[:30], one, atol=1e-5, rtol=1e-4)


def norms(classifier: FeatureClassifier) -> list[Tensor]:
    return [weight.norm(dim=-1) for weight in classifier.linear.weight.detach().chunk(2)]


def test_biases_and_weights_learn_at_the_same_pace(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(400, 400)).astype(np.float32)
    shown = np.where(features[:, 0] > 1, 1, np.where(features[:, 1] > 0, 2, 0))  # label 3 is never observed
    training = Examples(FeatureStore(features), np.arange(400), Labels.from_indices(shown, list("abcd")))
    classifier = FeatureClassifier(400, 4)
    settings = TrainSettings(epochs=4, batch_size=8, learning_rate=1e-3)
    Trainer(tmp_path, classifier, method("an"), training, None, settings, device="cpu", progress=False).fit()
    probability = torch.sigmoid(classifier.eval()(torch.zeros(1, 400)).logits)[0]
    assert probability[3] < 0.15, probability
    assert (probability[:3] > probability[3]).all()
