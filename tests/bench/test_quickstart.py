"""The quickstart on a fiftieth of its data: three runs, a table, a report; a second call trains nothing."""

import sys

import pytest

from spml.bench.quickstart import quickstart
from spml.cli import main
from spml.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


def test_the_command_prints_a_table_and_writes_a_report(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spml", "quickstart", "--out", str(folder), "--scale", "0.02"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    text = capsys.readouterr().out
    for word in ("an", "auto", "bce", "all labels", "report.html"):
        assert word in text
    assert "data:image" in (folder / "report.html").read_text(encoding="utf-8")


def test_outcomes_are_found_again(folder):
    before = (folder / "auto" / "last.safetensors").stat().st_mtime_ns
    outcomes = quickstart(folder, scale=0.02, progress=False)
    assert [outcome.run.method for outcome in outcomes] == ["an", "auto", "bce"]
    for outcome in outcomes:
        assert 0 < outcome.test_map <= 1
        assert 0 <= outcome.recovered <= outcome.missing
    assert (folder / "auto" / "last.safetensors").stat().st_mtime_ns == before
    single, reference = outcomes[0].run, outcomes[-1].run
    assert single.labels.fingerprint() == reference.labels.fingerprint()  # what was given; the reference saw more
    assert single.record["data"]["labels"] != reference.record["data"]["labels"]


def test_a_demo_of_another_scale_is_refused(folder):
    with pytest.raises(InputError, match=r"an is a run on .* scenes, not .*: name another folder, or the scale"):
        quickstart(folder, scale=0.05, progress=False)
