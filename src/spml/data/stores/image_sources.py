"""Where encoded images are stored: image files, members of zip files, cells of parquet tables."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spml.data.stores.decode import FilePath, UnreadableImage

_TABLE_MEMORY = 2**28  # bytes of row groups that stay in memory
_START = 2**14  # bytes


class ParquetCell(NamedTuple):
    """An image inside a parquet table: a cell of bytes, or of Hugging Face's struct of `bytes` and `path`."""

    path: str
    column: str
    row: int


Source = FilePath | tuple[FilePath, str] | ParquetCell
"""An image file, a zip file and the name of its member, or a cell of a parquet table."""


class ImageSources:
    """The encoded images of a store, one per row."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = [_plain(source) for source in sources]
        self._archives = _Archives()
        self._tables = _ParquetTables()

    def __len__(self) -> int:
        return len(self._sources)

    def name(self, row: int) -> str:
        """Return the path of an image, followed by its place in a zip file or table."""
        source = self._sources[row]
        if isinstance(source, ParquetCell):
            return f"{source.path}, row {source.row + 1}"
        return source if isinstance(source, str) else "/".join(source)

    def read(self, row: int, limit: int) -> str | bytes:
        """Return the path of an image file, or the content of one inside another file, of at most `limit` bytes."""
        source = self._sources[row]
        if isinstance(source, str):
            return source
        if isinstance(source, ParquetCell):
            return self._tables.read(source, limit)
        return self._archives.read(*source, limit=limit)

    def content(self, row: int) -> bytes:
        """Return the encoded image."""
        found = self.read(row, limit=2**40)
        if isinstance(found, bytes):
            return found
        try:
            with open(found, "rb") as file:
                return file.read()
        except OSError as error:
            raise UnreadableImage(f"the image cannot be read ({error.strerror})") from error

    def fingerprint(self) -> str:
        """Return a digest of sizes and checksums, of whole images in zip files: the same for copies in another folder.

        Of other files the checksum covers the first 16 KiB, which differ between compressed images. Reading all bytes
        would take as long as decoding the images.
        """
        digest = hashlib.sha256()
        start_of = lru_cache(_size_and_start)
        for source in self._sources:
            if isinstance(source, ParquetCell):
                stamp: Any = (*start_of(source.path), source.row)
            else:
                stamp = self._archives.stamp(*source) if isinstance(source, tuple) else _size_and_start(source)
            digest.update(repr(stamp).encode())
        return digest.hexdigest()

    def stamps(self) -> Iterator[list[Any]]:
        """Of each image the absolute path, the place inside it, and the file's size and times of change."""
        stat_of = lru_cache(_stat)
        for source in self._sources:
            path, *inside = (source,) if isinstance(source, str) else source
            yield [os.path.abspath(path), inside, *(stat_of(path) if inside else _stat(path))]


def _plain(source: Source) -> str | tuple[str, str] | ParquetCell:
    if isinstance(source, ParquetCell):
        return source
    return (os.fspath(source[0]), source[1]) if isinstance(source, tuple) else os.fspath(source)


def _stat(path: str) -> list[int]:
    """Size of a file and times of change of its content and status; nothing if it is missing, which reading reports.

    Tools that copy or restore files keep the first time, but not the second.
    """
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _size_and_start(path: str) -> tuple[int, int]:
    """Size of a file and checksum of its start; zeros if it cannot be read, which decoding reports."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe does not wait
    except OSError:
        return 0, 0
    try:
        status = os.fstat(file)
        return status.st_size, zlib.crc32(os.read(file, _START)) if stat.S_ISREG(status.st_mode) else 0
    except OSError:
        return 0, 0
    finally:
        os.close(file)


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
        """Size and checksum of a member; zeros where it is missing, which reading reports."""
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
                _check_length(archive.getinfo(member).file_size, limit)
                return archive.read(member)
        except FileNotFoundError as error:
            raise UnreadableImage("no such zip file") from error
        except KeyError as error:
            raise UnreadableImage("the zip file has no such member") from error
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
            raise UnreadableImage(f"the zip file cannot be read ({error})") from error


class _ParquetTables:
    """Columns of images in parquet files, of which the row groups used last stay in memory."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Any, Any]] = {}  # by path: the file, the first row of each row group
        self._groups: OrderedDict[tuple[str, str, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, cell: ParquetCell, limit: int) -> bytes:
        import pyarrow as pa

        try:
            with self._lock:
                file, starts = self._file(cell.path)
                group = int(np.searchsorted(starts, cell.row, side="right")) - 1
                value = self._group(file, cell, group)[cell.row - int(starts[group])]
            content: bytes | None = value.as_py()
        except FileNotFoundError as error:
            raise UnreadableImage("no such parquet file") from error
        except (OSError, IndexError, KeyError, pa.ArrowException) as error:
            raise UnreadableImage(f"the table cannot be read ({error})") from error
        if not content:
            raise UnreadableImage(f"column {cell.column!r} is empty there")
        _check_length(len(content), limit)
        return content

    def _file(self, path: str) -> tuple[Any, Any]:
        from pyarrow import parquet

        if path not in self._open:
            file = parquet.ParquetFile(path)
            rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            self._open[path] = file, np.cumsum([0, *rows[:-1]])
        return self._open[path]

    def _group(self, file: Any, cell: ParquetCell, group: int) -> Any:
        """Return the images of a row group, from memory if it was used lately."""
        import pyarrow as pa

        column = cell.column
        key = (cell.path, column, group)
        if key not in self._groups:
            is_struct = pa.types.is_struct(file.schema_arrow.field(column).type)
            cells = file.read_row_group(group, columns=[f"{column}.bytes" if is_struct else column])[column]
            self._groups[key] = cells.combine_chunks().field("bytes") if is_struct else cells
            while len(self._groups) > 1 and sum(cells.nbytes for cells in self._groups.values()) > _TABLE_MEMORY:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key]


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise UnreadableImage(f"it unpacks to {length} bytes, over the limit of {limit} (4·max_pixels)")
