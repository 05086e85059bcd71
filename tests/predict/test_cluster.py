"""Predicting on Ray gives the same lines as predicting in one process."""

import os
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from spml.errors import InputError
from spml.predict.cluster import predict_table
from spml.predict.predictor import predict_files


def test_missing_ray_is_reported(tables, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed"):
        predict_table(tables / "on-features", tables / "lists.parquet", tmp_path / "tags")


def test_unreadable_tables_are_reported_before_ray_starts(tables, tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    (tmp_path / "text.parquet").write_text("f0,f1\n1,2\n")
    for source in (tmp_path / "text.parquet", tmp_path):
        with pytest.raises(InputError, match="cannot be read as Parquet"):
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
def test_invalid_row_raises_and_leaves_no_file(tables, tmp_path):
    rows = {"id": ["a", "b"], "features": [[0.0] * 5, [np.nan] * 5]}
    parquet.write_table(pa.table(rows), tmp_path / "nan.parquet")
    with pytest.raises(InputError, match=r"^[^\n]*nan\.parquet: row b has a feature that is not a finite number$"):
        predict_table(tables / "on-features", tmp_path / "nan.parquet", tmp_path / "tags", device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["nan.parquet"]


@pytest.mark.usefixtures("cluster")
def test_ray_gives_the_same_lines(tables, tmp_path):
    options = {"recover": True, "label_column": "tag"}
    predict_files(tables / "on-images", [tables / "paths.parquet"], tmp_path / "one.parquet", device="cpu", **options)
    wanted = parquet.read_table(tmp_path / "one.parquet").to_pylist()
    out = tmp_path / "many"
    count = predict_table(tables / "on-images", tables / "paths.parquet", out, device="cpu", **options)
    lines = parquet.read_table(out).to_pylist()
    assert count == len(lines) == len(wanted)
    assert sum(line["observed"] for line in lines) == 36
    for line, other in zip(lines, wanted, strict=True):
        assert line == pytest.approx(other, abs=2e-6)
    with pytest.raises(InputError, match="neither an id nor an image path"):
        predict_table(tables / "on-features", tables / "wide.parquet", tmp_path / "no", device="cpu")
    with pytest.raises(InputError, match="already exists"):
        predict_table(tables / "on-features", tables / "lists.parquet", out, device="cpu")
