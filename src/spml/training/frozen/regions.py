"""Regions of images: a label that is visible in one part of an image counts, even if it is hardly visible in the whole.

The evidence for a label is the mean of the evidence in the whole image and of the strongest evidence in one of nine
regions, each half as high and wide, by the same learners. It is used if held-out labels become more likely.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit

from spml.calibration import calibrate
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.models.feature_model import FeatureModel
from spml.models.heads import REGIONS
from spml.training.learners import FeatureFit

MAX_ROWS = 25_000  # with 2,048 channels, the features of these images and their regions take 2 GB


def regions_fit_in_memory(rows: int) -> bool:
    """Return whether the features of the regions of all images may be kept in memory."""
    return rows <= MAX_ROWS


def image_part(features: FeatureStore, number: int) -> FeatureStore:
    """Return the features of the whole images (0) or of one region (1 to 9), from rows that hold them all."""
    size = features.dim // (1 + REGIONS)
    matrix: npt.NDArray[np.float32] = features.batch(np.arange(len(features))).cpu().numpy()
    return FeatureStore(matrix[:, number * size : (number + 1) * size])


def with_regions(fit: FeatureFit, features: FeatureStore, labels: Labels, *, k: float | None = None) -> FeatureFit:
    """Return the fit with the evidence in regions, if that makes held-out labels more likely.

    Parameters
    ----------
    fit : FeatureFit
        On the features of whole images.
    features : FeatureStore
        Features of the same rows and of their regions, see `image_part`.
    labels : Labels
        Known labels of these rows.
    k : float, optional
        Average number of labels per row, if known.

    Returns
    -------
    FeatureFit
        Its model takes rows of `features`; or the given one, if nothing is gained.
    """
    if fit.evidence_in is None or labels.is_full:
        return fit
    whole, *regions = (fit.evidence_in(image_part(features, number)) for number in range(1 + REGIONS))
    # (whole + strongest) / 2 in place of whole; `fit.evidence` is `whole` plus what was learned from answers
    evidence = fit.evidence + (np.max(regions, axis=0) - whole) / 2
    calibration = calibrate(expit(evidence), labels.dense(), k=k, at_least_one=True, uncertainty=False)
    if calibration.log_likelihood <= fit.log_likelihood:
        return fit
    old = fit.model
    model = FeatureModel(
        [learner for learner, _ in old.weighted_learners],
        [weight for _, weight in old.weighted_learners],
        slope=calibration.slope,
        offsets=calibration.offsets,
        dim=features.dim,
        num_regions=REGIONS,
        centred=old.centred,
        normalised=old.normalised,
        at_least_one=calibration.at_least_one,
        correction=old.correction,
    )
    return replace(
        fit,
        model=model,
        held_out=model.presence_of(torch.from_numpy(evidence)).float().numpy(),
        log_likelihood=calibration.log_likelihood,
        evidence=evidence.astype(np.float32),
        calibration=calibration,
        evidence_in=None,
    )
