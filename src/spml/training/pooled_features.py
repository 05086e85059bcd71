"""A backbone's pooled features: the input of a linear head."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.models import Classifier
from spml.models.classifier import zoomed
from spml.models.frozen import FrozenFeatures
from spml.training.examples import Store, batch_numbers, filled, read_rows

FEWEST_ROWS = 256  # for fewer rows, preparing a faster copy of the backbone on a CPU takes longer than it saves


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
    """Compute the backbone's pooled features of these rows, in evaluation mode and without augmentation.

    Parameters
    ----------
    classifier : Classifier
        It is moved to `device`.
    store : Store
        Images or features.
    rows : array of shape (n_rows,)
        Rows of the store.
    device : str or torch.device
        Where to compute.
    zooms : sequence of float
        The features are averaged over these multiples of the image size. A backbone that supports only one image
        size uses that size alone.
    batch_size : int
        Rows per batch.
    precision : {"32", "bf16"}
        Precision of the forward pass.
    dtype : NumPy floating type
        Type of the returned features.
    progress : str, optional
        Description of a progress bar. Default: none.

    Returns
    -------
    FeatureStore
    """
    was_training = classifier.training
    classifier.to(device).eval()
    target = torch.device(device)
    matrix: npt.NDArray[Any] | None = None
    fast = target.type == "cpu" and precision == "32" and len(rows) >= FEWEST_ROWS
    features = FrozenFeatures(classifier) if fast else partial(classifier.features_at, zoom=1)
    numbers, batches = batch_numbers(store, rows, batch_size), math.ceil(len(rows) / batch_size)
    for number in numbers if progress is None else track(numbers, progress, batches):
        start = number * batch_size
        chunk = rows[start : start + batch_size]
        images = filled(read_rows(store, chunk, target), min(batch_size, len(rows)))
        with torch.autocast(target.type, torch.bfloat16, enabled=precision == "bf16"):
            if matrix is None and len(zooms) > 1:
                some = images if target.type == "cuda" else images[:1]  # another batch size makes cuDNN search again
                zooms = supported_zooms(classifier, some, zooms)
            each = [features(zoomed(images, zoom)).float() for zoom in zooms]
        pooled = (sum(each[1:], each[0]) / len(each))[: len(chunk)].cpu().numpy()
        if matrix is None:
            matrix = np.empty((len(rows), pooled.shape[1]), dtype)
        matrix[start : start + len(pooled)] = pooled
    classifier.train(was_training)
    return FeatureStore(matrix)


@torch.no_grad()
def supported_zooms(classifier: Classifier, images: Tensor, zooms: Sequence[float]) -> Sequence[float]:
    """The zooms if the backbone accepts images of these sizes, otherwise 1; most transformers accept a single size."""
    try:
        for zoom in zooms:
            classifier.features_at(images, zoom)
    except (AssertionError, InputError, RuntimeError, ValueError):
        return (1.0,)
    return zooms
