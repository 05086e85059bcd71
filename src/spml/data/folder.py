"""A folder per class: each sub-folder is a class, its images are the rows known to have it."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, Unpack

from spml.data.dataset import PHOTO_SIZE, Dataset, ImageOptions
from spml.data.images import SUFFIXES, FilePath, ImageStore
from spml.data.own import SPLITS, from_known
from spml.errors import InputError
from spml.labels import Labels


class _Image(NamedTuple):
    path: Path
    split: str
    label: str


def from_folder(
    path: FilePath,
    *,
    size: int = PHOTO_SIZE,
    validation_share: float = 0.2,
    seed: int = 1200,
    **options: Unpack[ImageOptions],
) -> Dataset:
    """Rows from `path/<class>/…/<image>`, or from `path/train/<class>/…` with `val` and `test` beside `train`.

    The same bytes under two classes are one image with two known positives. Without a `val` folder, a share of the
    labelled rows becomes validation. Options are those of `ImageStore`; no image is decoded here.
    """
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder.")
    found, left_out = _images(root)
    if not found:
        raise InputError(f"{root}: there is no image in it or its folders ({', '.join(SUFFIXES)}).")
    images, classes, notes = _by_class(root, found)
    groups = _merged(images)
    rows = [group[0] for group in groups]
    names = [image.path.relative_to(root).as_posix() for image in rows]
    labels = Labels.from_lists([sorted({i.label for i in group}) for group in groups], classes, ids=names)
    several = [group for group in groups if len(group) > 1]
    if several:
        notes.append(
            f"{len(several)} images lie in more than one class folder, byte for byte: each is one row with all its "
            f"classes (for example {several[0][0].path.name!r})."
        )
    if left_out:
        example = left_out[0].relative_to(root).as_posix()
        notes.append(f"{len(left_out)} hidden or other files were left out (for example {example!r}).")
    store = ImageStore([image.path for image in rows], size, **options)
    splits = [image.split for image in rows]
    return from_known(root.resolve().name, store, labels, splits, notes, validation_share=validation_share, seed=seed)


def _images(root: Path) -> tuple[list[Path], list[Path]]:
    """The images below a folder, sorted, and the files that are none."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read ({error.strerror}).") from error

    images: list[Path] = []
    others: list[Path] = []
    for folder, folders, files in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        for name in sorted(files):
            is_image = Path(name).suffix.lower() in SUFFIXES and not _hidden(name)
            (images if is_image else others).append(Path(folder) / name)
    return images, others


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _by_class(root: Path, paths: list[Path]) -> tuple[list[_Image], list[str], list[str]]:
    """Each image with its split and class; the classes, sorted; notes."""
    parts = [path.relative_to(root).parts for path in paths]
    tops = {part[0] for part in parts if len(part) > 1}
    has_splits = "train" in {SPLITS.get(top.casefold()) for top in tops} and all(
        top.casefold() in SPLITS for top in tops
    )
    depth = 1 if has_splits else 0  # where the class stands in the path
    loose = [path for path, part in zip(paths, parts, strict=True) if len(part) < depth + 2]
    if len(loose) == len(paths):
        where = "the folders train, val and test" if has_splits else "it"
        raise InputError(
            f"{root}: {where} hold {len(paths)} images but no folder per class: put the images of each class in a "
            "folder with its name, or give a table (csv, parquet) of image paths and labels."
        )
    images = [
        _Image(path, SPLITS[part[0].casefold()] if has_splits else "train", part[depth])
        for path, part in zip(paths, parts, strict=True)
        if len(part) >= depth + 2
    ]
    notes = []
    if loose:
        name = loose[0].relative_to(root).as_posix()
        notes.append(f"{len(loose)} images lie in no class folder and were left out (for example {name!r}).")
    if has_splits:
        notes.append(f"the folders {', '.join(sorted(tops))} are taken as the split, the folders in them as classes.")
    empty = sorted(
        entry.name
        for top in ([root / name for name in tops] if has_splits else [root])
        for entry in top.iterdir()
        if entry.is_dir() and not _hidden(entry.name) and entry.name not in {image.label for image in images}
    )
    if empty:
        notes.append(f"the folders {', '.join(map(repr, empty))} hold no image and are no classes.")
    return images, sorted({image.label for image in images}), notes


def _merged(images: list[_Image]) -> list[list[_Image]]:
    """The images in their order, those of equal content in different classes of one split together."""
    by_size: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    try:
        for row, image in enumerate(images):
            by_size[image.split, image.path.stat().st_size].append(row)
        by_content: defaultdict[tuple[str, int, str], list[int]] = defaultdict(list)
        for (split, length), rows in by_size.items():
            if len({images[row].label for row in rows}) > 1:  # only these need be read
                for row in rows:
                    with images[row].path.open("rb") as file:
                        by_content[split, length, hashlib.file_digest(file, "sha256").hexdigest()].append(row)
    except OSError as error:
        raise InputError(f"{error.filename}: the image cannot be read ({error.strerror}).") from error
    first: dict[int, int] = {}
    for rows in by_content.values():
        if len({images[row].label for row in rows}) > 1:
            first |= dict.fromkeys(rows, rows[0])
    groups: defaultdict[int, list[_Image]] = defaultdict(list)
    for row, image in enumerate(images):
        groups[first.get(row, row)].append(image)
    return list(groups.values())
