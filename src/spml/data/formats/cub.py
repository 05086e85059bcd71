"""CUB-200-2011 in its official layout: 312 attributes of birds, with the certainty of each answer."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from spml.data.dataset import Dataset, Truth, read_lines
from spml.data.formats.official import OfficialOptions, PaperCounts, need_distinct, need_file, official_dataset
from spml.data.stores.decode import FilePath
from spml.errors import InputError
from spml.labels import Labels

ARCHIVE = "CUB_200_2011.tgz"
CERTAINTIES = {1: "not visible", 2: "guessing", 3: "probably", 4: "definitely"}
PAPER = PaperCounts(312, 4795, 1199, 5794, "31.4", 3, 71, "Zhou et al. 2022, Table 4; Cole et al. 2021, Table A3")


def from_cub(path: FilePath, *, certainty: int = 1, **options: Unpack[OfficialOptions]) -> Dataset:
    """Open CUB-200-2011: the official training images, then the test images, each in the order of images.txt.

    Parameters
    ----------
    path : path
        The folder CUB_200_2011, or its parent.
    certainty : int
        Answers with a lower certainty (1 not visible, 2 guessing, 3 probably, 4 definitely) are unknown in the truth.
        1, as by Cole et al. (2021), uses all answers.
    **options
        See `OfficialOptions`.

    Returns
    -------
    Dataset
    """
    if certainty not in CERTAINTIES:
        raise InputError(f"certainty is {certainty!r}: it must be 1, 2, 3 or 4.")
    root = Path(path)
    root = root if (root / "images.txt").is_file() else root / "CUB_200_2011"
    names = list(_numbered(need_file(root / "images.txt", ARCHIVE)))
    is_train = _numbered(need_file(root / "train_test_split.txt", ARCHIVE))
    if len(is_train) != len(names):
        raise InputError(f"{root / 'train_test_split.txt'}: it has {len(is_train)} lines, images.txt {len(names)}.")
    need_distinct(root / "images.txt", names, "image")
    for line, flag in enumerate(is_train, start=1):
        if flag not in ("0", "1"):
            raise InputError(
                f"{root / 'train_test_split.txt'}: line {line} contains {flag!r}: it must be 1 (train) or 0 (test)."
            )
    attribute_file = _attribute_names(root)
    attributes = _numbered(attribute_file)
    need_distinct(attribute_file, attributes, "attribute")
    answers = need_file(root / "attributes" / "image_attribute_labels.txt", ARCHIVE)
    matrix = _labels(answers, len(names), len(attributes), certainty)
    train = np.array(is_train) == "1"
    order = np.concatenate([np.flatnonzero(train), np.flatnonzero(~train)])
    names = [names[row] for row in order]
    truth = Truth(Labels.from_matrix(matrix[order], attributes, ids=names))
    rows, folder = int(train.sum()), root / "images"
    return official_dataset("cub", truth, rows, PAPER.mismatches, folder=folder, archive=ARCHIVE, **options)


def _attribute_names(root: Path) -> Path:
    """attributes.txt, which is next to CUB_200_2011 in the archive, but inside it in some copies."""
    candidates = (root.parent / "attributes.txt", root / "attributes.txt", root / "attributes" / "attributes.txt")
    return next((candidate for candidate in candidates if candidate.is_file()), None) or need_file(
        candidates[0], ARCHIVE
    )


def _numbered(path: Path) -> list[str]:
    """Return the values of lines "number value", numbered from 1."""
    values = []
    for index, line in enumerate(read_lines(path), start=1):
        number, _, value = line.partition(" ")
        if number != str(index) or not value:
            raise InputError(f"{path}: line {index} is {line!r}: expected '{index}' and a value.")
        values.append(value.strip())
    return values


def _labels(path: Path, images: int, attributes: int, certainty: int) -> npt.NDArray[np.int8]:
    """(N, L) +1 and -1, 0 where the answer is less certain or missing.

    Lines contain image, attribute, present, certainty and a time. Some official lines have more columns.
    """
    try:
        table = np.loadtxt(path, dtype=np.int64, usecols=(0, 1, 2, 3), comments=None, ndmin=2)
    except (ValueError, OSError) as error:
        raise InputError(
            f"{path}: a line cannot be read ({error}); expected image, attribute, present, certainty."
        ) from error
    image, attribute, present, sure = table.T
    wrong = (image < 1) | (image > images) | (attribute < 1) | (attribute > attributes)
    wrong |= (present < 0) | (present > 1)
    if wrong.any():
        line = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{path}: line {line + 1} is {table[line].tolist()}: expected an image of 1 to {images}, an attribute of "
            f"1 to {attributes}, 0 or 1, and a certainty."
        )
    matrix = np.zeros((images, attributes), np.int8)
    kept = sure >= certainty
    matrix[image[kept] - 1, attribute[kept] - 1] = np.where(present[kept] == 1, 1, -1)
    return matrix
