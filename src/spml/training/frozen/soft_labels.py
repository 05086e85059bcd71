"""Soft labels for the training rows, from cross-fitted linear probes on the features of a pretrained backbone.

The probes are the linear learners of `fit_features`: two losses solved to convergence, each with the strength of
regularisation that the likelihood of held-out observed labels prefers, and averaged. With many labels per row, EPR's
head may join them (epr_head.py). Evidence in regions of an image counts too if it makes held-out labels more likely
(regions.py). Every row is scored by a probe that was trained without it, so the probe is no better on it than on a new
row. The scores are calibrated by which of the present labels the annotator chose (`spml.calibration`). That needs
neither full labels nor k, and gives, together with the observed label, the probability of every other label. A linear
head of the network starts as the calibrated probe of all rows; other heads start from the estimated class frequencies.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from torch import Tensor

from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.models import Classifier, Head
from spml.models.frozen import ZOOMS
from spml.training.frozen.epr_head import with_epr_head
from spml.training.frozen.pooled_features import pooled_features
from spml.training.frozen.regions import image_part, regions_fit_in_memory, with_regions
from spml.training.learners import fit_features
from spml.training.network.batches import BatchMaker
from spml.training.network.state import TrainingState
from spml.training.progress import progress_bar

MIN_SINGLES = 40  # rows with exactly one positive, which the calibration needs
MAX_ENTRIES = 2**31  # features and soft labels together, assuming CHANNELS features
CHANNELS = 2048  # more than most backbones have


def supports_probes(classifier: object, labels: Labels) -> bool:
    """Whether the backbone is pretrained, the labels suffice for calibration, and everything fits into memory."""
    if not isinstance(classifier, Classifier) or not classifier.pretrained:
        return False
    entries = len(labels) * (labels.num_classes + CHANNELS)
    positive_rows, _ = labels.positives()
    singles = np.count_nonzero(np.bincount(positive_rows, minlength=len(labels)) == 1)
    return entries <= MAX_ENTRIES and int(singles) >= MIN_SINGLES


class ProbeResult(NamedTuple):
    """Soft labels, and the calibrated probe as a linear head."""

    confidences: npt.NDArray[np.float32]  # (N, L) P(label present); 1 and 0 where that is known
    weight: Tensor  # (L, D)
    bias: Tensor  # (L,)


def start_from_probes(state: TrainingState, batches: BatchMaker, *, keep_head: bool, progress: bool) -> None:
    """Give the method soft labels of the training rows and, unless `keep_head`, start the head as the probe."""
    classifier, training, settings = state.classifier, batches.training, batches.settings
    assert isinstance(classifier, Classifier)
    regions = regions_fit_in_memory(len(training.rows))
    features = pooled_features(
        classifier,
        training.store,
        training.rows,
        batches.device,
        zooms=ZOOMS,
        regions=regions,
        precision=settings.precision if batches.device.type == "cuda" else "32",  # on a CPU, see `FrozenFeatures`
        dtype=np.float16,
        progress="soft labels: features" if progress else None,
    )
    result = probe_features(
        features, training.labels, regions=regions, seed=settings.seed, device=batches.device, progress=progress
    )
    soft_labels, weight, bias = (torch.as_tensor(part).to(batches.device) for part in result)
    batches.processes.synchronise([soft_labels, weight, bias])  # equal in all processes, however their devices round
    head = classifier.head
    if isinstance(head, Head) and not keep_head:
        started = head.start_from_linear(weight, bias) or head.start_from_frequencies(soft_labels.mean(0))
        if started and state.average is not None:
            state.average.load_state_dict(classifier.state_dict())
    state.method.receive_soft_labels(soft_labels)


def probe_features(
    features: FeatureStore,
    labels: Labels,
    *,
    regions: bool = False,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = True,
) -> ProbeResult:
    """Train probes on features of the training rows; return their soft labels and the probe of all rows.

    With `regions`, the rows also hold the features of regions, which count for the soft labels, not for the probe.
    """
    with progress_bar("soft labels: linear probes", 1, visible=progress) as advance:
        whole = image_part(features, 0) if regions else features
        fit = fit_features(whole, labels, base="linear", normalise=False, seed=seed, device=device)
        fit = with_epr_head(fit, whole, labels, seed=seed, device=device)
        best = with_regions(fit, features, labels) if regions else fit
        advance(1)
    confidences = best.calibration.confidences(expit(best.evidence), labels.dense())
    weight, bias = fit.model.as_linear()
    return ProbeResult(confidences, weight.float(), bias.float())
