"""Pictures of one to four shapes, filed under one of them: the photos of the tutorials."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

SHAPES = ("circle", "cross", "diamond", "moon", "ring", "square", "star", "triangle")
CROSS = ((-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1), (-3, -1), (-1, -1))


def write_photos(folder: str, count: int, seed: int = 0, size: int = 48) -> dict[str, list[str]]:
    """Write pictures to `folder`/label/number.png; return all shapes of each picture, by its path in the folder."""
    rng = np.random.default_rng(seed)
    truth = {}
    for number in range(count):
        shapes = rng.choice(SHAPES, rng.integers(1, 5), replace=False)
        name = f"{shapes[0]}/{number:04}.png"  # the shapes are in random order, so the first is a random one
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(shapes, rng, size).save(path)
        truth[name] = sorted(map(str, shapes))
    return truth


def draw(shapes: npt.NDArray[np.str_], rng: np.random.Generator, size: int) -> Image.Image:
    """Draw each shape in a quarter of its own, in a random colour and size."""
    side = 4 * size  # drawn large and reduced, for smooth edges
    background = _colour(rng, 0, 110)
    image = Image.new("RGB", (side, side), background)
    pen = ImageDraw.Draw(image)
    for shape, quarter in zip(shapes, rng.permutation(4), strict=False):
        radius = side * rng.uniform(0.1, 0.2)
        centre = (np.array([quarter % 2, quarter // 2]) + 0.5) * side / 2 + rng.uniform(-0.05, 0.05, 2) * side
        pen.polygon(_points(centre + radius * _outline(str(shape))), fill=_colour(rng, 130, 256))
        if shape == "ring":
            pen.polygon(_points(centre + 0.55 * radius * _outline("circle")), fill=background)
        if shape == "moon":
            pen.polygon(_points(centre + radius * (0.8 * _outline("circle") + (0.45, -0.1))), fill=background)
    pixels = np.asarray(image.resize((size, size), Image.Resampling.LANCZOS)) + rng.normal(0, 14, (size, size, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _outline(shape: str) -> npt.NDArray[np.float64]:
    """Corners of a shape of radius 1."""
    if shape == "cross":
        return np.array(CROSS) / 3
    corners, start = {"triangle": (3, -90), "square": (4, -45), "diamond": (4, -90), "star": (10, -90)}.get(
        shape, (40, 0)
    )
    angles = np.radians(start + 360 * np.arange(corners) / corners)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if shape == "star":
        points[1::2] *= 0.4
    return points * (0.6, 1) if shape == "diamond" else points


def _colour(rng: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    red, green, blue = rng.integers(low, high, 3).tolist()
    return red, green, blue


def _points(array: npt.NDArray[np.float64]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in array.tolist()]
