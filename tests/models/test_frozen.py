"""Fast features of a frozen backbone equal the classifier's own."""

import sys

import pytest
import torch
from torch import Tensor, nn

from spml.models import Classifier, build_classifier
from spml.models import frozen as frozen_module
from spml.models.frozen import FrozenFeatures, fold_batch_norm

IMAGES = torch.randint(0, 256, (9, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Preactivation(nn.Module):
    """The first convolution feeds both a normalisation and a skip connection: folding would change the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=4)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 1)

    def forward(self, images: Tensor) -> Tensor:
        first = self.first(images)
        result: Tensor = first + self.second(self.norm(first).relu())
        return result


def classifier(backbone: str | nn.Module) -> Classifier:
    torch.manual_seed(1)
    made_of = build_classifier(backbone, 4, image_size=64, pretrained=False).eval()
    for part in made_of.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, 0.0, 0.3)
            nn.init.uniform_(part.running_var, 0.5, 2.0)
            nn.init.uniform_(part.weight, 0.5, 2.0)
    return made_of


@pytest.mark.parametrize("backbone", ["small", "lite0", Preactivation()], ids=["small", "lite0", "preactivation"])
@pytest.mark.parametrize("onnx", [True, False], ids=["onnxruntime", "torch"])
def test_features_equal_the_classifiers(backbone: str | nn.Module, onnx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if onnx:
        pytest.importorskip("onnxruntime", reason="needs the extra 'export'")
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # the parts of a batch run at the same time
    else:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    own = classifier(backbone)
    with torch.no_grad():
        expected = own.features(IMAGES)
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    fast = FrozenFeatures(own)(IMAGES)
    assert float((fast - expected).abs().max()) <= 1e-4 * float(expected.abs().max())
    assert all(torch.equal(before[name], tensor) for name, tensor in own.state_dict().items())


def test_every_normalisation_of_an_efficientnet_is_folded() -> None:
    folded = fold_batch_norm(classifier("lite0"), IMAGES[:1])
    assert not [part for part in folded.modules() if isinstance(part, nn.BatchNorm2d)]


def test_a_wrong_folding_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = classifier("small")
    broken = classifier("small")
    next(broken.parameters()).data.mul_(1.01)
    monkeypatch.setattr(frozen_module, "fold_batch_norm", lambda *_: broken)
    with torch.no_grad():
        assert torch.equal(FrozenFeatures(own)(IMAGES), own.features(IMAGES))
