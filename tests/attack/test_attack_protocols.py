"""Protocol files and options of `spml bench`: success, or one sentence and no new file."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.attacks import FAULTS, copy, feature_pack, snapshot
from support.command import run as run_command

Spml = Callable[..., tuple[int, str]]

PROTOCOL = """
title = "Tiny"
kind = "linear"
seeds = [0]
[train]
epochs = 2
[data]
tiny = { k = 1.5 }
[methods.an]
[methods.em]
"""
VALUES = ("0", "-1", '""', '"x"', "[]", "{}", "true", "nan", "1979-05-27", "[[1]]", "1" * 22, "9" * 5000, '["x", "x"]')
KEYS = (
    *("title", "kind", "seeds", "train", "train.epochs", "train.batch_size", "train.learning_rate"),
    *("data", "data.tiny", "data.tiny.k", "methods", "methods.an", "grid", "grid.train.learning_rate"),
    *("paper", "search", "backbone", "image_size", "draw", "draw.positives", "draw.negatives", "head"),
)
SETTINGS = [f"{key}={value}" for place, key in enumerate(KEYS) for value in VALUES[place % 3 :: 3]]
ODD_SETTINGS = [
    "",
    "=",
    "x",
    "=1",
    "x=",
    "a..b=1",
    ".a=1",
    "a.=1",
    "\n=1",
    "data.tiny.k=1=2",
    ".".join("a" * 3000) + "=1",
]
FILES = {
    "empty": "",
    "not TOML": "[[",
    "a byte order mark": "\ufeff" + PROTOCOL,
    "deep list": "a = " + "[" * 3000 + "]" * 3000,
    "deep key": ".".join("a" * 3000) + " = 1\n" + PROTOCOL,
    "deep table": "[" + ".".join("a" * 3000) + "]\n",
    "deep inline table": "a = " + "{ a = " * 3000 + "1" + " }" * 3000,
    "a huge number": PROTOCOL.replace("epochs = 2", "epochs = " + "9" * 5000),
    "a table twice": PROTOCOL + "[methods.an]\n",
    "an unknown key": "x = 1\n" + PROTOCOL,
    "NUL": PROTOCOL.replace("Tiny", "T\0ny"),
}
OPTIONS = [
    *(("--methods", value) for value in ("", "x", "an,", "AN", "an;em", "\n")),
    *(("--seeds", value) for value in ("-1", "x", "1.5", "9" * 30, "0,")),
    *(("--head", value) for value in ("", "x", "own,own", "own,")),
    *(("--search", value) for value in ("x", "GRID")),
    *(("--workers", value) for value in ("0", "-1", "x")),
    *(("--data", value) for value in ("x", "tiny=", "=p", "tiny=nowhere", "tiny=/dev/null", "other=.", "tiny=a\0b")),
]


@pytest.fixture
def spml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spml:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda *arguments: run_command(*arguments, monkeypatch=monkeypatch, capsys=capsys)


def check(spml: Spml, root: Path, *command: object) -> int:
    before = snapshot(root)
    code, text = spml(*command)
    assert code in (0, 2), text
    assert "Traceback" not in text
    if code == 2:
        assert sum(line.startswith("spml: ") for line in text.splitlines()) == 1 or "Usage:" in text, text
        assert snapshot(root) == before
    return code


@pytest.mark.parametrize("name", FILES)
@pytest.mark.timeout(60)
def test_odd_files(name: str, spml: Spml, tmp_path: Path) -> None:
    file = tmp_path / "place" / "tiny.toml"
    file.parent.mkdir()
    file.write_text(FILES[name], encoding="utf-8")
    assert check(spml, file.parent, "bench", file, "--dry-run") == 2


@pytest.mark.parametrize("setting", [*SETTINGS, *ODD_SETTINGS], ids=lambda setting: repr(setting[:40]))
@pytest.mark.timeout(60)
def test_odd_values(setting: str, spml: Spml, tmp_path: Path) -> None:
    file = tmp_path / "place" / "tiny.toml"
    file.parent.mkdir()
    file.write_text(PROTOCOL)
    check(spml, file.parent, "bench", file, "--dry-run", "--set", setting)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: repr(" ".join(options)[:40]))
@pytest.mark.timeout(60)
def test_odd_options(options: tuple[str, str], spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    (root / "tiny.toml").write_text(PROTOCOL)
    dry = () if options[0] == "--data" else ("--dry-run",)
    assert check(spml, root, "bench", root / "tiny.toml", *dry, "--out", root / "out", *options) == 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a protocol, its data and its results."""
    from spml.bench.plan import plan
    from spml.bench.run import run

    root = tmp_path_factory.mktemp("bench")
    (root / "pack").mkdir()
    feature_pack(root / "pack")
    (root / "tiny.toml").write_text(PROTOCOL)
    planned = plan(str(root / "tiny.toml"), [f"tiny={root / 'pack'}"])
    run(planned, root / "out", device="cpu", notify=str)
    return root


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [".json", ".safetensors", "table.csv"])
@pytest.mark.timeout(120)
def test_damaged_results(kind: str, fault: str, finished: Path, spml: Spml, tmp_path: Path) -> None:
    root = copy(finished, tmp_path / "place")
    file = next(path for path in sorted((root / "out").rglob("*")) if path.name.endswith(kind))
    FAULTS[fault](file, random.Random(fault))
    check(
        spml,
        root,
        "bench",
        root / "tiny.toml",
        "--data",
        f"tiny={root / 'pack'}",
        "--out",
        root / "out",
        "--device",
        "cpu",
    )


@pytest.mark.parametrize("change", ["another run's", "without epoch"])
@pytest.mark.timeout(120)
def test_results_of_another_run(change: str, finished: Path, spml: Spml, tmp_path: Path) -> None:
    root = copy(finished, tmp_path / "place")
    first, second = sorted((root / "out").rglob("*.json"))
    row = json.loads((second if change == "another run's" else first).read_text())
    if change == "without epoch":
        del row["best_epoch"]
    first.write_text(json.dumps(row))
    options = ("--data", f"tiny={root / 'pack'}", "--out", root / "out", "--device", "cpu")
    assert check(spml, root, "bench", root / "tiny.toml", *options) == 2


def test_results_do_not_go_into_the_data(finished: Path, spml: Spml, tmp_path: Path) -> None:
    root = copy(finished, tmp_path / "place")
    data = ("--data", f"tiny={root / 'pack'}")
    assert check(spml, root, "bench", root / "tiny.toml", *data, "--out", root / "pack", "--device", "cpu") == 2


ARRAYS = ("image", "classes", "labels", "observed", "train", "validation", "test")
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a number": lambda array: np.array(1),
    "one more dimension": lambda array: array[None],
    "one row less": lambda array: array[:-1],
    "empty": lambda array: array[:0],
    "fractions": lambda array: np.full(array.shape, 0.5),
    "text": lambda array: array.astype(str),
    "below zero": lambda array: np.full(array.shape, -5),
    "huge": lambda array: np.full(array.shape, 10**12),
    "repeated": lambda array: array[[0] * len(array)],
    "complex": lambda array: np.zeros(array.shape, complex),
    "NaN": lambda array: np.full(array.shape, np.nan),
    "control characters": lambda array: np.array(["a\nb", *(f"x{row}" for row in range(1, len(array)))]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.timeout(60)
def test_odd_packs(name: str, change: str, spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    feature_pack(root)
    arrays = dict(np.load(root / "labels.npz"))
    np.savez(root / "labels.npz", **{**arrays, name: CHANGES[change](arrays[name])})
    code = check(spml, root, "info", root)
    possible = {
        **{key: {*CHANGES} for key in ("image", "classes")},  # names may be anything that is printable and differs
        **{key: {"one row less", "empty"} for key in ("validation", "test")},
        "train": {"one row less"},
        **{key: {"repeated"} for key in ("labels", "observed")},
    }
    assert code == 2 or change in possible[name], f"{name}: {change}"


def test_a_pack_with_a_row_in_two_parts(spml: Spml, tmp_path: Path) -> None:
    root = tmp_path / "place"
    root.mkdir()
    feature_pack(root)
    arrays = dict(np.load(root / "labels.npz"))
    np.savez(root / "labels.npz", **{**arrays, "test": arrays["train"]})
    assert check(spml, root, "info", root) == 2
