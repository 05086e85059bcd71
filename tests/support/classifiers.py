"""Small classifiers and random images."""

from typing import Any

import torch
from torch import Tensor

from spml.models import Classifier, build_classifier

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
