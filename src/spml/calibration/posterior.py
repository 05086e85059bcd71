"""What single labels can and cannot tell about k, the average number of labels per row.

A label the annotator did not pick may be present as well, or the classifier may merely be unable to tell two labels
apart. Both explain the observed labels almost equally well: data in which every row has one label can imitate any
other. What tells them apart is only the form of the model, which is never quite right: on fully labelled data sets,
the most likely k − 1 is typically wrong by a factor of 1.6. So the likelihood is blurred by this factor, and trusted no
further than `TRUSTED_ROWS` rows with one label. With few rows per class, the classifier's own errors look like further
labels: with `_HALF_TRUSTED` rows per class, every row counts half. Where the likelihood cannot tell, the prior decides.
Fully labelled rows are counted, which needs no model; the likelihood then counts less.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import t as student

from spml.calibration.arrays import Float64
from spml.calibration.presence import Presence, PresenceFit

TRUSTED_ROWS, _TRUSTED_BESIDE_FULL_ROWS = 400.0, 50.0
_HALF_TRUSTED = 20.0  # rows per class
_LIKELIHOOD_SD = 0.5  # of the logarithm of the most likely k − 1, because the model is not quite right
_DEVIATIONS = np.linspace(-2, 2, 17)
# Prior of the labels per row beyond the first. Published multi-label data sets have a median of about 1.5.
_EXTRA_MEDIAN, _LOG_EXTRA_SD = 1.0, 1.5
_LEAST, _STEP = 0.012, 1.6  # smallest value of k − 1, and the ratio of neighbouring values
_SLOPES = np.exp(np.linspace(-0.9, 0.9, 7))
_SHIFT = 60.0  # of the logits; enough for any k
_QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


class FullCount(NamedTuple):
    """The number of labels per row, counted in fully labelled rows."""

    mean: float
    error: float
    """Standard error of the mean."""
    rows: int


class KPosterior(NamedTuple):
    """Readings of the predictions at the 10th, 30th, 50th, 70th and 90th percentile of k, its mean and its interval."""

    readings: tuple[Presence, ...]
    mean: float
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


def k_posterior(fit: PresenceFit, best: Float64, full: FullCount | None, rows: int) -> KPosterior:
    """Read the predictions for a range of k, and weigh the readings by prior, single labels and fully labelled rows.

    A reading changes the most likely logits z to a·(z − m) + b, where m is the mean logit of the known positives. b
    follows from k, and a is the most likely one. Classes keep their differences: offsets that are free for each class
    would fit any k almost equally well. `rows` is the number of rows with one label, of which `fit` may be a sample.
    """
    logits, likeliest = fit.logits_of(best), fit.presence(best)
    centre = float(logits[fit.known > 0].mean())
    extras = np.exp(np.arange(np.log(_LEAST), np.log(max(0.8 * (fit.classes - fit.least), 2 * _LEAST)), np.log(_STEP)))
    table, likelihoods = np.zeros((len(extras), 2)), np.zeros(len(extras))
    for place, extra in enumerate(extras):
        tried = [(slope, _shift(fit, slope * (logits - centre), extra)) for slope in _SLOPES]
        values = [_mean_likelihood(fit, slope * (logits - centre) + shift) for slope, shift in tried]
        chosen = int(np.argmax(values))
        table[place], likelihoods[place] = tried[chosen], values[chosen]
    grid = np.linspace(np.log(extras[0]), np.log(extras[-1]), 1000)
    log_density = _log_density(fit, grid, np.log(extras), likelihoods, full, rows)
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    cumulative = np.cumsum(density)

    def at(quantile: float) -> float:
        return float(grid[min(int(np.searchsorted(cumulative, quantile)), len(grid) - 1)])

    def reading(log_extra: float) -> Presence:
        slope, shift = (float(np.interp(log_extra, np.log(extras), column)) for column in table.T)
        return Presence(slope * likeliest.slope, slope * (likeliest.offsets - centre) + shift)

    readings = tuple(reading(at(quantile)) for quantile in _QUANTILES)
    low, high = float(np.exp(at(0.05))), float(np.exp(at(0.95)))
    mean = min(max(float(density @ np.exp(grid)), low), high)
    return KPosterior(readings, fit.least + mean, fit.least + low, fit.least + high)


def _shift(fit: PresenceFit, logits: Float64, extra: float) -> float:
    """What to add to the logits for `extra` labels per row beyond the least number."""

    def excess(shift: float) -> float:
        return fit.mean_labels(logits + shift) - fit.least - extra

    if excess(-_SHIFT) > 0 or excess(_SHIFT) < 0:
        return -_SHIFT if excess(-_SHIFT) > 0 else _SHIFT
    return float(brentq(excess, -_SHIFT, _SHIFT, xtol=1e-3))


def _mean_likelihood(fit: PresenceFit, logits: Float64) -> float:
    """Mean log-likelihood of the rows that are not fully labelled."""
    singles = fit.likelihoods_of(logits)[~fit.full]
    return float(singles.mean()) if len(singles) else 0.0


def _log_density(
    fit: PresenceFit, grid: Float64, log_extras: Float64, likelihoods: Float64, full: FullCount | None, rows: int
) -> Float64:
    """The logarithm of the posterior density of log(k − 1) on a grid, up to a constant.

    `likelihoods` are mean log-likelihoods at `log_extras`.
    """
    trusted = TRUSTED_ROWS if full is None else _TRUSTED_BESIDE_FULL_ROWS
    equivalent_rows = rows * rows / (rows + _HALF_TRUSTED * fit.classes)
    count = min(equivalent_rows, float(np.count_nonzero(~fit.full)), trusted)
    shifted = np.interp(grid + _LIKELIHOOD_SD * _DEVIATIONS[:, None], log_extras, likelihoods)
    density: Float64 = logsumexp(count * shifted - 0.5 * _DEVIATIONS[:, None] ** 2, axis=0)
    density -= 0.5 * ((grid - np.log(_EXTRA_MEDIAN)) / _LOG_EXTRA_SD) ** 2
    if full is not None:
        density += student.logpdf((full.mean - fit.least - np.exp(grid)) / full.error, max(full.rows - 1, 1))
    return density
