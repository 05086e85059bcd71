"""A method with softmax scores: every place that turns its logits into probabilities uses the softmax."""

import json

import numpy as np
import pytest
import torch

import spml
from spml.losses.activation import log_odds, probabilities, ranking_scores
from spml.predict.blocks import InputBlock
from spml.predict.predictor import open_predictor
from spml.runs.folder import best_network, open_run
from spml.training.device import default_precision
from spml.training.linear import evaluator
from support.trained_runs import CLASSES, photo

# The predictions of a run are made in the precision of its training, bfloat16 on CPUs with instructions for it.
TOLERANCE = 1e-3 if default_precision(torch.device("cpu")) == "bf16" else 1e-5
OPTIONS = {"epochs": 2, "batch_size": 8, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos with one label each, and a run of `softmax` trained on them."""
    root, draw = tmp_path_factory.mktemp("softmax"), np.random.default_rng(0)
    for channel, name in enumerate(reversed(CLASSES)):
        (root / "photos" / name).mkdir(parents=True)
        for number in range(12):
            (root / "photos" / name / f"{number}.png").write_bytes(photo(draw, channel))
    spml.train(root / "photos", out=root / "run", model="small", size=16, method="softmax", **OPTIONS)
    return root


def test_formulas():
    logits = torch.tensor([[0.0, 1.0, -2.0], [8.0, -8.0, 0.0]], dtype=torch.float64)
    expected = logits.exp() / logits.exp().sum(1, keepdim=True)
    torch.testing.assert_close(probabilities(logits, "softmax"), expected)
    torch.testing.assert_close(ranking_scores(logits, "softmax").exp(), expected)
    torch.testing.assert_close(log_odds(logits, "softmax"), torch.log(expected) - torch.log1p(-expected))
    torch.testing.assert_close(probabilities(logits), 1 / (1 + (-logits).exp()))
    assert ranking_scores(logits) is log_odds(logits) is logits


def test_stored_predictions_are_the_softmax_of_the_network(folder):
    run = open_run(folder / "run")
    assert json.loads((folder / "run" / "run.json").read_text())["model"]["activation"] == "softmax"
    np.testing.assert_allclose(run.probabilities.sum(1), 1.0, atol=1e-5)
    network = best_network(folder / "run")
    with torch.no_grad():
        logits = network(run.store.batch(np.arange(len(run.names)))).logits.double()
    np.testing.assert_allclose(run.probabilities, logits.softmax(1).numpy(), atol=TOLERANCE)


def test_prediction_recovery_and_saved_copies_use_the_softmax(folder, tmp_path):
    run, stored = spml.load(folder / "run"), open_run(folder / "run")
    files = [str(folder / "photos" / name) for name in stored.names]
    np.testing.assert_allclose(run.predict(files), stored.probabilities, atol=TOLERANCE)
    run.save_pretrained(tmp_path / "copy")
    np.testing.assert_allclose(spml.load(tmp_path / "copy").predict(files), stored.probabilities, atol=TOLERANCE)
    recovered = run.recover()
    np.testing.assert_array_equal(recovered.probabilities, stored.probabilities)
    assert np.isfinite(recovered.confidences).all()


def test_exported_file_computes_the_calibrated_softmax(folder, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    spml.load(folder / "run").export(tmp_path / "model.onnx")  # compares itself with the predictor
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    predictor = open_predictor(folder / "run", "cpu")
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    (found,) = session.run(None, {"images": images.numpy()})
    raw = predictor.probabilities(InputBlock(list("abcd"), images))
    np.testing.assert_allclose(raw.sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(found, predictor.decision.calibration.confidences(raw, reading="cautious"), atol=1e-4)


def test_many_classes_are_ranked_by_the_softmax_in_parts(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=draw) for shape in ((30, 4), (7, 4), (7,)))
    truth = (torch.rand(30, 7, generator=draw) < 0.3).numpy()
    expected = (x @ weight.T + bias).double().softmax(1)
    whole = evaluator.Evaluator(x, truth, 4, 7, "map", torch.device("cpu"))
    from spml.metrics import average_precision

    mean = float(average_precision(expected, torch.from_numpy(truth)).nanmean())
    assert whole.scores(weight[None], bias[None], ["softmax"]) == pytest.approx([mean])
    assert whole.scores(weight[None], bias[None], ["sigmoid"]) != pytest.approx([mean])
    monkeypatch.setattr(evaluator, "MAX_LOGITS", 60)  # two classes at a time
    assert whole.scores(weight[None], bias[None], ["softmax"]) == pytest.approx([mean])
