"""Decoding of image files to squares of uint8."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from PIL import AvifImagePlugin, ExifTags, Image, UnidentifiedImageError

from spml.errors import InputError

UInt8 = npt.NDArray[np.uint8]
FilePath = str | os.PathLike[str]
Policy = Literal["squash", "crop"]
_Result = TypeVar("_Result")

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff")
"""Suffixes of the files that `decode` reads (lower case)."""
MAX_SIZE = 4096  # a batch of 16 images then takes 3 GiB
MAX_PIXELS = 2**27

# By default Pillow starts a thread per core for every AVIF image, which takes longer than decoding a small image.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

# Only these: some of Pillow's other readers start programs (EPS) or fetch what a file refers to.
_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
_SUFFIX = {"JPEG": ".jpg", "TIFF": ".tif"}
_ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImage(Exception):
    """The reason why an image cannot be used, without its name."""


def decode(
    source: FilePath | bytes | Image.Image,
    size: int,
    policy: Policy = "squash",
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
) -> UInt8:
    """Decode one image to uint8 (3, size, size) in RGB, rotated according to its EXIF orientation.

    Transparent pixels become white. Only the first frame of an animation is read.

    Parameters
    ----------
    source : path, bytes or PIL.Image.Image
        An image file, its content, or an image. A PIL image that has not been loaded yet is read from its file, so
        that it gives the same pixels as the file.
    size : int
        Side of the result in pixels. Resampling is Pillow's bilinear filter, which averages when it shrinks.
    policy : {"squash", "crop"}
        Resize the whole image and ignore its shape, or take the centred square of the short side.
    max_pixels : int
        Larger images raise an error before they are decoded.
    name : str, optional
        How errors call an image that is not given as a path.

    Returns
    -------
    array of uint8, shape (3, size, size)

    Raises
    ------
    InputError
        If the image cannot be read or is too large.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (40, 30), "red").save(file, "PNG")
    >>> decode(file.getvalue(), 8)[:, 0, 0].tolist()
    [255, 0, 0]
    """
    check_size_and_policy(size, policy)
    try:
        return decode_image(source, size, policy, max_pixels)
    except UnreadableImage as error:
        label = name or ("the image" if isinstance(source, (bytes, Image.Image)) else os.fspath(source))
        raise InputError(f"{label}: {error}.") from error.__cause__


def decode_image(source: FilePath | bytes | Image.Image, size: int, policy: Policy, max_pixels: int) -> UInt8:
    """`decode` of checked settings; raises `UnreadableImage`."""
    return _decode_with(source, max_pixels, lambda image: _to_square(image, size, policy))


def decode_whole(source: FilePath | bytes, longest: int, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return an image in RGB, upright, in its own shape and with at most `longest` pixels per side.

    Raises `UnreadableImage`.
    """
    return _decode_with(source, max_pixels, lambda image: _fit_within(image, longest))


def _decode_with(
    source: FilePath | bytes | Image.Image, max_pixels: int, convert: Callable[[Image.Image], _Result]
) -> _Result:
    try:
        if isinstance(source, Image.Image):
            unread = getattr(source, "tile", None) and source.tell() == 0  # not yet decoded, and at its first frame
            file: FilePath | bytes = getattr(source, "filename", "") if unread else ""
            if not file:
                return convert(source.copy())  # `draft` would change the image of the caller
        else:
            file = source
        if not isinstance(file, bytes) and not stat.S_ISREG(os.stat(file).st_mode):  # a pipe would wait for ever
            raise UnreadableImage("this is not a regular file")
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=_FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise UnreadableImage(
                    f"it has {image.width}×{image.height} = {image.width * image.height} pixels, over the limit of "
                    f"{max_pixels} (max_pixels)"
                )
            return convert(image)
    except (UnreadableImage, MemoryError):
        raise
    except FileNotFoundError as error:
        raise UnreadableImage("no such file") from error
    except UnidentifiedImageError as error:
        raise UnreadableImage(f"this is not an image of a known format ({', '.join(_FORMATS)})") from error
    except Exception as error:  # on broken bytes Pillow raises OSError, SyntaxError, struct.error and others
        why = getattr(error, "strerror", None) or str(error).rstrip(".") or type(error).__name__
        raise UnreadableImage(f"the image cannot be read ({why})") from error


def image_suffix(content: bytes) -> str:
    """Return the usual suffix of an image file, by its header; raises `UnreadableImage`."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            kind = str(image.format)
    except Exception as error:  # as in `decode_image`
        raise UnreadableImage(f"this is not an image of a known format ({', '.join(_FORMATS)})") from error
    return _SUFFIX.get(kind, f".{kind.lower()}")


def _to_square(image: Image.Image, size: int, policy: Policy) -> UInt8:
    # A JPEG of four times the size or more is decoded at a half, quarter or eighth: never under twice the size.
    image.draft(None, (2 * size, 2 * size))
    image = _to_rgb(_apply_orientation(image))
    width, height = image.size
    side = min(width, height)
    box = (0.0, 0.0, float(width), float(height))
    if policy == "crop":
        box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    small = image.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def _fit_within(image: Image.Image, longest: int) -> Image.Image:
    image.draft(None, (2 * longest, 2 * longest))
    image = _to_rgb(_apply_orientation(image))
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return image


def _apply_orientation(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # EXIF that cannot be parsed says nothing about the pixels
        return image
    return image.transpose(_ORIENTATIONS[orientation]) if orientation in _ORIENTATIONS else image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # Pillow would clip at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise UnreadableImage("its pixels are numbers of 32 bits, whose range is unknown: save it with 8 or 16 bits")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert("RGB")


def check_size_and_policy(size: int, policy: str) -> None:
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 1 <= size <= MAX_SIZE:
        raise InputError(f"size is {size!r}: it must be a whole number of pixels from 1 to {MAX_SIZE}.")
    if policy not in get_args(Policy):
        raise InputError(f"policy is {policy!r}: it must be one of {', '.join(map(repr, get_args(Policy)))}.")
