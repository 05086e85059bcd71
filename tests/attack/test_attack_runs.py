"""Damaged run folders and odd options: success, or exit code 2 with one sentence and no new or changed file."""

import errno
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spml as package
from support.attacks import FAULTS, copy, features_of, folder, matrix, snapshot, texts
from support.command import run as run_command

Spml = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def spml(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spml:
    return lambda *arguments: run_command(*arguments, monkeypatch=monkeypatch, capsys=capsys)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    data = matrix(root)
    package.train(str(data), out=root / "run", method="em", progress=False, device="cpu")
    np.save(root / "new.npy", features_of())
    return root / "run"


@pytest.fixture(scope="module")
def names(finished: Path) -> list[str]:
    return sorted(path.name for path in finished.iterdir() if path.is_file())


def check(spml: Spml, root: Path, *command: Any) -> int:
    """Run a command; if it fails, it must be one sentence that changed nothing."""
    before = snapshot(root)
    code, text = spml(*command)
    assert code in (0, 2), text
    assert "Traceback" not in text
    if code == 2:
        lines = [line for line in text.splitlines() if line.startswith("spml: ")]
        assert len(lines) == 1 or "Usage:" in text, text
        assert snapshot(root) == before
    return code


def commands(run: Path, out: Path) -> dict[str, tuple[Any, ...]]:
    new = run.parents[1] / "new.npy"
    return {
        "info": ("info", run),
        "predict": ("predict", run, new, "--out", out / "p.csv", "--device", "cpu"),
        "recover": ("recover", run, "--out", out / "r.csv"),
    }


FILES = ("run.json", "log.jsonl", "names.json", "labels.npz", "best.safetensors", "predictions.safetensors")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_damaged_run(file: str, fault: str, finished: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    run = copy(finished, root / "run" / "run")
    np.save(root / "new.npy", features_of())
    if not (run / file).exists():
        pytest.skip(f"a run of this kind has no {file}")
    FAULTS[fault](run / file, random.Random(f"{file} {fault}"))
    for command in commands(run, root).values():
        check(spml, root, *command)


OTHER_RUNS = {
    "texts": ("encoder.safetensors", "best.safetensors", "run.json"),
    "images": ("best.safetensors", "predictions.safetensors", "log.jsonl"),
}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A run on texts and one on images, and what they predict."""
    root = tmp_path_factory.mktemp("others")
    (root / "texts").mkdir()
    options: dict[str, Any] = {"progress": False, "device": "cpu"}
    sentences, photos = texts(root / "texts"), folder(root / "photos")
    package.train(sentences, out=root / "of-texts", base="linear", **options)
    package.train(photos, out=root / "of-images", method="em", model="small", size=12, epochs=1, **options)
    return {"texts": (root / "of-texts", sentences), "images": (root / "of-images", photos / "cat")}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("kind", "file"), [(kind, file) for kind, files in OTHER_RUNS.items() for file in files])
@pytest.mark.parametrize("digests", [True, False], ids=["with digests", "without digests"])
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_damaged_run_on_texts_or_images(
    kind: str, file: str, fault: str, digests: bool, others: dict[str, tuple[Path, Path]], spml: Spml, tmp_path: Path
) -> None:
    source, inputs = others[kind]
    root = tmp_path / "place"
    run = copy(source, root / "run")
    if not digests:  # as earlier versions wrote it
        record = json.loads((run / "run.json").read_text())
        record.pop("files")
        (run / "run.json").write_text(json.dumps(record))
    FAULTS[fault](run / file, random.Random(f"{kind} {file} {fault}"))
    check(spml, root, "predict", run, inputs, "--out", root / "p.csv", "--device", "cpu")
    check(spml, root, "recover", run, "--out", root / "r.csv")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in nested JSON."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_edited_run_json(data: st.DataObject, finished: Path, spml: Spml, tmp_path_factory: Any) -> None:
    root = tmp_path_factory.mktemp("edited")
    run = copy(finished, root / "run" / "run")
    np.save(root / "new.npy", features_of())
    record = json.loads((run / "run.json").read_text())
    if data.draw(st.booleans()):
        record.pop("files")
    path = data.draw(st.sampled_from(sorted(places(record), key=repr)))
    (run / "run.json").write_text(json.dumps(replaced(record, path, data.draw(JSON))))
    for command in commands(run, root).values():
        check(spml, root, *command)


TRAIN = [
    *(("--epochs", value) for value in ("0", "-1", "1e3", "x", "", str(10**30))),
    *(("--batch-size", value) for value in ("0", "-1", "x", str(10**30))),
    *(("--learning-rate", value) for value in ("0", "-1", "nan", "inf", "x", "")),
    *(("--seed", value) for value in ("-1", "x", str(10**30))),
    *(("--k", value) for value in ("0", "-1", "nan", "inf", "1e300", "x")),
    *(("--device", value) for value in ("mps", "xpu", "meta", "vulkan", "cuda", "cuda:99", "cpu:3", "", "tpu")),
    *(("--method", value) for value in ("", "x", "EM", "em;", "../em", "\x00")),
    *(("--setting", value) for value in ("x", "=1", "x=1", "name=x", "entropy_weight=", "entropy_weight=x")),
    *(("--setting", f"entropy_weight={value}") for value in ("-3", "nan", "inf", "true", "[1]", "1e400", str(10**30))),
    ("--method", "splc", "--setting", "margin=1e308"),
    ("--method", "splc", "--setting", "margin=3e38"),
    *(("--kind", value) for value in ("", "x", "folder", "coco", "table", "pack", "voc")),
    *(("--labels", value) for value in ("nowhere.csv", ".", "", "/dev/null")),
    *(("--label-column", value) for value in ("nowhere", "", "f0")),
    *((option, value) for option in ("--image-column", "--image-root", "--zeros") for value in ("x", "")),
    *(("--model", value) for value in ("resnet18", "x", "")),
    *(("--size", value) for value in ("200000", "0", "-1", "x", "32")),
    *(("--head", value) for value in ("x", "cam", "attention", "")),
    *(("--track", value) for value in ("x", "")),
    *(("--import", value) for value in ("nowhere", "nowhere.py", "", "os.path.x")),
    *(("--on-bad-image", value) for value in ("x", "")),
    ("--unknown", "1"),
]


@pytest.mark.parametrize("options", TRAIN, ids=lambda options: " ".join(options)[:50].replace("\0", "0"))
@pytest.mark.timeout(60)
def test_odd_options_of_train(options: tuple[str, ...], spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    data = matrix(root)
    method = ("--method", "em") if "--method" not in options else ()
    check(spml, root, "train", data, "--out", root / "run", *method, *options)


@pytest.mark.parametrize("options", [("--batch-size", "3"), ("--learning-rate", "1e308"), ("--learning-rate", "1e39")])
@pytest.mark.timeout(60)
def test_odd_options_of_training_on_images(options: tuple[str, ...], spml: Spml, tmp_path: Path) -> None:
    data = folder(tmp_path / "photos")
    small = ("--method", "em", "--model", "small", "--size", "12", "--epochs", "1", "--device", "cpu")
    code, text = spml("train", data, "--out", tmp_path / "run", *small, *options)
    assert code == 2
    assert "too small for batch" in text or "--learning-rate must be" in text or "learning_rate must be" in text


def test_labels_that_do_not_fit_into_memory(spml: Spml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "place"
    root.mkdir()
    monkeypatch.setattr("spml.training.train_features.free_memory", lambda: 500)
    data = matrix(root)
    before = snapshot(root)
    code, text = spml("train", data, "--out", root / "run", "--device", "cpu")
    assert code == 2
    assert "24 rows and 3 classes need" in " ".join(text.split())
    assert snapshot(root) == before


OUTPUTS = {
    "the folder itself": ".",
    "a parent": "..",
    "a folder": "run",
    "a file of the run": "run/run/best.safetensors",
    "another file of the run": "run/run/run.json",
    "the log": "run/run/log.jsonl",
    "through a link": "link/run.json",
    "no folder": "nowhere/x.csv",
    "a pipe": "pipe.csv",
    "a device": "/dev/null",
    "a link": "link.csv",
    "below a file": "file.csv/x.csv",
    "no suffix": "x",
    "another suffix": "x.exe",
    "empty": "",
    "a NUL": "a\0b.csv",
    "a long name": "x" * 300 + ".csv",
    "half a character": "\udcff.csv",
    "an existing file": "file.csv",
}


@pytest.mark.parametrize("command", ["predict", "recover", "report"])
@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.timeout(60)
def test_odd_outputs(
    name: str, command: str, finished: Path, spml: Spml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    root = tmp_path / "place"
    run = copy(finished, root / "run" / "run")
    monkeypatch.chdir(root)
    np.save(root / "new.npy", features_of())
    os.mkfifo(root / "pipe.csv")
    (root / "file.csv").write_text("of the user")
    (root / "link.csv").symlink_to(root / "file.csv")
    (root / "link").symlink_to(run)
    arguments = {"predict": (run, root / "new.npy"), "recover": (run,), "report": (run,)}[command]
    outside = snapshot(tmp_path)
    code = check(spml, root, command, *arguments, "--out", OUTPUTS[name])
    assert code == 2 or name in ("no suffix", "another suffix") or (command == "report" and name == "no folder")
    if code == 2:
        assert snapshot(tmp_path) == outside


@pytest.mark.parametrize("option", ["--labelled", "--decisions"])
def test_an_input_is_not_replaced_even_with_force(option: str, finished: Path, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    run = copy(finished, root / "run" / "run")
    file = root / "l.csv"
    file.write_text("name,label\n0,cat\n1,dog\n2,bird\n")
    link = root / "other"
    link.symlink_to(root)
    assert check(spml, root, "recover", run, option, file, "--out", link / file.name, "--force") == 2


RECOVER = {
    "fewer labels than are known": (("--k", "0.5"), "per row are already known"),
    "a preference and a threshold": (("--prefer", "recall", "--threshold", "0.5"), "leave one of them out"),
    "a prefix for a table": (("--prefix", "http://"), "prefix applies only to"),
    "an empty format": (("--format", ""), "--format is empty"),
    "the format of another ending": (("--format", "coco"), "use another ending"),
}


@pytest.mark.parametrize("name", RECOVER)
@pytest.mark.timeout(60)
def test_options_of_recover_that_do_not_fit(name: str, finished: Path, spml: Spml, tmp_path: Path) -> None:
    options, message = RECOVER[name]
    root = tmp_path / "place"
    run = copy(finished, root / "run" / "run")
    before = snapshot(root)
    code, text = spml("recover", run, "--out", root / "r.csv", *options)
    assert code == 2
    assert message in " ".join(text.split())
    assert snapshot(root) == before


@pytest.mark.parametrize("name", ["run/review.db", "run/review.db-wal", "labels.csv"])
@pytest.mark.timeout(60)
def test_answers_and_labels_are_not_replaced_even_with_force(name: str, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    package.train(str(matrix(root)), out=root / "run", base="linear", progress=False, device="cpu")
    (root / "run" / "review.db").write_text("answers")
    assert check(spml, root, "recover", root / "run", "--out", root / name, "--format", "csv", "--force") == 2


@pytest.mark.timeout(60)
def test_reports_of_runs_that_cannot_be_compared(
    finished: Path, others: dict[str, tuple[Path, Path]], spml: Spml, tmp_path: Path
) -> None:
    root = tmp_path / "place"
    root.mkdir()
    (root / "link").symlink_to(finished)
    images = others["images"][0]
    assert check(spml, root, "report", finished, finished, "--out", root / "r.html") == 2
    assert check(spml, root, "report", finished, root / "link", "--out", root / "r.html") == 2
    assert check(spml, root, "report", finished, images, "--out", root / "r.html") == 2  # 24 rows and 9 images


ANNOTATE = {
    "the answers of a run": ("run/review.csv", ()),
    "a link": ("link.csv", ()),
    "a pipe": ("pipe.csv", ()),
    "a folder": ("folder.csv", ()),
    "a model for features": ("l.csv", ("--model", "features")),
}


@pytest.mark.parametrize("name", ANNOTATE)
@pytest.mark.timeout(60)
def test_annotations_that_cannot_be_saved(
    name: str, finished: Path, others: dict[str, tuple[Path, Path]], spml: Spml, tmp_path: Path
) -> None:
    import os

    out, options = ANNOTATE[name]
    root = tmp_path / "place"
    copy(others["images"][0], root / "run")
    folder(root / "photos")
    (root / "classes.txt").write_text("bird\ncat\ndog\n")
    (root / "l.csv.txt").write_text("of the user")
    (root / "link.csv").symlink_to("l.csv.txt")
    (root / "link.db").write_bytes(b"")  # as if it had been written before
    os.mkfifo(root / "pipe.csv")
    (root / "pipe.db").write_bytes(b"")
    (root / "folder.csv").mkdir()
    (root / "folder.db").write_bytes(b"")
    model = tuple(finished if option == "features" else option for option in options)
    arguments = (root / "photos", "--classes", root / "classes.txt", "--out", root / out, "--no-browser", *model)
    assert check(spml, root, "annotate", *arguments, "--host", "256.1.1.1") == 2


def test_the_demo_keeps_a_report_of_the_user(spml: Spml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quickstart(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the demo trains before it looks for the report")

    monkeypatch.setattr("spml.bench.quickstart.quickstart", quickstart)
    root = tmp_path / "place"
    root.mkdir()
    (root / "report.html").write_text("of the user")
    assert check(spml, root, "quickstart", "--scale", "0.02", "--out", root) == 2


ENTRIES = {
    "nothing": "None",
    "a number": "0.0",
    "an array": "logits.detach().numpy()",
    "whole numbers": "(logits > 0).int()",
    "complex numbers": "logits + 0j",
    "a sparse tensor": "logits.to_sparse()",
    "no gradient": "logits.detach()",
    "another shape": "logits.sum()",
    "an error": "logits[10**6]",
    "the end": "sys.exit(0)",
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.timeout(60)
def test_plugins_that_fail_in_training(name: str, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    data, plugin = matrix(root), root / f"plugin_{list(ENTRIES).index(name)}.py"
    plugin.write_text(
        f"import sys\nfrom spml.methods import loss_method\ndef odd(logits, labels):\n    return {ENTRIES[name]}\n"
        "loss_method('odd', odd, paper='none', summary='odd')\n"
    )
    code, text = spml("train", data, "--import", plugin, "--method", "odd", "--out", root / "run", "--device", "cpu")
    assert code == 2, text
    assert "method 'odd'" in text


@pytest.mark.parametrize(
    "content", ["import sys; sys.exit(0)", "1/0", "def (", "raise SystemError", "def f(): f()\nf()"]
)
def test_plugins_that_fail_at_import(content: str, spml: Spml, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin_x.py"
    plugin.write_text(content)
    assert check(spml, tmp_path, "methods", "--import", plugin) == 2


@pytest.mark.parametrize("name", ["", "../odd", "a b", "a,b", "a=b", "a\\n"])
def test_odd_names_of_methods(name: str, spml: Spml, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin_y.py"
    plugin.write_text(
        "from spml.methods import loss_method\ndef odd(logits, labels):\n    return logits\n"
        f"loss_method('{name}', odd, paper='none', summary='odd')\n"
    )
    assert check(spml, tmp_path, "methods", "--import", plugin) == 2


@pytest.mark.parametrize("name", ["x\0.py", "\0", "\udcff.py", "x" * 5000 + ".py"])
def test_odd_names_of_plugins(name: str, spml: Spml, tmp_path: Path) -> None:
    assert check(spml, tmp_path, "methods", "--import", name) == 2


def test_a_full_disk_leaves_no_part_of_a_method(spml: Spml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, write, left = tmp_path / "place", Path.write_text, iter(range(2))
    root.mkdir()

    def until_full(path: Path, *arguments: Any) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, *arguments)

    monkeypatch.setattr(Path, "write_text", until_full)
    assert check(spml, root, "new-method", "my-loss", "--out", root / "my-loss") == 2


def test_at_least_five_hundred_cases(names: list[str]) -> None:
    from support.attacks import FORMATS

    data = len(FORMATS) * len(FAULTS)
    runs = len(FAULTS) * (len(set(FILES) & set(names)) + 2 * sum(map(len, OTHER_RUNS.values())))
    assert data + runs + len(TRAIN) + 3 * len(OUTPUTS) >= 500
