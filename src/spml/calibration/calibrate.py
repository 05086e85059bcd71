"""Calibrated probabilities, class frequencies and k, the number of labels per row, from single positives alone.

`presence` holds the model and its likelihood, `posterior` the uncertainty of k that single labels leave, and
`recalibration` the correction by fully labelled rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spml.calibration.arrays import Bool, Float32, Float64, Int8, Int64, checked, clipped_logits
from spml.calibration.posterior import FullCount, count_full, k_posterior
from spml.calibration.presence import Presence, PresenceFit
from spml.calibration.recalibration import NO_CORRECTION, PRIOR, Recalibration, recalibrate
from spml.errors import InputError
from spml.labels import KEstimate
from spml.labels.entries import row_blocks

Reading = Literal["balanced", "cautious", "lowest", "highest"]

# Rows used for the most likely model and for other values of k: as many as have this number of entries (rows ×
# classes), but at least `_LEAST_ROWS`. More take longer and change little.
_FIT_ENTRIES, _RANGE_ENTRIES = 1 << 17, 1 << 14
_LEAST_ROWS = 200
CAUTIOUS = 0.25  # percentile of a cautious confidence
_TENTH = 1.2816  # standard deviations from the mean to the 10th percentile


@dataclass(frozen=True, eq=False)
class Calibration:
    """Maps a network's probabilities to calibrated ones.

    Attributes
    ----------
    slope : float
        a of the most likely model; see `spml.calibration.presence`.
    offsets : array of shape (L,)
        b_c of the most likely model.
    readings : tuple of Presence
        Equally probable readings of the predictions, from few labels per row to many.
    corrections : tuple of Recalibration
        What fully labelled rows showed about the confidences: of rows without, and of rows with an observed label.
    at_least_one : bool
        Whether a row without known labels is assumed to have at least one label.
    frequencies : array of shape (L,)
        Estimated fraction of rows with each label.
    k : KEstimate
        Estimated number of labels per row with the 5th and 95th percentile; `rows` is the number of rows used.
    full_rows : int
        Number of those rows that were fully labelled.
    log_likelihood : float
        Mean log-likelihood of the observed labels. Higher is better; use it to choose epochs and settings.
    """

    slope: float
    offsets: Float64
    readings: tuple[Presence, ...]
    corrections: tuple[Recalibration, Recalibration]
    at_least_one: bool
    frequencies: Float64
    k: KEstimate
    full_rows: int
    log_likelihood: float

    def confidences(
        self, probabilities: npt.NDArray[Any], known: Int8 | None = None, *, reading: Reading = "balanced"
    ) -> Float32:
        """P(label present | image, known labels of the row).

        A row's single positive lowers the confidence of its other labels: the more labels are present, the less likely
        the annotator was to pick this one.

        Parameters
        ----------
        probabilities : array of shape (N, L)
            Predictions of the network.
        known : array of shape (N, L), optional
            +1, −1, or 0 for unknown. Known entries get the confidence 1 or 0.
        reading : {"balanced", "cautious", "lowest", "highest"}
            "balanced" averages over everything that explains the labels; "cautious" is the 25th percentile, or the
            average where that is lower. "lowest" and "highest" are the 10th and the 90th percentile if all confidences
            err in the same direction.

        Returns
        -------
        array of shape (N, L)
        """
        table = checked(probabilities, len(self.offsets))
        if known is not None and known.shape != table.shape:
            raise InputError(f"known has the shape {known.shape}, probabilities {table.shape}: they must be the same")
        out = np.empty(table.shape, np.float32)
        for rows in row_blocks(*table.shape):
            block = np.zeros(table[rows].shape, np.int8) if known is None else known[rows]
            out[rows] = self._confidences(clipped_logits(table[rows]), block, reading)
        return out

    def _confidences(self, logits: Float64, known: Int8, reading: Reading) -> Float64:
        values = np.stack([presence.confidences(logits, known, self.at_least_one) for presence in self.readings])
        out = {"lowest": np.min, "highest": np.max}.get(reading, np.mean)(values, axis=0)
        if reading == "cautious":
            out = np.minimum(out, np.quantile(values, CAUTIOUS, axis=0, method="lower"))
        deviations = {"lowest": -_TENTH, "highest": _TENTH}.get(reading)
        observed = (known > 0).any(axis=1)
        for rows, correction in zip((~observed, observed), self.corrections, strict=True):
            out[rows] = correction.corrected(out[rows], deviations)
        out[known > 0], out[known < 0] = 1.0, 0.0
        return np.asarray(out)


def calibrate(
    probabilities: npt.NDArray[Any],
    known: Int8,
    *,
    k: float | None = None,
    at_least_one: bool | None = None,
    observed: Int8 | None = None,
    weights: Float64 | None = None,
    uncertainty: bool = True,
) -> Calibration:
    """Fit a calibration to held-out rows.

    Rows with a known positive and fully labelled rows are used, others are ignored.

    Parameters
    ----------
    probabilities : array of shape (N, L)
        Predictions of the network: independent presence, not that given that a row has a label.
    known : array of shape (N, L)
        +1, −1, or 0 for unknown.
    k : float, optional
        Average number of labels per row, if known.
    at_least_one : bool, optional
        Whether a row without known labels has at least one label. Default: whether every row given here has one.
    observed : array of shape (N, L), optional
        What was known of each row before rows were labelled fully. With it, fully labelled rows also correct the
        confidences of rows with an observed label.
    weights : array of shape (N,), optional
        1 / the probability with which each fully labelled row was sampled, up to a factor. Default: all equal.
    uncertainty : bool
        Whether to consider that k and the confidences may be wrong. Without it, the most likely model is used as it is.

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        If shapes or values are invalid, or no row has a known label.

    Examples
    --------
    >>> probabilities = np.array([[0.9, 0.2], [0.8, 0.7], [0.1, 0.9]])
    >>> known = np.array([[1, 0], [1, 0], [0, 1]], np.int8)
    >>> calibration = calibrate(probabilities, known)
    >>> calibration.confidences(probabilities, known).shape
    (3, 2)
    """
    table = checked(probabilities, known.shape[1] if known.ndim == 2 else -1)
    if known.shape != table.shape:
        raise InputError(f"known has the shape {known.shape}, probabilities {table.shape}: they must be the same")
    rows, classes = table.shape
    if k is not None and not 0 < k <= classes:
        raise InputError(f"k must be above 0 and at most {classes}, the number of classes, not {k}")
    positives = (known > 0).sum(axis=1)
    full = (known != 0).all(axis=1)
    if at_least_one is None:
        at_least_one = bool((positives > 0).all())
    use = np.flatnonzero((full & ~np.full(rows, at_least_one)) | (positives > 0))
    if not (positives[use] > 0).any():
        raise InputError(f"none of the {rows} rows for calibration has a known label")

    singles = int(np.count_nonzero(~full[use]))
    fit, use = _fit(table, known, full, use, at_least_one, _FIT_ENTRIES)
    theta = fit.maximise(fit.start(), k)
    posterior = None
    if uncertainty and k is None:
        smaller, _ = _fit(table, known, full, use, at_least_one, _RANGE_ENTRIES)
        counted = _counted(known, full, use, weights)
        posterior = k_posterior(smaller, theta - _recentred(theta, fit, smaller), counted, singles)
    presence = fit.presence(theta)
    nothing = KEstimate(0, 0, 0, 0)
    calibration = Calibration(
        presence.slope,
        presence.offsets,
        (presence,) if posterior is None else posterior.readings,
        (PRIOR, PRIOR) if uncertainty else (NO_CORRECTION, NO_CORRECTION),
        at_least_one,
        np.zeros(classes),
        nothing,
        int(full[use].sum()),
        float(fit.likelihoods_of(fit.logits_of(theta)).mean()),
    )
    frequencies = _frequencies(_uncorrected(calibration), table, known)
    if uncertainty and calibration.full_rows:
        calibration = replace(calibration, corrections=_corrections(calibration, table, known, full, observed))
    mean, low, high = [float(frequencies.sum())] * 3 if posterior is None else posterior[1:]
    return replace(calibration, frequencies=frequencies, k=KEstimate(mean, low, high, len(use)))


def corrected(calibration: Calibration, probabilities: npt.NDArray[Any], known: Int8, observed: Int8) -> Calibration:
    """The calibration with corrections by fully labelled rows, and otherwise unchanged.

    Parameters
    ----------
    calibration : Calibration
        Fitted without the full labels.
    probabilities, known : array of shape (N, L)
        Predictions and labels of rows, some of them fully labelled.
    observed : array of shape (N, L)
        What was known before rows were labelled fully.
    """
    full = (known != 0).all(axis=1)
    corrections = _corrections(calibration, probabilities, known, full, observed)
    return replace(calibration, corrections=corrections, full_rows=int(full.sum()))


def _fit(
    table: npt.NDArray[Any],
    known: Int8,
    full: Bool,
    use: Int64,
    at_least_one: bool,
    entries: int,
) -> tuple[PresenceFit, Int64]:
    """The likelihood of some of the rows: all fully labelled ones, and evenly spaced others."""
    most = max(_LEAST_ROWS, entries // table.shape[1])
    if len(use) > most:  # evenly spaced, so that data sorted by class keep their proportions
        singles = use[~full[use]]
        few = np.linspace(0, len(singles) - 1, min(most, len(singles))).astype(np.int64)
        kept_full = use[full[use]]
        kept_full = kept_full[np.linspace(0, len(kept_full) - 1, min(most, len(kept_full))).astype(np.int64)]
        use = np.sort(np.concatenate([singles[few], kept_full]))
    return PresenceFit(clipped_logits(table[use]), known[use], at_least_one), use


def _recentred(theta: Float64, fit: PresenceFit, other: PresenceFit) -> Float64:
    """The change of theta that makes it mean the same for logits with another centre."""
    change = np.zeros_like(theta)
    change[1] = np.exp(theta[0]) * (fit.centre - other.centre)
    return change


def _counted(known: Int8, full: Bool, use: Int64, weights: Float64 | None) -> FullCount | None:
    rows = use[full[use]]
    if not len(rows):
        return None
    return count_full(
        (known[rows] > 0).sum(axis=1).astype(np.float64), np.ones(len(rows)) if weights is None else weights[rows]
    )


def _corrections(
    calibration: Calibration, table: npt.NDArray[Any], known: Int8, full: Bool, observed: Int8 | None
) -> tuple[Recalibration, Recalibration]:
    """Corrections of rows without, and of rows with an observed label, by the fully labelled ones."""
    rows = np.flatnonzero(full)
    plain, corrections = _uncorrected(calibration), []
    for before in (np.zeros_like(known[rows]), None if observed is None else observed[rows]):
        if before is None:
            corrections.append(PRIOR)
            continue
        given = np.asarray((before > 0).any(axis=1))
        rows_of, labels = np.nonzero((before == 0) & (given[:, None] | ~given.any()))
        confidences = plain.confidences(table[rows], before)
        corrections.append(recalibrate(confidences[rows_of, labels], known[rows[rows_of], labels] > 0, rows_of))
    without, with_label = corrections
    return without, with_label


def _uncorrected(calibration: Calibration) -> Calibration:
    return replace(calibration, corrections=(NO_CORRECTION, NO_CORRECTION))


def _frequencies(calibration: Calibration, table: npt.NDArray[Any], known: Int8) -> Float64:
    rows, classes = table.shape
    frequencies = np.zeros(classes)
    for block in row_blocks(rows, classes):
        frequencies += calibration.confidences(table[block], known[block]).sum(axis=0, dtype=np.float64)
    return np.asarray(frequencies / rows)
