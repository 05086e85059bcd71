"""Every script in examples/ runs, and learns where it trains."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.pictures import picture

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Import a script by its name; skip if a package that it needs is absent."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name, *packages):
        for package in packages:
            pytest.importorskip(package, reason=f"needs {package}, of the extra examples")
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load


def test_every_script_has_a_test():
    tested = Path(__file__).read_text(encoding="utf-8")
    scripts = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert len(scripts) == 6
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for script in scripts:
        assert f'example("{script}"' in tested
        assert f"`{script}.py`" in listed


def test_plain_pytorch(example):
    assert example("pytorch_loop").main("em") > 0.8


def test_lightning(example):
    assert example("lightning_module", "lightning").main() > 0.8


def test_hugging_face_trainer(example):
    assert example("huggingface_trainer", "transformers", "accelerate").main() > 0.8  # guessing gives 0.53


def test_sklearn(example):
    assert example("sklearn_pipeline").main() > 0.6


def test_fastapi(example, small_run, tmp_path, monkeypatch):
    pytest.importorskip("fastapi", reason="needs fastapi, of the extra examples")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("RUN", str(small_run))
    picture(tmp_path / "1.jpg", 7)
    with TestClient(example("fastapi_service", "fastapi").app) as client:
        answer = client.post("/tags", content=(tmp_path / "1.jpg").read_bytes())
        assert answer.status_code == 200
        assert sorted(answer.json()) == ["cat", "dog"]
        assert list(answer.json().values()) == sorted(answer.json().values(), reverse=True)
        assert client.post("/tags", content=b"text").status_code == 415


def test_ray(example, small_run, tmp_path, monkeypatch):
    module = example("ray_predict", "ray", "ray.data")
    import ray

    rows = 5
    for number in range(rows):
        picture(tmp_path / f"{number}.jpg", 9 * number)
    table = pa.table({"id": np.arange(rows), "image": [str(tmp_path / f"{number}.jpg") for number in range(rows)]})
    parquet.write_table(table, tmp_path / "table.parquet")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert module.main(str(small_run), str(tmp_path / "table.parquet"), str(tmp_path / "out"), workers=1) >= rows
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A run on two classes of small pictures."""
    import spml

    folder = tmp_path_factory.mktemp("examples")
    for number, name in enumerate(("cat", "dog")):
        for shade in range(4):
            picture(folder / "photos" / name / f"{shade}.jpg", 50 * number + shade)
    options = {"model": "small", "size": 32, "epochs": 1, "device": "cpu", "progress": False}
    spml.train(folder / "photos", out=folder / "run", **options)
    return folder / "run"
