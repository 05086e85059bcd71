"""A classifier: images in, `Outputs` out, with everything needed to build it again in its description."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spml.errors import InputError
from spml.models.backbones import IMAGENET_MEAN, IMAGENET_STD, example_output, load_backbone, weights_digest
from spml.models.heads import Outputs, build_head, pool


class Classifier(nn.Module):
    """A backbone and a head.

    Images are (B, 3, H, W), either uint8 in 0..255 or floating in 0..1: the dtype decides, never the values. They
    are normalised here, so a saved classifier needs nothing beside it. `description` is JSON-serialisable and, with
    the weights, all that `classifier_from_description` needs.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        num_classes: int,
        *,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.num_classes = num_classes
        self.description: dict[str, Any] = dict(description or {})
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Outputs:
        outputs: Outputs = self.head(self.feature_map(images))
        return outputs

    def feature_map(self, images: Tensor) -> Tensor:
        """What the head sees: (B, C, h, w), or (B, C) from a module that pools by itself."""
        features: Tensor = self.backbone(self.normalise(images))
        return features

    def features(self, images: Tensor) -> Tensor:
        """(B, C) globally average-pooled features; the linear head's layer on them gives its logits."""
        return pool(self.feature_map(images))

    def normalise(self, images: Tensor) -> Tensor:
        """Images to the scale the backbone was trained on: (x − mean) / std with x in 0..1."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images must have shape (B, 3, H, W), not {tuple(images.shape)}")
        if images.dtype == torch.uint8:
            images = images.to(torch.float32) / 255
        elif not images.is_floating_point():
            raise InputError(f"images must be uint8 (0..255) or floating (0..1), not {images.dtype}")
        return ((images - self.mean) / self.std).to(self.mean.dtype)

    def head_parameters(self) -> Iterator[nn.Parameter]:
        return self.head.parameters()

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        return self.backbone.parameters()


class LogitsOnly(Classifier):
    """A user's module that itself returns logits (B, L), used as a classifier.

    Its head has no parameters: all of the module counts as backbone. There are no pooled features.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        image_size: int,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        name = f"module:{type(module).__name__}"
        shape = example_output(module, image_size, name).shape
        if len(shape) != 2 or shape[0] != 1:
            raise InputError(f"{name} returns shape {tuple(shape)} for one image; needed are logits (1, L)")
        description = {
            "backbone": name,
            "head": "logits-only",
            "head_settings": {},
            "num_classes": shape[1],
            "image_size": image_size,
            "mean": list(mean),
            "std": list(std),
            "weights": {"source": "given with the module", "sha256": weights_digest(module)},
        }
        super().__init__(module, nn.Identity(), shape[1], mean=mean, std=std, description=description)

    def forward(self, images: Tensor) -> Outputs:
        return Outputs(self.feature_map(images))

    def features(self, images: Tensor) -> Tensor:
        raise InputError(f"{self.description['backbone']} returns logits only; it has no pooled features")


def build_classifier(
    backbone: str | nn.Module,
    num_classes: int,
    head: str = "linear",
    *,
    pretrained: bool = True,
    image_size: int | None = None,
    dropout: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **head_settings: Any,
) -> Classifier:
    """A classifier from a backbone (name or module) and a head (by its name in `HEADS`) with its settings.

    `pretrained` concerns named backbones with ImageNet weights (`small` has none). `image_size`, `dropout`, `mean`
    and `std` default to the backbone's and the head's own: dropout 0, and 0.1 inside the label-wise heads; mean and
    std of a user's module are ImageNet's. A `Classifier`, such as
    `LogitsOnly`, comes back as it is.
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise InputError(f"num_classes must be a whole number of at least 1, not {num_classes!r}")
    if isinstance(backbone, Classifier):
        if backbone.num_classes != num_classes:
            raise InputError(f"the given classifier has {backbone.num_classes} classes, not {num_classes}")
        if head != "linear" or dropout is not None or head_settings:
            raise InputError("the given classifier already has its head; leave head, dropout and head settings out")
        return backbone
    if dropout is not None:
        head_settings["dropout"] = dropout
    body = load_backbone(backbone, pretrained=pretrained, image_size=image_size, mean=mean, std=std)
    if body.pooled and head != "linear":
        raise InputError(f"backbone {body.name!r} returns pooled features; only the linear head can use them")
    top = build_head(head, body.channels, num_classes, head_settings)
    description = {
        "backbone": body.name,
        "head": head,
        "head_settings": dict(top.settings),
        "num_classes": num_classes,
        "image_size": body.image_size,
        "mean": list(body.mean),
        "std": list(body.std),
        "weights": {"source": body.weights_source, "sha256": body.weights_sha256},
    }
    return Classifier(body.module, top, num_classes, mean=body.mean, std=body.std, description=description)


def classifier_from_description(description: Mapping[str, Any], backbone: nn.Module | None = None) -> Classifier:
    """The classifier of that description with fresh weights, nothing fetched; load its state dict afterwards.

    A classifier over a user's module (`module:…`) needs that module again as `backbone`.
    """
    missing = [key for key in _DESCRIBED if key not in description]
    if missing:
        raise InputError(f"the description of a classifier lacks {', '.join(missing)}")
    name = str(description["backbone"])
    if name.startswith("module:") and backbone is None:
        raise InputError(f"this classifier is built on your own {name.removeprefix('module:')}; pass it as backbone")
    body: str | nn.Module = name if backbone is None else backbone
    mean, std = description["mean"], description["std"]
    if description["head"] == "logits-only" and isinstance(body, nn.Module):
        classifier: Classifier = LogitsOnly(body, image_size=description["image_size"], mean=mean, std=std)
    else:
        classifier = build_classifier(
            body,
            description["num_classes"],
            description["head"],
            pretrained=False,
            image_size=description["image_size"],
            mean=mean,
            std=std,
            **description["head_settings"],
        )
    classifier.description = copy.deepcopy(dict(description))
    return classifier


_DESCRIBED = ("backbone", "head", "head_settings", "num_classes", "image_size", "mean", "std", "weights")
