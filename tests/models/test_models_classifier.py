"""Classifiers: images, descriptions, invalid input."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spml.errors import InputError
from spml.models import LogitsOnly, build_classifier, classifier_from_description
from spml.models.backbones import IMAGENET_MEAN, IMAGENET_STD
from support.classifiers import HEADS, pictures, small


def test_uint8_and_float_images_agree() -> None:
    classifier, images = small(), pictures()
    assert torch.equal(classifier(images).logits, classifier(images / 255).logits)
    # The dtype decides the scale, not the values: a dark floating-point image stays dark.
    assert not torch.allclose(classifier(images).logits, classifier(images / 255 / 255).logits)


def test_classifier_normalises_images() -> None:
    class Mean(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3))

    images = pictures()
    expected = (images.double().numpy() / 255).mean((2, 3))
    imagenet = build_classifier(Mean(), 2, image_size=32)
    np.testing.assert_allclose(
        imagenet.features(images), (expected - IMAGENET_MEAN) / np.array(IMAGENET_STD), atol=1e-5
    )
    plain = build_classifier(Mean(), 2, image_size=32, mean=(0, 0, 0), std=(1, 1, 1))
    np.testing.assert_allclose(plain.features(images), expected, atol=1e-6)
    assert "mean" not in plain.state_dict()


@pytest.mark.parametrize(("head", "settings"), HEADS)
def test_bfloat16_autocast_keeps_float32_logits(head: str, settings: dict[str, Any]) -> None:
    classifier = small(head, **settings)
    full = classifier(pictures()).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = classifier(pictures()).logits
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, full, atol=0.05, rtol=0.05)
    assert (mixed.bfloat16().float() != mixed).any()  # more than eight bits of mantissa


@pytest.mark.parametrize(("head", "settings"), HEADS)
def test_channels_last_and_compilation_without_graph_breaks(head: str, settings: dict[str, Any]) -> None:
    """Compilation and CUDA graphs need a single graph that does not depend on values."""
    classifier = small(head, **settings)
    expected = classifier(pictures()).logits
    last = classifier.to(memory_format=torch.channels_last)
    images = pictures().contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last(images).logits, expected, atol=1e-4, rtol=1e-4)
    compiled = torch.compile(last, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "images", [torch.zeros(1, 3, 32, 32, dtype=torch.int64), torch.zeros(3, 32, 32), torch.zeros(1, 1, 32, 32)]
)
def test_wrong_images_raise(images: Tensor) -> None:
    with pytest.raises(InputError, match="images must"):
        small()(images)


def test_user_module_with_map_keeps_its_modes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 7, 3, stride=4), nn.BatchNorm2d(7))
    net[1].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    classifier = build_classifier(net, 2, "label-wise", image_size=32)
    assert net[0].training
    assert not net[1].training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert classifier(pictures()).logits.shape == (3, 2)
    assert classifier.description["backbone"] == "module:Sequential"
    assert len(classifier.description["weights"]["sha256"]) == 16


def test_user_module_with_pooled_features_accepts_only_the_linear_head() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    classifier = build_classifier(net, 2, image_size=8)
    images = pictures(size=8)
    assert classifier.features(images).shape == (3, 5)
    assert torch.equal(classifier.head.linear(classifier.features(images)), classifier(images).logits)
    with pytest.raises(InputError, match="only the linear head accepts"):
        build_classifier(net, 2, "cam", image_size=8)


def test_logits_only() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    classifier = LogitsOnly(net, image_size=8)
    assert classifier.num_classes == 5
    assert build_classifier(classifier, 5) is classifier
    images = pictures(size=8)
    torch.testing.assert_close(classifier(images).logits, net(classifier.normalise(images)))
    assert set(classifier.backbone_parameters()) == set(classifier.parameters())
    assert list(classifier.head_parameters()) == []
    with pytest.raises(InputError, match="no pooled features"):
        classifier.features(images)
    with pytest.raises(InputError, match="5 classes, not 4"):
        build_classifier(classifier, 4)
    again = classifier_from_description(json.loads(json.dumps(classifier.description)), net)
    assert isinstance(again, LogitsOnly)
    assert torch.equal(again(images).logits, classifier(images).logits)


@pytest.mark.parametrize(("head", "settings"), HEADS)
def test_parameter_groups_are_disjoint_and_complete(head: str, settings: dict[str, Any]) -> None:
    classifier = small(head, **settings)
    heads, bodies = set(classifier.head_parameters()), set(classifier.backbone_parameters())
    assert heads
    assert bodies
    assert not heads & bodies
    assert heads | bodies == set(classifier.parameters())


@pytest.mark.parametrize(
    ("backbone", "head", "settings"),
    [
        ("small", "linear", {"dropout": 0.3}),
        ("small-nf", "cam", {"boost": 5.0}),
        ("test_vit", "label-wise", {"width": 32, "projection": False, "with_maps": True}),
    ],
)
def test_classifier_is_restored_from_description_and_weights(
    backbone: str, head: str, settings: dict[str, Any], tmp_path: Any
) -> None:
    classifier = build_classifier(backbone, 3, head, pretrained=False, image_size=64, mean=(0.4, 0.5, 0.6), **settings)
    classifier(pictures(4, 64))  # changes the batch norm statistics
    classifier.eval()
    save_file(classifier.state_dict(), tmp_path / "model.safetensors")
    again = classifier_from_description(json.loads(json.dumps(classifier.description))).eval()
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert again.description == classifier.description
    for one, other in zip(classifier(pictures(2, 64)), again(pictures(2, 64)), strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_description_of_a_user_module_needs_the_module() -> None:
    description = build_classifier(nn.Conv2d(3, 4, 3), 2, image_size=8).description
    with pytest.raises(InputError, match="your own Conv2d"):
        classifier_from_description(description)
    again = classifier_from_description(description, nn.Conv2d(3, 4, 3))
    assert again.description == description
    with pytest.raises(InputError, match="lacks head, num_classes"):
        classifier_from_description({k: v for k, v in description.items() if k not in ("head", "num_classes")})


@pytest.mark.parametrize(
    ("arguments", "settings", "sentence"),
    [
        (("small", 0), {}, "num_classes"),
        (("small", 2, "bilinear"), {}, "no head named 'bilinear'. Available heads: linear, label-wise, attention, cam"),
        (("small", 2, "cam"), {"bost": 5}, "no setting 'bost'. Available settings: dropout, boost"),
        (("small", 2, "cam"), {"boost": 0}, "boost"),
        (("small", 2, "cam"), {"peak": -1}, "peak"),
        (("small", 2), {"dropout": 1.0}, "dropout"),
        (("small", 2), {"image_size": 0}, "image_size"),
        (("small", 2), {"std": (1, 0, 1)}, "std must be three finite numbers above 0"),
        (("small", 2, "label-wise"), {"width": 30}, "multiple of 4"),
        (("small", 2, "label-wise"), {"heads": 0}, "heads"),
        (("resnet5O", 2), {}, "Similar names: .*resnet50"),
        (("resnet50.nowhere", 2), {}, "tv_in1k"),
        (("test_vit", 2), {"pretrained": False, "image_size": 3}, "image"),
        ((nn.Conv2d(3, 4, 3), 2), {}, "image_size must be given"),
        ((nn.Conv2d(3, 4, 9), 2), {"image_size": 8}, "cannot process an image of 8×8"),
        ((nn.Conv2d(1, 4, 3), 2), {"image_size": 8}, "cannot process an image of 8×8"),
        ((nn.Flatten(0), 2), {"image_size": 8}, "returns shape"),
    ],
)
def test_bad_input_raises_a_specific_error(arguments: Any, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_classifier(*arguments, **settings)
