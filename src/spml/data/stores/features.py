"""Features by row: from memory, a mapped file, a sparse matrix or the device."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spml.arrays import map_npy
from spml.data.stores.sparse_files import read_sparse
from spml.data.stores.windows import MappedPages, windows_of
from spml.errors import InputError
from spml.free_memory import free_device_memory
from spml.labels.inputs import row_indices

_BLOCK = 2**22  # features that are checked or copied at a time


class FeatureStore:
    """N rows of `dim` features, returned as float32.

    Parameters
    ----------
    values : array, tensor, scipy sparse matrix or path, shape (N, dim)
        Any real type. Arrays are not copied. A .npy file is mapped, so it may be larger than memory; the rows of files
        of more than 1 GiB are shuffled within windows (see `order`). A .npz file holds a sparse matrix of SciPy, which
        is read into memory. Batches of sparse matrices are dense.
    columns : sequence of str, optional
        The names of the features, where a table has them.
    table : path, optional
        That table, for errors.

    Raises
    ------
    InputError
        If the values are not a matrix of real numbers with at least one row and one column.

    Examples
    --------
    >>> store = FeatureStore(np.eye(3, dtype=np.float16))
    >>> store
    FeatureStore(3 rows of 3 features, in memory)
    >>> store.batch([2, 0])
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    def __init__(
        self, values: Any, columns: Sequence[str] = (), table: str | os.PathLike[str] = "the features"
    ) -> None:
        self._name, self.columns = os.fspath(table), tuple(columns)
        in_file = isinstance(values, (str, os.PathLike))
        if in_file:
            self._name = os.fspath(values)
            sparse = self._name.lower().endswith(".npz")
            values = read_sparse(Path(values)) if sparse else _mapped(self._name)
        self._tensor: torch.Tensor | None = None
        self._array: Any = None  # numpy or scipy CSR
        if isinstance(values, torch.Tensor):
            self._tensor = values.detach()
            is_real = not values.is_complex() and not values.is_quantized
        elif hasattr(values, "tocsr"):
            self._array = values.tocsr()
            is_real = self._array.dtype.kind in "fiub"
        else:
            self._array = np.asarray(values) if not isinstance(values, np.ndarray) else values
            is_real = self._array.dtype.kind in "fiub"
        source = self._tensor if self._tensor is not None else self._array
        if not is_real:
            raise InputError(f"{self._name}: features must be real numbers, not {source.dtype}.")
        if len(source.shape) == 2 and 0 in source.shape:
            raise InputError(f"{self._name}: the matrix has no {'rows' if source.shape[0] == 0 else 'features'}.")
        if len(source.shape) != 2:
            raise InputError(f"{self._name}: features must be a matrix, not of shape {tuple(source.shape)}.")
        self._shape: tuple[int, int] = (int(source.shape[0]), int(source.shape[1]))
        mapped = in_file and not self.is_sparse
        self._pages = MappedPages(self._array) if mapped else None
        self._windows = windows_of(self._array) if mapped else None

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def dim(self) -> int:
        """Features per row."""
        return self._shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as it is stored; of a sparse one, of its entries."""
        if self._tensor is not None:
            return self._tensor.nbytes
        values = self._array.data if self.is_sparse else self._array
        return int(values.nbytes)

    @property
    def good_rows(self) -> npt.NDArray[np.int64]:
        """All rows: features that cannot be used raise an error and are never skipped."""
        return np.arange(len(self))

    def __repr__(self) -> str:
        kind = "sparse" if self.is_sparse else str(self._tensor.device if self._tensor is not None else "in memory")
        if isinstance(self._array, np.memmap):
            kind = f"in {self._name}"
        return f"FeatureStore({len(self)} rows of {self.dim} features, {kind})"

    @property
    def is_sparse(self) -> bool:
        """Whether the features are a scipy sparse matrix."""
        return self._array is not None and not isinstance(self._array, np.ndarray)

    def prepare(self, progress: bool = False) -> None:
        """Check all features once before training: `check_finite`."""
        self.check_finite()

    def check_finite(self) -> None:
        """Check all features.

        Raises
        ------
        InputError
            For NaN, infinity and numbers too large for float32, with the first such row and column.
        """
        all_rows, size = np.arange(len(self)), self._block
        for number in self.reading(all_rows, size):
            rows = all_rows[number * size : (number + 1) * size]
            if not self._surely_finite(rows):
                self.finite_batch(rows)

    def _surely_finite(self, rows: npt.NDArray[np.int64]) -> bool:
        """Return whether these consecutive rows are finite, if there is a fast way to find out."""
        if self._tensor is not None:
            return False
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        if self.is_sparse:
            entries = self._array.data[self._array.indptr[part.start] : self._array.indptr[part.stop]]
            with np.errstate(over="ignore"):
                return bool(np.isfinite(entries.astype(np.float32)).all())
        if self._array.dtype != np.float16:
            return False
        loaded = None if self._windows is None else self._windows.take(rows)
        block = np.ascontiguousarray(self._array[part] if loaded is None else loaded)
        # All bits of the exponent are set in infinity and NaN alone.
        return bool((block.view(np.uint16) & 0x7C00).max(initial=0) < 0x7C00)

    def fingerprint(self) -> str:
        """Return a digest of all features as float32, which does not depend on where and in which type they are stored.

        Sparse and dense copies of a matrix differ.
        """
        digest, all_rows, size = hashlib.sha256(repr(self._shape).encode()), np.arange(len(self)), self._block
        if self.is_sparse:  # its zeros would take minutes
            return _sparse_digest(self._array)
        for number in self.reading(all_rows, size):
            block = self._dense(all_rows[number * size : (number + 1) * size]).cpu().numpy()
            digest.update(zlib.crc32(block.data).to_bytes(4, "little"))  # twice as fast as SHA-256 over all bytes
        return digest.hexdigest()

    def batch(self, rows: Any, pin: bool = False) -> torch.Tensor:
        """Return the given rows as a float32 tensor (B, dim).

        Parameters
        ----------
        rows : array of int
            Row numbers. After `to_device`, they may be a tensor on the device, which is not checked.
        pin : bool
            Whether to use pinned memory.

        Returns
        -------
        Tensor
            On the device after `to_device`.

        Raises
        ------
        InputError
            If a row is out of range.
        """
        if self._tensor is not None and isinstance(rows, torch.Tensor) and rows.device.type != "cpu":
            return self._tensor.index_select(0, rows).float()
        out = self._dense(row_indices(rows, len(self)))
        return out.pin_memory() if pin and out.device.type == "cpu" and torch.cuda.is_available() else out

    def block(self, rows: npt.NDArray[np.int64]) -> Any:
        """The given rows as they are stored: a scipy CSR matrix if the features are sparse, otherwise as `batch`."""
        return self._array[rows] if self.is_sparse else self._dense(rows)

    def subset(self, rows: npt.NDArray[np.int64]) -> FeatureStore:
        """Return a store of the given rows; the store itself if they are all rows in order."""
        if len(rows) == len(self) and bool((rows == np.arange(len(self))).all()):
            return self
        part = self._array[rows] if self._tensor is None else self._tensor[torch.from_numpy(rows)]
        return FeatureStore(part, self.columns)

    def finite_batch(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """`batch` with the check of `check_finite`, for rows that are read only once."""
        block = self._dense(rows)
        if wrong := first_not_finite(block):
            row, column = wrong
            location = f"row {rows[row]}, column {column}"
            if self.columns:
                name = self.columns[column] if len(self.columns) == self.dim else self.columns[0]
                location = f"row {rows[row] + 1} (not counting the header), column {name!r}"
            raise InputError(f"{self._name}: {location} is {float(block[wrong])} as float32; features must be finite.")
        return block

    def ahead(self, rows: Any) -> None:
        """Start reading these rows from a mapped file in the background, for example the next batch."""
        if self._pages is not None and self._tensor is None:
            self._pages.fetch(row_indices(rows, len(self)))

    def order(self, rows: npt.NDArray[np.int64], batch_size: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
        """Return a random order for an epoch, as positions in `rows`. It depends on the file and `draw` alone.

        Rows of a large file are shuffled in two steps: pieces of neighbouring rows come in random order, and so do
        the rows within a window of several pieces. Each piece is read once per epoch.
        """
        if self._windows is None:
            return draw.permutation(len(rows))
        positions = np.argsort(rows, kind="stable")
        starts = draw.permutation(np.arange(0, len(rows), self._windows.piece))
        order = np.concatenate([positions[start : start + self._windows.piece] for start in starts])
        window = self._windows.batches(batch_size) * batch_size
        for start in range(0, len(order), window):
            draw.shuffle(order[start : start + window])
        return order

    def reading(self, rows: npt.NDArray[np.int64], batch_size: int, first: int = 0) -> Iterator[int]:
        """Yield the numbers of the batches of these rows, from `first` on, while later rows are read from the file.

        This only changes how long `batch` takes.
        """
        window, ahead = 1, self.ahead
        if self._windows is not None and self._tensor is None:
            window, ahead = self._windows.batches(batch_size), self._windows.load
        for number in range(first, -(-len(rows) // batch_size)):
            after = (number // window + 1) * window
            if number == first:
                ahead(rows[number * batch_size : after * batch_size])
            if number == first or number % window == 0:
                ahead(rows[after * batch_size : (after + window) * batch_size])
            yield number

    def to_device(self, device: torch.device | str, progress: bool = False) -> bool:
        """Move the matrix to the device, dense, if it fits into half of its free memory.

        Parameters
        ----------
        device : torch.device or str
        progress : bool
            Ignored; for the same signature as `ImageStore.to_device`.

        Returns
        -------
        bool
            Whether the matrix is there. If it does not fit, nothing changes.
        """
        target = torch.device(device)
        free = free_device_memory(target)
        if target.type == "cpu" and self._tensor is None:
            return isinstance(self._array, np.ndarray) and not isinstance(self._array, np.memmap)
        # float16 stays as small as it is; everything else becomes float32
        half = self._tensor is None and self._array.dtype == np.float16
        dtype = torch.float16 if half else torch.float32
        if self._tensor is not None:
            dtype = self._tensor.dtype
        if len(self) * self.dim * dtype.itemsize > free // 2:
            return False
        if self._tensor is not None:
            self._tensor = self._tensor.to(target)
            return True
        matrix = torch.empty(self._shape, dtype=dtype, device=target)
        for start in range(0, len(self), self._block):
            rows = np.arange(start, min(start + self._block, len(self)))
            matrix[start : start + len(rows)].copy_(self._dense(rows))
        self._tensor, self._array = matrix, None
        return True

    @property
    def _block(self) -> int:
        return max(1, _BLOCK // self.dim)

    def _dense(self, index: npt.NDArray[np.int64]) -> torch.Tensor:
        if self._tensor is not None:
            return self._tensor.index_select(0, torch.from_numpy(index).to(self._tensor.device)).float()
        if self.is_sparse:
            part = self._array[index].toarray()
        else:
            loaded = None if self._windows is None else self._windows.take(index)
            if loaded is None and self._pages is not None:
                self._pages.fetch(index)
            part = np.take(self._array, index, axis=0) if loaded is None else loaded
        if part.dtype == np.float16:  # several times faster than in NumPy
            return torch.from_numpy(part).float()
        with np.errstate(over="ignore"):  # check_finite reports what float32 cannot hold
            return torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32))


def _sparse_digest(matrix: Any) -> str:
    plain = matrix.astype(np.float32)  # a copy
    plain.sum_duplicates()
    plain.eliminate_zeros()
    digest = hashlib.sha256(repr(plain.shape).encode())
    for part in (plain.indptr.astype(np.int64), plain.indices.astype(np.int64), plain.data):
        digest.update(part.tobytes())
    return digest.hexdigest()


def first_not_finite(block: torch.Tensor) -> tuple[int, int] | None:
    """Return row and column of the first NaN or infinity of a matrix, None without any."""
    if not block.numel():
        return None
    low, high = torch.aminmax(block)  # NaN if any entry is; ten times faster than isfinite
    if bool(torch.isfinite(low) & torch.isfinite(high)):
        return None
    row, column = (~torch.isfinite(block)).nonzero()[0].tolist()
    return row, column


def _mapped(path: str) -> npt.NDArray[Any]:
    return map_npy(Path(path))
