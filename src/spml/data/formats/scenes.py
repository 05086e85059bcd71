"""Scenes of handwritten digits: a small built-in multi-label data set."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from spml.data.dataset import Dataset, Truth
from spml.data.formats.official import from_truth
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.inputs import check_seed

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

QUICKSTART = {"train": 8000, "test": 1000}  # scenes of the quickstart and the benchmark
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# The 1797 digits of scikit-learn are ordered by form, one writer per form. This is where the tenth form begins.
_FIRST_TEST_DIGIT = 1157
_DIGITS_PER_SCENE = (0.3, 0.4, 0.2, 0.1)  # share of scenes with 1, 2, 3, 4 different digits: 2.1 on average
_FREQUENCY = np.linspace(1.5, 0.5, 10)  # zeros are three times as frequent as nines
_SCALES = (0.26, 0.30, 0.34, 0.39, 0.44)  # height of a digit as a share of the scene's height: 12 to 21 of 48 pixels
_CLUTTER = (1, 5)  # fewest and most pieces of clutter in a scene
_NOISE = (4.0, 14.0)  # standard deviation, of 255
_BLOCK = 500


@dataclass(frozen=True)
class _Stamps:
    """Masks in [0, 1] to paste: digits by scale, and pieces of digits as clutter."""

    digits: list[Float32]
    """One (N, s, s) array per scale."""
    of_class: list[npt.NDArray[np.int64]]
    """The digits of each class."""
    pieces: list[Float32]
    """One (P, s, s) array per scale."""


def scenes(train: int = 4000, test: int = 1000, size: int = 48, seed: int = 0) -> Dataset:
    """Make scenes of 1 to 4 different digits among clutter; the labels are the digits that are present.

    The digits are the handwriting of `sklearn.datasets.load_digits`. Test scenes use digits of other writers than
    training scenes. One positive of every training scene is observed, drawn uniformly. A fifth of the training scenes
    become validation. The truth is known for all scenes.

    Parameters
    ----------
    train, test : int
        Number of scenes.
    size : int
        Side of a scene in pixels, at least 32.
    seed : int
        Of the scenes, the single positives and the split.

    Returns
    -------
    Dataset
    """
    for name, value, least in (("train", train, 5), ("test", test, 1), ("size", size, 32)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"scenes: {name} is {value!r}: it must be a whole number, at least {least}.")
    rng = np.random.default_rng(check_seed(seed))
    pixels = np.empty((train + test, 3, size, size), np.uint8)
    present = np.zeros((train + test, len(CLASSES)), np.int8)
    train_stamps, test_stamps = _stamps(rng, size)
    for first in range(0, train + test, _BLOCK):  # block by block, because the canvas is float32
        for start, stop, stamps in ((0, train, train_stamps), (train, train + test, test_stamps)):
            rows = slice(max(first, start), min(first + _BLOCK, stop))
            if rows.start < rows.stop:
                _paint(rng, pixels[rows], present[rows], stamps)
    names = [f"scene-{row:05d}" for row in range(train + test)]
    truth = Labels.from_matrix(present, CLASSES, ids=names, coding="full")
    return from_truth("scenes", ImageStore.from_array(pixels), Truth(truth), train, seed=seed)


def _stamps(rng: np.random.Generator, size: int) -> tuple[_Stamps, _Stamps]:
    """Return the stamps of training and test scenes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images, target = (data.images / 16).astype(np.float32), data.target

    def of(part: slice) -> _Stamps:
        digits = images[part]
        # A piece consists of quarters of four different digits: it has strokes like a digit but is none.
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
    # Sharper than bicubic interpolation, so that strokes have edges.
    sharp: Float32 = ((big[:, 0] - 0.25) / 0.5).clamp(0, 1).numpy()
    return sharp


class _Draws:
    """Random numbers for the stamps of some scenes, drawn at once: each array is (scenes, stamps, …)."""

    def __init__(self, rng: np.random.Generator, scenes: int, stamps: int, opacity: tuple[float, float]) -> None:
        shape = (scenes, stamps)
        self.scale = rng.integers(len(_SCALES), size=shape)
        self.which = rng.random(shape)
        self._place = rng.random((*shape, 2, 2))
        # Bright and tinted: every channel is at least 120, and one is 255.
        self._colour = rng.uniform(120, 255, (*shape, 3)).astype(np.float32)
        np.put_along_axis(self._colour, rng.integers(3, size=(*shape, 1)), 255, axis=2)
        self._opacity = rng.uniform(*opacity, shape).astype(np.float32)

    def places(self, scene: int, stamp: int, limit: int) -> list[tuple[int, int]]:
        """Two places (row, column), each from 0 to `limit`."""
        return [
            (int(row * (limit + 1)), int(column * (limit + 1))) for row, column in self._place[scene, stamp].tolist()
        ]

    def paint(self, scene: int, stamp: int) -> tuple[Float32, np.float32]:
        """Colour (3, 1, 1) and opacity."""
        return self._colour[scene, stamp, :, None, None], self._opacity[scene, stamp]


def _paint(rng: np.random.Generator, pixels: UInt8, present: npt.NDArray[np.int8], stamps: _Stamps) -> None:
    """Paint scenes (B, 3, S, S) and record the digits present in each (B, 10)."""
    count, _, size, _ = pixels.shape
    # A smooth background: a gradient of two colours in a random direction.
    x = np.linspace(-1, 1, size, dtype=np.float32)
    direction = rng.uniform(-0.5, 0.5, (count, 2)).astype(np.float32)
    slope = 0.5 + direction[:, :1, None] * x + direction[:, 1:, None] * x[:, None]
    dark, light = (rng.uniform(10, 110, (2, count, 3, 1, 1))).astype(np.float32)
    canvas = dark + (light - dark) * slope[:, None]

    how_many = np.ones(count, np.int64) + rng.choice(len(_DIGITS_PER_SCENE), count, p=_DIGITS_PER_SCENE)
    # The order of exponential waiting times is a draw without replacement, weighted by frequency.
    order: npt.NDArray[np.int64] = np.argsort(rng.exponential(size=(count, len(CLASSES))) / _FREQUENCY, axis=1)
    present[:] = np.argsort(order, axis=1) < how_many[:, None]  # the rank of each class in the order
    pieces = _Draws(rng, count, _CLUTTER[1], opacity=(0.35, 0.8))
    digits = _Draws(rng, count, len(_DIGITS_PER_SCENE), opacity=(0.6, 1.0))
    clutter = rng.integers(_CLUTTER[0], _CLUTTER[1] + 1, size=(count,))
    for scene in range(count):
        for item in range(int(clutter[scene])):
            masks = stamps.pieces[pieces.scale[scene, item]]
            mask = masks[int(pieces.which[scene, item] * len(masks))]
            row, column = pieces.places(scene, item, size - len(mask))[0]
            _paste(canvas[scene], mask, row, column, *pieces.paint(scene, item))
        centres: list[tuple[float, float]] = []
        for item in range(int(how_many[scene])):
            alike = stamps.of_class[order[scene, item]]
            mask = stamps.digits[digits.scale[scene, item]][alike[int(digits.which[scene, item] * len(alike))]]
            # Choose the better of two places: digits may overlap, but seldom hide one another.
            middles = [
                (row + len(mask) / 2, column + len(mask) / 2)
                for row, column in digits.places(scene, item, size - len(mask))
            ]
            middle = max(middles, key=lambda centre: min((math.dist(centre, other) for other in centres), default=0.0))
            centres.append(middle)
            row, column = (round(part - len(mask) / 2) for part in middle)
            _paste(canvas[scene], mask, row, column, *digits.paint(scene, item))
    strength = rng.uniform(*_NOISE, (count, 1, 1, 1)).astype(np.float32)
    canvas += strength * rng.standard_normal(canvas.shape, np.float32)
    pixels[:] = np.clip(canvas, 0, 255).astype(np.uint8)


def _paste(canvas: Float32, mask: Float32, row: int, column: int, colour: Float32, opacity: np.float32) -> None:
    """Lay a coloured mask over the canvas (3, S, S), in place."""
    side = len(mask)
    under = canvas[:, row : row + side, column : column + side]
    under += (opacity * mask) * (colour - under)
