"""Scenes of handwritten digits: a small multi-label data set that is built in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from spml.data.dataset import Dataset, Truth
from spml.data.images import ImageStore
from spml.data.official import from_truth
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.inputs import check_seed

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# The 1797 digits of scikit-learn stand form after form, each form one writer's: this is where the tenth begins.
_FIRST_TEST_DIGIT = 1157
_DIGITS_A_SCENE = (0.2, 0.35, 0.25, 0.15, 0.05)  # share of scenes with 1, 2, 3, 4, 5 different digits: 2.5 on average
_FREQUENCY = np.linspace(1.5, 0.5, 10)  # zeros are drawn three times as often as nines
_SCALES = (0.22, 0.26, 0.31, 0.36, 0.41)  # height of a digit as a share of the scene's: 14 to 26 of 64 pixels
_CLUTTER = 6
_NOISE = (6.0, 20.0)
_BLOCK = 500


@dataclass(frozen=True)
class _Stamps:
    """Masks in [0, 1] to paste: digits by scale, and pieces of digits that are none."""

    digits: list[Float32]
    """One (N, s, s) array a scale."""
    of_class: list[npt.NDArray[np.int64]]
    """The digits of each class."""
    pieces: list[Float32]
    """One (P, s, s) array a scale."""


def scenes(train: int = 4000, test: int = 1000, size: int = 64, seed: int = 0) -> Dataset:
    """Scenes of 1 to 5 different digits among clutter; the label set is which digits are present.

    The digits are the real handwriting of `sklearn.datasets.load_digits`; test scenes are made of other writers'
    digits than training scenes. One positive of every training scene is kept, drawn uniformly; a fifth of the
    training scenes are validation, with their single positives. The truth is known for all.
    """
    for what, value, least in (("train", train, 5), ("test", test, 1), ("size", size, 32)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"scenes: {what} is {value!r}: it must be a whole number, at least {least}.")
    rng = np.random.default_rng(check_seed(seed))
    pixels = np.empty((train + test, 3, size, size), np.uint8)
    present = np.zeros((train + test, len(CLASSES)), np.int8)
    train_stamps, test_stamps = _stamps(rng, size)
    for first in range(0, train + test, _BLOCK):  # a block at a time: the canvas is float32
        for start, stop, stamps in ((0, train, train_stamps), (train, train + test, test_stamps)):
            rows = slice(max(first, start), min(first + _BLOCK, stop))
            if rows.start < rows.stop:
                _paint(rng, pixels[rows], present[rows], stamps)
    names = [f"scene-{row:05d}" for row in range(train + test)]
    truth = Labels.from_matrix(present, CLASSES, ids=names, coding="full")
    return from_truth("scenes", ImageStore.from_array(pixels), names, Truth(truth), train, seed=seed)


def _stamps(rng: np.random.Generator, size: int) -> tuple[_Stamps, _Stamps]:
    """The stamps of the training scenes and of the test scenes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, target = (data.images / 16).astype(np.float32), data.target

    def of(part: slice) -> _Stamps:
        digits = images[part]
        # Quarters of four different digits make a piece: strokes like a digit's, and no digit.
        quarters = digits.reshape(len(digits), 2, 4, 2, 4).transpose(0, 1, 3, 2, 4).reshape(-1, 4, 4)
        mixed = quarters[rng.permutation(len(quarters))].reshape(-1, 2, 2, 4, 4)
        pieces = mixed.transpose(0, 1, 3, 2, 4).reshape(-1, 8, 8)
        sides = [max(8, round(scale * size)) for scale in _SCALES]
        of_class = [np.flatnonzero(target[part] == digit) for digit in range(len(CLASSES))]
        return _Stamps(
            [_enlarged(digits, side) for side in sides],
            of_class,
            [_enlarged(pieces, max(6, round(0.6 * side))) for side in sides],
        )

    return of(slice(0, _FIRST_TEST_DIGIT)), of(slice(_FIRST_TEST_DIGIT, None))


def _enlarged(masks: Float32, side: int) -> Float32:
    big = interpolate(torch.from_numpy(np.ascontiguousarray(masks))[:, None], (side, side), mode="bicubic")
    # Steeper than what bicubic gives, so that a stroke has an edge.
    sharp: Float32 = ((big[:, 0] - 0.25) / 0.5).clamp(0, 1).numpy()
    return sharp


def _paint(rng: np.random.Generator, pixels: UInt8, present: npt.NDArray[np.int8], stamps: _Stamps) -> None:
    """Fill some scenes (B, 3, S, S) and say which digits each shows (B, 10)."""
    count, _, size, _ = pixels.shape
    # A smooth background: two colours at each end of a random slope.
    x = np.linspace(-1, 1, size, dtype=np.float32)
    direction = rng.uniform(-0.5, 0.5, (count, 2)).astype(np.float32)
    slope = 0.5 + direction[:, :1, None] * x + direction[:, 1:, None] * x[:, None]
    dark, light = (rng.uniform(10, 110, (2, count, 3, 1, 1))).astype(np.float32)
    canvas = dark + (light - dark) * slope[:, None]

    how_many = np.ones(count, np.int64) + rng.choice(len(_DIGITS_A_SCENE), count, p=_DIGITS_A_SCENE)
    # Exponential waiting times: the first of them are a draw without replacement by frequency.
    order: npt.NDArray[np.int64] = np.argsort(rng.exponential(size=(count, len(CLASSES))) / _FREQUENCY, axis=1)
    for scene in range(count):
        shown = order[scene, : how_many[scene]]
        present[scene, shown] = 1
        for _ in range(rng.integers(2, _CLUTTER + 1)):
            pieces = stamps.pieces[rng.integers(len(_SCALES))]
            piece = pieces[rng.integers(len(pieces))]
            row, column = rng.integers(0, size - len(piece) + 1, 2)
            _paste(canvas[scene], piece, row, column, _colour(rng), rng.uniform(0.35, 0.8))
        centres: list[npt.NDArray[np.float64]] = []
        for digit in shown:
            scale = rng.integers(len(_SCALES))
            mask = stamps.digits[scale][rng.choice(stamps.of_class[digit])]
            # The farther of two places from what is there already: digits overlap, but seldom hide one another.
            places = rng.integers(0, size - len(mask) + 1, (2, 2))
            gaps = [min((np.hypot(*(place + len(mask) / 2 - at)) for at in centres), default=0.0) for place in places]
            row, column = places[int(np.argmax(gaps))]
            centres.append(np.array([row, column]) + len(mask) / 2)
            _paste(canvas[scene], mask, row, column, _colour(rng), rng.uniform(0.6, 1.0))
    strength = rng.uniform(*_NOISE, (count, 1, 1, 1)).astype(np.float32)
    canvas += strength * rng.standard_normal(canvas.shape, np.float32)
    pixels[:] = np.clip(canvas, 0, 255).astype(np.uint8)


def _colour(rng: np.random.Generator) -> Float32:
    """Bright, with a tint: each channel between 120 and 255, one of them high."""
    colour = rng.uniform(120, 255, 3)
    colour[rng.integers(3)] = 255
    return colour.astype(np.float32)[:, None, None]


def _paste(canvas: Float32, mask: Float32, row: int, column: int, colour: Float32, opacity: float) -> None:
    """Lay a coloured mask over the canvas (3, S, S), in place."""
    side = len(mask)
    under = canvas[:, row : row + side, column : column + side]
    under += (np.float32(opacity) * mask) * (colour - under)
