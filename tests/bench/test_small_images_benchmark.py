"""The benchmark of small image sets: parts of sets, references and what is recorded."""

import csv

import numpy as np
import pytest

import small_images


@pytest.fixture
def folders(tmp_path):
    draw = np.random.default_rng(0)
    truth = np.eye(3, dtype=bool)[np.arange(120) % 3]
    truth[:, 0] |= draw.random(120) < 0.3
    (tmp_path / "b" / "mine").mkdir(parents=True)
    np.save(tmp_path / "b" / "mine" / "features.npy", (truth * 3.0 + draw.normal(size=(120, 3))).astype(np.float32))
    np.savez(tmp_path / "b" / "mine" / "labels.npz", labels=truth, train=np.arange(80), test=np.arange(80, 120))
    return [tmp_path / "a", tmp_path / "b"]


def test_a_number_after_the_name_keeps_every_nth_training_row(folders):
    whole, part = small_images.split_of(folders, "mine"), small_images.split_of(folders, "mine-4")
    assert (part.train == whole.train[::4]).all()
    assert (part.train_labels == whole.train_labels[::4]).all()
    assert len(part.test) == len(whole.test) == 40
    with pytest.raises(SystemExit, match="yours: no such folder"):
        small_images.split_of(folders, "yours")


def test_ours_and_a_reference_are_measured_and_recorded(folders, tmp_path):
    split = small_images.split_of(folders, "mine")
    rows = [small_images.measure("mine", split, method, 0) for method in ("auto", "bce", "an")]
    assert [row["kind"] for row in rows] == ["ours", "reference", "published"]
    assert all(float(row["test_map"]) > 0.7 for row in rows)
    for row in rows:
        small_images.append(tmp_path / "table.csv", row)
    with (tmp_path / "table.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == rows
