"""Runs on features and texts: one trainer for `spml.train` and the estimator, interruption, columns by name."""

import numpy as np
import pandas as pd
import pytest

import spml
from spml.data import FeatureStore
from spml.errors import InputError
from spml.predict.blocks import InputWarning
from spml.runs.folder import open_run
from spml.training import train_features as module
from spml.training.learners import fit_features

WORDS = {"billing": ("invoice", "refund"), "delivery": ("parcel", "courier"), "<account>": ("password", "login")}


@pytest.fixture(scope="module")
def tickets(tmp_path_factory):
    draw, rows = np.random.default_rng(0), []
    for _ in range(90):
        topics = draw.permutation(sorted(WORDS))[: draw.integers(1, 3)]
        text = " and ".join(f"my {draw.choice(WORDS[topic])} <i>is</i> wrong" for topic in topics)
        rows.append({"text": text, "topic": draw.choice(topics)})
    path = tmp_path_factory.mktemp("tickets") / "tickets.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(tickets):
    return spml.train(tickets, out=tickets.parent / "run", base="linear", device="cpu", progress=False)


def table(rows=60):
    draw = np.random.default_rng(1)
    label = draw.integers(0, 3, rows)
    values = 0.5 * draw.normal(size=(rows, 3)) + np.eye(3)[label]
    return pd.DataFrame(values.astype(np.float32), columns=["a", "b", "c"]).assign(label=np.array(list("xyz"))[label])


def test_run_estimator_and_learner_are_the_same_classifier(tmp_path):
    """The benchmark of tables calls `fit_features` itself."""
    data, columns = table(), ["a", "b", "c"]
    data.to_parquet(tmp_path / "t.parquet")
    seed = int(np.random.RandomState(5).randint(2**31 - 1))  # as the estimator draws it
    options = {"base": "linear", "seed": seed, "device": "cpu"}
    run = spml.train(tmp_path / "t.parquet", out=tmp_path / "run", progress=False, **options)
    estimator = spml.SinglePositiveClassifier(base="linear", random_state=5).fit(data[columns], data["label"])
    matrix = data[columns].to_numpy()
    labels = spml.Labels.from_lists([[name] for name in data["label"]], ["x", "y", "z"])
    fit = fit_features(FeatureStore(matrix), labels, **options)
    expected = fit.model.presence(matrix)
    np.testing.assert_allclose(run.predict(data[columns]), expected, atol=1e-6)
    np.testing.assert_allclose(estimator._model.presence(matrix), expected, atol=1e-6)
    np.testing.assert_array_equal(run.folder.probabilities, fit.held_out)


def test_predictions_survive_saving_and_every_form_of_input(run, tickets, tmp_path):
    texts = pd.read_csv(tickets)["text"].tolist()
    expected = run.predict(texts)
    np.testing.assert_array_equal(run.predict(tickets), expected)
    assert run.predict(texts[0]).shape == (1, 3)
    run.save_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(spml.load(tmp_path / "saved").predict(texts), expected, atol=1e-6)
    (tmp_path / "one.txt").write_text(texts[0])
    np.testing.assert_array_equal(run.predict(tmp_path / "one.txt"), expected[:1])
    with pytest.raises(InputError, match="input 0 is of type int"):
        run.predict([3])
    pd.DataFrame({"body": texts}).to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(InputError, match=r"the column 'text' is missing; .* was trained on 'text'"):
        run.predict(tmp_path / "other.csv")
    with pytest.raises(InputError, match="which an ONNX file cannot encode"):
        run.export(tmp_path / "x.onnx")


def test_predictions_of_training_rows_are_held_out_and_calibrate(run, tickets):
    folder = run.folder
    assert folder.cross_fitted
    assert len(folder.validation) == 0
    assert np.abs(folder.probabilities - run.predict(tickets)).max() > 1e-4
    assert "90 rows, each predicted by classifiers that did not see its label" in run.recover().calibrated_on


def test_report_escapes_and_marks_texts(run, tmp_path):
    run.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "&lt;i&gt;" in page
    assert "<i>" not in page
    assert "<mark" in page
    assert "What was chosen" in page
    assert "best epoch" not in page


def test_interrupted_run_starts_again(tickets, tmp_path, monkeypatch):
    options = {"out": tmp_path / "run", "base": "linear", "device": "cpu", "progress": False}

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "fit_features", interrupt)
    with pytest.raises(KeyboardInterrupt):
        spml.train(tickets, **options)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
    with pytest.raises(InputError, match="is an unfinished run"):
        open_run(tmp_path / "run")
    assert len(spml.train(tickets, **options).classes) == 3
    with pytest.raises(InputError, match="was started with other settings"):
        spml.train(tickets, seed=1, **options)


def test_columns_are_found_by_name(tmp_path):
    data = table()
    data.to_csv(tmp_path / "t.csv", index=False)
    trained = spml.train(tmp_path / "t.csv", out=tmp_path / "run", base="linear", device="cpu", progress=False)
    expected = trained.predict(tmp_path / "t.csv")
    np.testing.assert_array_equal(trained.predict(data[["c", "a", "b"]]), expected)
    with pytest.warns(InputWarning, match="1 columns are ignored .*'d'"):
        np.testing.assert_array_equal(trained.predict(data.assign(d=1.0)[["d", "c", "b", "a"]]), expected)
    with pytest.raises(InputError, match=r"the column 'b' is missing; .* was trained on 'a', 'b', 'c'"):
        trained.predict(data[["a", "c"]])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"base": "boosting"}, "it must be auto, linear or trees"),
        ({"encoder": "words"}, "applies only to texts"),
        ({"epochs": 3}, "--epochs 3 applies only to images"),
        ({"k": 9}, "at most 3, the number of classes"),
        ({"settings": {"teacher_share": 0.1}}, "has no settings"),
    ],
)
def test_invalid_options_leave_no_folder(tmp_path, options, problem):
    table().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=problem):
        spml.train(tmp_path / "t.csv", out=tmp_path / "run", device="cpu", progress=False, **options)
    assert not (tmp_path / "run").exists()


def test_constant_columns_are_harmless_and_nan_is_reported(tmp_path):
    data = table().assign(d=1.0)
    data.to_csv(tmp_path / "t.csv", index=False)
    trained = spml.train(tmp_path / "t.csv", out=tmp_path / "run", base="linear", device="cpu", progress=False)
    assert np.isfinite(trained.predict(tmp_path / "t.csv")).all()
    matrix = data[["a", "b"]].to_numpy(copy=True)
    matrix[4, 1] = np.nan
    np.save(tmp_path / "x.npy", matrix)
    np.save(tmp_path / "x-labels.npy", np.arange(60) % 3)
    with pytest.raises(InputError, match="row 4, column 1 is nan"):
        spml.train(tmp_path / "x.npy", out=tmp_path / "bad", progress=False)
    assert not (tmp_path / "bad").exists()


def test_columns_and_classes_that_cannot_be_learned_are_named(tmp_path, capsys):
    data = table().assign(d=1.0)
    data.loc[0, "label"] = "rare"
    data.to_csv(tmp_path / "t.csv", index=False)
    spml.train(tmp_path / "t.csv", out=tmp_path / "run", base="linear", device="cpu")
    printed = capsys.readouterr().out
    assert "rare: only one row has this label" in printed
    assert "1 of 4 columns are constant" in printed
    data[["d", "label"]].to_csv(tmp_path / "constant.csv", index=False)
    spml.train(tmp_path / "constant.csv", out=tmp_path / "constant", base="linear", device="cpu")
    assert "all columns are constant and have no effect: nothing can be learned" in capsys.readouterr().out


def test_rows_are_described_in_the_same_words_everywhere(tickets, tmp_path, capsys):
    trained = spml.train(tickets, out=tmp_path / "run", base="linear", device="cpu")
    printed, words = (
        capsys.readouterr().out,
        "90 training rows, each predicted by classifiers that did not see its label",
    )
    assert f"classes, {words}\n" in printed
    assert "\n  encoding texts\n" in printed  # not a terminal: one line per stage
    assert "\n  linear learner, softmax\n" in printed
    assert trained.folder.describe()["rows"].startswith(words)
    assert "90 rows, each predicted by classifiers that did not see its label" in trained.recover().summary()
    trained.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"The model was trained on {words}." in page
    assert "The held-out score is the mAP on texts, each predicted by classifiers that did not see its label" in page


def test_what_was_chosen_is_printed_without_numbers(run, capsys):
    kept = spml.train(run.folder.source["path"], out=run.folder.folder, base="linear", device="cpu", progress=False)
    assert "log-likelihood" not in kept.folder.short_choice
    assert "strength" in run.folder.choice
    assert kept.folder.short_choice == (
        "Combined 2 classifiers, chosen by how well they predict held-out labels (details: spml report)"
    )


def test_a_long_training_names_the_faster_one(tickets, tmp_path, monkeypatch, capsys):
    hint = "Growing forests can take minutes: --base linear does without them, and is faster.\n"
    spml.train(tickets, out=tmp_path / "short", device="cpu")
    assert hint not in capsys.readouterr().out
    monkeypatch.setattr("spml.training.train_features.forests_take_long", lambda rows, dim, classes: True)
    spml.train(tickets, out=tmp_path / "long", device="cpu")
    assert hint in capsys.readouterr().out
    spml.train(tickets, out=tmp_path / "linear", base="linear", device="cpu")
    assert hint not in capsys.readouterr().out
