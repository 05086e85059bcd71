"""Decoded images in one mapped file, kept for the next run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from spml.atomic import atomic_path, lock_folder
from spml.data.stores.decode import UInt8
from spml.errors import InputError
from spml.json_text import parse_json

Shape = tuple[int, int, int, int]
Unusable = dict[int, str]
"""Row -> why its image cannot be used."""


def load_or_decode(
    file: Path, shape: Shape, images: Iterable[UInt8 | None], unusable: Unusable
) -> tuple[UInt8, Unusable]:
    """Map the decoded images of a file; if it is missing or damaged, write it first.

    Of several processes one decodes and the others wait. `images` are decoded as they are taken, in order; an image
    that cannot be used is None, and in `unusable` from then on.
    """
    size = int(np.prod(shape))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(file.parent, wait=True, name=".images.lock"):
            found = _map(file, shape)
            if found is None:
                _write(file, shape, size, images, unusable)
                found = _map(file, shape)
    except OSError as error:
        raise InputError(
            f"{file}: the decoded images ({size} bytes) cannot be stored there ({error.strerror or error})."
        ) from error
    if found is None:
        raise InputError(f"{file}: the decoded images were written but cannot be read back.")
    return found


def _map(file: Path, shape: Shape) -> tuple[UInt8, Unusable] | None:
    try:
        pixels: UInt8 = np.load(file, mmap_mode="r", allow_pickle=False)
        listed = parse_json(file.with_suffix(".json").read_text("utf-8"))
        unusable = {int(row): str(reason) for row, reason in listed}
    except (FileNotFoundError, ValueError, EOFError, TypeError):
        return None
    return (pixels, unusable) if pixels.shape == shape and pixels.dtype == np.uint8 else None


def _write(file: Path, shape: Shape, size: int, images: Iterable[UInt8 | None], unusable: Unusable) -> None:
    free = shutil.disk_usage(file.parent).free
    if free < size:
        raise InputError(
            f"{file.parent}: no space left for the decoded images: they take {size} bytes, {free} are free."
        )
    blank = bytes(size // shape[0])
    with atomic_path(file) as temporary, temporary.open("wb") as part:
        np.lib.format.write_array_header_1_0(part, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for pixels in images:
            part.write(blank if pixels is None else pixels.data)
        with atomic_path(file.with_suffix(".json")) as listed:  # first, so that the pixels are never without it
            listed.write_text(json.dumps(sorted(unusable.items())), encoding="utf-8")
