"""Mosaics of four photos: images with many labels each, for developing on small data sets.

    python benchmarks/mosaics.py ../shared/data/voc12 packs/mosaics

Writes a pack: every image shows four photos of VOC 2012, and has the labels of all four, 4.8 on average. Training and
test images come from different photos. The pack also has the pooled features of EfficientNet-Lite2. So all benchmarks
that read packs can use it:

    python benchmarks/tables.py packs --sets mosaics --draws 3
    spml bench voc12-lite2 --data voc12=packs/mosaics --set data.voc12.k=4.8 --methods auto,lac,em,epr
"""

import argparse
import csv
import math
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.progress import track

from spml.data import ImageStore, open_data
from spml.data.dataset import Dataset
from spml.data.formats.pack import write_pack
from spml.models import build_classifier
from spml.models.frozen import FrozenFeatures

Int64 = npt.NDArray[np.int64]

SIDE = 320
BATCH = 64


def mosaic(photos: npt.NDArray[np.uint8]) -> Image.Image:
    """Four photos (4, 3, SIDE, SIDE) as the quarters of one image."""
    whole, half = Image.new("RGB", (SIDE, SIDE)), SIDE // 2
    for number, photo in enumerate(photos):
        quarter = Image.fromarray(photo.transpose(1, 2, 0)).resize((half, half), Image.Resampling.BOX)
        whole.paste(quarter, (number % 2 * half, number // 2 * half))
    return whole


def write_images(data: Dataset, groups: dict[str, Int64], folder: Path) -> None:
    """Write `mosaics/*.jpg` and `labels.csv` from the photos in each row of `groups`."""
    assert isinstance(data.store, ImageStore)
    (folder / "mosaics").mkdir()
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "split", "labels"])
        for split, rows in groups.items():
            present = data.full_labels(rows.ravel()).dense().reshape(*rows.shape, -1).max(axis=1) > 0
            for number, photos in enumerate(track(rows, split)):
                name = f"{split}-{number:05d}.jpg"
                mosaic(np.asarray(data.store.batch(photos))).save(folder / "mosaics" / name, quality=92)
                names = "|".join(np.array(data.classes)[present[number]])
                table.writerow([name, split, names])


def write_features(pack: Path) -> None:
    """Add the pooled features of the frozen network to a pack."""
    store = open_data(pack, size=SIDE).store
    assert isinstance(store, ImageStore)
    network = build_classifier("lite2", 2, image_size=SIDE).eval()
    features = FrozenFeatures(network)
    batches = np.array_split(np.arange(len(store)), math.ceil(len(store) / BATCH))
    parts = [features(torch.as_tensor(store.batch(rows))) for rows in track(batches, "features")]
    np.save(pack / f"features-lite2-{SIDE}.npy", torch.cat(parts).half().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="pack with images of VOC 2012")
    parser.add_argument("out", type=Path, help="folder of the new pack")
    parser.add_argument("--train", type=int, default=1200, help="training and validation images")
    parser.add_argument("--test", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = open_data(options.data, size=SIDE)
    draw = np.random.default_rng(options.seed)
    photos = {"train": np.union1d(data.train, data.validation), "test": data.test}
    sizes = {"train": options.train, "test": options.test}
    groups = {split: draw.choice(photos[split], (count, 4), replace=False) for split, count in sizes.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(data, groups, folder)
        write_pack(folder / "mosaics", folder / "labels.csv", options.out, label_column="labels", split_column="split")
    write_features(options.out)


if __name__ == "__main__":
    main()
