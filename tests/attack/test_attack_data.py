"""Damaged data: every format with every fault is read, or is one sentence about the file; nothing is written."""

import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from spml.data.detect import open_data
from spml.data.formats.folder import files_below
from spml.data.formats.pack import write_pack
from spml.errors import InputError
from support.attacks import FAULTS, FORMATS, ROWS, image, snapshot


def attacked(root: Path, made: Path) -> list[Path]:
    """The files to damage: the one that is opened, the first and the last other one."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    others = [path for path in files if path != made]
    return [*([made] if made.is_file() else []), *others[:1], *others[-1:]][:3]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.timeout(60)
def test_damaged_data(kind: str, fault: str, tmp_path: Path) -> None:
    count = len(attacked(tmp_path / "0", _make(kind, tmp_path / "0")))
    for place in range(count):
        root = tmp_path / f"{place}"
        made = _make(kind, root)
        FAULTS[fault](attacked(root, made)[place], random.Random(f"{kind} {fault} {place}"))
        before = snapshot(root)
        try:
            data = open_data(made)
            data.store.prepare()
            data.fingerprint()
        except InputError as error:
            message = str(error)
            assert "\n" not in message, message
            assert "Traceback" not in message
        assert snapshot(root) == before


def _make(kind: str, root: Path) -> Path:
    root.mkdir(exist_ok=True)
    return FORMATS[kind](root)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_data_is_valid_before_the_attack(kind: str, tmp_path: Path) -> None:
    data = open_data(_make(kind, tmp_path / "data"))
    assert len(data.classes) == 3


@pytest.mark.timeout(60)
def test_deep_folders_take_no_longer_than_flat_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath("photos", *["d"] * 300)
    deep.mkdir(parents=True)
    (deep / "x.png").touch()
    resolved, realpath = [], os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path, **options: resolved.append(path) or realpath(path, **options))
    assert len(files_below(tmp_path / "photos", (".png",))[0]) == 1
    assert len(resolved) < 10  # each of them reads every folder above


def images(*names: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        for row, name in enumerate(names):
            image(root / name, row)

    return write


def pixels(mode: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        image(root / "a" / "1.png", 0)
        (root / "b").mkdir()
        Image.new(mode, (9, 9)).save(root / "b" / "2.tif")

    return write


def annotations(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        FORMATS["voc"](root)
        change(root)

    return write


def edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text((root / name).read_text().replace(old, new))


def zips(root: Path) -> None:
    FORMATS["pack of images"](root)
    with zipfile.ZipFile(root / "more.zip", "w") as archive:
        archive.writestr("00.jpg", b"x")


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a folder beside a split": (
        images("train/a/1.png", "test/a/2.png", "extra/3.png"),
        "look like a split, but .*'extra'",
    ),
    "a split without training": (
        images("val/a/1.png", "test/a/2.png"),
        "look like a split, but there is no folder train",
    ),
    "testing alone": (images("test/a/1.png", "test/b/2.png"), "look like a split, but there is no folder train"),
    "a class without a visible name": (images(" /1.png", "b/2.png"), "has no visible character"),
    "a class that is not UTF-8": (
        images("a/1.png", "\udcff/2.png"),
        "data: the name of the folder .* is not valid UTF-8",
    ),
    "whole numbers of 32 bits": (pixels("I"), "2.tif: its pixels are numbers of 32 bits"),
    "floats of 32 bits": (pixels("F"), "2.tif: its pixels are numbers of 32 bits"),
    "another kind of XML": (
        annotations(edited("Annotations/0.xml", "annotation>", "html>")),
        "its root element is 'html'",
    ),
    "two images for an annotation": (
        annotations(lambda root: (edited("Annotations/0.xml", "0.png", "")(root), image(root / "JPEGImages/0.jpg", 9))),
        "several images are named '0'",
    ),
    "two images of one name in zip files": (zips, "several images in the .zip files are called '00'"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_could_be_misread(name: str, tmp_path: Path) -> None:
    write, message = FOLDERS[name]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    with pytest.raises(InputError, match=message) as error:
        open_data(tmp_path / "data").store.prepare()
    assert "\n" not in str(error.value)


def test_what_is_left_out_of_annotations_is_noted(tmp_path: Path) -> None:
    FORMATS["voc"](tmp_path)
    (tmp_path / "Annotations/0.xml").unlink()
    edited("Annotations/1.xml", "<name>", "<difficult>1</difficult><name>")(tmp_path)
    notes = " ".join(open_data(tmp_path).notes)
    assert "1 images have no annotation (*.xml) and are left out (for example '0.png')" in notes
    assert "1 objects marked difficult do not count" in notes


@pytest.mark.parametrize(("name", "message"), [("./1.png", "occurs twice"), ("x" * 5000, "set image_root")])
def test_names_in_annotations_that_cannot_be_used(name: str, message: str, tmp_path: Path) -> None:
    path = FORMATS["coco"](tmp_path)
    path.write_text(path.read_text().replace("0.png", name))
    with pytest.raises(InputError, match=message):
        open_data(path)


def test_a_long_name_in_an_annotation_is_no_image(tmp_path: Path) -> None:
    FORMATS["voc"](tmp_path)
    edited("Annotations/0.xml", "0.png", "x" * 5000)(tmp_path)
    assert len(open_data(tmp_path)) == 6


PACKS: dict[str, tuple[dict[str, Any], str]] = {
    "names that are no text": ({"classes": np.array([b"\xff", b"dog", b"bird"])}, "holds bytes that are not ASCII"),
    "a class over two lines": ({"classes": np.array(["c\nat", "dog", "bird"])}, "npz: the class .* a line break"),
    "two classes of one name": ({"classes": np.array(["dog", "dog", "bird"])}, "npz: .* are both named 'dog'"),
    "two rows of one name": ({"image": np.array(["x"] * ROWS)}, "npz: .* the same id 'x'"),
    "shares as text": ({"largest_share": np.full((ROWS, 3), "x")}, "not finite numbers of at least 0"),
    "shares that are NaN": ({"largest_share": np.full((ROWS, 3), np.nan)}, "not finite numbers of at least 0"),
}


@pytest.mark.parametrize("name", PACKS)
def test_packs_that_contradict_themselves(name: str, tmp_path: Path) -> None:
    changes, message = PACKS[name]
    FORMATS["pack of features"](tmp_path)
    arrays = dict(np.load(tmp_path / "labels.npz"))
    np.savez(tmp_path / "labels.npz", **arrays | changes)
    with pytest.raises(InputError, match=message):
        open_data(tmp_path)


def test_no_pack_is_made_of_an_image_that_ends_too_early(tmp_path: Path) -> None:
    for row in range(12):
        image(tmp_path / "photos" / f"{row}.png", row)
    rows = [f"{row}.png,{row % 2},{1 - row % 2}" for row in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,cat,dog", *rows]))
    damaged = tmp_path / "photos" / "3.png"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(InputError, match=r"3\.png: the image cannot be read"):
        write_pack(tmp_path / "photos", tmp_path / "labels.csv", tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
