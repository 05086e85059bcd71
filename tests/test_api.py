"""The public API: train, load, predict, embed, recover, report, export, save_pretrained, push_to_hub."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from pyarrow import csv

import spml
from spml.predict import predict_files
from spml.predict.onnx_export import calibrated_probabilities
from support.pictures import picture


@pytest.fixture(scope="module")
def on_images(tables):
    return spml.load(tables / "on-images", device="cpu")


@pytest.fixture(scope="module")
def on_features(tables):
    return spml.load(tables / "on-features", device="cpu")


def files(tables):
    return sorted((tables / "photos").rglob("*.png"))


def test_predict_gives_the_numbers_of_the_command(tables, on_images, on_features, tmp_path):
    """All classes of all rows, rounded to the six decimals of the file."""
    for run, folder, inputs, first in (
        (on_images, "on-images", files(tables), "image"),
        (on_features, "on-features", [tables / "x.npy"], "row"),
    ):
        predict_files(tables / folder, inputs, tmp_path / "all.csv", top=3, device="cpu")
        lines = csv.read_csv(tmp_path / "all.csv").to_pylist()
        names = list(dict.fromkeys(line[first] for line in lines))
        written = {(line[first], str(line["label"])): line["probability"] for line in lines}
        probabilities = run.predict(inputs)
        assert probabilities.dtype == np.float32
        expected = [[written[name, label] for label in run.classes] for name in names]
        assert np.array_equal(probabilities.astype(np.float64).round(6), expected)


@pytest.mark.parametrize("option", ["epochs", "batch_size", "learning_rate"])
def test_training_with_nothing_per_step_is_an_error(option, tmp_path):
    with pytest.raises(spml.InputError, match=f"{option} must be"):
        spml.train("scenes", out=tmp_path / "run", **{option: 0})
    assert not (tmp_path / "run").exists()


def test_images_of_all_types_give_the_same_probabilities(tables, on_images):
    paths = files(tables)
    expected = on_images.predict(paths)
    opened = [Image.open(path) for path in paths]
    pixels = np.stack([np.asarray(image) for image in opened])
    channels_first = torch.from_numpy(pixels).movedim(-1, 1)
    same = (
        [str(path) for path in paths],
        tables / "photos",
        str(tables / "paths.parquet"),
        [Image.open(path) for path in paths],
        opened,
        pixels,
        list(pixels),
        channels_first,
        list(channels_first),
        channels_first.numpy(),
        [paths[0], opened[1], *pixels[2:]],
    )
    for inputs in same:
        assert np.array_equal(on_images.predict(inputs), expected)
    assert np.allclose(on_images.predict(channels_first.float() / 255), expected, atol=1e-6)
    mixed = [channels_first[0].float() / 255, paths[1]]
    assert np.allclose(on_images.predict(mixed), expected[:2], atol=1e-6)
    assert on_images.predict([]).shape == (0, 3)


def test_one_image_gives_one_row(tables, on_images):
    path = files(tables)[0]
    expected = on_images.predict([path])
    assert expected.shape == (1, 3)
    pixels = np.array(Image.open(path))
    for single in (path, str(path), Image.open(path), pixels, torch.from_numpy(pixels).movedim(-1, 0)):
        assert np.array_equal(on_images.predict(single), expected)


def test_images_of_another_size_are_resized_as_files_are(on_images, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (150, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", quality=95)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    expected = on_images.predict(tmp_path / "photo.png")
    for single in (pixels, torch.from_numpy(pixels).movedim(-1, 0), Image.open(tmp_path / "photo.png")):
        assert np.array_equal(on_images.predict(single), expected)
    photo = Image.open(tmp_path / "photo.jpg")  # a file this large is decoded at a smaller scale
    assert np.array_equal(on_images.predict(photo), on_images.predict(tmp_path / "photo.jpg"))
    assert photo.size == (90, 150)
    rotated = Image.Exif()
    rotated[ExifTags.Base.Orientation] = 6
    Image.fromarray(pixels[:40, :30]).save(tmp_path / "rotated.jpg", exif=rotated)
    photo = Image.open(tmp_path / "rotated.jpg")
    photo.load()
    assert np.array_equal(on_images.predict(photo), on_images.predict(tmp_path / "rotated.jpg"))
    frames = [Image.fromarray(pixels), Image.fromarray(255 - pixels)]
    frames[0].save(tmp_path / "film.png", save_all=True, append_images=frames[1:])
    film = Image.open(tmp_path / "film.png")
    film.seek(1)
    assert np.array_equal(on_images.predict(film), on_images.predict(255 - pixels))
    grey = np.asarray(Image.open(tmp_path / "photo.png").convert("L"))
    assert np.array_equal(on_images.predict(grey), on_images.predict(Image.fromarray(grey)))
    as_float = torch.from_numpy(pixels).movedim(-1, 0) / 255
    assert np.array_equal(on_images.predict(as_float), expected)


def test_features_of_all_types_give_the_same_probabilities(tables, on_features):
    x = np.load(tables / "x.npy")
    expected = on_features.predict(tables / "x.npy")
    assert expected.shape == (90, 3)
    same = (x, torch.from_numpy(x), x.tolist(), list(x), list(torch.from_numpy(x)), str(tables / "lists.parquet"))
    for inputs in same:
        assert np.array_equal(on_features.predict(inputs), expected)
    for single in (x[0], torch.from_numpy(x[0]), x[0].tolist()):
        assert np.allclose(on_features.predict(single), expected[:1], atol=1e-6)
    assert on_features.predict([]).shape == (0, 3)


def test_embeddings_are_the_input_of_the_last_layer(tables, on_images, on_features):
    weight, bias = on_images.predictor.network.head.linear.parameters()
    embedded = torch.from_numpy(on_images.embed(files(tables)))
    with torch.no_grad():
        probabilities = torch.sigmoid(embedded @ weight.T + bias)
    assert np.allclose(probabilities, on_images.predict(files(tables)), atol=1e-5)
    assert np.array_equal(on_features.embed(tables / "x.npy"), np.load(tables / "x.npy"))


@pytest.mark.parametrize(
    ("run", "inputs", "message"),
    [
        ("on_images", [3], r"input 0 is of type int: an image must be a path, a PIL image, an array or a tensor"),
        ("on_images", np.full((4, 5), -0.1), r"input 0 holds values outside 0\.\.1"),
        ("on_images", np.zeros((4, 5, 2), np.uint8), r"input 0 has shape \(4, 5, 2\) and type uint8: an image is"),
        ("on_images", np.zeros((4, 5, 3), np.int64), r"and type int64: an image is"),
        ("on_images", np.full((4, 5, 3), 2.0), r"input 0 holds values outside 0\.\.1"),
        ("on_images", "nowhere.png", r"nowhere\.png: no such file or folder"),
        ("on_features", np.zeros((2, 4)), "trained on 5 features per row, not 4"),
        ("on_features", np.zeros((2, 3, 4)), "its inputs are rows of 5 numbers"),
        ("on_features", ["a.png"], "trained on features, not on images"),
        ("on_features", [[1.0, 2.0], [3.0]], "its inputs are rows of 5 numbers"),
        ("on_features", [np.nan] * 5, "row 0, column 0 is nan"),
    ],
)
def test_invalid_inputs_raise(request, run, inputs, message):
    with pytest.raises(spml.InputError, match=message):
        request.getfixturevalue(run).predict(inputs)


def test_training_on_a_data_set_equals_training_on_its_path(tables, tmp_path):
    options = {"base": "linear", "device": "cpu", "progress": False}
    of_path = spml.train(tables / "x.npy", labels=tables / "y.npy", out=tmp_path / "path", **options)
    data = spml.open_data(tables / "x.npy", labels=tables / "y.npy")
    of_data = spml.train(data, out=tmp_path / "data", **options)
    expected = of_path.predict(tables / "x.npy")
    for run in (of_data, spml.load(tables / "on-features")):  # several threads may add in another order
        np.testing.assert_allclose(run.predict(tables / "x.npy"), expected, atol=2e-3)
    assert of_data.folder.source["path"] == str((tables / "x.npy").resolve())
    with pytest.raises(spml.InputError, match="option 'kind' applies only to a path"):
        spml.train(data, out=tmp_path / "x", kind="features")
    with pytest.raises(spml.InputError, match="size 32 applies only to images"):
        spml.train(data, out=tmp_path / "x", size=32, device="cpu")


@pytest.mark.parametrize(
    ("option", "hint"),
    [("epoch", r"; did you mean 'epochs'\?"), ("label_colum", r"; did you mean 'label_column'\?"), ("xyz", r"\.")],
)
def test_misspelt_options_of_train_are_named(tmp_path: Path, option: str, hint: str) -> None:
    with pytest.raises(spml.InputError, match=f"spml.train has no option '{option}'{hint} Options: out, method, "):
        spml.train("scenes", out=tmp_path / "run", **{option: 3})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("opened", "trained", "expected"), [({}, {}, 64), ({"size": 24}, {}, 24), ({}, {"size": 32}, 32)]
)
def test_images_have_the_size_given_or_the_models_own(tmp_path, opened, trained, expected):
    for number in range(12):
        picture(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png", number)
    data = spml.open_data(tmp_path / "photos", **opened)
    run = spml.train(data, out=tmp_path / "run", model="small", epochs=1, device="cpu", progress=False, **trained)
    assert run.predictor.spec.image_size == expected


def test_training_prints_only_with_progress(tables, tmp_path, capsys):
    options = {"base": "linear", "device": "cpu", "labels": tables / "y.npy"}
    spml.train(tables / "x.npy", out=tmp_path / "quiet", progress=False, **options)
    assert capsys.readouterr().out == ""
    spml.train(tables / "x.npy", out=tmp_path / "loud", progress=True, **options)
    assert "3 classes" in capsys.readouterr().out


def test_recover_and_report(tables, on_images, on_features, tmp_path):
    recovered = on_features.recover()
    assert recovered.classes == on_features.classes
    assert recovered.confidence(recovered.rows).shape == (90, 3)
    table = tmp_path / "labelled.csv"
    table.write_text(
        f"name,label\n{on_features.folder.names[0]},{on_features.classes[int(np.load(tables / 'y.npy')[0])]}\n"
    )
    assert not np.array_equal(on_features.recover(labelled=table).confidences, recovered.confidences)
    on_images.report(tmp_path / "report.html")
    with pytest.raises(spml.InputError, match="already exists"):
        on_images.report(tmp_path / "report.html")
    on_images.report(tmp_path / "report.html", overwrite=True)
    assert "<html" in (tmp_path / "report.html").read_text()


def test_onnx_file_computes_calibrated_probabilities(tables, on_images, on_features, tmp_path):
    """Of another batch size than at export, and as `spml predict --recover` writes them."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra export")
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(path)) for path in files(tables)])).movedim(-1, 1)
    x = torch.from_numpy(np.load(tables / "x.npy"))
    for run, inputs, name in ((on_images, pixels.contiguous(), "images"), (on_features, x, "features")):
        run.export(tmp_path / f"{name}.onnx")
        with pytest.raises(spml.InputError, match="already exists"):
            run.export(tmp_path / f"{name}.onnx")
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx")
        for rows in (1, 7, len(inputs)):
            (result,) = session.run(None, {name: inputs[:rows].numpy()})
            assert np.abs(result - calibrated_probabilities(run.predictor, inputs[:rows])).max() < 1e-4
        metadata = session.get_modelmeta().custom_metadata_map
        assert tuple(json.loads(metadata["classes"])) == run.classes
        assert np.allclose(json.loads(metadata["thresholds"]), run.predictor.decision.rule.thresholds)
        assert json.loads(metadata["image_size"]) == (16 if name == "images" else None)
        assert metadata["spml_version"] == spml.__version__
        assert sorted(path.name for path in tmp_path.iterdir() if name in path.name) == [f"{name}.onnx"]
    expected = calibrated_probabilities(on_features.predictor, x)
    rule = on_features.predictor.decision.rule
    predict_files(tables / "on-features", [tables / "x.npy"], tmp_path / "all.csv", recover=True, device="cpu")
    lines = csv.read_csv(tmp_path / "all.csv").to_pylist()
    found = sorted((line["row"], str(line["label"])) for line in lines)
    present = rule.present(expected, np.zeros(expected.shape, np.int8))
    assert found == sorted((int(row), on_features.classes[c]) for row, c in np.argwhere(present))


def test_export_without_its_packages_is_reported(on_features, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(spml.InputError, match=r'pip install "\.\[export\]" in the checkout'):
        on_features.export(tmp_path / "model.onnx")
    with pytest.raises(spml.InputError, match=r"must end in \.onnx"):
        on_features.export(tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []


def test_wrong_onnx_results_are_not_written(on_features, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    monkeypatch.setattr("spml.predict.onnx_export.calibrated_probabilities", lambda *_: np.zeros(3, np.float32))
    with pytest.raises(spml.InputError, match="probabilities that differ by"):
        on_features.export(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_save_pretrained_loads_without_the_training_data(tables, on_images, on_features, tmp_path):
    for run, inputs, name in ((on_images, files(tables), "images"), (on_features, tables / "x.npy", "features")):
        run.save_pretrained(tmp_path / name)
        shutil.move(tmp_path / name, tmp_path / f"moved-{name}")
        folder = tmp_path / f"moved-{name}"
        assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
        assert str(tables) not in (folder / "README.md").read_text() + (folder / "config.json").read_text()
        loaded = spml.load(folder, device="cpu")
        assert loaded.classes == run.classes
        assert np.array_equal(loaded.predict(inputs), run.predict(inputs))
        assert np.array_equal(loaded.embed(inputs), run.embed(inputs))
        calibration, rule = loaded.predictor.decision
        probabilities = run.predict(inputs)
        for reading in ("balanced", "cautious"):
            expected = run.predictor.decision.calibration.confidences(probabilities, reading=reading)
            assert np.array_equal(calibration.confidences(probabilities, reading=reading), expected)
        assert np.array_equal(rule.thresholds, run.predictor.decision.rule.thresholds)
        assert (rule.reading, rule.most) == (run.predictor.decision.rule.reading, run.predictor.decision.rule.most)
        loaded.save_pretrained(tmp_path / f"again-{name}")
        for file in folder.iterdir():
            assert (tmp_path / f"again-{name}" / file.name).read_bytes() == file.read_bytes()
        with pytest.raises(spml.InputError, match="without its training rows"):
            loaded.recover()
        with pytest.raises(spml.InputError, match="without its training rows"):
            loaded.report(tmp_path / "report.html")


def test_the_command_predicts_with_a_pretrained_folder(tables, on_features, tmp_path):
    on_features.save_pretrained(tmp_path / "model")
    for recover in (False, True):
        for folder in (tables / "on-features", tmp_path / "model"):
            out = tmp_path / f"{folder.name}.csv"
            predict_files(folder, [tables / "x.npy"], out, recover=recover, device="cpu")
        assert (tmp_path / "model.csv").read_bytes() == (tmp_path / "on-features.csv").read_bytes()


def test_model_card_describes_the_run(on_images, on_features, tmp_path):
    on_images.save_pretrained(tmp_path / "images")
    card = (tmp_path / "images" / "README.md").read_text()
    for text in ("library_name: spml", "pipeline_tag: image-classification", "`photos`", "`blue`, `green`, `red`"):
        assert text in card
    for text in ("Method: `auto`", "epochs 2", "16×16 pixels", "Held-out mAP", "## Limits", "spml.load("):
        assert text in card
    on_features.save_pretrained(tmp_path / "features")
    assert "a linear learner on 5 features" in (tmp_path / "features" / "README.md").read_text()


def test_save_pretrained_does_not_overwrite_other_files(on_features, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(spml.InputError, match="is not empty"):
        on_features.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_damaged_pretrained_folders_are_reported(on_features, tmp_path):
    on_features.save_pretrained(tmp_path / "model")
    weights, config = tmp_path / "model" / "model.safetensors", tmp_path / "model" / "config.json"
    saved = json.loads(config.read_text())
    content = {**saved, "files": {"model.safetensors": saved["files"]["model.safetensors"]}}  # as earlier versions
    config.write_text(json.dumps({**content, "model": {**content["model"], "num_classes": 4}}))
    with pytest.raises(spml.InputError, match=r"model\.safetensors is damaged"):
        spml.load(tmp_path / "model")
    config.write_text(json.dumps({**content, "training": {}}))
    with pytest.raises(spml.InputError, match=r"config\.json is damaged, or was not written by spml"):
        spml.load(tmp_path / "model")
    config.write_text(json.dumps(content))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(spml.InputError, match=r"model\.safetensors is missing, was changed, or belongs to another"):
        spml.load(tmp_path / "model")
    content.pop("files")
    config.write_text(json.dumps(content))
    with pytest.raises(spml.InputError, match=r"model\.safetensors is damaged"):
        spml.load(tmp_path / "model")
    with pytest.raises(spml.InputError, match="is not a run"):
        spml.load(tmp_path)


class LocalHub:
    """Stand-in for `huggingface_hub.HfApi` that stores repositories in a folder."""

    root: Path

    def __init__(self, token=None):
        self.token = token

    def create_repo(self, repo_id, *, private, exist_ok):
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(repo_id)
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        (self.root / "visibility").write_text(f"{self.token} {private}")

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub/{repo_id}/commit/{commit_message.split()[0]}"


def test_push_to_hub_uploads_what_save_pretrained_writes(tables, on_images, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    LocalHub.root = tmp_path
    monkeypatch.setattr("huggingface_hub.HfApi", LocalHub)
    address = on_images.push_to_hub("someone/photos", private=True, token="secret")
    assert address == "https://hub/someone/photos/commit/Upload"
    assert (tmp_path / "visibility").read_text() == "secret True"
    loaded = spml.load(tmp_path / "someone" / "photos", device="cpu")
    assert np.array_equal(loaded.predict(files(tables)), on_images.predict(files(tables)))
    with pytest.raises(spml.InputError, match="a/b/c was not uploaded"):
        on_images.push_to_hub("a/b/c")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(spml.InputError, match=r'pip install "\.\[hub\]" in the checkout'):
        on_images.push_to_hub("someone/photos")
