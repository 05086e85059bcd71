"""Tables of images or features, and feature matrices."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spml.data.dataset import Dataset
from spml.data.detect import open_data
from spml.data.formats.table import from_features, from_table
from spml.data.stores import image_sources
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from support.pictures import known, picture


def csv(folder: Path, text: str, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for shade, name in enumerate("abcdé"):
        picture(tmp_path / "photos" / f"{name}.jpg", shade)
    return tmp_path


def test_columns_are_guessed_and_reported(photos: Path) -> None:
    path = csv(photos, "File Name,note,Tag\nphotos/a.jpg,x,cat\nphotos/é.jpg,,dog\nphotos\\b.jpg,y, dog \n")
    dataset = from_table(path, size=8)
    assert known(dataset) == {"photos/a.jpg": ["cat"], "photos/é.jpg": ["dog"], "photos/b.jpg": ["dog"]}
    assert dataset.notes[0] == "columns of data.csv: images from 'File Name', labels from 'Tag'."
    assert "blanks around 1 labels" in dataset.notes[1]
    assert dataset.store.batch([0]).shape == (1, 3, 8, 8)
    assert len(dataset.train) + len(dataset.validation) == 3


def test_columns_are_guessed_by_content(photos: Path) -> None:
    dataset = from_table(csv(photos, "x,kind,weight\nphotos/a.jpg,cat,2\nphotos/b.jpg,dog,3\n"))
    assert "images from 'x', labels from 'kind'" in dataset.notes[0]


def test_columns_and_image_root_can_be_given(photos: Path) -> None:
    path = csv(photos, "image,shown,label,kind\nno,a.jpg,no,007\nno,b.jpg,no,010\n")
    dataset = from_table(path, image_column="shown", label_column="kind", image_root=photos / "photos")
    assert known(dataset) == {"a.jpg": ["007"], "b.jpg": ["010"]}


@pytest.mark.parametrize(
    ("cells", "separator", "expected"),
    [
        (["cat;dog", "dog", ""], None, [["cat", "dog"], ["dog"], []]),
        (["cat| dog", "dog", '"x,y"'], None, [["cat", "dog"], ["dog"], ["x,y"]]),
        (['"cat,dog"', '"dog,bird"', "cat"], None, [["cat", "dog"], ["dog", "bird"], ["cat"]]),
        (
            ['"Paris, France"', '"Lyon, France"', '"Nice, France"'],
            None,
            [["Paris, France"], ["Lyon, France"], ["Nice, France"]],
        ),
        (["cat;dog", "dog", "cat"], "", [["cat;dog"], ["dog"], ["cat"]]),
        (["cat+dog", "dog", "cat"], "+", [["cat", "dog"], ["dog"], ["cat"]]),
        (["3.0", "", "10.0"], None, [["3"], [], ["10"]]),
    ],
)
def test_several_labels_in_a_cell(
    photos: Path, cells: list[str], separator: str | None, expected: list[list[str]]
) -> None:
    rows = "".join(f"photos/{name}.jpg,{cell}\n" for name, cell in zip("abc", cells, strict=True))
    dataset = from_table(csv(photos, "path,label\n" + rows), separator=separator)
    assert [sorted(found) for found in known(dataset).values()] == [sorted(names) for names in expected]


def test_rows_of_the_same_image_are_merged(photos: Path) -> None:
    text = "path,label\nphotos/a.jpg,cat\nphotos/b.jpg,dog\n./photos/a.jpg,dog\nphotos/b.jpg,dog\n"
    dataset = from_table(csv(photos, text))
    assert known(dataset) == {"photos/a.jpg": ["cat", "dog"], "photos/b.jpg": ["dog"]}
    assert any(note.startswith("2 images occur in more than one row") for note in dataset.notes)


def test_split_column(photos: Path) -> None:
    text = "path,label,split\nphotos/a.jpg,x,train\nphotos/b.jpg,x,VAL\nphotos/c.jpg,y,test\n"
    dataset = from_table(csv(photos, text))
    assert [dataset.train.tolist(), dataset.validation.tolist(), dataset.test.tolist()] == [[0], [1], [2]]
    assert "the split from 'split'" in dataset.notes[0]


def test_notes_on_similar_and_rare_classes(photos: Path) -> None:
    dataset = from_table(
        csv(photos, "path,label\nphotos/a.jpg,Cat\nphotos/b.jpg,cat\nphotos/c.jpg,sea_lion\nphotos/d.jpg,\n")
    )
    notes = "\n".join(dataset.notes)
    assert dataset.classes == ("Cat", "cat", "sea_lion")
    assert "'Cat', 'cat' differ only in spelling" in notes
    assert "3 of 3 classes have only one row" in notes
    assert "1 of 4 rows have no label" in notes


def test_semicolons_tabs_and_byte_order_mark(photos: Path) -> None:
    for name, delimiter in (("a.csv", ";"), ("b.tsv", "\t")):
        text = f"\ufeffpath{delimiter}label\nphotos/a.jpg{delimiter}cat, large\n"
        assert known(from_table(csv(photos, text, name))) == {"photos/a.jpg": ["cat, large"]}


def test_parquet_with_lists(photos: Path) -> None:
    path = photos / "data.parquet"
    names = [f"photos/{name}.jpg" for name in "abc"]
    pq.write_table(pa.table({"image": names, "tags": [["x", "y"], [], ["y"]]}), path)
    assert known(from_table(path)) == {names[0]: ["x", "y"], names[1]: [], names[2]: ["y"]}
    pq.write_table(pa.table({"image": names, "tags": pa.array(["x", None, "y"]).dictionary_encode()}), path)
    assert known(from_table(path)) == {names[0]: ["x"], names[1]: [], names[2]: ["y"]}
    pq.write_table(pa.table({"image": names, "tags": [1, 2, None]}), path)
    assert known(from_table(path)) == {names[0]: ["1"], names[1]: ["2"], names[2]: []}


def test_a_column_of_zeros_and_ones_per_class(photos: Path) -> None:
    path = csv(photos, "image,cat,dog,bird\nphotos/a.jpg,1,0,-1\nphotos/b.jpg,0,1,\nphotos/c.jpg,0,0,1\n")
    dataset = from_table(path)
    assert dataset.classes == ("cat", "dog", "bird")
    assert dataset.labels.dense().tolist() == [[1, 0, -1], [0, 1, 0], [0, 0, 1]]
    assert "labels from 3 columns of 0 and 1, 'cat' to 'bird'" in dataset.notes[0]
    assert "set zeros to negative" in dataset.notes[1]
    verified = from_table(path, zeros="negative")
    assert verified.labels.dense().tolist() == [[1, -1, -1], [-1, 1, 0], [-1, -1, 1]]
    assert from_table(path, class_columns=["dog", "cat"]).labels.dense().tolist() == [[0, 1], [1, 0], [0, 0]]


def test_columns_of_truth_values(photos: Path) -> None:
    dataset = from_table(csv(photos, "image,x,y\nphotos/a.jpg,true,false\nphotos/b.jpg,false,true\n"))
    assert known(dataset) == {"photos/a.jpg": ["x"], "photos/b.jpg": ["y"]}


def test_zeros_and_ones_of_the_same_image_are_merged(photos: Path) -> None:
    text = "image,cat,dog,bird\nphotos/a.jpg,1,0,-1\nphotos/b.jpg,0,1,0\nphotos/a.jpg,0,1,0\n"
    assert from_table(csv(photos, text)).labels.dense().tolist() == [[1, 1, -1], [0, 1, 0]]
    with pytest.raises(InputError, match=r"'cat' is 1 and -1 for the same image 'photos/a\.jpg'"):
        from_table(csv(photos, text + "photos/a.jpg,-1,0,0\n"))


def test_zeros_and_ones_beside_features(tmp_path: Path) -> None:
    path = csv(tmp_path, "f0,f1,x,y\n1,0,1,0\n0,1,0,1\n")
    with pytest.raises(InputError, match="class_columns"):
        from_table(path)  # features may be 0 and 1, too
    dataset = from_table(path, class_columns=["x", "y"])
    assert features_of(dataset).tolist() == [[1, 0], [0, 1]]
    assert known(dataset) == {"0": ["x"], "1": ["y"]}
    assert known(from_table(path, feature_columns=["f0", "f1"])) == {"0": ["x"], "1": ["y"]}
    np.save(tmp_path / "f.npy", np.ones((2, 2)))
    labels = csv(tmp_path, "x,y,z\n1,0,0\n0,1,1\n", "labels.csv")
    assert known(from_features(tmp_path / "f.npy")) == {"0": ["x"], "1": ["y", "z"]}
    full = from_features(tmp_path / "f.npy", labels, zeros="negative")
    assert full.fully_labelled.all()
    assert full.full_labels([1]).dense().tolist() == [[-1, 1, 1]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("image,a,b\nphotos/a.jpg,1,0\n", {"zeros": "absent"}, "zeros is 'absent'"),
        ("image,a,b\nphotos/a.jpg,1,2\n", {"class_columns": ["a", "b"]}, r"row 1 .*column 'b' is 2, not 1, 0 or -1"),
        ("image,a,b\nphotos/a.jpg,1,no\n", {"class_columns": ["a", "b"]}, "column 'b' holds string, not 0 and 1"),
        ("image,a,b\nphotos/a.jpg,0,0\n", {}, "no row has a label"),
        (
            "image,a,b,note\nphotos/a.jpg,1,0,x\n",
            {},
            r"may be in column 'note' or in the columns of 0 and 1 \('a', 'b'",
        ),
        ("image,label,a\nphotos/a.jpg,x,1\n", {"label_column": "label", "class_columns": ["a"]}, "both given"),
        ("image,a\nphotos/a.jpg,1\n", {"class_columns": ["c"]}, "no column 'c'"),
    ],
)
def test_invalid_columns_of_zeros_and_ones_raise(
    photos: Path, text: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        from_table(csv(photos, text), **options)


def contents(photos: Path, names: str) -> list[bytes]:
    return [(photos / "photos" / f"{name}.jpg").read_bytes() for name in names]


def test_images_in_a_parquet_file(photos: Path) -> None:
    path = photos / "data.parquet"
    pq.write_table(pa.table({"picture": contents(photos, "abcd"), "label": list("xyxy")}), path, row_group_size=3)
    dataset = from_table(path, size=8)
    assert dataset.names.tolist() == ["0", "1", "2", "3"]
    assert "images from 'picture'" in dataset.notes[0]
    files = from_table(csv(photos, "path,label\n" + "".join(f"photos/{name}.jpg,x\n" for name in "abcd")), size=8)
    rows = [3, 0, 2, 1]
    assert (dataset.store.batch(rows) == files.store.batch(rows)).all()
    named = pa.table({"key": ["p", "q", "r", "s"], "image": contents(photos, "abcd"), "label": list("xyxy")})
    pq.write_table(named, path)
    assert from_table(path).names.tolist() == ["p", "q", "r", "s"]


@pytest.mark.parametrize("kept", ["memory", "file", "nowhere"])
def test_hugging_face_layout(photos: Path, kept: str) -> None:
    path = photos / "data.parquet"
    a, b, _ = contents(photos, "abc")
    cells = [{"bytes": a, "path": "one.jpg"}, {"bytes": b, "path": "two.jpg"}, {"bytes": None, "path": "photos/c.jpg"}]
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog", "fox"], "_type": "ClassLabel"}}
    table = pa.table({"image": cells, "label": [2, 0, -1]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=2)
    options = {"memory": {}, "file": {"cache_path": photos / "cache"}, "nowhere": {"cache_limit": 0}}[kept]
    dataset = from_table(path, size=8, **options)
    assert dataset.classes == ("cat", "dog", "fox")
    assert known(dataset) == {"one.jpg": ["fox"], "two.jpg": ["cat"], "photos/c.jpg": []}
    expected = ImageStore([photos / "photos" / f"{name}.jpg" for name in "abc"], 8).batch([2, 0, 1])
    assert (dataset.store.batch([2, 0, 1]) == expected).all()


def test_lists_of_class_numbers_in_the_hugging_face_layout(photos: Path) -> None:
    path = photos / "data.parquet"
    table = pa.table({"image": contents(photos, "ab"), "tags": [[1, 0], [1]]})
    for feature in ({"feature": {"names": ["x", "y"], "_type": "ClassLabel"}, "_type": "Sequence"}, {"_type": "Value"}):
        metadata = {"huggingface": json.dumps({"info": {"features": {"tags": feature}}})}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        names = ["x", "y"] if feature["_type"] == "Sequence" else ["0", "1"]
        assert known(from_table(path)) == {"0": names, "1": names[1:]}
    few = {"feature": {"names": ["x"], "_type": "ClassLabel"}, "_type": "Sequence"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"tags": few}}})}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(InputError, match=r"row 1 .*the label 1: class numbers are 0 to 0"):
        from_table(path)


def test_folder_of_hugging_face_parquet_files(photos: Path) -> None:
    folder = photos / "data"
    folder.mkdir()
    files = {"train-00000-of-00002": "ab", "train-00001-of-00002-0a1b": "c", "test-00000-of-00001": "dé"}
    for name, shown in files.items():
        cells = [{"bytes": contents(photos, letter)[0], "path": f"{letter}.jpg"} for letter in shown]
        table = pa.table({"image": cells, "label": [0] * len(shown)})
        features = {"label": {"names": ["x"], "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        pq.write_table(table, folder / f"{name}.parquet")
    dataset = open_data(folder, size=8)
    assert dataset.names.tolist() == ["d.jpg", "é.jpg", "a.jpg", "b.jpg", "c.jpg"]
    assert dataset.classes == ("x",)
    assert dataset.test.tolist() == [0, 1]
    assert sorted([*dataset.train, *dataset.validation]) == [2, 3, 4]
    expected = ImageStore([photos / "photos" / name for name in dataset.names], 8).batch(range(5))
    assert (dataset.store.batch(range(5)) == expected).all()
    assert dataset.source["path"] == str(folder)
    pq.write_table(pa.table({"image": contents(photos, "a"), "label": ["x"]}), folder / "more.parquet")
    with pytest.raises(InputError, match="several tables"):
        open_data(folder)


def test_images_in_a_table_are_read_lazily_by_row_group(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = photos / "data.parquet"
    pq.write_table(pa.table({"image": contents(photos, "abcd") * 5, "label": list("xyxy") * 5}), path, row_group_size=4)
    read: list[int] = []
    read_group = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, group, **k: read.append(group) or read_group(self, group, **k)
    )
    store = from_table(path, size=8, cache_limit=0, workers=1).store
    assert read == []
    store.batch([8, 9, 11])
    assert read == [2]
    monkeypatch.setattr(image_sources, "_TABLE_MEMORY", 0)  # only one row group stays
    store.batch([0, 8])
    assert read == [2, 0, 2]


def test_bad_images_in_a_table(photos: Path) -> None:
    path = photos / "data.parquet"
    cells = [*contents(photos, "a"), b"no image", None, b""]
    pq.write_table(pa.table({"image": cells, "label": list("xyxy")}), path)
    for row, reason in ((1, "not an image of a known format"), (2, "'image' is empty"), (3, "'image' is empty")):
        with pytest.raises(InputError, match=rf"data\.parquet, row {row + 1}: .*{reason}"):
            from_table(path, cache_limit=0).store.batch([row])
    assert from_table(path, on_bad_image="skip").store.good_rows.tolist() == [0]
    store = from_table(path, on_bad_image="skip").store
    path.unlink()
    with pytest.raises(InputError, match="no such parquet file"):
        store.prepare()


def features_of(dataset: Dataset) -> Any:
    assert isinstance(dataset.store, FeatureStore)
    return dataset.store.batch(np.arange(len(dataset))).numpy()


@pytest.mark.parametrize(
    ("column", "cells", "hint"),
    [
        ("sample", ["s0", "s1", "s2"], "--id-column sample."),
        ("my name", ["s0", "s1", "s2"], "--id-column 'my name'."),
        ("plot", [104, 17, 230], "--id-column plot."),
        ("sample", ["s0", "s1", "s0"], None),
        ("sample", ["s0", "s1", ""], None),
        ("sample", ["s0", "s1", "a long description of a sample " * 2], None),
        ("number", [0, 1, 2], None),
        ("number", [7, 8, 9], None),
    ],
)
@pytest.mark.parametrize("content", ["features", "texts"])
def test_a_column_that_may_name_the_rows_is_noted(
    tmp_path: Path, column: str, cells: list[Any], hint: str | None, content: str
) -> None:
    more = {"f0": [0.5, 1.5, 2.5]} if content == "features" else {"text": ["a red one", "a blue one", "a red one"]}
    pq.write_table(pa.table({column: cells, **more, "label": ["x", "y", "x"]}), tmp_path / "data.parquet")
    notes = [note for note in from_table(tmp_path / "data.parquet").notes if "--id-column" in note]
    assert [note.partition("pass ")[2] for note in notes] == ([] if hint is None else [hint])
    chosen = from_table(tmp_path / "data.parquet", id_column=column) if hint else None
    assert chosen is None or chosen.names.tolist() == [str(cell) for cell in cells]
    assert chosen is None or not any("--id-column" in note for note in chosen.notes)


def test_measurements_are_not_taken_for_names(tmp_path: Path) -> None:
    numbers = {"height": [170, 182, 165], "weight": [70, 91, 58], "label": ["x", "y", "x"]}
    pq.write_table(pa.table(numbers), tmp_path / "data.parquet")
    assert not any("--id-column" in note for note in from_table(tmp_path / "data.parquet").notes)


def test_features_in_columns_or_in_lists(tmp_path: Path) -> None:
    path = csv(tmp_path, "Unnamed: 0,id,f0,f1,label\n0,a7,1,0.5,x\n1,a8,2,-1,y\n")
    dataset = from_table(path)
    assert features_of(dataset).tolist() == [[1, 0.5], [2, -1]]
    assert dataset.names.tolist() == ["a7", "a8"]
    assert dataset.notes[0] == "columns of data.csv: 2 features from 'f0' to 'f1', labels from 'label', ids from 'id'."
    assert features_of(from_table(path, feature_columns=["f1"])).tolist() == [[0.5], [-1]]
    listed = tmp_path / "data.parquet"
    pq.write_table(pa.table({"embedding": [[1.0, 2.0], [3.0, 4.0]], "count": [1, 2], "label": ["x", "y"]}), listed)
    assert features_of(from_table(listed)).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "cannot be read"),
        ("path,label\n", {}, "has no rows"),
        ("path,path\nphotos/a.jpg,x\n", {}, "two columns are named 'path'"),
        ("photos/a.jpg,cat\nphotos/b.jpg,dog\n", {}, "must contain the column names"),
        ("path,label\nphotos/a.jpg,x,y\n", {}, r"the row 'photos/a\.jpg,x,y' has 3 cells, the header 2"),
        ("path,label\nphotos/a.jpg,x\n", {"label_column": "lable"}, r"no column 'lable' \(did you mean 'label'\?\)"),
        ("path,a,b\nphotos/a.jpg,x,y\n", {}, "set label_column"),
        ("path,label\nphotos/a.jpg,x\nphotos/z.jpg,y\nphotos/y.jpg,y\n", {}, r"row 2 .*z\.jpg.*2 of 3 are missing"),
        ("path,label\nphotos/a.jpg,x\n,y\n", {}, "row 2 .*column 'path' is empty"),
        ("path,label\nphotos/a.jpg,0.25\nphotos/b.jpg,1\n", {}, "numbers such as 0.25"),
        ("path,label\nphotos/a.jpg,['x']\n", {}, "write several labels as"),
        ("path,label\nphotos/a.jpg,\n", {}, "no row has a label"),
        ("path,label,split\nphotos/a.jpg,x,dev\n", {}, "column 'split' is 'dev'"),
        ("path,label,split\nphotos/a.jpg,x,test\n", {}, "no training rows"),
        ("path,label,split\nphotos/a.jpg,x,train\nphotos/a.jpg,y,test\n", {}, "in two splits"),
        ("label,other\nx,y\n", {}, r"no column contains images .* or numbers"),
        ("f0,f1,label\n1,2,x\n3,,y\n", {}, "row 2 .*column 'f1' is empty"),
        ("f0,f1,label\n1,two,x\n", {"feature_columns": ["f1"]}, "column 'f1' holds string"),
        ("id,f0,label\na,1,x\na,2,y\n", {}, "data.csv: rows 0 and 1 have the same id 'a'"),
        ("path,f0,label\nphotos/a.jpg,1,x\n", {"image_column": "path", "feature_columns": ["f0"]}, "both given"),
    ],
)
def test_invalid_tables_raise(photos: Path, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_table(csv(photos, text), **options)


def test_invalid_files_raise(photos: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        from_table(photos / "absent.csv")
    latin = photos / "latin.csv"
    latin.write_bytes("path,label\nphotos/a.jpg,Zo\xeb\n".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        from_table(latin)
    broken = photos / "broken.parquet"
    broken.write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"broken\.parquet: the table cannot be read"):
        from_table(broken)
    odd = photos / "odd.parquet"
    pq.write_table(pa.table({"image": ["photos/a.jpg"], "label": [True]}), odd)
    with pytest.raises(InputError, match="holds bool"):
        from_table(odd)
    pq.write_table(pa.table({"embedding": [[1.0], [1.0, 2.0]], "label": ["x", "y"]}), odd)
    with pytest.raises(InputError, match=r"row 2 .* has 2 features"):
        from_table(odd)


def test_feature_matrix_with_class_numbers(tmp_path: Path) -> None:
    path = tmp_path / "f.npy"
    matrix = np.arange(12, dtype=np.float16).reshape(6, 2)
    np.save(path, matrix)
    np.save(tmp_path / "labels.npy", np.array([0, 2, 1, -1, 0, 2]))
    dataset = from_features(path)
    assert (features_of(dataset) == matrix).all()
    assert dataset.classes == ("0", "1", "2")
    assert dataset.labels.single().tolist() == [0, 2, 1, -1, 0, 2]
    assert dataset.notes[0] == "labels from labels.npy, next to the features."
    names = tmp_path / "classes.txt"
    names.write_text("red\ngreen\nblue\n")
    assert from_features(path, tmp_path / "labels.npy", classes=names).classes == ("red", "green", "blue")
    np.save(tmp_path / "matrix.npy", np.array([[1, 0], [0, 1], [1, 1], [-1, 0], [0, 0], [1, -1]]))
    known_matrix = from_features(path, tmp_path / "matrix.npy", classes=["a", "b"]).labels
    assert known_matrix.dense()[3].tolist() == [-1, 0]


def test_feature_matrix_with_a_table(tmp_path: Path) -> None:
    path = tmp_path / "f.npy"
    np.save(path, np.ones((3, 2)))
    dataset = from_features(path, csv(tmp_path, "tag\nx\ny;x\n\n".replace("\n\n", '\n""\n'), "tags.csv"))
    assert known(dataset) == {"0": ["x"], "1": ["x", "y"], "2": []}


def test_invalid_labels_of_a_feature_matrix_raise(tmp_path: Path) -> None:
    path = tmp_path / "f.npy"
    np.save(path, np.ones((3, 2)))
    with pytest.raises(InputError, match="no labels next to it"):
        from_features(path)
    np.save(tmp_path / "labels.npy", np.array([0, 1]))
    with pytest.raises(InputError, match=r"labels 2 rows, .* has 3"):
        from_features(path)
    np.save(tmp_path / "labels.npy", np.array([0, 1, 5]))
    with pytest.raises(InputError, match=r"labels\.npy: row 2: class index 5"):
        from_features(path, classes=["a", "b"])
    np.save(tmp_path / "labels.npy", np.array([{}], object))
    with pytest.raises(InputError, match=r"not a \.npy file of labels"):
        from_features(path)
