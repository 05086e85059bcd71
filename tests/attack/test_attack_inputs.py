"""What people give to a finished run: matched by name, or one sentence and no new file."""

import json
import os
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import spml as package
from support.attacks import FAULTS, ROWS, copy, feature_table, features_of, matrix, snapshot, write_csv
from support.command import run as run_command

Spml = Callable[..., tuple[int, str]]
NAMES = ("f0", "f1", "f2", "f3")


@pytest.fixture
def spml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spml:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda *arguments: run_command(*arguments, monkeypatch=monkeypatch, capsys=capsys)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the columns f0 to f3."""
    root = tmp_path_factory.mktemp("named")
    package.train(feature_table(root), out=root / "run", base="linear", progress=False, device="cpu")
    return root / "run"


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a matrix."""
    root = tmp_path_factory.mktemp("unnamed")
    package.train(matrix(root), out=root / "run", base="linear", progress=False, device="cpu")
    return root / "run"


def failing(spml: Spml, root: Path, *command: Any) -> str:
    """The sentence of a command that fails and changes nothing."""
    before = snapshot(root)
    code, text = spml(*command)
    assert code == 2, text
    lines = [line for line in text.splitlines() if line.startswith("spml: ")]
    assert len(lines) == 1 or "Usage:" in text, text
    assert snapshot(root) == before
    return text


def columns(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {name: features_of()[:, place] for place, name in enumerate(NAMES)}
    return {name: value for name, value in (values | changes).items() if value is not None}


ONE = features_of()[:, 0]
TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "a missing column": (columns(f2=None), "column 'f2' is missing"),
    "another case": (columns(f0=None, F0=ONE), "column 'f0' is missing"),
    "blanks in a name": ({**columns(f0=None), " f0": ONE}, "column 'f0' is missing"),
    "numbers as text": (columns(f0=[str(value) for value in ONE]), "holds string, not numbers"),
    "an empty cell": (columns(f0=[None, *ONE[1:].tolist()]), "row 1 .*is empty"),
    "NaN": (columns(f0=np.where(np.arange(ROWS) == 9, np.nan, ONE)), "row 9 has a feature that is not a finite"),
    "too large": (columns(f0=ONE.astype(np.float64) * 1e300), "not a finite number"),
    "lists": (columns(f0=[[1.0]] * ROWS), "not numbers"),
    "times": (columns(f0=pa.array([1] * ROWS, pa.timestamp("s"))), "not numbers"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.timeout(60)
def test_tables_that_do_not_fit(name: str, named: Path, spml: Spml, tmp_path: Path) -> None:
    content, message = TABLES[name]
    root = tmp_path / "place"
    root.mkdir()
    parquet.write_table(pa.table(content), root / "t.parquet")
    text = failing(spml, root, "predict", named, root / "t.parquet", "--out", root / "p.csv", "--device", "cpu")
    assert re.search(message, " ".join(text.split())), text


def test_columns_are_matched_by_name(named: Path, tmp_path: Path) -> None:
    run = package.load(named, device="cpu")
    parquet.write_table(pa.table(columns()), tmp_path / "a.parquet")
    parquet.write_table(pa.table(dict(reversed(columns(extra=ONE).items()))), tmp_path / "b.parquet")
    with pytest.warns(UserWarning, match="1 columns are ignored"):
        other = run.predict(tmp_path / "b.parquet")
    np.testing.assert_array_equal(other, run.predict(tmp_path / "a.parquet"))


def test_two_columns_of_one_name(named: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    arrays = [pa.array(ONE)] * 5
    parquet.write_table(pa.Table.from_arrays(arrays, names=[*NAMES, "f0"]), root / "t.parquet")
    text = failing(spml, root, "predict", named, root / "t.parquet", "--out", root / "p.csv", "--device", "cpu")
    assert "two columns are named 'f0'" in text


LINES = [",".join(f"{value:.4f}" for value in row) for row in features_of()]
CSVS = {
    "no header": ("\n".join(LINES), "must contain the column names"),
    "decimal commas": ("a;b;c;d\n" + "\n".join(LINES).replace(",", ";").replace(".", ","), "use a decimal point"),
    "an index too many": ("x,a,b,c,d\n" + "\n".join(f"{row},{line}" for row, line in enumerate(LINES)), "4 features"),
    "a number replaced by an index": (
        "x,a,b,c,d\n" + "\n".join(f"{row},{line[:-1] + 'o' if row == 3 else line}" for row, line in enumerate(LINES)),
        "not a number like most of the column",
    ),
    "no rows": ("a,b,c,d\n", "no rows"),
    "a short row": ("a,b,c,d\n1,2,3\n", "has 3 cells"),
}


@pytest.mark.parametrize("name", CSVS)
@pytest.mark.timeout(60)
def test_csv_files_that_do_not_fit_a_matrix(name: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    content, message = CSVS[name]
    root = tmp_path / "place"
    root.mkdir()
    (root / "t.csv").write_text(content)
    text = failing(spml, root, "predict", unnamed, root / "t.csv", "--out", root / "p.csv", "--device", "cpu")
    assert message in " ".join(text.split())


HEADER = "{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
HEADERS = [
    *(("<f4", shape) for shape in ("(10**15, 4)", "(1000000000000000, 4)", "(-3, 4)", "(5, -1)", "()", "None", "'x'")),
    *(("<f4", shape) for shape in ("(60, 4.5)", "(True, 4)", "(9223372036854775807, 9223372036854775807)", "(5, 4)")),
    *((descr, "(60, 4)") for descr in ("|O", "<f16", "<U9999999", "|V1000000000", "xx", "M8[s]", "<c16")),
]


@pytest.mark.parametrize(("descr", "shape"), HEADERS)
@pytest.mark.timeout(60)
def test_headers_that_lie(descr: str, shape: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    header = HEADER.format(descr=descr, shape=shape).encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(960)
    (root / "x.npy").write_bytes(content)
    failing(spml, root, "predict", unnamed, root / "x.npy", "--out", root / "p.csv", "--device", "cpu")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".csv"])
@pytest.mark.timeout(60)
def test_damaged_inputs(suffix: str, fault: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    file = root / f"new{suffix}"
    if suffix == ".npy":
        np.save(file, features_of())
    elif suffix == ".parquet":
        parquet.write_table(pa.table(columns()), file)
    else:
        write_csv(file, list(NAMES), features_of().tolist())
    FAULTS[fault](file, random.Random(f"{suffix} {fault}"))
    before = snapshot(root)
    code, text = spml("predict", unnamed, file, "--out", root / "p.csv", "--device", "cpu")
    assert code in (0, 2), text
    assert "Traceback" not in text
    assert code == 0 or snapshot(root) == before


LABELLED = {
    "another row": ("name,label\nzz,cat\n", "no row named 'zz'"),
    "another case": ("name,label\n0,Cat\n", "'Cat' is not one of"),
    "without the observed label": ("name,label\n0,dog\n", "without 'cat', its observed label"),
    "no column of labels": ("name,x\n0,cat\n", "'label' is missing"),
    "weight below zero": ("name,label,weight\n0,cat,-1\n", "not a number above 0"),
    "two weights": ("name,label,weight\n0,cat,2\n0,dog,3\n", "two weights"),
    "some weights": ("name,label,weight\n0,cat,2\n1,dog,\n", "has no weight"),
    "commas": ('name,label\n0,"cat,dog"\n', "'cat,dog' is not one of"),
    "a row twice": ("name,label\n0,cat|dog\n1,dog\n0,cat|bird\n", "line 4: '0' already has the label 'cat'"),
    "no weights": ("name,label,weight\n0,cat,\n1,dog,\n", "line 2: '0' has no weight"),
    "weights under another name": ("name,label,Weights\n0,cat,2\n1,dog,3\n", "'Weights' must be named 'weight'"),
    "points and commas": ('name,label,weight\n0,cat,2.5\n1,dog,"1,000"\n', "some a comma"),
    "an underscore": ("name,label,weight\n0,cat,1_0\n", "'1_0' is not a number"),
}


@pytest.mark.parametrize("name", LABELLED)
def test_labelled_rows_that_do_not_fit(name: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    content, message = LABELLED[name]
    root = tmp_path / "place"
    root.mkdir()
    (root / "l.csv").write_text(content)
    text = failing(spml, root, "recover", unnamed, "--labelled", root / "l.csv", "--out", root / "r.csv")
    assert message in " ".join(text.split())


def task(**changes: Any) -> Any:
    return [{"data": {"name": "0"}, "annotations": [{"result": []}], **changes}]


def choices(value: Any) -> Any:
    return task(annotations=[{"result": [{"type": "choices", "value": value}]}])


def lists(*names: str) -> Any:
    """Annotations of one row, each with one choice from a list."""
    results = [{"type": "choices", "from_name": name, "value": {"choices": ["cat"]}} for name in names]
    return task(annotations=[{"result": [result]} for result in results])


IMPORTS: dict[str, Any] = {
    "no list": {},
    "a number": 3,
    "null": None,
    "a list of numbers": [3],
    "a task without data": [{}],
    "data without a name": [{"data": {}}],
    "data as a list": [{"data": []}],
    "a name as a list": [{"data": {"name": ["0"]}}],
    "another name": [{"data": {"name": "zz"}}],
    "annotations as a number": task(annotations=3),
    "an annotation as a number": task(annotations=[3]),
    "a result as a number": task(annotations=[{"result": 3}]),
    "an entry as a number": task(annotations=[{"result": [3]}]),
    "a value as a number": choices(3),
    "choices as a number": choices({"choices": 3}),
    "choices as text": choices({"choices": "cat"}),
    "a choice as a list": choices({"choices": [["cat"]]}),
    "another class": choices({"choices": ["Cat"]}),
    "people who disagree": lists("labels", "absent"),
    "two lists of other names": lists("labels", "not there"),
    "absent in another case": lists("Absent"),
    "boxes": task(annotations=[{"result": [{"type": "rectanglelabels", "value": {"rectanglelabels": ["cat"]}}]}]),
    "a taxonomy": task(annotations=[{"result": [{"type": "taxonomy", "value": {"taxonomy": [["cat"]]}}]}]),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_imports_that_do_not_fit(name: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    (root / "tasks.json").write_text(json.dumps(IMPORTS[name]))
    failing(spml, root, "review", unnamed, "--decisions", root / "new.db", "--import", root / "tasks.json")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.timeout(60)
def test_damaged_imports(fault: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    (root / "tasks.json").write_text(json.dumps(choices({"choices": ["cat"]})))
    FAULTS[fault](root / "tasks.json", random.Random(fault))
    failing(spml, root, "review", unnamed, "--decisions", root / "new.db", "--import", root / "tasks.json")


DATABASE = {
    "another table": "DROP TABLE decisions; CREATE TABLE decisions (id INTEGER)",
    "no table": "DROP TABLE decisions",
    "no description": "DELETE FROM meta",
    "another format": "UPDATE meta SET value = 'spml decisions 99' WHERE key = 'format'",
    "numbers as text": "PRAGMA ignore_check_constraints = 1; INSERT INTO decisions "
    "(row, label, answer, who, at, model, request) VALUES ('x', 0, 1, 'a', 'b', 'c', 'd')",
    "a row that does not exist": "INSERT INTO decisions (row, label, answer, who, at, model, request) "
    "VALUES (1000, 0, 1, 'a', 'b', 'c', 'd')",
    "a class that does not exist": "INSERT INTO decisions (row, label, answer, who, at, model, request) "
    "VALUES (0, 1000, 1, 'a', 'b', 'c', 'd')",
    "bytes as text": "INSERT INTO decisions (row, label, answer, who, at, model, request) "
    "VALUES (0, 1, 1, 'a', 'b', x'ff', 'd')",
    "a confidence as text": "INSERT INTO decisions (row, label, answer, who, at, confidence, model, request) "
    "VALUES (0, 1, 1, 'a', 'b', 'high', 'c', 'd')",
    "an id below zero": "INSERT INTO decisions (id, row, label, answer, who, at, model, request) "
    "VALUES (-5, 0, 1, 1, 'a', 'b', 'c', 'd')",
}


@pytest.mark.parametrize("name", DATABASE)
@pytest.mark.timeout(60)
def test_edited_databases(name: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    run = copy(unnamed, root / "run")
    (root / "tasks.json").write_text(json.dumps(choices({"choices": ["cat"]})))
    code, text = spml("review", run, "--import", root / "tasks.json")
    assert code == 0, text
    with sqlite3.connect(run / "review.db") as database:
        database.executescript(DATABASE[name])
    database.close()
    for command in (("recover", run, "--out", root / "r.csv"), ("review", run, "--export", root / "e.csv")):
        code, text = spml(*command)
        assert code == 2, text
        assert sum(line.startswith("spml: ") for line in text.splitlines()) == 1, text
    assert not (root / "r.csv").exists()
    assert not (root / "e.csv").exists()


@pytest.mark.timeout(60)
def test_a_link_to_lost_answers_is_an_error(unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    run = copy(unnamed, root / "run")
    (run / "review.db").symlink_to("nowhere.db")
    failing(spml, root, "recover", run, "--out", root / "r.csv")


@pytest.mark.timeout(60)
def test_a_column_of_labels_needs_a_table(unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    np.save(root / "new.npy", features_of())
    options = ("--recover", "--label-column", "x", "--out", root / "p.csv", "--device", "cpu")
    assert "is a column of a table" in failing(spml, root, "predict", unnamed, root / "new.npy", *options)


@pytest.mark.timeout(60)
def test_images_and_texts_are_no_features(unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    (root / "x.png").write_bytes(b"x")
    os.mkfifo(root / "pipe.csv")
    (root / "folder.csv").mkdir()
    (root / "loop.npy").symlink_to("loop.npy")
    for name in ("x.png", "pipe.csv", "folder.csv", "loop.npy", "nowhere.npy", ""):
        failing(spml, root, "predict", unnamed, root / name, "--out", root / "p.csv", "--device", "cpu")


EXPORTS = {
    "no folder": ("--export", "nowhere/e.csv"),
    "a file of the run": ("--export", "run/run.json"),
    "another suffix": ("--export", "e.exe"),
    "no such database": ("--export", "e.csv", "--decisions", "nowhere.db"),
    "no such import": ("--export", "e.csv", "--import", "nowhere.json"),
    "half a character": ("--export", "\udcff.csv"),
    "a prefix for a table": ("--export", "e.csv", "--prefix", "http://"),
    "a long name": ("--export", "x" * 5000),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_that_fail_change_nothing(
    name: str, unnamed: Path, spml: Spml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "place"
    run = copy(unnamed, root / "run")
    monkeypatch.chdir(root)
    text = failing(spml, root, "review", run, *EXPORTS[name])
    assert len(text) < 2000


@pytest.mark.parametrize("host", ["", " ", "a\0b", "é" * 80, "x" * 300])
@pytest.mark.timeout(60)
def test_odd_hosts(host: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    database = tmp_path / "new.db"
    code, text = spml("review", unnamed, "--decisions", database, "--no-browser", "--host", host)
    assert code == 2, text
    assert "--host" in text


def test_an_export_without_answers_makes_no_database(unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    run = copy(unnamed, tmp_path / "run")
    assert spml("review", run, "--export", tmp_path / "e.csv")[0] == 0
    assert not (run / "review.db").exists()


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
def test_files_whose_names_are_no_text(suffix: str, unnamed: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    write_csv(root / "t.csv", ["a", "b", "c", "d"], features_of().tolist())
    file = Path(os.fsdecode(os.fsencode(root / "x") + b"\xff" + suffix.encode()))
    (root / "t.csv").rename(file)
    failing(spml, root, "predict", unnamed, file, "--out", root / "p.csv", "--device", "cpu")
