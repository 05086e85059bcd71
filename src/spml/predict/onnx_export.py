"""Export a trained classifier to ONNX: from pixels or features to calibrated probabilities (extra `export`)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spml
from spml.atomic import atomic_path
from spml.errors import InputError
from spml.losses.activation import log_odds
from spml.models.feature_classifier import FeatureClassifier
from spml.models.quiet_export import quiet_export
from spml.predict.inputs import InputBlock
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
    return predictor.decision.calibration.confidences(predictor.probabilities(block))


class _CalibratedNetwork(nn.Module):
    """Network and `Calibration.confidences`, in a form that float32 computes accurately."""

    offsets: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        calibration = predictor.decision.calibration
        self.activation = predictor.activation
        self.network, self.slope, self.at_least_one = predictor.network, calibration.slope, calibration.at_least_one
        self.register_buffer("offsets", torch.tensor(calibration.offsets, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        if isinstance(self.network, FeatureClassifier):  # its own `forward` depends on the number of rows
            logits = F.linear(self.network.standardise(inputs), *self.network.head())
        else:
            logits = self.network(inputs).logits
        logits = log_odds(logits, self.activation).clamp(-_MAX_LOGIT, _MAX_LOGIT) * self.slope + self.offsets
        present = torch.sigmoid(logits)
        if not self.at_least_one:
            return present
        # 1 - Π (1 - p) = -expm1(x) with x = Σ log(1 - p), and expm1(x) = 2t / (1 - t) with t = tanh(x / 2)
        half = torch.tanh(-F.softplus(logits).sum(1, keepdim=True) / 2)
        some = -2 * half / (1 - half)
        return present / torch.where(some > 0, some, 1.0)


def _example(predictor: Predictor) -> tuple[str, Tensor]:
    """Name of the input, and random rows to trace and check the graph with."""
    draw, size = torch.Generator().manual_seed(0), predictor.spec.image_size
    if size is not None:
        return "images", torch.randint(0, 256, (_TEST_ROWS, 3, size, size), generator=draw, dtype=torch.uint8)
    network = predictor.network
    assert isinstance(network, FeatureClassifier)
    rows = torch.randn(_TEST_ROWS, len(network.mean), generator=draw)
    return "features", rows * network.deviation + network.mean


def _metadata(predictor: Predictor) -> dict[str, str]:
    thresholds = [float(value) if np.isfinite(value) else None for value in predictor.decision.thresholds]
    return {
        "classes": json.dumps(predictor.classes),
        "thresholds": json.dumps(thresholds),
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
            "export needs the packages onnx, onnxruntime and onnxscript: pip install 'spml[export]'"
        ) from None
    return onnx, onnxruntime
