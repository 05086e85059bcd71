"""Load a trained network and turn inputs into probabilities, embeddings and lines of labels.

Neither a GPU nor the training data is needed.
"""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from spml.calibration import Calibration
from spml.data.stores.decode import Policy
from spml.errors import InputError
from spml.losses.activation import probabilities
from spml.models import Classifier
from spml.models.feature_model import FeatureModel, given_one, independent_network
from spml.models.text_encoders import TextEncoder
from spml.predict.blocks import InputBlock, InputSpec
from spml.predict.inputs import open_files
from spml.predict.writers import FORMATS, open_writer
from spml.recover import Rule
from spml.recover import recover as recover_labels
from spml.runs.files import read_record
from spml.runs.folder import (
    ENCODER,
    PREDICTIONS,
    best_network,
    check_files,
    check_output_path,
    open_run,
    read_encoder,
    read_run_record,
)
from spml.runs.schema import PredictionsRecord, damaged
from spml.training.device import choose_device, keep_freed_memory
from spml.training.progress import bars

Float32 = npt.NDArray[np.float32]


class Decision(NamedTuple):
    """How probabilities become labels: a calibration, and which confidences count as present."""

    calibration: Calibration
    rule: Rule


class Predictions(NamedTuple):
    """What a network predicts, each (B, L)."""

    probabilities: Float32
    independent: Float32
    """The input of the calibration: presence if labels were independent of each other. It is the same, unless the
    probabilities take into account that every row has a label."""


class Predictor:
    """A trained network with its classes and its calibration.

    Parameters
    ----------
    folder : Path
        Where the network was loaded from, for error messages.
    network : Classifier or FeatureModel
    classes : tuple of str
    policy : {"squash", "crop"}
        How images are brought to the network's size.
    decide : callable
        Returns the calibration and thresholds; called at most once, when they are needed.
    columns : sequence of str
        The columns of the table that features or texts came from.
    encoder : TextEncoder, optional
        Of texts.
    device : str
        "auto", "cpu" or "cuda".
    """

    def __init__(
        self,
        folder: Path,
        network: Classifier | FeatureModel,
        classes: tuple[str, ...],
        decide: Callable[[], Decision],
        *,
        policy: Policy = "squash",
        columns: Sequence[str] = (),
        encoder: TextEncoder | None = None,
        device: str = "auto",
    ) -> None:
        self.folder, self.classes, self._decide, self.encoder = folder, classes, decide, encoder
        images = isinstance(network, Classifier)
        self.spec = InputSpec(
            str(folder),
            image_size=network.description["image_size"] if images else None,
            features=None if images else network.description["features"],
            policy=policy,
            texts=encoder is not None,
            columns=tuple(columns),
        )
        self.device = choose_device(device)
        self.network = network.to(self.device)
        self.activation: str = network.description.get("activation", "sigmoid")
        if self.device.type == "cpu":
            keep_freed_memory()

    @cached_property
    def decision(self) -> Decision:
        """Calibration and thresholds, as `spml recover` finds them."""
        return self._decide()

    def cpu_copy(self) -> "Predictor":
        """Return the same predictor with a copy of the network on the CPU."""
        network = copy.deepcopy(self.network)
        return Predictor(
            self.folder,
            network,
            self.classes,
            lambda: self.decision,
            policy=self.spec.policy,
            columns=self.spec.columns,
            encoder=self.encoder,
            device="cpu",
        )

    @cached_property
    def _independent(self) -> nn.Module | None:
        return independent_network(self.network)

    def probabilities(self, block: InputBlock) -> Float32:
        """Return the network's probability of every class, (B, L)."""
        return self.predict(block).probabilities

    @torch.inference_mode()
    def predict(self, block: InputBlock) -> Predictions:
        """Return the network's predictions for some rows."""
        independent: Float32 | None = None
        if isinstance(self.network, FeatureModel):
            probability, independent = (part.astype(np.float32) for part in self.network.predict(self._features(block)))
        elif self._independent is not None:
            logits = self._independent(self._to_device(block)).logits.float()
            probability, independent = given_one(logits).cpu().numpy(), torch.sigmoid(logits).cpu().numpy()
        else:
            logits = self.network(self._to_device(block)).logits.float()
            probability = probabilities(logits, self.activation).cpu().numpy()
        if np.isnan(probability.max(initial=0)):
            row = int(np.isnan(probability).any(axis=1).argmax())
            raise InputError(
                f"row {block.names[row]}: the network of {self.folder} returns NaN; check that its inputs are like "
                "those it was trained on"
            )
        return Predictions(probability, probability if independent is None else independent)

    @torch.inference_mode()
    def embeddings(self, block: InputBlock) -> Float32:
        """What classifies, (B, D): pooled features of images, feature rows, encoded texts."""
        result: Float32
        if isinstance(self.network, Classifier):
            result = self.network.features(self._to_device(block)).float().cpu().numpy()
        else:
            rows = self._features(block)
            result = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, np.float32)
        return result

    def _features(self, block: InputBlock) -> Any:
        """Feature rows: a tensor or, of texts, an array or CSR matrix."""
        if self.encoder is None:
            return block.inputs
        assert isinstance(block.inputs, list)
        return self.encoder.encode(block.inputs)

    def _to_device(self, block: InputBlock) -> torch.Tensor:
        assert isinstance(block.inputs, torch.Tensor)
        inputs = block.inputs.to(self.device)
        return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


def open_predictor(run: Path, device: str = "auto") -> Predictor:
    """Open a run folder, finished or not, or a folder that `save_pretrained` wrote."""
    from spml.predict.pretrained import is_pretrained, load_pretrained  # which builds predictors itself

    if is_pretrained(run):
        return load_pretrained(run, device)[0]
    if not (run / "best.safetensors").exists():
        raise InputError(f"{run} is not a finished run: it has no best.safetensors")
    finished = (run / PREDICTIONS).exists()
    record = read_run_record(run)
    encoder_file = [ENCODER] if (run / ENCODER).exists() else []
    check_files(run, record, ("best.safetensors", *encoder_file, *([PREDICTIONS] if finished else [])))
    options = read_record(run / PREDICTIONS, PredictionsRecord)["source"]["options"] if finished else {}

    def decide() -> Decision:
        recovered = recover_labels(open_run(run))
        return Decision(recovered.calibration, recovered.rule)

    network, policy = best_network(run), options.get("policy", "squash")
    if network.num_classes != len(record["classes"]) or policy not in ("squash", "crop"):
        raise damaged(run / "run.json", f"its {len(record['classes'])} classes do not fit the network")
    columns, encoder = record.get("inputs", {}).get("columns", ()), read_encoder(run)
    return Predictor(
        run,
        network,
        tuple(record["classes"]),
        decide,
        policy=policy,
        columns=columns,
        encoder=encoder,
        device=device,
    )


def predict_files(
    run: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    threshold: float = 0.5,
    top: int = 1,
    device: str = "auto",
    recover: bool = False,
    label_column: str | None = None,
    allow_formulas: bool = False,
    progress: bool = False,
) -> int:
    """Predict the labels of files and write them, one line per label.

    Parameters
    ----------
    run : Path
        Run folder, or a folder that `save_pretrained` wrote.
    inputs : sequence of Path
        Files and folders of images or texts, or one feature matrix (.npy, .npz), or one table (.csv, .tsv, .parquet).
    out : Path
        File to write: .csv, .parquet or .jsonl.
    threshold, top : float, int
        List the labels of at least this probability, and at least this many per row.
    device : str
        "auto", "cpu" or "cuda".
    recover : bool
        List calibrated labels, as `spml recover` does, instead of those selected by `threshold` and `top`.
    label_column : str, optional
        Of a table, with `recover`: the column with the observed label of each row.
    allow_formulas : bool
        Write CSV cells that a spreadsheet would run as formulas as they are, without an apostrophe in front.
    progress : bool
        Show a progress bar.

    Returns
    -------
    int
        The number of rows.

    Raises
    ------
    InputError
        If an input cannot be read, does not fit the run, or `out` cannot be written.
    """
    if out.suffix not in FORMATS:
        raise InputError(f"{out}: the file must end in {', '.join(FORMATS)}")
    check_label_column(label_column, recover)
    check_output_path(out, run)
    if out.resolve() in [path.resolve() for path in inputs]:
        raise InputError(f"--out {out} is one of the inputs: choose another file")
    labeller = Labeller(open_predictor(run, device), threshold=threshold, top=top, recover=recover)
    total, blocks = open_files(inputs, labeller.predictor.spec, label_column)
    with bars(progress) as bar, open_writer(out, labeller.schema, allow_formulas=allow_formulas) as write:
        task = bar.add_task("rows", total=total)
        for block in blocks:
            write(labeller(block))
            bar.advance(task, len(block.names))
    return total


def check_label_column(label_column: str | None, recover: bool) -> None:
    if label_column is not None and not recover:
        raise InputError("a label column is used only with recover: add --recover, or leave the label column out")


class Labeller:
    """Turn blocks of rows into lines, one per label.

    Without `recover`, lists the labels whose probability is at least `threshold`, and the `top` most probable ones.
    With `recover`, probabilities become confidences by the run's calibration, given a row's observed label if there is
    one, and every label is listed that the run's rule counts as present.
    """

    def __init__(self, predictor: Predictor, *, threshold: float = 0.5, top: int = 1, recover: bool = False) -> None:
        self.predictor, self.threshold, self.top = predictor, threshold, top
        self.decision = predictor.decision if recover else None
        self._index = {name: index for index, name in enumerate(predictor.classes)}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the lines."""
        name = ("image" if self.predictor.spec.image_size else "row", pa.string())
        if self.decision is None:
            return pa.schema([name, ("label", pa.string()), ("probability", pa.float64())])
        numbers = [(column, pa.float64()) for column in ("confidence", "probability", "threshold")]
        return pa.schema([name, ("label", pa.string()), ("observed", pa.bool_()), *numbers])

    def __call__(self, block: InputBlock) -> pa.Table:
        probability, independent = self.predictor.predict(block)
        if self.decision is None:
            order = np.argsort(-probability, axis=1, kind="stable")
            ranked = np.take_along_axis(probability, order, axis=1)
            row, rank = np.nonzero((ranked >= self.threshold) | (np.arange(probability.shape[1]) < self.top))
            label = order[row, rank]
            values: list[Any] = [probability[row, label]]
        else:
            calibration, rule = self.decision
            observed = self._observed(block)
            confidence = calibration.confidences(independent, observed, reading=rule.reading)
            row, label = np.nonzero(rule.present(confidence, observed))
            order = np.lexsort((-confidence[row, label], observed[row, label] <= 0, row))
            row, label = row[order], label[order]
            numbers = (confidence[row, label], probability[row, label], rule.thresholds[label])
            values = [observed[row, label] > 0, *numbers]
        texts = [
            pa.array(block.names, pa.string()).take(row),
            pa.array(self.predictor.classes, pa.string()).take(label),
        ]
        rounded = [value if value.dtype == bool else value.astype(np.float64).round(6) for value in values]
        return pa.table([*texts, *rounded], schema=self.schema)

    def _observed(self, block: InputBlock) -> npt.NDArray[np.int8]:
        observed = np.zeros((len(block.names), len(self._index)), np.int8)
        for row, name in enumerate(block.observed or ()):
            if name is None or name == "":
                continue
            if name not in self._index:
                raise InputError(
                    f"row {block.names[row]}: the label {name!r} is not one of the run's {len(self._index)} classes"
                )
            observed[row, self._index[name]] = 1
        return observed
