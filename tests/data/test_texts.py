"""Texts: the store, tables and folders of texts, and packs of them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from spml.data import FeatureStore, TextStore, open_data, write_pack
from spml.errors import InputError

TICKETS = [
    ("The invoice shows the wrong amount, please send a new one.", "billing"),
    ("Cannot log in since this morning; the page says: wrong password.", "account"),
    ("My parcel arrived, but one item is broken.", "delivery"),
    ("Where is my order? The parcel should be here by now.", "delivery"),
]


def write_csv(path, rows, header="text,topic"):
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def test_store_returns_texts_of_rows():
    store = TextStore(["one", "", None, "four"])
    assert store.texts([3, 0]) == ["four", "one"]
    assert store.texts() == ["one", "", "", "four"]
    assert store.empty_rows.tolist() == [1, 2]
    assert store.notes() == ["2 of 4 texts are empty, for example row 2."]


def test_fingerprint_covers_every_character_and_the_boundaries_of_rows():
    before = TextStore(["ab", "c"]).fingerprint()
    assert TextStore(["ab", "c"]).fingerprint() == before
    assert len({before, *(TextStore(texts).fingerprint() for texts in (["a", "bc"], ["abc"], ["ab", "C"]))}) == 4


@pytest.mark.parametrize(("texts", "problem"), [([], "no rows"), ([" ", ""], "all 2 texts are empty"), ([1], "int")])
def test_invalid_texts_raise(texts, problem):
    with pytest.raises(InputError, match=problem):
        TextStore(texts)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_table_of_texts(tmp_path, suffix, named):
    path = tmp_path / f"tickets.{suffix}"
    if suffix == "parquet":
        columns = {name: [row[place] for row in TICKETS] for place, name in enumerate(("text", "topic"))}
        pa.parquet.write_table(pa.table(columns), path)
    else:
        write_csv(path, TICKETS)
        if suffix == "tsv":
            path.write_text("text\ttopic\n" + "".join(f"{text}\t{topic}\n" for text, topic in TICKETS))
    data = open_data(path, **({"text_column": "text", "label_column": "topic"} if named else {}))
    assert isinstance(data.store, TextStore)
    assert data.store.texts() == [text for text, _ in TICKETS]
    assert data.labels.single().tolist() == [1, 0, 2, 2]
    assert data.classes == ("account", "billing", "delivery")
    assert data.notes[0] == f"columns of tickets.{suffix}: texts from 'text', labels from 'topic'."


def test_longest_column_is_the_text_where_no_name_is_usual(tmp_path):
    rows = [(f"T{place}", text, topic) for place, (text, topic) in enumerate(TICKETS)]
    data = open_data(write_csv(tmp_path / "t.csv", rows, "customer,complaint,label"))
    assert data.store.texts([0]) == [TICKETS[0][0]]
    assert "texts from 'complaint'" in data.notes[0]


def test_class_columns_beside_a_text(tmp_path):
    rows = [(text, int(topic == "billing"), int(topic == "delivery")) for text, topic in TICKETS]
    data = open_data(write_csv(tmp_path / "t.csv", rows, "text,billing,delivery"))
    assert isinstance(data.store, TextStore)
    assert data.labels.dense().tolist() == [[1, 0], [0, 0], [0, 1], [0, 1]]


def test_numbers_are_preferred_and_the_unused_text_is_reported(tmp_path):
    rows = [(text, topic, place, 1.5) for place, (text, topic) in enumerate(TICKETS)]
    path = write_csv(tmp_path / "t.csv", rows, "text,topic,size,weight")
    data = open_data(path)
    assert isinstance(data.store, FeatureStore)
    assert data.store.columns == ("size", "weight")
    assert "column 'text' is not used: to train on texts in place of numbers, set text_column." in data.notes
    assert isinstance(open_data(path, text_column="text").store, TextStore)


def test_text_of_digits_stays_text(tmp_path):
    data = open_data(write_csv(tmp_path / "t.csv", [("0042", "a"), ("7", "b")], "text,label"))
    assert data.store.texts() == ["0042", "7"]


def test_boolean_columns_are_features(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("open,size,label\ntrue,1,a\nfalse,2,b\n")
    data = open_data(path)
    assert data.store.columns == ("open", "size")
    assert data.store.batch([0, 1]).tolist() == [[1, 1], [0, 2]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"text_column": "txt"}, r"no column 'txt' \(did you mean 'text'\?\)"),
        ({"text_column": "text", "image_column": "topic"}, "image_column and text_column are both given"),
        ({"text_column": "number", "label_column": "topic"}, "column 'number' holds double, not texts"),
    ],
)
def test_wrong_columns_raise(tmp_path, options, problem):
    table = pa.table({"text": ["a", "b"], "topic": ["x", "y"], "number": [1.0, 2.0]})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=problem):
        open_data(tmp_path / "t.parquet", **options)


def test_all_texts_empty_raises_with_file_and_column(tmp_path):
    path = write_csv(tmp_path / "t.csv", [("", "a"), (" ", "b")], "text,label")
    with pytest.raises(InputError, match=r"t\.csv, column 'text': all 2 texts are empty"):
        open_data(path)


def test_folder_per_class_of_texts(tmp_path):
    for topic, name, text in (("billing", "1.txt", "pay"), ("delivery", "2.txt", "parcel"), ("billing", "3.txt", "")):
        (tmp_path / topic).mkdir(exist_ok=True)
        (tmp_path / topic / name).write_text(text)
    (tmp_path / "delivery" / "4.txt").write_text("pay")  # the same text in two classes
    data = open_data(tmp_path)
    assert data.source["kind"] == "texts"
    assert dict(zip(data.names.tolist(), data.store.texts(), strict=True)) == {
        "billing/1.txt": "pay",
        "billing/3.txt": "",
        "delivery/2.txt": "parcel",
    }
    assert data.labels.dense().tolist() == [[1, 1], [1, 0], [0, 1]]
    assert any("1 texts are in more than one class folder" in note for note in data.notes)
    assert any("1 of 3 texts are empty" in note for note in data.notes)


def test_text_files_must_be_utf8(tmp_path):
    for topic in "ab":
        (tmp_path / topic).mkdir()
        (tmp_path / topic / "1.txt").write_bytes(f"{topic} naïve".encode("latin-1"))
    with pytest.raises(InputError, match=r"1\.txt: the text is not UTF-8 \(byte 4\): save it as UTF-8"):
        open_data(tmp_path)


def test_images_with_captions_stay_a_folder_of_images(tmp_path):
    for topic in "ab":
        (tmp_path / topic).mkdir()
        (tmp_path / topic / "1.txt").write_text("caption")
        (tmp_path / topic / "1.png").write_bytes(b"")
    assert open_data(tmp_path, validation_share=0.0).source["kind"] == "folder"


def test_pack_of_texts(tmp_path):
    rows = [(f"{text} {number}", f"{topic}|urgent") for number in range(5) for text, topic in TICKETS]
    table = write_csv(tmp_path / "t.csv", rows, "text,labels")
    data = write_pack(table, table, tmp_path / "pack", seed=3)
    assert isinstance(data.store, TextStore)
    assert data.store.texts() == [text for text, _ in rows]
    assert data.classes == ("account", "billing", "delivery", "urgent")
    assert data.full_labels(data.test).is_full
    assert (tmp_path / "pack" / "texts.jsonl").read_text().count("\n") == len(rows)


def test_pack_of_texts_and_a_second_table_of_labels(tmp_path):
    texts = write_csv(tmp_path / "texts.csv", [(text,) for text, _ in TICKETS * 5], "abstract")
    labels = tmp_path / "labels.csv"
    labels.write_text("bill,other\n" + "1,0\n0,1\n1,1\n0,1\n" * 5)
    assert write_pack(texts, labels, tmp_path / "pack").store.texts([0]) == [TICKETS[0][0]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [("1\n", "line 1 is not a JSON string"), ("nonsense\n", "cannot be read"), ('"one"\n', "it has 1 texts")],
)
def test_damaged_pack_of_texts_raises(tmp_path, content, problem):
    table = write_csv(tmp_path / "t.csv", [(text, topic) for text, topic in TICKETS * 5], "text,labels")
    write_pack(table, table, tmp_path / "pack")
    (tmp_path / "pack" / "texts.jsonl").write_text(content)
    with pytest.raises(InputError, match=problem):
        open_data(tmp_path / "pack")


def test_texts_of_a_pack_keep_line_breaks_and_quotes(tmp_path):
    texts = ['a "quoted"\nline', "é\u2028x", "tab\there", "plain"] * 5
    pa.parquet.write_table(pa.table({"text": texts, "labels": ["a", "b", "a|b", "b"] * 5}), tmp_path / "t.parquet")
    data = write_pack(tmp_path / "t.parquet", tmp_path / "t.parquet", tmp_path / "pack")
    assert data.store.texts() == texts
    lines = (tmp_path / "pack" / "texts.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == texts
    assert np.array_equal(data.train, open_data(tmp_path / "pack").train)
