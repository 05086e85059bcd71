"""Runs trained on photos and on features, and tables of the same rows."""

import io

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

import spml

CLASSES = ("blue", "green", "red")


def photo(draw: np.random.Generator, channel: int) -> bytes:
    pixels = draw.integers(0, 60, (16, 16, 3), dtype=np.uint8)
    pixels[..., channel] += 150
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def train_runs(root):
    """Folder with photos, a run trained on them, and a run trained on features."""
    draw = np.random.default_rng(0)
    for channel, name in enumerate(reversed(CLASSES)):
        (root / "photos" / name).mkdir(parents=True)
        for number in range(12):
            (root / "photos" / name / f"{number}.png").write_bytes(photo(draw, channel))
    options = {"epochs": 2, "batch_size": 8, "device": "cpu", "progress": False}
    spml.train(root / "photos", out=root / "on-images", model="small", size=16, **options)
    single = draw.integers(0, 3, 90)
    features = (0.3 * draw.normal(size=(90, 5)) + np.eye(5)[single]).astype(np.float32)
    np.save(root / "x.npy", features)
    np.save(root / "y.npy", single)
    options = {"device": "cpu", "progress": False}
    spml.train(root / "x.npy", out=root / "on-features", labels=root / "y.npy", base="linear", **options)


def write_tables(root):
    """The photos as a table of paths and as a table of bytes; features as lists with ids and labels, and as columns."""
    files = sorted((root / "photos").rglob("*.png"))
    names = [str(file.relative_to(root)) for file in files]
    parquet.write_table(pa.table({"image": names, "tag": [file.parent.name for file in files]}), root / "paths.parquet")
    data = pa.array([file.read_bytes() for file in files], pa.binary())
    parquet.write_table(pa.table({"id": names, "picture": data}), root / "bytes.parquet")
    x, y = np.load(root / "x.npy"), np.load(root / "y.npy")
    lists = pa.table({"id": [str(row) for row in range(len(x))], "label": y.astype(str), "features": list(x)})
    parquet.write_table(lists, root / "lists.parquet", row_group_size=17)
    wide = pa.table({f"f{c}": x[:, c] for c in range(5)})
    parquet.write_table(wide, root / "wide.parquet")
