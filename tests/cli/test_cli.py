"""Every command on small data; errors in the input are one sentence and exit code 2."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import spml as spml_package
from spml.cli import app
from spml.cli.train import parse_settings
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.runs.files import lock_folder, write_tensors
from spml.runs.folder import PREDICTIONS, check_output_path, open_run
from support.command import run
from support.official_layouts import write_voc
from support.shared_data import shared_data

COLOURS = {"red": 0, "green": 1, "blue": 2}


@pytest.fixture
def spml(monkeypatch, capsys):
    return lambda *arguments: run(*arguments, monkeypatch=monkeypatch, capsys=capsys)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder per class: images with a bright channel, often two, found under one of them."""
    root = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for name, channel in COLOURS.items():
        (root / name).mkdir()
        for number in range(12):
            pixels = draw.integers(0, 60, (32, 32, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            if number % 2:
                pixels[..., (channel + 1) % 3] += 150
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


OPTIONS = ("--model", "small", "--size", "32", "--epochs", "3", "--batch-size", "8", "--learning-rate", "0.01")


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "colours"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "spml", "train", str(photos), "--out", str(out), *OPTIONS, "--device", "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "photos0 (format: folder): 3 classes, 29 training rows, 7 held out" in done.stdout
    return out


def test_a_finished_run_is_not_trained_again(spml, photos, trained):
    before = (trained / "last.safetensors").stat().st_mtime_ns
    code, _ = spml("train", photos, "--out", trained, *OPTIONS, "--device", "cpu")
    assert code == 0
    assert (trained / "last.safetensors").stat().st_mtime_ns == before


def test_other_settings_raise(spml, photos, trained):
    code, text = spml("train", photos, "--out", trained, *OPTIONS, "--device", "cpu", "--seed", "7")
    assert code == 2
    assert "train.seed was 0, now 7" in text


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_predict_without_the_training_data(spml, trained, photos, tmp_path, suffix):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(trained, elsewhere)
    out = tmp_path / f"tags.{suffix}"
    code, text = spml("predict", elsewhere, photos / "red" / "0.png", photos / "blue", "--out", out, "--device", "cpu")
    assert code == 0, text
    assert "Labels of 13 images" in text
    if suffix == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    elif suffix == "csv":
        rows = list(csv.DictReader(out.open()))
    else:
        rows = parquet.read_table(out).to_pylist()
    assert len({row["image"] for row in rows}) == 13
    assert {row["label"] for row in rows} <= set(COLOURS)
    assert all(0 <= float(row["probability"]) <= 1 for row in rows)


def test_recover_and_report(spml, trained, tmp_path):
    labels = tmp_path / "labels.csv"
    code, text = spml("recover", trained, "--out", labels)
    assert code == 0, text
    rows = list(csv.DictReader(labels.open()))
    observed = [row for row in rows if row["observed"].lower() in ("true", "1")]
    assert all(row["label"] == row["name"].split("/")[0] for row in observed)
    code, text = spml("report", trained, "--out", tmp_path / "report.html")
    assert code == 0, text
    page = (tmp_path / "report.html").read_text()
    assert "<html" in page
    assert "data:image" in page


def test_recover_uses_labelled_rows(spml, trained, tmp_path):
    table = tmp_path / "looked-at.csv"
    table.write_text("name,label\nred/1.png,red\nred/1.png,green\nred/0.png,red\n")
    code, text = spml("recover", trained, "--out", tmp_path / "labels.csv", "--labelled", table)
    assert code == 0, text
    rows = list(csv.DictReader((tmp_path / "labels.csv").open()))
    assert {row["label"] for row in rows if row["name"] == "red/1.png"} == {"red", "green"}
    assert {row["label"] for row in rows if row["name"] == "red/0.png"} == {"red"}
    table.write_text("name;label\nred/0.png;red\n")  # as some spreadsheets save it
    code, text = spml("recover", trained, "--out", tmp_path / "labels.csv", "--labelled", table)
    assert code == 2
    assert "every row has only the labels that were known before: complete the column label" in text
    table.write_text("name,label\nred/0.png,red\ngreen/1.png,red\n")
    code, text = spml("recover", trained, "--out", tmp_path / "labels.csv", "--labelled", table)
    assert code == 2
    assert "line 3: 'green/1.png' is listed without 'green', its observed label" in text
    table.write_text("name,label\nred/99.png,red\n")
    code, text = spml("recover", trained, "--out", tmp_path / "labels.csv", "--labelled", table)
    assert code == 2
    assert "line 2: the run has no row named 'red/99.png'" in text


def test_the_images_of_a_sample_can_be_copied(spml, photos, trained, tmp_path):
    (tmp_path / "look").mkdir()
    command = ("sample", trained, "--rows", 12, "--out", tmp_path / "check.csv", "--copy")
    code, text = spml(*command, tmp_path / "look")
    assert code == 0, text
    assert f"Their images, in the same order: {tmp_path / 'look'}." in text
    names = [line["name"] for line in csv.DictReader((tmp_path / "check.csv").open())]
    copies = sorted((tmp_path / "look").iterdir())
    assert [path.name for path in copies] == [
        f"{number:02}-{name.replace('/', '_')}" for number, name in enumerate(names, start=1)
    ]
    assert [path.read_bytes() for path in copies] == [(photos / name).read_bytes() for name in names]
    code, text = spml(*command, tmp_path / "look")
    assert code == 2
    assert f"--copy {tmp_path / 'look'} already exists: give the path of a new folder" in text
    code, text = spml(*command, photos / "look")
    assert code == 2
    assert f"{photos / 'look'} lies in the data folder {photos}" in text
    assert sorted((tmp_path / "look").iterdir()) == copies
    assert not (photos / "look").exists()


def test_only_images_are_copied(spml, matrix, tmp_path):
    assert spml(*matrix, tmp_path / "run")[0] == 0
    code, text = spml("sample", tmp_path / "run", "--out", tmp_path / "check.csv", "--copy", tmp_path / "look")
    assert code == 2
    assert "there are no image files to copy" in text
    assert not (tmp_path / "check.csv").exists()


def test_info_and_methods(spml, trained):
    code, text = spml("info", trained)
    assert code == 0
    assert "auto" in text
    code, text = spml("methods")
    assert code == 0
    assert "lasd" in text


PLUGIN = """
from torch.nn.functional import softplus
from spml.methods import loss_method

def my_loss(logits, labels, *, weight: float = 1.0):
    return weight * softplus(-logits) * labels.clamp(min=0)

loss_method("my-{0}", my_loss, paper="none", summary="A method of a {0}")
"""


def test_methods_shows_the_settings_of_one_method(spml):
    code, text = spml("methods", "em-apl")
    assert code == 0
    assert "between 0 and 1" in text
    assert "warm_up" in text
    code, text = spml("methods", "emm")
    assert code == 2
    assert "No method named 'emm'" in text


def test_methods_of_the_user_are_imported(spml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugin_file.py").write_text(PLUGIN.format("file"))
    (tmp_path / "plugin_package").mkdir()
    (tmp_path / "plugin_package" / "__init__.py").write_text(PLUGIN.format("package"))
    code, text = spml("methods", "--import", "plugin_file.py", "--import", "plugin_package")
    assert code == 0
    assert "my-file" in text
    assert "my-package" in text
    code, text = spml("methods", "--import", "nowhere.py")
    assert code == 2
    assert "Cannot import the plug-in 'nowhere.py': the file does not exist" in text


def test_train_with_an_imported_method_and_class_columns(spml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugin_for_train.py").write_text(PLUGIN.format("training"))
    draw = np.random.default_rng(0)
    lines = [f"{a:.2f},{b:.2f},{c},{1 - c}" for a, b, c in zip(*draw.normal(size=(2, 40)), [0, 1] * 20, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,cat,dog", *lines]))
    command = ("train", "table.csv", "--class-column", "cat", "--class-column", "dog", "--device", "cpu")
    code, text = spml(*command, "--import", "plugin_for_train.py", "--method", "my-training", "--out", "run")
    assert code == 0, text
    assert "table (format: table): 2 classes, 40 training rows, each predicted by classifiers that did not see" in text
    assert not (open_run("run").labels.dense() < 0).any()
    assert spml(*command, "--method", "an", "--zeros", "negative", "--out", "verified")[0] == 0
    assert (open_run("verified").labels.dense() < 0).any()


def test_new_method_writes_a_package(spml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = spml("new-method", "my-loss")
    assert code == 0
    assert "compare.toml" in text
    assert (tmp_path / "my-loss" / "src" / "spml_my_loss" / "__init__.py").is_file()
    code, text = spml("new-method", "my-loss")
    assert code == 2
    assert "my-loss already exists" in text
    assert spml("new-method", "em", "--out", "other")[0] == 2


def test_pack_makes_a_benchmark_data_set(spml, photos, tmp_path):
    files = sorted(path.relative_to(photos) for path in photos.glob("*/*.png"))
    lines = [f"{file},{int(file.parts[0] == 'red')},{int(file.parts[0] != 'red')}" for file in files]
    (tmp_path / "labels.csv").write_text("\n".join(["image,red,other", *lines]))
    out = tmp_path / "colours"
    code, text = spml("pack", photos, tmp_path / "labels.csv", "--test", 0.5, "--validation", 0.25, "--out", out)
    assert code == 0, text
    assert f"{out}: 14 training, 4 validation and 18 test rows, 2 classes, 1.0 labels per training row" in text
    code, text = spml("pack", photos, tmp_path / "labels.csv", "--out", out)
    assert code == 2
    assert f"{out} already exists" in text


def test_info_of_an_unfinished_run(spml, trained, tmp_path):
    for name in ("run.json", "log.jsonl", "last.safetensors"):
        shutil.copy(trained / name, tmp_path)
    code, text = spml("info", tmp_path)
    assert code == 0
    for word in ("unfinished", "auto", "small", "last.safetensors, log.jsonl, run.json"):
        assert word in text
    assert spml("info", tmp_path / "nothing")[0] == 2


def test_info_of_data_compares_its_counts_with_the_papers(spml, tmp_path):
    folder = write_voc(tmp_path)
    code, text = spml("info", folder)
    assert code == 0
    for word in ("voc", "aining", "20", "differ", "training images: ", "4574 in the papers (Zhou et al. 2022, Table 4"):
        assert word in text
    assert spml("info", folder, "--paper", "voc12")[0] == 1  # for scripts
    code, text = spml("info", "scenes")
    assert code == 0
    assert "papers" not in text
    code, text = spml("info", folder, "--paper", "voc07")
    assert code == 2
    assert text == "spml: --paper voc07: choose from voc12, coco, nus, cub\n"


def test_info_of_data_with_the_counts_of_the_papers(spml):
    code, text = spml("info", shared_data("voc12"), "--paper", "voc12")
    assert code == 0
    assert "all equal" in text
    assert "4574 train, 1143 validation, 5823 test" in text


def test_recover_uses_k(spml, trained, tmp_path):
    counts = []
    for k in (1.1, 2.5):
        assert spml("recover", trained, "--out", tmp_path / f"{k}.csv", "--k", k)[0] == 0
        counts.append(len((tmp_path / f"{k}.csv").read_text().splitlines()))
    assert counts[0] < counts[1]
    code, text = spml("recover", trained, "--out", tmp_path / "none.csv", "--k", 4)
    assert code == 2
    assert "k must be above 0 and at most 3" in text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "resnet50"), "--model resnet50 applies only to images, and this data is features or texts"),
        (("--epochs", 3), "--epochs 3 applies only to images"),
        (("--learning-rate", 0.1), "features or texts, where nothing has to be tuned: leave it out"),
        (("--encoder", "words"), "--encoder words applies only to texts"),
        (("--size", 99), "--size 99 applies only to images"),
        (("--head", "cam"), "--head cam applies only to images"),
    ],
)
def test_image_options_raise_on_features(spml, matrix, tmp_path, options, sentence):
    code, text = spml(*matrix, tmp_path / "run", *options)
    assert code == 2
    assert sentence in text


def test_a_run_is_a_folder(spml, matrix, tmp_path):
    (tmp_path / "file.csv").write_text("mine")
    for out in (tmp_path / "file.csv", tmp_path / "file.csv" / "run"):
        code, text = spml(*matrix, out)
        assert code == 2
        assert f"{tmp_path / 'file.csv'} is a file; choose a folder for the run" in text
    assert (tmp_path / "file.csv").read_text() == "mine"


def test_a_changed_method_is_reported_first(spml, matrix, tmp_path):
    assert spml(*matrix, tmp_path / "run", "--method", "role", "--k", 2)[0] == 0
    code, text = spml(*matrix, tmp_path / "run", "--method", "lasd", "--k", 1.5)
    assert code == 2
    assert "started with other settings: method.name was 'role', now 'lasd'; k was 2.0, now 1.5;" in text
    assert text.count("; and ") == 1
    assert "was None, now None" not in text


def test_unreadable_labels_raise(spml, matrix, tmp_path):
    (tmp_path / "y.txt").write_text("a\nb\n")
    np.save(tmp_path / "objects.npy", np.array(["a", None], object), allow_pickle=True)
    for name, sentence in (
        ("y.txt", "labels must be a .npy file or a table (.csv, .tsv, .parquet, .pq)"),
        ("objects.npy", "it holds Python objects, as pickle stores them; save numbers, or names as text"),
    ):
        code, text = spml("train", tmp_path / "x.npy", "--labels", tmp_path / name, "--out", tmp_path / "run")
        assert code == 2
        assert sentence in text
    (tmp_path / "labels.csv").write_text("label\na\nb\n")
    code, text = spml("train", tmp_path / "x.npy", "--out", tmp_path / "run")
    assert code == 2
    assert "it labels 2 rows" in text
    assert "It was found next to the features; to use another, pass it as labels" in text


def test_options_are_checked_before_images_are_read(spml, photos, tmp_path):
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    (data / "red" / "broken.jpg").write_bytes(b"no image")  # reported once images are read
    for option, value, sentence in (
        ("--head", "foo", "foo"),
        ("--model", "foo", "foo"),
        ("--seed", -1, "seed must be"),
        ("--learning-rate", -1, "--learning-rate must be"),
    ):
        code, text = spml("train", data, "--out", tmp_path / "run", "--device", "cpu", option, value)
        assert code == 2
        assert sentence in text
        assert "broken.jpg" not in text


def test_training_on_images_inside_of_a_table(spml, photos, tmp_path):
    files = sorted(photos.glob("*/*.png"))
    cells = [{"bytes": file.read_bytes(), "path": file.name if number else None} for number, file in enumerate(files)]
    labels = [file.parent.name for file in files]
    parquet.write_table(pa.table({"image": cells, "label": labels}), tmp_path / "photos.parquet")
    command = ("train", tmp_path / "photos.parquet", "--out", tmp_path / "run", *OPTIONS, "--device", "cpu")
    code, text = spml(*command)
    assert code == 0, text
    assert "images from 'image', labels from 'label'" in text
    assert json.loads((tmp_path / "run" / "names.json").read_text()) == [str(row) for row in range(len(files))]


def test_missing_images_of_a_table_can_be_skipped(spml, photos, tmp_path):
    lines = [f"{path},{path.parent.name}" for path in sorted(photos.glob("*/*.png"))]
    (tmp_path / "photos.csv").write_text("\n".join(["path,label", "gone.png,red", *lines]))
    command = ("train", tmp_path / "photos.csv", "--out", tmp_path / "run", *OPTIONS, "--device", "cpu")
    code, text = spml(*command)
    assert code == 2
    assert "gone.png (1 of 37 are missing)" in text
    code, text = spml(*command, "--on-bad-image", "skip")
    assert code == 0, text
    assert "1 of 37 images cannot be read and are left out: gone.png\n" in text


def test_predict_with_recover_takes_no_thresholds(spml, trained, photos, tmp_path):
    for option in (("--threshold", 0.9), ("--top", 2)):
        code, text = spml("predict", trained, photos, "--out", tmp_path / "tags.csv", "--recover", *option)
        assert code == 2
        assert "uses its own thresholds: leave --threshold and --top out" in text


def test_features_can_be_trained_on(spml, tmp_path):
    draw = np.random.default_rng(0)
    single = draw.integers(0, 3, 60)
    values = 0.3 * draw.normal(size=(60, 5)) + np.eye(5)[single]
    np.save(tmp_path / "x.npy", values.astype(np.float32))
    np.save(tmp_path / "y.npy", single)
    arguments = (
        "train",
        tmp_path / "x.npy",
        "--labels",
        tmp_path / "y.npy",
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
    )
    code, text = spml(*arguments)
    assert code == 0, text
    assert f"Next: spml recover {tmp_path / 'run'} --out run-recovered.csv\n" in text
    code, text = spml("recover", tmp_path / "run", "--out", tmp_path / "labels.csv")
    assert code == 0, text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "nowhere", "--out", "x"), "nowhere: no such file or folder"),
        (("train", "scenes", "--out", "x", "--method", "emm"), "No method named 'emm'"),
        (("train", "scenes", "--out", "x", "--setting", "alpha"), "--setting alpha is not of the form name=value"),
        (("train", "scenes", "--out", "x", "--setting", "alpha=1"), "has no setting 'alpha'"),
        (
            ("train", "scenes", "--out", "x", "--method", "em", "--setting", "entropy_weight=big"),
            "method 'em': entropy_weight must be a number, not 'big'",
        ),
        (("info", "nowhere"), "nowhere is not a run"),
        (("recover", "nowhere", "--out", "labels.csv"), "nowhere is not a run"),
        (("report", "nowhere", "--out", "report.html"), "nowhere is not a run"),
        (("predict", "nowhere", "a.jpg", "--out", "tags.csv"), "nowhere is not a finished run"),
        (("predict", "nowhere", "a.jpg", "--out", "tags.txt"), "the file must end in"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence(spml, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, text = spml(*arguments)
    assert code == 2
    assert sentence in text
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


def test_unreadable_images_raise_or_are_skipped(spml, photos, tmp_path):
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    (data / "red" / "broken.jpg").write_bytes(b"no image")
    (data / "blue" / "nowhere.jpg").symlink_to(tmp_path / "nothing.jpg")
    code, text = spml("train", data, "--out", tmp_path / "a", *OPTIONS, "--device", "cpu")
    assert code == 2
    assert "broken.jpg" in text or "nowhere.jpg" in text
    code, text = spml("train", data, "--out", tmp_path / "b", *OPTIONS, "--device", "cpu", "--on-bad-image", "skip")
    assert code == 0, text
    assert "images cannot be read and are left out: blue/nowhere.jpg, red/broken.jpg\n" in text
    assert '"kind": "bad images"' in (tmp_path / "b" / "log.jsonl").read_text()


@pytest.fixture
def matrix(tmp_path):
    draw = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", draw.standard_normal((60, 5)).astype(np.float32))
    np.save(tmp_path / "y.npy", draw.integers(0, 3, 60))
    return ("train", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--base", "linear", "--device", "cpu", "--out")


def test_changed_features_raise(spml, matrix, tmp_path):
    assert spml(*matrix, tmp_path / "run")[0] == 0
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((60, 5)).astype(np.float32))
    code, text = spml(*matrix, tmp_path / "run")
    assert code == 2
    assert "started with other settings: the rows or their files have changed." in text


def test_renamed_photos_raise(spml, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    command = ("train", tmp_path / "photos", "--out", tmp_path / "run", *OPTIONS[:-1], "0.001", "--device", "cpu")
    assert spml(*command)[0] == 0
    (tmp_path / "photos" / "red" / "3.png").rename(tmp_path / "photos" / "red" / "3b.png")
    assert "the rows or their files have changed" in spml(*command)[1]


def test_replaced_photos_raise(spml, photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    command = ("train", tmp_path / "photos", "--out", tmp_path / "run", *OPTIONS[:-1], "0.001", "--device", "cpu")
    assert spml(*command)[0] == 0
    shutil.copytree(photos, tmp_path / "photos", dirs_exist_ok=True)  # the same ones with other times
    assert spml(*command)[0] == 0
    Image.new("RGB", (32, 32)).save(tmp_path / "photos" / "red" / "3.png")
    code, text = spml(*command)
    assert code == 2
    assert "the rows or their files have changed" in text


def test_a_run_without_steps_can_be_restarted_with_other_settings(spml, matrix, photos, tmp_path):
    start = ("train", photos, "--out", tmp_path / "images", *OPTIONS[:-1])
    code, text = spml(*start, "1e38", "--device", "cpu")
    assert code == 2
    assert "the loss became" in text
    code, text = spml(*start, "0.001", "--device", "cpu")
    assert code == 0, text
    code, text = spml(*start, "0.0001", "--device", "cpu")  # this run has steps
    assert code == 2
    assert "train.learning_rate was 0.001, now 0.0001" in text
    assert spml(*matrix, tmp_path / "run")[0] == 0
    code, text = spml(*matrix, tmp_path / "run", "--seed", 1)
    assert code == 2
    assert "train.seed was 0, now 1" in text
    (tmp_path / "run" / "predictions.safetensors").unlink()  # as if it had been interrupted
    assert spml(*matrix, tmp_path / "run", "--seed", 1)[0] == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["train"]["seed"] == 1


def test_run_json_of_another_program_is_kept(spml, matrix, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"other": 1}')
    code, text = spml(*matrix, tmp_path / "run")
    assert code == 2
    assert "run.json is damaged, or was not written by spml" in text
    assert (tmp_path / "run" / "run.json").read_text() == '{"other": 1}'


def test_a_run_folder_is_locked(spml, matrix, tmp_path):
    with lock_folder(tmp_path / "run"):
        code, text = spml(*matrix, tmp_path / "run")
    assert code == 2
    assert f"another command is working in {tmp_path / 'run'}" in text
    assert spml(*matrix, tmp_path / "run")[0] == 0
    assert not list((tmp_path / "run").glob(".*"))


def test_a_removed_lock_file_is_locked_again(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    real, calls = fcntl.flock, []

    def flock(file, operation):
        if not calls:  # the command before this one ends now, and takes its lock away
            (tmp_path / ".lock").unlink()
        calls.append(operation)
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path):
        assert len(calls) == 2
        with pytest.raises(InputError, match="another command is working"), lock_folder(tmp_path):
            pass
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--seed", -1), "spml: --seed must be between 0 and"),
        (("--seed", 10**30), "--seed must be below 2^63 in size, not 1e+30"),
        (("--learning-rate", -5), "--learning-rate must be above 0"),
        (("--device", "foo"), "device must be auto, cpu, cuda, cuda:NUMBER or mps, not 'foo'"),
        (("--method", "role", "--k", -1), "--k must be above 0, or None, not -1.0"),
        (("--method", "role", "--k", 4), "must be above 0 and at most 3, the number of classes, not 4.0"),
        (
            ("--method", "em", "--setting", "entropy_weight=nan"),
            "method 'em': entropy_weight must be finite and at least 0, not nan",
        ),
        (("--setting", "most=0.1", "--setting", "most=0.2"), "--setting most is given twice"),
        (("--method", "role", "--k", "nan"), "--k must be finite and above 0, or None, not nan"),
    ],
)
def test_options_out_of_range_raise(spml, matrix, tmp_path, options, sentence):
    code, text = spml(*matrix, tmp_path / "run", *options)
    assert code == 2
    assert sentence in text
    assert "Traceback" not in text


def test_errors_name_options_as_they_are_typed(spml, tmp_path):
    table = tmp_path / "label_column.csv"
    table.write_text("a,b\n1,x\n2,y\n")
    for options, sentence in (
        (("--label-column", "zz"), f"{table}: no column 'zz'; --label-column must be one of 'a', 'b'."),
        (("--label-column", "label_column"), "no column 'label_column'; --label-column must be"),
        (("--label-column", "b", "--class-column", "a"), "--label-column and --class-column are both given"),
        (("--kind", "x"), "spml: --kind is 'x'"),
    ):
        code, text = spml("train", table, "--out", tmp_path / "run", *options)
        assert code == 2
        assert sentence in text


def test_the_run_folder_is_not_the_data_folder(spml, photos):
    code, text = spml("train", photos, "--out", photos, *OPTIONS)
    assert code == 2
    assert "is the data folder itself" in text


def test_a_file_of_the_user_is_replaced_only_with_force(spml, photos, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for command, name in (
        (("recover", run), "labels.csv"),
        (("report", run), "report.html"),
        (("predict", run, photos / "red", "--device", "cpu"), "tags.csv"),
    ):
        out = tmp_path / name
        out.write_text("mine")
        code, text = spml(*command, "--out", out)
        assert code == 2
        assert f"{out} already exists: use --force to replace it, or another --out" in text
        assert out.read_text() == "mine"
        assert spml(*command, "--out", out, "--force")[0] == 0
        written = out.read_bytes()
        assert spml(*command, "--out", out)[0] == 0  # its own, unchanged file
        assert out.read_bytes() == written
        out.write_bytes(written + b"edited")
        assert spml(*command, "--out", out)[0] == 2
        assert out.read_bytes() == written + b"edited"


@pytest.mark.parametrize("command", ["recover", "report", "predict", "sample", "review"])
def test_a_file_of_another_run_is_reported_before_anything_is_loaded(trained, photos, tmp_path, command):
    out = tmp_path / ("report.html" if command == "report" else "labels.csv")
    out.write_text("of another run")
    more = [photos / "red"] if command == "predict" else []
    option = "--export" if command == "review" else "--out"
    program = (
        "import sys\nfrom spml.cli import main\nimport spml.cli\ntry:\n    main()\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    )
    arguments = [sys.executable, "-c", program, command, trained, *more, option, out]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True)
    assert "labels.csv already exists: use --force" in done.stderr or "report.html already exists" in done.stderr
    assert done.stdout == "2 False\n"
    assert out.read_text() == "of another run"


def test_files_of_a_run_are_never_replaced(spml, photos, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for command, name in (
        (("recover", run, "--format", "coco"), "run.json"),
        (("predict", run, photos / "red", "--device", "cpu"), "log.jsonl"),
    ):
        code, text = spml(*command, "--out", run / name, "--force")
        assert code == 2
        assert f"--out {run / name} is a file of the run itself" in text
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_results_do_not_go_into_a_folder_with_files_of_the_same_names(spml, matrix, tmp_path):
    for name, command in (("names.json", matrix), ("table.csv", ("bench", "scenes", "--out"))):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("mine")
        code, text = spml(*command, folder)
        assert code == 2
        assert f"already contains {name}, which would be replaced" in text
        assert [path.name for path in folder.iterdir()] == [name]


def test_outputs_do_not_go_into_the_data_folder(spml, photos, trained, tmp_path):
    before = sorted(photos.rglob("*"))
    predict = ("predict", trained, photos / "red", "--device", "cpu")
    for command, out in (
        (("recover", trained), photos / "labels.csv"),
        (("recover", trained, "--format", "csv"), photos / "red" / "0.png"),
        (("report", trained), photos / "red" / "0.png"),
        (predict, photos / "labels.parquet"),
    ):
        code, text = spml(*command, "--out", out)
        assert code == 2
        assert f"--out {out} lies in the data folder {photos}" in text
    assert sorted(photos.rglob("*")) == before
    assert spml(*predict, "--out", tmp_path / "labels.csv")[0] == 0


def test_outputs_do_not_replace_images_of_a_table(tmp_path):
    """There is space next to the table itself."""
    table, images, run = tmp_path / "tags.csv", tmp_path / "elsewhere", tmp_path / "run"
    run.mkdir()
    source = {"path": str(table), "options": {"image_root": str(images)}}
    write_tensors(run / PREDICTIONS, {"probabilities": torch.zeros(1)}, {"source": source})
    for out in (tmp_path / "images" / "0.png", images / "a" / "0.JPG"):
        with pytest.raises(InputError, match="lies in the data folder"):
            check_output_path(out, run)
    check_output_path(tmp_path / "labels.csv", run)


def test_outputs_do_not_replace_their_inputs(spml, matrix, tmp_path):
    (tmp_path / "y.csv").write_text("label\n" + "".join(f"{'ab'[row % 2]}\n" for row in range(60)))
    command = [tmp_path / "y.csv" if part == tmp_path / "y.npy" else part for part in matrix]
    assert spml(*command, tmp_path / "run")[0] == 0
    code, text = spml("recover", tmp_path / "run", "--out", tmp_path / "y.csv")
    assert code == 2
    assert f"--out {tmp_path / 'y.csv'} is a file the run was trained on" in text
    table = tmp_path / "new.parquet"
    parquet.write_table(pa.table({f"f{i}": np.zeros(2) for i in range(5)}), table)
    code, text = spml("predict", tmp_path / "run", table, "--out", table, "--device", "cpu", "--force")
    assert code == 2
    assert f"--out {table} is one of the inputs" in text


def test_predict_warns_about_an_unfinished_run(spml, photos, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "predictions.safetensors").unlink()
    lines = [line for line in (run / "log.jsonl").read_text().splitlines() if json.loads(line).get("epoch") != 3]
    (run / "log.jsonl").write_text("\n".join(line for line in lines if '"end"' not in line) + "\n")
    command = ("predict", photos / "red", "--out", tmp_path / "tags.csv", "--device", "cpu")
    code, text = spml(*command[:1], run, *command[1:])
    assert code == 0
    assert f"{run} is an unfinished run (2 of 3 epochs). Run the same `spml train` command to resume it" in text
    assert "Labels of 12 images" in text
    code, text = spml(*command[:1], trained, *command[1:])
    assert "unfinished" not in text
    for refused in (("recover", run, "--out", tmp_path / "labels.csv"), (*command[:1], run, *command[1:], "--recover")):
        code, text = spml(*refused)
        assert code == 2
        assert text.count("is an unfinished run (2 of 3 epochs)") == 1


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("run.json", "{", "is damaged, or was not written by spml"),
        ("run.json", "{}", "is damaged, or was not written by spml"),
        ("names.json", "[1,", "was changed after the training"),
    ],
)
def test_damaged_files_of_a_run_are_named(spml, trained, tmp_path, file, content, problem):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    code, text = spml("info", tmp_path / "run")
    assert code == 2
    assert f"{file} {problem}" in text


def test_the_meaning_of_zeros_is_printed(spml, matrix, tmp_path):
    known = np.eye(3, dtype=np.int8)[np.load(tmp_path / "y.npy")]
    for row, expected in ((known[0], False), (np.ones(3), True)):
        known[0] = row
        np.save(tmp_path / "y.npy", known)
        code, text = spml(*matrix, tmp_path / f"run-{expected}", "--method", "an")
        assert code == 0, text
        assert ("0 is taken as absent" in text) is expected


@pytest.mark.parametrize("labels", [np.array(3), np.full(60, 2**63, np.uint64)])
def test_invalid_label_files_raise(spml, matrix, tmp_path, labels):
    np.save(tmp_path / "y.npy", labels)
    code, text = spml(*matrix, tmp_path / "run")
    assert code == 2
    assert "y.npy: " in text


def test_brackets_in_paths_are_printed(spml, matrix, tmp_path):
    assert spml(*matrix, tmp_path / "q[/b]")[0] == 0
    moved = tmp_path / "x [red].npy"
    (tmp_path / "x.npy").rename(moved)
    code, text = spml(*matrix[:1], moved, *matrix[2:], tmp_path / "q[/b]2")
    assert code == 0
    code, text = spml("info", tmp_path / "q[/b]2")
    assert code == 0
    assert "[red].npy" in text.replace("\n", "")


def test_predict_skips_hidden_files_and_reports_write_errors(spml, trained, photos, tmp_path):
    shutil.copytree(photos / "red", tmp_path / "red")
    (tmp_path / "red" / "._1.png").write_bytes(b"not an image")
    code, text = spml("predict", trained, tmp_path / "red", "--out", tmp_path / "tags.csv", "--device", "cpu")
    assert code == 0, text
    code, text = spml("predict", trained, tmp_path / "red", "--out", tmp_path / "no" / "tags.csv", "--device", "cpu")
    assert code == 2
    assert f"the folder {tmp_path / 'no'} does not exist" in text
    (tmp_path / "red" / os.fsdecode(b"\xfe.png")).write_bytes(b"")
    code, text = spml("predict", trained, tmp_path / "red", "--out", tmp_path / "tags.csv", "--device", "cpu")
    assert code == 2
    assert "the file name is not valid UTF-8" in text


def test_a_read_error_is_not_reported_as_a_write_error(spml, matrix, tmp_path, monkeypatch):
    assert spml(*matrix, tmp_path / "run")[0] == 0

    def fail(*_):
        raise OSError(5, "Input/output error", str(tmp_path / "x.npy"))

    monkeypatch.setattr(FeatureStore, "finite_batch", fail)
    out = tmp_path / "tags.csv"
    code, text = spml("predict", tmp_path / "run", tmp_path / "x.npy", "--out", out, "--device", "cpu")
    assert code == 2
    assert f"spml: {tmp_path / 'x.npy'}: Input/output error" in text
    assert not out.exists()


def test_version(spml):
    assert spml("--version") == (0, f"spml {spml_package.__version__}\n")


def test_every_command_has_help_with_an_example(spml):
    commands = [command.name for command in app.registered_commands]
    assert len(commands) >= 8
    for name in commands:
        code, text = spml(name, "--help")
        assert code == 0
        assert f"Example: spml {name}" in " ".join(text.split())


def test_an_interrupted_command_prints_how_to_resume(spml, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("spml.runs.folder.describe", interrupt)
    code, text = spml("info", "nowhere")
    assert code == 130
    assert "Interrupted. Run the same command to resume." in text


def test_exhausted_memory_is_reported_in_one_sentence(spml, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("spml.runs.folder.describe", fail)
    code, text = spml("info", "nowhere")
    assert code == 2
    assert text == "spml: memory ran out: use a smaller --batch-size or --size, or fewer --workers\n"


def test_settings_are_parsed_by_type():
    read = parse_settings(["a=1", "b=0.5", "c=true", "d=word"])
    assert read == {"a": 1, "b": 0.5, "c": True, "d": "word"}
    with pytest.raises(InputError, match="name=value"):
        parse_settings(["=1"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("info", ""), "spml: an argument is empty: give a value, or leave it out\n"),
        (("train", "scenes", "--out", ""), "spml: --out is empty: give a value, or leave it out\n"),
        (("train", "scenes", "--out="), "spml: --out is empty: give a value, or leave it out\n"),
        (("predict", "", "x.csv"), "spml: an argument is empty: give a value, or leave it out\n"),
    ],
)
def test_empty_arguments_are_one_sentence(arguments, sentence, spml, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert spml(*arguments) == (2, sentence)
    assert not list(tmp_path.iterdir())
