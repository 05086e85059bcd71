"""What the head would see: a backbone's pooled features of the rows of a store."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.models import Classifier
from spml.train.examples import Store, batch_numbers, filled, read_rows


@torch.no_grad()
def pooled_features(
    classifier: Classifier,
    store: Store,
    rows: np.ndarray,
    device: str | torch.device,
    *,
    zooms: Sequence[float] = (1.0,),
    batch_size: int = 64,
    precision: str = "32",
    dtype: type[np.floating[Any]] = np.float32,
    progress: str | None = None,
) -> FeatureStore:
    """The backbone's pooled features of these rows, in evaluation mode, without any augmentation.

    zooms: the features are the mean of those at these multiples of the images' size, or where the backbone takes
    images of one size alone, of that. progress: what a progress bar says, None for none.
    """
    was_training = classifier.training
    classifier.to(device).eval()
    target = torch.device(device)
    matrix: npt.NDArray[Any] | None = None
    numbers, batches = batch_numbers(store, rows, batch_size), math.ceil(len(rows) / batch_size)
    for number in numbers if progress is None else track(numbers, progress, batches):
        start = number * batch_size
        chunk = rows[start : start + batch_size]
        images = filled(read_rows(store, chunk, target), min(batch_size, len(rows)))
        with torch.autocast(target.type, torch.bfloat16, enabled=precision == "bf16"):
            if matrix is None and len(zooms) > 1:
                some = images if target.type == "cuda" else images[:1]  # a GPU takes longer for another number of them
                zooms = zooms if _takes(classifier, some, zooms) else (1.0,)
            seen = [classifier.features(_zoomed(images, zoom)).float() for zoom in zooms]
        pooled = (sum(seen[1:], seen[0]) / len(seen))[: len(chunk)].cpu().numpy()
        if matrix is None:
            matrix = np.empty((len(rows), pooled.shape[1]), dtype)
        matrix[start : start + len(pooled)] = pooled
    classifier.train(was_training)
    return FeatureStore(matrix)


def _zoomed(images: Tensor, zoom: float) -> Tensor:
    if zoom == 1:
        return images
    size = [round(zoom * side) for side in images.shape[-2:]]
    larger = F.interpolate(images.float(), size=size, mode="bilinear", antialias=True)
    return larger.round_().clamp_(0, 255).to(images.dtype)


def _takes(classifier: Classifier, images: Tensor, zooms: Sequence[float]) -> bool:
    """Whether the backbone takes images of these sizes: most transformers know one size, and refuse others."""
    try:
        for zoom in zooms:
            classifier.features(_zoomed(images, zoom))
    except (AssertionError, InputError, RuntimeError, ValueError):
        return False
    return True
