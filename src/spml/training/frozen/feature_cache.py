"""Features of frozen backbones, kept for later runs on the same images.

One file per network, image size and way of computing, in the user's cache folder: `SPML_CACHE`, else
`$XDG_CACHE_HOME/spml`, else `~/.cache/spml`. An empty `SPML_CACHE` switches the cache off. Rows are identified by the
path, size and modification times of their image file, so that changed images are computed again. All files together
take at most `MAX_BYTES`; the least recently used ones are deleted first. A cache that cannot be read or written is
ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.models import Classifier
from spml.models.backbones import weights_digest
from spml.runs.files import lock_folder, read_tensors, write_tensors

Float32 = npt.NDArray[np.float32]

MAX_BYTES = 2**31
_VERSION = "spml features 3"
_KEY_BYTES = 16
_MAX_ROWS = 20_000  # half of `MAX_BYTES` with 1,280 features of each image and of nine regions
_TICK = 2 * 10**9  # nanoseconds: some file systems record the time of a change in steps of two seconds


def cache_folder() -> Path | None:
    """Where features are kept; None if the cache is switched off or there is no home folder."""
    if (chosen := os.environ.get("SPML_CACHE")) is not None:
        return Path(chosen).expanduser() / "features" if chosen else None
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spml" / "features"
    return None


class ImageKeys(NamedTuple):
    """Cache keys of images, and which of these images may be stored in the cache."""

    keys: list[bytes]
    settled: npt.NDArray[np.bool_]
    """Whether the file was not changed after its store was opened: otherwise the pixels may be those from before."""


class FeatureCache:
    """The features of the images of a store by one network.

    Parameters
    ----------
    file : Path
        Where the features are kept; see `open_cache`.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def get_or_compute(self, images: ImageKeys, compute: Callable[[npt.NDArray[np.int64]], Float32]) -> Float32:
        """Return the features (N, D) of images; `compute` is called with the positions of those that are missing."""
        keys = images.keys
        cached_keys, cached = self._read()
        row_of = {key: row for row, key in enumerate(cached_keys)}
        cached_rows = np.array([row_of.get(key, -1) for key in keys], np.int64)
        missing = np.flatnonzero(cached_rows < 0)
        if not len(missing):
            with suppress(OSError):
                os.utime(self.file)  # the least recently used files are deleted first
            return cached[cached_rows]
        new = compute(missing)
        out = np.empty((len(keys), new.shape[1]), np.float32)
        out[missing] = new
        if len(missing) < len(keys):
            out[cached_rows >= 0] = cached[cached_rows[cached_rows >= 0]]
        settled = images.settled[missing]
        if settled.any():
            self._add([keys[row] for row in missing[settled]], new[settled])
        return out

    def has_all(self, images: ImageKeys) -> bool:
        """Return whether the features of all these images are kept."""
        return set(images.keys) <= set(self._read()[0])

    def _read(self) -> tuple[list[bytes], Float32]:
        nothing: tuple[list[bytes], Float32] = [], np.zeros((0, 0), np.float32)
        if not self.file.is_file():
            return nothing
        try:
            tensors, _ = read_tensors(self.file)
            keys, features = tensors["keys"].numpy(), tensors["features"].numpy()
        except (InputError, OSError, KeyError, TypeError):
            return nothing
        fits = keys.dtype == np.uint8 and features.dtype == np.float32 and features.ndim == 2
        if not fits or keys.shape != (len(features), _KEY_BYTES) or not np.isfinite(features).all():
            return nothing
        return [key.tobytes() for key in keys], features

    def _add(self, keys: list[bytes], features: Float32) -> None:
        """Keep these features, and as many of the others as there is room for."""
        if not np.isfinite(features).all():
            return
        with suppress(InputError, OSError), lock_folder(self.file.parent, wait=True, name=".features.lock"):
            cached_keys, cached = self._read()  # another process may have added some
            table = dict(zip(cached_keys, cached, strict=True)) | dict(zip(keys, features, strict=True))
            most = MAX_BYTES // 2 // features[0].nbytes
            latest = list(table.items())[-most:]
            names = np.frombuffer(b"".join(key for key, _ in latest), np.uint8).reshape(-1, _KEY_BYTES)
            rows = np.stack([row for _, row in latest])
            tensors = {"keys": torch.from_numpy(names.copy()), "features": torch.from_numpy(rows)}
            write_tensors(self.file, tensors, {"version": _VERSION})
            _delete_oldest(self.file.parent)


def open_cache(
    classifier: Classifier,
    store: ImageStore,
    zooms: Sequence[float],
    regions: bool,
    precision: str,
    device: torch.device,
) -> FeatureCache | None:
    """Return the cache of a pretrained network on the images of a store.

    None if the images are not in files or too many, the network has no pretrained weights or is a user's own module,
    whose code may change, or the cache is switched off.
    """
    folder, name = cache_folder(), classifier.description.get("backbone", "")
    if folder is None or not classifier.pretrained or not store.from_files or len(store) > _MAX_ROWS:
        return None
    import timm

    parts = [_VERSION, name, timm.__version__, weights_digest(classifier.backbone)]
    parts += [classifier.mean.flatten().tolist(), classifier.std.flatten().tolist()]
    parts += [store.size, store.policy, classifier.pooling, list(zooms), regions, precision, device.type]
    return FeatureCache(folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}.safetensors")


def image_keys(store: ImageStore, rows: npt.NDArray[np.int64]) -> ImageKeys:
    """A digest of the path, size and times of change of the file of every image, and of its place in the file."""
    stamps = list(store.stamps())
    keys = [hashlib.sha256(json.dumps(stamps[row]).encode()).digest()[:_KEY_BYTES] for row in rows]
    latest = store.opened - _TICK
    settled = [len(stamps[row]) > 2 and max(stamps[row][-2:]) < latest for row in rows]
    return ImageKeys(keys, np.array(settled, bool))


def _delete_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > MAX_BYTES:
            file.unlink(missing_ok=True)
