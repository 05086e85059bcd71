"""Views of images: augmentation of a whole batch of uint8 images at once, different for every image.

A view is drawn, then applied. `draw` takes all random numbers from a CPU generator; `apply` is a function of the images
and these numbers, on the device of the images. The same generator therefore gives the same views on every device, up to
one grey level of rounding.

  plain   the unchanged image
  weak    random resized crop, if `crop_scale` is set, and horizontal flip
  strong  weak, then Cutout, RandAugment, colour jitter and random grey, in this order

RandAugment draws its operations, with replacement, from the 14 below. `magnitude` M runs from 0 to 30:

  identity, autocontrast, equalize          independent of M
  brightness, contrast, colour, sharpness   factor 1 ± 0.9·M/30
  posterize                                 8 - round(4·M/30) bits kept
  solarize                                  values of at least 255·(1 - M/30) are inverted
  rotate                                    ± 30°·M/30 about the centre
  shear-x, shear-y                          ± 0.3·M/30 about the centre
  translate-x, translate-y                  ± 150/331·M/30 of the side

Pixels that a rotation, shear or translation takes from outside the image, and Cutout's square, are mid grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from spml.errors import InputError
from spml.type_checks import Range, Share, check_types

Kind = Literal["plain", "weak", "strong"]

_FACTORS = ("brightness", "contrast", "colour", "sharpness")
_WARPS = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
OPERATIONS = ("identity", "autocontrast", "equalize", *_FACTORS, "posterize", "solarize", *_WARPS)
"""RandAugment's operations; `StrongParameters.operation` holds indices into this tuple."""

MAX_MAGNITUDE = 30
_GREY = 128


@dataclass(frozen=True)
class ViewSettings:
    """Settings of weak and strong views. Probabilities and shares are between 0 and 1."""

    flip: Share = 0.5
    """Probability of a horizontal flip."""
    crop_scale: tuple[float, float] | None = None
    """Smallest and largest share of the image's area that a random resized crop keeps; None: no crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest ratio of width to height of that crop."""
    randaugment_ops: Annotated[int, Range(0, 100)] = 2
    """Number of RandAugment operations of a strong view."""
    magnitude: Annotated[float, Range(0, MAX_MAGNITUDE)] = 9
    """Strength of these operations, 0 to 30; see the table in the module's docstring."""
    cutout: Share = 0.5
    """Side of Cutout's square as a share of the image's side. Its centre is anywhere in the image. 0: no Cutout."""
    jitter: Share = 0.4
    """Brightness, contrast and saturation are multiplied by factors uniform in 1 ± jitter."""
    grey: Share = 0.2
    """Probability of a grey image."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.crop_scale is not None and not 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1:
            raise InputError(
                f"crop_scale is {self.crop_scale!r}: it must be two shares above 0 and up to 1, the smaller one first."
            )
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1] < math.inf:
            raise InputError(
                f"crop_ratio is {self.crop_ratio!r}: it must be two ratios above 0, the smaller one first."
            )


@dataclass(frozen=True, eq=False)
class StrongParameters:
    """Parameters of the strong part of a view, for each of B rows. CPU tensors."""

    cutout_side: float
    """As a share of the image's side."""
    cutout_centre: Tensor
    """(B, 2) x and y as shares of width and height."""
    operation: Tensor
    """(B, ops) int64, indices into `OPERATIONS`, applied from left to right."""
    level: Tensor
    """(B, ops) float32: factor, bits, threshold, degrees, shear or share of the side; 0 if there is none."""
    jitter: Tensor
    """(B, 3) factors of brightness, contrast and saturation, applied in this order."""
    grey: Tensor
    """(B,) bool."""


@dataclass(frozen=True, eq=False)
class ViewParameters:
    """Parameters of a view, for each of B rows. CPU tensors; see `draw`."""

    flip: Tensor
    """(B,) bool."""
    crop: Tensor | None = None
    """(B, 4) left, top, width and height as shares of the image's side."""
    strong: StrongParameters | None = None

    def __len__(self) -> int:
        return len(self.flip)

    def take(self, rows: Any) -> ViewParameters:
        """Return the parameters of the given rows (a slice, or row numbers), such as one process's part of a batch."""
        strong = self.strong
        if strong is not None:
            names = ("cutout_centre", "operation", "level", "jitter", "grey")
            strong = replace(strong, **{name: getattr(strong, name)[rows] for name in names})
        return ViewParameters(self.flip[rows], None if self.crop is None else self.crop[rows], strong)


def draw(kind: Kind, rows: int, settings: ViewSettings, generator: torch.Generator) -> ViewParameters:
    """Draw a view of `rows` images from a CPU generator. A plain view uses no random numbers."""
    if kind not in get_args(Kind):
        raise InputError(f"the view is {kind!r}: it must be one of {', '.join(map(repr, get_args(Kind)))}.")
    if generator.device.type != "cpu":
        raise InputError(f"views need a CPU generator, not one on {generator.device}.")
    if kind == "plain":
        return ViewParameters(torch.zeros(rows, dtype=torch.bool))
    uniform = torch.rand(rows, 5, generator=generator)
    return ViewParameters(
        flip=uniform[:, 0] < settings.flip,
        crop=None if settings.crop_scale is None else _crop_boxes(uniform[:, 1:], settings),
        strong=_draw_strong(rows, settings, generator) if kind == "strong" else None,
    )


def _crop_boxes(uniform: Tensor, settings: ViewSettings) -> Tensor:
    assert settings.crop_scale is not None
    low, high = settings.crop_scale
    area = low + (high - low) * uniform[:, 0]
    # A box of area s and ratio r is sqrt(s r) wide and sqrt(s / r) high. It fits into the image if s <= r <= 1/s.
    # The ratio is drawn log-uniformly from the part of its range that fits, so no draw is rejected.
    bound = -area.log()
    first, last = (torch.clamp(torch.full_like(area, math.log(r)), -bound, bound) for r in settings.crop_ratio)
    ratio = torch.exp(first + (last - first) * uniform[:, 1])
    width = torch.sqrt(area * ratio).clamp(max=1)
    height = torch.sqrt(area / ratio).clamp(max=1)
    return torch.stack([uniform[:, 2] * (1 - width), uniform[:, 3] * (1 - height), width, height], dim=1)


def _draw_strong(rows: int, settings: ViewSettings, generator: torch.Generator) -> StrongParameters:
    shape = (rows, settings.randaugment_ops)
    operation = torch.randint(len(OPERATIONS), shape, generator=generator)
    sign = torch.randint(2, shape, generator=generator) * 2 - 1
    uniform = torch.rand(rows, 6, generator=generator)
    levels = torch.tensor([_level(name, settings.magnitude / MAX_MAGNITUDE) for name in OPERATIONS])  # of either sign
    return StrongParameters(
        cutout_side=settings.cutout,
        cutout_centre=uniform[:, :2],
        operation=operation,
        level=levels[operation, (sign + 1) // 2],
        jitter=1 + settings.jitter * (2 * uniform[:, 2:5] - 1),
        grey=uniform[:, 5] < settings.grey,
    )


def _level(name: str, strength: float) -> tuple[float, float]:
    """Return the level of an operation at a strength between 0 and 1, for the negative and the positive sign."""
    if name in _FACTORS:
        return 1 - 0.9 * strength, 1 + 0.9 * strength
    if name == "posterize":
        return (8 - round(4 * strength),) * 2
    if name == "solarize":
        return (255 * (1 - strength),) * 2
    most = {"rotate": 30.0, "shear-x": 0.3, "shear-y": 0.3, "translate-x": 150 / 331, "translate-y": 150 / 331}
    level = most.get(name, 0.0) * strength
    return -level, level


@torch.no_grad()
def apply(images: Tensor, parameters: ViewParameters) -> Tensor:
    """Apply a view to uint8 images (B, 3, H, W). Returns uint8 of the same shape, on the same device.

    If nothing changes, the input itself is returned. A flip without a crop only moves pixels.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"images must be uint8 of shape (B, 3, H, W), not {images.dtype} of shape {tuple(images.shape)}."
        )
    if len(images) != len(parameters):
        raise InputError(f"the view was drawn for {len(parameters)} images, not for {len(images)}.")
    if parameters.crop is not None:
        images = _warp(images, _crop_matrices(parameters.crop, parameters.flip, images), "border")
    elif bool(parameters.flip.any()):
        images = images.clone()
        _apply_to_rows(images, parameters.flip, torch.flip, (-1,))
    return images if parameters.strong is None else _strong(images, parameters.strong)


def _strong(images: Tensor, strong: StrongParameters) -> Tensor:
    images = _cutout(images, strong)
    for index in range(strong.operation.shape[1]):
        _randaugment(images, strong.operation[:, index], strong.level[:, index])
    if bool((strong.jitter != 1).any()) or bool(strong.grey.any()):
        pixels = images.float()
        for factor, blend in zip(strong.jitter.unbind(1), (_brightness, _contrast, _colour), strict=True):
            pixels = blend(pixels, _column(factor, images)).clamp_(0, 255)
        images = _to_uint8(torch.where(_column(strong.grey, images), _luma(pixels), pixels))
    return images


def _cutout(images: Tensor, strong: StrongParameters) -> Tensor:
    """Return a copy with a mid-grey square around each centre, clipped at the border."""
    if strong.cutout_side == 0:
        return images.clone()
    inside = []
    for axis, length in ((0, images.shape[-1]), (1, images.shape[-2])):
        side = round(strong.cutout_side * length)
        first = (strong.cutout_centre[:, axis] * length).long() - side // 2
        pixel = torch.arange(length)
        inside.append((pixel >= first[:, None]) & (pixel < first[:, None] + side))
    across, down = (_move(mask, images.device) for mask in inside)
    return images.masked_fill(across[:, None, None, :] & down[:, None, :, None], _GREY)


def _randaugment(images: Tensor, operation: Tensor, level: Tensor) -> None:
    """Apply one operation per row, in place."""
    for name, function in _PIXELWISE.items():
        mask = operation == OPERATIONS.index(name)
        _apply_to_rows(images, mask, function, level[mask])
    warped = torch.isin(operation, torch.tensor([OPERATIONS.index(name) for name in _WARPS]))
    _apply_to_rows(images, warped, _warp, _warp_matrices(operation[warped], level[warped], images), "grey")


def _apply_to_rows(images: Tensor, mask: Tensor, function: Callable[..., Tensor], *arguments: Any) -> None:
    """Change the chosen rows in place. `chosen` is on the CPU, which avoids waiting for the device."""
    if bool(mask.any()):
        rows = _move(mask.nonzero().squeeze(1), images.device)
        images.index_copy_(0, rows, function(images.index_select(0, rows), *arguments))


# Geometric operations. A matrix (B, 2, 3) maps an output pixel (x, y, 1), counted from the centre, to its source.


def _crop_matrices(crop: Tensor, flip: Tensor, images: Tensor) -> Tensor:
    left, top, width, height = crop.unbind(1)
    matrices = torch.zeros(len(crop), 2, 3)
    matrices[:, 0, 0] = torch.where(flip, -width, width)
    matrices[:, 1, 1] = height
    matrices[:, 0, 2] = (left + width / 2 - 0.5) * images.shape[-1]
    matrices[:, 1, 2] = (top + height / 2 - 0.5) * images.shape[-2]
    return matrices


def _warp_matrices(operation: Tensor, level: Tensor, images: Tensor) -> Tensor:
    def level_of(name: str) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), level, 0.0)

    angle = torch.deg2rad(level_of("rotate"))
    matrices = torch.empty(len(level), 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = angle.cos()
    matrices[:, 0, 1] = level_of("shear-x") - angle.sin()  # at most one of the two is nonzero
    matrices[:, 1, 0] = level_of("shear-y") + angle.sin()
    matrices[:, 0, 2] = -level_of("translate-x") * images.shape[-1]
    matrices[:, 1, 2] = -level_of("translate-y") * images.shape[-2]
    return matrices


def _warp(images: Tensor, matrices: Tensor, edge: Literal["border", "grey"]) -> Tensor:
    """Bilinear sampling; outside the image its border, or mid grey."""
    height, width = images.shape[-2:]
    to_grid = 2 / torch.tensor([[width], [height]])  # grid_sample uses -1 to 1 from edge to edge
    by_x, by_y, shift = _move(matrices * to_grid, images.device)[:, None, None].unbind(-1)
    x = (torch.arange(width, device=images.device) - (width - 1) / 2)[:, None]
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None, None]
    # Not affine_grid: its matrix product loses precision under TF32 and autocast.
    grid = torch.addcmul(torch.addcmul(shift, by_y, y), by_x, x)  # (B, H, W, 2)
    pixels = images.float() - _GREY  # so that the zeros outside are grey
    padding = "border" if edge == "border" else "zeros"
    return _to_uint8(F.grid_sample(pixels, grid, padding_mode=padding, align_corners=False) + _GREY)


# Operations on float pixels (b, 3, H, W) with a factor (b, 1, 1, 1).


def _luma(pixels: Tensor) -> Tensor:
    red, green, blue = pixels.unbind(1)
    return (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)[:, None]


def _brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    return pixels * factor


def _contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_luma(pixels).mean(dim=(1, 2, 3), keepdim=True), pixels, factor)


def _colour(pixels: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_luma(pixels), pixels, factor)


def _sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the smoothed image, whose 3×3 kernel is 5 in the middle and 1 elsewhere, divided by 13."""
    if min(pixels.shape[-2:]) < 3:
        return pixels
    down = pixels[..., :-2, :] + pixels[..., 1:-1, :] + pixels[..., 2:, :]
    middle = pixels[..., 1:-1, 1:-1]
    smooth = (down[..., :-2] + down[..., 1:-1] + down[..., 2:] + 4 * middle) / 13
    out = pixels.clone()  # the border stays
    out[..., 1:-1, 1:-1] = torch.lerp(smooth, middle, factor)
    return out


# RandAugment's operations on uint8 pixels (b, 3, H, W); levels (b,) are on the CPU.


def _rounded(blend: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda images, factor: _to_uint8(blend(images.float(), _column(factor, images)))


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch every channel to 0..255; constant channels stay."""
    low = images.amin(dim=(2, 3), keepdim=True).float()
    span = images.amax(dim=(2, 3), keepdim=True).float() - low
    stretched = (images.float() - low) * (255 / span.clamp(min=1))
    return torch.where(span > 0, _to_uint8(stretched), images)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Spread every channel's values evenly: v becomes (pixels below v + step/2) / step, all in whole numbers.

    `step` is a 255th of the pixels that do not have the channel's highest value; where that is 0 nothing changes.
    """
    channels = images.flatten(0, 1).flatten(1).long()
    count, size = channels.shape
    offset = torch.arange(0, 256 * count, 256, device=images.device)[:, None]
    histogram = torch.zeros(256 * count, dtype=torch.long, device=images.device)
    bins = (channels + offset).flatten()
    histogram.scatter_add_(0, bins, torch.ones_like(bins))
    histogram = histogram.view(count, 256)
    highest = histogram.gather(1, channels.amax(dim=1, keepdim=True))
    step = torch.div(size - highest, 255, rounding_mode="floor")
    below = histogram.cumsum(1) - histogram
    spread = torch.div(below + torch.div(step, 2, rounding_mode="floor"), step.clamp(min=1), rounding_mode="floor")
    table = torch.where(step > 0, spread.clamp_(max=255), torch.arange(256, device=images.device))
    return table.to(torch.uint8).flatten()[bins].view_as(images)


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    mask = 256 - (1 << (8 - bits.long()))
    return images & _column(mask.to(torch.uint8), images)


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(images >= _column(threshold, images), 255 - images, images)


_PIXELWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "brightness": _rounded(_brightness),
    "contrast": _rounded(_contrast),
    "colour": _rounded(_colour),
    "sharpness": _rounded(_sharpness),
    "posterize": _posterize,
    "solarize": _solarize,
}


def _to_uint8(pixels: Tensor) -> Tensor:
    return pixels.clamp(0, 255).round_().to(torch.uint8)


def _move(values: Tensor, device: torch.device) -> Tensor:
    """Move to the device without waiting for it. A few hundred bytes do not profit from pinned memory."""
    return values.to(device, non_blocking=True)


def _column(values: Tensor, images: Tensor) -> Tensor:
    """(B,) on the CPU -> (B, 1, 1, 1) on the device of the images."""
    return _move(values, images.device)[:, None, None, None]
