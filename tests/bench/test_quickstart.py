"""The quickstart on a fiftieth of its data: three runs, a table, a report; a second call trains nothing."""

import sys

import pytest

from spml.bench.quickstart import quickstart
from spml.cli import main
from spml.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


def test_command_prints_a_table_and_writes_a_report(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spml", "quickstart", "--out", str(folder), "--scale", "0.02"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    text = capsys.readouterr().out
    for word in ("an", "auto", "bce", "all labels", "report.html"):
        assert word in text
    assert "data:image" in (folder / "report.html").read_text(encoding="utf-8")


def test_finished_runs_are_reused(folder):
    before = (folder / "auto" / "last.safetensors").stat().st_mtime_ns
    results = quickstart(folder, scale=0.02, progress=False)
    assert [result.run.method for result in results] == ["an", "auto", "bce"]
    for result in results:
        assert 0 < result.test_map <= 1
        assert 0 <= result.recovered <= result.missing
    assert (folder / "auto" / "last.safetensors").stat().st_mtime_ns == before
    single, reference = results[0].run, results[-1].run
    assert single.labels.fingerprint() == reference.labels.fingerprint()  # what was given; the reference saw more
    assert single.record["data"]["labels"] != reference.record["data"]["labels"]


def test_error_for_a_demo_of_another_scale(folder):
    with pytest.raises(InputError, match=r"an is a run on .* scenes, not .*: choose another folder, or the same scale"):
        quickstart(folder, scale=0.05, progress=False)
