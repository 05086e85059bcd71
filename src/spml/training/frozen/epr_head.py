"""Images with many labels per row: EPR's head joins those of `auto` if held-out labels become more likely.

The heads of `auto` compare the classes of a row, or push every unknown label down. EPR (Cole et al. 2021) only pushes
the expected number of labels towards k. If rows have several labels, the errors of the two are partly independent. k is
estimated by the calibration of `auto`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.special import expit

from spml.calibration import Calibration, calibrate
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.models.feature_model import FeatureModel, centred
from spml.training.learners import Candidate, FeatureFit, fit_features

MIN_LABELS_PER_ROW = 2.0  # fewest labels per row for which EPR is tried
_SHARES = (0.0, 0.25, 0.5, 0.75)  # of EPR in the evidence, each part scaled to a standard deviation of 1


def with_epr_head(
    fit: FeatureFit,
    features: FeatureStore,
    labels: Labels,
    *,
    k: float | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> FeatureFit:
    """Return the fit of `auto`, together with a head trained by EPR if that makes held-out labels more likely.

    Parameters
    ----------
    fit : FeatureFit
        Of `auto` on these features and labels, without answers.
    features, labels, seed, device
        As in `fit_features`.
    k : float, optional
        Average number of labels per row. Default: the estimate of the fit.

    Returns
    -------
    FeatureFit
        The given one, if nothing is gained.
    """
    labels_per_row = fit.calibration.k.k if k is None else k
    if labels_per_row < MIN_LABELS_PER_ROW or labels.is_full:
        return fit
    epr_fit = fit_features(features, labels, method="epr", k=labels_per_row, seed=seed, device=device)
    tables = [centred(torch.from_numpy(result.evidence).double()).numpy() for result in (fit, epr_fit)]
    scales = [1 / max(float(table.std()), 1e-12) for table in tables]
    known = labels.dense()

    def calibrated(share: float) -> tuple[Calibration, np.ndarray]:
        evidence = (1 - share) * scales[0] * tables[0] + share * scales[1] * tables[1]
        return calibrate(expit(evidence), known, k=k, at_least_one=True, uncertainty=False), evidence

    by_share = {share: calibrated(share) for share in _SHARES}
    share = max(by_share, key=lambda share: by_share[share][0].log_likelihood)
    calibration, evidence = by_share[share]
    if share == 0 or calibration.log_likelihood <= fit.log_likelihood:
        return fit
    factors = (1 - share) * scales[0], share * scales[1]
    models = fit.model, epr_fit.model
    model = FeatureModel(
        [learner for part in models for learner, _ in part.weighted_learners],
        [factor * weight for factor, part in zip(factors, models, strict=True) for _, weight in part.weighted_learners],
        slope=calibration.slope,
        offsets=calibration.offsets,
        dim=features.dim,
        at_least_one=calibration.at_least_one,
    )
    candidates = [replace(candidate, weight=factors[0] * candidate.weight) for candidate in fit.candidates]
    (epr,) = epr_fit.candidates
    name = f"linear (epr, k {labels_per_row:.1f})"
    candidates.append(Candidate(name, epr.log_likelihood, epr.standard_error, True, factors[1]))

    def evidence_in(other: FeatureStore) -> np.ndarray:
        total = np.zeros_like(fit.evidence, np.float64)
        for factor, part in zip(factors, (fit, epr_fit), strict=True):
            assert part.evidence_in is not None  # both are linear
            total += factor * centred(torch.from_numpy(part.evidence_in(other))).numpy()
        return total

    return replace(
        fit,
        model=model,
        held_out=model.presence_of(torch.from_numpy(evidence)).float().numpy(),
        candidates=tuple(candidates),
        log_likelihood=calibration.log_likelihood,
        evidence=evidence.astype(np.float32),
        calibration=calibration,
        evidence_in=evidence_in,
    )
