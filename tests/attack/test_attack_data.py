"""Damaged data: every format with every fault is read, or is one sentence about the file; nothing is written."""

import os
import random
from pathlib import Path

import pytest

from spml.data.detect import open_data
from spml.data.formats.folder import files_below
from spml.errors import InputError
from support.attacks import FAULTS, FORMATS, snapshot


def attacked(root: Path, made: Path) -> list[Path]:
    """The files to damage: the one that is opened, the first and the last other one."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    others = [path for path in files if path != made]
    return [*([made] if made.is_file() else []), *others[:1], *others[-1:]][:3]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.timeout(60)
def test_damaged_data(kind: str, fault: str, tmp_path: Path) -> None:
    count = len(attacked(tmp_path / "0", _make(kind, tmp_path / "0")))
    for place in range(count):
        root = tmp_path / f"{place}"
        made = _make(kind, root)
        FAULTS[fault](attacked(root, made)[place], random.Random(f"{kind} {fault} {place}"))
        before = snapshot(root)
        try:
            data = open_data(made)
            data.store.prepare()
            data.fingerprint()
        except InputError as error:
            message = str(error)
            assert "\n" not in message, message
            assert "Traceback" not in message
        assert snapshot(root) == before


def _make(kind: str, root: Path) -> Path:
    root.mkdir(exist_ok=True)
    return FORMATS[kind](root)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_data_is_valid_before_the_attack(kind: str, tmp_path: Path) -> None:
    data = open_data(_make(kind, tmp_path / "data"))
    assert len(data.classes) == 3


@pytest.mark.timeout(60)
def test_deep_folders_take_no_longer_than_flat_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath("photos", *["d"] * 300)
    deep.mkdir(parents=True)
    (deep / "x.png").touch()
    resolved, realpath = [], os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path, **options: resolved.append(path) or realpath(path, **options))
    assert len(files_below(tmp_path / "photos", (".png",))[0]) == 1
    assert len(resolved) < 10  # each of them reads every folder above
