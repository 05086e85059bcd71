"""Examples: rows of a store with their labels, and how batches of them are read."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import Method


class Store(Protocol):
    """Anything that gives rows of images (uint8, B×3×S×S) or features (float, B×D)."""

    def batch(self, rows: Any) -> Tensor: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Examples:
    """Rows of a store and their labels.

    Parameters
    ----------
    store : Store
        Images or features.
    rows : array of shape (n_rows,)
        Rows of the store.
    labels : Labels
        Row i belongs to row `rows[i]` of the store.
    """

    store: Store
    rows: np.ndarray
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.labels):
            raise InputError(f"{len(self.rows)} rows, but labels for {len(self.labels)}")


def check_labels(method: Method, labels: Labels) -> None:
    """Raise `InputError` if a method needs negatives or full labels that the training rows do not have."""
    if method.needs.labels == "full" and not labels.is_full:
        raise InputError(f"method {method.name!r} needs full labels, but some labels of the training rows are unknown")
    if method.needs.labels == "negatives" and not labels.counts().negatives.any():
        raise InputError(f"method {method.name!r} needs known negatives, but the training rows have none")


def check_on_features(method: type[Method]) -> None:
    """Raise `InputError` if a method cannot be trained on features, where there is only a linear head."""
    name, head = method.name, method.needs.head
    if head != "linear":
        raise InputError(f"method {name!r} needs the head {head!r}, which is not available for features")
    if method.objective is Method.objective:
        raise InputError(f"method {name!r} defines only a loss for images, no objective: it cannot train on features")


def batch_numbers(
    store: Store, rows: np.ndarray, size: int, first: int = 0, share: Callable[[int], np.ndarray] = np.arange
) -> Iterable[int]:
    """Batch numbers from `first` on. A store that reads or decodes files prefetches the rows of these batches.

    `share(n)` gives the positions in a batch of n rows that this process will read.
    """
    if isinstance(store, ImageStore):
        return store.reading(rows, size, first, share)
    if isinstance(store, FeatureStore):
        return store.reading(rows, size, first)
    return range(first, math.ceil(len(rows) / size))


def read_rows(store: Store, rows: np.ndarray, device: torch.device) -> Tensor:
    """Rows of a store on a device. Copies to a GPU use pinned memory where possible, so that they are asynchronous."""
    if device.type == "cuda" and isinstance(store, ImageStore | FeatureStore):
        return store.batch(rows, pin=True).to(device, non_blocking=True)
    return store.batch(rows).to(device, non_blocking=True)


def pad_batch(inputs: Tensor, size: int) -> Tensor:
    """On a GPU, pad the last batch with zeros to the usual size.

    cuDNN compiles depthwise kernels for every batch size, which takes longer than the extra images.
    """
    if inputs.device.type != "cuda" or len(inputs) >= size:
        return inputs
    return torch.cat([inputs, inputs.new_zeros(size - len(inputs), *inputs.shape[1:])])
