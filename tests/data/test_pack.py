"""Packs: a small one made here, and the first rows of the real ones."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import shared_data
from spml.data import decode, load_pack
from spml.errors import InputError

CLASSES = ["cat", "dog", "Straße"]
IDS = ["b/1.x", "a", "c", "d", "e"]
LABELS = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0]], np.uint8)
OBSERVED = np.array([2, 0, 1, -1, -1], np.int16)  # of row 1 only the observed positive is known


def arrays() -> dict[str, np.ndarray]:
    return {
        "image": np.array(IDS),
        "classes": np.array(CLASSES),
        "labels": LABELS,
        "observed": OBSERVED,
        "train": np.array([0, 1], np.int32),
        "val": np.array([2], np.int32),
        "test": np.array([3, 4], np.int32),
    }


def png(level: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (6, 6), (level, 0, 0)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    np.savez(tmp_path / "labels.npz", **arrays())
    np.save(tmp_path / "features-x.npy", np.arange(20, dtype=np.float16).reshape(5, 4))
    for number, rows in enumerate([[4, 2], [0, 1, 3]]):  # the zip files' order is not the labels'
        with zipfile.ZipFile(tmp_path / f"part-{number}.zip", "w") as file:
            file.writestr("read me.txt", "not an image")
            for row in rows:
                file.writestr(f"{IDS[row]}.png", png(10 * row))
    return tmp_path


def test_labels(directory):
    pack = load_pack(directory)
    assert len(pack) == 5
    assert pack.classes == tuple(CLASSES)
    assert pack.ids.tolist() == IDS
    assert pack.observed.tolist() == [2, 0, 1, -1, -1]
    assert (pack.train.tolist(), pack.val.tolist(), pack.test.tolist()) == ([0, 1], [2], [3, 4])
    assert pack.truth.tolist() == [[1, -1, 1], [1, 0, 0], [-1, 1, -1], [-1, -1, -1], [1, 1, -1]]
    assert pack.known.tolist() == [True, False, True, True, True]
    assert pack.largest_share is None


def test_label_tables(directory):
    pack = load_pack(directory)
    training = pack.training_labels()
    assert training.is_single_positive
    assert training.single().tolist() == [2, 0]
    assert training.ids is not None
    assert training.ids.tolist() == ["b/1.x", "a"]
    full = pack.full_labels([4, 2, 3])
    assert full.is_full
    assert full.dense().tolist() == [[1, 1, -1], [-1, 1, -1], [-1, -1, -1]]
    with pytest.raises(InputError, match=r"1 of these 2 rows are not fully labelled: of row 1 \(a\)"):
        pack.full_labels(pack.train)


def test_images_are_in_the_labels_order(directory):
    store = load_pack(directory).images(size=6, workers=2)
    assert store.batch(range(5))[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40]
    assert store.name(0) == f"{directory}/part-1.zip/b/1.x.png"


def test_features(directory):
    pack = load_pack(directory)
    assert pack.features().batch([1]).tolist() == [[4, 5, 6, 7]]
    np.save(directory / "features-y.npy", np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"name one: features-x\.npy, features-y\.npy"):
        pack.features()
    assert pack.features("features-x.npy").dim == 4
    with pytest.raises(InputError, match=r"features-y\.npy: it has 4 rows, labels\.npz 5"):
        pack.features("features-y.npy")
    with pytest.raises(InputError, match=r"features-z\.npy: there is no such file"):
        pack.features("features-z.npy")


def test_missing_files(directory):
    with pytest.raises(InputError, match=r"nowhere: there is no such folder; a pack is a folder with labels\.npz"):
        load_pack(directory / "nowhere")
    pack = load_pack(directory)
    (directory / "part-0.zip").unlink()
    with pytest.raises(InputError, match=r"image 'c' is in none of the \.zip files there \(2 of 5 are missing\)"):
        pack.images()
    (directory / "part-1.zip").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"part-1\.zip: this is not a zip file"):
        pack.images()
    (directory / "part-1.zip").unlink()
    with pytest.raises(InputError, match=r"expected there in \.zip files"):
        pack.images()
    (directory / "features-x.npy").unlink()
    with pytest.raises(InputError, match=r"a feature matrix features\*\.npy is expected there"):
        pack.features()
    (directory / "labels.npz").unlink()
    with pytest.raises(InputError, match=r"labels\.npz: there is no such file"):
        load_pack(directory)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"observed": None}, "'observed' is missing"),
        ({"labels": LABELS[:, :2]}, r"'labels' has the shape \(5, 2\), expected \(5, 3\)"),
        ({"labels": LABELS * 2}, "other values than 0 and 1"),
        ({"observed": OBSERVED + 1}, "'observed' runs from 0 to 3, not in -1 to 2"),
        ({"train": np.array([5])}, "'train' runs from 5 to 5, not in 0 to 4"),
        ({"val": np.array([0.5])}, "'val' is a list of whole numbers"),
        ({"largest_share": np.zeros((2, 2))}, "'largest_share' has the shape"),
        ({"image": np.array([{}], dtype=object)}, r"not a \.npz file of arrays"),
    ],
)
def test_labels_that_do_not_fit(directory, change, word):
    kept = {name: value for name, value in (arrays() | change).items() if value is not None}
    np.savez(directory / "labels.npz", **kept)
    with pytest.raises(InputError, match=word):
        load_pack(directory)


def test_labels_that_are_no_npz(directory):
    (directory / "labels.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"labels\.npz: this is not a \.npz file"):
        load_pack(directory)


def test_real_voc():
    folder = shared_data("voc12")
    pack = load_pack(folder)
    assert (len(pack), len(pack.classes)) == (11540, 20)
    assert (len(pack.train), len(pack.val), len(pack.test)) == (4574, 1143, 5823)
    assert pack.known.all()
    assert pack.largest_share is not None
    assert ((pack.largest_share > 0) <= (pack.truth == 1)).all()
    labels = pack.training_labels()
    assert labels.shape == (4574, 20)
    assert (pack.truth[pack.train, labels.single()] == 1).all()
    assert pack.full_labels(pack.test).is_full
    rows = [0, 1, 5335, 5336, 10693, 10694, 11538, 11539]  # first and last of each zip file
    batch = pack.images(size=320, cache_limit=0).batch(rows)
    assert batch.shape == (8, 3, 320, 320)
    assert all(len(image.unique()) > 50 for image in batch)  # photographs, not blanks
    with zipfile.ZipFile(folder / "voc12-320-1.zip") as file:
        member = decode(file.read(f"{pack.ids[5336]}.avif"), 320)
    assert torch.equal(batch[3], torch.from_numpy(member))
    features = pack.features()
    assert (len(features), features.dim) == (11540, 1280)
    assert torch.isfinite(features.batch(rows)).all()


def test_real_cub():
    pack = load_pack(shared_data("cub"))
    assert (len(pack), len(pack.classes)) == (11788, 312)
    assert not pack.known[pack.train].any()
    assert pack.known[pack.val].all()
    assert pack.known[pack.test].all()
    assert (pack.truth[pack.train].sum(axis=1) == 1).all()
    assert (pack.training_labels().single() == pack.observed[pack.train]).all()
    assert pack.full_labels(pack.val).shape == (1199, 312)
    with pytest.raises(InputError, match="not fully labelled"):
        pack.full_labels(pack.train)
    with pytest.raises(InputError, match=r"\.zip"):
        pack.images()
