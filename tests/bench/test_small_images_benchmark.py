"""The benchmark of small image sets: parts of sets, features, references and what is recorded."""

import csv
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

import small_images

ROWS = 120


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A pack of coloured squares: red, green and blue for the three classes."""
    monkeypatch.setattr(small_images, "SIZE", 32)
    draw = np.random.default_rng(0)
    truth = np.eye(3, dtype=bool)[np.arange(ROWS) % 3]
    truth[:, 0] |= draw.random(ROWS) < 0.3
    pack = tmp_path / "b" / "mine"
    pack.mkdir(parents=True)
    with zipfile.ZipFile(pack / "images.zip", "w") as archive:
        for row, present in enumerate(truth):
            pixels = draw.integers(0, 60, (32, 32, 3), dtype=np.uint8)
            for channel in np.flatnonzero(present):
                y, x = draw.integers(0, 16, 2)
                pixels[y : y + 16, x : x + 16, channel] = 250
            content = io.BytesIO()
            Image.fromarray(pixels).save(content, "PNG")
            archive.writestr(f"{row}.png", content.getvalue())
    parts = {"train": np.arange(80), "val": np.arange(0), "test": np.arange(80, ROWS)}
    names = {"image": np.arange(ROWS).astype(str), "classes": np.array(["red", "green", "blue"])}
    np.savez(pack / "labels.npz", labels=truth.astype(np.uint8), observed=truth.argmax(1), **names, **parts)
    yield tmp_path / "a", tmp_path / "b"
    small_images.split_of.cache_clear()


def test_a_number_after_the_name_keeps_every_nth_training_row(folders):
    whole, part = (small_images.split_of(folders, name, "whole", "small-nf") for name in ("mine", "mine-4"))
    assert part.train.shape == (20, 192)
    assert (part.train_labels == whole.train_labels[::4]).all()
    assert len(part.test) == len(whole.test) == 40
    with pytest.raises(SystemExit, match="yours: no such folder"):
        small_images.split_of(folders, "yours", "whole")


def test_ours_and_a_reference_are_measured_and_recorded(folders, tmp_path):
    rows = []
    for method in ("auto", "bce", "an", "auto/mean"):
        split = small_images.split_of(folders, "mine", small_images.features_of(method), "small-nf")
        rows.append(small_images.measure("mine", split, method, 0))
    assert [row["kind"] for row in rows] == ["ours", "reference", "published", "ours"]
    assert [row["features"] for row in rows[1:]] == ["192"] * 3
    assert rows[0]["features"] in ("192", "1920")  # without or with regions
    assert all(float(row["test_map"]) > 0.7 for row in rows)
    for row in rows:
        small_images.append(tmp_path / "table.csv", row)
    with (tmp_path / "table.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == rows
