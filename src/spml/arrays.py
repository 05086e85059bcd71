"""NumPy files, read without pickle, and only if what their headers promise is there and fits into memory."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format
import numpy.typing as npt

from spml.errors import InputError
from spml.free_memory import free_memory

UNREADABLE = (  # what reading a damaged file may raise
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, OverflowError, RecursionError),
    *(OSError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
    tokenize.TokenError,  # of a damaged header
)


def read_npz(path: Path, what: str = "a .npz file of arrays") -> dict[str, npt.NDArray[Any]]:
    """Read all arrays of a .npz file.

    Parameters
    ----------
    path : Path
    what : str
        What the file should be, for errors.

    Returns
    -------
    dict
        The arrays by name.

    Raises
    ------
    InputError
        If it is not such a file, holds Python objects, an array is shorter than its header says, or all of them
        together need more memory than is free. Nothing is allocated before that is known.
    """
    _need_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            for info in members:
                with archive.open(info) as file:
                    check_header(file, info.file_size, info.filename)
            check_room(path, sum(info.file_size for info in members))
            return {info.filename.removesuffix(".npy"): _read(archive, info) for info in members}
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{path}: this is not {what} ({error}).") from error


def read_npy(path: Path, what: str = "a .npy file of numbers") -> npt.NDArray[Any]:
    """Read a .npy file; see `read_npz`."""
    _check_npy(path, what)
    check_room(path, path.stat().st_size)
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except UNREADABLE as error:
        raise InputError(f"{path}: this is not {what} ({error}).") from error


def map_npy(path: Path, what: str = "a .npy file of numbers") -> npt.NDArray[Any]:
    """Map a .npy file, so that it may be larger than memory."""
    _check_npy(path, what)
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except UNREADABLE as error:
        raise InputError(f"{path}: this is not {what} ({error}).") from error


def check_room(path: Path, needed: int) -> None:
    """Raise `InputError` if a file needs more memory than is free."""
    if needed > (free := free_memory()):
        raise InputError(
            f"{path}: it needs {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free: use fewer "
            "rows or columns."
        )


def _need_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path}: no such file.")


def _check_npy(path: Path, what: str) -> None:
    _need_file(path)
    if zipfile.is_zipfile(path):
        raise InputError(f"{path}: the file holds several arrays; save one array alone, with numpy.save.")
    try:
        with path.open("rb") as file:
            check_header(file, path.stat().st_size, path.name)
    except UNREADABLE as error:
        raise InputError(f"{path}: this is not {what} ({error}).") from error


def check_header(file: IO[bytes], size: int, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type of an array in a file, from its header alone.

    Raises `ValueError` if the header is damaged, promises another size than the file has, or the array holds Python
    objects.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(file)
    except UNREADABLE:  # NumPy's messages quote a header of any length, on several lines
        raise ValueError(f"the header of {name} is damaged") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, as pickle stores them; save numbers, or names as text")
    if any(length < 0 for length in shape):
        raise ValueError(f"{name} has the shape {shape}")
    needed = file.tell() + math.prod(shape) * dtype.itemsize
    if needed != size:
        raise ValueError(f"{name} should have {needed:,} bytes for the shape {shape}, but has {size:,}")
    return shape, dtype


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(info) as file:
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
