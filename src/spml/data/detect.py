"""Any data by its path: what it is, is seen from what is there."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spml.data.dataset import Dataset, ImageOptions
from spml.data.formats.voc import voc_root
from spml.data.stores.images import SUFFIXES, FilePath
from spml.errors import InputError

# kind: module, function, and what it is, in words
KINDS = {
    "scenes": ("scenes", "scenes", "the word scenes: the built-in scenes of handwritten digits"),
    "pack": ("pack", "from_pack", "a pack: a folder with labels.npz and zips of images or features*.npy"),
    "voc": ("voc", "from_voc", "PASCAL VOC: a folder with VOCdevkit/VOC2012/ImageSets/Main/train.txt"),
    "voc-annotations": ("voc", "from_voc_annotations", "a folder with Annotations/*.xml and JPEGImages"),
    "coco": ("coco", "from_coco", "MS-COCO: a folder with annotations/instances_train2014.json"),
    "nuswide": ("nuswide", "from_nuswide", "NUS-WIDE: a folder with Groundtruth/TrainTestLabels and ImageList"),
    "cub": ("cub", "from_cub", "CUB-200-2011: a folder with images.txt and attributes/image_attribute_labels.txt"),
    "table": ("table", "from_table", "a table .csv, .tsv or .parquet, or a folder with one and the images"),
    "coco-json": ("coco", "from_coco_json", "COCO json of one's own: a file .json"),
    "features": ("table", "from_features", "a feature matrix .npy with labels"),
    "folder": ("folder", "from_folder", "a folder per class: a folder of folders of images"),
}
_BY_SUFFIX = {
    **dict.fromkeys((".csv", ".tsv", ".parquet", ".pq"), "table"),
    **{".json": "coco-json", ".npy": "features"},
}


def open_data(path: FilePath, *, kind: str | None = None, **options: Any) -> Dataset:
    """The data set at `path`, of whichever kind in `KINDS` it is; `options` are those of that kind's function.

    The text "scenes" is the built-in data set; a folder of that name is "./scenes".
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind is {kind!r}: it must be one of {', '.join(KINDS)}.")
    place = Path(path)
    kind = kind or ("scenes" if path == "scenes" else _kind(place))
    if kind == "table" and place.is_dir():
        place = _table(place)
    module, name, _ = KINDS[kind]
    function: Callable[..., Dataset] = getattr(importlib.import_module(f"spml.data.formats.{module}"), name)
    _check_options(kind, function, options)
    return function(**options) if kind == "scenes" else function(place, **options)


def _kind(path: Path) -> str:
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder. Data can be {_listed(KINDS)}.")
    if path.is_file():
        if path.suffix.lower() not in _BY_SUFFIX:
            raise InputError(f"{path}: this is no data that can be opened. Data can be {_listed(KINDS)}.")
        return _BY_SUFFIX[path.suffix.lower()]
    fitting = [kind for kind, there in _layouts(path).items() if there]
    if not fitting:
        raise InputError(f"{path}: nothing here is known. Data can be {_listed(KINDS)}.")
    if len(fitting) > 1:
        raise InputError(f"{path}: this may be {_listed(fitting, ' or ')}: say which by kind ({', '.join(fitting)}).")
    return fitting[0]


def _layouts(path: Path) -> dict[str, bool]:
    """Which kinds of folder this may be. A folder per class is one only where no other layout is seen."""
    cub = any((root / "attributes" / "image_attribute_labels.txt").is_file() for root in (path, path / "CUB_200_2011"))
    voc = voc_root(path) is not None
    official = {
        "pack": (path / "labels.npz").is_file(),
        "voc": voc,
        "voc-annotations": not voc and any((path / "Annotations").glob("*.xml")),
        "coco": any((path / "annotations").glob("instances_*2014.json")),
        "nuswide": (path / "Groundtruth").is_dir() or (path / "ImageList").is_dir(),
        "cub": cub,
    }
    if any(official.values()):
        return official
    tables = _tables(path)
    tables = [_table(path)] if tables else []
    folders = (entry for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    class_folders = sum(not os.path.exists(os.path.join(entry, "run.json")) for entry in folders)  # runs are no data
    # Beside a table one folder holds the images; several may be classes. Loose images get the folder's own error.
    loose = any(file.suffix.lower() in SUFFIXES for file in path.iterdir())
    return {"table": bool(tables), "folder": class_folders > 1 or (not tables and (class_folders > 0 or loose))}


def _tables(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if _BY_SUFFIX.get(file.suffix.lower()) == "table")


def _table(path: Path) -> Path:
    """The one table in a folder."""
    tables = _tables(path)
    if len(tables) != 1:
        there = (
            f"are several tables, open one: {', '.join(table.name for table in tables)}"
            if tables
            else f"is no table ({', '.join(suffix for suffix, kind in _BY_SUFFIX.items() if kind == 'table')})"
        )
        raise InputError(f"{path}: there {there}.")
    return tables[0]


def _listed(kinds: Any, joint: str = "; ") -> str:
    return joint.join(KINDS[kind][2] for kind in kinds)


def _check_options(kind: str, function: Callable[..., Dataset], options: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name not in ("path", "options")]
    if "options" in parameters:
        known += ImageOptions.__annotations__
    for option in options:
        if option not in known:
            raise InputError(f"{option!r} is no option for {kind}, {KINDS[kind][2]}; there are {', '.join(known)}.")
