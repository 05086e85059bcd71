"""The rows that learners are trained on: folds, standardisation, and matrix products block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.data.stores.features import FeatureStore

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_RESIDENT = 2**31  # bytes of standardised float32 features that are kept in memory
_BLOCK = 2**24  # features that are read at a time otherwise


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation of every feature. Sparse features are scaled together and not centred."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def measure(cls, store: FeatureStore, rows: Int64) -> Scaling:
        """Measure the given rows. Constant features are not scaled, and become 0."""
        total, squares = np.zeros(store.dim), np.zeros(store.dim)
        shift: Any = None  # subtracted before squaring: large means would cancel digits
        size = max(1, _BLOCK // store.dim)
        for start in range(0, len(rows), size):
            block = store.block(rows[start : start + size])
            if store.is_sparse:
                squares += np.asarray(block.multiply(block).sum(axis=0)).ravel()
                continue
            values = block.double().cpu()
            shift = values[0].clone() if shift is None else shift
            values -= shift
            total += values.sum(0).numpy()
            squares += values.square().sum(0).numpy()
        if store.is_sparse:
            # One factor for all: words keep their weights. The mean row has the norm of a standardised dense row.
            size_of_row = np.sqrt(squares.sum() / len(rows) / store.dim)
            deviation = np.full(store.dim, size_of_row if size_of_row > 0 else 1.0)
            return cls(torch.zeros(store.dim).double(), torch.from_numpy(deviation))
        mean = total / len(rows)
        variance = np.maximum(squares / len(rows) - mean**2, 0.0)
        # Rounding leaves a constant feature with a tiny variance, and dividing by it would amplify noise.
        floor = 1e-6 * np.abs(mean + shift.numpy()) + 1e-30
        deviation = np.where(np.sqrt(variance) > floor, np.sqrt(variance), np.inf)
        return cls(torch.from_numpy(mean + shift.numpy()), torch.from_numpy(deviation))

    def apply(self, block: Tensor) -> Tensor:
        """Standardised float32 rows."""
        mean, deviation = self.mean.to(block.device), self.deviation.to(block.device)
        return ((block.double() - mean) / deviation).float() if block.device.type == "cpu" else self._on_device(block)

    def _on_device(self, block: Tensor) -> Tensor:
        mean, deviation = self.mean.to(block.device), self.deviation.to(block.device)
        return ((block - mean.float()) / deviation.float()).float()


@dataclass(frozen=True)
class Block:
    """Rows of one fold: their positions among the training rows, and their features (a tensor or a CSR matrix)."""

    fold: int
    positions: Tensor
    features: Any

    def times(self, matrix: Tensor) -> Tensor:
        """features @ matrix, (B, K) for a matrix (D, K)."""
        if isinstance(self.features, Tensor):
            return self.features @ matrix
        return torch.from_numpy(np.asarray(self.features @ matrix.numpy()))

    def transposed_times(self, matrix: Tensor) -> Tensor:
        """featuresᵀ @ matrix, (D, K) for a matrix (B, K)."""
        if isinstance(self.features, Tensor):
            return self.features.T @ matrix
        return torch.from_numpy(np.asarray(self.features.T @ matrix.numpy()))


class Design:
    """Standardised training rows in blocks that lie within one fold.

    Parameters
    ----------
    store : FeatureStore
    rows : array of shape (n,)
        Rows of the store.
    fold : array of shape (n,)
        Fold of every row.
    device : torch.device
        Sparse features are multiplied on the CPU.
    """

    def __init__(self, store: FeatureStore, rows: Int64, fold: Int64, device: torch.device) -> None:
        self.store, self.rows, self.fold = store, rows, fold
        self.folds = int(fold.max()) + 1
        self.device = torch.device("cpu") if store.is_sparse else device
        self.scaling = Scaling.measure(store, rows)
        self._blocks: list[Block] | None = None
        if store.is_sparse or 4 * len(rows) * store.dim <= _RESIDENT:
            self._blocks = [self._read(f, np.flatnonzero(fold == f)) for f in range(self.folds)]
            self._blocks = [block for block in self._blocks if len(block.positions)]

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterator[Block]:
        """All rows, each once."""
        if self._blocks is not None:
            yield from self._blocks
            return
        order = np.argsort(self.rows, kind="stable")
        size = max(self.folds, _BLOCK // self.store.dim)
        for number in self.store.reading(self.rows[order], size):
            part = order[number * size : (number + 1) * size]
            for f in range(self.folds):
                inside = part[self.fold[part] == f]
                if len(inside):
                    yield self._read(f, inside)

    def _read(self, fold: int, positions: Int64) -> Block:
        places = torch.from_numpy(positions).to(self.device)
        if self.store.is_sparse:
            block = self.store.block(self.rows[positions]).astype(np.float32)
            return Block(fold, places, block.multiply(np.float32(1 / float(self.scaling.deviation[0]))).tocsr())
        return Block(fold, places, self.scaling.apply(self.store.batch(self.rows[positions]).to(self.device)))


def assign_folds(label: Int64, folds: int, seed: int) -> Int64:
    """A fold for every row: rows of a class are spread evenly over the folds, in random order."""
    draw = np.random.default_rng([seed, 0xF01D])
    order = draw.permutation(len(label))
    order = order[np.argsort(label[order], kind="stable")]
    fold = np.empty(len(label), np.int64)
    fold[order] = np.arange(len(label)) % max(1, min(folds, len(label)))
    return fold
