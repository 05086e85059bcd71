"""Rows drawn for full labelling, and the guarantee of a precision that rests on them."""

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import spml
from spml.cli import app
from spml.cli.sample import allowed_labels
from spml.errors import InputError
from spml.labels import Labels
from spml.recover import LabelledRows, recover, sample_rows
from spml.recover.guarantee import CONFIDENCE, guaranteed_threshold
from spml.recover.labelled import HEAVIEST, read_labelled
from spml.recover.sample import inclusion_probabilities, systematic_sample, write_sample
from spml.runs.folder import RunFolder
from support.recovery import CLASSES, World


def labelled(world: World, sample: LabelledRows) -> LabelledRows:
    rows = np.asarray(sample.rows)
    return LabelledRows(Labels.from_matrix(world.signed[rows], CLASSES), rows, sample.weights)


def test_rows_are_drawn_with_the_stated_chances() -> None:
    doubt = np.array([0.0, 0.1, 0.5, 4.0, 0.2, 0.2])
    chances = inclusion_probabilities(doubt, 3)
    assert chances.sum() == pytest.approx(3)
    assert chances.max() <= 1
    assert chances.min() >= 3 / 6 / HEAVIEST
    rng = np.random.default_rng(0)
    drawn = np.zeros(6)
    for _ in range(3000):
        rows = systematic_sample(chances, rng)
        assert len(np.unique(rows)) == 3
        drawn[rows] += 1 / 3000
    np.testing.assert_allclose(drawn, chances, atol=0.03)


def test_sampled_rows_are_doubtful_ones_and_weights_undo_that(run: RunFolder, world: World) -> None:
    sample = sample_rows(run, 200)
    rows, weights = np.asarray(sample.rows), np.asarray(sample.weights)
    counts = world.truth.sum(axis=1)
    inside = np.concatenate([run.train, run.validation])
    assert counts[rows].mean() > counts[inside].mean() + 0.1
    assert np.average(counts[rows], weights=weights) == pytest.approx(counts[inside].mean(), abs=0.15)
    np.testing.assert_array_equal(rows, np.asarray(sample_rows(run, 200).rows))
    with pytest.raises(InputError, match="rows is 5000"):
        sample_rows(run, 5000)


def write_completed(path: Path, name: str, labels: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("name", "label"), (name, labels)])


def test_a_completed_file_is_read_back(run: RunFolder, world: World, tmp_path: Path) -> None:
    path = tmp_path / "check.csv"
    sample = sample_rows(run, 6)
    write_sample(sample, run, path)
    rows = np.asarray(sample.rows)
    given = read_labelled(path, run)
    np.testing.assert_array_equal(given.rows, rows)
    np.testing.assert_allclose(given.weights, sample.weights, rtol=1e-5)
    assert (given.labels.dense().sum(axis=1) == 2 - len(CLASSES)).all()  # the observed label, and no other
    assert not given.adds_to(run.labels)  # as `spml sample` wrote it: nobody has completed it
    first, other = CLASSES[:2]
    name = run.names[int(np.flatnonzero(run.labels.dense()[:, 0] > 0)[0])]
    completed = tmp_path / "completed.csv"
    write_completed(completed, name, f"{first}|{other}")
    assert read_labelled(completed, run).adds_to(run.labels)
    for separator in (", ", "; ", ";"):
        for labels in (f"{first}{separator}{other}", f"{first}{separator}something else{separator}{other}"):
            write_completed(completed, name, labels)
            with pytest.raises(InputError, match=r"classes: separate labels with \|"):
                read_labelled(completed, run)
    write_completed(completed, name, f"{first}|tiger")
    with pytest.raises(InputError, match=r"'tiger' is not one of the run's 6 classes: correct it"):
        read_labelled(completed, run)
    semicolons = tmp_path / "semicolons.csv"  # as some spreadsheets save it, with decimal commas
    with path.open(newline="", encoding="utf-8") as file, semicolons.open("w", newline="", encoding="utf-8") as copy:
        for name, label, weight in csv.reader(file):
            csv.writer(copy, delimiter=";").writerow([name, label, weight.replace(".", ",")])
    np.testing.assert_array_equal(read_labelled(semicolons, run).weights, given.weights)
    bad = tmp_path / "bad.csv"
    bad.write_text('name,label,weight\n"photos/ü 3, ""3"".jpg",cat,heavy\n', encoding="utf-8")
    with pytest.raises(InputError, match="the weight 'heavy' is not a number above 0"):
        read_labelled(bad, run)


def test_a_guaranteed_precision_holds_in_the_stated_share_of_draws() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((3000, 3)).astype(np.float32)
    truth = rng.random(scores.shape) < scores**0.5
    truth[:, 1] = truth[:, 0]  # labels of a row depend on each other
    scores[:, 1] = scores[:, 0]
    unknown = np.ones(scores.shape, bool)
    chances = inclusion_probabilities((scores * (1 - scores)).sum(axis=1).astype(float), 150)
    held = found = 0
    for _ in range(200):
        rows = systematic_sample(chances, rng)
        result = guaranteed_threshold(scores, unknown, rows, truth[rows], 1 / chances[rows], 0.8)
        if result is not None:
            found += 1
            held += truth[scores >= result.threshold].mean() >= 0.8
    assert found > 100
    assert held >= CONFIDENCE * found
    few = rng.integers(0, 3000, 5)
    assert guaranteed_threshold(scores, unknown, few, truth[few], np.ones(5), 0.8) is None


def test_recover_with_a_guaranteed_precision(run: RunFolder, world: World) -> None:
    many = labelled(world, sample_rows(run, 300))
    found = recover(run, labelled=many, precision=0.8)
    taken = found.present(found.rows) & (found.known[found.rows] == 0)
    assert taken.sum() > 100
    assert world.truth[found.rows][taken].mean() > 0.78
    assert any("at least 80% of the recovered labels are correct" in note for note in found.notes)
    few = recover(run, labelled=labelled(world, sample_rows(run, 10)), precision=0.95)
    assert any("No labels are recovered" in note for note in few.notes)
    assert (few.entries.provenance > 0).all()
    with pytest.raises(InputError, match="precision needs fully labelled rows"):
        recover(run, precision=0.9)
    with pytest.raises(InputError, match="precision must be above 0 and below 1, or None, not 1"):
        recover(run, precision=1.5, labelled=many)


def test_sample_command_and_python_api_write_the_same_rows(tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    labels = tmp_path / "labels.csv"
    labels.write_text("row,label\n" + "".join(f"{row},{'abc'[row % 3]}\n" for row in range(80)))
    run = spml.train(tmp_path / "features.npy", out=tmp_path / "run", method="em", labels=labels, progress=False)
    run.sample(tmp_path / "api.csv", rows=7)
    command = ["sample", str(tmp_path / "run"), "--rows", "7", "--out", str(tmp_path / "cli.csv")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "api.csv").read_text() == (tmp_path / "cli.csv").read_text()
    assert len((tmp_path / "cli.csv").read_text().splitlines()) == 8
    assert "separate labels with |. Allowed labels: a, b, c. Keep the weights." in result.output
    assert f"--labelled {tmp_path / 'cli.csv'} --out run-recovered.csv`" in result.output
    recover_it = ["recover", str(tmp_path / "run"), "--labelled", str(tmp_path / "cli.csv"), "--out"]
    result = CliRunner().invoke(app, [*recover_it, str(tmp_path / "out.csv")])
    assert isinstance(result.exception, InputError)
    assert "every row has only the labels that were known before: complete the column label" in str(result.exception)
    assert not (tmp_path / "out.csv").exists()
    found = run.recover(labelled=tmp_path / "cli.csv")
    assert found.calibration.full_rows == 7
    with pytest.raises(InputError, match="already exists"):
        run.sample(tmp_path / "api.csv", rows=7)


def test_many_classes_are_not_printed() -> None:
    assert allowed_labels([f"class{number}" for number in range(30)], Path("runs/a")).endswith(", class29.")
    expected = f"The 31 allowed labels are the `classes` in {Path('runs/a/run.json')}."
    assert allowed_labels([f"class{number}" for number in range(31)], Path("runs/a")) == expected


def test_a_sample_of_texts_shows_the_texts(tmp_path: Path) -> None:
    texts = [f'{"late parcel" if row % 2 else "wrong invoice"} {row},\n"urgent"' for row in range(40)]
    with (tmp_path / "tickets.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("topic", "text"), *(("delivery" if row % 2 else "billing", text) for row, text in enumerate(texts))]
        )
    run = spml.train(tmp_path / "tickets.csv", out=tmp_path / "run", base="linear", progress=False)
    run.sample(tmp_path / "check.csv", rows=5)
    with (tmp_path / "check.csv").open(newline="", encoding="utf-8") as file:
        assert {line["text"] for line in csv.DictReader(file)} <= set(texts)
    assert run.recover(labelled=tmp_path / "check.csv").calibration.full_rows == 5
