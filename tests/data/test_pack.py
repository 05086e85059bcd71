"""Packs: a small one made here, and the first rows of the real ones."""

import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import shared_data
from spml.data import decode, truth_closed
from spml.data.formats.pack import from_pack
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
    dataset = from_pack(directory)
    assert len(dataset) == 5
    assert dataset.classes == tuple(CLASSES)
    assert dataset.names.tolist() == IDS
    assert dataset.labels.single().tolist() == [2, 0, 1, -1, -1]
    assert dataset.labels.is_single_positive
    parts = (dataset.train.tolist(), dataset.validation.tolist(), dataset.test.tolist())
    assert parts == ([0, 1], [2], [3, 4])
    assert dataset.truth.open().dense().tolist() == [[1, -1, 1], [1, 0, 0], [-1, 1, -1], [-1, -1, -1], [1, 1, -1]]
    assert dataset.truth.largest_share() is None
    assert dataset.fully_labelled.tolist() == [True, False, True, True, True]


def test_full_labels(directory):
    dataset = from_pack(directory)
    full = dataset.full_labels([4, 2, 3])
    assert full.is_full
    assert full.dense().tolist() == [[1, 1, -1], [-1, 1, -1], [-1, -1, -1]]
    assert full.ids.tolist() == ["e", "c", "d"]
    with pytest.raises(InputError, match=r"1 of these 2 rows are not fully labelled, for example row 1 \(a\)"):
        dataset.full_labels(dataset.train)
    with truth_closed(), pytest.raises(RuntimeError, match="closed during training"):
        dataset.full_labels([4])


def test_the_array_may_be_called_validation(directory):
    renamed = {"validation" if name == "val" else name: value for name, value in arrays().items()}
    np.savez(directory / "labels.npz", **renamed)
    assert from_pack(directory).validation.tolist() == [2]


def test_images_are_in_the_labels_order(directory):
    store = from_pack(directory, size=6, workers=2).store
    assert store.batch(range(5))[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40]
    assert store.name(0) == f"{directory}/part-1.zip/b/1.x.png"


def test_features(directory):
    assert from_pack(directory, features=True).store.batch([1]).tolist() == [[4, 5, 6, 7]]
    np.save(directory / "features-y.npy", np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"choose one with features: features-x\.npy, features-y\.npy"):
        from_pack(directory, features=True)
    assert from_pack(directory, features="features-x.npy").store.dim == 4
    with pytest.raises(InputError, match=r"features-y\.npy: it has 4 rows, labels\.npz has 5"):
        from_pack(directory, features="features-y.npy")
    with pytest.raises(InputError, match=r"features-z\.npy: there is no such file"):
        from_pack(directory, features="features-z.npy")


def test_missing_files(directory):
    with pytest.raises(InputError, match=r"nowhere: no such folder; a pack is a folder with labels\.npz"):
        from_pack(directory / "nowhere")
    (directory / "part-0.zip").unlink()
    with pytest.raises(InputError, match=r"image 'c' is in none of the \.zip files \(2 of 5 are missing\)"):
        from_pack(directory)
    (directory / "part-1.zip").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"part-1\.zip: this is not a readable zip file"):
        from_pack(directory)
    (directory / "part-1.zip").unlink()
    with pytest.raises(InputError, match=r"no \.zip files with images"):
        from_pack(directory, features=False)
    (directory / "features-x.npy").unlink()
    with pytest.raises(InputError, match=r"no feature matrix \(features\*\.npy\)"):
        from_pack(directory)
    (directory / "labels.npz").unlink()
    with pytest.raises(InputError, match=r"labels\.npz: no such file"):
        from_pack(directory)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"observed": None}, "'observed' is missing"),
        ({"val": None}, "'validation' is missing"),
        ({"labels": LABELS[:, :2]}, r"'labels' has the shape \(5, 2\), expected \(5, 3\)"),
        ({"labels": LABELS * 2}, "other values than 0 and 1"),
        ({"observed": OBSERVED + 1}, "'observed' runs from 0 to 3, not in -1 to 2"),
        ({"train": np.array([5])}, "'train' runs from 5 to 5, not in 0 to 4"),
        ({"val": np.array([0.5])}, "'validation' is a list of whole numbers"),
        ({"largest_share": np.zeros((2, 2))}, "'largest_share' has the shape"),
        ({"image": np.array([{}], dtype=object)}, r"not a \.npz file of arrays"),
    ],
)
def test_labels_that_do_not_fit(directory, change, word):
    kept = {name: value for name, value in (arrays() | change).items() if value is not None}
    np.savez(directory / "labels.npz", **kept)
    with pytest.raises(InputError, match=word):
        from_pack(directory)


def test_labels_that_are_no_npz(directory):
    (directory / "labels.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"labels\.npz: this is not a \.npz file"):
        from_pack(directory)


def rewrite(directory: Path, **changes: np.ndarray) -> None:
    np.savez(directory / "labels.npz", **(arrays() | changes))


def other_image(directory: Path) -> None:
    with zipfile.ZipFile(directory / "part-0.zip", "w") as file:
        for row in (4, 2):
            file.writestr(f"{IDS[row]}.png", png(10 * row + 1))


@pytest.mark.parametrize(
    ("change", "of_images", "of_features"),
    [
        (lambda pack: rewrite(pack, labels=LABELS[:, ::-1] * [0, 1, 1]), True, True),
        (lambda pack: rewrite(pack, observed=OBSERVED[[0, 1, 2, 3, 3]] * [0, 1, 1, 1, 1]), True, True),
        (lambda pack: rewrite(pack, train=np.array([0, 3]), test=np.array([1, 4])), True, True),
        (lambda pack: rewrite(pack, train=np.array([0]), val=np.array([1, 2])), True, True),
        (lambda pack: rewrite(pack, classes=np.array(["cat", "dog", "bird"])), True, True),
        (lambda pack: rewrite(pack, largest_share=np.full((5, 3), 0.5)), True, True),
        (other_image, True, False),
        (lambda pack: np.save(pack / "features-x.npy", np.eye(5)), False, True),
    ],
)
def test_fingerprint_covers_what_a_training_depends_on(directory, change, of_images, of_features):
    def both() -> tuple[str, str]:
        return from_pack(directory, size=6).fingerprint(), from_pack(directory, features=True).fingerprint()

    before = both()
    assert both() == before
    change(directory)
    after = both()
    assert (before[0] != after[0], before[1] != after[1]) == (of_images, of_features)


def test_fingerprint_of_a_copy_is_equal(directory, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy") / "pack"
    shutil.copytree(directory, copy)
    assert from_pack(copy).fingerprint() == from_pack(directory).fingerprint()


def test_real_voc():
    folder = shared_data("voc12")
    dataset = from_pack(folder, size=320, cache_limit=0)
    assert (len(dataset), len(dataset.classes)) == (11540, 20)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (4574, 1143, 5823)
    assert dataset.fully_labelled.all()
    truth, share = dataset.truth.open().dense(), dataset.truth.largest_share()
    assert ((share > 0) <= (truth == 1)).all()
    labels = dataset.labels.subset(dataset.train)
    assert labels.shape == (4574, 20)
    assert (truth[dataset.train, labels.single()] == 1).all()
    assert dataset.full_labels(dataset.test).is_full
    rows = [0, 1, 5335, 5336, 10693, 10694, 11538, 11539]  # first and last of each zip file
    batch = dataset.store.batch(rows)
    assert batch.shape == (8, 3, 320, 320)
    assert all(len(image.unique()) > 50 for image in batch)  # photographs, not blanks
    with zipfile.ZipFile(folder / "voc12-320-1.zip") as file:
        member = decode(file.read(f"{dataset.names[5336]}.avif"), 320)
    assert torch.equal(batch[3], torch.from_numpy(member))
    features = from_pack(folder, features=True).store
    assert (len(features), features.dim) == (11540, 1280)
    assert torch.isfinite(features.batch(rows)).all()


def test_real_cub():
    folder = shared_data("cub")
    dataset = from_pack(folder)
    assert (len(dataset), len(dataset.classes)) == (11788, 312)
    assert not dataset.fully_labelled[dataset.train].any()
    assert dataset.fully_labelled[dataset.validation].all()
    assert dataset.fully_labelled[dataset.test].all()
    assert (dataset.truth.open().dense(dataset.train).sum(axis=1) == 1).all()
    assert dataset.full_labels(dataset.validation).shape == (1199, 312)
    with pytest.raises(InputError, match="not fully labelled"):
        dataset.full_labels(dataset.train)
    with pytest.raises(InputError, match=r"\.zip"):
        from_pack(folder, features=False)
