"""Experiments of the benchmark on a tiny pack: they run once, and are identified by settings, data and code."""

import io
import json
import sys
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from spml.bench import code_version as versions
from spml.bench.data import DataSource
from spml.bench.measure import diverged_row, read_row
from spml.bench.runner import Runner, _Progress, _work_in_worker
from spml.errors import InputError
from spml.methods import METHODS, registry
from spml.methods.registry import import_plugins
from spml.training.experiment import Experiment
from spml.training.label_draw import LabelDraw
from spml.training.settings import TrainSettings


@pytest.fixture(scope="module")
def pack_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack")
    draw = np.random.default_rng(0)
    truth = draw.random((30, 3)) < 0.4
    truth[np.arange(30), draw.integers(0, 3, 30)] = True
    observed = np.array([draw.choice(np.flatnonzero(row)) for row in truth])
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for row in range(30):
            pixels = draw.integers(0, 60, (32, 32, 3), dtype=np.uint8)
            pixels[..., truth[row]] += 150
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            archive.writestr(f"{row:02}.png", file.getvalue())
    names = np.array([f"{row:02}" for row in range(30)])
    np.savez(
        folder / "labels.npz",
        image=names,
        classes=np.array(["r", "g", "b"]),
        labels=truth.astype(np.int8),
        observed=np.where(np.arange(30) < 16, observed, -1),
        train=np.arange(16),
        val=np.arange(16, 22),
        test=np.arange(22, 30),
    )
    return folder


def experiment(name, **changes):
    train = TrainSettings(epochs=2, batch_size=8, learning_rate=1e-2)
    options = {"k": 1.5, "data": "tiny", "draw": LabelDraw(), "validation": "full", "backbone": "small"}
    return Experiment(name, train=train, image_size=32, **options, **changes)


def runner(folder, out, **options):
    return Runner([DataSource("tiny", folder)], out, **{"device": "cpu", **options})


def test_an_experiment_runs_once(pack_folder, tmp_path):
    first = runner(pack_folder, tmp_path).run_network(experiment("em"))
    assert 0 < first["test_map"] <= 1
    assert 0 < first["recovery_map"] <= 1
    assert first["f1_threshold"] == 0.75
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert runner(pack_folder, tmp_path).rows([experiment("em")]) == [first]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == stamps


def test_the_result_of_a_diverged_run_is_checked(tmp_path):
    path, run = tmp_path / "result.json", experiment("an")
    path.write_text(json.dumps(diverged_row(run)))
    assert read_row(path, run)["diverged"] is True
    path.write_text(json.dumps(diverged_row(run) | {"diverged": "yes"}))
    with pytest.raises(InputError, match=r"diverged.*delete it"):
        read_row(path, run)


def test_settings_and_data_identify_a_result(pack_folder, tmp_path):
    given = runner(pack_folder, tmp_path)
    changed = [{}, {"settings": {"entropy_weight": 0.1}}, {"head": "cam"}, {"head_settings": {"a": 1}}]
    paths = {given.path(experiment("em", **changes)) for changes in changed}
    paths |= {given.path(experiment("an")), given.path(experiment("em").seeded(3))}
    assert len(paths) == 6
    assert given.path(experiment("em", entry="another name")) in paths  # the name in the table does not count
    with zipfile.ZipFile(pack_folder / "images.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    other = tmp_path / "other"
    other.mkdir()
    (other / "labels.npz").write_bytes((pack_folder / "labels.npz").read_bytes())
    with zipfile.ZipFile(other / "images.zip", "w") as archive:
        for name, content in (files | {"03.png": files["04.png"]}).items():
            archive.writestr(name, content)
    assert runner(other, tmp_path).path(experiment("em")) not in paths


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package's layout whose files a test may change."""
    root = tmp_path / "spml"
    names = ("losses/a.py", "bench/measure.py", "report/page.py", "data/augment.py", "data/formats/table.py")
    for name in (*names, "data/stores/images.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('"""Text."""\n\n\ndef f(x):\n    """More."""\n    return 2 * x  # twice\n')
    monkeypatch.setattr(versions, "ROOT", root)
    monkeypatch.setattr(versions, "_package_version", versions._package_version.__wrapped__)
    return root


def test_only_code_that_can_change_a_result_counts(package):
    before = versions.code_version("an")
    loss = package / "losses" / "a.py"
    loss.write_text('"""Other text."""\ndef f(x):\n\n    "Still more."\n    return 2*x\n')
    (package / "report" / "page.py").write_text("x = 1\n")
    (package / "report" / "new.py").write_text("y = 1\n")
    (package / "data" / "formats" / "table.py").write_text("x = 1\n")  # the data have a fingerprint of their own
    assert versions.code_version("an") == before
    loss.write_text("def f(x):\n    return 3 * x\n")
    after = versions.code_version("an")
    assert after != before
    (package / "bench" / "measure.py").write_text("def g(x):\n    return x\n")
    later = versions.code_version("an")
    assert later not in (before, after)
    (package / "data" / "stores" / "images.py").write_text("x = 1\n")
    assert versions.code_version("an") not in (before, after, later)


PLUGIN = """
from spml.methods import loss_method

def mine(logits, labels, *, weight: float = 1.0):
    return weight * logits.square()

loss_method("mine", mine, paper="-", summary="-")
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A file with a method of its own, imported."""
    monkeypatch.setattr(registry, "_imported", [])
    path = tmp_path / "my_plugin.py"
    path.write_text(PLUGIN)
    import_plugins([str(path)])
    yield path
    del METHODS["mine"], sys.modules["my_plugin"]


def test_formula_of_a_plugin_counts(plugin):
    ours, before = versions.code_version("an"), versions.code_version("mine")
    assert versions.plugin_files("mine") == [plugin]
    plugin.write_text(PLUGIN + "# a comment\n")
    assert versions.code_version("mine") == before
    plugin.write_text(PLUGIN.replace("square", "abs"))
    assert versions.code_version("mine") != before
    assert versions.code_version("an") == ours


def test_changed_code_stops_the_benchmark_before_the_next_run(pack_folder, tmp_path, plugin):
    """The plug-in is edited while the first run is trained; what is imported is the code before."""
    lines = []

    def edit(line):
        lines.append(line)
        plugin.write_text(PLUGIN.replace("weight * logits", "2 * weight * logits"))

    both = [experiment("mine", settings={"weight": weight}) for weight in (1.0, 2.0)]
    given = runner(pack_folder, tmp_path)
    first = given.path(both[0])
    given.notify = lambda line: edit(line) if line.startswith("[1/2]") else None
    with pytest.raises(InputError, match=r"the code or the data changed while the benchmark ran\. Finished runs"):
        given.rows(both)
    assert [line[:5] for line in lines] == ["[1/2]"]
    assert [path.parent.name for path in tmp_path.glob("*/result.json")] == [first.parent.name]


def test_a_worker_with_other_code_runs_nothing(pack_folder, tmp_path):
    given = runner(pack_folder, tmp_path)
    spec, never = (tuple(given.sources.values()), tmp_path, "cpu"), Runner.run_network
    with pytest.raises(InputError, match="the code or the data changed"):
        _work_in_worker(spec, never, experiment("an"), [tmp_path / "an-of-other-code" / "result.json"])


def test_the_estimate_counts_runs_in_flight(monkeypatch):
    now, lines = iter([0.0, 120.0, 180.0]), []
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = _Progress(10, lines.append)
    for name in ("a", "b", "c"):
        clock.finished(1, name, workers=2)
    # After 2 of 10 and half of a third: 7.5 runs left at 120 / 2.5 seconds each; later 6.5 at 180 / 3.5.
    assert lines == ["[1/10] a", "[2/10] b, about 6 min left", "[3/10] c, about 6 min left"]
    lines.clear()
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    alone = _Progress(2, lines.append)
    monkeypatch.setattr(time, "perf_counter", lambda: 60.0)
    alone.finished(1, "a", workers=1)
    assert lines == ["[1/2] a, about 60 s left"]


def test_all_modules_of_a_plugin_package_count(tmp_path, monkeypatch):
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("from my_package import methods\n")
    (package / "methods.py").write_text(PLUGIN)
    (package / "helpers.py").write_text("SCALE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_imported", [])
    import_plugins(["my_package"])
    try:
        before = versions.code_version("mine")
        (package / "helpers.py").write_text("SCALE = 2\n")
        assert versions.code_version("mine") != before
    finally:
        del METHODS["mine"]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_workers_import_the_plugins_and_give_the_same_results(pack_folder, tmp_path, plugin, device):
    experiments = [experiment(name) for name in ("mine", "bce")]
    together = runner(pack_folder, tmp_path, device=device, workers=2).rows(experiments)
    assert [row["method"] for row in together] == ["mine", "bce"]
    alone = runner(pack_folder, tmp_path / "alone", device=device).run_network(experiments[0])
    assert alone["test_map"] == pytest.approx(together[0]["test_map"], abs=1e-6)


def test_interrupted_workers_leave_checkpoints(pack_folder, tmp_path):
    short = experiment("an")
    endless = replace(short, train=replace(short.train, epochs=100_000))
    given = runner(pack_folder, tmp_path, workers=2)
    folder = given.path(endless).parent
    rows = given._run_tasks(Runner.run_network, [short, endless], ["short", "endless"], workers=2)
    number, row = next(rows)
    assert (number, row["method"]) == (0, "an")
    log = folder / "log.jsonl"
    until = time.monotonic() + 120
    while not log.exists() and time.monotonic() < until:  # the first checkpoint is older: it is the start
        time.sleep(0.1)
    assert log.exists(), "no epoch was logged within 120 seconds"
    before = log.stat().st_size
    rows.close()
    ended = log.stat().st_size
    time.sleep(1)
    assert before <= ended == log.stat().st_size  # nothing runs any more
    assert (folder / "last.safetensors").exists()
    assert not (folder / "result.json").exists()


def test_data_without_full_labels_is_an_error(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (32, 32), number).save(tmp_path / name / f"{number}.png")
    source = DataSource.parse(f"mine={tmp_path}", "folder")
    with pytest.raises(InputError, match="a benchmark needs"):
        source.open(features=False, image_size=32)
