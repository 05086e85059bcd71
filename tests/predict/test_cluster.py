"""Labels for new rows by blocks: from files, matrices and tables, in one process and on Ray, all alike."""

import io
import os
import sys

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet

from spml.errors import InputError
from spml.predict.predictor import TableRows, predict_files
from spml.train.job import TrainJob, train_job

CLASSES = ("blue", "green", "red")


def photo(draw: np.random.Generator, channel: int) -> bytes:
    pixels = draw.integers(0, 60, (16, 16, 3), dtype=np.uint8)
    pixels[..., channel] += 150
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Photos in folders, and runs on photos and on features."""
    root = tmp_path_factory.mktemp("bulk")
    draw = np.random.default_rng(0)
    for channel, name in enumerate(reversed(CLASSES)):
        (root / "photos" / name).mkdir(parents=True)
        for number in range(12):
            (root / "photos" / name / f"{number}.png").write_bytes(photo(draw, channel))
    job = TrainJob(str(root / "photos"), model="small", size=16, epochs=2, batch_size=8, device="cpu")
    train_job(job, root / "on-images", say=lambda text: None, progress=False)
    single = draw.integers(0, 3, 90)
    features = (0.3 * draw.normal(size=(90, 5)) + np.eye(5)[single]).astype(np.float32)
    np.save(root / "x.npy", features)
    np.save(root / "y.npy", single)
    job = TrainJob(str(root / "x.npy"), {"labels": str(root / "y.npy")}, epochs=2, batch_size=8, device="cpu")
    train_job(job, root / "on-features", say=lambda text: None, progress=False)
    return root


@pytest.fixture(scope="module")
def tables(world):
    """The photos as a table of paths and as one of bytes; features as a column of lists, with ids and labels."""
    files = sorted((world / "photos").rglob("*.png"))
    names = [str(file.relative_to(world)) for file in files]
    parquet.write_table(
        pa.table({"image": names, "tag": [file.parent.name for file in files]}), world / "paths.parquet"
    )
    data = pa.array([file.read_bytes() for file in files], pa.binary())
    parquet.write_table(pa.table({"id": names, "picture": data}), world / "bytes.parquet")
    x, y = np.load(world / "x.npy"), np.load(world / "y.npy")
    lists = pa.table({"id": [str(row) for row in range(len(x))], "label": y.astype(str), "features": list(x)})
    parquet.write_table(lists, world / "lists.parquet", row_group_size=17)
    wide = pa.table({f"f{c}": x[:, c] for c in range(5)})
    parquet.write_table(wide, world / "wide.parquet")
    return world


def labelled(run, source, out, **options):
    count = predict_files(run, [source], out, device="cpu", **options)
    return count, (csv.read_csv if out.suffix == ".csv" else parquet.read_table)(out).to_pylist()


def plain(lines, name):
    return sorted((line[name].split("photos/")[-1], line["label"], line["probability"]) for line in lines)


def test_images_from_files_paths_and_bytes_are_labelled_alike(tables, tmp_path):
    run = tables / "on-images"
    count, files = labelled(run, tables / "photos", tmp_path / "files.csv")
    assert count == 36
    for source in ("paths.parquet", "bytes.parquet"):
        count, lines = labelled(run, tables / source, tmp_path / "tags.parquet")
        assert count == 36
        assert plain(lines, "image") == plain(files, "image")


def test_images_in_structs_of_bytes_and_path_are_labelled_as_those_of_bytes(tables, tmp_path):
    """As Hugging Face's datasets store them; every other row has a path alone."""
    table = parquet.read_table(tables / "bytes.parquet")
    names, data = table["id"].to_pylist(), table["picture"].to_pylist()
    cells = [{"bytes": None if row % 2 else data[row], "path": names[row] if row % 2 else None} for row in range(36)]
    column = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    parquet.write_table(pa.table({"id": names, "image": column}), tables / "structs.parquet")
    _, wanted = labelled(tables / "on-images", tables / "bytes.parquet", tmp_path / "bytes.csv")
    _, lines = labelled(tables / "on-images", tables / "structs.parquet", tmp_path / "structs.csv")
    assert lines == wanted
    parquet.write_table(pa.table({"image": column}), tables / "structs.parquet")
    _, lines = labelled(tables / "on-images", tables / "structs.parquet", tmp_path / "numbered.csv")
    assert sorted({line["image"] for line in lines}) == list(range(36))


def test_paths_are_relative_to_the_folder_of_the_files_of_a_table(tables, tmp_path):
    (tmp_path / "parts").mkdir()
    source = next((tables / "photos").rglob("*.png"))
    (tmp_path / "parts" / "a.png").write_bytes(source.read_bytes())
    table = pa.table({"image": ["a.png"]})
    file = TableRows(tmp_path / "parts" / "0.parquet", table.schema, 16)
    folder = TableRows(tmp_path / "parts", table.schema, 16)
    assert np.array_equal(folder.read(table), file.read(table))


def test_features_from_a_matrix_and_from_tables_are_labelled_alike(tables, tmp_path, monkeypatch):
    run = tables / "on-features"
    count, matrix = labelled(run, tables / "x.npy", tmp_path / "matrix.parquet", top=2)
    assert count == 90
    assert [line["row"] for line in matrix[:2]] == ["0", "0"]
    monkeypatch.setattr("spml.predict.predictor.FEATURE_ROWS", 16)
    monkeypatch.setattr("spml.predict.predictor._LINES", 50)
    for source in ("lists.parquet", "wide.parquet", "x.npy"):
        count, lines = labelled(run, tables / source, tmp_path / "tags.parquet", top=2)
        assert count == 90
        assert [(line["row"], line["label"]) for line in lines] == [(line["row"], line["label"]) for line in matrix]
        assert [line["probability"] for line in lines] == pytest.approx([m["probability"] for m in matrix], abs=2e-6)
    assert parquet.ParquetFile(tmp_path / "tags.parquet").num_row_groups > 2


def test_recovery_of_new_rows_is_that_of_the_training_rows(tables, tmp_path):
    from spml.recover import recover
    from spml.runs.folder import open_run

    run = tables / "on-features"
    _, lines = labelled(run, tables / "lists.parquet", tmp_path / "found.parquet", recover=True, label_column="label")
    recovered = recover(open_run(run))
    table = recovered.entries
    assert [int(line["row"]) for line in lines] == table.row.tolist()
    assert [int(line["label"]) for line in lines] == table.label.tolist()
    assert [line["observed"] for line in lines] == table.observed.tolist()
    assert [line["confidence"] for line in lines] == pytest.approx(table.confidence.tolist(), abs=1e-5)
    _, open_lines = labelled(run, tables / "lists.parquet", tmp_path / "open.parquet", recover=True)
    assert not any(line["observed"] for line in open_lines)


def write_what_is_wrong(folder):
    x = np.zeros((5001, 5), np.float32)  # more than a block
    x[5000, 3] = np.nan
    np.save(folder / "nan.npy", x)
    (folder / "text.parquet").write_text("f0,f1\n1,2\n")
    (folder / "folder.parquet").mkdir(exist_ok=True)
    data = bytearray((folder / "lists.parquet").read_bytes())
    data[4:400] = bytes(396)  # the pages of the first columns, not the schema at the end
    (folder / "damaged.parquet").write_bytes(data)
    several = pa.table({"label": [["a", "b"]], "image": [["a.png"]], "features": [[0.0] * 5]})
    parquet.write_table(several, folder / "several.parquet")
    parquet.write_table(pa.table({"image": [{"url": "a.png"}]}), folder / "struct.parquet")
    nothing = pa.array([{"bytes": None, "path": None}], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    parquet.write_table(pa.table({"id": ["cat"], "image": nothing}), folder / "empty.parquet")
    parquet.write_table(pa.table({"image": [7]}), folder / "numbers.parquet")


@pytest.mark.parametrize(
    ("run", "source", "options", "sentence"),
    [
        ("on-features", "photos", {}, "trained on features, not on images"),
        ("on-images", "x.npy", {}, "trained on images, not on features"),
        ("on-images", "wide.parquet", {}, "none of the columns f0, f1, f2, f3, f4 holds images"),
        ("on-features", "paths.parquet", {}, "no column names images"),
        ("on-features", "nothing.parquet", {}, "there is no such file"),
        ("on-features", "narrow.npy", {}, "was trained on 5 features a row, not 4"),
        ("on-features", "lists.parquet", {"label_column": "label"}, "only recover uses"),
        ("on-features", "lists.parquet", {"label_column": "lable", "recover": True}, "did you mean 'label'"),
        ("on-features", "strange.parquet", {"label_column": "label", "recover": True}, "the label 'cat' is none of"),
        ("on-features", "ragged.parquet", {}, "differ in length"),
        ("on-features", "nan.parquet", {}, "row 1 has a feature that is no finite number"),
        ("on-features", "large.npy", {}, r"row 2: the network of .* answers with no number"),
        ("on-features", "nan.npy", {}, r"nan\.npy: row 5000, column 3 is nan as float32"),
        ("on-features", "text.parquet", {}, r"text\.parquet: this cannot be read as parquet"),
        ("on-features", "damaged.parquet", {}, r"damaged\.parquet: this cannot be read as parquet"),
        ("on-features", "folder.parquet", {}, r"folder\.parquet: this cannot be read as parquet"),
        (
            "on-features",
            "several.parquet",
            {"label_column": "label", "recover": True},
            "column 'label' holds list<element: string>: a row's label must be one text",
        ),
        ("on-images", "several.parquet", {}, "column 'image' holds list<.*>: a row's image must be a path"),
        ("on-images", "struct.parquet", {}, "column 'image' holds struct<.*>: a row's image must be a path"),
        ("on-images", "empty.parquet", {}, "row cat has no image: column 'image' is empty there"),
        ("on-images", "numbers.parquet", {}, "7: there is no such file"),
    ],
)
def test_what_cannot_be_labelled_is_said_and_leaves_no_file(tables, tmp_path, run, source, options, sentence):
    np.save(tables / "narrow.npy", np.zeros((3, 4), np.float32))
    np.save(tables / "large.npy", np.array([[0.0] * 5, [1.0] * 5, [3e38, -3e38, 3e38, -3e38, 3e38]], np.float32))
    parquet.write_table(pa.table({"label": ["cat"], "features": [[0.0] * 5]}), tables / "strange.parquet")
    parquet.write_table(pa.table({"features": [[0.0] * 5, [0.0] * 4]}), tables / "ragged.parquet")
    parquet.write_table(pa.table({"features": [[0.0] * 5, [np.nan] * 5]}), tables / "nan.parquet")
    write_what_is_wrong(tables)
    out = tmp_path / "tags.parquet"
    with pytest.raises(InputError, match=sentence):
        predict_files(tables / run, [tables / source], out, device="cpu", **options)
    assert list(tmp_path.iterdir()) == []


def test_without_ray_it_is_said(tables, tmp_path, monkeypatch):
    from spml.predict.cluster import predict_table

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed"):
        predict_table(tables / "on-features", tables / "lists.parquet", tmp_path / "tags")


def test_what_ray_cannot_read_is_said_before_it_starts(tables, tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    from spml.predict.cluster import predict_table

    (tmp_path / "text.parquet").write_text("f0,f1\n1,2\n")
    for source in (tmp_path / "text.parquet", tmp_path):
        with pytest.raises(InputError, match="this cannot be read as parquet"):
            predict_table(tables / "on-features", source, tmp_path / "tags", device="cpu")


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    pytest.importorskip("ray.data", reason="needs the extra ray")
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_on_ray_what_is_wrong_with_a_row_is_said_and_nothing_is_left(tables, tmp_path):
    from spml.predict.cluster import predict_table

    rows = {"id": ["a", "b"], "features": [[0.0] * 5, [np.nan] * 5]}
    parquet.write_table(pa.table(rows), tmp_path / "nan.parquet")
    with pytest.raises(InputError, match=r"^[^\n]*nan\.parquet: row b has a feature that is no finite number$"):
        predict_table(tables / "on-features", tmp_path / "nan.parquet", tmp_path / "tags", device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["nan.parquet"]


@pytest.mark.usefixtures("cluster")
def test_on_ray_the_lines_are_the_same(tables, tmp_path):
    from spml.predict.cluster import predict_table

    options = {"recover": True, "label_column": "tag"}
    _, wanted = labelled(tables / "on-images", tables / "paths.parquet", tmp_path / "one.parquet", **options)
    out = tmp_path / "many"
    count = predict_table(tables / "on-images", tables / "paths.parquet", out, device="cpu", **options)
    lines = parquet.read_table(out).to_pylist()
    assert count == len(lines) == len(wanted)
    assert sum(line["observed"] for line in lines) == 36
    for line, other in zip(lines, wanted, strict=True):
        assert line == pytest.approx(other, abs=2e-6)
    with pytest.raises(InputError, match="neither an id nor an image path"):
        predict_table(tables / "on-features", tables / "wide.parquet", tmp_path / "no", device="cpu")
    with pytest.raises(InputError, match="is there already"):
        predict_table(tables / "on-features", tables / "lists.parquet", out, device="cpu")
