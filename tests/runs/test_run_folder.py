"""Run folders: the files of a run belong together, and damaged or edited ones are errors of one sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spml
from spml.errors import InputError
from spml.labels import Labels
from spml.predict.predictor import open_predictor
from spml.runs.files import read_tensors, write_tensors
from spml.runs.folder import BOUND_FILES, PREDICTIONS, RunWarning, describe, open_run


def train(folder: Path, names: list[str]) -> Path:
    """A finished run on twelve rows of three features."""
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.normal(size=(40, 3)).astype(np.float32))
    (folder / "y.csv").write_text("label\n" + "".join(f"{names[row % 3]}\n" for row in range(40)))
    spml.train(str(folder / "x.npy"), labels=folder / "y.csv", out=folder / "run", method="em", progress=False)
    return folder / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("one"), ["cat", "dog", "bird"])


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def edit_json(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


def without_digests(run: Path) -> None:
    """As if an earlier version had trained it: nothing but the schemas can find an error."""
    edit_json(run / "run.json", lambda record: {key: value for key, value in record.items() if key != "files"})


def test_every_file_of_a_run_is_bound(finished: Path) -> None:
    record = json.loads((finished / "run.json").read_text())
    written = {path.name for path in finished.iterdir()}
    assert set(record["files"]) == written & set(BOUND_FILES)
    assert written - set(BOUND_FILES) == {"run.json", "log.jsonl"}


@pytest.mark.parametrize("name", BOUND_FILES)
def test_a_changed_file_is_found(run: Path, name: str) -> None:
    with (run / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match=f"{name} was changed after the training"):
        open_run(run)


def test_weights_of_another_run_are_found(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = train(tmp_path / "other", ["fish", "frog", "newt"])  # the same shapes
    shutil.copy(other / "best.safetensors", run)
    for opens in (open_run, open_predictor):
        with pytest.raises(InputError, match=r"best.safetensors .*belongs to another run"):
            opens(run)
    without_digests(run)
    with pytest.raises(InputError, match=r"best.safetensors belongs to another run"), pytest.warns(RunWarning):
        open_predictor(run)


def test_a_run_without_digests_opens_with_a_note(run: Path) -> None:
    without_digests(run)
    with pytest.warns(RunWarning, match="recorded no digests"):
        assert len(open_run(run).names) == 40


def test_a_finished_run_may_be_trained_again(run: Path, finished: Path) -> None:
    source = finished.parent
    spml.train(str(source / "x.npy"), labels=source / "y.csv", out=run, method="em", progress=False)
    assert open_run(run).names == open_run(finished).names


def test_changed_features_do_not_resume(tmp_path: Path) -> None:
    run = train(tmp_path, ["cat", "dog", "bird"])
    features = np.load(tmp_path / "x.npy")
    features[-1, -1] += 1e-3
    np.save(tmp_path / "x.npy", features)
    with pytest.raises(InputError, match="the rows or their files have changed"):
        spml.train(str(tmp_path / "x.npy"), labels=tmp_path / "y.csv", out=run, method="em", progress=False)


JSON_EDITS = {
    "run.json": [
        *([], None, 3, "text", {}),
        *({"method": value} for value in (None, 3, [], {}, {"name": 3})),
        *({"train": value} for value in (None, {}, {"epochs": "2"}, {"epochs": -1}, {"epochs": 10**40})),
        *({"classes": value} for value in (None, [], [1, 2, 3], ["cat"], ["cat", "cat", "dog"], "cat")),
        *({"model": value} for value in (None, [], {}, {"features": 3}, {"features": "3", "num_classes": 3})),
        {"model": {"features": 10**12, "num_classes": 3}},
        {"k": -1},
        {"k": "many"},
        {"files": []},
        {"files": {"best.safetensors": 3}},
    ],
    "names.json": [None, 3, {}, [], ["a"], [1] * 40, ["a"] * 39],
}
CASES = [(name, edit) for name, edits in JSON_EDITS.items() for edit in edits]


@pytest.mark.parametrize(("name", "edit"), CASES, ids=lambda value: str(value)[:40])
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_edited_json(run: Path, name: str, edit: Any) -> None:
    without_digests(run)
    merged = isinstance(edit, dict) and edit and name == "run.json"
    edit_json(run / name, lambda content: {**content, **edit} if merged else edit)
    with pytest.raises(InputError, match=rf"{name} is damaged|belongs to another run|of names.json"):
        open_run(run)


LOGS = ["[]\n", '{"kind": 3, "step": 1}\n', '{"kind": "epoch", "step": 1}\n', '{"kind": "epoch", "step": -1}\n']
LOGS += ["{\n" + '{"kind": "end", "step": 1}\n', '{"kind": "histogram", "step": 1, "counts": []}\n', "\xff\n"]


@pytest.mark.parametrize("text", LOGS)
def test_edited_log(run: Path, text: str) -> None:
    (run / "log.jsonl").write_text(text, encoding="latin-1")
    for opens in (open_run, describe):
        with pytest.raises(InputError, match=r"log.jsonl is damaged"):
            opens(run)


def _swap(tensors: dict[str, torch.Tensor], name: str, value: Any) -> dict[str, torch.Tensor]:
    return {**tensors, name: torch.as_tensor(value)}


TENSOR_EDITS = {
    "no parts": lambda t: {"probabilities": t["probabilities"]},
    "one dimension": lambda t: _swap(t, "probabilities", t["probabilities"][:, 0]),
    "too few rows": lambda t: _swap(t, "probabilities", t["probabilities"][1:].clone()),
    "doubles": lambda t: _swap(t, "probabilities", t["probabilities"].double()),
    "bfloat16": lambda t: _swap(t, "probabilities", t["probabilities"].bfloat16()),
    "above 1": lambda t: _swap(t, "probabilities", t["probabilities"] + 1),
    "NaN": lambda t: _swap(t, "probabilities", t["probabilities"] * torch.nan),
    "negative row": lambda t: _swap(t, "train", t["train"] - 1000),
    "row too large": lambda t: _swap(t, "test", torch.tensor([1000])),
    "float rows": lambda t: _swap(t, "train", t["train"].float()),
    "a row twice": lambda t: _swap(t, "validation", t["train"]),
    "a scalar": lambda t: _swap(t, "test", torch.tensor(3)),
}


@pytest.mark.parametrize("edit", TENSOR_EDITS.values(), ids=TENSOR_EDITS)
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_edited_predictions(run: Path, edit: Any) -> None:
    without_digests(run)
    tensors, record = read_tensors(run / PREDICTIONS)
    write_tensors(run / PREDICTIONS, edit(tensors), record)
    with pytest.raises(InputError, match=f"{PREDICTIONS} is damaged"):
        open_run(run)


@pytest.mark.parametrize("record", [[], {}, {"source": 3}, {"source": {"path": 3, "options": {}}}, {"source": {}}])
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_edited_record_of_predictions(run: Path, record: Any) -> None:
    without_digests(run)
    tensors, _ = read_tensors(run / PREDICTIONS)
    write_tensors(run / PREDICTIONS, tensors, record)
    for opens in (open_run, open_predictor):
        with pytest.raises(InputError, match=f"{PREDICTIONS} is damaged"):
            opens(run)


WEIGHT_EDITS = {
    "missing": lambda t: {name: t[name] for name in list(t)[1:]},
    "unknown": lambda t: _swap(t, "other", [1.0]),
    "another shape": lambda t: {name: tensor.flatten()[:1].clone() for name, tensor in t.items()},
}


@pytest.mark.parametrize("edit", WEIGHT_EDITS.values(), ids=WEIGHT_EDITS)
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_edited_weights(run: Path, edit: Any) -> None:
    without_digests(run)
    tensors, record = read_tensors(run / "best.safetensors")
    write_tensors(run / "best.safetensors", edit(tensors), record)
    with pytest.raises(InputError, match=r"best.safetensors is damaged"):
        open_predictor(run)


@pytest.mark.parametrize(
    "model",
    [{}, {"features": 10**12, "num_classes": 3}, {"features": -3, "num_classes": 3}, {"features": None}, {"x": 1}],
)
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_edited_description_of_the_network(run: Path, model: dict[str, Any]) -> None:
    without_digests(run)
    edit_json(run / "run.json", lambda record: {**record, "model": model})
    tensors, record = read_tensors(run / "best.safetensors")
    write_tensors(run / "best.safetensors", tensors, {**record, "model": model})
    with pytest.raises(InputError):
        open_predictor(run)


@pytest.mark.parametrize(
    "edit", [lambda labels: labels.subset(np.arange(39)), lambda labels: labels], ids=["fewer rows", "other classes"]
)
@pytest.mark.filterwarnings("ignore::spml.runs.folder.RunWarning")
def test_labels_of_other_rows_or_classes(run: Path, edit: Any) -> None:
    without_digests(run)
    labels = edit(Labels.load(run / "labels.npz"))
    if len(labels) == 40:
        labels = Labels.from_indices([row % 3 for row in range(40)], ["a", "b", "c"])
    labels.save(run / "labels.npz")
    with pytest.raises(InputError, match=r"labels.npz is damaged"):
        open_run(run)


def test_edited_checkpoint(tmp_path: Path) -> None:
    def train_images() -> None:
        options = {"train": 30, "test": 10, "model": "small", "epochs": 1, "device": "cpu", "progress": False}
        spml.train("scenes", out=tmp_path / "run", **options)

    train_images()
    checkpoint = tmp_path / "run" / "last.safetensors"
    tensors, record = read_tensors(checkpoint)
    for name, edited in {"step": {**record, "step": "3"}, "best": {**record, "best": None}}.items():
        write_tensors(checkpoint, tensors, edited)
        with pytest.raises(InputError, match=rf"last.safetensors is damaged.*{name}"):
            train_images()
    write_tensors(checkpoint, {}, record)
    with pytest.raises(InputError, match=r"last.safetensors is damaged"):
        train_images()
