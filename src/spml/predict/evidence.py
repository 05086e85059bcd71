"""What supports a label: regions of an image, words of a text, values of a row."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from spml.models import Classifier
from spml.models.classifier import zoomed
from spml.models.text_encoders import TfidfEncoder

UInt8 = npt.NDArray[np.uint8]

_VISIBLE = 0.15  # of the strongest word's contribution


def support_maps(network: Classifier, image: UInt8, labels: Sequence[int]) -> list[torch.Tensor] | None:
    """How much each position (h, w) of the feature map raises a label's logit: Σ_c feature · gradient.

    For a linear head these are class activation maps. The median is subtracted, because a bias can support a label
    that every position speaks against. None if the features have no spatial dimensions. Of a network that reads images
    at several sizes, the map is that of the largest.
    """
    images = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]
    with torch.no_grad():
        features = network.feature_map(zoomed(images, max(network.zooms)))
    if features.ndim != 4:
        return None
    features.requires_grad_(True)
    logits = network.outputs_of_maps([features]).logits[0]
    gradients = [torch.autograd.grad(logits[label], features, retain_graph=True)[0] for label in labels]
    maps = [(features * gradient).detach()[0].sum(0) for gradient in gradients]
    return [(map_ - map_.median()).relu() for map_ in maps]


def highlight(image: UInt8, weights: torch.Tensor) -> UInt8:
    """Return the image in pale colours, with its own colours and a warm glow where the weights (h, w) are high."""
    height, width, _ = image.shape
    weights = weights.float().clamp(min=0)
    large = interpolate(weights[None, None], (height, width), mode="bicubic", align_corners=False)[0, 0]
    glow = (large / large.max().clamp(min=1e-12)).clamp(0, 1).numpy()[..., None]
    pale = 0.6 * image.mean(axis=2, keepdims=True) + 0.15 * image + 25  # dark images stay visible, too
    warm = 0.65 * image + 0.35 * np.array([255.0, 150.0, 30.0])
    mixed: UInt8 = np.clip(pale * (1 - glow) + warm * glow, 0, 255).astype(np.uint8)
    return mixed


def marked_words(encoder: TfidfEncoder, text: str, weights: npt.NDArray[np.floating]) -> list[tuple[str, float]]:
    """Return the text in pieces, each with a share of 0 to 1: what it adds to a label, relative to the strongest piece.

    Shares below 0.15 are 0, and neighbouring pieces with a share of 0 are one. `weights` (D,) are those of the label.
    """
    segments = encoder.segments(text, weights)
    most = max((score for _, score in segments), default=0.0)
    pieces: list[tuple[str, float]] = []
    for piece, score in segments:
        share = score / most if most > 0 and not piece.isspace() else 0.0
        share = share if share >= _VISIBLE else 0.0
        if not share and pieces and not pieces[-1][1]:
            pieces[-1] = (pieces[-1][0] + piece, 0.0)
        else:
            pieces.append((piece, share))
    return pieces
