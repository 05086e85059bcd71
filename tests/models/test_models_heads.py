"""Heads of classifiers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spml.models.backbones import SmallNet
from spml.models.heads import LabelWiseHead, sine_positions
from support.classifiers import HEADS, pictures, small


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
