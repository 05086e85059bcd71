"""`spml bench` on a tiny pack: tables, report, resuming, results that are reused, searches that machines share."""

import csv
import json
import os
import re
import subprocess
import sys
import time

import pytest
from test_bench_protocols import study_sides

from spml.bench import data, origin, runner
from spml.bench.data import DataSource
from spml.bench.protocols import load_protocol
from spml.bench.runner import Runner
from spml.bench.search import Optuna, execute
from spml.bench.toml_files import packaged_files
from spml.data import write_pack as make_pack
from spml.runs.folder import open_run
from support.bench_pack import FINETUNE, LINEAR, write_pack
from support.command import run
from support.official_layouts import write_voc


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return write_pack(tmp_path_factory.mktemp("bench") / "pack")


@pytest.fixture
def protocol(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(LINEAR)
    return path


@pytest.fixture
def spml(monkeypatch, capsys):
    return lambda *arguments: run("bench", *arguments, monkeypatch=monkeypatch, capsys=capsys)


@pytest.fixture
def trained(monkeypatch):
    """How many heads were trained, in each call."""
    calls = []
    original = runner.train_heads

    def counted(features, labels, specs, **options):
        calls.append(len(specs))
        return original(features, labels, specs, **options)

    monkeypatch.setattr(runner, "train_heads", counted)
    return calls


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_protocol_from_file_to_report(spml, pack, protocol, tmp_path, trained):
    out = tmp_path / "out"
    command = (protocol, "--data", f"voc12={pack}", "--methods", "bce,an", "--device", "cpu", "--out", out)
    code, text = spml(*command)
    assert code == 0, text
    assert "Tiny, linear" in text
    assert sum(trained) == 2 * 2 * 2 * 2  # methods, rates, batch sizes, seeds
    every = rows(out / "runs.csv")
    assert len(every) == 16
    assert sum(row["chosen"] == "True" for row in every) == 4
    assert {row["seed"] for row in every} == {"0", "1"}
    assert all("spml bench" in row["command"] and row["hardware"] and row["code"] for row in every)
    for method in ("bce", "an"):  # the chosen setting has the best mean validation mAP
        scores = {}
        for row in every:
            if row["method"] == method:
                key = (row["learning_rate"], row["batch_size"], row["chosen"])
                scores.setdefault(key, []).append(float(row["validation_map"]))
        best = max(scores, key=lambda key: sum(scores[key]))
        assert best[2] == "True"
    table = {row["method"]: row for row in rows(out / "table.csv")}
    assert table["an"]["paper"] == "84.2"  # the own protocol names Cole et al.'s table
    assert float(table["an"]["difference"]) == pytest.approx(float(table["an"]["mean"]) - 84.2)
    assert table["bce"]["test"] == ""  # two seeds
    assert "bce*" in (out / "table.md").read_text()
    report = (out / "report.html").read_text()
    assert "Tiny, linear" in report
    assert "Test mAP on voc12" in report
    assert report.count('class="point ') == 4  # two methods, two seeds
    assert report.count('class="ring"') == 2  # and the paper's numbers
    assert "Validation mAP" in report
    assert "Gain per class" in report  # the comparison of runs is part of it
    assert len(list((out / "runs").glob("*.safetensors"))) == 4  # weights of the chosen heads alone

    trained.clear()
    before = (out / "table.csv").read_bytes()
    assert spml(*command)[0] == 0
    assert not trained
    assert (out / "table.csv").read_bytes() == before
    code, text = spml(protocol, *command[1:4], "bce,an,role", *command[5:])
    assert code == 0
    assert sum(trained) == 8  # role alone


def test_changes_of_the_protocol_are_stated_everywhere(spml, pack, protocol, tmp_path):
    out = tmp_path / "out"
    options = ("--data", f"voc12={pack}", "--methods", "an,em", "--device", "cpu", "--seeds", "0", "--out", out)
    code, text = spml(protocol, *options, "--search", "none", "--set", "train.epochs=2", "--set", "kind=linear")
    assert code == 0, text
    stated = "Changed from the protocol: train.epochs = 2, search = none."
    assert stated in " ".join(text.split())
    assert f"- {stated}" in (out / "table.md").read_text()
    report = (out / "report.html").read_text()
    assert f'<p class="lead">2 runs. {stated}</p>' in report
    assert "Changed from the protocol" not in spml(protocol, *options, "--dry-run")[1]


def test_killed_study_resumes(pack, protocol, tmp_path, spml, trained):
    out = tmp_path / "out"
    command = ["bench", str(protocol), "--data", f"voc12={pack}", "--device", "cpu", "--out", str(out)]
    command += ["--set", "train.epochs=15"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "spml", *command], env=environment)
    found = []
    try:
        until = time.monotonic() + 120
        while (
            not (found := list((out / "runs").glob("*.json"))) and time.monotonic() < until and process.poll() is None
        ):
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert found, "no head was finished in time"
    done = {path: path.read_bytes() for path in (out / "runs").glob("*.json")}
    code, text = spml(*command[1:])
    assert code == 0, text
    assert sum(trained) == 3 * 2 * 2 * 2 - len(done)
    assert {path: path.read_bytes() for path in done} == done


def numbers_and_texts(row):
    """The cells of a row that are numbers, and the others."""
    numbers, texts = {}, {}
    for name, text in row.items():
        try:
            numbers[name] = float(text)
        except ValueError:
            texts[name] = text
    return numbers, texts


def test_heads_in_worker_processes(pack, protocol, tmp_path, spml, trained):
    command = (protocol, "--data", f"voc12={pack}", "--device", "cpu")
    found = []
    for workers in (1, 2):
        code, text = spml(*command, "--workers", workers, "--out", tmp_path / str(workers))
        assert code == 0, text
        every = [row | {"seconds": "", "command": ""} for row in rows(tmp_path / str(workers) / "runs.csv")]
        found.append([numbers_and_texts(row) for row in every])
    assert sum(trained) == len(found[0]) == 3 * 2 * 2 * 2  # the second time none in this process
    for alone, together in zip(*found, strict=True):
        assert together[0] == pytest.approx(alone[0], rel=1e-5)  # other cores may add in another order
        assert together[1] == alone[1]


def test_heads_on_features_of_two_backbones(tmp_path, spml, trained):
    pack, path = write_pack(tmp_path / "pack"), tmp_path / "own.toml"
    (pack / "features.npy").unlink()
    (tmp_path / "tiny.toml").write_text("image_size = 32\n" + LINEAR)
    path.write_text(
        'title = "Backbones"\nrun = ["an"]\n[features]\n'
        f'protocol = "{tmp_path / "tiny.toml"}"\n[vary]\nbackbone = ["small", "small-nf"]\n'
    )
    options = ("--features", "--seeds", "0", "--search", "none", "--device", "cpu")
    code, text = spml(path, "--data", f"voc12={pack}", *options, "--out", tmp_path / "out")
    assert code == 0, text
    assert trained == [1, 1]  # apart: each sees its own features
    first, second = (float(row["validation_map"]) for row in rows(tmp_path / "out" / "runs.csv"))
    assert first != second


def test_error_for_another_backbone_on_given_features(pack, tmp_path, spml):
    protocol, path = tmp_path / "tiny.toml", tmp_path / "own.toml"
    protocol.write_text(LINEAR)
    for varied in ('backbone = ["small", "small-nf"]', "image_size = [32, 64]"):
        path.write_text(f'title = "t"\n[features]\nprotocol = "tiny.toml"\nrun = ["an"]\n[vary]\n{varied}\n')
        for place in (pack, pack / "features.npy"):
            code, text = spml(path, "--features", "--data", f"voc12={place}", "--dry-run")
            assert code == 2
            assert f"voc12: {varied.split()[0]} cannot be varied on the precomputed features features.npy" in text
            assert text.count("\n") == 1


def test_images_with_linear_init_and_draws(spml, pack, tmp_path, monkeypatch):
    path, out = tmp_path / "tiny-images.toml", tmp_path / "out"
    path.write_text(FINETUNE)
    command = (path, "--data", f"voc12={pack}", "--device", "cpu", "--out", out)
    code, text = spml(*command)
    assert code == 0, text
    found = {row["method"]: row for row in rows(out / "runs.csv")}
    assert set(found) == {"an", "iu", "role-linear-init"}
    assert int(found["an"]["labels"]) == 32  # one a row
    assert 32 < int(found["iu"]["labels"]) <= 64  # and where there is one, a negative
    assert all(0 < float(row["test_map"]) <= 1 and 0 <= float(row["test_npv"]) <= 1 for row in found.values())
    assert {(row["p"], row["test"]) for row in rows(out / "pairs.csv")} == {("", "")}  # one seed
    assert "Gain per class" in (out / "report.html").read_text()
    monkeypatch.setattr(runner, "run_experiment", lambda *_, **__: pytest.fail("an experiment ran twice"))
    assert spml(*command)[0] == 0


def test_missing_features_are_computed(spml, tmp_path, trained):
    pack, path, out = write_pack(tmp_path / "pack"), tmp_path / "tiny.toml", tmp_path / "out"
    (pack / "features.npy").unlink()
    path.write_text('backbone = "small"\nimage_size = 32\n' + LINEAR)
    assert spml(path, "--data", f"voc12={pack}", "--dry-run", "--out", out)[0] == 0
    assert not out.exists()
    command = (
        path,
        "--data",
        f"voc12={pack}",
        "--methods",
        "an",
        "--seeds",
        "0",
        "--search",
        "none",
        "--device",
        "cpu",
    )
    code, text = spml(*command, "--out", out)
    assert code == 0, text
    assert "the features are small's at 32 pixels" in text
    (made,) = (out / "runs").glob("features-voc12-small-32-*.npy")
    stamp = made.stat().st_mtime_ns
    assert spml(*command, "--out", out)[0] == 0
    assert made.stat().st_mtime_ns == stamp
    assert trained == [1]


def test_texts_become_features(spml, protocol, tmp_path, trained):
    words = {"fruit": "apple pear plum", "post": "parcel stamp letter"}
    present = [(row % 3 != 1, row % 3 != 0) for row in range(60)]
    lines = ["text,fruit,post"]
    for row, labels in enumerate(present):
        found = [words[name].split()[row % 2 :] for name, is_present in zip(words, labels, strict=True) if is_present]
        lines.append(f"{' '.join(word for part in found for word in part)},{int(labels[0])},{int(labels[1])}")
    (tmp_path / "texts.csv").write_text("\n".join(lines))
    pack, out = tmp_path / "texts", tmp_path / "out"
    make_pack(tmp_path / "texts.csv", tmp_path / "texts.csv", pack, text_column="text", class_columns=["fruit", "post"])
    command = ("--data", f"voc12={pack}", "--methods", "an", "--seeds", "0", "--set", "train.epochs=40")
    code, text = spml(protocol, *command, "--out", out)
    assert code == 0, text
    assert "words and word pairs" in text
    assert "apple" in (out / "report.html").read_text()
    with (out / "runs.csv").open() as file:
        assert all(float(line["test_map"]) > 0.9 for line in csv.DictReader(file))
    assert spml(protocol, *command, "--out", out)[0] == 0
    assert trained == [2, 2]  # none by the second command


def test_study_on_features(spml, pack, tmp_path):
    protocol, study, out = tmp_path / "tiny.toml", tmp_path / "budget.toml", tmp_path / "out"
    protocol.write_text(LINEAR)
    study.write_text(
        'title = "Budget"\nwhere = "here"\nrun = ["bce", "an"]\nintervals = true\n'
        f'[features]\nprotocol = "{protocol}"\nsearch = "none"\n'
        '[vary]\ndraw.rows = [0.5, 1.0]\n[show]\nx = "labels"\nlog_x = true\n'
    )
    code, text = spml(study, "--features", "--data", f"voc12={pack}", "--seeds", "0", "--device", "cpu", "--out", out)
    assert code == 0, text
    found = {(row["method"], float(row["value"])): row for row in rows(out / "runs.csv")}
    assert {key: int(row["labels"]) for key, row in found.items()} == {
        ("bce", 0.5): 16 * 3, ("bce", 1.0): 32 * 3, ("an", 0.5): 16, ("an", 1.0): 32,
    }  # fmt: skip
    assert "Budget: voc12" in (out / "report.html").read_text()
    assert [row["rows"] for row in rows(out / "intervals.csv")] == ["5", "10", "25"]
    assert rows(out / "intervals.csv")[0]["paper_high"] == "2.0"
    assert "on features only: give --features" in spml(study, "--data", f"voc12={pack}", "--out", out)[1]


def test_dry_run_of_every_protocol_and_study(spml, pack, tmp_path):
    for name in packaged_files("protocols"):
        data = () if name == "scenes" else ("--data", f"voc12={pack}")  # those are built in
        code, text = spml(name, *data, "--dry-run")
        assert code == 0, text
        assert "runs, 0 of them already done" in text
    for name in packaged_files("studies"):
        for side in study_sides(name):
            if name == "apl-ablation":
                continue  # the same file with cub
            flag = ("--features",) if side == "features" else ()
            code, text = spml(name, *flag, "--data", f"voc12={pack}", "--dry-run")
            assert code == 0, text
    code, text = spml("apl-ablation", "--features", "--data", f"cub={pack}", "--dry-run")
    assert code == 0, text
    assert "proportion 0.1" in text
    write_voc(tmp_path)
    code, text = spml("cole2021-finetune", "--data", f"voc12={tmp_path}", "--dry-run")
    assert code == 0, text
    assert "in the papers" in text  # an official layout says what differs from the papers' counts
    assert not any((pack / name).exists() for name in ("runs", "table.md"))


def test_built_in_scenes(spml, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "QUICKSTART", {"train": 60, "test": 20})
    data._open.cache_clear()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").mkdir()  # and are not taken for a folder
    few = ("--methods", "an,bce", "--seeds", "0", "--device", "cpu", "--set", "train.epochs=1")
    code, text = spml("scenes", *few, "--out", "out")
    data._open.cache_clear()
    assert code == 0, text
    assert [row["labels"] for row in rows(tmp_path / "out" / "runs.csv")] == ["48", "480"]
    (folder,) = (tmp_path / "out" / "runs").glob("an-*")
    options = {"train": 60, "test": 20, "size": 48}
    assert open_run(folder).source == {"path": "scenes", "kind": "scenes", "options": options}
    code, text = spml("scenes", "--data", "scenes=./scenes", *few, "--out", "out")
    assert code == 2
    assert str(tmp_path / "scenes") in text


def test_references_are_left_out_without_full_labels(spml, tmp_path, protocol):
    hidden = write_pack(tmp_path / "hidden", hide_training_truth=True)
    code, text = spml(protocol, "--data", f"voc12={hidden}", "--dry-run")
    assert code == 0
    assert "bce left out; the full labels" in text
    code, text = spml(protocol, "--data", f"voc12={hidden}", "--methods", "bce", "--seeds", "0", "--out", tmp_path)
    assert code == 2
    assert "full labels" in text
    protocol.write_text(LINEAR + '[methods.two]\nmethod = "an"\ndraw.positives = 2\n')  # from labels nobody has
    assert "bce, two left out; the full labels" in spml(protocol, "--data", f"voc12={hidden}", "--dry-run")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lasd", "--out", "x"], "no data: pass --data NAME=PATH; the names in lasd: voc12, coco, nus, cub"),
        (["lasd"], "--out DIR"),
        (["nothing", "--out", "x"], "No protocol or study 'nothing'"),
        (["nothing", "--data", "voc12=/nowhere", "--dry-run"], "No protocol or study 'nothing'"),
        (["lasd", "--data", "voc12=PACK", "--data", "voc12=/tmp", "--dry-run"], "--data voc12=… is given 2 times"),
        (["lasd", "--data", "voc12=PACK", "--device", "tpu", "--dry-run"], "device must be auto, cpu, cuda"),
        (["lasd", "--data", "voc12", "--dry-run"], "not of the form name=path"),
        (["lasd", "--data", "voc12=/nowhere", "--dry-run"], "no file or folder /nowhere"),
        (["nothing", "--data", "voc12=PACK", "--out", "x"], "No protocol or study 'nothing'"),
        (["lasd", "--data", "voc12=PACK"], "--out DIR"),
        (["lasd", "--data", "voc=PACK", "--dry-run"], "has no data set 'voc'"),
        (["lasd", "--data", "voc12=PACK", "--methods", "anx", "--dry-run"], "No method named 'anx'"),
        (["lasd", "--data", "voc12=PACK", "--seeds", "a", "--dry-run"], "not a list of whole numbers"),
        (["lasd", "--data", "voc12=PACK", "--search", "luck", "--dry-run"], "must be one of published, grid"),
        (["lasd", "--data", "voc12=PACK", "--features", "--dry-run"], "trains networks on images"),
        (["lasd", "--data", "voc12=PACK", "--head", "hat", "--dry-run"], "--head hat: no such head"),
        (["features", "--data", "voc12=PACK", "--head", "own", "--dry-run"], "on features every head is linear"),
        (["backbones", "--data", "voc12=PACK", "--head", "own", "--dry-run"], "A study can vary the head itself"),
        (
            ["lasd", "--data", "voc12=PACK", "--methods", "boostlu", "--head", "attention", "--dry-run"],
            "nothing is left",
        ),
        (["cole2021-linear", "--data", "voc12=PACK", "--methods", "lac", "--dry-run"], "not available for features"),
        (["lasd", "--data", "voc12=PACK", "--trials", "5", "--dry-run"], "--trials works only with --search optuna"),
        (["lasd", "--data", "voc12=PACK", "--storage", "sqlite:///a", "--dry-run"], "works only with --search optuna"),
    ],
)
def test_errors_are_one_sentence(spml, pack, arguments, message):
    code, text = spml(*(argument.replace("PACK", str(pack)) for argument in arguments))
    assert code == 2
    assert message in text
    assert text.startswith("spml: ")
    assert text.count("\n") == 1


def test_error_for_a_protocol_without_methods(spml, pack, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('title = "t"\nkind = "linear"\n[data.voc12]\n')
    code, text = spml(path, "--data", f"voc12={pack}", "--dry-run")
    assert code == 2
    assert "lists no methods: add a table such as [methods.an], or pass --methods" in text
    code, text = spml(path, "--data", f"voc12={pack}", "--methods", "role", "--dry-run")
    assert code == 2
    assert "role needs k, the average number of labels per row: set data.voc12.k" in text
    study = tmp_path / "study.toml"
    study.write_text(f'title = "t"\nrun = ["role"]\n[features]\nprotocol = "{path.name}"\n[vary]\nk = [1.0, 2.0]\n')
    code, text = spml(study, "--features", "--data", f"voc12={pack}", "--dry-run")
    assert code == 0, text  # the study tells k


def test_dry_run_counts_optuna_trials(spml, pack, protocol):
    options = ("--data", f"voc12={pack}", "--methods", "an", "--seeds", "0,1", "--search", "optuna", "--dry-run")
    assert spml(protocol, *options, "--trials", "5")[1].endswith("\n10 runs, 0 of them already done.\n")


def test_diverged_heads_are_chosen_last(spml, pack, protocol, tmp_path):
    def bench(rates, *more):
        options = ("--data", f"voc12={pack}", "--seeds", "0", "--search", "grid", "--out", tmp_path / "out")
        return spml(protocol, *options, "--set", f"grid.train.learning_rate={rates}", *more)

    code, text = bench("[1e38]", "--methods", "an")
    assert code == 2
    assert "spml: an: diverged in the first epoch with all settings" in text
    code, text = bench("[1e38]", "--methods", "an,em", "--set", "methods.em.grid.train.learning_rate=[0.01]")
    assert code == 0, text
    assert "an: diverged in the first epoch" in text
    assert [row["method"] for row in rows(tmp_path / "out" / "table.csv")] == ["em"]
    assert "weights were not kept" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    code, text = bench("[1e38,0.01]", "--methods", "an")
    assert code == 0, text
    assert "not finite" not in text
    found = rows(tmp_path / "out" / "runs.csv")
    assert {row["learning_rate"]: row["diverged"] for row in found} == {"1e+38": "True", "0.01": ""}
    assert [row["learning_rate"] for row in found if row["chosen"] == "True"] == ["0.01"]


def test_diverged_networks_are_chosen_last(spml, pack, tmp_path):
    protocol = tmp_path / "tiny.toml"
    protocol.write_text(FINETUNE + "[grid]\ntrain.learning_rate = [1e38, 1e-2]\n")
    options = ("--data", f"voc12={pack}", "--methods", "an", "--device", "cpu", "--out", tmp_path / "out")
    for _ in range(2):  # what diverged is not tried again
        code, text = spml(protocol, *options)
        assert code == 0, text
        found = rows(tmp_path / "out" / "runs.csv")
        assert {row["learning_rate"]: row["diverged"] for row in found} == {"1e+38": "True", "0.01": ""}
        assert [row["learning_rate"] for row in found if row["chosen"] == "True"] == ["0.01"]
    assert "to do" not in text
    code, text = spml(protocol, *options, "--set", "grid.train.learning_rate=[1e38]")
    assert code == 2
    assert "spml: an: diverged in the first epoch" in text


def test_errors_for_wrong_types_in_a_file(spml, pack, tmp_path):
    path = tmp_path / "own.toml"
    for wrong, message in (
        (LINEAR.replace('"Tiny, linear"', "5"), "spml: own: title must be a string, not 5\n"),
        ('title = "t"\nkind = "linear"\ndata = 5\n', "spml: own: data must be a table, not 5\n"),
        (LINEAR + "[draw]\nrows = 'half'\n", "spml: own: draw: rows must be a number, not 'half'\n"),
    ):
        path.write_text(wrong)
        assert spml(path, "--data", f"voc12={pack}", "--dry-run") == (2, message)


def test_passwords_are_not_written(monkeypatch):
    address = "postgresql://me:secret@host:5432/search"
    monkeypatch.setattr(sys, "argv", ["spml", "bench", "zhou2022", "--storage", address, "--data", "a=b:c"])
    assert origin.command() == "spml bench zhou2022 --storage postgresql://me:***@host:5432/search --data a=b:c"
    assert origin.without_password("mysql://u:pa/s@s@h/db?password=pw&x=1") == "mysql://u:***@h/db?password=***&x=1"


def test_error_for_a_storage_that_cannot_be_opened(spml, pack, protocol, tmp_path):
    pytest.importorskip("optuna")
    (tmp_path / "notes.db").write_text("no database " * 100)
    options = ("--data", f"voc12={pack}", "--methods", "an", "--search", "optuna", "--out", tmp_path / "out")
    for address in (
        "search.db",
        f"sqlite:///{tmp_path}/nowhere/search.db",
        f"sqlite:///{tmp_path}/notes.db",
        "ftp://a/b",
    ):
        code, text = spml(protocol, *options, "--storage", address)
        assert code == 2
        assert text.startswith(f"spml: --storage {address} cannot be opened (")
        assert text.endswith("such as sqlite:///search.db\n")
        assert text.count("\n") == 1


def test_error_for_a_storage_that_is_lost(spml, pack, protocol, tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    storage = tmp_path / "search.db"
    ask = optuna.Study.ask

    def lose(study, *arguments, **options):
        asked = ask(study, *arguments, **options)
        storage.write_text("no database " * 100)
        return asked

    options = ("--data", f"voc12={pack}", "--methods", "an", "--search", "optuna", "--out", tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(optuna.Study, "ask", lose)
        code, text = spml(protocol, *options, "--storage", f"sqlite:///{storage}")
    assert code == 2
    last = text.splitlines()[-1]
    assert last.startswith(f"spml: --storage sqlite:///{storage} no longer answers (")
    assert last.endswith("the run the same command to resume")
    assert "Traceback" not in text


def test_list(spml):
    code, text = spml("--list")
    assert code == 0
    for name in (*packaged_files("protocols"), *packaged_files("studies")):
        assert name in text


SEARCHING = """
import json, sys
from pathlib import Path
import optuna
from spml.bench.protocols import load_protocol
from spml.bench.search import Optuna, execute
from spml.bench.data import DataSource
from spml.bench.runner import Runner
protocol, pack, storage, out = sys.argv[1:]
get_trials, seen = optuna.Study.get_trials, []
def noted(*arguments, **options):  # the last it asks for are those it chooses from
    found = get_trials(*arguments, **options)
    seen[:] = [[each.params["train.learning_rate"], each.params["train.batch_size"], each.value] for each in found]
    return found
optuna.Study.get_trials = noted
loaded = load_protocol(protocol)
cells = [loaded.search_of("an", "voc12", "grid")]
runner = Runner([DataSource("voc12", Path(pack))], Path(out), device="cpu")
outcomes = execute(cells, (0,), runner, "first seed", Optuna(8, storage, 1))
chosen = [[o.experiment.train.learning_rate, o.experiment.train.batch_size] for o in outcomes if o.chosen]
print(json.dumps([chosen, seen]))
"""


def test_two_machines_share_one_search(pack, protocol, tmp_path):
    optuna = pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    loaded = load_protocol(str(protocol))
    runner = Runner([DataSource("voc12", pack)], tmp_path / "first", device="cpu")
    execute(
        [loaded.search_of("an", "voc12", "grid")], (0,), runner, "first seed", Optuna(1, storage, 1)
    )  # makes the tables
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen(
            [sys.executable, "-c", SEARCHING, str(protocol), str(pack), storage, str(tmp_path / f"machine{number}")],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for number in (1, 2)
    ]  # fmt: skip
    said = [machine.communicate(timeout=300)[0] for machine in machines]
    assert all(machine.returncode == 0 for machine in machines)
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    complete = [
        [trial.params["train.learning_rate"], trial.params["train.batch_size"], trial.value]
        for trial in study.trials
        if trial.state == optuna.trial.TrialState.COMPLETE
    ]
    assert 8 <= len(complete) <= 9  # at most one beyond for each further machine
    seen = []
    for text in said:
        ((rate, size),), scores = json.loads(text)
        best = {tuple(setting): score for *setting, score in scores}
        assert best[rate, size] == max(best.values())  # whoever measured it
        seen.append(scores)
    # Both see the scores of all but a trial that the other is still at, and the one who ends last those of all.
    assert max(seen, key=len) == complete
    assert all(len(scores) >= 8 and all(score in complete for score in scores) for scores in seen)
    late = Runner([DataSource("voc12", pack)], tmp_path / "late", device="cpu")
    (only,) = execute([loaded.search_of("an", "voc12", "grid")], (0,), late, "first seed", Optuna(8, storage, 1))
    scores = {tuple(setting): score for *setting, score in complete}
    assert scores[only.experiment.train.learning_rate, only.experiment.train.batch_size] == max(scores.values())


def test_dry_run_of_data_of_unknown_size_gives_no_estimate(spml, tmp_path):
    protocol = tmp_path / "mine.toml"
    protocol.write_text('title = "Mine"\nkind = "finetune"\nbackbone = "small"\n[data]\nphotos = {}\n[methods.an]\n')
    code, text = spml(protocol, "--dry-run")
    assert code == 0, text
    assert "No estimate of GPU hours: the size of photos is unknown." in text
    assert "varied" not in text  # empty columns are left out


def test_dry_run_works_without_the_data(spml):
    code, text = spml("cole2021-finetune", "--methods", "an,role", "--dry-run")
    assert code == 0, text
    assert "resnet50.tv_in1k 448" in text
    assert {"voc12", "coco", "cub"} <= set(text.split())
    assert "85.1" in text  # the paper's number for AN on VOC
    assert "GPU hours, assuming 0.55 ms per image, view and epoch" in text


def test_estimate_of_gpu_hours(spml, tmp_path):
    def hours(*arguments):
        code, text = spml("voc12-lite2", "--methods", "an", "--seeds", "0", "--search", "none", *arguments, "--dry-run")
        assert code == 0, text
        return float(re.search(r"About (\S+) GPU hours", text).group(1))

    assert hours() == pytest.approx(25 / 3600, rel=0.05)  # the measured run
    assert hours("--set", "train.epochs=40") == pytest.approx(100 / 3600, rel=0.05)
    assert hours("--set", "image_size=640") == pytest.approx(100 / 3600, rel=0.05)
    own = tmp_path / "own.toml"
    own.write_text('title = "t"\nkind = "linear"\n[data.mine]\n[methods.an]\n')
    assert "No estimate of GPU hours: the size of mine is unknown" in spml(own, "--dry-run")[1]


def test_every_method_with_its_own_and_with_the_attention_head(spml, pack, tmp_path):
    path, out = tmp_path / "tiny-images.toml", tmp_path / "out"
    path.write_text(FINETUNE.replace("[methods.an]", "[methods.boostlu]\n[methods.an]"))
    command = (path, "--data", f"voc12={pack}", "--device", "cpu", "--head", "own,attention", "--out", out)
    code, text = spml(*command)
    assert code == 0, text
    assert "boostlu, role-linear-init: left out with the head attention" in text
    assert "an (attention head) seed 0: validation" in text
    own = {"an": "linear", "iu": "linear", "boostlu": "cam", "role-linear-init": "linear"}
    assert {(row["method"], row["head"]) for row in rows(out / "runs.csv")} == {
        *own.items(),
        ("an", "attention"),
        ("iu", "attention"),
    }
    shown = {(row["method"], row["head"]): row for row in rows(out / "table.csv")}
    assert set(shown) == {(name, "own") for name in own} | {("an", "attention"), ("iu", "attention")}
    assert {row["head"] for row in rows(out / "pairs.csv")} == {"own", "attention"}
    code, text = spml(*command[:-4], "--head", "linear,own", "--out", tmp_path / "linear")
    assert code == 0, text  # a run with the method's own head is shared, not repeated
    assert len(rows(tmp_path / "linear" / "runs.csv")) == len(own)
