"""A folder per class."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spml.data.formats.folder import from_folder
from spml.data.formats.user_data import hold_out
from spml.errors import InputError
from spml.labels import Labels
from support.pictures import known, picture


def test_each_subfolder_is_a_class(tmp_path: Path) -> None:
    for shade in range(5):
        picture(tmp_path / "cat" / f"{shade}.jpg", shade)
        picture(tmp_path / "dog" / "old" / f"{shade}.png", 50 + shade)
    dataset = from_folder(tmp_path, size=8)
    assert dataset.classes == ("cat", "dog")
    assert known(dataset)["dog/old/3.png"] == ["dog"]
    assert known(dataset)["cat/3.jpg"] == ["cat"]
    assert dataset.truth is None
    assert len(dataset.test) == 0
    assert len(dataset.validation) == 2
    assert len(dataset.train) == 8
    row = dataset.names.tolist().index("dog/old/3.png")
    assert dataset.store.batch([row]).float().mean(dim=(2, 3)).numpy() == pytest.approx(
        np.array([[53, 53 * 7 % 256, 53 * 13 % 256]]), abs=1
    )
    assert dataset.notes == ()


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    for shade in range(4):
        picture(tmp_path / "elsewhere" / f"{shade}.png", shade)
        picture(tmp_path / "root" / "cat" / f"{shade}.png", 50 + shade)
    os.symlink(tmp_path / "elsewhere", tmp_path / "root" / "dog")
    os.symlink(tmp_path / "root", tmp_path / "elsewhere" / "round")  # root/dog/round is root again
    os.symlink(tmp_path / "root" / "cat", tmp_path / "root" / "cat" / "itself")
    dataset = from_folder(tmp_path / "root", size=8)
    assert dataset.classes == ("cat", "dog")
    assert len(dataset) == 8
    assert dataset.notes == ()


def test_identical_files_in_two_classes_become_one_row(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "a.png", 1)
    picture(tmp_path / "dog" / "a.png", 2)
    for label in ("cat", "dog", "fish"):
        picture(tmp_path / label / f"same-{label}.png", 3)
    picture(tmp_path / "cat" / "copy.png", 1)  # equal bytes within a class are left alone
    dataset = from_folder(tmp_path)
    assert known(dataset) == {
        "cat/a.png": ["cat"],
        "cat/copy.png": ["cat"],
        "cat/same-cat.png": ["cat", "dog", "fish"],
        "dog/a.png": ["dog"],
    }
    assert any("more than one class folder" in note and "same-cat.png" in note for note in dataset.notes)


def test_split_folders(tmp_path: Path) -> None:
    for shade, (part, label) in enumerate([("train", "b"), ("train", "a"), ("Val", "a"), ("test", "b")]):
        picture(tmp_path / part / label / "x.png", shade)
    dataset = from_folder(tmp_path)
    assert dataset.classes == ("a", "b")
    names = dataset.names
    assert names[dataset.train].tolist() == ["train/a/x.png", "train/b/x.png"]
    assert names[dataset.validation].tolist() == ["Val/a/x.png"]
    assert names[dataset.test].tolist() == ["test/b/x.png"]


def test_notes(tmp_path: Path) -> None:
    for shade, label in enumerate(["Cat", "cat ", "Zoë", "only one"]):
        for copy in range(1 if label == "only one" else 3):
            picture(tmp_path / label / f"{copy}.jpg", 10 * shade + copy)
    (tmp_path / "cat " / ".DS_Store").write_bytes(b"x")
    (tmp_path / "cat " / "readme.txt").write_text("x")
    picture(tmp_path / ".cache" / "x.jpg")
    picture(tmp_path / "loose.jpg", 99)
    (tmp_path / "empty").mkdir()
    dataset = from_folder(tmp_path)
    notes = "\n".join(dataset.notes)
    assert set(dataset.classes) == {"Cat", "cat ", "Zoë", "only one"}
    assert "'Cat', 'cat '" in notes
    assert "1 of 4 classes have only one row: 'only one'" in notes
    assert "2 hidden or other files" in notes
    assert "loose.jpg" in notes
    assert "the folder 'empty' contains no image and is not a class" in notes
    # the one image of its class is trained on, whatever the share
    single = from_folder(tmp_path, validation_share=0.9)
    assert "only one/0.jpg" in single.names[single.train].tolist()


def test_errors_name_the_folder_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such folder"):
        from_folder(tmp_path / "absent")
    with pytest.raises(InputError, match=r"no image .* in this folder or below"):
        from_folder(tmp_path)
    picture(tmp_path / "a.jpg")
    with pytest.raises(InputError, match="folder with its name, or give a table"):
        from_folder(tmp_path)
    picture(tmp_path / "locked" / "b.jpg")
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match="locked: the folder cannot be read"):
        from_folder(tmp_path)


def test_split_folders_without_classes_raise(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a.jpg")
    picture(tmp_path / "test" / "b.jpg")
    with pytest.raises(InputError, match="no folder per class"):
        from_folder(tmp_path)


def test_opening_reads_no_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "broken.jpg").write_bytes(b"no image")
    picture(tmp_path / "cat" / "good.jpg")
    dataset = from_folder(tmp_path, on_bad_image="skip")
    assert dataset.store.good_rows.tolist() == [1]


def test_carve_holds_out_labelled_rows_and_keeps_each_class() -> None:
    labels = Labels.from_names(["a"] * 6 + ["b"] + [None] * 5, ids=range(12))
    for seed in range(20):
        train, validation = hold_out(labels, np.arange(12), share=0.5, seed=seed)
        assert sorted([*train, *validation]) == list(range(12))
        assert 6 in train
        assert set(validation) <= set(range(6))
        assert 3 <= len(validation) <= 4
    train, validation = hold_out(labels, np.arange(3), share=0.34)
    assert len(validation) == 1
    assert set(train) | set(validation) == {0, 1, 2}
