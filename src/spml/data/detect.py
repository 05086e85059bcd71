"""Open data by its path: the format is detected."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from spml.data.dataset import TABLES, Dataset
from spml.data.formats.folder import TEXT_SUFFIXES
from spml.data.formats.voc import voc_root
from spml.data.stores.decode import SUFFIXES, FilePath
from spml.errors import InputError
from spml.type_checks import check_type, hints_of


class Format(NamedTuple):
    """A format that `open_data` reads: a function of a module in `spml.data.formats`."""

    module: str
    function: str
    description: str


FORMATS = {
    "scenes": Format("scenes", "scenes", "the word scenes: the built-in scenes of handwritten digits"),
    "pack": Format("pack", "from_pack", "a pack: a folder with labels.npz and images, texts or features"),
    "voc": Format("voc", "from_voc", "PASCAL VOC: a folder with VOCdevkit/VOC2012/ImageSets/Main/train.txt"),
    "voc-annotations": Format("voc", "from_voc_annotations", "a folder with Annotations/*.xml and JPEGImages"),
    "coco": Format("coco", "from_coco", "MS-COCO: a folder with annotations/instances_train2014.json"),
    "nuswide": Format("nuswide", "from_nuswide", "NUS-WIDE: a folder with Groundtruth/TrainTestLabels and ImageList"),
    "cub": Format("cub", "from_cub", "CUB-200-2011: a folder with images.txt and attributes/*_attribute_labels.txt"),
    "table": Format("table", "from_table", "a table (.csv, .tsv, .parquet), or a folder with one and the images"),
    "coco-json": Format("coco", "from_coco_json", "your own annotations as COCO json: a .json file"),
    "features": Format("table", "from_features", "a feature matrix (.npy, or sparse .npz) with labels next to it"),
    "folder": Format("folder", "from_folder", "a folder per class: a folder of folders of images"),
    "texts": Format("folder", "from_text_folder", "a folder per class with texts (.txt)"),
}
"""By the name that `kind` takes."""

_BY_SUFFIX = {**dict.fromkeys(TABLES, "table"), ".json": "coco-json", ".npy": "features", ".npz": "features"}
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
_SHARD = re.compile(r"[a-z]+-\d{5}-of-\d{5}.*\.parquet")  # as Hugging Face names the parts of a table
_PATH_OPTIONS = ("cache_path", "features", "image_root", "labels")


def open_data(path: FilePath, *, kind: str | None = None, **options: Any) -> Dataset:
    """Open the data at a path as a `Dataset`.

    Parameters
    ----------
    path : path or "scenes"
        A folder or file in any of the formats in `FORMATS`, or the word "scenes" for the built-in data set
        (a folder of that name is "./scenes").
    kind : str, optional
        The format, a key of `FORMATS`. Detected if not given.
    **options
        Options of the format's function, such as `size`, `features`, `image_column`, `text_column`, `label_column`,
        `separator`, `validation_share` or `seed`; for images also those of `ImageStore`, such as `cache_path`.

    Returns
    -------
    Dataset
        Its `notes` describe how the data was read. Its `source` holds the path and the options.

    Raises
    ------
    InputError
        If nothing is there, the format cannot be detected or is ambiguous, the data is damaged, or an option does not
        exist for the format.

    Examples
    --------
    >>> open_data("scenes", train=50, test=10, size=32)
    Dataset('scenes': 60 rows, 10 classes; 40 train, 10 validation, 10 test)
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InputError(f"the path of the data is {path!r}: give a file or a folder.")
    if kind is not None and kind not in FORMATS:
        raise InputError(f"kind is {kind!r}: it must be one of {', '.join(FORMATS)}.")
    if kind == "scenes" and path != "scenes":
        raise InputError(f"{path}: the format scenes is built in: its path is the word scenes.")
    location = Path(path)
    is_special = os.path.exists(location) and not (location.is_file() or location.is_dir())
    if path != "scenes" and is_special:  # reading a pipe would wait for ever
        raise InputError(f"{location}: this is neither a regular file nor a folder.")
    detected = kind or ("scenes" if path == "scenes" else _detect(location))
    source = {"path": "scenes" if detected == "scenes" else str(location.resolve())}
    if detected == "table" and location.is_dir():
        location = _only_table(location)
    _check_options(detected, options)
    function = _function(detected)
    dataset = function(**options) if detected == "scenes" else function(location, **options)
    recorded = ({} if kind is None else {"kind": kind}) | _as_json(detected, options)
    return replace(dataset, source=source | {"kind": detected, "options": recorded})


def _detect(path: Path) -> str:
    if not os.path.exists(path):  # also if the name is too long
        hint = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise InputError(f"{path}: no such file or folder{hint}")
    if path.is_file():
        if path.suffix.lower() in _SPREADSHEETS:
            raise InputError(f"{path}: spreadsheets are not supported. Save the sheet as CSV, and open that file.")
        if path.suffix.lower() not in _BY_SUFFIX:
            raise InputError(f"{path}: this type of file is not supported. Supported data: {_describe(FORMATS)}.")
        return _BY_SUFFIX[path.suffix.lower()]
    fitting = [kind for kind, fits in _layouts(path).items() if fits]
    if not fitting:
        raise InputError(f"{path}: no supported data in this folder. Supported data: {_describe(FORMATS)}.")
    if len(fitting) > 1:
        raise InputError(
            f"{path}: this may be {_describe(fitting, ' or ')}. Choose one with kind ({', '.join(fitting)})."
        )
    return fitting[0]


def is_text_folder(path: Path) -> bool:
    """Return whether `open_data` detects a folder per class with texts."""
    return path.is_dir() and _layouts(path).get("texts", False)


def _layouts(path: Path) -> dict[str, bool]:
    """Which formats a folder may be in. Tables and class folders count only where no other layout fits."""
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
    has_table = bool(_tables(path) and _only_table(path))
    folders = (entry for entry in os.scandir(path) if os.path.isdir(entry.path) and not entry.name.startswith("."))
    class_folders = sum(not os.path.exists(os.path.join(entry, "run.json")) for entry in folders)  # not run folders
    # A single folder next to a table holds its images; several may be classes. For loose images `from_folder` raises.
    loose = any(file.suffix.lower() in SUFFIXES for file in path.iterdir())
    by_class = class_folders > 1 or (not has_table and (class_folders > 0 or loose))
    texts = by_class and not loose and _holds_texts(path)
    return {"table": has_table, "folder": by_class and not texts, "texts": texts}


def _holds_texts(path: Path) -> bool:
    """Return whether there are text files and no images in the subfolders; the search ends at the first image."""
    texts = False
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        suffixes = {os.path.splitext(name)[1].lower() for name in files}
        if not suffixes.isdisjoint(SUFFIXES):
            return False
        texts |= Path(folder) != path and not suffixes.isdisjoint(TEXT_SUFFIXES)
    return texts


def _tables(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.suffix.lower() in TABLES)


def _only_table(path: Path) -> Path:
    """Return the table in a folder, or the folder itself if it holds one table in several parquet files."""
    tables = _tables(path)
    shards = bool(tables) and all(_SHARD.fullmatch(table.name) for table in tables)
    if shards and (len(tables) > 1 or "-of-00001" not in tables[0].name):
        return path
    if len(tables) > 1:
        raise InputError(f"{path}: several tables, open one of them: {', '.join(table.name for table in tables)}.")
    if not tables:
        raise InputError(f"{path}: no table ({', '.join(TABLES)}) in this folder.")
    return tables[0]


def _describe(kinds: Iterable[str], joint: str = "; ") -> str:
    return joint.join(FORMATS[kind].description for kind in kinds)


def _function(kind: str) -> Callable[..., Dataset]:
    module = importlib.import_module(f"spml.data.formats.{FORMATS[kind].module}")
    function: Callable[..., Dataset] = getattr(module, FORMATS[kind].function)
    return function


def format_options(kind: str) -> list[str]:
    """Return the names of the options that `open_data` accepts for a format."""
    function = _function(kind)
    available = [name for name in inspect.signature(function).parameters if name not in ("path", "options")]
    for shared in get_args(get_type_hints(function).get("options")):  # Unpack[a TypedDict]
        available += shared.__annotations__
    return available


def _option_types(kind: str) -> dict[str, Any]:
    """Return the annotated types of the options of a format."""
    hints = hints_of(_function(kind))
    for shared in get_args(hints.get("options")):
        hints |= hints_of(shared)
    return hints


def _check_options(kind: str, options: dict[str, Any]) -> None:
    available, types = format_options(kind), _option_types(kind)
    for option, value in options.items():
        if option not in available:
            raise InputError(
                f"{option!r} is not an option for {kind}, {FORMATS[kind].description}. Available options: "
                f"{', '.join(available)}."
            )
        check_type(option, value, types.get(option))
        if option.endswith("_columns") and isinstance(value, str):
            raise InputError(f"{option} is the string {value!r}: pass a list of column names.")


def _as_json(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as JSON holds them, with absolute paths; the features of a pack are a name inside it."""
    recorded = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    for name in _PATH_OPTIONS:
        if isinstance(recorded.get(name), str) and not (kind == "pack" and name == "features"):
            recorded[name] = os.path.abspath(recorded[name])
    return recorded
