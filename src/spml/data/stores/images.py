"""Images in: decoded once to uint8 at one size, then read from memory, from a mapped file or from the device."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import threading
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, UnidentifiedImageError

from spml.atomic import atomic_path, lock_folder
from spml.errors import InputError
from spml.labels.inputs import row_indices

UInt8 = npt.NDArray[np.uint8]
FilePath = str | os.PathLike[str]
Source = FilePath | tuple[FilePath, str]
"""An image file, or a zip file and the name of its member."""
Policy = Literal["squash", "crop"]
OnBadImage = Literal["error", "skip"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff")
"""How the names of files end that `decode` reads (lower case)."""
MAX_PIXELS = 2**27

# Pillow is told what to try: some of its other readers start programs (EPS) or fetch what a file names.
_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
_GIB = 2**30
_BLOCK = 2**28
_PART = 2**24  # bytes that are worth another thread
_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_Item = TypeVar("_Item")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class _Unreadable(Exception):
    """Why an image cannot be used, without its name."""


def decode(
    source: FilePath | bytes | Image.Image,
    size: int,
    policy: Policy = "squash",
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
) -> UInt8:
    """One image as uint8 (3, size, size) in RGB, upright as its EXIF orientation says.

    `squash` resizes to size×size whatever the shape; `crop` takes the centred square of the short side.
    Resampling is Pillow's bilinear, which averages when it shrinks. Transparent pixels are laid on white; of an
    animation the first frame counts. An image of more than `max_pixels` is refused from its header.
    `name` is what an error calls an image given as bytes or as a PIL image. A PIL image that has not been loaded yet
    is read from its file, so that it gives the same pixels as the file.
    """
    _check_size_and_policy(size, policy)
    try:
        return _decode(source, size, policy, max_pixels)
    except _Unreadable as error:
        called = name or ("the image" if isinstance(source, (bytes, Image.Image)) else os.fspath(source))
        raise InputError(f"{called}: {error}.") from error.__cause__


def _decode(source: FilePath | bytes | Image.Image, size: int, policy: Policy, max_pixels: int) -> UInt8:
    try:
        if isinstance(source, Image.Image):
            file: FilePath | bytes = getattr(source, "filename", "") if getattr(source, "tile", None) else ""
            if not file:
                return _square(source.copy(), size, policy)  # `draft` would change the image of the caller
        else:
            file = source
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=_FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise _Unreadable(
                    f"it has {image.width}×{image.height} = {image.width * image.height} pixels, over the limit of "
                    f"{max_pixels} (max_pixels)"
                )
            return _square(image, size, policy)
    except (_Unreadable, MemoryError):
        raise
    except FileNotFoundError as error:
        raise _Unreadable("there is no such file") from error
    except UnidentifiedImageError as error:
        raise _Unreadable(f"this is no image of a known format ({', '.join(_FORMATS)})") from error
    except Exception as error:  # on broken bytes Pillow raises OSError, SyntaxError, struct.error and others
        why = getattr(error, "strerror", None) or str(error).rstrip(".") or type(error).__name__
        raise _Unreadable(f"the image cannot be read ({why})") from error


def _square(image: Image.Image, size: int, policy: Policy) -> UInt8:
    # A JPEG of four times the size or more is decoded at a half, quarter or eighth: never under twice the size.
    image.draft(None, (2 * size, 2 * size))
    image = _rgb(_upright(image))
    width, height = image.size
    side = min(width, height)
    box = (0.0, 0.0, float(width), float(height))
    if policy == "crop":
        box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    small = image.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # EXIF that cannot be parsed says nothing about the pixels
        return image
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert("RGB")


def _check_size_and_policy(size: int, policy: str) -> None:
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise InputError(f"size is {size!r}: it must be a whole number of pixels, at least 1.")
    if policy not in get_args(Policy):
        raise InputError(f"policy is {policy!r}: it must be one of {', '.join(map(repr, get_args(Policy)))}.")


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
        """The batch, or the error of its first image that cannot be used."""
        for part in self.parts:
            part.result()
        return self.pixels


class ImageStore:
    """N images as uint8 (3, size, size), each decoded once where there is room for all of them.

    Where the decoded images live, in the order tried:
      `cache_path` given: one mapped file in that folder, kept for the next run. Its name holds a fingerprint of
        the sources (names, sizes, times of change), size and policy, so other images never meet it. It is
        written beside and renamed: a run that is killed leaves no file that would be taken for whole. Of
        several processes one decodes and the others wait.
      N·3·size² bytes within `cache_limit` (default: 8 GiB, or half of the free memory if that is less): memory.
      otherwise nowhere: `batch` decodes its rows every time, and `reading` those of the next one meanwhile.
    Decoding runs on `workers` threads. JPEG and PNG run in parallel there; Pillow's AVIF reader holds Python's
    lock, so AVIF gains little from more than one thread.

    `on_bad_image="skip"` lists what cannot be read in `bad`; the caller leaves those rows out by `good_rows`.
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
        _check_size_and_policy(size, policy)
        if on_bad_image not in get_args(OnBadImage):
            raise InputError(f"on_bad_image is {on_bad_image!r}: it must be 'error' or 'skip'.")
        if workers is not None and workers < 1:
            raise InputError(f"workers is {workers}: it must be at least 1.")
        self._sources = [_plain(source) for source in sources]
        if not self._sources:
            raise InputError("there is no image: the list of sources is empty.")
        self.size = int(size)
        self.policy: Policy = policy
        self._on_bad_image = on_bad_image
        self._max_pixels = max_pixels
        self._workers = workers or min(16, _cores())
        self._archives = _Archives()
        self._pool: ThreadPoolExecutor | None = None
        self._coming: deque[_Decoding] = deque(maxlen=2)  # this batch and the next, see `reading`
        self._bad: dict[int, str] = {}
        self._device_pixels: torch.Tensor | None = None
        self._prepared = False
        self._filled = np.zeros(len(self), bool)
        self._pixels: UInt8 | None = None
        self._from_array = False
        self._file: Path | None = None
        if cache_path is not None:
            self._file = Path(cache_path) / f"images-{self._cache_key()[:24]}.npy"
        elif self.nbytes <= (min(8 * _GIB, free_memory() // 2) if cache_limit is None else cache_limit):
            self._pixels = np.empty(self._shape, np.uint8)  # pages are taken when rows are written

    @classmethod
    def from_array(cls, pixels: UInt8) -> ImageStore:
        """Images that are decoded already: uint8 (N, 3, S, S), not copied."""
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3 or pixels.shape[2] != pixels.shape[3]:
            raise InputError(
                f"images are a uint8 array of shape (N, 3, S, S), not {pixels.dtype} of shape {pixels.shape}."
            )
        if not pixels.size:
            raise InputError(f"there is no image: the array has the shape {pixels.shape}.")
        store = cls([f"image {row}" for row in range(len(pixels))], pixels.shape[2], cache_limit=0)
        store._pixels, store._from_array = pixels, True
        store._filled[:] = True
        store._prepared = True
        return store

    # Asking it

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
        """The path of a row's image, "archive.zip/member" inside a zip file."""
        source = self._sources[row]
        return source if isinstance(source, str) else "/".join(source)

    def fingerprint(self) -> str:
        """A digest of the images: sizes of files, sizes and checksums of zip members, bytes of decoded images.

        Copies of the data in another folder have the same.
        """
        digest = hashlib.sha256(repr(len(self)).encode())
        if self._from_array:
            for start in range(0, len(self), self._block):
                block = self.batch(np.arange(start, min(start + self._block, len(self)))).cpu().numpy()
                digest.update(zlib.crc32(block.data).to_bytes(4, "little"))
            return digest.hexdigest()
        for source in self._sources:
            digest.update(repr(self._archives.stamp(*source) if isinstance(source, tuple) else _bytes(source)).encode())
        return digest.hexdigest()

    @property
    def bad(self) -> list[BadImage]:
        """The images that cannot be used, by row. Reads them all, if that has not been done."""
        self.prepare()
        return [BadImage(row, self.name(row), reason) for row, reason in sorted(self._bad.items())]

    @property
    def good_rows(self) -> npt.NDArray[np.int64]:
        """The rows whose images can be used, ascending."""
        if self._on_bad_image == "skip":
            self.prepare()
        return np.setdiff1d(np.arange(len(self)), np.fromiter(self._bad, np.int64, len(self._bad)))

    def _cache_key(self) -> str:
        """SHA-256 (hex) of what decides the pixels: sources (name, bytes, time of change), size, policy, limit."""
        digest = hashlib.sha256(
            json.dumps(["spml images 1", len(self), self.size, self.policy, self._max_pixels]).encode()
        )
        archives: dict[str, list[int]] = {}
        for source in self._sources:
            path, member = (source, "") if isinstance(source, str) else source
            stamp = archives.get(path)
            if stamp is None:
                try:
                    stat = os.stat(path)
                    stamp = [stat.st_size, stat.st_mtime_ns]
                except OSError:  # decoding will say what is wrong with it
                    stamp = []
                if member:
                    archives[path] = stamp
            digest.update(json.dumps([os.path.abspath(path), member, *stamp]).encode())
        return digest.hexdigest()

    # Filling it

    def prepare(self, progress: bool = False) -> None:
        """Decode what is to be kept, or find what is to be skipped. Done once; `batch` does it where it must."""
        if self._prepared:
            return
        if self._file is not None:
            self._prepare_file(self._file, progress)
        elif self._pixels is not None:
            self._fill(np.flatnonzero(~self._filled), progress)
        elif self._on_bad_image == "skip":
            for _ in self._decoded(range(len(self)), progress):
                pass
        self._all_read()

    def batch(self, rows: Any, pin: bool = False) -> torch.Tensor:
        """The given rows as a uint8 tensor (B, 3, size, size), in pinned memory if asked.

        After `to_device` the batch is made on the device, and rows may be a tensor there: those are not checked.
        """
        if self._device_pixels is not None and isinstance(rows, torch.Tensor) and rows.device.type != "cpu":
            return self._device_pixels.index_select(0, rows)
        index = row_indices(rows, len(self))
        if self._file is not None or self._on_bad_image == "skip":
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
        """The numbers of the batches of these rows, from `first` on; the next one is decoded meanwhile.

        `share(n)` are the positions in a batch of n rows that will be asked for. It changes nothing but the time that
        `batch` then takes; where images are kept it does nothing.
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
        """Put all images on the device as one tensor, if half of its free memory holds them.

        False, and nothing changes, where they do not fit. Memory taken here is given back. On "cpu" this only
        says whether the images are in memory.
        """
        target = torch.device(device)
        if self._device_pixels is not None:
            self._device_pixels = self._device_pixels.to(target)
            return True
        if target.type == "cpu":
            return self._pixels is not None
        if target.type == "cuda" and not torch.cuda.is_available():
            raise InputError(f"the device is {str(target)!r}, but no CUDA device can be used here: take 'cpu'.")
        if target.type == "cuda" and self.nbytes > torch.cuda.mem_get_info(target)[0] // 2:
            return False
        if self._file is not None or self._pixels is not None:
            self.prepare(progress)
        pixels = torch.empty(self._shape, dtype=torch.uint8, device=target)
        for start in _shown(range(0, len(self), self._block), progress, "images to the device"):
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
            self._coming.remove(coming)  # what is handed over is the caller's own
            return coming.wait().pin_memory() if pin else coming.wait()
        if not self._prepared:
            self._fill(np.unique(index[~self._filled[index]]))
        pixels, out = self._pixels, self._room(len(index), pin)
        into = out.numpy()

        def take(part: slice) -> None:
            np.take(pixels, index[part], axis=0, out=into[part], mode="clip")  # rows are checked; "raise" would buffer

        step = max(-(-len(index) // self._workers), 1 + _PART // (3 * self.size * self.size))
        parts = [slice(start, start + step) for start in range(0, len(index), step)]
        list(self._threads().map(take, parts) if len(parts) > 1 else map(take, parts))
        return out

    def _room(self, rows: int, pin: bool) -> torch.Tensor:
        return torch.empty((rows, *self._shape[1:]), dtype=torch.uint8, pin_memory=pin)

    def _decoding(self, rows: list[int], pin: bool = False) -> _Decoding:
        """Start decoding these rows, a part of them on each thread."""
        out = self._room(len(rows), pin)
        into = out.numpy()

        def read(places: range) -> None:
            for place in places:
                pixels = self._usable(rows[place], self._read)
                into[place] = 0 if pixels is None else pixels

        step = max(1, -(-len(rows) // self._workers))
        parts = [range(start, min(start + step, len(rows))) for start in range(0, len(rows), step)]
        return _Decoding(rows, out, [self._threads().submit(read, part) for part in parts])

    def _fill(self, rows: npt.NDArray[np.int64], progress: bool = False) -> None:
        assert self._pixels is not None
        for row, pixels in self._decoded(rows.tolist(), progress):
            self._pixels[row] = 0 if pixels is None else pixels
            self._filled[row] = True

    def _decoded(self, rows: Sequence[int], progress: bool = False) -> Iterator[tuple[int, UInt8 | None]]:
        """Row and pixels in the order given, few at a time in memory; None for an image that is skipped."""
        return _shown(self._decode_ahead(rows), progress, "decoding images", len(rows))

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
        source = self._sources[row]
        data = source if isinstance(source, str) else self._archives.read(*source, limit=4 * self._max_pixels)
        return _decode(data, self.size, self.policy, self._max_pixels)

    def _result(self, row: int, future: Future[UInt8]) -> tuple[int, UInt8 | None]:
        return row, self._usable(row, lambda _: future.result())

    def _usable(self, row: int, read: Callable[[int], UInt8]) -> UInt8 | None:
        """What `read` gives; where it cannot, an error that names the image, or None if it is to be skipped."""
        try:
            return read(row)
        except _Unreadable as error:
            if self._on_bad_image == "error":
                raise InputError(f"{self.name(row)}: {error}.") from error.__cause__
            self._bad[row] = str(error)
            return None

    # The mapped file

    def _prepare_file(self, file: Path, progress: bool) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with lock_folder(file.parent, wait=True, name=".images.lock"):  # decode in one process only
                if not self._map(file):
                    self._write(file, progress)
                    if not self._map(file):
                        raise InputError(f"{file}: the decoded images were written but cannot be read back.")
        except OSError as error:
            raise InputError(
                f"{file}: the decoded images ({self.nbytes} bytes) cannot be kept there ({error.strerror or error})."
            ) from error
        if self._bad and self._on_bad_image == "error":
            row = min(self._bad)
            raise InputError(f"{self.name(row)}: {self._bad[row]}.")

    def _map(self, file: Path) -> bool:
        """Map the file, if it is there and whole."""
        try:
            pixels = np.load(file, mmap_mode="r", allow_pickle=False)
            bad = {int(row): str(reason) for row, reason in json.loads(file.with_suffix(".json").read_text("utf-8"))}
        except (FileNotFoundError, ValueError, EOFError, TypeError):
            return False
        if pixels.shape != self._shape or pixels.dtype != np.uint8:
            return False
        self._pixels, self._bad = pixels, bad
        return True

    def _write(self, file: Path, progress: bool) -> None:
        free = shutil.disk_usage(file.parent).free
        if free < self.nbytes:
            raise InputError(
                f"{file.parent}: no space left for the decoded images: they take {self.nbytes} bytes, {free} are free."
            )
        self._bad = {}
        blank = bytes(3 * self.size * self.size)
        header = {"descr": "|u1", "fortran_order": False, "shape": self._shape}
        with atomic_path(file) as temporary, temporary.open("wb") as part:
            np.lib.format.write_array_header_1_0(part, header)
            for _, pixels in self._decoded(range(len(self)), progress):
                part.write(blank if pixels is None else pixels.data)
            with atomic_path(file.with_suffix(".json")) as listed:  # first, so that the pixels are never without it
                listed.write_text(json.dumps(sorted(self._bad.items())), encoding="utf-8")


def free_memory() -> int:
    """Bytes of memory that can be taken now, within the limits set to this process; 4 GiB where nothing is said."""
    free = 4 * _GIB
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration, IndexError):
        pass
    return min([free, *_free_in_groups()])


def _free_in_groups() -> Iterator[int]:
    """What each control group of this process, and each above it, leaves; version 2 and 1.

    In a container the system may name a path outside of it, of which only the root is there: the container's own
    group. Pages of files that were not used lately make way, and so count as free.
    """
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit_file, used_file, idle = _GROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, idle = _GROUPS / "memory", "total_inactive_file"
            limit_file, used_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        parts = Path(path.strip("/")).parts
        for depth in range(len(parts) + 1):
            group = root.joinpath(*parts[:depth])
            try:
                limit, used = ((group / name).read_text().strip() for name in (limit_file, used_file))
                rows = (group / "memory.stat").read_text().splitlines()
                held = dict(row.partition(" ")[::2] for row in rows)
                if limit != "max":
                    yield max(0, int(limit) - int(used) + int(held.get(idle, 0)))
            except (OSError, ValueError):
                continue


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bytes(path: str) -> int:
    """The size of a file, 0 where it cannot be found: decoding reports that."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _plain(source: Source) -> str | tuple[str, str]:
    if isinstance(source, tuple):
        return os.fspath(source[0]), source[1]
    return os.fspath(source)


def _shown(items: Iterable[_Item], progress: bool, what: str, total: int | None = None) -> Iterator[_Item]:
    """The items, with a progress bar on standard error if asked."""
    if not progress:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, what, total=total, console=Console(stderr=True))


class _Archives:
    """Zip files, opened once and read by one thread at a time."""

    def __init__(self) -> None:
        self._open: dict[str, zipfile.ZipFile] = {}
        self._lock = threading.Lock()

    def _archive(self, path: str) -> zipfile.ZipFile:
        if path not in self._open:
            self._open[path] = zipfile.ZipFile(path)
        return self._open[path]

    def stamp(self, path: str, member: str) -> tuple[int, int]:
        """Size and checksum of a member; zeros where there is none: reading reports that."""
        try:
            with self._lock:
                info = self._archive(path).getinfo(member)
                return info.file_size, info.CRC
        except (OSError, KeyError, zipfile.BadZipFile):
            return 0, 0

    def read(self, path: str, member: str, limit: int) -> bytes:
        try:
            with self._lock:
                archive = self._archive(path)
                unpacked = archive.getinfo(member).file_size
                if unpacked > limit:
                    raise _Unreadable(f"it unpacks to {unpacked} bytes, over the limit of {limit} (4·max_pixels)")
                return archive.read(member)
        except FileNotFoundError as error:
            raise _Unreadable("there is no such zip file") from error
        except KeyError as error:
            raise _Unreadable("the zip file has no such member") from error
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
            raise _Unreadable(f"the zip file cannot be read ({error})") from error
