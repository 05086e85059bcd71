"""Classifiers: a backbone and a head, with a description from which the classifier can be built again."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.errors import InputError
from spml.models.backbones import IMAGENET_MEAN, IMAGENET_STD, example_output, load_backbone, weights_digest
from spml.models.feature_head import FeatureHead
from spml.models.feature_model import FeatureModel, feature_model_from_description
from spml.models.heads import Outputs, Pooling, build_head, pool, pool_regions
from spml.type_checks import check_count


class Classifier(nn.Module):
    """A backbone and a head. Use `build_classifier` to make one.

    Images have shape (B, 3, H, W) and are uint8 in 0..255 or floating point in 0..1; the dtype decides, never the
    values. The classifier normalises them itself.

    Parameters
    ----------
    backbone : Module
        Returns a feature map (B, C, h, w) or pooled features (B, C).
    head : Module
        Returns `Outputs`.
    num_classes : int
    mean, std : sequence of three floats
        Normalisation of the images.
    zooms : sequence of float
        The head receives the mean of the pooled features of the image at these multiples of its size. More than one
        needs a linear head.
    pooling : {"mean", "rms"}
        How features are pooled over positions.
    description : mapping, optional
        JSON-serialisable. Together with the weights, all that `classifier_from_description` needs.
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
        zooms: Sequence[float] = (1.0,),
        pooling: Pooling = "mean",
        description: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.zooms = tuple(zooms)
        self.pooling: Pooling = pooling
        self.backbone = backbone
        self.head = head
        self.num_classes = num_classes
        self.description: dict[str, Any] = dict(description or {})
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Outputs:
        zooms = self.zooms if self._pools else (1.0,)
        return self.outputs_of_maps([self.feature_map(zoomed(images, zoom)) for zoom in zooms])

    def outputs_of_maps(self, maps: Sequence[Tensor]) -> Outputs:
        """Return the outputs for the feature maps of the images at every size."""
        if not self._pools:
            (inputs,) = maps
        else:
            regions = isinstance(self.head, FeatureHead) and self.head.model.num_regions > 0
            inputs = average_zooms([self._pool(features, regions) for features in maps]).flatten(1)
        outputs: Outputs = self.head(inputs)
        return outputs

    @property
    def _pools(self) -> bool:
        """Whether the classifier pools the feature maps, and the head receives pooled features.

        A linear head pools a map itself if all that is needed is the mean over positions at one image size.
        """
        if isinstance(self.head, FeatureHead):
            return True
        return getattr(self.head, "accepts_pooled", False) and (self.zooms != (1.0,) or self.pooling != "mean")

    def _pool(self, features: Tensor, regions: bool) -> Tensor:
        whole = pool(features, self.pooling)
        return torch.cat([whole[:, None], pool_regions(features, self.pooling)], 1) if regions else whole

    def feature_map(self, images: Tensor) -> Tensor:
        """Return the backbone's output: (B, C, h, w), or (B, C) if the backbone pools."""
        features: Tensor = self.backbone(self.normalise(images))
        return features

    def features(self, images: Tensor) -> Tensor:
        """Return pooled features (B, C), the input of the linear head's layer."""
        return average_zooms([self.features_at(images, zoom) for zoom in self.zooms])

    def features_at(self, images: Tensor, zoom: float, *, regions: bool = False) -> Tensor:
        """Return the pooled features (B, C) of the images at one multiple of their size.

        With regions, (B, 1 + 9, C): those of the whole image and of its regions.
        """
        return self._pool(self.feature_map(zoomed(images, zoom)), regions)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise images as the backbone expects: (x − mean) / std with x in 0..1."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images must have shape (B, 3, H, W), not {tuple(images.shape)}")
        if images.dtype == torch.uint8:
            images = images.to(torch.float32) / 255
        elif not images.is_floating_point():
            raise InputError(f"images must be uint8 (0..255) or floating point (0..1), not {images.dtype}")
        return ((images - self.mean) / self.std).to(self.mean.dtype)

    def set_zooms(self, zooms: Sequence[float]) -> None:
        """Average the features of the linear head over these multiples of the image size."""
        self.zooms = tuple(zooms)
        self.description["zooms"] = list(zooms)

    def replace_head(self, model: FeatureModel) -> None:
        """Replace the head by a model over the pooled features."""
        self.head = FeatureHead(model)
        self.description |= {"head": "features", "head_settings": self.head.settings}

    @property
    def pretrained(self) -> bool:
        """Whether pretrained weights of the backbone were loaded by name or from a file, so that they are known."""
        source = self.description.get("weights", {}).get("source", "random")
        return source not in ("random", "given with the module")

    def head_parameters(self) -> Iterator[nn.Parameter]:
        return self.head.parameters()

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        return self.backbone.parameters()


def average_zooms(features: Sequence[Tensor]) -> Tensor:
    """Average features over image sizes.

    Each input is (B, C), or (B, 1 + 9, C) with the whole image first. Of regions, only those of the last, largest size
    are kept, which show small objects best.
    """
    whole = torch.stack([each if each.ndim == 2 else each[:, 0] for each in features]).mean(0)
    return whole if features[-1].ndim == 2 else torch.cat([whole[:, None], features[-1][:, 1:]], 1)


def zoomed(images: Tensor, zoom: float) -> Tensor:
    """Enlarge images. Pixels of type uint8 become floating point in 0..1: rounding would differ between devices."""
    if zoom == 1:
        return images
    size = [round(zoom * side) for side in images.shape[-2:]]
    larger = F.interpolate(images.float(), size=size, mode="bilinear")
    return larger.to(images.dtype) if images.is_floating_point() else larger / 255


class LogitsOnly(Classifier):
    """A classifier from a user's module that returns logits (B, L).

    All of its parameters count as backbone parameters. It has no pooled features.

    Parameters
    ----------
    module : Module
    image_size : int
        Side of the images in pixels.
    mean, std : sequence of three floats
        Normalisation of the images.

    Examples
    --------
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    >>> LogitsOnly(net, image_size=8).num_classes
    5
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
            raise InputError(f"{name} returns shape {tuple(shape)} for one image; it must return logits (1, L)")
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

    def features_at(self, images: Tensor, zoom: float, *, regions: bool = False) -> Tensor:
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
    zooms: Sequence[float] = (1.0,),
    pooling: Pooling | Literal["auto"] = "mean",
    weights: str | Path | None = None,
    **head_settings: Any,
) -> Classifier:
    """Build a classifier from a backbone and a head.

    Parameters
    ----------
    backbone : str or Module
        `lite0`, `lite1`, `lite2`, `small`, `small-nf`, any timm model, or a module that returns a feature map
        (B, C, h, w) or pooled features (B, C). A `Classifier`, such as `LogitsOnly`, is returned unchanged.
    num_classes : int
    head : {"linear", "cam", "label-wise", "attention"}
    pretrained : bool
        Whether a named backbone starts from ImageNet weights (`small` and `small-nf` have none).
    image_size : int, optional
        Side of the images in pixels. Default: the backbone's own; required for a module.
    dropout : float, optional
        Default: 0, and 0.1 in the label-wise and attention heads.
    mean, std : sequence of three floats, optional
        Normalisation of the images. Default: the backbone's own; ImageNet's for a module.
    zooms : sequence of float
        Multiples of the image size over which a linear head averages the features.
    pooling : {"mean", "rms", "auto"}
        How features are pooled for a linear head: their mean over the positions, or their root mean square, which finds
        small objects better. "auto" is "rms" if features are never negative, as after a ReLU.
    weights : path, optional
        Of a named backbone: a .safetensors file with its weights, read instead of downloading them.
    **head_settings
        Keyword arguments of the head; see `LinearHead`, `CamHead`, `LabelWiseHead` and `AttentionHead`.

    Returns
    -------
    Classifier

    Raises
    ------
    InputError
        If a name or setting is unknown, weights cannot be loaded, or backbone and head do not fit together.

    Examples
    --------
    >>> classifier = build_classifier("small", num_classes=10, image_size=64)
    >>> images = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
    >>> classifier(images).logits.shape
    torch.Size([2, 10])
    """
    check_count("num_classes", num_classes)
    if isinstance(backbone, Classifier):
        if backbone.num_classes != num_classes:
            raise InputError(f"the given classifier has {backbone.num_classes} classes, not {num_classes}")
        if head != "linear" or dropout is not None or head_settings:
            raise InputError("the given classifier already has a head. Do not pass head, dropout or head settings")
        return backbone
    if dropout is not None:
        head_settings["dropout"] = dropout
    body = load_backbone(backbone, pretrained=pretrained, image_size=image_size, mean=mean, std=std, weights=weights)
    if body.pooled and head != "linear":
        raise InputError(f"backbone {body.name!r} returns pooled features, which only the linear head accepts")
    if tuple(zooms) != (1.0,) and head != "linear":
        raise InputError(f"zooms {tuple(zooms)} need the linear head, not {head!r}")
    if pooling not in ("mean", "rms", "auto"):
        raise InputError(f"pooling is {pooling!r}: it must be mean, rms or auto")
    if pooling == "auto":
        pooling = "rms" if body.rectified and not body.pooled else "mean"
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
        **({} if tuple(zooms) == (1.0,) else {"zooms": list(zooms)}),
        **({} if pooling == "mean" else {"pooling": pooling}),
    }
    return Classifier(
        body.module,
        top,
        num_classes,
        mean=body.mean,
        std=body.std,
        zooms=zooms,
        pooling=pooling,
        description=description,
    )


def classifier_from_description(description: Mapping[str, Any], backbone: nn.Module | None = None) -> Classifier:
    """Build the classifier of a description, with new weights; load its state dict afterwards.

    Nothing is downloaded.

    Parameters
    ----------
    description : mapping
        The `description` of a classifier.
    backbone : Module, optional
        The user's module, if the classifier was built on one (`module:…`).

    Returns
    -------
    Classifier

    Raises
    ------
    InputError
        If the description is incomplete or needs a module that was not passed.

    Examples
    --------
    >>> classifier = build_classifier("small", num_classes=10, head="cam")
    >>> copy = classifier_from_description(classifier.description)
    >>> missing, unexpected = copy.load_state_dict(classifier.state_dict())
    """
    missing = [key for key in _REQUIRED_KEYS if key not in description]
    if missing:
        raise InputError(f"the description of the classifier is incomplete: it lacks {', '.join(missing)}")
    name = str(description["backbone"])
    if name.startswith("module:") and backbone is None:
        raise InputError(
            f"this classifier was built on your own {name.removeprefix('module:')}. Pass that module as backbone"
        )
    body: str | nn.Module = name if backbone is None else backbone
    mean, std = description["mean"], description["std"]
    feature_model = description["head_settings"].get("model") if description["head"] == "features" else None
    if description["head"] == "logits-only" and isinstance(body, nn.Module):
        classifier: Classifier = LogitsOnly(body, image_size=description["image_size"], mean=mean, std=std)
    else:
        classifier = build_classifier(
            body,
            description["num_classes"],
            "linear" if feature_model else description["head"],
            pretrained=False,
            image_size=description["image_size"],
            mean=mean,
            std=std,
            zooms=description.get("zooms", (1.0,)),
            pooling=description.get("pooling", "mean"),
            **({} if feature_model else description["head_settings"]),
        )
    if feature_model:
        classifier.replace_head(feature_model_from_description(feature_model))
    classifier.description = copy.deepcopy(dict(description))
    return classifier


_REQUIRED_KEYS = ("backbone", "head", "head_settings", "num_classes", "image_size", "mean", "std", "weights")
