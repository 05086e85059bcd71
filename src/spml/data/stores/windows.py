"""Reading rows of matrices larger than memory."""

from __future__ import annotations

import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from spml.errors import InputError

_LARGE = 2**30  # bytes: smaller files are shuffled as a whole, since they fit into memory
_WINDOW = 2**27  # bytes that are read ahead and shuffled together
_PIECE = 2**19  # bytes of neighbouring rows that stay together in a window
_RUN = 2**22  # bytes per read, at most
_GAP = 2**16  # bytes between two rows that are read rather than skipped
ALIGNED = 2**12  # reads that bypass the cache start and end at multiples of this many bytes

_SPARSE = 8  # rows in ascending order are a sequence if they are at least every eighth


def windows_of(array: Any) -> RowWindows | None:
    """Windows over a mapped matrix that is large enough to need them."""
    large = array.flags.c_contiguous and array.nbytes > _LARGE and not array.offset % array.itemsize
    return RowWindows(array) if large else None


class MappedPages:
    """The pages of a mapped matrix, requested before they are used.

    Touching a page that is not in memory blocks until it is read, one page after the other, and the system also reads
    megabytes around it. With a request in advance it reads the rows of a batch only, all at once: random rows of a file
    larger than memory are then nearly as fast as consecutive ones.
    """

    def __init__(self, array: Any) -> None:
        self._map: Any = getattr(array, "_mmap", None)
        if self._map is None or not array.flags.c_contiguous or not hasattr(mmap, "MADV_WILLNEED"):
            self._map = None
            return
        self._row = int(array.strides[0])
        self._first = int(array.offset) % mmap.ALLOCATIONGRANULARITY  # where row 0 starts in the map
        self._scattered = False
        self._requested: deque[npt.NDArray[np.int64]] = deque(maxlen=3)  # the last batch, this one, the next

    def fetch(self, rows: npt.NDArray[np.int64]) -> None:
        """Start reading these rows, unless they are in the file's order: then the system reads ahead itself."""
        if self._map is None or not len(rows):
            return
        step = np.diff(rows)
        scattered = bool((step <= 0).any() or step.sum() > _SPARSE * len(rows))
        if scattered != self._scattered:
            self._map.madvise(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)
            self._scattered = scattered
        if not scattered or any(np.array_equal(earlier, rows) for earlier in self._requested):
            return
        self._requested.append(rows)
        first = self._first + rows * self._row
        page = first - first % mmap.PAGESIZE
        for start, length in zip(page.tolist(), (first - page + self._row).tolist(), strict=True):
            self._map.madvise(mmap.MADV_WILLNEED, start, length)


class RowWindows:
    """Two windows of rows of a large file: the one in use, and the next one, which a thread reads. Not thread-safe.

    The system's cache does not help with a file larger than memory: when it is full it ignores requests, and it keeps
    pages that were used over pages that will be.
    """

    def __init__(self, array: Any) -> None:
        self._path, self._offset = array.filename, int(array.offset)
        self._dim, self._dtype = int(array.shape[1]), array.dtype
        self._row = int(array.strides[0])
        self.piece = max(1, _PIECE // self._row)
        """Neighbouring rows that stay together in a window."""
        self._loaded: deque[tuple[npt.NDArray[np.int64], Future[_Held]]] = deque(maxlen=2)
        self._memory = deque([AlignedMemory(), AlignedMemory()])  # used in turns, because clearing new pages takes time
        self._thread = ThreadPoolExecutor(1)

    def batches(self, size: int) -> int:
        """Number of batches of `size` rows in a window."""
        return max(1, _WINDOW // (self._row * size))

    def load(self, rows: npt.NDArray[np.int64]) -> None:
        """Start reading these rows into the memory of the older window."""
        rows = np.sort(rows)
        self._memory.rotate()
        self._loaded.append((rows, self._thread.submit(self._read, rows, self._memory[0])))

    def take(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
        """These rows, if one window holds all of them."""
        for loaded_rows, values in self._loaded:
            position = np.searchsorted(loaded_rows, rows)
            if len(loaded_rows) and (loaded_rows[np.minimum(position, len(loaded_rows) - 1)] == rows).all():
                row_view, start = values.result()
                taken: npt.NDArray[Any] = row_view[start[position]]
                return taken
        return None

    def _read(self, rows: npt.NDArray[np.int64], memory: AlignedMemory) -> _Held:
        """Read ascending rows together with small gaps between them; where gaps dominate, keep the rows only."""
        begin = self._offset + rows * self._row  # of each row in the file, in bytes
        parted = (np.diff(begin) > _GAP) | (np.diff(begin // _RUN) > 0)
        bounds = np.array([0, *(np.flatnonzero(parted) + 1), len(rows)] if len(rows) else [0])
        first = begin[bounds[:-1]] // ALIGNED * ALIGNED
        stop = begin[bounds[1:] - 1] + self._row
        full, needed = round_up(stop - first), round_up(np.diff(bounds) * self._row)
        packed = 2 * needed < full
        kept = np.where(packed, needed, full)
        offsets = np.cumsum(kept) - kept
        space = memory.hold(int((offsets + full).max(initial=round_up(self._row))))
        numbers = space.view(self._dtype)
        row_view = sliding_window_view(numbers, self._dim)  # item n: the row that begins at number n
        start = np.empty(len(rows), np.int64)
        with RunReader(self._path) as reader:
            for run, (low, high) in enumerate(pairwise(bounds.tolist())):
                offset = int(offsets[run])
                buffer = memoryview(space[offset : offset + int(full[run])])  # type: ignore[arg-type]
                if not reader.read(int(first[run]), int(stop[run] - first[run]), buffer):
                    raise InputError(f"{self._path}: the file ends before row {int(rows[high - 1])}.")
                start[low:high] = (offset + begin[low:high] - first[run]) // self._dtype.itemsize
                if packed[run]:
                    values = row_view[start[low:high]]
                    start[low:high] = offset // self._dtype.itemsize + self._dim * np.arange(high - low)
                    numbers[start[low] : start[low] + values.size] = values.ravel()
        return row_view, start


# The rows of a window: a view whose item n is the row that begins at number n, and where each row begins.
_Held = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


class AlignedMemory:
    """A buffer that begins at a multiple of ALIGNED and only grows."""

    def __init__(self) -> None:
        self._space = np.empty(0, np.uint8)

    def hold(self, size: int) -> npt.NDArray[np.uint8]:
        if len(self._space) < size:
            space = np.empty(size + ALIGNED, np.uint8)
            self._space = space[-space.ctypes.data % ALIGNED :][:size]
        return self._space[:size]


class RunReader:
    """Reads parts of a file without the system's cache, where system and disk support it.

    Data that is read once per epoch does not profit from the cache, and evicting other pages for it slows down
    everything else on the machine.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._direct = hasattr(os, "O_DIRECT")
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        except OSError:  # not on this file system
            self._direct = False
            self._file = os.open(path, os.O_RDONLY)

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, first: int, least: int, buffer: memoryview) -> bool:
        """Fill memory with the file's bytes from `first` on; False if there are fewer than `least`.

        `first`, the memory and its length are multiples of ALIGNED.
        """
        got = 0
        while got < least:
            try:
                count = os.preadv(self._file, [buffer[got:]], first + got)
            except OSError:  # not supported here after all, or the last part ended between multiples
                if not self._direct:
                    raise
                count = 0
            got += count
            if count == 0:
                if not self._direct:
                    return False
                os.close(self._file)  # an ordinary read finds out whether there is more
                self._direct, self._file = False, os.open(self._path, os.O_RDONLY)
        return True


def round_up(size: Any) -> Any:
    """Return the next multiple of ALIGNED, of a number or of an array."""
    return -(-size // ALIGNED) * ALIGNED
