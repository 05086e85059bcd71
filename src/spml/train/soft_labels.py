"""A first look at the training rows: what linear heads on the features of a pretrained backbone say of their labels.

Each row is judged by heads that never saw its label, so what they say of it is no better than of a new row. Their
logits are calibrated by the annotator's choice of the named labels (`spml.calibration`), which needs no full labels and
no k, and given the named label become the probability of every other label being there, too. The network's head
starts as the mean of these heads, calibrated; one unlike them, at how frequent they find each label.
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
from spml.models import Classifier
from spml.train.examples import Store
from spml.train.linear import FeatureRows, HeadResult, HeadSpec, train_heads
from spml.train.pooled_features import pooled_features

# Seen larger, too, small things are found; the mean of both features is one look. Half as large again finds as much
# as the image and five of its parts do, for half the time.
LOOK_ZOOMS = (1.0, 1.5)
FOLDS = 4
# How well a head's predictions are calibrated and how well they rank differ, and which of the two is the better judge
# depends on the data; so both look, and their mean.
METHODS = ("annotator", "annotator-em")
LEARNING_RATE = 1e-3
BATCH_SIZE = 64
STEPS = 1000
FEWEST_EPOCHS, MOST_EPOCHS = 10, 100  # of each head the epoch is kept that ranks the labels of the rows left out best
FEWEST_ROWS = 10 * FOLDS
MOST_NUMBERS = 2**31  # of features and confidences together, with
CHANNELS = 2048  # features a row, more than most backbones have


def worth_a_look(classifier: object, labels: Labels) -> bool:
    """Whether there is a backbone that has learned something, and labels that can be calibrated by, and room."""
    if not isinstance(classifier, Classifier):
        return False
    source = classifier.description.get("weights", {}).get("source", "random")
    if source in ("random", "given with the module"):
        return False
    numbers = len(labels) * (labels.num_classes + CHANNELS)
    named, _ = labels.positives()
    singles = np.count_nonzero(np.bincount(named, minlength=len(labels)) == 1)
    return numbers <= MOST_NUMBERS and int(singles) >= FEWEST_ROWS


class Look(NamedTuple):
    """What was seen, and the calibrated mean of the heads that looked, as a head to start from."""

    confidences: npt.NDArray[np.float32]  # (N, L) P(label present): 1 and 0 where that is known
    weight: Tensor  # (L, D)
    bias: Tensor  # (L,)


def look_at(
    classifier: Classifier,
    store: Store,
    rows: np.ndarray,
    labels: Labels,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    precision: str = "32",
    progress: bool = True,
) -> Look:
    """A first look at these rows of a store, whose labels these are."""
    bar = "first look: features" if progress else None
    features = pooled_features(
        classifier, store, rows, device, zooms=LOOK_ZOOMS, precision=precision, dtype=np.float16, progress=bar
    )
    return first_look(features, labels, seed=seed, device=device, progress=progress)


def first_look(
    features: FeatureStore, labels: Labels, *, seed: int = 0, device: str | torch.device = "cpu", progress: bool = True
) -> Look:
    known = labels.dense()
    heads = out_of_fold_heads(features, labels, seed=seed, device=device, progress=progress)
    looks = [*heads.values(), mean_of(list(heads.values()))]
    judged = []
    for look in looks:
        probabilities = torch.sigmoid(look.logits.double()).numpy()
        judged.append((calibrate(probabilities, known), probabilities, look))
    calibration, probabilities, best = max(judged, key=lambda entry: entry[0].log_likelihood)
    offsets = torch.from_numpy(calibration.offsets).float()
    confidences = calibration.confidences(probabilities, known)
    return Look(confidences, calibration.slope * best.weight, calibration.slope * best.bias + offsets)


class OutOfFold(NamedTuple):
    """Logits (N, L) of every row by heads trained on the rows of other folds, and the mean of those heads."""

    logits: Tensor
    weight: Tensor
    bias: Tensor


def mean_of(looks: Sequence[OutOfFold]) -> OutOfFold:
    return OutOfFold(*(torch.stack(parts).mean(0) for parts in zip(*looks, strict=True)))


def out_of_fold_heads(
    features: FeatureStore, labels: Labels, *, seed: int = 0, device: str | torch.device = "cpu", progress: bool = True
) -> dict[str, OutOfFold]:
    """By method, for each of `METHODS`."""
    fold = np.random.default_rng([seed, 0xF01D]).permutation(len(labels)) % FOLDS
    specs = [HeadSpec(name, {}, LEARNING_RATE, BATCH_SIZE, seed) for name in METHODS]
    logits = {name: torch.zeros(len(labels), labels.num_classes) for name in METHODS}
    trained: dict[str, list[HeadResult]] = {name: [] for name in METHODS}
    for number in track(range(FOLDS), "first look: linear heads", disable=not progress):
        inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        left_out = FeatureRows(features, outside)
        results = train_heads(
            FeatureRows(features, inside),
            labels.subset(inside),
            specs,
            epochs=min(max(math.ceil(STEPS * BATCH_SIZE / len(inside)), FEWEST_EPOCHS), MOST_EPOCHS),
            validation=(left_out, labels.subset(outside)),
            device=device,
            progress=False,
        )
        for result in results:
            logits[result.spec.method][torch.from_numpy(outside)] = result.score(left_out).cpu()
            trained[result.spec.method].append(result)
    return {
        name: OutOfFold(
            logits[name],
            torch.stack([head.weight.T for head in heads]).mean(0),
            torch.stack([head.bias for head in heads]).mean(0),
        )
        for name, heads in trained.items()
    }
