"""Reading and writing packs: small ones written here, and the first rows of the real ones."""

import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from spml.data import ImageStore, decode, open_data, truth_closed, write_pack
from spml.data.formats.pack import from_pack
from spml.errors import InputError
from support.pictures import picture
from support.shared_data import shared_data

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


def test_validation_array_has_two_names(directory):
    renamed = {"validation" if name == "val" else name: value for name, value in arrays().items()}
    np.savez(directory / "labels.npz", **renamed)
    assert from_pack(directory).validation.tolist() == [2]


def test_images_are_in_the_order_of_the_labels(directory):
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
    with pytest.raises(InputError, match=r"features-z\.npy: no such file"):
        from_pack(directory, features="features-z.npy")


def test_missing_files_raise(directory):
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
    with pytest.raises(InputError, match=r"no feature matrix \(features\*\.npy or features\*\.npz\)"):
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
        ({"labels": LABELS * 2}, "values other than 0 and 1"),
        ({"observed": OBSERVED + 1}, "'observed' has values from 0 to 3, not from -1 to 2"),
        ({"train": np.array([5])}, "'train' has values from 5 to 5, not from 0 to 4"),
        ({"val": np.array([0.5])}, "'validation' must be a list of whole numbers"),
        ({"largest_share": np.zeros((2, 2))}, "'largest_share' has the shape"),
        ({"image": np.array([{}], dtype=object)}, r"not a \.npz file of arrays"),
    ],
)
def test_inconsistent_labels_raise(directory, change, word):
    kept = {name: value for name, value in (arrays() | change).items() if value is not None}
    np.savez(directory / "labels.npz", **kept)
    with pytest.raises(InputError, match=word):
        from_pack(directory)


def test_damaged_labels_raise(directory):
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
    ("change", "image_options", "feature_options"),
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
def test_fingerprint_covers_what_a_training_depends_on(directory, change, image_options, feature_options):
    def both() -> tuple[str, str]:
        return from_pack(directory, size=6).fingerprint(), from_pack(directory, features=True).fingerprint()

    before = both()
    assert both() == before
    change(directory)
    after = both()
    assert (before[0] != after[0], before[1] != after[1]) == (image_options, feature_options)


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


# writing


def photographs(folder: Path, rows: int = 20) -> Path:
    for row in range(rows):
        picture(folder / "cats" / f"{row}.png", row)
    return folder


def label_table(folder: Path, rows: int = 20) -> Path:
    """A column of 0 and 1 per class; every row has the class even or odd, and every third has the class three."""
    lines = [f"cats/{row}.png,{int(row % 2 == 0)},{row % 2},{int(row % 3 == 0)}" for row in range(rows)]
    path = folder / "full.csv"
    path.write_text("\n".join(["image,even,odd,three", *lines]))
    return path


def full(rows: int = 20) -> np.ndarray:
    number = np.arange(rows)
    return np.stack([number % 2 == 0, number % 2 == 1, number % 3 == 0], axis=1)


def test_written_pack_of_images(tmp_path):
    photos = photographs(tmp_path / "photos")
    dataset = write_pack(photos, label_table(tmp_path), tmp_path / "new" / "pets", test=0.25, validation=0.2)
    assert repr(dataset) == "Dataset('pets': 20 rows, 3 classes; 12 train, 3 validation, 5 test)"
    assert dataset.source == {"path": str(tmp_path / "new" / "pets"), "kind": "pack", "options": {}}
    assert dataset.classes == ("even", "odd", "three")
    assert ((dataset.truth.open().dense() > 0) == full()).all()
    assert dataset.fully_labelled.all()
    observed = dataset.labels.single()
    rows = np.sort(np.concatenate([dataset.train, dataset.validation]))
    assert full()[rows, observed[rows]].all()
    assert (observed[dataset.test] == -1).all()
    expected = ImageStore([photos / name for name in dataset.names], 8).batch(range(20))
    assert torch.equal(open_data(tmp_path / "new" / "pets", size=8).store.batch(range(20)), expected)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["pets"]
    assert sorted(path.name for path in (tmp_path / "new" / "pets").iterdir()) == ["images.zip", "labels.npz"]


def test_split_and_single_positives_of_a_written_pack(tmp_path):
    """Cole et al.'s rule, on the rows that are not for the test."""
    np.save(tmp_path / "x.npy", np.eye(20, dtype=np.float16))
    dataset = write_pack(tmp_path / "x.npy", label_table(tmp_path), tmp_path / "pack", seed=7)
    order = np.random.RandomState(7).permutation(20)
    assert dataset.test.tolist() == sorted(order[15:])
    others = np.sort(order[:15])
    second = np.random.RandomState(7).permutation(15)
    assert dataset.validation.tolist() == others[np.sort(second[12:])].tolist()
    assert dataset.train.tolist() == others[np.sort(second[:12])].tolist()
    rng, observed = np.random.RandomState(7), []
    for row in others:
        positives, negatives = np.flatnonzero(full()[row]), np.flatnonzero(~full()[row])
        rng.shuffle(positives)
        rng.shuffle(negatives)
        observed.append(positives[0])
    assert dataset.labels.single()[others].tolist() == observed
    assert (
        dataset.fingerprint() == write_pack(np.eye(20), label_table(tmp_path), tmp_path / "again", seed=7).fingerprint()
    )
    assert dataset.fingerprint() != write_pack(np.eye(20), label_table(tmp_path), tmp_path / "other").fingerprint()


def test_lists_of_labels_are_full_labels(tmp_path):
    path = tmp_path / "tags.csv"
    path.write_text("id,tags\nr0,a|b\nr1,b\nr2,\nr3,c|a\nr4,a\nr5,b\n")
    dataset = write_pack(np.eye(6), path, tmp_path / "pack", test=0.34, validation=0.25)
    assert dataset.names.tolist() == ["r0", "r1", "r2", "r3", "r4", "r5"]
    truth = [[1, 1, -1], [-1, 1, -1], [-1, -1, -1], [1, -1, 1], [1, -1, -1], [-1, 1, -1]]
    assert dataset.truth.open().dense().tolist() == truth


def test_a_stated_split_is_used(tmp_path):
    path = tmp_path / "full.csv"
    splits = ["train"] * 10 + ["val"] * 4 + ["test"] * 6
    path.write_text("\n".join(["x,y,split", *(f"1,{row % 2},{part}" for row, part in enumerate(splits))]))
    dataset = write_pack(np.eye(20), path, tmp_path / "pack")
    parts = [dataset.train.tolist(), dataset.validation.tolist(), dataset.test.tolist()]
    assert parts == [list(range(10)), list(range(10, 14)), list(range(14, 20))]


def test_images_of_a_table_in_the_order_of_the_labels(tmp_path):
    photos = photographs(tmp_path / "photos", 6)
    cells = [{"bytes": (photos / "cats" / f"{row}.png").read_bytes(), "path": None} for row in range(6)]
    parquet.write_table(pa.table({"image": cells}), tmp_path / "images.parquet")
    labels = tmp_path / "full.csv"
    labels.write_text("x,y\n" + "1,0\n0,1\n" * 3)
    dataset = write_pack(tmp_path / "images.parquet", labels, tmp_path / "pack", test=0.34, validation=0.25)
    assert dataset.names.tolist() == ["0", "1", "2", "3", "4", "5"]
    expected = ImageStore([photos / "cats" / f"{row}.png" for row in range(6)], 8).batch(range(6))
    assert torch.equal(open_data(tmp_path / "pack", size=8).store.batch(range(6)), expected)
    paths = tmp_path / "photos" / "list.csv"
    paths.write_text("file\n" + "".join(f"cats/{row}.png\n" for row in range(6)))
    dataset = write_pack(paths, labels, tmp_path / "other", test=0.34, validation=0.25)
    assert dataset.names.tolist() == [f"cats/{row}.png" for row in range(6)]


def test_image_names_of_a_pack_are_relative(tmp_path):
    photos = photographs(tmp_path / "photos", 6)
    outside = picture(tmp_path / "outside.png")
    lines = [f"{photos / 'cats' / f'{row}.png'},1,{row % 2}" for row in range(5)]
    labels = tmp_path / "full.csv"
    labels.write_text("\n".join(["image,x,y", *lines, f"{outside},0,1"]))
    dataset = write_pack(photos, labels, tmp_path / "pack", test=0.34, validation=0.25)
    assert dataset.names.tolist() == [*(f"cats/{row}.png" for row in range(5)), "5-outside.png"]


@pytest.mark.parametrize(
    ("labels", "options", "word"),
    [
        ("image,x,y\ncats/0.png,1,0\ncats/1.png,,1\n", {}, r"row 2 .*column 'x' is empty: all labels must be known"),
        ("image,x,y\ncats/0.png,1,0\ncats/0.png,1,1\n", {}, r"'cats/0\.png' occurs twice"),
        ("image,x,y\ncats/0.png,1,0\ncats/9.png,1,1\n", {}, r"no image .*9\.png"),
        ("name,x,y\na,1,0\nb,1,1\n", {"label_column": "x"}, "no column contains image paths"),
        ("image,x,y\ncats/0.png,1,0\ncats/1.png,0,1\n", {}, "rows is assigned to validation"),
        ("image,x,y\ncats/0.png,1,0\n", {"test": 1.5}, r"test is 1\.5: it must be a share"),
        ("image,x,y\ncats/0.png,1,0\ncats/broken.png,0,1\n" + "cats/2.png,1,1\ncats/3.png,1,1\n", {}, "not an image"),
    ],
)
def test_invalid_inputs_of_a_pack_raise_and_leave_no_folder(tmp_path, labels, options, word):
    photos = photographs(tmp_path / "photos", 4)
    (photos / "cats" / "broken.png").write_bytes(b"no image")
    (tmp_path / "full.csv").write_text(labels)
    with pytest.raises(InputError, match=word):
        write_pack(photos, tmp_path / "full.csv", tmp_path / "packs" / "pack", **options)
    assert not list((tmp_path / "packs").glob("*"))


def test_writing_a_pack_never_overwrites(tmp_path):
    (tmp_path / "pack").mkdir()
    with pytest.raises(InputError, match="pack already exists"):
        write_pack(np.eye(20), label_table(tmp_path), tmp_path / "pack")
    with pytest.raises(InputError, match="absent: no such file or folder"):
        write_pack(tmp_path / "absent", label_table(tmp_path), tmp_path / "new")
    with pytest.raises(InputError, match="it has 20 rows for 19"):
        write_pack(np.eye(19), label_table(tmp_path), tmp_path / "new")
