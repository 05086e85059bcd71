"""Features in: the rows of a matrix, from memory, a mapped file, sparse rows or the device."""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view

from spml.errors import InputError
from spml.labels.inputs import row_indices

_BLOCK = 2**22  # features looked at at one time

_LARGE = 2**30  # bytes: a file up to this size is shuffled whole, for any machine holds it
_WINDOW = 2**27  # bytes of a larger one that are read ahead and shuffled together
_PIECE = 2**19  # bytes of neighbouring rows that stay together in a window
_RUN = 2**22  # bytes that are read at one time, at most
_GAP = 2**16  # bytes between two rows that are read with them rather than left out
_ALIGNED = 2**12  # bytes: reads past the system's cache start and end at multiples of it

_SPARSE = 8  # rows in ascending order are a sequence if they are at least every eighth


class FeatureStore:
    """N rows of `dim` features, given out as float32.

    From a numpy array or mapped file (neither is copied), the path of a `.npy` file (mapped, so it may be larger
    than memory), a scipy sparse matrix (a batch is made dense) or a torch tensor. Any real type.
    """

    def __init__(self, values: Any) -> None:
        self._name = "the features"
        if isinstance(values, (str, os.PathLike)):
            self._name = os.fspath(values)
            values = _mapped(self._name)
        self._tensor: torch.Tensor | None = None
        self._array: Any = None  # numpy or scipy CSR
        if isinstance(values, torch.Tensor):
            self._tensor = values.detach()
            real = not values.is_complex() and not values.is_quantized
        elif hasattr(values, "tocsr"):
            self._array = values.tocsr()
            real = self._array.dtype.kind in "fiub"
        else:
            self._array = np.asarray(values) if not isinstance(values, np.ndarray) else values
            real = self._array.dtype.kind in "fiub"
        source = self._tensor if self._tensor is not None else self._array
        if not real:
            raise InputError(f"{self._name}: features are real numbers, not {source.dtype}.")
        if len(source.shape) == 2 and 0 in source.shape:
            raise InputError(f"{self._name}: there are no {'rows' if source.shape[0] == 0 else 'features'} in it.")
        if len(source.shape) != 2:
            raise InputError(f"{self._name}: features are a matrix of rows and columns, not {tuple(source.shape)}.")
        self._shape: tuple[int, int] = (int(source.shape[0]), int(source.shape[1]))
        self._pages = _Pages(self._array) if self._name != "the features" else None
        large = self._pages is not None and self._array.flags.c_contiguous and self.nbytes > _LARGE
        self._windows = _Windows(self._array) if large and not self._array.offset % self._array.itemsize else None

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def dim(self) -> int:
        """Features a row."""
        return self._shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix as it is stored; of a sparse one, of its entries."""
        if self._tensor is not None:
            return self._tensor.nbytes
        values = self._array.data if self._sparse else self._array
        return int(values.nbytes)

    @property
    def good_rows(self) -> npt.NDArray[np.int64]:
        """All rows: features that cannot be used are an error, never skipped."""
        return np.arange(len(self))

    def __repr__(self) -> str:
        kind = "sparse" if self._sparse else str(self._tensor.device if self._tensor is not None else "in memory")
        if isinstance(self._array, np.memmap):
            kind = f"in {self._name}"
        return f"FeatureStore({len(self)} rows of {self.dim} features, {kind})"

    @property
    def _sparse(self) -> bool:
        return self._array is not None and not isinstance(self._array, np.ndarray)

    def prepare(self, progress: bool = False) -> None:
        """What must be done once before training: `check_finite`."""
        self.check_finite()

    def check_finite(self) -> None:
        """Refuse NaN, infinity and what float32 cannot hold, naming the first such row and column."""
        every, size = np.arange(len(self)), self._block
        for number in self.reading(every, size):
            rows = every[number * size : (number + 1) * size]
            if not self._surely_finite(rows):
                self.finite_batch(rows)

    def _surely_finite(self, rows: npt.NDArray[np.int64]) -> bool:
        """Whether there is a quick way to see that these rows, which follow each other, are finite, and they are."""
        if self._tensor is not None:
            return False
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        if self._sparse:
            entries = self._array.data[self._array.indptr[part.start] : self._array.indptr[part.stop]]
            with np.errstate(over="ignore"):
                return bool(np.isfinite(entries.astype(np.float32)).all())
        if self._array.dtype != np.float16:
            return False
        held = None if self._windows is None else self._windows.take(rows)
        block = np.ascontiguousarray(self._array[part] if held is None else held)
        # All bits of the exponent are set in infinity and NaN alone.
        return bool((block.view(np.uint16) & 0x7C00).max(initial=0) < 0x7C00)

    def fingerprint(self) -> str:
        """A digest of all features as float32, so that it does not depend on where and how they are stored."""
        digest, every, size = hashlib.sha256(repr(self._shape).encode()), np.arange(len(self)), self._block
        for number in self.reading(every, size):
            block = self._dense(every[number * size : (number + 1) * size]).cpu().numpy()
            digest.update(zlib.crc32(block.data).to_bytes(4, "little"))  # twice as fast as SHA-256 over all bytes
        return digest.hexdigest()

    def batch(self, rows: Any, pin: bool = False) -> torch.Tensor:
        """The given rows as a float32 tensor (B, dim), in pinned memory if asked.

        After `to_device` the batch is made on the device, and rows may be a tensor there: those are not checked.
        """
        if self._tensor is not None and isinstance(rows, torch.Tensor) and rows.device.type != "cpu":
            return self._tensor.index_select(0, rows).float()
        out = self._dense(row_indices(rows, len(self)))
        return out.pin_memory() if pin and out.device.type == "cpu" and torch.cuda.is_available() else out

    def finite_batch(self, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """`batch`, refused where `check_finite` would: for rows that are read once, without a pass over them before."""
        block = self._dense(rows)
        if wrong := first_not_finite(block):
            row, column = wrong
            raise InputError(
                f"{self._name}: row {rows[row]}, column {column} is {float(block[wrong])} as float32: features must be "
                "finite."
            )
        return block

    def ahead(self, rows: Any) -> None:
        """Start reading these rows from a mapped file, and return at once: the batch after this one, say."""
        if self._pages is not None and self._tensor is None:
            self._pages.fetch(row_indices(rows, len(self)))

    def order(self, rows: npt.NDArray[np.int64], batch_size: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
        """A random order of an epoch, as positions in `rows`; what it draws from depends on the file alone.

        Of a large file: pieces of neighbouring rows come in random order, and the rows of as many pieces as make a
        window in random order among themselves. The file is then read by pieces, each once an epoch.
        """
        if self._windows is None:
            return draw.permutation(len(rows))
        places = np.argsort(rows, kind="stable")
        starts = draw.permutation(np.arange(0, len(rows), self._windows.piece))
        order = np.concatenate([places[start : start + self._windows.piece] for start in starts])
        window = self._windows.batches(batch_size) * batch_size
        for start in range(0, len(order), window):
            draw.shuffle(order[start : start + window])
        return order

    def reading(self, rows: npt.NDArray[np.int64], batch_size: int, first: int = 0) -> Iterator[int]:
        """The numbers of the batches of these rows, from `first` on; what comes later is read from the file meanwhile.

        It changes nothing but the time that `batch` then takes.
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
        """Put the matrix on the device, dense, if half of its free memory holds it; else False, nothing changes."""
        target = torch.device(device)
        if target.type == "cuda" and not torch.cuda.is_available():
            raise InputError(f"the device is {str(target)!r}, but no CUDA device can be used here: take 'cpu'.")
        if target.type == "cpu" and self._tensor is None:
            return isinstance(self._array, np.ndarray) and not isinstance(self._array, np.memmap)
        # float16 stays as small as it is; everything else becomes float32
        half = self._tensor is None and self._array.dtype == np.float16
        dtype = torch.float16 if half else torch.float32
        if self._tensor is not None:
            dtype = self._tensor.dtype
        needed = len(self) * self.dim * dtype.itemsize
        if target.type == "cuda" and needed > torch.cuda.mem_get_info(target)[0] // 2:
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
        if self._sparse:
            part = self._array[index].toarray()
        else:
            held = None if self._windows is None else self._windows.take(index)
            if held is None and self._pages is not None:
                self._pages.fetch(index)
            part = np.take(self._array, index, axis=0) if held is None else held
        if part.dtype == np.float16:  # several times quicker there than in numpy
            return torch.from_numpy(part).float()
        with np.errstate(over="ignore"):  # check_finite names what float32 cannot hold
            return torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32))


def first_not_finite(block: torch.Tensor) -> tuple[int, int] | None:
    """Row and column of the first NaN or infinity of a matrix."""
    if not block.numel():
        return None
    low, high = torch.aminmax(block)  # NaN if one of them is; ten times as quick as looking at each
    if bool(torch.isfinite(low) & torch.isfinite(high)):
        return None
    row, column = (~torch.isfinite(block)).nonzero()[0].tolist()
    return row, column


class _Pages:
    """The pages of a mapped matrix, asked for before they are touched.

    A page that is not in memory stops whoever touches it until it is read, one after the other, and the system reads
    megabytes around it that the next random row does not want. Told beforehand, it reads just the rows of a batch, and
    all at once: rows in random order from a file larger than memory come nearly as quickly as in the file's order.
    """

    def __init__(self, array: Any) -> None:
        self._map: Any = getattr(array, "_mmap", None)
        if self._map is None or not array.flags.c_contiguous or not hasattr(mmap, "MADV_WILLNEED"):
            self._map = None
            return
        self._row = int(array.strides[0])
        self._first = int(array.offset) % mmap.ALLOCATIONGRANULARITY  # where row 0 starts in the map
        self._scattered = False
        self._asked: deque[npt.NDArray[np.int64]] = deque(maxlen=3)  # the last batch, this one, the next

    def fetch(self, rows: npt.NDArray[np.int64]) -> None:
        """Start reading these rows, unless they come in the file's order: there the system reads ahead by itself."""
        if self._map is None or not len(rows):
            return
        step = np.diff(rows)
        scattered = bool((step <= 0).any() or step.sum() > _SPARSE * len(rows))
        if scattered != self._scattered:
            self._map.madvise(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)
            self._scattered = scattered
        if not scattered or any(np.array_equal(asked, rows) for asked in self._asked):
            return
        self._asked.append(rows)
        first = self._first + rows * self._row
        page = first - first % mmap.PAGESIZE
        for start, length in zip(page.tolist(), (first - page + self._row).tolist(), strict=True):
            self._map.madvise(mmap.MADV_WILLNEED, start, length)


class _Windows:
    """Rows of a large file in memory of one's own: those of the window in use and of the next, which a thread reads.

    The system's own cache is of little use for a file that does not fit: it is asked for pages in vain when it is full,
    and keeps the pages that were used over those that will be. For one thread to use.
    """

    def __init__(self, array: Any) -> None:
        self._path, self._offset = array.filename, int(array.offset)
        self._dim, self._dtype = int(array.shape[1]), array.dtype
        self._row = int(array.strides[0])
        self.piece = max(1, _PIECE // self._row)
        """Neighbouring rows that stay together in a window."""
        self._loaded: deque[tuple[npt.NDArray[np.int64], Future[_Held]]] = deque(maxlen=2)
        self._memory = deque([_Memory(), _Memory()])  # of the windows, in turns: clearing new pages takes time
        self._thread = ThreadPoolExecutor(1)

    def batches(self, size: int) -> int:
        """How many batches of so many rows make a window."""
        return max(1, _WINDOW // (self._row * size))

    def load(self, rows: npt.NDArray[np.int64]) -> None:
        """Start reading these rows, in the place of those asked for the time before last."""
        rows = np.sort(rows)
        self._memory.rotate()
        self._loaded.append((rows, self._thread.submit(self._read, rows, self._memory[0])))

    def take(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
        """These rows, if one window has them all."""
        for held, values in self._loaded:
            place = np.searchsorted(held, rows)
            if len(held) and (held[np.minimum(place, len(held) - 1)] == rows).all():
                at, start = values.result()
                taken: npt.NDArray[Any] = at[start[place]]
                return taken
        return None

    def _read(self, rows: npt.NDArray[np.int64], memory: _Memory) -> _Held:
        """The rows, which ascend, with what lies between neighbours; where that is most of it, without."""
        begin = self._offset + rows * self._row  # of each row in the file
        parted = (np.diff(begin) > _GAP) | (np.diff(begin // _RUN) > 0)
        bounds = np.array([0, *(np.flatnonzero(parted) + 1), len(rows)] if len(rows) else [0])
        first = begin[bounds[:-1]] // _ALIGNED * _ALIGNED
        stop = begin[bounds[1:] - 1] + self._row
        full, wanted = _aligned(stop - first), _aligned(np.diff(bounds) * self._row)
        packed = 2 * wanted < full
        kept = np.where(packed, wanted, full)
        places = np.cumsum(kept) - kept
        space = memory.hold(int((places + full).max(initial=_aligned(self._row))))
        numbers = space.view(self._dtype)
        at = sliding_window_view(numbers, self._dim)  # what begins at each number
        start = np.empty(len(rows), np.int64)
        with _RunReader(self._path) as reader:
            for run, (low, high) in enumerate(pairwise(bounds.tolist())):
                place = int(places[run])
                into = memoryview(space[place : place + int(full[run])])  # type: ignore[arg-type]
                if not reader.read(int(first[run]), int(stop[run] - first[run]), into):
                    raise InputError(f"{self._path}: the file ends before row {int(rows[high - 1])}.")
                start[low:high] = (place + begin[low:high] - first[run]) // self._dtype.itemsize
                if packed[run]:
                    values = at[start[low:high]]
                    start[low:high] = place // self._dtype.itemsize + self._dim * np.arange(high - low)
                    numbers[start[low] : start[low] + values.size] = values.ravel()
        return at, start


_Held = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]  # of a window: [n] is what begins at number n; where rows begin


class _Memory:
    """Bytes that begin at a multiple of _ALIGNED, kept until more are wanted."""

    def __init__(self) -> None:
        self._space = np.empty(0, np.uint8)

    def hold(self, size: int) -> npt.NDArray[np.uint8]:
        if len(self._space) < size:
            space = np.empty(size + _ALIGNED, np.uint8)
            self._space = space[-space.ctypes.data % _ALIGNED :][:size]
        return self._space[:size]


class _RunReader:
    """Reads parts of a file past the system's cache, where system and disk allow that.

    What is read once an epoch from a file that does not fit has no use for the cache, and pages that are given up to
    make room for it, and taken out of every process's map, slow down whoever computes meanwhile.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._direct = hasattr(os, "O_DIRECT")
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        except OSError:  # not on this file system
            self._direct = False
            self._file = os.open(path, os.O_RDONLY)

    def __enter__(self) -> _RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, first: int, least: int, into: memoryview) -> bool:
        """Fill memory with the file's bytes from `first` on; whether there were as many as `least`.

        `first`, the memory and its length are multiples of _ALIGNED.
        """
        got = 0
        while got < least:
            try:
                more = os.preadv(self._file, [into[got:]], first + got)
            except OSError:  # this file system says so only now, or a part read before ended between two multiples
                if not self._direct:
                    raise
                more = 0
            got += more
            if more == 0:
                if not self._direct:
                    return False
                os.close(self._file)  # the usual way will tell whether there is more
                self._direct, self._file = False, os.open(self._path, os.O_RDONLY)
        return True


def _aligned(size: Any) -> Any:
    """The next multiple of _ALIGNED, of a number or of each of many."""
    return -(-size // _ALIGNED) * _ALIGNED


def _mapped(path: str) -> npt.NDArray[Any]:
    if not os.path.isfile(path):
        raise InputError(f"{path}: there is no such file.")
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: this is not a .npy file of numbers ({error}).") from error
    if not isinstance(values, np.ndarray):
        raise InputError(f"{path}: this holds several arrays: save the feature matrix alone, with numpy.save.")
    return values
