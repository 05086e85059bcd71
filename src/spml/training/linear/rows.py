"""Features and labels as batches on the device."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import Method
from spml.training.examples import check_labels

BLOCK = 2**22  # features per block when all rows are scored
MEASURED = 4096  # largest number of rows from which the mean row is computed
SMALL = 2**28  # largest size in bytes of features and label tables that are copied to the device


class FeatureRows:
    """Some rows of a feature store, without copying them."""

    def __init__(self, store: FeatureStore, rows: Any) -> None:
        self.store = store
        self.rows = torch.as_tensor(rows, dtype=torch.int64)

    @property
    def dim(self) -> int:
        return self.store.dim

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Any) -> Tensor:
        index = torch.as_tensor(rows)
        return self.store.batch(self.rows.to(index.device)[index])

    def ahead(self, rows: Any) -> None:
        index = torch.as_tensor(rows)
        self.store.ahead(self.rows.to(index.device)[index])

    def check_finite(self) -> None:
        self.store.check_finite()

    def to_device(self, device: torch.device | str) -> bool:
        resident = self.store.to_device(device)
        if resident:
            self.rows = self.rows.to(device)
        return resident


Features = FeatureStore | FeatureRows


def as_features(values: Any) -> Features:
    """Return a feature store from a matrix, a path or a store."""
    return values if isinstance(values, (FeatureStore, FeatureRows)) else FeatureStore(values)


class DeviceFeatures:
    """Float32 batches of features on the device, from a copy there if it is small."""

    def __init__(self, features: Features, device: torch.device) -> None:
        self.features, self.device, self.dim = features, device, features.dim
        self._matrix: Tensor | None = None
        if 4 * len(features) * features.dim <= SMALL:
            self._matrix = torch.cat(list(self.blocks()))
        self.resident = self._matrix is not None or (device.type != "cpu" and features.to_device(device))

    def __len__(self) -> int:
        return len(self.features)

    def batch(self, rows: Tensor) -> Tensor:
        """Return the features of some rows, (B, D)."""
        if self._matrix is not None:
            return self._matrix.index_select(0, rows)
        return self.features.batch(rows).to(self.device)

    @cached_property
    def centre(self) -> Tensor:
        """The mean row, (D,), computed from some thousand evenly spaced rows."""
        return self.batch(torch.arange(0, len(self), len(self) // MEASURED + 1, device=self.device)).mean(0)

    def ahead(self, rows: Tensor) -> None:
        """Start reading the rows of a later batch, if they are in a file."""
        if not self.resident and len(rows):
            self.features.ahead(rows)

    def blocks(self) -> Iterator[Tensor]:
        """Yield all rows in order, in blocks."""
        step = max(1, BLOCK // self.dim)
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            if self._matrix is not None:
                yield self._matrix[start:stop]
            else:
                yield self.features.batch(torch.arange(start, stop)).to(self.device)


class DeviceLabels:
    """A label table with batches on the device."""

    def __init__(self, labels: Labels, device: torch.device) -> None:
        self.labels, self.device = labels, device
        small = len(labels) * labels.num_classes <= SMALL
        self._dense = torch.from_numpy(labels.dense()).to(device) if small else None

    def batch(self, rows: Tensor) -> Tensor:
        """Return the labels of some rows, int8 (B, L)."""
        return self.labels.batch(rows, self.device) if self._dense is None else self._dense.index_select(0, rows)


class LabelTables:
    """One label table for each kind of labels that a method may need."""

    def __init__(self, labels: Labels, full: Labels | None, negatives: Labels | None, device: torch.device) -> None:
        for name, table in (("full_labels", full), ("negatives_labels", negatives)):
            if table is not None and table.shape != labels.shape:
                raise InputError(f"{name} is a table of {table.shape}, but labels one of {labels.shape}")
            if table is not None:
                labels.check_same_classes(table, name)
        self.labels, self.shape = labels, labels.shape
        self._given = {"positives": labels, "full": full or labels, "negatives": negatives or labels}
        self._device = device
        self._tables: dict[str, DeviceLabels] = {}

    def of(self, method: Method) -> DeviceLabels:
        """Return the table for a method; raise an error if it needs labels that are unknown."""
        need = method.needs.labels
        if need not in self._tables:
            given = self._given[need]
            check_labels(method, given)
            self._tables[need] = DeviceLabels(given, self._device)
        return self._tables[need]


def row_order(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    """Return the order of the training rows in an epoch, a function of (seed, epoch)."""
    return np.random.default_rng((seed, epoch)).permutation(rows)
