"""PASCAL VOC 2012 in its official layout, and your own folders of VOC annotations."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Unpack
from xml.etree import ElementTree

import numpy as np

from spml.data.dataset import Dataset, Float32, Truth, read_lines
from spml.data.formats.official import OfficialOptions, PaperCounts, need_distinct, need_file, official_dataset
from spml.data.formats.user_data import ANNOTATED, UserOptions, from_images
from spml.data.stores.decode import SUFFIXES, FilePath
from spml.errors import InputError
from spml.labels import Labels

ARCHIVE = "VOCtrainval_11-May-2012.tar"
CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The 20 classes in alphabetical order, as in Cole et al.'s code: the single positives depend on it."""
PAPER = PaperCounts(20, 4574, 1143, 5823, "1.46", 1, 5, "Zhou et al. 2022, Table 4; Cole et al. 2021, Table A3")


class _Scene(NamedTuple):
    shares: dict[str, float]
    """By class: the share of the image that its largest box covers."""
    file: str
    difficult: int = 0
    """The number of objects that do not count."""


def from_voc(path: FilePath, **options: Unpack[OfficialOptions]) -> Dataset:
    """Open PASCAL VOC 2012: train.txt, split as by Cole et al. (2021), and val.txt as the test set.

    Objects marked difficult do not count. Images without other objects are left out.

    Parameters
    ----------
    path : path
        The folder VOC2012, VOCdevkit or its parent.
    **options
        See `OfficialOptions`.

    Returns
    -------
    Dataset
    """
    root = voc_root(Path(path)) or Path(path)
    shares: list[dict[str, float]] = []
    ids: list[str] = []
    parts = []
    for part in ("train", "val"):
        file = need_file(root / "ImageSets" / "Main" / f"{part}.txt", ARCHIVE)
        listed = sorted(read_lines(file))
        need_distinct(file, listed, "image", before=ids)
        scenes = [_annotation(need_file(root / "Annotations" / f"{image}.xml", ARCHIVE)) for image in listed]
        kept = [index for index, scene in enumerate(scenes) if scene.shares]
        ids += [listed[index] for index in kept]
        shares += [scenes[index].shares for index in kept]
        parts.append(len(kept))
        if not ids:
            raise InputError(f"{file}: none of its images has an object that is not marked difficult.")
    for image, scene in zip(ids, shares, strict=True):
        for unknown in scene.keys() - set(CLASSES):
            raise InputError(
                f"{root / 'Annotations' / image}.xml: the class {unknown!r} is not one of the 20 VOC classes; open "
                "your own annotations with kind voc-annotations."
            )
    names = [f"{image}.jpg" for image in ids]
    largest = _largest_share(shares, CLASSES)
    truth = Truth(Labels.from_matrix((largest > 0).astype(np.int8), CLASSES, ids=names, coding="full"), largest)
    folder = root / "JPEGImages"
    return official_dataset("voc12", truth, parts[0], PAPER.mismatches, folder=folder, archive=ARCHIVE, **options)


def from_voc_annotations(path: FilePath, **options: Unpack[UserOptions]) -> Dataset:
    """Open your own images with VOC annotations: annotated classes are positive, all others unknown.

    Parameters
    ----------
    path : path
        A folder with `Annotations/*.xml` and the images in `JPEGImages` or `images`.
    **options
        See `UserOptions`.

    Returns
    -------
    Dataset
    """
    root = Path(path)
    annotations = sorted((root / "Annotations").glob("*.xml"))
    if not annotations:
        raise InputError(f"{root / 'Annotations'}: no annotations (*.xml).")
    folders = [root / name for name in ("JPEGImages", "images", "Images") if (root / name).is_dir()]
    if not folders:
        raise InputError(f"{root / 'JPEGImages'}: no such folder; it should contain the images.")
    images = sorted(file for file in folders[0].iterdir() if file.suffix.lower() in SUFFIXES)
    by_stem = {file.stem: file for file in images}
    same_stem = Counter(file.stem for file in images)
    lists: list[list[str]] = []
    annotation_of: dict[Path, Path] = {}
    difficult = 0
    for annotation in annotations:
        scene = _annotation(annotation)
        if scene.file.startswith(("/", "\\")) or ".." in Path(scene.file).parts or "\0" in scene.file:
            raise InputError(f"{annotation}: its image {scene.file!r} must lie in {folders[0]}: give a file name.")
        image = folders[0] / scene.file
        found = image if scene.file and os.path.isfile(image) else by_stem.get(annotation.stem)
        if found != image and same_stem[annotation.stem] > 1:
            raise InputError(f"{annotation}: several images are named {annotation.stem!r}: give a file name.")
        if found is None:
            raise InputError(f"{annotation}: its image {scene.file or annotation.stem!r} is not in {folders[0]}.")
        if found in annotation_of:
            raise InputError(
                f"{annotation}: its image {found.name!r} is also the image of {annotation_of[found].name}."
            )
        lists.append(sorted(scene.shares))
        difficult += scene.difficult
        annotation_of[found] = annotation
    if not any(lists):
        raise InputError(f"{root / 'Annotations'}: no annotation contains an object.")
    files = list(annotation_of)
    labels = Labels.from_lists(lists, ids=[file.relative_to(root).as_posix() for file in files])
    notes = [ANNOTATED]
    if left_out := sorted({*images} - {*files}):
        notes.append(
            f"{len(left_out)} images have no annotation (*.xml) and are left out (for example {left_out[0].name!r})."
        )
    if difficult:
        notes.append(f"{difficult} objects marked difficult do not count.")
    return from_images(root.resolve().name, files, labels, notes, **options)


def voc_root(path: Path) -> Path | None:
    """Return the folder VOC2012, which is `path` or below it; None if there is none."""
    roots = (path, path / "VOC2012", path / "VOCdevkit" / "VOC2012")
    return next((root for root in roots if any((root / "ImageSets" / "Main").glob("*train*.txt"))), None)


def _annotation(path: Path) -> _Scene:
    if not path.is_file():
        raise InputError(f"{path}: this is not a regular file.")
    try:
        tree = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError, ValueError, LookupError) as error:  # LookupError: unknown encoding
        raise InputError(f"{path}: the annotation cannot be read ({error}).") from error
    if tree.tag != "annotation":
        raise InputError(f"{path}: its root element is {tree.tag!r:.60}, not 'annotation': this is no VOC annotation.")
    width, height = (_number(path, tree, f"size/{side}", "the image") for side in ("width", "height"))
    shares: dict[str, float] = {}
    difficult = 0
    for number, element in enumerate(tree.iter("object"), start=1):
        if (element.findtext("difficult") or "0").strip() == "1":
            difficult += 1
            continue
        name = (element.findtext("name") or "").strip()
        if not name:
            raise InputError(f"{path}: object {number} has no name.")
        subject = f"object {number} ({name})"
        left, top, right, bottom = (
            _number(path, element, f"bndbox/{c}", subject) for c in ("xmin", "ymin", "xmax", "ymax")
        )
        area = max(0.0, right - left) * max(0.0, bottom - top) / max(1.0, width * height)
        # A box without area is still an object, so its share is never 0.
        shares[name] = max(shares.get(name, 0.0), area, 1e-6)
    return _Scene(shares, (tree.findtext("filename") or "").strip(), difficult)


def _number(path: Path, element: ElementTree.Element, field: str, subject: str) -> float:
    """Return a number in the annotation, 0 if it is missing."""
    text = element.findtext(field) or "0"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{path}: {field} of {subject} is {text!r}: it must be a number.")
    return number


def _largest_share(shares: Sequence[dict[str, float]], classes: Sequence[str]) -> Float32:
    """(N, L) share of the image that the largest box of the class covers, 0 where absent."""
    column = {name: index for index, name in enumerate(classes)}
    largest = np.zeros((len(shares), len(classes)), np.float32)
    for row, scene in enumerate(shares):
        for name, share in scene.items():
            largest[row, column[name]] = share
    return largest
