"""Tables and matrices that could be misread: each is one sentence, or a note says how it was read."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse

from spml.data.detect import open_data
from spml.data.formats import columns
from spml.data.formats.pack import write_pack
from spml.data.stores.texts import TextStore
from spml.errors import InputError

CLASSES = ("ant", "bee", "cow")
ROWS = 9


def csv(lines: list[str], name: str = "t.csv") -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        (root / name).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        return root / name

    return write


def features(cell: Callable[[int], str], header: str = "f0,f1,label") -> Callable[[Path], Path]:
    """A table whose first column is written by `cell`."""
    return csv([header, *(f"{cell(row)},{row % 2}.5,{CLASSES[row % 3]}" for row in range(ROWS))])


def labels(names: tuple[str, ...]) -> Callable[[Path], Path]:
    return csv(["f0,label", *(f"{row}.5,{names[row % len(names)]}" for row in range(ROWS))])


def table(**columns: Any) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        parquet.write_table(pa.table(columns), root / "t.parquet")
        return root / "t.parquet"

    return write


def matrix(values: Any, names: list[str] | None = None, file: Any = None) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        np.save(root / "x.npy", values)
        if file is not None:
            np.save(root / "labels.npy", file)
        else:
            (root / "labels.csv").write_text("\n".join(names or ["label", *(CLASSES[row % 3] for row in range(ROWS))]))
        return root / "x.npy"

    return write


def parts(*names: str, **changes: Any) -> Callable[[Path], Path]:
    """A table in several parquet files; of a tuple, each file gets the next column."""

    def write(root: Path) -> Path:
        for place, name in enumerate(names):
            chosen = {key: value[place] if isinstance(value, tuple) else value for key, value in changes.items()}
            content = {"f0": NUMBERS, "label": ["a", "b", "a"]} | chosen
            cells = {key: value for key, value in content.items() if value is not None}
            parquet.write_table(pa.table(cells), root / f"{name}.parquet")
        return root

    return write


TEXT = "a text of some words"
VALUES = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
SPARSE = sparse.csr_matrix(np.maximum(VALUES, 0))
NUMBERS = [1.0, 2.0, 3.0]


def stored_sparse(**changes: Any) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        sparse.save_npz(root / "x.npz", SPARSE)
        arrays = dict(np.load(root / "x.npz")) | changes
        np.savez(root / "x.npz", **{name: array for name, array in arrays.items() if array is not None})
        (root / "labels.csv").write_text("\n".join(["label", *(CLASSES[row % 3] for row in range(ROWS))]))
        return root / "x.npz"

    return write


ERRORS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "decimal commas": (
        csv(["f0;f1;label", *(f"{row},5;{row};{CLASSES[row % 3]}" for row in range(ROWS))]),
        "column 'f0' is '0,5', a number with a comma: use a decimal point",
    ),
    "thousands": (features(lambda row: f'"1,{row:03d}"'), "'1,000', a number with a comma"),
    "a typo in a number": (features(lambda row: "1.5x" if row == 4 else str(row)), "row 5 .*'1.5x', not a number like"),
    "a dash in a number": (features(lambda row: "-" if row == 4 else str(row)), "row 5 .*'-', not a number like"),
    "a letter O in a number": (features(lambda row: "1O" if row == 0 else f"{row}"), "row 1 .*'1O', not a number like"),
    "an empty number": (features(lambda row: "" if row == 4 else str(row)), "row 5 .*'f0' is empty"),
    "NaN": (features(lambda row: "nan" if row == 4 else str(row)), "row 5 .*'f0' is empty"),
    "infinite": (features(lambda row: "inf" if row == 4 else str(row)), "row 5 .*'f0' is inf"),
    "above float32": (features(lambda row: "1e300" if row == 4 else str(row)), r"t.csv: row 5 .*'f0' is inf"),
    "an unclosed quotation mark": (
        csv(["f0,label", "1,ant", '2,"bee', "3,ant", "4,bee"]),
        "line break: is a quotation mark missing",
    ),
    "a quotation mark over rows": (
        csv(["f0,label,x", "1,ant,1", '2,"bee,2', '3,ant",3', "4,bee,4", "5,ant,5"]),
        "line break: is a quotation mark missing",
    ),
    "a quotation mark in ids": (
        csv(["id,f0,label", "a,1,ant", '"b,2,bee', 'c",3,ant', "d,4,bee"]),
        "the id .* contains a line break",
    ),
    "NUL in a class": (labels(("ant", "ant\0", "bee")), "control character"),
    "escape in a class": (labels(("ant", "\x1b[31mant", "bee")), "control character"),
    "no header": (csv(["1,ant", "2,bee", "3,ant"]), "first line must contain the column names, but 'ant'"),
    "an empty id": (csv(["id,f0,label", "a,1,ant", ",2,bee", "c,3,ant"]), "row 2 .*'id' is empty"),
    "ids twice": (csv(["id,f0,label", "a,1,ant", "a,2,bee"]), "same id 'a'"),
    "a column twice": (csv(["f0,f0,label", "1,2,ant", "2,3,bee"]), "two columns are named 'f0'"),
    "a short row": (csv(["f0,label", "1,ant", "2", "3,bee"]), "has 1 cells"),
    "a long row": (csv(["f0,label", "1,ant", "2,bee,9"]), "has 3 cells"),
    "a misspelt split": (csv(["f0,label,split", "1,ant,train", "2,bee,trian"]), "'trian'"),
    "nothing to train on": (csv(["f0,label,split", "1,ant,test", "2,bee,test"]), "no training rows"),
    "no label": (csv(["f0,label", "1,", "2,"]), "no row has a label"),
    "no label in training": (csv(["f0,label,split", "1,,train", "2,ant,test"]), "no training row has a label"),
    "two separators": (csv(["f0,label", "1,ant;bee", "2,ant|bee"]), "separated by ';' and by '\\|'"),
    "an invisible class": (labels(("ant", "\u200b", "bee")), "has no visible character"),
    "a class column with a typing error": (
        csv(["text,ant,bee,cow", *(f"{TEXT},{row % 2},{2 * (row == 4)},{1 - row % 2}" for row in range(ROWS))]),
        "row 5 .*'bee' is 2, not 1, 0 or -1 like most",
    ),
    "a text without labels": (
        csv(["text,f0", *(f"{TEXT} {row},{row * row}.5" for row in range(ROWS))]),
        "looks like labels",
    ),
    "lists of structs as labels": (table(f0=NUMBERS, label=[[{"a": 1}]] * 3), "must be names"),
    "lists of lists as labels": (table(f0=NUMBERS, label=[[["a"]]] * 3), "must be names"),
    "lists of bytes as labels": (table(f0=NUMBERS, label=[[b"a"]] * 3), "must be names"),
    "lists of halves as labels": (table(f0=NUMBERS, label=[[0.5]] * 3), "numbers such as 0.5"),
    "categories of bytes as labels": (
        table(f0=NUMBERS, label=pa.array([b"a"] * 3).dictionary_encode()),
        "must be names",
    ),
    "images in images": (table(image=[{"bytes": {"bytes": b"x"}}] * 3, label=["a", "b", "a"]), "no image"),
    "bytes as text": (
        table(f0=NUMBERS, label=pa.array([b"\xff", b"a", b"b"]).view(pa.string())),
        "cannot be read .*UTF8",
    ),
    "a long path": (table(image=["x" * 5000] * 3, label=["a", "b", "a"]), "no image .* are missing"),
    "a part of a table missing": (
        parts("train-00000-of-00003", "train-00002-of-00003"),
        "00001-of-00003 .* is missing",
    ),
    "a part of a table alone": (parts("train-00000-of-00002"), "00001-of-00002 .* is missing"),
    "parts with a split": (
        parts("train-00000-of-00001", "test-00000-of-00001", split=["train"] * 3),
        "states the split",
    ),
    "parts of different types": (
        parts("train-00000-of-00001", "test-00000-of-00001", label=(["a", "b", "a"], [1, 2, 1])),
        "do not fit together",
    ),
    "parts with different columns": (
        parts("train-00000-of-00001", "test-00000-of-00001", x=([1.0, 2.0, 3.0], None)),
        "its columns differ",
    ),
    "half a label": (table(f0=NUMBERS, label=[0.5, 0.0, 1.0]), "numbers such as 0.5"),
    "labels above 2^53": (table(f0=NUMBERS, label=[2.0**60, 0.0, 1.0]), "above 2\\^53"),
    "dates as labels": (table(f0=NUMBERS, label=pa.array([1, 2, 3], pa.date32())), "must be names"),
    "structs as labels": (table(f0=NUMBERS, label=[{"a": 1}] * 3), "must be names"),
    "lists of different lengths": (table(f=[[1.0, 2.0], [1.0], [2.0, 3.0]], label=["a", "b", "a"]), "1 features"),
    "an empty list cell": (table(f=[[1.0, 2.0], None, [2.0, 3.0]], label=["a", "b", "a"]), "row 2 .*is empty"),
    "an empty number in a list": (table(f=[[1.0, None], [1.0, 2.0]], label=["a", "b"]), "is nan"),
    "a null id": (table(id=["a", None, "c"], f0=NUMBERS, label=["a", "b", "a"]), "row 2 .*'id' is empty"),
    "complex features": (matrix(VALUES.astype(complex)), "real numbers"),
    "features as text": (matrix(VALUES.astype(str)), "real numbers"),
    "features as dates": (matrix(VALUES.astype("i8").astype("M8[s]")), "real numbers"),
    "named features": (matrix(np.zeros(9, [("a", "f4")])), "real numbers"),
    "a number": (matrix(np.array(1.0)), "must be a matrix"),
    "a vector": (matrix(VALUES[:, 0]), "must be a matrix"),
    "a cube": (matrix(VALUES[:, :, None]), "must be a matrix"),
    "no rows": (matrix(VALUES[:0]), "no rows"),
    "no columns": (matrix(VALUES[:, :0]), "no features"),
    "all NaN": (matrix(VALUES * np.nan), "nan"),
    "half precision overflow": (matrix((VALUES * 1e3).astype(np.float64) * 1e36), "inf"),
    "one label less": (matrix(VALUES, ["label", *"abababab"]), "labels 8 rows"),
    "one label more": (matrix(VALUES, ["label", *"ababababab"]), "labels 10 rows"),
    "labels in another order": (
        matrix(VALUES, ["id,label", *(f"{ROWS - 1 - row},{CLASSES[row % 3]}" for row in range(ROWS))]),
        "row 2 .*is 7 after 8: labels must be in the order",
    ),
    **{
        f"labels in the order of {name!r}": (
            matrix(VALUES, [f"{name},label", *(f"{ROWS - row},{CLASSES[row % 3]}" for row in range(ROWS))]),
            f"row 2 .*{name!r} is 8 after 9: labels must be in the order",
        )
        for name in ("", "index", "row", "name", "file")
    },
    "a class of 10,001 characters": (labels(("ant", "x" * 10_001, "bee")), "10,001 characters"),
    "label -2": (matrix(VALUES, file=np.arange(ROWS) % 3 - 2), "-2"),
    "label matrix of 2": (matrix(VALUES, file=2 * np.eye(3, dtype=int)[np.arange(ROWS) % 3]), "value 2"),
    "label matrix transposed": (matrix(VALUES, file=np.eye(3, dtype=int)[np.arange(ROWS) % 3].T), "labels 3 rows"),
    "labels of three dimensions": (matrix(VALUES, file=np.zeros((ROWS, 3, 1))), "not of shape"),
    "a label alone": (matrix(VALUES, file=np.array(1)), "not of shape"),
    "fractional labels": (matrix(VALUES, file=np.arange(ROWS) / 2), "row 1 is 0.5, which is not a class number"),
    "complex labels": (matrix(VALUES, file=np.zeros(ROWS, complex)), "cannot be detected"),
    "no label in a matrix": (matrix(VALUES, file=np.full(ROWS, -1)), "no training row has a label"),
    "an id as a label": (
        matrix(VALUES, file=np.full(ROWS, 5_000_000)),
        "^[^(]*the label 5000000 is not a class number",
    ),
    "label above all": (matrix(VALUES, file=np.full(ROWS, 2**63, np.uint64)), "not a class number"),
    **{
        f"sparse {name}": (stored_sparse(**change), "sparse matrix|real numbers|whole numbers|shape|nan|memory")
        for name, change in {
            "index below 0": {"indices": SPARSE.indices - 1},
            "index too large": {"indices": SPARSE.indices + 2},
            "pointers that decrease": {"indptr": SPARSE.indptr[::-1].copy()},
            "pointers too few": {"indptr": SPARSE.indptr[:-1]},
            "pointers from 1": {"indptr": SPARSE.indptr + 1},
            "data too short": {"data": SPARSE.data[:-1]},
            "data NaN": {"data": SPARSE.data * np.nan},
            "data text": {"data": SPARSE.data.astype(str)},
            "data complex": {"data": SPARSE.data.astype(complex)},
            "data missing": {"data": None},
            "format missing": {"format": None},
            "format unknown": {"format": np.array("x")},
            "fractional indices": {"indices": SPARSE.indices * 1.0},
            "shape of one number": {"shape": np.array([9])},
            "shape below 0": {"shape": np.array([9, -3])},
            "shape fractional": {"shape": np.array([9.5, 3.5])},
            "a petabyte of columns": {"shape": np.array([9, 10**15])},
            "a petabyte of rows": {"shape": np.array([10**15, 3])},
        }.items()
    },
}


def read(path: Path) -> None:
    data = open_data(path)
    data.store.prepare()
    data.fingerprint()


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.timeout(60)
def test_what_could_be_misread_is_an_error(name: str, tmp_path: Path) -> None:
    write, message = ERRORS[name]
    path = write(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)


NOTES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "dates": (features(lambda row: f"2024-01-0{row + 1}", "when,f1,label"), "not used: 'when'"),
    "yes and no": (features(lambda row: ("no", "yes")[row % 2]), "not used: 'f0'"),
    "an empty column": (features(lambda row: ""), "not used: 'f0'"),
    "two columns of lists": (table(f=[[1.0], [2.0]], g=[[1.0], [3.0]], label=["a", "b"]), "not used: 'g'"),
    "a comma in a label": (labels(("ant", '"ant,eel"', "cow")), "3 labels of column 'label' contain a comma"),
    "quotation marks": (labels(("ant", "'ant'", "bee")), "differ only in spelling"),
    "numbers spelt differently": (labels(("1", "01", "bee")), "differ only in spelling"),
    "a second column of labels": (features(lambda row: str(row % 3), "class,f1,label"), "features look like .*'class'"),
    "row numbers": (features(lambda row: str(row + 7), "nr,f1,label"), "features look like .*row numbers: 'nr'"),
    "whole numbers above 2^24": (features(lambda row: str(2**24 + row * row)), "are rounded to seven digits: 'f0'"),
    "a class without training rows": (
        csv(["f0,label,split", "1,ant,train", "2,bee,test", "3,ant,train"]),
        "1 of 2 classes have no training row and cannot be learned: 'bee'",
    ),
    "an empty class column": (
        csv(["text,ant,bee,cow", *(f"{TEXT},{row % 2},,{1 - row % 2}" for row in range(ROWS))]),
        "not used: 'bee'",
    ),
    "two columns of labels": (csv(["f0,label,Labels", "1,ant,x", "2,bee,y"]), "not used: 'Labels'"),
    "a class that is no class": (
        labels(("ant", "NaN", "bee")),
        "classes named 'NaN': if they stand for missing labels",
    ),
    "case": (labels(("Ant", "ant", "bee")), "'Ant', 'ant' differ only in spelling"),
    "composed and decomposed accents": (labels(("caf\u00e9", "cafe\u0301", "bee")), "differ only in spelling"),
    "an invisible character": (labels(("ant", "ant\u200b", "bee")), "differ only in spelling"),
    "another blank": (labels(("an ant", "an\u00a0ant", "bee")), "differ only in spelling"),
    "a wide character": (labels(("ant", "\uff41nt", "bee")), "differ only in spelling"),
    "a class number that was -1": (
        matrix(VALUES, file=np.where(np.arange(ROWS), np.arange(ROWS) % 3, 255).astype(np.uint8)),
        "252 of 256 classes have no row",
    ),
    "two files of labels": (
        lambda root: (csv(["label", *"ababababa"], "labels.csv")(root), matrix(VALUES, file=np.arange(ROWS) % 2)(root))[
            1
        ],
        "not used: labels.csv",
    ),
}


@pytest.mark.parametrize("name", NOTES)
def test_what_may_surprise_is_noted(name: str, tmp_path: Path) -> None:
    write, message = NOTES[name]
    notes = open_data(write(tmp_path)).notes
    assert any(re.search(message, note) for note in notes), notes


@pytest.mark.parametrize("name", ["", " ", "Unnamed: 0", "Unnamed: 0.1", "__index_level_1__", "index"])
@pytest.mark.parametrize("content", ["f0", "text"])
def test_row_numbers_of_other_programs_are_no_features(name: str, content: str, tmp_path: Path) -> None:
    cells = [f"{row}.5" if content == "f0" else f"{TEXT} {row}" for row in range(ROWS)]
    lines = [f"{name},{content},label", *(f"{row},{cells[row]},{CLASSES[row % 3]}" for row in range(ROWS))]
    data = open_data(csv(lines)(tmp_path))
    assert isinstance(data.store, TextStore) if content == "text" else data.tensor_store.columns == ("f0",), data.notes
    assert any(f"not used: {name!r}" in note for note in data.notes)


def test_an_empty_line_in_a_table_of_one_column_is_an_empty_cell(tmp_path: Path) -> None:
    data = open_data(matrix(VALUES[:4], ["label", "ant", "", "bee", "ant", "", ""])(tmp_path))
    assert data.labels.dense().tolist() == [[1, 0], [0, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_commas_in_a_header_are_no_delimiters(name: str, tmp_path: Path) -> None:
    header = "width, in m, rounded\tlabel" if name == "t.tsv" else '"width, in m, rounded"\tlabel'
    data = open_data(csv([header, "1\tant", "2\tbee"], name)(tmp_path))
    assert data.tensor_store.columns == ("width, in m, rounded",)


@pytest.mark.parametrize("kind", [pa.float16(), pa.decimal128(20, 0), pa.float64()])
def test_class_columns_of_any_numbers(kind: pa.DataType, tmp_path: Path) -> None:
    cells = [0.0, 1.0, 1.0] if kind == pa.float64() else [0, 1, 1]
    columns = {
        name: pa.array(np.array(cells, np.float16) if kind == pa.float16() else cells).cast(kind) for name in "ab"
    }
    if kind == pa.float64():
        columns["a"] = pa.array([float("nan"), 1.0, 1.0])
    assert open_data(table(text=[TEXT] * 3, **columns)(tmp_path)).classes == ("a", "b")


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a column as a number": ({"label_column": 3}, "label_column must be a string"),
    "a separator as a number": ({"separator": 3}, "separator must be a string"),
    "a share as text": ({"validation_share": "x"}, "validation_share must be a number"),
    "columns as text": ({"class_columns": "ab"}, "class_columns is the string 'ab'"),
    "one column for two purposes": (
        {"label_column": "f0", "id_column": "f0"},
        "given as label_column and as id_column",
    ),
    "a label as a feature": ({"label_column": "f0", "feature_columns": ["f0"]}, "label_column and as feature_columns"),
    "a feature twice": ({"feature_columns": ["f0", "f0"]}, "twice in feature_columns"),
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_wrong_options_are_errors(name: str, tmp_path: Path) -> None:
    options, message = WRONG_OPTIONS[name]
    with pytest.raises(InputError, match=message):
        open_data(labels(CLASSES)(tmp_path), **options)


@pytest.mark.parametrize("path", ["", None, 3, b"t.csv", "x" * 5000, "a\0b"])
def test_paths_that_are_none_are_errors(path: Any) -> None:
    with pytest.raises(InputError, match=r"give a file or a folder|no such file"):
        open_data(path)


def test_classes_do_not_rename_class_columns(tmp_path: Path) -> None:
    path = matrix(VALUES, ["a,b", *(f"{row % 2},{1 - row % 2}" for row in range(ROWS))])(tmp_path)
    assert open_data(path, classes=["a", "b"]).classes == ("a", "b")
    with pytest.raises(InputError, match="classes differ from the names of the class columns"):
        open_data(path, classes=["b", "a"])


def test_decimals_are_features(tmp_path: Path) -> None:
    data = open_data(table(f0=[Decimal("1.5"), Decimal("2.25")], f1=[1.0, 2.0], label=["a", "b"])(tmp_path))
    np.testing.assert_array_equal(data.tensor_store.batch(np.arange(2)).numpy(), [[1.5, 1.0], [2.25, 2.0]])


def test_an_empty_label_in_a_list_is_no_class(tmp_path: Path) -> None:
    data = open_data(table(f0=NUMBERS, label=[["a", None], ["b"], []])(tmp_path))
    assert data.classes == ("a", "b")


def test_the_time_for_wide_tables_is_not_quadratic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches, search = [], columns.usual_column
    monkeypatch.setattr(columns, "usual_column", lambda kind, names: searches.append(kind) or search(kind, names))
    many = {f"f{column}": [1.0, 2.0] for column in range(200)}
    assert open_data(table(**many, label=["a", "b"])(tmp_path)).tensor_store.dim == 200
    assert len(searches) < 50


def test_a_table_of_labels_may_have_a_split(tmp_path: Path) -> None:
    lines = ["label,split", *(f"{CLASSES[row % 3]},{'test' if row < 3 else 'train'}" for row in range(ROWS))]
    data = open_data(matrix(VALUES, lines)(tmp_path))
    assert data.test.tolist() == [0, 1, 2]
    assert data.train.tolist() == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("ids", [[2, 1, 0], ["b", "a", "c"]])
def test_a_pack_of_two_tables_that_differ_is_an_error(ids: list[Any], tmp_path: Path) -> None:
    texts = [f"{name}, a text of some words about {name}" for name in CLASSES]
    inputs = table(id=[0, 1, 2] if ids[0] == 2 else ["a", "b", "c"], text=texts)(tmp_path)
    parquet.write_table(pa.table({"id": ids, "label": CLASSES}), tmp_path / "labels.parquet")
    with pytest.raises(InputError, match="both tables must have the same rows"):
        write_pack(inputs, tmp_path / "labels.parquet", tmp_path / "pack")
    np.save(tmp_path / "x.npy", VALUES[:3])
    if ids[0] == 2:
        with pytest.raises(InputError, match="must be in the order of the features"):
            write_pack(tmp_path / "x.npy", tmp_path / "labels.parquet", tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize("option", ["text_column", "image_column"])
def test_an_option_of_a_pack_that_does_not_apply_is_an_error(option: str, tmp_path: Path) -> None:
    labels = table(label=list(CLASSES))(tmp_path)
    np.save(tmp_path / "x.npy", VALUES[:3])
    with pytest.raises(InputError, match=f"{option} applies to a table of images or texts"):
        write_pack(tmp_path / "x.npy", labels, tmp_path / "pack", **{option: "label"})


def test_an_option_is_checked_even_where_it_has_no_effect(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="zeros is 'x'"):
        open_data(labels(CLASSES)(tmp_path), zeros="x")
