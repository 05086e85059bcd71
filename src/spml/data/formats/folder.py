"""A folder per class: each subfolder is a class, and its images are positive for it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import NamedTuple, Unpack

from spml.data.dataset import Dataset
from spml.data.formats.user_data import SPLITS, UserOptions, from_images
from spml.data.stores.decode import SUFFIXES, FilePath
from spml.errors import InputError
from spml.labels import Labels

_ENDING = 4096


class _Image(NamedTuple):
    name: str
    """The path relative to the data, with slashes. No Path objects, because there may be millions of images."""
    split: str
    label: str


def from_folder(path: FilePath, **options: Unpack[UserOptions]) -> Dataset:
    """Open a folder of images with a subfolder per class.

    Identical files in two class folders become one row with two positives. No image is decoded here.

    Parameters
    ----------
    path : path
        A folder with `<class>/…/<image>`, or with `train/<class>/…` and optionally `val` and `test`.
    **options
        See `UserOptions`.

    Returns
    -------
    Dataset
    """
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder.")
    found, left_out = _images(root)
    if not found:
        raise InputError(f"{root}: no image ({', '.join(SUFFIXES)}) in this folder or below.")
    images, classes, notes = _by_class(root, found)
    known = [[image.label] for image in images]
    copies: set[int] = set()
    merged = _same_in_several_classes(root, images)
    for first, *others in merged:
        known[first] = sorted({images[row].label for row in (first, *others)})
        copies.update(others)
    rows = [row for row in range(len(images)) if row not in copies]
    names = [images[row].name for row in rows]
    labels = Labels.from_lists([known[row] for row in rows], classes, ids=names)
    if merged:
        example = images[min(merged)[0]].name.rpartition("/")[2]
        notes.append(
            f"{len(merged)} images are in more than one class folder: each is one row with all its classes "
            f"(for example {example!r})."
        )
    if left_out:
        notes.append(f"{len(left_out)} hidden or other files were ignored (for example {left_out[0]!r}).")
    files = [os.path.join(root, name) for name in names]
    splits = [images[row].split for row in rows]
    return from_images(root.resolve().name, files, labels, notes, splits, **options)


def _images(root: Path) -> tuple[list[str], list[str]]:
    """The names of all images below a folder, sorted, and of all other files."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read ({error.strerror}).") from error

    images: list[str] = []
    others: list[str] = []
    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not hidden(name) and not _leads_back(folder, name))
        inside = Path(folder).relative_to(root).as_posix()
        before = "" if inside == "." else f"{inside}/"
        for name in sorted(files):
            is_image = os.path.splitext(name)[1].lower() in SUFFIXES and not hidden(name)
            (images if is_image else others).append(before + name)
    return images, others


def _leads_back(folder: str, name: str) -> bool:
    """Whether this is a link to one of its parent folders."""
    path = os.path.join(folder, name)
    if not os.path.islink(path):
        return False
    return os.path.realpath(path) in {os.path.realpath(above) for above in (Path(folder), *Path(folder).parents)}


def hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _by_class(root: Path, names: list[str]) -> tuple[list[_Image], list[str], list[str]]:
    """The images with split and class, the sorted classes, and notes."""
    tops = {name.partition("/")[0] for name in names if "/" in name}
    has_splits = "train" in {SPLITS.get(top.casefold()) for top in tops} and all(
        top.casefold() in SPLITS for top in tops
    )
    depth = 1 if has_splits else 0  # of the class in the path
    images: list[_Image] = []
    loose: list[str] = []
    for name in names:
        *folders, _ = name.split("/", depth + 1)
        if len(folders) == depth + 1:
            split = SPLITS[folders[0].casefold()] if has_splits else "train"
            images.append(_Image(name, split, sys.intern(folders[depth])))
        else:
            loose.append(name)
    if not images:
        where = "the folders train, val and test contain" if has_splits else "it contains"
        raise InputError(
            f"{root}: {where} {len(names)} images but no folder per class: put the images of each class in a "
            "folder with its name, or give a table (csv, parquet) of image paths and labels."
        )
    classes = {image.label for image in images}
    notes = []
    if loose:
        notes.append(f"{len(loose)} images are in no class folder and were ignored (for example {loose[0]!r}).")
    if has_splits:
        notes.append(f"the folders {', '.join(sorted(tops))} are the split, their subfolders the classes.")
    empty = sorted(
        entry.name
        for top in ([root / name for name in tops] if has_splits else [root])
        for entry in top.iterdir()
        if entry.is_dir() and not hidden(entry.name) and entry.name not in classes
    )
    if len(empty) == 1:
        notes.append(f"the folder {empty[0]!r} contains no image and is not a class.")
    elif empty:
        notes.append(f"the folders {', '.join(map(repr, empty))} contain no image and are not classes.")
    return images, sorted(classes), notes


def _same_in_several_classes(root: Path, images: list[_Image]) -> list[list[int]]:
    """Groups of rows with identical files in several classes of one split.

    Only files that have the same size and last bytes as a file of another class are read completely.
    """

    def length(image: _Image) -> tuple[str, int | str]:
        try:
            return image.split, os.stat(os.path.join(root, image.name)).st_size
        except FileNotFoundError:  # a broken link, which reading the images reports or skips
            return image.split, image.name

    def ending(image: _Image) -> bytes:
        with open(os.path.join(root, image.name), "rb", buffering=0) as file:
            file.seek(-min(_ENDING, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return hashlib.sha256(file.read(_ENDING)).digest()

    def content(image: _Image) -> bytes:
        with open(os.path.join(root, image.name), "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    groups: list[Iterable[int]] = [range(len(images))]
    try:
        for trait in (length, ending, content):
            groups = [part for rows in groups for part in _apart(rows, images, trait)]
    except OSError as error:
        raise InputError(f"{error.filename}: the image cannot be read ({error.strerror}).") from error
    return [list(rows) for rows in groups]


def _apart(rows: Iterable[int], images: list[_Image], trait: Callable[[_Image], Hashable]) -> list[list[int]]:
    """Group rows by a trait, and drop groups of a single class."""
    parts: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        parts[trait(images[row])].append(row)
    return [part for part in parts.values() if len({images[row].label for row in part}) > 1]
