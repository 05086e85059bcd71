"""Soft labels for the training rows, from cross-fitted linear probes on the features of a pretrained backbone.

Every row is scored by probes that were trained without it, so they are no better on it than on a new row. Their logits
are calibrated by which of the present labels the annotator chose (`spml.calibration`). That needs neither full labels
nor k, and gives, together with the observed label, the probability of every other label. The network's head starts as
the calibrated mean of the probes; a head of another form starts from the class frequencies they find.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track
from torch import Tensor

from spml.calibration import calibrate
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.models import Classifier, Head
from spml.training.batches import BatchMaker
from spml.training.experiment import Experiment
from spml.training.linear import FeatureRows, HeadResult, train_heads
from spml.training.pooled_features import pooled_features
from spml.training.state import TrainingState

# Small objects are found in a larger image; the features of both sizes are averaged. 1.5 times the size finds as much
# as the image together with five crops, in half the time.
ZOOMS = (1.0, 1.5)
FOLDS = 4
# One ranks better, the other is better calibrated, and which of them gives better labels depends on the data. So both
# are trained, and the best of the two and their mean is used.
METHODS = ("annotator", "annotator-em")
LEARNING_RATE = 1e-3
BATCH_SIZE = 64
STEPS = 1000
FEWEST_EPOCHS, MOST_EPOCHS = 10, 100  # each probe keeps the epoch that ranks the labels of its held-out rows best
FEWEST_ROWS = 10 * FOLDS
MOST_NUMBERS = 2**31  # features and soft labels together, assuming CHANNELS features
CHANNELS = 2048  # more than most backbones have


def supports_probes(classifier: object, labels: Labels) -> bool:
    """Whether the backbone is pretrained, the labels suffice for calibration, and everything fits into memory."""
    if not isinstance(classifier, Classifier):
        return False
    source = classifier.description.get("weights", {}).get("source", "random")
    if source in ("random", "given with the module"):
        return False
    numbers = len(labels) * (labels.num_classes + CHANNELS)
    positive_rows, _ = labels.positives()
    singles = np.count_nonzero(np.bincount(positive_rows, minlength=len(labels)) == 1)
    return numbers <= MOST_NUMBERS and int(singles) >= FEWEST_ROWS


class ProbeResult(NamedTuple):
    """Soft labels, and the calibrated mean of the probes as a linear head."""

    confidences: npt.NDArray[np.float32]  # (N, L) P(label present); 1 and 0 where that is known
    weight: Tensor  # (L, D)
    bias: Tensor  # (L,)


def start_from_probes(state: TrainingState, batches: BatchMaker, *, keep_head: bool, progress: bool) -> None:
    """Give the method soft labels of the training rows and, unless `keep_head`, start the head as the mean probe."""
    classifier, training, settings = state.classifier, batches.training, batches.settings
    assert isinstance(classifier, Classifier)
    features = pooled_features(
        classifier,
        training.store,
        training.rows,
        batches.device,
        zooms=ZOOMS,
        precision=settings.precision,
        dtype=np.float16,
        progress="soft labels: features" if progress else None,
    )
    result = probe_features(features, training.labels, seed=settings.seed, device=batches.device, progress=progress)
    soft_labels, weight, bias = (torch.as_tensor(part).to(batches.device) for part in result)
    batches.processes.synchronise([soft_labels, weight, bias])  # equal in all processes, however their devices round
    head = classifier.head
    if isinstance(head, Head) and not keep_head:
        started = head.start_from_linear(weight, bias) or head.start_from_frequencies(soft_labels.mean(0))
        if started and state.average is not None:
            state.average.load_state_dict(classifier.state_dict())
    state.method.receive_soft_labels(soft_labels)


def probe_features(
    features: FeatureStore, labels: Labels, *, seed: int = 0, device: str | torch.device = "cpu", progress: bool = True
) -> ProbeResult:
    """Train probes on features of the training rows; their soft labels and their mean."""
    known = labels.dense()
    probes = list(cross_fitted_probes(features, labels, seed=seed, device=device, progress=progress).values())
    calibrated = []
    for candidate in [*probes, mean_probe(probes)]:
        probabilities = torch.sigmoid(candidate.logits.double()).numpy()
        calibrated.append((calibrate(probabilities, known, uncertainty=False), probabilities, candidate))
    calibration, probabilities, best = max(calibrated, key=lambda entry: entry[0].log_likelihood)
    offsets = torch.from_numpy(calibration.offsets).float()
    confidences = calibration.confidences(probabilities, known)
    return ProbeResult(confidences, calibration.slope * best.weight, calibration.slope * best.bias + offsets)


class CrossFitted(NamedTuple):
    """Logits (N, L) of every row from probes trained on the other folds, and the mean of those probes."""

    logits: Tensor
    weight: Tensor
    bias: Tensor


def mean_probe(probes: Sequence[CrossFitted]) -> CrossFitted:
    return CrossFitted(*(torch.stack(parts).mean(0) for parts in zip(*probes, strict=True)))


def cross_fitted_probes(
    features: FeatureStore, labels: Labels, *, seed: int = 0, device: str | torch.device = "cpu", progress: bool = True
) -> dict[str, CrossFitted]:
    """One result per method of `METHODS`."""
    fold = np.random.default_rng([seed, 0xF01D]).permutation(len(labels)) % FOLDS
    logits = {name: torch.zeros(len(labels), labels.num_classes) for name in METHODS}
    trained: dict[str, list[HeadResult]] = {name: [] for name in METHODS}
    for number in track(range(FOLDS), "soft labels: linear probes", disable=not progress):
        inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        left_out = FeatureRows(features, outside)
        epochs = min(max(math.ceil(STEPS * BATCH_SIZE / len(inside)), FEWEST_EPOCHS), MOST_EPOCHS)
        results = train_heads(
            FeatureRows(features, inside),
            labels.subset(inside),
            [Experiment.linear(name, {}, LEARNING_RATE, BATCH_SIZE, seed, epochs=epochs) for name in METHODS],
            validation=(left_out, labels.subset(outside)),
            device=device,
            progress=False,
        )
        for result in results:
            logits[result.experiment.method][torch.from_numpy(outside)] = result.score(left_out).cpu()
            trained[result.experiment.method].append(result)
    return {
        name: CrossFitted(
            logits[name],
            torch.stack([head.weight.T for head in heads]).mean(0),
            torch.stack([head.bias for head in heads]).mean(0),
        )
        for name, heads in trained.items()
    }
