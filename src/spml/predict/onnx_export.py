"""Export a trained classifier to ONNX: from pixels or features to calibrated probabilities (extra `export`)."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spml
from spml.atomic import atomic_path
from spml.calibration import CAUTIOUS
from spml.calibration.recalibration import LEAST, MOST
from spml.errors import InputError, install_command
from spml.losses.activation import log_odds
from spml.models.feature_model import FeatureModel, LinearLearner, independent_network
from spml.models.quiet_export import quiet_export
from spml.predict.blocks import InputBlock
from spml.predict.predictor import Float32, Predictor

TOLERANCE = 1e-4
_MAX_LOGIT = float(np.log1p(-1e-7) - np.log(1e-7))  # calibration clips probabilities to [1e-7, 1 - 1e-7]
_TEST_ROWS = 5


def export_onnx(predictor: Predictor, path: Path) -> None:
    """Write a classifier with its calibration as one ONNX file, checked against onnxruntime.

    Parameters
    ----------
    predictor : Predictor
    path : Path
        File to write. Its input `images` is uint8 of shape (batch, 3, size, size) in RGB, already resized; for a run
        on features, its input `features` is float32 of shape (batch, features). Its output `probabilities` is float32
        of shape (batch, classes): the confidences of `spml predict --recover`. The metadata hold, as JSON, `classes`,
        `thresholds` (the confidence from which each class counts as present; null: never) and `image_size`, and the
        version of spml as `spml_version`.

    Raises
    ------
    InputError
        If the extra is not installed, the run cannot be calibrated, the file cannot be written, or onnxruntime
        computes probabilities that differ by more than 1e-4.
    """
    if predictor.encoder is not None:
        raise InputError(
            f"{predictor.folder} was trained on texts, which an ONNX file cannot encode: use save_pretrained"
        )
    onnx, onnxruntime = _packages()
    predictor = predictor.cpu_copy()  # GPUs round more coarsely than the tolerance
    graph = _CalibratedNetwork(predictor).eval()
    name, example = _example(predictor)
    batch = {0: torch.export.Dim("batch")}
    with quiet_export():
        program = torch.onnx.export(
            graph,
            (example,),
            dynamo=True,
            input_names=[name],
            output_names=["probabilities"],
            dynamic_shapes=(batch,),
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, _metadata(predictor))
    content = model.SerializeToString()
    onnx.checker.check_model(content)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for rows in (_TEST_ROWS, 1):
        (result,) = session.run(None, {name: example[:rows].numpy()})
        difference = float(np.abs(result - calibrated_probabilities(predictor, example[:rows])).max())
        if not difference <= TOLERANCE:
            raise InputError(
                f"{path} was not written: onnxruntime computes probabilities that differ by {difference:.1g}"
            )
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def calibrated_probabilities(predictor: Predictor, inputs: Tensor) -> Float32:
    """What the exported file computes: calibrated probabilities of rows without an observed label."""
    block = InputBlock([str(row) for row in range(len(inputs))], inputs)
    calibration, rule = predictor.decision
    return calibration.confidences(predictor.predict(block).independent, reading=rule.reading)


class _CalibratedNetwork(nn.Module):
    """Network and `Calibration.confidences`, in a form that float32 computes accurately."""

    slopes: Tensor
    offsets: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        calibration, rule = predictor.decision
        self.activation = predictor.activation
        self.network = independent_network(predictor.network) or predictor.network
        self.at_least_one, self.cautious = calibration.at_least_one, rule.reading == "cautious"
        self.correction = calibration.corrections[0]
        readings = calibration.readings
        self.register_buffer("slopes", torch.tensor([reading.slope for reading in readings], dtype=torch.float32))
        self.register_buffer(
            "offsets", torch.tensor(np.stack([reading.offsets for reading in readings]), dtype=torch.float32)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.network(inputs).logits
        logits = log_odds(logits, self.activation).clamp(-_MAX_LOGIT, _MAX_LOGIT)
        readings = torch.stack(
            [self._present(logits * slope + b) for slope, b in zip(self.slopes, self.offsets, strict=True)]
        )
        confidences = readings.mean(0)
        if self.cautious:
            rank = int(CAUTIOUS * (len(readings) - 1))
            confidences = torch.minimum(confidences, readings.sort(0).values[rank])
        return self._corrected(confidences)

    def _present(self, logits: Tensor) -> Tensor:
        present = torch.sigmoid(logits)
        if not self.at_least_one:
            return present
        # 1 - Π (1 - p) = -expm1(x) with x = Σ log(1 - p), and expm1(x) = 2t / (1 - t) with t = tanh(x / 2)
        half = torch.tanh(-F.softplus(logits).sum(1, keepdim=True) / 2)
        any_present = -2 * half / (1 - half)
        return present / torch.where(any_present > 0, any_present, 1.0)

    def _corrected(self, confidences: Tensor) -> Tensor:
        """As `Recalibration` computes it."""
        (shift, stretch), covariance = self.correction.weights.tolist(), self.correction.covariance.tolist()
        p = confidences.clamp(LEAST, MOST)
        x = torch.log(p) - torch.log1p(-p)
        variance = covariance[0][0] + 2 * covariance[0][1] * x + covariance[1][1] * x * x
        mean = torch.sigmoid((shift + stretch * x) / torch.sqrt(1 + math.pi * variance / 8))
        doubt = (1 - mean) * (1 - confidences) / (1 - MOST)
        return torch.where(confidences > MOST, 1 - doubt, mean * (confidences / p))


def _example(predictor: Predictor) -> tuple[str, Tensor]:
    """Name of the input, and random rows to trace and check the graph with."""
    draw, size = torch.Generator().manual_seed(0), predictor.spec.image_size
    if size is not None:
        return "images", torch.randint(0, 256, (_TEST_ROWS, 3, size, size), generator=draw, dtype=torch.uint8)
    network = predictor.network
    assert isinstance(network, FeatureModel)
    rows = torch.randn(_TEST_ROWS, network.dim, generator=draw)
    for learner in network.learners:
        if isinstance(learner, LinearLearner):  # rows like those of training
            rows = (rows * learner.deviation + learner.mean).float()
            break
    return "features", rows


def _metadata(predictor: Predictor) -> dict[str, str]:
    thresholds = [float(value) if np.isfinite(value) else None for value in predictor.decision.rule.thresholds]
    return {
        "classes": json.dumps(predictor.classes),
        "thresholds": json.dumps(thresholds),
        "most_labels": json.dumps(predictor.decision.rule.most),
        "image_size": json.dumps(predictor.spec.image_size),
        "spml_version": spml.__version__,
    }


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  (used by torch.onnx)
    except ImportError:
        raise InputError(
            f"export needs the packages onnx, onnxruntime and onnxscript: {install_command('export')}"
        ) from None
    return onnx, onnxruntime
