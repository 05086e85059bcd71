"""Small valid data in every format, a finished run, and faults that can be made in any file."""

import csv
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet
from scipy import sparse

ROWS, CLASSES = 24, ("cat", "dog", "bird")


def labels_of() -> list[str]:
    return [CLASSES[row % 3] for row in range(ROWS)]


def features_of() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)


def image(path: Path, row: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(row).integers(0, 255, (12, 12, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def folder(root: Path) -> Path:
    for row, name in enumerate(labels_of()[:9]):
        image(root / name / f"{row}.png", row)
    return root


def table(root: Path) -> Path:
    for row in range(9):
        image(root / "pictures" / f"{row}.png", row)
    write_csv(root / "t.csv", ["image", "label"], [[f"pictures/{r}.png", labels_of()[r]] for r in range(9)])
    return root / "t.csv"


def feature_table(root: Path) -> Path:
    columns = {f"f{i}": features_of()[:, i] for i in range(4)}
    parquet.write_table(pa.table({**columns, "label": labels_of()}), root / "t.parquet")
    return root / "t.parquet"


def matrix(root: Path) -> Path:
    np.save(root / "x.npy", features_of())
    (root / "labels.csv").write_text("label\n" + "\n".join(labels_of()) + "\n")
    return root / "x.npy"


def sparse_matrix(root: Path) -> Path:
    sparse.save_npz(root / "x.npz", sparse.csr_matrix(np.maximum(features_of(), 0)))
    (root / "labels.csv").write_text("label\n" + "\n".join(labels_of()) + "\n")
    return root / "x.npz"


def coco(root: Path) -> Path:
    for row in range(6):
        image(root / f"{row}.png", row)
    content = {
        "images": [{"id": r, "file_name": f"{r}.png", "width": 12, "height": 12} for r in range(6)],
        "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES)],
        "annotations": [
            {"id": r, "image_id": r, "category_id": r % 3, "bbox": [0, 0, 5, 5], "iscrowd": 0} for r in range(6)
        ],
    }
    (root / "coco.json").write_text(json.dumps(content))
    return root / "coco.json"


def voc(root: Path) -> Path:
    for row in range(6):
        image(root / "JPEGImages" / f"{row}.png", row)
        (root / "Annotations").mkdir(exist_ok=True)
        (root / "Annotations" / f"{row}.xml").write_text(
            f"<annotation><filename>{row}.png</filename><size><width>12</width><height>12</height></size><object>"
            f"<name>{CLASSES[row % 3]}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox>"
            "</object></annotation>"
        )
    return root


def texts(root: Path) -> Path:
    write_csv(
        root / "t.csv",
        ["text", "label"],
        [[f"a long sentence about a {name}, number {row}", name] for row, name in enumerate(labels_of())],
    )
    return root / "t.csv"


def _labels_of_pack(root: Path) -> None:
    observed = np.arange(ROWS) % 3
    np.savez(
        root / "labels.npz",
        image=np.array([f"{row:02}" for row in range(ROWS)]),
        classes=np.array(CLASSES),
        labels=np.eye(3, dtype=np.uint8)[observed],
        observed=observed,
        train=np.arange(12),
        validation=np.arange(12, 16),
        test=np.arange(16, ROWS),
    )


def image_pack(root: Path) -> Path:
    _labels_of_pack(root)
    for row in range(ROWS):
        image(root / f"{row:02}.png", row)
    with zipfile.ZipFile(root / "images.zip", "w") as archive:
        for row in range(ROWS):
            archive.write(root / f"{row:02}.png", f"{row:02}.png")
            (root / f"{row:02}.png").unlink()
    return root


def feature_pack(root: Path) -> Path:
    _labels_of_pack(root)
    np.save(root / "features.npy", features_of())
    return root


def text_pack(root: Path) -> Path:
    _labels_of_pack(root)
    (root / "texts.jsonl").write_text("".join(json.dumps(f"a text about {name}") + "\n" for name in labels_of()))
    return root


FORMATS: dict[str, Callable[[Path], Path]] = {
    "folder": folder,
    "table": table,
    "features in parquet": feature_table,
    "matrix": matrix,
    "sparse": sparse_matrix,
    "coco": coco,
    "voc": voc,
    "texts": texts,
    "pack of images": image_pack,
    "pack of features": feature_pack,
    "pack of texts": text_pack,
}


# Faults: each changes one file in place


def _write(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    def fault(path: Path, draw: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), draw))

    return fault


def _flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(min(8, len(changed))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _replace(make: Callable[[Path], None]) -> Callable[[Path, random.Random], None]:
    def fault(path: Path, draw: random.Random) -> None:
        path.unlink()
        make(path)

    return fault


FAULTS: dict[str, Callable[[Path, random.Random], None]] = {
    "empty": _write(lambda data, draw: b""),
    "half": _write(lambda data, draw: data[: len(data) // 2]),
    "cut": _write(lambda data, draw: data[: draw.randrange(len(data) + 1)]),
    "without end": _write(lambda data, draw: data[:-1]),
    "without start": _write(lambda data, draw: data[3:]),
    "bits": _write(_flip),
    "more bits": _write(lambda data, draw: _flip(_flip(_flip(data, draw), draw), draw)),
    "zeros": _write(lambda data, draw: bytes(len(data))),
    "noise": _write(lambda data, draw: draw.randbytes(max(1, len(data)))),
    "appended": _write(lambda data, draw: data + b"\0\xff\n,;[{"),
    "doubled": _write(lambda data, draw: data + data),
    "utf-16": _write(lambda data, draw: data.decode("latin-1").encode("utf-16")),
    "text": _write(lambda data, draw: b"hello\n"),
    "json": _write(lambda data, draw: b'{"a": [1, null, {"b": "c"}]}'),
    "deep": _write(lambda data, draw: b"[" * 5000 + b"]" * 5000),
    "numbers": _write(lambda data, draw: b"1,2,3\n4,5,6\n"),
    "missing": lambda path, draw: path.unlink(),
    "folder": _replace(lambda path: path.mkdir()),
    "pipe": _replace(lambda path: os.mkfifo(path)),
    "link to itself": _replace(lambda path: path.symlink_to(path)),
    "dangling link": _replace(lambda path: path.symlink_to("nowhere")),
}


def snapshot(root: Path) -> dict[str, tuple[str, bytes]]:
    """Everything below a folder, to find what a command wrote."""
    content = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            content[str(path)] = ("link", os.fsencode(os.readlink(path)))
        elif path.is_file():
            content[str(path)] = ("file", path.read_bytes())
        else:
            content[str(path)] = ("other", b"")
    return content


def copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, symlinks=True))
