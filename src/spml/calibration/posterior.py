"""What single labels can and cannot tell about k, the average number of labels per row.

A label the annotator did not pick may be present as well, or the classifier may merely be unable to tell two labels
apart. Both explain the observed labels almost equally well: data in which every row has one label can imitate any
other. What tells them apart is only the form of the model, so its likelihood is trusted as far as the form is: as if
there were `TRUSTED_ROWS` rows with one label. Where the likelihood cannot tell, the prior prefers few labels. Fully
labelled rows are counted; they need no model.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from spml.calibration.arrays import Float64
from spml.calibration.presence import Presence, PresenceFit

TRUSTED_ROWS = 150.0
_EXTRA_MEDIAN, _LOG_EXTRA_SD = 0.5, 1.5  # prior of the labels per row beyond the first
_STEP = 1.8  # ratio of neighbouring values of k − 1
_LEAST, _MOST_FITS = 0.01, 8
_DROP = 5.0  # stop where the log-posterior has fallen by this much
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


class FullCount(NamedTuple):
    """The number of labels per row, counted in fully labelled rows."""

    mean: float
    error: float
    """Standard error of the mean."""
    rows: int


class KPosterior(NamedTuple):
    """Readings of the predictions at the 10th, 30th, 50th, 70th and 90th percentile of k, and its interval."""

    readings: tuple[Presence, ...]
    low: float
    high: float


def count_full(labels: Float64, weights: Float64) -> FullCount:
    """Mean number of labels of fully labelled rows, weighted by 1 / their probability of being sampled."""
    share = weights / weights.sum()
    mean = float(share @ labels)
    rows = len(labels)
    # A few rows that all have one label do not prove that all rows have: two more rows with a spread of ½.
    spread = (float((share**2) @ (labels - mean) ** 2) * rows + 0.5 / rows) * rows / (rows + 1)
    return FullCount(mean, float(np.sqrt(spread / rows)), rows)


def k_posterior(fit: PresenceFit, best: Float64, full: FullCount | None) -> KPosterior:
    """Fit the model for a range of k, and weigh the fits by prior, single labels and fully labelled rows."""
    thetas: dict[float, Float64] = {}
    scores: dict[float, float] = {}

    def evaluate(extra: float, start: Float64) -> None:
        theta = fit.maximise(start, fit.least + extra, iterations=40)
        extra = max(fit.mean_labels(theta) - fit.least, _LEAST)
        thetas[extra], scores[extra] = theta, _log_posterior(fit, theta, extra, full)

    centre = max(fit.mean_labels(best) - fit.least, 2 * _LEAST)
    most = fit.classes - fit.least
    if full is not None:  # the range around what was counted is needed, too
        counted = min(max(full.mean - fit.least, 2 * _LEAST), 0.9 * most)
        evaluate(counted, best)
    evaluate(min(centre, 0.9 * most), best)
    for direction in (1 / _STEP, _STEP):
        for _ in range(_MOST_FITS):
            edge = min(scores) if direction < 1 else max(scores)
            extra = edge * direction
            if not _LEAST < extra < 0.9 * most or scores[edge] < max(scores.values()) - _DROP:
                break
            evaluate(extra, thetas[edge])
    return _summarise(fit, thetas, scores)


def _log_posterior(fit: PresenceFit, theta: Float64, extra: float, full: FullCount | None) -> float:
    value = -0.5 * (np.log(extra / _EXTRA_MEDIAN) / _LOG_EXTRA_SD) ** 2
    singles = fit.row_likelihoods(theta)[~fit.full]
    if len(singles):
        value += min(len(singles), TRUSTED_ROWS) * float(singles.mean())
    if full is not None:
        value += float(student.logpdf((full.mean - fit.least - extra) / full.error, max(full.rows - 1, 1)))
    return float(value)


def _summarise(fit: PresenceFit, thetas: dict[float, Float64], scores: dict[float, float]) -> KPosterior:
    """Quantiles of log(k − 1) and the parameters there, interpolated between the fits."""
    extras = np.array(sorted(scores))
    if len(extras) == 1:
        return KPosterior((fit.presence(thetas[extras[0]]),), fit.least + extras[0], fit.least + extras[0])
    grid = np.linspace(np.log(extras[0]), np.log(extras[-1]), 400)
    log_density = np.interp(grid, np.log(extras), [scores[extra] for extra in extras])
    density = np.exp(log_density - log_density.max())
    cumulative = np.cumsum(density) / density.sum()
    table = np.stack([thetas[extra] for extra in extras])

    def at(quantile: float) -> float:
        return float(grid[min(int(np.searchsorted(cumulative, quantile)), len(grid) - 1)])

    def theta(log_extra: float) -> Float64:
        return np.array([np.interp(log_extra, np.log(extras), column) for column in table.T])

    readings = tuple(fit.presence(theta(at(quantile))) for quantile in _QUANTILES)
    return KPosterior(readings, fit.least + np.exp(at(0.05)), fit.least + np.exp(at(0.95)))
