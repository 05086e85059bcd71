"""The rows that learners are trained on: folds, standardisation, and matrix products block by block."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import vstack
from torch import Tensor

from spml.data.stores.features import FeatureStore

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

_RESIDENT = 2**31  # bytes of standardised float32 features that are kept in memory
_BLOCK = 2**24  # features that are read at a time otherwise
_MOST_AXES = 4096  # larger eigenproblems take minutes
_SMALLEST_VARIANCE = 1e-7  # relative to the largest one
_COLUMNS = 1024
_SPARSE_WORK, _LOGIT_WORK = 16, 32  # dense multiplications that take as long as one of a sparse feature, and as a loss


@dataclass(frozen=True, eq=False)
class Scaling:
    """Mean and standard deviation of every feature. Sparse features are scaled together and not centred."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def measure(cls, store: FeatureStore, rows: Int64) -> Scaling:
        """Measure the given rows. Constant features have an infinite deviation, so that they become 0."""
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
        """Standardised float32 rows.

        Subtraction is exact near the mean, and a mean rounded to float32 shifts all rows equally.
        """
        return (block - self.mean.to(block)).div_(self.deviation.to(block))


@dataclass(frozen=True)
class Block:
    """Rows of one fold: their positions among the training rows, and their features (a tensor or a CSR matrix)."""

    fold: int
    positions: Tensor
    features: Any

    def times(self, matrix: Tensor) -> Tensor:
        """features @ matrix, (B, K) for a matrix (C, K)."""
        if isinstance(self.features, Tensor):
            return self.features @ matrix
        return torch.from_numpy(np.asarray(self.features @ matrix.numpy()))

    def transposed_times(self, matrix: Tensor) -> Tensor:
        """featuresᵀ @ matrix, (C, K) for a matrix (B, K)."""
        if isinstance(self.features, Tensor):
            return self.features.T @ matrix
        return torch.from_numpy(np.asarray(self.features.T @ matrix.numpy()))

    def renumbered(self, new_position: Tensor) -> Block:
        """The rows that have a new position, with it; −1 means that a row has none."""
        positions = new_position[self.positions]
        kept = torch.nonzero(positions >= 0)[:, 0]
        features = self.features[kept if isinstance(self.features, Tensor) else kept.numpy()]
        return Block(self.fold, positions[kept], features)

    def parts(self, rows: int) -> Iterator[Block]:
        """The block in blocks of at most this many rows."""
        if len(self.positions) <= rows:
            yield self
            return
        for start in range(0, len(self.positions), rows):
            part = slice(start, start + rows)
            yield Block(self.fold, self.positions[part], self.features[part])


class Design:
    """Standardised training rows in blocks that lie within one fold, in the coordinates in which heads are solved.

    The coordinates are the principal axes of the rows. Rotation changes neither the loss nor ‖W‖², but it decouples
    the columns, so that each can be scaled to a curvature of about 1: heads then converge in a few steps. If there are
    more features than rows, as in texts, weights outside the span of the rows are 0 in every solution, and there are
    only as many columns as rows. If there are many rows and many features, the features themselves are the coordinates.

    Rows that are kept in memory are rotated once. Rows that are read repeatedly in blocks are not rotated: `for_blocks`
    and `from_blocks` rotate weights and gradients instead.

    Parameters
    ----------
    store : FeatureStore
    rows : array of shape (n,)
        Rows of the store.
    fold : array of shape (n,)
        Fold of every row.
    device : torch.device
        Sparse features are multiplied on the CPU.

    Attributes
    ----------
    columns : int
        Number of coordinates.
    variance : Tensor of shape (columns,)
        Mean square of every coordinate.
    """

    def __init__(self, store: FeatureStore, rows: Int64, fold: Int64, device: torch.device) -> None:
        self.store, self.rows, self.fold = store, rows, fold
        self.folds = int(fold.max()) + 1
        self.device = torch.device("cpu") if store.is_sparse else device
        self.scaling = Scaling.measure(store, rows)
        self._axes: Tensor | None = None  # (D, columns)
        self._rotated = False  # whether the blocks hold coordinates, not features
        self._dual: tuple[list[Block], Tensor] | None = None  # blocks of features, and (n, columns)
        self._blocks: list[Block] | None = None
        if store.is_sparse or 4 * len(rows) * store.dim <= _RESIDENT:
            self._blocks = self._read_all()
        self.variance = self._rotate()
        self.columns = len(self.variance)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def largest_variance(self) -> float:
        """Largest variance of the rows along any direction."""
        if self._axes is not None or self._dual is not None:
            return float(self.variance.max())
        vector = torch.ones(self.columns, 1, device=self.device) / self.columns**0.5
        largest = 0.0
        for _ in range(5):
            image = self._product(lambda block: block.times(vector)) / len(self)  # noqa: B023
            largest = float(image.norm())
            if largest <= 0:
                break
            vector = image / largest
        return largest

    def in_features(self, weights: Tensor) -> Tensor:
        """Weights (L, D) for the standardised features, from weights (L, columns) for the coordinates."""
        if self._dual is not None:
            blocks, axes = self._dual
            image = axes @ weights.T
            return torch.stack([block.transposed_times(image[block.positions]) for block in blocks]).sum(0).T
        return weights if self._axes is None else weights @ self._axes.T

    def for_blocks(self, weights: Tensor) -> Tensor:
        """Weights (…, columns) as the features of `blocks` need them."""
        return weights if self._rotated or self._axes is None else weights @ self._axes.T

    def from_blocks(self, gradient: Tensor) -> Tensor:
        """A gradient by weights for the features of `blocks` as one by weights for the coordinates."""
        return gradient if self._rotated or self._axes is None else gradient @ self._axes

    @property
    def work(self) -> float:
        """Cost of the scores of one class for all rows, in dense multiplications."""
        per_logit = float(_LOGIT_WORK * len(self))
        if self.store.is_sparse and self._dual is None:
            assert self._blocks is not None
            return per_logit + _SPARSE_WORK * float(sum(block.features.nnz for block in self._blocks))
        return per_logit + float(len(self)) * self.columns

    def sample(self, number: int, seed: int) -> tuple[Design, Int64]:
        """Draw `number` rows; return them in memory, in the same coordinates, and their positions among all rows."""
        chosen = np.sort(np.random.default_rng([seed, 0x5A3B]).permutation(len(self))[:number])
        part = copy.copy(self)
        part.rows, part.fold = self.rows[chosen], self.fold[chosen]
        if self._blocks is None:
            part._blocks = part._read_all()
            if self._axes is not None:
                part._rotate_blocks(self._axes)
        else:
            new_position = torch.full((len(self),), -1)
            new_position[torch.from_numpy(chosen)] = torch.arange(len(chosen))
            part._blocks = [block.renumbered(new_position.to(self.device)) for block in self._blocks]
        return part, chosen

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

    def _read_all(self) -> list[Block]:
        """One block per fold."""
        parts = [(f, np.flatnonzero(self.fold == f)) for f in range(self.folds)]
        return [self._read(f, positions) for f, positions in parts if len(positions)]

    def _read(self, fold: int, positions: Int64) -> Block:
        index = torch.from_numpy(positions).to(self.device)
        if self.store.is_sparse:
            block = self.store.block(self.rows[positions]).astype(np.float32)
            return Block(fold, index, block.multiply(np.float32(1 / float(self.scaling.deviation[0]))).tocsr())
        features = self.scaling.apply(self.store.batch(self.rows[positions]).to(self.device))
        return Block(fold, index, features)

    def _product(self, of_block: Callable[[Block], Tensor]) -> Tensor:
        """Sum over the blocks of coordinatesᵀ @ of_block(block)."""
        return torch.stack([block.transposed_times(of_block(block)) for block in self.blocks()]).sum(0)

    def _rotate(self) -> Tensor:
        """Choose the coordinates; return the mean square of each."""
        rows, dim = len(self), self.store.dim
        if rows < dim and rows <= _MOST_AXES and self._blocks is not None:
            return self._use_dual(self._blocks)
        if dim <= _MOST_AXES and not self.store.is_sparse:
            return self._use_axes()
        if self.store.is_sparse:
            assert self._blocks is not None
            squares = [np.asarray(block.features.multiply(block.features).sum(0)).ravel() for block in self._blocks]
            return torch.from_numpy(np.sum(squares, axis=0) / rows).float()
        return torch.ones(dim, device=self.device)

    def _use_axes(self) -> Tensor:
        """Principal axes by the eigenvectors of the covariance."""
        covariance = torch.zeros(self.store.dim, self.store.dim, dtype=torch.float64, device=self.device)
        for block in self.blocks():
            covariance += block.features.T @ block.features
        values, vectors = torch.linalg.eigh(covariance / len(self))
        axes: Tensor = vectors.float()
        variance: Tensor = values.clamp(min=0).float()
        self._axes = axes
        self._rotate_blocks(axes)
        return variance

    def _rotate_blocks(self, axes: Tensor) -> None:
        if self._blocks is not None:
            self._blocks = [replace(block, features=block.features @ axes) for block in self._blocks]
            self._rotated = True

    def _use_dual(self, blocks: list[Block]) -> Tensor:
        """Principal axes by the eigenvectors of the Gram matrix; axes without variance are left out."""
        positions = torch.cat([block.positions for block in blocks])
        gram = torch.empty(len(self), len(self), dtype=torch.float64, device=self.device)
        gram[positions[:, None], positions] = _gram([block.features for block in blocks])
        values: Tensor
        values, vectors = torch.linalg.eigh(gram)
        kept = values > _SMALLEST_VARIANCE * values[-1].clamp(min=1e-30)
        values, vectors = values[kept], vectors[:, kept]
        if not len(values):
            values, vectors = gram.new_zeros(1), gram.new_zeros(len(self), 1)
        self._rotated = True
        self._dual = blocks, (vectors / values.clamp(min=1e-30).sqrt()).float()
        coordinates = (vectors * values.sqrt()).float()
        self._blocks = [Block(block.fold, block.positions, coordinates[block.positions]) for block in blocks]
        return (values / len(self)).float()


def _gram(features: Sequence[Any]) -> Tensor:
    """Products of all pairs of rows, in double precision."""
    if not isinstance(features[0], Tensor):
        rows = vstack(features).astype(np.float64)
        return torch.from_numpy((rows @ rows.T).toarray())
    rows = torch.cat(list(features))
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for part in rows.split(_COLUMNS, dim=1):
        gram += part.double() @ part.double().T
    return gram


def assign_folds(label: Int64, folds: int, seed: int, groups: Int64 | None = None) -> Int64:
    """A fold for every row: rows of a class are spread evenly over the folds, in random order.

    Rows of one of the `groups` share a fold; without groups, every row is one of its own.
    """
    if groups is not None:
        _, first, group = np.unique(groups, return_index=True, return_inverse=True)
        return assign_folds(label[first], folds, seed)[group]
    draw = np.random.default_rng([seed, 0xF01D])
    order = draw.permutation(len(label))
    order = order[np.argsort(label[order], kind="stable")]
    fold = np.empty(len(label), np.int64)
    fold[order] = np.arange(len(label)) % max(1, min(folds, len(label)))
    return fold
