"""A model over features as the head of a network."""

import numpy as np
import pytest
import torch

from spml.models import build_classifier, classifier_from_description
from spml.models.classifier import zoomed
from spml.models.feature_model import FeatureModel, LinearLearner
from spml.models.heads import Pooling


@pytest.mark.parametrize("pooling", ["mean", "rms"])
def test_the_network_computes_the_models_presence_and_can_be_built_again(pooling: Pooling) -> None:
    torch.manual_seed(0)
    classifier = build_classifier("small", 3, zooms=(1.0, 1.5), pooling=pooling).eval()
    learner = LinearLearner(torch.randn(3, 192), torch.randn(3), torch.randn(192), torch.rand(192) + 0.5)
    model = FeatureModel([learner], [0.1], slope=1.2, offsets=np.array([-1.0, 0.0, 0.5]), dim=192)
    classifier.replace_head(model)
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        maps = [classifier.feature_map(zoomed(images, zoom)) for zoom in (1.0, 1.5)]
        power = 1 if pooling == "mean" else 2
        features = sum((each**power).mean((2, 3)) ** (1 / power) for each in maps) / 2
        found = torch.sigmoid(classifier(images).logits)
    assert np.allclose(found.numpy(), model.presence(features.numpy()), atol=1e-5)

    again = classifier_from_description(classifier.description)
    again.load_state_dict(classifier.state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(images).logits, classifier(images).logits)
