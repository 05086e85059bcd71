"""Training with decisions, and where each recovered label comes from."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import spml
from spml.api import Run
from spml.errors import InputError
from spml.recover import recover
from spml.recover.recovered import PROVENANCE
from spml.review.app import open_decisions
from spml.runs.decisions import Question, Subject, read_decisions
from spml.runs.folder import open_run
from spml.training import effort
from spml.training.options import TrainOptions
from spml.training.train_data import train_data
from support.command import run as run_command


@pytest.fixture
def run(tables, tmp_path):
    """A run whose folder may be changed."""
    shutil.copytree(tables / "on-features", tmp_path / "run")
    return open_run(tmp_path / "run")


@pytest.fixture
def answered(run):
    """The run, and the answers: two labels confirmed, one rejected, one unclear, one given label corrected."""
    open_entries = np.argwhere(run.labels.dense(run.train) == 0)
    pairs = [(int(run.train[row]), int(label)) for row, label in open_entries[:40:10]]
    row = int(run.train[-1])
    pairs.append((row, int(run.labels.dense([row])[0].argmax())))
    with open_decisions(run) as decisions:
        for pair, answer in zip(pairs, (1, 1, -1, 0, -1), strict=True):
            decisions.record([Question(*pair, answer)], who="Ada")
    return run, pairs


def test_answers_become_training_labels(answered, tables, tmp_path):
    run, pairs = answered
    notes = []
    options = TrainOptions(base="linear", device="cpu", decisions=run.folder / "review.db")
    data_options = {"labels": tables / "y.npy"}
    train_data(tables / "x.npy", tmp_path / "again", options, data_options=data_options, notify=notes.append)
    again = open_run(tmp_path / "again")
    expected = run.labels.dense()
    for (row, label), answer in zip(pairs, (1, 1, -1, 0, -1), strict=True):
        expected[row, label] = answer or expected[row, label]
    np.testing.assert_array_equal(again.labels.dense(), expected)
    np.testing.assert_array_equal(again.given_labels.dense(), run.labels.dense())
    assert any("4 answers (2 yes, 2 no)" in note and "1 of them correct" in note for note in notes)
    assert again.record["data"]["labels"] != run.record["data"]["labels"]
    assert "; 3 answers c" in again.choice  # they correct or calibrate the model; the fourth is about a given label


def test_train_again_uses_the_same_settings_and_continues_the_review(answered, tmp_path):
    run, _ = answered
    again = spml.load(run.folder).train_again(tmp_path / "again", progress=False)
    assert again.training.method == run.method
    assert again.folder.record["train"] == run.record["train"]
    assert again.folder.decided is not None
    subject = Subject(run.names, run.classes, run.labels)
    copied = read_decisions(tmp_path / "again" / "review.db", subject)
    np.testing.assert_array_equal(copied.dense(), again.folder.decided.dense())
    with open_decisions(again.folder) as decisions:
        assert len(decisions.current()) == 5
    third = again.train_again(tmp_path / "third", progress=False, seed=1)
    assert third.folder.record["train"]["seed"] == 1


@pytest.fixture(scope="module")
def frozen_run(tables, tmp_path_factory):
    """A run on features of the frozen network "small", as if it had pretrained weights, with one answer."""
    folder = tmp_path_factory.mktemp("frozen") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effort, "WITHOUT_WEIGHTS", ())
        options = {"model": "small", "size": 16, "effort": "quick", "device": "cpu", "progress": False}
        run = spml.train(tables / "photos", out=folder, **options)
    with open_decisions(run.folder) as decisions:
        row = int(run.folder.train[0])
        decisions.record([Question(row, int(run.folder.labels.dense([row])[0].argmin()), -1)], who="Ada")
    return run


def test_train_again_works_on_a_frozen_backbone(frozen_run, tmp_path, monkeypatch):
    monkeypatch.setattr(effort, "WITHOUT_WEIGHTS", ())
    again = frozen_run.train_again(tmp_path / "again", progress=False)
    before, after = frozen_run.folder.record, again.folder.record
    assert before["model"]["head"] == after["model"]["head"] == "features"
    assert {name: after[name] for name in ("method", "train", "inputs")} == {
        name: before[name] for name in ("method", "train", "inputs")
    }
    assert again.folder.decided is not None


def test_train_again_asks_for_the_file_of_weights(frozen_run, tmp_path):
    record = {**frozen_run.folder.record, "model": {"backbone": "lite0", "weights": {"source": "file w.safetensors"}}}
    run = Run(frozen_run.predictor, frozen_run.training, replace(frozen_run.folder, record=record))
    with pytest.raises(InputError, match=r"a file w\.safetensors: pass its path as weights="):
        run.train_again(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_train_again_without_answers_is_an_error(run, tmp_path):
    with pytest.raises(InputError, match="spml review"):
        spml.load(run.folder).train_again(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_decisions_about_other_data_are_an_error_and_no_run_is_started(answered, tables, tmp_path):
    run, _ = answered
    with pytest.raises(InputError, match="other data"):
        spml.train(tables / "photos", out=tmp_path / "new", decisions=run.folder / "review.db", model="small")
    assert not (tmp_path / "new").exists()


def test_recover_keeps_answers_and_states_provenance(answered):
    run, pairs = answered
    recovered = spml.load(run.folder).recover()
    entries = recovered.entries
    found = {(row, c): kind for row, c, kind in zip(entries.row, entries.label, entries.provenance, strict=True)}
    kind = {pair: PROVENANCE[found[pair]] if pair in found else "absent" for pair in pairs}
    assert [kind[pair] for pair in (*pairs[:3], pairs[4])] == ["confirmed", "confirmed", "absent", "absent"]
    given = int((run.labels.dense(recovered.rows) > 0).sum())
    assert sum(PROVENANCE[each] == "given" for each in found.values()) == given - 1
    for (row, label), answer in zip(pairs, (1, 1, -1, 0, -1), strict=True):
        if answer:
            assert recovered.confidences[row, label] == max(answer, 0)


def test_answers_do_not_bias_the_calibration(answered):
    run, _ = answered
    decided = read_decisions(run.folder / "review.db", Subject(run.names, run.classes, run.labels))
    without, with_answers = recover(run), recover(run, decisions=decided)
    assert with_answers.calibration.k.rows == without.calibration.k.rows - 1  # whose only label was rejected
    assert with_answers.calibration.at_least_one == without.calibration.at_least_one
    assert without.calibration.k.k < with_answers.calibration.k.k < without.calibration.k.k + 0.1  # two more are known
    rest = with_answers.known == 0
    assert np.nanmean(with_answers.confidences[rest] - without.confidences[rest]) == pytest.approx(0, abs=0.05)


def test_recover_command_writes_provenance(answered, tmp_path, monkeypatch, capsys):
    run, _ = answered
    arguments = ("recover", run.folder, "--out", tmp_path / "r.csv")
    code, output = run_command(*arguments, monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0, output
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert sum(line.endswith('"confirmed"') for line in lines) == 2


def test_export_and_import_commands(answered, tmp_path, monkeypatch, capsys):
    run, _ = answered

    def command(*arguments):
        return run_command("review", run.folder, *arguments, monkeypatch=monkeypatch, capsys=capsys)

    code, output = command("--export", tmp_path / "tasks.json")
    assert (code, "Answers: 5" in output) == (0, True)
    code, output = command("--import", tmp_path / "tasks.json", "--decisions", tmp_path / "other.db")
    assert (code, "New answers: 4" in output) == (0, True), output
    code, output = command("--export", tmp_path / "out.xlsx")
    assert code == 2
    code, output = command("--rest-absent")
    assert (code, "--import" in output) == (2, True)
