"""Published data sets, tested on miniatures in their official layouts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spml.data.dataset import Dataset, Truth
from spml.data.formats import coco, cub, nuswide, voc
from spml.data.formats.official import from_truth
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels, simulate, split
from support.official_layouts import VOC, write_coco, write_cub, write_nuswide, write_voc
from support.pictures import known
from support.shared_data import shared_data


def present(dataset: Dataset) -> dict[str, set[str]]:
    assert dataset.truth is not None
    dense = dataset.truth.open().dense() == 1
    return {
        str(name): {dataset.classes[c] for c in np.flatnonzero(row)}
        for name, row in zip(dataset.names, dense, strict=True)
    }


def check_protocol(dataset: Dataset, train_rows: int) -> None:
    """Check Cole et al.'s draw over all training rows, then their split; test rows have no observed labels."""
    assert dataset.truth is not None
    full = dataset.truth.open()
    drawn = simulate(full.subset(np.arange(train_rows)), seed=1200).single()
    assert dataset.labels.single().tolist() == [*drawn.tolist(), *[-1] * (len(dataset) - train_rows)]
    train, validation = split(train_rows)
    assert dataset.train.tolist() == train.tolist()
    assert dataset.validation.tolist() == validation.tolist()
    assert dataset.test.tolist() == list(range(train_rows, len(dataset)))


# PASCAL VOC


def test_voc(tmp_path: Path) -> None:
    dataset = voc.from_voc(write_voc(tmp_path), size=8)
    assert present(dataset) == {
        "2008_000001.jpg": {"cat"},
        "2008_000002.jpg": {"aeroplane", "person"},
        "2008_000003.jpg": {"train", "person"},
        "2008_000005.jpg": {"sofa", "tvmonitor", "chair"},
        "2008_000006.jpg": {"car"},
        "2009_000004.jpg": {"boat"},
        "2009_000007.jpg": {"bus"},
    }
    assert dataset.classes[:3] == ("aeroplane", "bicycle", "bird")
    check_protocol(dataset, 5)
    assert dataset.store.batch([0]).shape == (1, 3, 8, 8)
    assert dataset.truth is not None
    share = dataset.truth.largest_share()
    assert share is not None
    assert share[2, dataset.classes.index("person")] == pytest.approx(50 / 200)
    assert share[0, dataset.classes.index("dog")] == 0
    assert ((share > 0) == (dataset.truth.open().dense() == 1)).all()


def test_voc_single_positives_follow_the_published_rule(tmp_path: Path) -> None:
    """Cole et al.'s rule: one random stream over all rows; per row, shuffle the positives, then the negatives."""
    dataset = voc.from_voc(write_voc(tmp_path))
    classes = sorted({name for images in VOC.values() for objects in images.values() for name, _, _ in objects})
    assert list(dataset.classes) == sorted(dataset.classes)
    assert set(classes) <= set(dataset.classes)
    stream = np.random.RandomState(1200)
    expected = {}
    for image in sorted(VOC["train"]):
        here = {name for name, _, difficult in VOC["train"][image] if not difficult}
        if not here:
            continue
        positives = np.array([c for c, name in enumerate(dataset.classes) if name in here])
        negatives = np.array([c for c, name in enumerate(dataset.classes) if name not in here])
        stream.shuffle(positives)
        stream.shuffle(negatives)
        expected[f"{image}.jpg"] = [dataset.classes[positives[0]]]
    assert {name: labels for name, labels in known(dataset).items() if labels} == expected


def test_counts_are_compared_with_the_papers(tmp_path: Path) -> None:
    write_voc(tmp_path)
    dataset = voc.from_voc(tmp_path)
    mismatches = voc.PAPER.mismatches(dataset)
    assert set(mismatches) <= set(dataset.notes)
    text = "\n".join(mismatches)
    assert "training images: 4 here, 4574 in the papers" in text
    assert "positives per training image: 1.80 here, 1.46 in the papers" in text
    assert "classes" not in text  # these do match
    with pytest.raises(InputError, match="test images: 2 here, 5823"):
        voc.from_voc(tmp_path / "VOCdevkit" / "VOC2012", strict=True)


def test_more_positives_or_features(tmp_path: Path) -> None:
    write_voc(tmp_path)
    every = known(voc.from_voc(tmp_path, positives=None))
    assert every["2008_000005.jpg"] == ["chair", "sofa", "tvmonitor"]
    np.save(tmp_path / "features.npy", np.zeros((7, 3), np.float16))
    assert isinstance(voc.from_voc(tmp_path, features=tmp_path / "features.npy").store, FeatureStore)
    np.save(tmp_path / "features.npy", np.zeros((6, 3), np.float16))
    with pytest.raises(InputError, match="it has 6 rows, the data has 7"):
        voc.from_voc(tmp_path, features=tmp_path / "features.npy")


@pytest.mark.parametrize(
    ("missing", "archive"),
    [
        ("ImageSets/Main/val.txt", "VOCtrainval_11-May-2012.tar"),
        ("Annotations/2009_000004.xml", "VOCtrainval_11-May-2012.tar"),
        ("JPEGImages/2008_000006.jpg", "1 of 7 are missing"),
    ],
)
def test_voc_error_names_the_missing_file(tmp_path: Path, missing: str, archive: str) -> None:
    root = write_voc(tmp_path) / "VOCdevkit" / "VOC2012"
    (root / missing).unlink()
    with pytest.raises(InputError) as error:
        voc.from_voc(tmp_path)
    assert missing in str(error.value)
    assert archive in str(error.value)


def test_voc_invalid_annotations_and_options_raise(tmp_path: Path) -> None:
    root = write_voc(tmp_path) / "VOCdevkit" / "VOC2012"
    annotation = root / "Annotations" / "2008_000001.xml"
    annotation.write_text(annotation.read_text().replace("cat", "unicorn"))
    with pytest.raises(InputError, match=r"2008_000001\.xml: the class 'unicorn' is not one of the 20"):
        voc.from_voc(tmp_path)
    annotation.write_text("<annotation>")
    with pytest.raises(InputError, match=r"2008_000001\.xml: the annotation cannot be read"):
        voc.from_voc(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<name>cat</name>", "", "object 1 has no name"),
        ("<xmin>", "<xmin>q", r"bndbox/xmin of object 1 \(cat\) is 'q0'"),
        ("<width>20", "<width>nan", "size/width of the image is 'nan'"),
        ("<annotation>", '<?xml version="1.0" encoding="nope"?><annotation>', "unknown encoding"),
    ],
)
def test_voc_error_names_the_wrong_entry(tmp_path: Path, old: str, new: str, message: str) -> None:
    annotation = write_voc(tmp_path) / "VOCdevkit" / "VOC2012" / "Annotations" / "2008_000001.xml"
    annotation.write_text(annotation.read_text().replace(old, new))
    with pytest.raises(InputError, match=rf"2008_000001\.xml: .*{message}"):
        voc.from_voc(tmp_path)


@pytest.mark.parametrize(
    ("part", "listed", "message"),
    [
        ("train", ["2008_000001", "2008_000001"], "the image '2008_000001' occurs twice"),
        ("val", ["2008_000001"], "the image '2008_000001' is also in the previous list"),
        ("train", [], "none of its images has an object"),
    ],
)
def test_voc_repeated_images_raise(tmp_path: Path, part: str, listed: list[str], message: str) -> None:
    root = write_voc(tmp_path) / "VOCdevkit" / "VOC2012"
    (root / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(listed))
    with pytest.raises(InputError, match=rf"{part}\.txt: {message}"):
        voc.from_voc(tmp_path)


def test_user_voc_annotations(tmp_path: Path) -> None:
    root = write_voc(tmp_path) / "VOCdevkit" / "VOC2012"
    annotation = root / "Annotations" / "2008_000001.xml"
    annotation.write_text(annotation.read_text().replace("cat", "unicorn"))
    dataset = voc.from_voc_annotations(root)
    assert known(dataset)["JPEGImages/2008_000001.jpg"] == ["unicorn"]
    assert known(dataset)["JPEGImages/2008_000003.jpg"] == ["person", "train"]
    assert known(dataset)["JPEGImages/2008_000009.jpg"] == []
    assert dataset.truth is None
    (root / "JPEGImages" / "2008_000003.jpg").unlink()
    with pytest.raises(InputError, match="2008_000003"):
        voc.from_voc_annotations(root)
    annotation.write_text(annotation.read_text().replace("2008_000001.jpg", "2008_000002.jpg"))
    with pytest.raises(
        InputError, match=r"000002\.xml: its image '2008_000002.jpg' is also the image of 2008_000001\.xml"
    ):
        voc.from_voc_annotations(root)


def test_single_positives_match_the_authors_code_on_real_labels() -> None:
    """The pack's single positives and split were made by the authors' code."""
    pack = np.load(shared_data("voc12", "labels.npz"), allow_pickle=False)
    classes, ids = pack["classes"].astype(str).tolist(), pack["image"].astype(str)
    assert classes == list(voc.CLASSES)
    truth = Truth(Labels.from_matrix(pack["labels"], classes, ids=ids, coding="full"))
    dataset = from_truth("voc12", FeatureStore(np.zeros((len(ids), 1))), truth, 5717)
    assert (dataset.labels.single() == pack["observed"]).all()
    assert (dataset.train == pack["train"]).all()
    assert (dataset.validation == pack["val"]).all()
    assert (dataset.test == pack["test"]).all()
    assert voc.PAPER.mismatches(dataset) == []


# MS-COCO


def test_coco(tmp_path: Path) -> None:
    dataset = coco.from_coco(write_coco(tmp_path))
    # ids as texts: "10" < "100" < "36" < "9"; image 25 has no annotation
    expected = {
        "train2014/COCO_train2014_000000000010.jpg": {"toothbrush"},
        "train2014/COCO_train2014_000000000100.jpg": {"car", "toothbrush"},
        "train2014/COCO_train2014_000000000036.jpg": {"person"},
        "train2014/COCO_train2014_000000000009.jpg": {"person", "car"},
        "val2014/COCO_val2014_000000000042.jpg": {"car"},
        "val2014/COCO_val2014_000000000007.jpg": {"person", "toothbrush"},
    }
    assert present(dataset) == expected
    assert list(present(dataset)) == list(expected)
    assert dataset.classes == ("person", "car", "toothbrush")
    assert dataset.truth is not None
    assert dataset.truth.open().is_full
    check_protocol(dataset, 4)
    assert "classes: 3 here, 80 in the papers" in "\n".join(coco.PAPER.mismatches(dataset))
    row = dataset.names.tolist().index("train2014/COCO_train2014_000000000036.jpg")
    with Image.open(tmp_path / "train2014" / "COCO_train2014_000000000036.jpg") as image:
        expected_pixels = np.asarray(image).transpose(2, 0, 1)
    assert (coco.from_coco(tmp_path, size=16).store.batch([row]).numpy()[0] == expected_pixels).all()


@pytest.mark.parametrize(
    ("missing", "archive"),
    [
        ("annotations/instances_val2014.json", "annotations_trainval2014.zip"),
        ("train2014/COCO_train2014_000000000036.jpg", "train2014.zip"),
    ],
)
def test_coco_error_names_the_missing_file(tmp_path: Path, missing: str, archive: str) -> None:
    (write_coco(tmp_path) / missing).unlink()
    with pytest.raises(InputError) as error:
        coco.from_coco(tmp_path)
    assert missing in str(error.value)
    assert archive in str(error.value)


def test_user_coco_json(tmp_path: Path) -> None:
    write_coco(tmp_path)
    file = tmp_path / "annotations" / "instances_train2014.json"
    dataset = coco.from_coco_json(file, image_root=tmp_path / "train2014")
    assert known(dataset)["COCO_train2014_000000000009.jpg"] == ["person", "car"]
    assert known(dataset)["COCO_train2014_000000000025.jpg"] == []
    assert len(dataset) == 5
    assert dataset.truth is None
    with pytest.raises(InputError, match="5 of 5 are missing"):
        coco.from_coco_json(file)
    (tmp_path / "train2014").rename(tmp_path / "annotations" / "images")
    assert len(coco.from_coco_json(file)) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not COCO json"),
        ("{", "not COCO json"),
        ('{"images": [], "annotations": []}', "'categories' is missing"),
        ('{"images": {}, "annotations": [], "categories": []}', "'images' is not a list"),
        (
            '{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "category_id": 5}], '
            '"categories": []}',
            r"annotations\[0\] refers to category 5, which is not listed",
        ),
        ('{"images": [], "annotations": [], "categories": [{"id": 1}]}', r"categories\[0\] has no 'name'"),
        ('{"images": ["a.jpg"], "annotations": [], "categories": []}', r"images\[0\] has no 'id'"),
        (
            '{"images": [{"id": [1], "file_name": "a"}], "annotations": [], "categories": []}',
            r"images\[0\] has no 'id'",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}], "annotations": [], '
            '"categories": []}',
            "the image id 1 occurs twice",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a"}, {"id": 2, "file_name": "a"}], "annotations": [], '
            '"categories": []}',
            "the image name 'a' occurs twice",
        ),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}',
            "the category name 'a' occurs twice",
        ),
        ('{"images": [], "annotations": [], "categories": []}', "no annotation"),
        (
            '{"images": [], "annotations": [{"image_id": 1, "category_id": 5}], "categories": [{"id":5, "name":"a"}]}',
            "refers to image 1, which is not listed",
        ),
    ],
)
def test_invalid_coco_json_raises(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "own.json").write_text(content)
    with pytest.raises(InputError, match=f"own.json: .*{message}"):
        coco.from_coco_json(tmp_path / "own.json")


# NUS-WIDE


def test_nuswide_official_split(tmp_path: Path) -> None:
    dataset = nuswide.from_nuswide(write_nuswide(tmp_path), split="official")
    assert dataset.classes == ("airport", "sky", "zebra")
    found = present(dataset)
    assert found["actor/0001_Train.jpg"] == {"sky", "zebra"}
    assert found["actor/0003_Train.jpg"] == set()  # kept
    assert found["actor/0002_Test.jpg"] == {"zebra"}
    assert len(dataset) == 10
    check_protocol(dataset, 6)
    assert "training images: 6 here, 161789 in the official lists" in nuswide.check_counts(dataset)
    assert len(dataset.store.batch(np.arange(10))) == 10


def test_nuswide_merged_split(tmp_path: Path) -> None:
    write_nuswide(tmp_path)
    official = nuswide.from_nuswide(tmp_path, split="official")
    dataset = nuswide.from_nuswide(tmp_path, train_images=7)
    assert len(dataset.test) == 3
    assert present(dataset) == present(official)
    check_protocol(dataset, 7)
    assert dataset.names.tolist() == nuswide.from_nuswide(tmp_path, train_images=7).names.tolist()
    assert "training images: 6 here, 120000 in the papers" in "\n".join(nuswide.check_counts(dataset))
    with pytest.raises(InputError, match="train_images is 0: it must be above 0"):
        nuswide.from_nuswide(tmp_path, train_images=0)
    with pytest.raises(InputError, match="train_images is 150000"):
        nuswide.from_nuswide(tmp_path)


def test_nuswide_missing_images_and_odd_lines(tmp_path: Path) -> None:
    write_nuswide(tmp_path)
    (tmp_path / "Flickr" / "actor" / "0004_Train.jpg").unlink()
    with pytest.raises(InputError, match=r"0004_Train\.jpg.*1 of 10 are missing"):
        nuswide.from_nuswide(tmp_path, split="official")
    dataset = nuswide.from_nuswide(tmp_path, split="official", missing_images="drop")
    assert len(dataset) == 9
    check_protocol(dataset, 5)
    assert "1 of 10 images are missing" in dataset.notes[0]
    sky = tmp_path / "Groundtruth" / "TrainTestLabels" / "Labels_sky_Train.txt"
    sky.write_text("0\n-1130179\n0\n0\n1\n0\n")
    odd = nuswide.from_nuswide(tmp_path, split="official", missing_images="drop")
    assert odd.truth is not None
    assert odd.truth.open().dense()[1].tolist() == [-1, 0, 1]
    assert any("Labels_sky_Train.txt, line 2" in note for note in odd.notes)
    sky.write_text("0\n1\n")
    with pytest.raises(InputError, match="it has 2 lines, the list of images has 6"):
        nuswide.from_nuswide(tmp_path, split="official")
    sky.unlink()
    (tmp_path / "Concepts81.txt").write_text("airport\nsky\nsky\n")
    with pytest.raises(InputError, match=r"Concepts81\.txt: the concept 'sky' occurs twice"):
        nuswide.from_nuswide(tmp_path)
    (tmp_path / "Concepts81.txt").write_text("airport\nsky\nzebra\n")
    with pytest.raises(InputError, match=r"Labels_sky_Train\.txt.*Groundtruth\.zip"):
        nuswide.from_nuswide(tmp_path, split="official")
    with pytest.raises(InputError, match="Labels_airport_Train"):
        nuswide.from_nuswide(tmp_path / "absent")


# CUB


def test_cub(tmp_path: Path) -> None:
    dataset = cub.from_cub(write_cub(tmp_path))
    expected = [f"00{row % 2 + 1}.Bird/Bird_{row}.jpg" for row in (0, 1, 3, 4, 5, 6, 2, 7)]
    assert dataset.names.tolist() == expected
    assert dataset.classes[0] == "has_bill_shape::curved_(up_or_down)"
    assert dataset.truth is not None
    full = dataset.truth.open()
    assert full.is_full
    for place, row in enumerate((0, 1, 3, 4, 5, 6, 2, 7)):
        assert full.dense()[place].tolist() == [1 if (row + a) % 2 == 0 else -1 for a in range(3)]
    check_protocol(dataset, 6)
    assert "classes: 3 here, 312 in the papers" in "\n".join(dataset.notes)
    inside = cub.from_cub(tmp_path / "CUB_200_2011")
    assert inside.labels.fingerprint() == dataset.labels.fingerprint()


def test_cub_certainty(tmp_path: Path) -> None:
    truth = cub.from_cub(write_cub(tmp_path), certainty=3).truth
    assert truth is not None
    dense = truth.open().dense()
    assert dense[0].tolist() == [0, 0, 1]  # certainties 1, 2, 3
    assert dense[1].tolist() == [0, 1, -1]  # certainties 2, 3, 4
    with pytest.raises(InputError, match="certainty is 5"):
        cub.from_cub(tmp_path, certainty=5)


@pytest.mark.parametrize(
    "missing",
    [
        "attributes.txt",
        "CUB_200_2011/images.txt",
        "CUB_200_2011/train_test_split.txt",
        "CUB_200_2011/attributes/image_attribute_labels.txt",
        "CUB_200_2011/images/001.Bird/Bird_4.jpg",
    ],
)
def test_cub_error_names_the_missing_file(tmp_path: Path, missing: str) -> None:
    (write_cub(tmp_path) / missing).unlink()
    with pytest.raises(InputError) as error:
        cub.from_cub(tmp_path)
    assert missing in str(error.value)
    assert "CUB_200_2011.tgz" in str(error.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("attributes/image_attribute_labels.txt", "1 1 0\n", "a line cannot be read"),
        ("attributes/image_attribute_labels.txt", "1 1 0 1 2\n1 9 0 1 2\n", r"line 2 is \[1, 9, 0, 1\]"),
        ("images.txt", "1 a.jpg\n3 b.jpg\n", "line 2 is '3 b.jpg'"),
        ("train_test_split.txt", "1 0\n", "it has 1 lines, images.txt 8"),
        ("train_test_split.txt", "".join(f"{row} 0\n" for row in range(1, 9)), "no training images"),
        ("train_test_split.txt", "".join(f"{row} x\n" for row in range(1, 9)), "line 1 contains 'x'"),
        ("images.txt", "".join(f"{row} a.jpg\n" for row in range(1, 9)), "the image 'a.jpg' occurs twice"),
    ],
)
def test_cub_invalid_lines_raise(tmp_path: Path, file: str, text: str, message: str) -> None:
    (write_cub(tmp_path) / "CUB_200_2011" / file).write_text(text)
    with pytest.raises(InputError, match=message):
        cub.from_cub(tmp_path)
