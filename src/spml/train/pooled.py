"""What the head would see: a backbone's pooled features of the rows of a store."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch import Tensor

from ..data.features import FeatureStore
from ..models import Classifier


class Rows(Protocol):
    def batch(self, rows: np.ndarray) -> Tensor: ...


@torch.no_grad()
def pooled_features(
    classifier: Classifier,
    store: Rows,
    rows: np.ndarray,
    device: str | torch.device,
    *,
    batch_size: int = 64,
    precision: str = "32",
    dtype: type[np.floating[Any]] = np.float32,
    progress: str | None = None,
) -> FeatureStore:
    """The backbone's pooled features of these rows, in evaluation mode, without any augmentation.

    progress: what a progress bar says, None for none.
    """
    was_training = classifier.training
    classifier.to(device).eval()
    target = torch.device(device)
    matrix: npt.NDArray[Any] | None = None
    starts = range(0, len(rows), batch_size)
    for start in starts if progress is None else track(starts, progress):
        images = store.batch(rows[start : start + batch_size]).to(target)
        with torch.autocast(target.type, torch.bfloat16, enabled=precision == "bf16"):
            pooled = classifier.features(images).float().cpu().numpy()
        if matrix is None:
            matrix = np.empty((len(rows), pooled.shape[1]), dtype)
        matrix[start : start + len(pooled)] = pooled
    classifier.train(was_training)
    return FeatureStore(matrix)
