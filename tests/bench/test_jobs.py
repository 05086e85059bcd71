"""Jobs of the benchmark on a tiny pack the test writes itself."""

import io
import shutil
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from spml.bench.jobs import Job, labels_for, pack_fingerprint, run_job, run_jobs
from spml.data import load_pack
from spml.methods import method
from spml.train.settings import TrainSettings


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


def job(folder, name, **changes):
    train = TrainSettings(epochs=2, batch_size=8, learning_rate=1e-2)
    return Job(str(folder), name, train=train, backbone="small", image_size=32, k=1.5, **changes)


def test_a_job_runs_once(pack_folder, tmp_path):
    first = run_job(job(pack_folder, "em"), tmp_path, device="cpu")
    assert 0 < first["test_map"] <= 1
    assert 0 < first["recovery_map"] <= 1
    assert first["f1_threshold"] == 0.75
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert run_job(job(pack_folder, "em"), tmp_path, device="cpu") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == stamps


def test_other_settings_are_another_job(pack_folder):
    keys = {
        job(pack_folder, "em").key("x"),
        job(pack_folder, "em").key("y"),
        job(pack_folder, "em", settings={"entropy_weight": 0.1}).key("x"),
        job(pack_folder, "an").key("x"),
    }
    assert len(keys) == 4


def test_a_fingerprint_tells_packs_apart(pack_folder):
    pack = load_pack(pack_folder)
    others = (
        replace(pack, train=np.arange(17), val=np.arange(17, 22)),  # the same numbers, parted elsewhere
        replace(pack, ids=np.array([f"{name}é" for name in pack.ids])),
        replace(pack, truth=-pack.truth),
        replace(pack, largest_share=np.zeros((30, 3), np.float32)),
    )
    assert len({pack_fingerprint(made) for made in (pack, *others)}) == 5
    assert pack_fingerprint(load_pack(pack_folder)) == pack_fingerprint(pack)


def test_other_images_are_another_pack(pack_folder, tmp_path):
    shutil.copytree(pack_folder, tmp_path / "pack")
    before = pack_fingerprint(load_pack(tmp_path / "pack"))
    with zipfile.ZipFile(tmp_path / "pack" / "images.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "pack" / "images.zip", "w") as archive:
        for name, content in (files | {"03.png": files["04.png"]}).items():
            archive.writestr(name, content)
    assert pack_fingerprint(load_pack(tmp_path / "pack")) != before


def test_references_see_what_they_are_defined_on(pack_folder):
    pack = load_pack(pack_folder)
    assert labels_for(method("an"), pack).is_single_positive
    assert labels_for(method("bce"), pack).is_full
    signed = labels_for(method("iun"), pack).dense()
    truth = pack.truth[pack.train]
    assert ((signed < 0) == (truth < 0)).all()
    assert ((signed > 0).sum(1) == 1).all()
    assert (signed[np.arange(16), pack.observed[pack.train]] == 1).all()


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_several_at_a_time(pack_folder, tmp_path, device):
    jobs = [job(pack_folder, name) for name in ("an", "bce")]
    rows = list(run_jobs(jobs, tmp_path, device=device, workers=2))
    assert sorted(row["method"] for row in rows) == ["an", "bce"]
    alone = run_job(jobs[0], tmp_path / "alone", device=device)
    together = next(row for row in rows if row["method"] == "an")
    assert alone["test_map"] == pytest.approx(together["test_map"], abs=1e-6)


def test_broken_off_workers_leave_checkpoints(pack_folder, tmp_path):
    short = job(pack_folder, "an")
    endless = replace(short, train=replace(short.train, epochs=100_000))
    folder = tmp_path / endless.key(pack_fingerprint(load_pack(pack_folder)))
    rows = run_jobs([short, endless], tmp_path, device="cpu", workers=2)
    assert next(rows)["method"] == "an"
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
