"""Small image files, and the known labels of a data set."""

from pathlib import Path

from PIL import Image

from spml.data.dataset import Dataset


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (shade % 256, shade * 7 % 256, shade * 13 % 256)).save(path)
    return path


def known(dataset: Dataset) -> dict[str, list[str]]:
    rows, columns = dataset.labels.positives()
    found: dict[str, list[str]] = {name: [] for name in dataset.names.tolist()}
    for row, column in zip(rows, columns, strict=True):
        found[str(dataset.names[row])].append(dataset.classes[column])
    return found
