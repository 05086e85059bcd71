"""What a person sees of a row: its image in two sizes, its text, or only its name."""

from __future__ import annotations

import io
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.models import Classifier
from spml.predict.evidence import highlight, support_maps
from spml.runs.folder import RunFolder

THUMBNAIL, LARGE = 240, 1280
TYPE = "image/webp"
_MEMORY = 2**26  # bytes of thumbnails without a cache file


class Pictures:
    """Images of rows as WebP, made on demand and ahead of time, and kept in a cache file.

    The file can be deleted at any time. Nothing but pixels of the images reaches a browser: no file, no metadata.

    Parameters
    ----------
    store : ImageStore
    cache : Path, optional
        A file; kept in memory if it cannot be written.
    """

    def __init__(self, store: ImageStore, cache: Path | None = None) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._memory: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._stopped = threading.Event()
        self._busy = 0  # requests that a person waits for
        self._cache = None if cache is None else self._open(cache)

    def thumbnail(self, row: int) -> bytes:
        """The image in the size of the grid."""
        cached = self._read(row)
        if cached is not None:
            return cached
        self._busy += 1
        try:
            return self._make(row)
        finally:
            self._busy -= 1

    def large(self, row: int) -> bytes:
        """The image in the size of the screen."""
        return _webp(self.store.whole(row, LARGE), 88)

    def make_ahead(self, rows: Iterable[int]) -> threading.Thread:
        """Make thumbnails in the background, until `close`; a person's requests come first."""

        def work() -> None:
            for row in rows:
                while self._busy and not self._stopped.wait(0.05):
                    pass
                if self._stopped.is_set():
                    return
                with suppress(InputError):  # shown when somebody asks for it
                    if self._read(row) is None:
                        self._make(row)

        thread = threading.Thread(target=work, name="spml-thumbnails", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Stop working in the background."""
        self._stopped.set()
        with self._lock:
            if self._cache is not None:
                self._cache.close()
                self._cache = None

    def _make(self, row: int) -> bytes:
        content = _webp(self.store.whole(row, THUMBNAIL), 80)
        with self._lock:
            if self._cache is not None:
                try:
                    self._cache.execute("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", (row, content))
                    return content
                except sqlite3.Error:  # a full disk: go on without the file
                    self._cache = None
            self._memory[row] = content
            self._bytes += len(content)
            while self._bytes > _MEMORY:
                self._bytes -= len(self._memory.popitem(last=False)[1])
        return content

    def _read(self, row: int) -> bytes | None:
        with self._lock:
            if row in self._memory:
                return self._memory[row]
            if self._cache is None:
                return None
            try:
                found = self._cache.execute("SELECT content FROM thumbnails WHERE row = ?", (row,)).fetchone()
            except sqlite3.Error:
                return None
            return found[0] if found else None

    def _open(self, path: Path) -> sqlite3.Connection | None:
        """The cache file, emptied if it belongs to other images; None if it cannot be used."""
        try:
            cache = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
            cache.execute("PRAGMA journal_mode = WAL")
            cache.execute("PRAGMA synchronous = OFF")
            key = f"{self.store.fingerprint()} {THUMBNAIL}"
            cache.execute("CREATE TABLE IF NOT EXISTS thumbnails (row INTEGER PRIMARY KEY, content BLOB NOT NULL)")
            cache.execute("CREATE TABLE IF NOT EXISTS images (key TEXT)")
            if cache.execute("SELECT key FROM images").fetchall() != [(key,)]:
                cache.execute("DELETE FROM thumbnails")
                cache.execute("DELETE FROM images")
                cache.execute("INSERT INTO images VALUES (?)", (key,))
            return cache
        except sqlite3.Error:
            return None


class Evidence:
    """Which regions of an image support a label; nothing for networks without a feature map."""

    def __init__(self, run: RunFolder, store: ImageStore) -> None:
        self._store, self._lock = store, threading.Lock()
        try:
            network: Any = run.network()
        except InputError:  # a custom backbone, whose code is not in the run folder
            network = None
        self._network = network if isinstance(network, Classifier) else None

    @property
    def available(self) -> bool:
        return self._network is not None

    def picture(self, row: int, label: int) -> bytes | None:
        """The image with those regions highlighted."""
        if self._network is None:
            return None
        with self._lock:
            square = self._store.batch([row])[0].permute(1, 2, 0).cpu().numpy()
            maps = support_maps(self._network, square, [label])
        if maps is None:
            return None
        whole = np.asarray(self._store.whole(row, LARGE // 2)) if self._store.policy == "squash" else square
        return _webp(Image.fromarray(highlight(whole, maps[0])), 82)


def _webp(image: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=quality, method=2)
    return file.getvalue()
