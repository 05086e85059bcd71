"""Label tables as .npz files. Nothing in a file is executed when it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.arrays import read_npz
from spml.atomic import atomic_path
from spml.errors import InputError
from spml.json_text import parse_json
from spml.labels.entries import Entries, Int32
from spml.labels.inputs import check_classes, check_ids

FORMAT = "spml labels 1"
_WRONG = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError)


def write_table(
    path: str | os.PathLike[str],
    store: Int32 | Entries,
    classes: Sequence[str],
    ids: npt.NDArray[np.str_] | None,
    origin: dict[str, Any],
) -> None:
    """Write a table atomically."""
    header: dict[str, Any] = {"format": FORMAT, "classes": classes, "origin": origin}
    arrays: dict[str, npt.NDArray[Any]] = {}
    if isinstance(store, Entries):
        header["default"] = store.default
        arrays |= {"start": store.start, "column": store.column, "value": store.value}
    else:
        arrays["single"] = store
    if ids is not None:
        arrays["ids"] = ids
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_table(
    path: str | os.PathLike[str],
) -> tuple[Entries, tuple[str, ...], npt.NDArray[np.str_] | None, dict[str, Any]]:
    """Read a file of `write_table` and check it: entries, classes, ids and origin."""
    arrays = read_npz(Path(path), "a readable file of labels")
    try:
        header = parse_json(arrays["header"].tobytes())
        if header["format"] != FORMAT:
            raise InputError(f"its format is {header['format']!r}, not {FORMAT!r}.")
        if "single" in arrays:
            entries = Entries.from_single(arrays["single"].astype(np.int32), len(header["classes"]))
        else:
            entries = Entries(
                arrays["start"].astype(np.int64),
                arrays["column"].astype(np.int32),
                arrays["value"].astype(np.int8),
                int(header["default"]),
                len(header["classes"]),
            )
        entries.check()
        ids = check_ids(arrays.get("ids"), len(entries))
        return entries, check_classes(header["classes"]), ids, header["origin"]
    except _WRONG as error:
        raise InputError(f"{path}: not a readable file of labels ({error})") from error
