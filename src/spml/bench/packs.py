"""Any fully labelled data set as a pack: a pack as it is, an official layout through its adapter."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from spml.data.dataset import Dataset
from spml.data.detect import open_data
from spml.data.formats.pack import Pack, load_pack
from spml.data.formats.scenes import QUICKSTART, scenes
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError

SCENES = "scenes"  # in place of a path; a folder of that name is ./scenes


@dataclass(frozen=True, eq=False)
class OfficialPack(Pack):
    """A data set in its official layout, with Cole et al.'s split and draw."""

    notes: tuple[str, ...] = ()
    """What differs from the papers' counts, a sentence each."""
    content: str = ""
    """A digest of the images."""

    def images(self, size: int = 320, **options: Any) -> ImageStore:
        store = open_data(self.directory, size=size, **options).store
        assert isinstance(store, ImageStore)
        return store

    def features(self, name: str | None = None) -> FeatureStore:
        raise InputError(f"{self.directory}: there is no feature matrix beside an official layout")


@dataclass(frozen=True, eq=False)
class BuiltInPack(Pack):
    """The scenes of the quickstart: they need no file."""

    store: ImageStore

    def images(self, size: int = 320, **options: Any) -> ImageStore:
        if size != self.store.size:
            raise InputError(f"the built-in scenes have {self.store.size} pixels a side: image_size must be that")
        return self.store

    def features(self, name: str | None = None) -> FeatureStore:
        raise InputError("the built-in scenes have no feature matrix")


def open_pack(path: str | Path) -> Pack:
    """The pack at `path`, or the official layout there (PASCAL VOC, MS-COCO, NUS-WIDE, CUB), or `SCENES`, as a pack."""
    if str(path) == SCENES:
        return _built_in()
    folder = Path(path)
    if (folder / "labels.npz").is_file() or not folder.is_dir():
        return load_pack(folder)
    return _official(folder.resolve())


@lru_cache(maxsize=4)  # thousands of annotations are read once, however many jobs there are
def _official(folder: Path) -> OfficialPack:
    dataset = open_data(folder)
    if dataset.truth is None:
        raise InputError(f"{folder}: a benchmark needs data whose full labels are known, and these have none")
    return OfficialPack(**_parts(dataset), directory=folder, notes=dataset.notes, content=dataset.store.fingerprint())


@lru_cache(maxsize=1)
def _built_in() -> BuiltInPack:
    dataset = scenes(**QUICKSTART)
    assert isinstance(dataset.store, ImageStore)
    return BuiltInPack(**_parts(dataset), directory=Path(SCENES), store=dataset.store)


def _parts(dataset: Dataset) -> dict[str, Any]:
    assert dataset.truth is not None
    return {
        "ids": dataset.names,
        "classes": dataset.classes,
        "truth": dataset.truth.open().dense(),
        "observed": dataset.labels.single().astype(np.int64),
        "train": dataset.train,
        "val": dataset.validation,
        "test": dataset.test,
        "largest_share": dataset.truth.largest_share(),
    }


def source_of(pack: Pack, size: int) -> dict[str, Any]:
    """Where a report finds the images again: what `open_data` takes."""
    if isinstance(pack, BuiltInPack):
        return {"path": SCENES, "options": QUICKSTART}
    return {"path": str(pack.directory.resolve()), "options": {"size": size}}


def features_digest(store: FeatureStore) -> str:
    """A digest of all features: a result on features belongs to these very numbers."""
    digest = hashlib.blake2b(digest_size=8)
    for start in range(0, len(store), 4096):
        rows = np.arange(start, min(start + 4096, len(store)))
        digest.update(store.batch(rows).numpy().tobytes())
    return digest.hexdigest()
