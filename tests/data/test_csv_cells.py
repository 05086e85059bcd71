"""Cells that a spreadsheet would run as formulas: guarded in every CSV file, and read back as they were."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

import spml
from spml.bench import compare
from spml.data.csv_cells import guard, guard_text, unguard, write_csv
from spml.data.detect import open_data
from spml.data.formats.table_files import read_table, without_guards
from spml.predict import predict_files
from spml.recover import export
from spml.recover.labelled import read_labelled
from spml.recover.sample import sample_rows, write_sample
from spml.review.annotate import write_table
from spml.review.exchange import export_decisions
from spml.runs.decisions import Decisions, Question, Subject

CLASSES = ("=1+1", "'=1+1", "-2", "@x", "+y", "plain", "'quoted'", "＝1")
DANGEROUS = tuple("=+-@\t\r\n＝＋－＠")


def cells(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [cell for row in csv.reader(file) for cell in row]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> spml.Run:
    """A run whose rows and classes look like formulas."""
    root = tmp_path_factory.mktemp("formulas")
    single = np.arange(96) % len(CLASSES)
    features = np.eye(len(CLASSES))[single] + 0.3 * np.random.default_rng(0).normal(size=(96, len(CLASSES)))
    columns = {f"f{place}": features[:, place].astype(np.float32) for place in range(len(CLASSES))}
    names = [("=", "-", "'-", "row ")[row % 4] + str(row) for row in range(96)]
    labels = [[CLASSES[place]] for place in single]
    parquet.write_table(pa.table({"id": names, **columns, "label": labels}), root / "x.parquet")
    return spml.train(root / "x.parquet", out=root / "run", base="linear", progress=False, device="cpu")


def check(path: Path, allowed: Path) -> None:
    """`path` has no formula; `allowed` holds the same text as it is."""
    safe, plain = cells(path), cells(allowed)
    assert not [cell for cell in safe if cell.startswith(DANGEROUS)]
    assert [cell for cell in plain if cell.startswith("=")]
    assert [guard_text(cell) for cell in plain] == safe


def read_back(path: Path, *names: str) -> list[list[str]]:
    table = without_guards(path, read_table(path, texts=names), names)
    return [table[name].to_pylist() for name in names]


def test_predictions(run: spml.Run, tmp_path: Path) -> None:
    table = run.folder.source["path"]
    for allow in (False, True):
        out = tmp_path / f"{allow}.csv"
        predict_files(run.predictor.folder, [Path(table)], out, device="cpu", allow_formulas=allow)
    check(tmp_path / "False.csv", tmp_path / "True.csv")
    names, labels = read_back(tmp_path / "False.csv", "row", "label")
    assert set(names) == set(run.folder.names)
    assert set(labels) == set(CLASSES)


def test_recovered_labels(run: spml.Run, tmp_path: Path) -> None:
    recovered = run.recover()
    for allow in (False, True):
        export(recovered, tmp_path / f"{allow}.csv", allow_formulas=allow)
    check(tmp_path / "False.csv", tmp_path / "True.csv")
    names, labels = read_back(tmp_path / "False.csv", "name", "label")
    assert names == [recovered.names[row] for row in recovered.entries.row]
    assert labels == [recovered.classes[label] for label in recovered.entries.label]


def test_a_sample_is_read_back_as_it_was_drawn(run: spml.Run, tmp_path: Path) -> None:
    sample = sample_rows(run.folder, 40)
    for allow in (False, True):
        write_sample(sample, run.folder, tmp_path / f"{allow}.csv", allow_formulas=allow)
        back = read_labelled(tmp_path / f"{allow}.csv", run.folder)
        np.testing.assert_array_equal(back.rows, sample.rows)
        np.testing.assert_array_equal(back.labels.dense() > 0, sample.labels.dense() > 0)
    check(tmp_path / "False.csv", tmp_path / "True.csv")


def test_exported_answers(run: spml.Run, tmp_path: Path) -> None:
    with Decisions(tmp_path / "a.db", Subject(run.folder.names, run.classes)) as answers:
        answers.record([Question(row, row % len(CLASSES), 1) for row in range(20)], who="=cmd()")
        for allow in (False, True):
            export_decisions(answers, tmp_path / f"{allow}.csv", allow_formulas=allow)
    check(tmp_path / "False.csv", tmp_path / "True.csv")
    names, who = read_back(tmp_path / "False.csv", "name", "who")
    assert sorted(names) == sorted(run.folder.names[:20])
    assert set(who) == {"=cmd()"}


def test_an_annotated_table_opens_with_the_same_names_and_classes(tmp_path: Path) -> None:
    names = ["-a.png", "=b.png", "'-c.png", "d.png"]
    for name in names:
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    with Decisions(tmp_path / "t.db", Subject(names, CLASSES)) as answers:
        answers.record([Question(row, label, 1) for row in range(4) for label in range(2 * row, 2 * row + 2)], who="a")
        write_table(answers, [tmp_path / name for name in names], tmp_path / "t.csv")
        known = answers.labels().dense()
    assert not [cell for cell in cells(tmp_path / "t.csv") if cell.startswith(DANGEROUS) and cell != "-1"]
    data = open_data(tmp_path / "t.csv", size=8)
    assert sorted(data.names.tolist()) == sorted(names)
    order = [data.classes.index(name) for name in CLASSES]
    rows = [data.names.tolist().index(name) for name in names]
    np.testing.assert_array_equal(data.labels.dense()[rows][:, order], known)


def test_a_guarded_table_opens_with_its_names_and_labels(tmp_path: Path) -> None:
    for row in range(8):
        Image.new("RGB", (8, 8), (255 * (row % 2), 0, 0)).save(tmp_path / f"-{row}.png")
    table = pa.table({"image": [f"-{row}.png" for row in range(8)], "label": [f"={row % 2}" for row in range(8)]})
    write_csv(table, tmp_path / "t.csv")
    data = open_data(tmp_path / "t.csv", size=8)
    assert data.classes == ("=0", "=1")
    assert data.names.tolist() == table["image"].to_pylist()


def test_benchmark_tables(tmp_path: Path) -> None:
    compare.write_csv(tmp_path / "t.csv", [{"method": "=x", "map": -1.5}, {"method": "an", "map": None}])
    assert cells(tmp_path / "t.csv") == ["method", "map", "'=x", "-1.5", "an", ""]


@given(st.lists(st.one_of(st.none(), st.text(alphabet="='-+@a \t\n\r＝"), st.text())))
def test_reading_undoes_guarding(texts: list[str | None]) -> None:
    column = pa.chunked_array([pa.array(texts, pa.string())])
    guarded = guard(pa.table({"x": column}))["x"]
    assert not [cell for cell in guarded.to_pylist() if cell is not None and cell.startswith(DANGEROUS)]
    assert guarded.to_pylist() == [guard_text(text) for text in texts]
    assert unguard(guarded).to_pylist() == texts


def test_a_column_with_formulas_of_its_own_is_left_alone() -> None:
    column = pa.array(["=1", "'=1", "x"])
    assert unguard(column).equals(column)
