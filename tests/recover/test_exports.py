"""Exported files, read back by other programs."""

import csv
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from spml.errors import InputError
from spml.recover import Recovered, export, label_studio_config, recover
from spml.recover.exports import FORMATS
from spml.runs.files import atomic_path
from support.recovery import CLASSES, World


def expected_lines(recovered: Recovered) -> list[tuple[str, str, bool, float]]:
    entries = recovered.entries
    return [
        (recovered.names[row], CLASSES[label], bool(observed), round(float(confidence), 6))
        for row, label, observed, confidence in zip(*entries[:4], strict=True)
    ]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_tables_can_be_read_back(recovered: Recovered, tmp_path: Path, suffix: str) -> None:
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    path = tmp_path / f"labels{suffix}"
    export(recovered, path)
    if suffix == ".parquet":
        table = parquet.read_table(path)
    else:
        table = arrow_csv.read_csv(path, parse_options=arrow_csv.ParseOptions(newlines_in_values=True))
        with path.open(newline="", encoding="utf-8") as file:  # and by another reader
            assert [(line["name"], line["label"]) for line in csv.DictReader(file)] == [
                line[:2] for line in expected_lines(recovered)
            ]
    numbers = ["confidence", "probability", "threshold", "rank"]
    assert table.column_names == ["name", "label", "observed", *numbers, "provenance"]
    columns = [table[name].to_pylist() for name in ("name", "label", "observed", "confidence")]
    assert list(zip(*columns, strict=True)) == expected_lines(recovered)
    np.testing.assert_array_equal(table["rank"].to_numpy(), recovered.entries.rank)
    np.testing.assert_allclose(table["threshold"].to_numpy(), recovered.entries.threshold, atol=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_pandas_has_the_columns_of_the_file(
    recovered: Recovered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    export(recovered, tmp_path / "labels.parquet")
    pandas.testing.assert_frame_equal(recovered.to_pandas(), pandas.read_parquet(tmp_path / "labels.parquet"))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="to_pandas needs the package pandas: pip install pandas"):
        recovered.to_pandas()


def read(recovered: Recovered, tmp_path: Path, name: str, **options: Any) -> Any:
    export(recovered, tmp_path / "labels.json", format=name, overwrite=True, **options)
    return json.loads((tmp_path / "labels.json").read_text(encoding="utf-8"))


def test_coco(recovered: Recovered, tmp_path: Path) -> None:
    content = read(recovered, tmp_path, "coco", prefix="images/")
    names = {image["id"]: image["file_name"] for image in content["images"]}
    classes = {category["id"]: category["name"] for category in content["categories"]}
    assert list(classes.values()) == list(CLASSES)
    assert len(names) == len(recovered.rows)
    assert [
        (names[note["image_id"]], classes[note["category_id"]], note["observed"], note["score"])
        for note in content["annotations"]
    ] == [("images/" + name, *rest) for name, *rest in expected_lines(recovered)]
    assert len({note["id"] for note in content["annotations"]}) == len(content["annotations"])


def test_coco_is_readable_by_pycocotools(recovered: Recovered, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    read(recovered, tmp_path, "coco")
    loaded = coco.COCO(str(tmp_path / "labels.json"))
    (category,) = loaded.getCatIds(catNms=[CLASSES[4]])
    assert len(loaded.getAnnIds(catIds=[category])) == (recovered.entries.label == 4).sum()


def test_label_studio(recovered: Recovered, tmp_path: Path) -> None:
    tasks = read(recovered, tmp_path, "label-studio", prefix="/data/local-files/?d=")
    assert len(tasks) == len(recovered.rows)
    lines = iter(expected_lines(recovered))
    for task in tasks:
        (prediction,) = task["predictions"]
        (result,) = prediction["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == ("labels", "image", "choices")
        for choice in result["value"]["choices"]:
            name, label, observed, confidence = next(lines)
            assert (task["data"]["image"], task["data"]["name"]) == (f"/data/local-files/?d={quote(name)}", name)
            assert (choice, choice in task["data"]["observed"]) == (label, observed)
            assert task["data"]["confidence"][label] == confidence
        assert prediction["score"] == min(task["data"]["confidence"].values())
    assert next(lines, None) is None


def test_label_studio_shows_texts(recovered: Recovered, tmp_path: Path) -> None:
    tasks = read(recovered, tmp_path, "label-studio", texts=[f"text of {name}" for name in recovered.names])
    for task in tasks:
        assert task["data"]["text"] == f"text of {task['data']['name']}"
        assert {result["to_name"] for result in task["predictions"][0]["result"]} <= {"text"}


def test_the_label_studio_configuration_lists_the_classes() -> None:
    from xml.etree import ElementTree

    root = ElementTree.fromstring(label_studio_config(CLASSES))
    assert [choices.get("name") for choices in root.iter("Choices")] == ["labels", "absent"]
    for choices in root.iter("Choices"):
        assert (choices.get("toName"), choices.get("choice")) == ("image", "multiple")
        assert [choice.get("value") for choice in choices] == list(CLASSES)


def test_label_studio_accepts_the_tasks(recovered: Recovered, tmp_path: Path) -> None:
    interfaces = pytest.importorskip("label_studio_sdk.label_interface")
    interface = interfaces.LabelInterface(label_studio_config(CLASSES))
    for task in read(recovered, tmp_path, "label-studio")[:20]:
        assert interface.validate_task({"data": task["data"]})
        (prediction,) = task["predictions"]
        assert interface.validate_prediction(prediction)
        prediction["result"][0]["value"]["choices"].append("a class that is not there")
        assert not interface.validate_prediction(prediction)


def test_fiftyone(recovered: Recovered, tmp_path: Path) -> None:
    content = read(recovered, tmp_path, "fiftyone")
    assert content["media_type"] == "image"
    assert content["sample_fields"]["recovered"].endswith("(fiftyone.core.labels.Classifications)")
    found = [
        (sample["filepath"], label["label"], label["tags"] == ["observed"], label["confidence"])
        for sample in content["samples"]
        for label in sample["recovered"]["classifications"]
    ]
    assert found == expected_lines(recovered)


def test_fiftyone_reads_the_samples(recovered: Recovered, tmp_path: Path) -> None:
    fiftyone = pytest.importorskip("fiftyone")
    content = read(recovered, tmp_path, "fiftyone")
    samples = [fiftyone.Sample.from_dict(sample) for sample in content["samples"][:20]]
    lines = iter(expected_lines(recovered))
    for sample in samples:
        assert isinstance(sample["recovered"], fiftyone.Classifications)
        for label in sample["recovered"].classifications:
            assert (label.label, label.confidence) == (lambda line: (line[1], line[3]))(next(lines))
    try:  # the whole file, where its database can run
        dataset = fiftyone.Dataset.from_json(str(tmp_path / "labels.json"), rel_dir=str(tmp_path))
    except fiftyone.core.config.FiftyOneConfigError as error:
        pytest.skip(f"fiftyone has no database here: {error}")
    assert len(dataset) == len(recovered.rows)
    assert dataset.count("recovered.classifications") == len(recovered.entries.row)
    dataset.delete()


def test_rows_without_labels_are_exported_too(world: World, tmp_path: Path) -> None:
    found = recover(world.run(), rows="all", threshold=1.0)
    assert len(found.entries.row) < len(found.rows)
    assert len(read(found, tmp_path, "coco")["images"]) == len(found.rows)
    tasks = read(found, tmp_path, "label-studio")
    assert len(tasks) == len(found.rows)
    assert tasks[-1]["predictions"] == [{"model_version": "a run", "score": 0.0, "result": []}]
    assert len(read(found, tmp_path, "fiftyone")["samples"]) == len(found.rows)


def test_invalid_exports_raise(recovered: Recovered, tmp_path: Path) -> None:
    for name, format, sentence in (
        ("labels.json", None, "coco, label-studio, fiftyone; give the format"),
        ("labels.txt", None, "use the ending .csv or .parquet"),
        ("labels.csv", "excel", "unknown format 'excel'"),
        ("nowhere/labels.csv", None, "cannot be written: the folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            export(recovered, tmp_path / name, format=format)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=r"folder\.csv is a folder: give the path of a regular file"):
        export(recovered, tmp_path / "folder.csv", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_a_read_error_is_not_reported_as_a_write_error(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "out") as temporary:
            temporary.write_text("half")
            raise OSError("the input went away")

    with pytest.raises(OSError, match="the input went away"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_on_request(recovered: Recovered, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("mine")
    with pytest.raises(InputError, match=r"labels.csv already exists: pass overwrite=True"):
        export(recovered, path)
    assert path.read_text() == "mine"
    export(recovered, path, overwrite=True)
    assert path.read_text().startswith('"name"')


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failed_write_keeps_the_old_file(
    recovered: Recovered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    path = tmp_path / "labels.out"
    path.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync" if code == errno.ENOSPC else "replace", fail)
    with pytest.raises(InputError, match=f"labels.out cannot be written: {os.strerror(code).lower()}"):
        export(recovered, path, format=name, overwrite=True)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["labels.out"]
