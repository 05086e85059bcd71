"""Predicting labels for new rows, in blocks, from files, matrices and tables."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from spml.errors import InputError
from spml.predict.blocks import InputSpec
from spml.predict.predictor import predict_files
from spml.predict.tables import TableReader
from spml.recover import recover
from spml.runs.folder import open_run


def predicted(run, source, out, **options):
    count = predict_files(run, [source], out, device="cpu", **options)
    return count, (csv.read_csv if out.suffix == ".csv" else parquet.read_table)(out).to_pylist()


def sorted_lines(lines, name):
    return sorted((line[name].split("photos/")[-1], line["label"], line["probability"]) for line in lines)


def test_images_from_files_paths_and_bytes_give_the_same_labels(tables, tmp_path):
    run = tables / "on-images"
    count, files = predicted(run, tables / "photos", tmp_path / "files.csv")
    assert count == 36
    csv.write_csv(parquet.read_table(tables / "paths.parquet"), tables / "paths.csv")
    for source in ("paths.parquet", "bytes.parquet", "paths.csv"):
        count, lines = predicted(run, tables / source, tmp_path / "tags.parquet")
        assert count == 36
        assert sorted_lines(lines, "image") == sorted_lines(files, "image")


def test_hugging_face_image_structs_give_the_same_labels_as_bytes(tables, tmp_path):
    """Every other row has a path and no bytes."""
    table = parquet.read_table(tables / "bytes.parquet")
    names, data = table["id"].to_pylist(), table["picture"].to_pylist()
    cells = [{"bytes": None if row % 2 else data[row], "path": names[row] if row % 2 else None} for row in range(36)]
    column = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    parquet.write_table(pa.table({"id": names, "image": column}), tables / "structs.parquet")
    _, wanted = predicted(tables / "on-images", tables / "bytes.parquet", tmp_path / "bytes.csv")
    _, lines = predicted(tables / "on-images", tables / "structs.parquet", tmp_path / "structs.csv")
    assert lines == wanted
    parquet.write_table(pa.table({"image": column}), tables / "structs.parquet")
    _, lines = predicted(tables / "on-images", tables / "structs.parquet", tmp_path / "numbered.csv")
    assert sorted({line["image"] for line in lines}) == list(range(36))


def test_image_paths_are_relative_to_the_folder_of_the_table(tables, tmp_path):
    (tmp_path / "parts").mkdir()
    source = next((tables / "photos").rglob("*.png"))
    (tmp_path / "parts" / "a.png").write_bytes(source.read_bytes())
    table = pa.table({"image": ["a.png"]})
    spec = InputSpec("run", image_size=16, features=None)
    file = TableReader(tmp_path / "parts" / "0.parquet", table.schema, spec)
    folder = TableReader(tmp_path / "parts", table.schema, spec)
    assert np.array_equal(folder.read(table), file.read(table))


def test_features_from_a_matrix_and_from_tables_give_the_same_labels(tables, tmp_path, monkeypatch):
    run = tables / "on-features"
    count, matrix = predicted(run, tables / "x.npy", tmp_path / "matrix.parquet", top=2)
    assert count == 90
    assert [line["row"] for line in matrix[:2]] == ["0", "0"]
    monkeypatch.setattr("spml.predict.blocks.FEATURE_ROWS_PER_BLOCK", 16)
    monkeypatch.setattr("spml.predict.writers.LINES_PER_WRITE", 50)
    csv.write_csv(parquet.read_table(tables / "wide.parquet"), tables / "wide.csv")
    for source in ("lists.parquet", "wide.parquet", "wide.csv", "x.npy"):
        count, lines = predicted(run, tables / source, tmp_path / "tags.parquet", top=2)
        assert count == 90
        assert [(line["row"], line["label"]) for line in lines] == [(line["row"], line["label"]) for line in matrix]
        assert [line["probability"] for line in lines] == pytest.approx([m["probability"] for m in matrix], abs=2e-6)
    assert parquet.ParquetFile(tmp_path / "tags.parquet").num_row_groups > 2


def test_recovery_of_new_rows_uses_the_calibration_of_the_run(tables, tmp_path):
    run = open_run(tables / "on-features")
    _, lines = predicted(
        run.folder, tables / "lists.parquet", tmp_path / "found.parquet", recover=True, label_column="label"
    )
    recovered = recover(run)
    # The stored predictions are cross-fitted, those of new rows come from the model that was trained on all rows.
    _, independent = run.network().predict(np.load(tables / "x.npy"))
    confidences = recovered.calibration.confidences(independent, recovered.known, reading=recovered.rule.reading)
    rows, labels = np.nonzero(recovered.rule.present(confidences, recovered.known))
    found = {(int(line["row"]), int(line["label"])): line for line in lines}
    assert found.keys() == set(zip(rows.tolist(), labels.tolist(), strict=True))
    assert 90 < len(found) < 120
    for (row, label), line in found.items():
        assert line["observed"] == (recovered.known[row, label] > 0)
        assert line["confidence"] == pytest.approx(confidences[row, label], abs=1e-5)
    _, open_lines = predicted(run.folder, tables / "lists.parquet", tmp_path / "open.parquet", recover=True)
    assert not any(line["observed"] for line in open_lines)


def write_invalid_tables(folder):
    x = np.zeros((5001, 5), np.float32)  # more than one block
    x[5000, 3] = np.nan
    np.save(folder / "nan.npy", x)
    (folder / "text.parquet").write_text("f0,f1\n1,2\n")
    (folder / "narrow.csv").write_text("f0,f1\n1,2\n")
    (folder / "gap.csv").write_text("f0,f1,f2,f3,f4\n1,2,3,4,5\n1,2,3,4,\n")
    (folder / "folder.parquet").mkdir(exist_ok=True)
    data = bytearray((folder / "lists.parquet").read_bytes())
    data[4:400] = bytes(396)  # destroys data pages, not the schema at the end
    (folder / "damaged.parquet").write_bytes(data)
    several = pa.table({"label": [["a", "b"]], "image": [["a.png"]], "features": [[0.0] * 5]})
    parquet.write_table(several, folder / "several.parquet")
    parquet.write_table(pa.table({"image": [{"url": "a.png"}]}), folder / "struct.parquet")
    nothing = pa.array([{"bytes": None, "path": None}], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    parquet.write_table(pa.table({"id": ["cat"], "image": nothing}), folder / "empty.parquet")
    (folder / "gap-in-images.csv").write_text("image,x\nphotos/red/0.png,1\n,2\n")
    parquet.write_table(pa.table({"image": [7]}), folder / "numbers.parquet")
    cells = {"features": [[0.0] * 5] * 3}
    parquet.write_table(pa.table({"id": ["a", "b", "a"], **cells}), folder / "twice.parquet")
    (folder / "twice.csv").write_text("id,f0,f1,f2,f3,f4\na,1,2,3,4,5\na,1,2,3,4,5\n")
    parquet.write_table(pa.table({"id": ["a", None, "b"], **cells}), folder / "nameless.parquet")
    no_text = pa.array([b"\xff", b"a", b"b"]).view(pa.string())
    parquet.write_table(pa.table({"id": no_text, **cells}), folder / "bytes-as-text.parquet")


def test_paths_of_other_systems_and_with_blanks_are_read_as_in_training(tables, tmp_path):
    (tables / "paths.csv").write_text("image,x\nphotos\\red\\0.png,1\n photos/red/0.png ,2\n")
    _, lines = predicted(tables / "on-images", tables / "paths.csv", tmp_path / "tags.parquet", top=3)
    assert [line["probability"] for line in lines[:3]] == [line["probability"] for line in lines[3:]]


@pytest.mark.parametrize(
    ("run", "source", "options", "sentence"),
    [
        ("on-features", "photos", {}, "trained on features, not on images"),
        ("on-images", "x.npy", {}, "trained on images, not on features"),
        ("on-images", "wide.parquet", {}, "none of the columns f0, f1, f2, f3, f4 holds images"),
        ("on-features", "paths.parquet", {}, "no column contains numbers"),
        ("on-features", "nothing.parquet", {}, "no such file"),
        ("on-features", "narrow.npy", {}, "was trained on 5 features per row, not 4"),
        ("on-features", "lists.parquet", {"label_column": "label"}, "used only with recover"),
        ("on-features", "lists.parquet", {"label_column": "lable", "recover": True}, "did you mean 'label'"),
        ("on-features", "strange.parquet", {"label_column": "label", "recover": True}, "the label 'cat' is not one of"),
        ("on-features", "ragged.parquet", {}, r"row \d+ .*has \d+ features, row 1 has \d+"),
        ("on-features", "narrow.csv", {}, "was trained on 5 features per row, not 2"),
        ("on-features", "gap.csv", {}, "row 2 .*column .f4. is empty"),
        ("on-features", "nothing.csv", {}, "no such file"),
        ("on-features", "nan.parquet", {}, "row 1 has a feature that is not a finite number"),
        ("on-features", "nan.npy", {}, r"nan\.npy: row 5000, column 3 is nan as float32"),
        ("on-features", "text.parquet", {}, r"text\.parquet cannot be read as Parquet"),
        ("on-features", "damaged.parquet", {}, r"damaged\.parquet cannot be read as Parquet"),
        ("on-features", "folder.parquet", {}, r"folder\.parquet is a folder"),
        (
            "on-features",
            "several.parquet",
            {"label_column": "label", "recover": True},
            "column 'label' holds list<element: string>: a row's label must be a string",
        ),
        ("on-images", "several.parquet", {}, "column 'image' holds list<.*>: a row's image must be a path"),
        ("on-images", "struct.parquet", {}, "column 'image' holds struct<.*>: a row's image must be a path"),
        ("on-images", "gap-in-images.csv", {}, r"row 2 \(not counting the header\) has no image"),
        ("on-images", "empty.parquet", {}, "row cat has no image: its column 'image' is empty"),
        ("on-images", "numbers.parquet", {}, "7: .*no such file"),
        ("on-features", "twice.parquet", {}, r"twice\.parquet: several rows have the id 'a'"),
        ("on-features", "twice.csv", {}, r"twice\.csv: several rows have the id 'a'"),
        ("on-features", "nameless.parquet", {}, r"nameless\.parquet: row 2 .*column 'id' is empty"),
        ("on-features", "bytes-as-text.parquet", {}, r"bytes-as-text\.parquet cannot be read as Parquet"),
        ("on-features", "x.npy", {"label_column": "label", "recover": True}, "applies to a table only"),
        ("on-features", "strange.parquet", {"label_column": "label", "recover": True}, "row 0: the label 'cat'"),
    ],
)
def test_invalid_inputs_raise_and_leave_no_file(tables, tmp_path, run, source, options, sentence):
    np.save(tables / "narrow.npy", np.zeros((3, 4), np.float32))
    parquet.write_table(pa.table({"label": ["cat"], "features": [[0.0] * 5]}), tables / "strange.parquet")
    parquet.write_table(pa.table({"features": [[0.0] * 5, [0.0] * 4]}), tables / "ragged.parquet")
    parquet.write_table(pa.table({"features": [[0.0] * 5, [np.nan] * 5]}), tables / "nan.parquet")
    write_invalid_tables(tables)
    out = tmp_path / "tags.parquet"
    with pytest.raises(InputError, match=sentence):
        predict_files(tables / run, [tables / source], out, device="cpu", **options)
    assert list(tmp_path.iterdir()) == []
