"""MS-COCO 2014 in its official layout, and your own annotations as COCO json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from spml.data.dataset import Dataset, Truth
from spml.data.formats.official import OfficialOptions, PaperCounts, need_distinct, need_file, official_dataset
from spml.data.formats.user_data import ANNOTATED, UserOptions, from_images
from spml.data.stores.decode import FilePath
from spml.errors import InputError
from spml.json_text import parse_json
from spml.labels import Labels

ANNOTATIONS, IMAGES = "annotations_trainval2014.zip", "train2014.zip and val2014.zip"
PAPER = PaperCounts(80, 65665, 16416, 40137, "2.94", 1, 18, "Zhou et al. 2022, Table 4; Cole et al. 2021, Table A3")


class _Instances(NamedTuple):
    classes: list[str]
    files: dict[int | str, str]
    """Image id -> file name."""
    labels: dict[int | str, list[str]]
    """Image id -> names of its annotated categories."""


def from_coco(path: FilePath, **options: Unpack[OfficialOptions]) -> Dataset:
    """Open MS-COCO 2014: train2014, split as by Cole et al. (2021), and val2014 as the test set.

    Images without an annotation are left out (702 and 367 of the official 82,783 and 40,504). Image ids are sorted as
    text, which is the order in which Cole et al. draw.

    Parameters
    ----------
    path : path
        A folder with annotations, train2014 and val2014.
    **options
        See `OfficialOptions`.

    Returns
    -------
    Dataset
    """
    root = Path(path)
    names: list[str] = []
    labels: list[list[str]] = []
    classes: list[str] = []
    train_rows = 0
    for part in ("train2014", "val2014"):
        file = need_file(root / "annotations" / f"instances_{part}.json", ANNOTATIONS)
        instances = _instances(file)
        if classes and instances.classes != classes:
            raise InputError(f"{file}: its categories differ from those of instances_train2014.json.")
        classes = instances.classes
        ids = sorted((image for image, annotated in instances.labels.items() if annotated), key=str)
        labels += [instances.labels[image] for image in ids]
        names += [f"{part}/{instances.files[image]}" for image in ids]
        train_rows = train_rows or len(ids)
    truth = Truth(Labels.from_lists(labels, classes, ids=names, rest="negative"))
    return official_dataset("coco14", truth, train_rows, PAPER.mismatches, folder=root, archive=IMAGES, **options)


def from_coco_json(path: FilePath, *, image_root: FilePath | None = None, **options: Unpack[UserOptions]) -> Dataset:
    """Open your own annotations as COCO json: annotated classes are positive, all others unknown.

    Parameters
    ----------
    path : path
        A .json file.
    image_root : path, optional
        Where file names start. By default the folder of the json file, or its subfolder `images`.
    **options
        See `UserOptions`.

    Returns
    -------
    Dataset
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: no such file.")
    instances = _instances(file)
    roots = [Path(image_root)] if image_root is not None else [file.parent, file.parent / "images"]
    names = list(instances.files.values())
    for root in roots:
        missing = [name for name in names if not os.path.isfile(root / name)]  # also if the name is too long
        if not missing:
            break
    else:
        raise InputError(
            f"{file}: the image {missing[0]!r:.300} is not in {' or '.join(map(str, roots))} ({len(missing)} of "
            f"{len(names)} are missing); set image_root to the folder that file names are relative to."
        )
    need_distinct(file, map(os.path.normpath, names), "image")
    labels = Labels.from_lists(instances.labels.values(), instances.classes, ids=names)
    return from_images(file.stem, [root / name for name in names], labels, [ANNOTATED], **options)


def _instances(path: Path) -> _Instances:
    try:
        content = parse_json(path.read_bytes())
        lists = [_list(content, key) for key in ("categories", "images", "annotations")]
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InputError(f"{path}: this is not COCO json of images, annotations and categories ({reason}).") from error
    categories = _fields(path, "categories", lists[0], "id", "name")
    images = _fields(path, "images", lists[1], "id", "file_name")
    for values, kind in ((categories, "category"), (images, "image")):
        need_distinct(path, (identity for identity, _ in values), f"{kind} id")
        need_distinct(path, (str(name) for _, name in values), f"{kind} name")
    classes = {category: str(name) for category, name in categories}
    files = {image: str(name) for image, name in images}
    labels: dict[int | str, list[str]] = {image: [] for image in files}
    for index, (image, category) in enumerate(_fields(path, "annotations", lists[2], "image_id", "category_id")):
        if image not in files:
            raise InputError(f"{path}: annotations[{index}] refers to image {image!r}, which is not listed.")
        if category not in classes:
            raise InputError(f"{path}: annotations[{index}] refers to category {category!r}, which is not listed.")
        labels[image].append(classes[category])
    if not any(labels.values()):
        raise InputError(f"{path}: it has no annotations.")
    return _Instances(list(classes.values()), files, labels)


def _list(content: Any, key: str) -> list[Any]:
    values = content[key]
    if not isinstance(values, list):
        raise ValueError(f"{key!r} is not a list")
    return values


def _fields(path: Path, key: str, entries: list[Any], first: str, second: str) -> list[tuple[Any, Any]]:
    """Two fields of each entry; both must be text or numbers."""
    found = []
    for index, entry in enumerate(entries):
        first_value, second_value = (entry.get(first), entry.get(second)) if isinstance(entry, dict) else (None, None)
        if not (_is_plain(first_value) and _is_plain(second_value)):
            field = second if _is_plain(first_value) else first
            raise InputError(f"{path}: {key}[{index}] has no {field!r} that is text or a number.")
        found.append((first_value, second_value))
    return found


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""
