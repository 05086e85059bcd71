"""NUS-WIDE in its official layout: 81 concepts, images from Flickr."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Unpack

import numpy as np
import numpy.typing as npt

from spml.data.dataset import Dataset, Truth, read_lines
from spml.data.formats.official import OfficialOptions, PaperCounts, need_distinct, need_file, official_dataset
from spml.data.stores.decode import FilePath
from spml.errors import InputError
from spml.labels import Labels

LABELS, LISTS, IMAGES = "Groundtruth.zip", "ImageList.zip", "the archive of the Flickr images"
OFFICIAL_IMAGES = (161_789, 107_859)
MERGED_TRAIN = 150_000
PAPER = PaperCounts(81, 120_000, 30_000, 60_260, "1.89", 0, 11, "Zhou et al. 2022, Table 4; Cole et al. 2021, Table A3")


def from_nuswide(
    path: FilePath,
    *,
    split: Literal["merged", "official"] = "merged",
    train_images: int = MERGED_TRAIN,
    missing_images: Literal["error", "drop"] = "error",
    **options: Unpack[OfficialOptions],
) -> Dataset:
    """Open NUS-WIDE. Images without a label are kept.

    Parameters
    ----------
    path : path
        A folder with Groundtruth/TrainTestLabels, ImageList and the images (Flickr or images).
    split : {"merged", "official"}
        "merged", as in the papers: `train_images` of all images are drawn for training. Which ones the papers drew is
        not published. "official": the split of the official lists.
    train_images : int
        Of the merged split.
    missing_images : {"error", "drop"}
        "drop" leaves out rows whose image is missing, as after downloading the images again.
    **options
        See `OfficialOptions`.

    Returns
    -------
    Dataset
    """
    if split not in ("merged", "official"):
        raise InputError(f"split is {split!r}: it must be 'merged' or 'official'.")
    if missing_images not in ("error", "drop"):
        raise InputError(f"missing_images is {missing_images!r}: it must be 'error' or 'drop'.")
    root = Path(path)
    concepts = _concepts(root)
    notes: list[str] = []
    names: list[str] = []
    blocks = []
    for part in ("Train", "Test"):
        file = need_file(root / "ImageList" / f"{part}Imagelist.txt", LISTS)
        listed = read_lines(file)
        blocks.append(_labels(root, concepts, part, len(listed), notes))
        listed = [line.replace("\\", "/") for line in listed]
        need_distinct(file, listed, "image", before=names)
        names += listed
    matrix, train_rows = np.concatenate(blocks), len(blocks[0])
    rows = np.arange(len(names))
    folder = next((root / name for name in ("Flickr", "images", "Images") if (root / name).is_dir()), root / "Flickr")
    if missing_images == "drop" and options.get("features") is None:
        rows = np.flatnonzero([(folder / name).is_file() for name in names])
        if not len(rows):
            raise InputError(f"{folder}: all of the {len(names)} listed images are missing.")
        notes.append(f"{len(names) - len(rows)} of {len(names)} images are missing; their rows are left out.")
        train_rows = int(np.searchsorted(rows, train_rows))
    if split == "merged":
        if not 0 < train_images < len(rows):
            raise InputError(
                f"train_images is {train_images}: it must be above 0 and below the number of images, {len(rows)}."
            )
        order = np.random.RandomState(options.get("seed", 1200)).permutation(len(rows))
        rows = rows[np.concatenate([np.sort(order[:train_images]), np.sort(order[train_images:])])]
        train_rows = train_images
    names = [names[row] for row in rows]
    truth = Truth(Labels.from_matrix(matrix[rows], concepts, ids=names))
    name = "nuswide" if split == "merged" else "nuswide-official"
    return official_dataset(
        name, truth, train_rows, check_counts, folder=folder, archive=IMAGES, notes=notes, **options
    )


def check_counts(dataset: Dataset) -> list[str]:
    """Describe every count that differs from the papers' or, for the official split, from the official lists."""
    if dataset.name == "nuswide":
        return PAPER.mismatches(dataset)
    ours = (len(dataset.train) + len(dataset.validation), len(dataset.test))
    counts = [("classes", len(dataset.classes), PAPER.classes)]
    counts += zip(("training images", "test images"), ours, OFFICIAL_IMAGES, strict=True)
    return [
        f"{name}: {actual} here, {expected} in the official lists"
        for name, actual, expected in counts
        if actual != expected
    ]


def _concepts(root: Path) -> list[str]:
    """Return the concepts in the order of their list or of their label files, which is alphabetical in both cases."""
    for listed in (root / "Concepts81.txt", root / "ConceptsList" / "Concepts81.txt"):
        if listed.is_file():
            concepts = read_lines(listed)
            need_distinct(listed, concepts, "concept")
            if not concepts:
                raise InputError(f"{listed}: it contains no concept.")
            return concepts
    folder = root / "Groundtruth" / "TrainTestLabels"
    found = sorted(file.name[len("Labels_") : -len("_Train.txt")] for file in folder.glob("Labels_*_Train.txt"))
    if not found:
        need_file(folder / "Labels_airport_Train.txt", LABELS)
    return found


def _labels(root: Path, concepts: list[str], part: str, rows: int, notes: list[str]) -> npt.NDArray[np.int8]:
    """(N, L) +1 and -1 from one file per concept with 0 or 1 per line; other content is unknown."""
    matrix = np.empty((rows, len(concepts)), np.int8)
    for column, concept in enumerate(concepts):
        file = need_file(root / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{part}.txt", LABELS)
        characters = np.frombuffer(file.read_bytes(), np.uint8)
        characters = characters[characters > ord(" ")]
        if len(characters) == rows and np.isin(characters, (ord("0"), ord("1"))).all():
            matrix[:, column] = np.where(characters == ord("1"), 1, -1)
            continue
        lines = read_lines(file)
        if len(lines) != rows:
            raise InputError(f"{file}: it has {len(lines)} lines, the list of images has {rows}.")
        matrix[:, column] = [{"0": -1, "1": 1}.get(line, 0) for line in lines]
        unexpected = next(line for line in lines if line not in ("0", "1"))
        notes.append(
            f"{file.name}, line {lines.index(unexpected) + 1}: {unexpected!r} is neither 0 nor 1 and counts as unknown."
        )
    return matrix
