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
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.models import Classifier
from spml.models.classifier import average_zooms, zoomed
from spml.models.frozen import FrozenFeatures
from spml.training.examples import Store, batch_numbers, pad_batch, read_rows
from spml.training.frozen.feature_cache import image_keys, open_cache

MIN_ROWS_TO_ACCELERATE = (
    256  # for fewer rows, preparing a faster copy of the backbone on a CPU takes longer than it saves
)


def pooled_features(
    classifier: Classifier,
    store: Store,
    rows: np.ndarray,
    device: str | torch.device,
    *,
    zooms: Sequence[float] = (1.0,),
    regions: bool = False,
    batch_size: int = 64,
    precision: str = "32",
    dtype: type[np.floating[Any]] = np.float32,
    progress: str | None = None,
) -> FeatureStore:
    """Compute the backbone's pooled features of these rows, in evaluation mode and without augmentation.

    Features of images by a pretrained network are kept for later runs; see `spml.training.frozen.feature_cache`.

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
    regions : bool
        Also compute the features of nine regions of each image: 10 · C numbers per row, those of the whole image first.
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
    target = torch.device(device)
    classifier.to(target)
    cache = None
    if isinstance(store, ImageStore):
        cache = open_cache(classifier, store, zooms, regions, precision, target)
    computed_dtype = dtype if cache is None else np.float32  # the cache also serves runs that need full precision

    def compute(positions: np.ndarray) -> npt.NDArray[Any]:
        return _compute(
            classifier, store, rows[positions], target, zooms, regions, batch_size, precision, computed_dtype, progress
        )

    if cache is None:
        return FeatureStore(compute(np.arange(len(rows))))
    assert isinstance(store, ImageStore)
    return FeatureStore(cache.get_or_compute(image_keys(store, rows), compute).astype(dtype, copy=False))


def features_are_cached(
    classifier: Classifier,
    store: Store,
    rows: np.ndarray,
    device: str | torch.device,
    *,
    zooms: Sequence[float] = (1.0,),
    regions: bool = False,
) -> bool:
    """Return whether `pooled_features` finds the features of all these rows in the cache, and needs no image."""
    if not isinstance(store, ImageStore):
        return False
    cache = open_cache(classifier, store, zooms, regions, "32", torch.device(device))
    return cache is not None and cache.has_all(image_keys(store, rows))


@torch.no_grad()
def _compute(
    classifier: Classifier,
    store: Store,
    rows: np.ndarray,
    target: torch.device,
    zooms: Sequence[float],
    regions: bool,
    batch_size: int,
    precision: str,
    dtype: type[np.floating[Any]],
    progress: str | None,
) -> npt.NDArray[Any]:
    was_training = classifier.training
    classifier.eval()
    matrix: npt.NDArray[Any] | None = None
    fast = target.type == "cpu" and precision == "32" and len(rows) >= MIN_ROWS_TO_ACCELERATE
    own = partial(classifier.features_at, zoom=1, regions=regions)
    extract = FrozenFeatures(classifier, regions=regions) if fast else own
    numbers, batches = batch_numbers(store, rows, batch_size), math.ceil(len(rows) / batch_size)
    for number in numbers if progress is None else track(numbers, progress, batches):
        start = number * batch_size
        chunk = rows[start : start + batch_size]
        images = pad_batch(read_rows(store, chunk, target), min(batch_size, len(rows)))
        with torch.autocast(target.type, torch.bfloat16, enabled=precision == "bf16"):
            if matrix is None and len(zooms) > 1:
                sample = images if target.type == "cuda" else images[:1]  # another batch size makes cuDNN search again
                zooms = supported_zooms(classifier, sample, zooms)
            at_zooms = [extract(zoomed(images, zoom)).float() for zoom in zooms]
        pooled = average_zooms(at_zooms)[: len(chunk)].flatten(1).cpu().numpy()
        if matrix is None:
            matrix = np.empty((len(rows), pooled.shape[1]), dtype)
        matrix[start : start + len(pooled)] = pooled
    classifier.train(was_training)
    assert matrix is not None
    return matrix


@torch.no_grad()
def supported_zooms(classifier: Classifier, images: Tensor, zooms: Sequence[float]) -> Sequence[float]:
    """The zooms if the backbone accepts images of these sizes, otherwise 1; most transformers accept a single size."""
    try:
        for zoom in zooms:
            classifier.features_at(images, zoom)
    except (AssertionError, InputError, RuntimeError, ValueError):
        return (1.0,)
    return zooms
