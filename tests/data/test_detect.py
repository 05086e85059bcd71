"""Detection of data formats."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spml.data.detect import FORMATS, open_data
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from support.official_layouts import write_coco, write_cub, write_nuswide, write_voc
from support.pictures import known, picture
from support.shared_data import shared_data


@pytest.mark.parametrize(
    ("write", "name", "options"),
    [
        (write_voc, "voc12", {"seed": 7}),
        (write_coco, "coco14", {"size": 16}),
        (write_nuswide, "nuswide-official", {"split": "official"}),
        (write_cub, "cub", {"certainty": 2}),
    ],
)
def test_official_layouts_are_detected(
    tmp_path: Path, write: Callable[[Path], Path], name: str, options: dict[str, object]
) -> None:
    dataset = open_data(write(tmp_path), **options)
    assert dataset.name == name
    assert dataset.truth is not None


def test_the_word_scenes_and_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    picture(Path("scenes", "cat", "a.jpg"))
    assert open_data("scenes", train=5, test=1, size=32).name == "scenes"
    assert open_data("./scenes").classes == ("cat",)


def test_user_data_is_detected(tmp_path: Path) -> None:
    folder = tmp_path / "by class"
    picture(folder / "cat" / "a.jpg", 1)
    picture(folder / "dog" / "b.jpg", 2)
    assert open_data(folder).classes == ("cat", "dog")
    assert open_data(str(folder), size=8).store.batch([0]).shape == (1, 3, 8, 8)

    table = tmp_path / "table" / "tags.csv"
    picture(table.parent / "images" / "a.jpg")
    table.write_text("file,tag\nimages/a.jpg,cat\n")
    assert known(open_data(table)) == known(open_data(table.parent)) == {"images/a.jpg": ["cat"]}

    np.save(tmp_path / "x.npy", np.zeros((2, 3)))
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    assert isinstance(open_data(tmp_path / "x.npy", labels=tmp_path / "y.npy").store, FeatureStore)

    (tmp_path / "coco").mkdir()
    write_coco(tmp_path / "coco")
    own = open_data(
        tmp_path / "coco" / "annotations" / "instances_val2014.json", image_root=tmp_path / "coco" / "val2014"
    )
    assert own.truth is None
    (tmp_path / "voc").mkdir()
    root = write_voc(tmp_path / "voc") / "VOCdevkit" / "VOC2012"
    for listed in (root / "ImageSets" / "Main").iterdir():
        listed.rename(listed.with_name(f"default-{listed.stem[:2]}.txt"))  # as annotation tools export it
    assert open_data(root).truth is None


def small_pack(folder: Path, *, features: bool) -> Path:
    import zipfile

    folder.mkdir()
    arrays = {
        "image": np.array(["a", "b", "c", "d"]),
        "classes": np.array(["x", "y"]),
        "labels": np.array([[1, 0], [1, 1], [0, 1], [0, 0]], np.uint8),
        "observed": np.array([0, 1, -1, 1]),
        "train": np.array([0, 3]),
        "val": np.array([1]),
        "test": np.array([2]),
        "largest_share": np.array([[0.5, 0], [0.1, 1], [0, 1], [0, 0]], np.float16),
    }
    np.savez(folder / "labels.npz", **arrays)
    if features:
        np.save(folder / "features-small.npy", np.ones((4, 3)))
    else:
        with zipfile.ZipFile(folder / "images.zip", "w") as archive:
            for name in "abcd":
                archive.write(picture(folder.parent / f"{name}.png"), f"{name}.png")
    return folder


def test_pack_is_detected(tmp_path: Path) -> None:
    dataset = open_data(small_pack(tmp_path / "small", features=False), size=8)
    assert isinstance(dataset.store, ImageStore)
    assert dataset.store.batch([3]).shape == (1, 3, 8, 8)
    assert dataset.labels.single().tolist() == [0, 1, -1, 1]
    assert [dataset.train.tolist(), dataset.validation.tolist(), dataset.test.tolist()] == [[0, 3], [1], [2]]
    assert dataset.truth is not None
    # row d has no label but an observed one: its truth is not known
    assert dataset.truth.open().dense().tolist() == [[1, -1], [1, 1], [-1, 1], [0, 1]]
    share = dataset.truth.largest_share()
    assert share is not None
    assert share[1].tolist() == pytest.approx([0.1, 1], abs=1e-3)
    assert "1 rows are not fully labelled" in dataset.notes[0]
    features = open_data(small_pack(tmp_path / "features", features=True))
    assert isinstance(features.store, FeatureStore)
    with pytest.raises(InputError, match="features"):
        open_data(tmp_path / "small", features=True)


def test_real_packs() -> None:
    voc = open_data(shared_data("voc12"), features=True)
    assert (len(voc.train), len(voc.validation), len(voc.test)) == (4574, 1143, 5823)
    assert voc.notes == ()
    cub = open_data(shared_data("cub"))
    assert isinstance(cub.store, FeatureStore)
    assert "5994 rows are not fully labelled" in cub.notes[0]
    assert cub.labels.is_single_positive


def test_ambiguous_or_unsupported_data_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        open_data(tmp_path / "absent")
    with pytest.raises(InputError, match="no supported data in this folder") as error:
        open_data(tmp_path)
    assert all(form.description in str(error.value) for form in FORMATS.values())
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="this type of file is not supported"):
        open_data(tmp_path / "notes.txt")
    (tmp_path / "Labels.XLSX").write_bytes(b"PK")
    with pytest.raises(InputError, match="Save the sheet as CSV"):
        open_data(tmp_path / "Labels.XLSX")
    (tmp_path / "Labels.XLSX").unlink()
    picture(tmp_path / "a.jpg")
    with pytest.raises(InputError, match="folder per class"):
        open_data(tmp_path)
    picture(tmp_path / "cat" / "b.jpg", 1)
    picture(tmp_path / "dog" / "c.jpg", 2)
    (tmp_path / "tags.csv").write_text("file,tag\na.jpg,bird\n")
    with pytest.raises(InputError, match="Choose one with kind"):
        open_data(tmp_path)
    (tmp_path / "dog" / "run.json").touch()  # the folder of a run
    assert open_data(tmp_path).classes == ("bird",)
    (tmp_path / "dog" / "run.json").unlink()
    assert open_data(tmp_path, kind="folder").classes == ("cat", "dog")
    assert open_data(tmp_path, kind="table").classes == ("bird",)
    (tmp_path / "more.csv").write_text("file,tag\na.jpg,bird\n")
    with pytest.raises(InputError, match=r"several tables, open one of them: more\.csv, tags\.csv"):
        open_data(tmp_path)
    with pytest.raises(InputError, match="several tables"):
        open_data(tmp_path, kind="table")
    with pytest.raises(InputError, match="kind is 'zip'"):
        open_data(tmp_path, kind="zip")
    write_voc(tmp_path)
    write_coco(tmp_path)
    with pytest.raises(InputError, match=r"PASCAL VOC.* or MS-COCO"):
        open_data(tmp_path)


def test_unknown_options_raise(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "a.jpg")
    with pytest.raises(
        InputError,
        match=r"'sise' is not an option for folder, a folder per.* Available options: .*cache_path, .*size, ",
    ):
        open_data(tmp_path, sise=8)


def test_source_opens_the_same_data_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    picture(Path("photos", "a.jpg"), 1)
    picture(Path("photos", "b.jpg"), 2)
    Path("tags.csv").write_text("file,tag\na.jpg,cat\nb.jpg,dog\n")
    opened = open_data("tags.csv", kind="table", image_root=Path("photos"), size=8)
    assert opened.source == {
        "path": str(tmp_path / "tags.csv"),
        "kind": "table",
        "options": {"kind": "table", "image_root": str(tmp_path / "photos"), "size": 8},
    }
    assert json.loads(json.dumps(opened.source)) == opened.source
    before = opened.fingerprint()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = open_data(opened.source["path"], **opened.source["options"])
    assert again.fingerprint() == before
    pack = open_data(small_pack(tmp_path / "pack", features=True), features="features-small.npy")
    assert pack.source["options"] == {"features": "features-small.npy"}
    scenes = open_data("scenes", train=5, test=1).source
    assert scenes == {"path": "scenes", "kind": "scenes", "options": {"train": 5, "test": 1}}


def test_class_numbers_saved_as_floats(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 3)))
    np.save(tmp_path / "y.npy", np.array([1.0, np.nan, 0.0, -1.0]))
    labels = open_data(tmp_path / "x.npy", labels=tmp_path / "y.npy").labels
    assert labels.classes == ("0", "1")
    assert labels.single().tolist() == [1, -1, 0, -1]
    for wrong in (0.5, np.inf, 1e30):
        np.save(tmp_path / "y.npy", np.array([1.0, wrong, 0.0, 0.0]))
        with pytest.raises(InputError, match=r"y\.npy: row 1 is .*, which is not a class number"):
            open_data(tmp_path / "x.npy", labels=tmp_path / "y.npy")
