"""Images by row: decoded once to uint8 at one size, then read from memory, from a mapped file or from the device."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from spml.data.stores.decode import (
    MAX_PIXELS,
    FilePath,
    Policy,
    UInt8,
    UnreadableImage,
    check_size_and_policy,
    decode_image,
    decode_whole,
    image_suffix,
)
from spml.data.stores.image_cache import Unusable, load_or_decode
from spml.data.stores.image_sources import ImageSources, Source
from spml.errors import InputError
from spml.free_memory import free_device_memory, free_memory
from spml.labels.inputs import row_indices

OnBadImage = Literal["error", "skip"]

_BLOCK = 2**28  # bytes that are copied or read at a time
_PART = 2**24  # bytes per thread, at least
_Item = TypeVar("_Item")


class BadImage(NamedTuple):
    """An image that cannot be used: its row, its name and why."""

    row: int
    name: str
    reason: str


class _Decoding(NamedTuple):
    """A batch that threads are decoding."""

    rows: list[int]
    pixels: torch.Tensor
    parts: list[Future[None]]

    def wait(self) -> torch.Tensor:
        """Return the batch, or raise the error of its first image that cannot be used."""
        for part in self.parts:
            part.result()
        return self.pixels


class ImageStore:
    """N images as uint8 (3, size, size), each decoded once if there is room for all of them.

    Decoded images are kept in the first of these places that applies:

    1. `cache_path`: one mapped file in that folder, reused by the next run. Its name is a digest of the sources
       (names, sizes, times of change), `size` and `policy`. It is written atomically, by one process at a time.
    2. Memory, if all images take at most `cache_limit` bytes (N · 3 · size²).
    3. Nowhere: `batch` decodes its rows every time, and `reading` decodes the next batch in the background.

    Parameters
    ----------
    sources : iterable of paths, (zip file, member) or ParquetCell
        The encoded images, one per row.
    size : int
        Side of the decoded images in pixels.
    policy : {"squash", "crop"}
        How an image becomes a square, see `decode`.
    cache_limit : int, optional
        By default 8 GiB, or half of the free memory if that is less.
    cache_path : path, optional
        A folder.
    on_bad_image : {"error", "skip"}
        Raise an error for an image that cannot be read, or list it in `bad`; the caller then uses `good_rows` only.
    max_pixels : int
        Larger images cannot be used.
    workers : int, optional
        Threads that decode. JPEG and PNG decode in parallel; AVIF hardly does, because Pillow holds Python's lock.

    Raises
    ------
    InputError
        If a setting is wrong, there is no image, or an image cannot be read.

    Examples
    --------
    >>> store = ImageStore.from_array(np.zeros((5, 3, 8, 8), np.uint8))
    >>> store
    ImageStore(5 images of 8×8, in memory)
    >>> store.batch([0, 3]).shape
    torch.Size([2, 3, 8, 8])
    """

    def __init__(
        self,
        sources: Iterable[Source],
        size: int,
        *,
        policy: Policy = "squash",
        cache_limit: int | None = None,
        cache_path: FilePath | None = None,
        on_bad_image: OnBadImage = "error",
        max_pixels: int = MAX_PIXELS,
        workers: int | None = None,
    ) -> None:
        check_size_and_policy(size, policy)
        if on_bad_image not in get_args(OnBadImage):
            raise InputError(f"on_bad_image is {on_bad_image!r}: it must be 'error' or 'skip'.")
        if workers is not None and workers < 1:
            raise InputError(f"workers is {workers}: it must be at least 1.")
        self._sources = ImageSources(sources)
        if not len(self._sources):
            raise InputError("no images: the list of sources is empty.")
        self.size = int(size)
        self.policy: Policy = policy
        self.on_bad_image = on_bad_image
        self._max_pixels = max_pixels
        self._workers = workers or min(16, _cores())
        self._pool: ThreadPoolExecutor | None = None
        self._coming: deque[_Decoding] = deque(maxlen=2)  # this batch and the next, see `reading`
        self._bad: Unusable = {}
        self._device_pixels: torch.Tensor | None = None
        self._prepared = False
        self.opened = time.time_ns()
        self._filled = np.zeros(len(self), bool)
        self._pixels: UInt8 | None = None
        self._from_array = False
        self._file: Path | None = None
        if cache_path is not None:
            self._file = Path(cache_path) / f"images-{self._cache_key()[:24]}.npy"
        elif self.nbytes <= (min(2**33, free_memory() // 2) if cache_limit is None else cache_limit):
            self._pixels = np.empty(self._shape, np.uint8)  # the system allocates pages when rows are written

    @classmethod
    def from_array(cls, pixels: UInt8) -> ImageStore:
        """Return a store of decoded images: uint8 (N, 3, S, S), not copied."""
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3 or pixels.shape[2] != pixels.shape[3]:
            raise InputError(
                f"images are a uint8 array of shape (N, 3, S, S), not {pixels.dtype} of shape {pixels.shape}."
            )
        if not pixels.size:
            raise InputError(f"no images: the array has the shape {pixels.shape}.")
        store = cls([f"image {row}" for row in range(len(pixels))], pixels.shape[2], cache_limit=0)
        store._pixels, store._from_array = pixels, True
        store._filled[:] = True
        store._prepared = True
        return store

    def __len__(self) -> int:
        return len(self._sources)

    def __repr__(self) -> str:
        return f"ImageStore({len(self)} images of {self.size}×{self.size}, {self.where})"

    @property
    def nbytes(self) -> int:
        """Bytes of all images, decoded."""
        return len(self) * 3 * self.size * self.size

    @property
    def where(self) -> str:
        """Where `batch` takes its images from."""
        if self._device_pixels is not None:
            return f"on {self._device_pixels.device}"
        if self._file is not None:
            return f"in {self._file}"
        return "in memory" if self._pixels is not None else "decoded for every batch"

    def name(self, row: int) -> str:
        """The path of a row's image; "archive.zip/member" inside a zip file, "table.parquet, row 1" in a table."""
        return self._sources.name(row)

    def content(self, row: int) -> tuple[bytes, str]:
        """Return the encoded image of a row as it is stored, and the suffix of its format."""

        def read(row: int) -> tuple[bytes, str]:
            content = self._sources.content(row)
            return content, image_suffix(content)

        return self._readable(row, read)

    def whole(self, row: int, longest: int) -> Image.Image:
        """Return the image of a row for a person: upright, in its own shape, with at most `longest` pixels per side."""
        if self._from_array or self._device_pixels is not None:
            image = Image.fromarray(self.batch([row])[0].permute(1, 2, 0).cpu().numpy())
            image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
            return image
        read = self._sources.read
        return self._readable(
            row, lambda row: decode_whole(read(row, limit=4 * self._max_pixels), longest, self._max_pixels)
        )

    def fingerprint(self) -> str:
        """Return a digest of the images: sizes and checksums of files and zip members, bytes of arrays.

        Copies of the data in another folder have the same.
        """
        if not self._from_array:
            return self._sources.fingerprint()
        digest = hashlib.sha256(repr(self._shape).encode())
        for start in range(0, len(self), self._block):
            block = self.batch(np.arange(start, min(start + self._block, len(self)))).cpu().numpy()
            digest.update(zlib.crc32(block.data).to_bytes(4, "little"))
        return digest.hexdigest()

    @property
    def from_files(self) -> bool:
        """Whether the images are read from files, which `stamps` identify."""
        return not self._from_array

    def stamps(self) -> Iterator[list[Any]]:
        """Of each image the absolute path, the place inside it, and the file's size and times of change."""
        return self._sources.stamps()

    @property
    def bad(self) -> list[BadImage]:
        """The images that cannot be used, in the order of their rows. Decodes all images first."""
        self.prepare()
        return [BadImage(row, self.name(row), reason) for row, reason in sorted(self._bad.items())]

    @property
    def good_rows(self) -> npt.NDArray[np.int64]:
        """The rows whose images can be used, ascending."""
        if self.on_bad_image == "skip":
            self.prepare()
        return np.setdiff1d(np.arange(len(self)), np.fromiter(self._bad, np.int64, len(self._bad)))

    def _cache_key(self) -> str:
        """Return a digest of everything that decides the pixels."""
        settings = ["spml images 2", len(self), self.size, self.policy, self._max_pixels]
        digest = hashlib.sha256(json.dumps(settings).encode())
        for stamp in self._sources.stamps():
            digest.update(json.dumps(stamp).encode())
        return digest.hexdigest()

    def prepare(self, progress: bool = False) -> None:
        """Decode all images that are kept, and find those to skip. Runs once; `batch` calls it if necessary."""
        if self._prepared:
            return
        if self._file is not None:
            images = (pixels for _, pixels in self._decoded(range(len(self)), progress))
            self._pixels, self._bad = load_or_decode(self._file, self._shape, images, self._bad)
            if self._bad and self.on_bad_image == "error":
                row = min(self._bad)
                raise InputError(f"{self.name(row)}: {self._bad[row]}.")
        elif self._pixels is not None:
            self._fill(np.flatnonzero(~self._filled), progress)
        elif self.on_bad_image == "skip":
            for _ in self._decoded(range(len(self)), progress):
                pass
        self._all_read()

    def batch(self, rows: Any, pin: bool = False) -> torch.Tensor:
        """Return the given rows as a uint8 tensor (B, 3, size, size).

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
            If a row is out of range or its image cannot be used.
        """
        if self._device_pixels is not None and isinstance(rows, torch.Tensor) and rows.device.type != "cpu":
            return self._device_pixels.index_select(0, rows)
        index = row_indices(rows, len(self))
        if self._file is not None or self.on_bad_image == "skip":
            self.prepare()
        for row in index if self._bad else ():
            if int(row) in self._bad:
                raise InputError(f"{self.name(row)}: {self._bad[int(row)]}; row {row} is not among good_rows.")
        if self._device_pixels is not None:
            to = torch.from_numpy(index).to(self._device_pixels.device, non_blocking=True)
            return self._device_pixels.index_select(0, to)
        return self._gather(index, pin)

    def reading(
        self,
        rows: npt.NDArray[np.int64],
        batch_size: int,
        first: int = 0,
        share: Callable[[int], npt.NDArray[np.int64]] = np.arange,
    ) -> Iterator[int]:
        """Yield the numbers of the batches of these rows, from `first` on, while the next batch is decoded.

        `share(n)` gives the positions in a batch of n rows that will be requested. This only changes how long `batch`
        takes. It does nothing if the images are kept.
        """

        def start(number: int) -> None:
            part = rows[number * batch_size : (number + 1) * batch_size]
            if len(part):
                self._coming.append(self._decoding(part[share(len(part))].tolist()))

        kept = self._pixels is not None or self._file is not None or self._device_pixels is not None
        try:
            for number in range(first, -(-len(rows) // batch_size)):
                if not kept and number == first:
                    start(number)
                if not kept:
                    start(number + 1)
                yield number
        finally:
            self._coming.clear()

    def to_device(self, device: torch.device | str, progress: bool = False) -> bool:
        """Move all images to the device as one tensor, if they fit into half of its free memory.

        Parameters
        ----------
        device : torch.device or str
        progress : bool
            Whether to show a progress bar.

        Returns
        -------
        bool
            Whether the images are there. If they do not fit, nothing changes. On "cpu": whether they are in memory.
        """
        target = torch.device(device)
        if self._device_pixels is not None:
            self._device_pixels = self._device_pixels.to(target)
            return True
        if target.type == "cpu":
            return self._pixels is not None
        if self.nbytes > free_device_memory(target) // 2:
            return False
        if self._file is not None or self._pixels is not None:
            self.prepare(progress)
        pixels = torch.empty(self._shape, dtype=torch.uint8, device=target)
        for start in _with_progress(range(0, len(self), self._block), progress, "images to the device"):
            block = np.arange(start, min(start + self._block, len(self)))
            pixels[start : start + len(block)].copy_(self._gather(block))
        self._device_pixels = pixels
        self._pixels = None
        self._all_read()
        return True

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, self.size, self.size

    @property
    def _block(self) -> int:
        return max(1, _BLOCK // (3 * self.size * self.size))

    def _all_read(self) -> None:
        if len(self._bad) == len(self):
            raise InputError(f"none of the {len(self)} images can be used; {self.name(0)}: {self._bad[0]}.")
        self._prepared = True

    def _gather(self, index: npt.NDArray[np.int64], pin: bool = False) -> torch.Tensor:
        pin = pin and torch.cuda.is_available()
        if self._pixels is None:
            rows = index.tolist()
            coming = next((batch for batch in self._coming if batch.rows == rows), None)
            if coming is None:
                return self._decoding(rows, pin).wait()
            self._coming.remove(coming)  # the caller owns the tensor
            return coming.wait().pin_memory() if pin else coming.wait()
        if not self._prepared:
            self._fill(np.unique(index[~self._filled[index]]))
        pixels, out = self._pixels, self._empty_batch(len(index), pin)
        buffer = out.numpy()

        def take(part: slice) -> None:
            np.take(pixels, index[part], axis=0, out=buffer[part], mode="clip")  # rows are valid; "raise" would copy

        step = max(-(-len(index) // self._workers), 1 + _PART // (3 * self.size * self.size))
        parts = [slice(start, start + step) for start in range(0, len(index), step)]
        list(self._threads().map(take, parts) if len(parts) > 1 else map(take, parts))
        return out

    def _empty_batch(self, rows: int, pin: bool) -> torch.Tensor:
        return torch.empty((rows, *self._shape[1:]), dtype=torch.uint8, pin_memory=pin)

    def _decoding(self, rows: list[int], pin: bool = False) -> _Decoding:
        """Start decoding these rows on all threads."""
        out = self._empty_batch(len(rows), pin)
        buffer = out.numpy()

        def read(positions: range) -> None:
            for position in positions:
                pixels = self._usable(rows[position], self._read)
                buffer[position] = 0 if pixels is None else pixels

        step = max(1, -(-len(rows) // self._workers))
        parts = [range(start, min(start + step, len(rows))) for start in range(0, len(rows), step)]
        return _Decoding(rows, out, [self._threads().submit(read, part) for part in parts])

    def _fill(self, rows: npt.NDArray[np.int64], progress: bool = False) -> None:
        assert self._pixels is not None
        for row, pixels in self._decoded(rows.tolist(), progress):
            self._pixels[row] = 0 if pixels is None else pixels
            self._filled[row] = True

    def _decoded(self, rows: Sequence[int], progress: bool = False) -> Iterator[tuple[int, UInt8 | None]]:
        """Row and pixels in the given order, with few images in memory; None for an image that is skipped."""
        return _with_progress(self._decode_ahead(rows), progress, "decoding images", len(rows))

    def _decode_ahead(self, rows: Sequence[int]) -> Iterator[tuple[int, UInt8 | None]]:
        ahead: deque[tuple[int, Future[UInt8]]] = deque()
        try:
            for row in rows:
                ahead.append((row, self._threads().submit(self._read, row)))
                if len(ahead) > 4 * self._workers:
                    yield self._result(*ahead.popleft())
            while ahead:
                yield self._result(*ahead.popleft())
        finally:
            for _, future in ahead:
                future.cancel()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="spml-decode")
        return self._pool

    def _read(self, row: int) -> UInt8:
        source = self._sources.read(row, limit=4 * self._max_pixels)
        return decode_image(source, self.size, self.policy, self._max_pixels)

    def _result(self, row: int, future: Future[UInt8]) -> tuple[int, UInt8 | None]:
        return row, self._usable(row, lambda _: future.result())

    def _usable(self, row: int, read: Callable[[int], UInt8]) -> UInt8 | None:
        """The result of `read`. If it fails: an error that names the image, or None if bad images are skipped."""
        if self.on_bad_image == "error":
            return self._readable(row, read)
        try:
            return read(row)
        except UnreadableImage as error:
            self._bad[row] = str(error)
            return None

    def _readable(self, row: int, read: Callable[[int], _Item]) -> _Item:
        try:
            return read(row)
        except UnreadableImage as error:
            raise InputError(f"{self.name(row)}: {error}.") from error.__cause__


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _with_progress(items: Iterable[_Item], progress: bool, title: str, total: int | None = None) -> Iterator[_Item]:
    """Yield the items, with a progress bar on standard error if wanted."""
    if not progress:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, title, total=total, console=Console(stderr=True))
