"""Rows to learn from or to predict, and the order in which they are read."""

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


class Store(Protocol):
    """Rows of images (uint8, B×3×S×S) or features (float, B×D)."""

    def batch(self, rows: Any) -> Tensor: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Examples:
    """Rows of a store and what is known of their labels: label row i belongs to store row rows[i]."""

    store: Store
    rows: np.ndarray
    labels: Labels

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.labels):
            raise InputError(f"{len(self.rows)} rows were given with labels for {len(self.labels)}")


def batch_numbers(
    store: Store, rows: np.ndarray, size: int, first: int = 0, share: Callable[[int], np.ndarray] = np.arange
) -> Iterable[int]:
    """The numbers of the batches of these rows, from `first` on; a store that reads or decodes files does so ahead.

    `share(n)` are the positions in a batch of n rows that will be asked for.
    """
    if isinstance(store, ImageStore):
        return store.reading(rows, size, first, share)
    if isinstance(store, FeatureStore):
        return store.reading(rows, size, first)
    return range(first, math.ceil(len(rows) / size))


def read_rows(store: Store, rows: np.ndarray, device: torch.device) -> Tensor:
    """Rows of a store on a device; to a GPU by way of pinned memory, where the store has it, so that nobody waits."""
    if device.type == "cuda" and isinstance(store, ImageStore | FeatureStore):
        return store.batch(rows, pin=True).to(device, non_blocking=True)
    return store.batch(rows).to(device, non_blocking=True)


def filled(inputs: Tensor, size: int) -> Tensor:
    """On a GPU, the inputs of a last batch with empty ones up to the size of those before it.

    For every number of images cuDNN makes depthwise kernels anew, which takes longer than the images.
    """
    if inputs.device.type != "cuda" or len(inputs) >= size:
        return inputs
    return torch.cat([inputs, inputs.new_zeros(size - len(inputs), *inputs.shape[1:])])
