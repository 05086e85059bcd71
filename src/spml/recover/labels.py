"""Recover the missing labels of a finished run's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from spml.calibration import Bool, Calibration, Float32, Int8, Int64, Reading, calibrate, corrected
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.entries import row_blocks
from spml.labels.inputs import row_indices
from spml.recover.guarantee import CONFIDENCE, guaranteed_threshold
from spml.recover.labelled import LabelledRows
from spml.recover.messages import Basis, CalibrationRows, count_answers, describe_calibration, warn
from spml.recover.recovered import Recovered
from spml.recover.rule import Prefer, Rule, check_choice, choose_rule, reading_of
from spml.type_checks import check_type

if TYPE_CHECKING:
    from spml.runs.folder import RunFolder

_ROUNDED = 0.95  # a given k may be this much below the number of known labels: it is often a rounded number


def recover(
    run: RunFolder,
    *,
    rows: Literal["train", "all"] = "train",
    labelled: LabelledRows | tuple[Labels, npt.ArrayLike] | None = None,
    k: float | None = None,
    prefer: Prefer = "balanced",
    threshold: float | None = None,
    precision: float | None = None,
    decisions: Labels | None = None,
) -> Recovered:
    """Recover the missing labels of a run's rows, each with a calibrated confidence.

    The network is calibrated on held-out rows with a single observed label. Fully labelled rows are not needed, but
    single labels leave much open: fully labelled rows, see `sample_rows`, improve k and the confidences.

    Parameters
    ----------
    run : RunFolder
        A finished run, from `open_run`.
    rows : {"train", "all"}
        "train": training and validation rows; "all": the test rows, too.
    labelled : LabelledRows or tuple of (Labels, row numbers), optional
        All labels of a few rows. They count as known, and are used for calibration. Rows that were not drawn at random
        with equal probability need weights.
    k : float, optional
        Average number of labels per row. Default: the value given to training, if any.
    prefer : {"balanced", "recall", "precision"}
        "balanced": labels of a confidence of at least 0.5; "precision": of at least 0.8. No row gets more labels than
        the upper end of the interval of k. "recall": for each class the threshold with the best expected F1. Without
        20 fully labelled rows, confidences are cautious, except for "recall".
    threshold : float, optional
        Confidence from which a label counts as present, instead of `prefer`.
    precision : float, optional
        Take the most labels whose precision is at least this with 90% confidence, instead of `prefer`. Needs
        `labelled`; see `spml.recover.guarantee`.
    decisions : Labels, optional
        Answers of people about all rows of the run, in addition to those it was trained with. Like given labels, they
        are never changed.

    Returns
    -------
    Recovered

    Raises
    ------
    InputError
        If an argument is invalid, or there are no predictions or no labels to calibrate on.
    """
    if rows not in ("train", "all"):
        raise InputError(f"rows is {rows!r}: it must be 'train' or 'all'")
    check_type("k", k, float | None)
    check_choice(prefer, threshold, precision)
    _check_precision(precision, threshold, rows, labelled is not None)
    decided = _decided(run, decisions)
    known = run.labels.dense() if decided is None else run.given_labels.updated(decided).dense()
    before = known.copy() if labelled is not None else known
    checked = None if labelled is None else _checked(labelled)
    extra = np.zeros(0, np.int64) if checked is None else _add_labelled(run, known, checked)
    predicted = ~_rows_with(np.isnan, run.probabilities)
    chosen, notes = _requested_rows(run, rows, predicted)
    if checked is not None and not checked.adds_to(run.labels):
        notes.append("The labelled rows have only the labels that were known before: did you complete them?")
    if k is None:
        k = run.record.get("k")
    elif 0 < k < _ROUNDED * (mean := float((known[chosen] > 0).sum() / len(chosen))):
        raise InputError(f"k is {k:g} labels per row, but {mean:.1f} per row are already known: give at least that")
    calibration_rows, kind = _calibration_rows(run, known, predicted, extra)
    nothing = False  # not even one label is recovered
    if precision is not None and checked is not None:
        old_rows, _ = _calibration_rows(run, before, predicted, np.zeros(0, np.int64))
        base = _calibrate(run, before, old_rows, k, before, None)
        calibration, confidences, rule, note = _guaranteed(run, base, before, known, chosen, extra, checked, precision)
        notes.append(note)
    else:
        calibration = _calibrate(run, known, calibration_rows, k, before, checked)
        confidences = _confidences(run, known, predicted, calibration, reading_of(calibration, prefer, threshold))
        rule = choose_rule(calibration, confidences, chosen, prefer, threshold)
        nothing = prefer == "balanced" and threshold is None and not _recovers_any(rule, confidences, known, chosen)
    answers = None if decided is None else decided.dense()
    single = bool((_positives_per_row(run.given_labels)[calibration_rows] == 1).all())
    basis = Basis(kind, single, count_answers(answers), k)
    return Recovered(
        run=run.name,
        names=run.names,
        classes=run.classes,
        rows=chosen,
        known=known,
        probabilities=run.probabilities,
        independent=run.independent,
        confidences=confidences,
        rule=rule,
        calibration=calibration,
        calibrated_on=describe_calibration(calibration, basis),
        notes=(*notes, *warn(calibration, basis, run.folder, nothing=nothing)),
        given=run.given_labels,
        decided=answers,
    )


def _positives_per_row(labels: Labels) -> Int64:
    return np.bincount(labels.positives()[0], minlength=len(labels))


def _decided(run: RunFolder, decisions: Labels | None) -> Labels | None:
    """The answers that a run was trained with, and later ones."""
    if run.decided is None or decisions is None:
        return run.decided if decisions is None else decisions
    return run.decided.updated(decisions)


def _check_precision(precision: float | None, threshold: float | None, rows: str, labelled: bool) -> None:
    if precision is None:
        return
    if not labelled:
        raise InputError(
            "precision needs fully labelled rows: draw some with `spml sample`, complete their labels and pass them as "
            "labelled"
        )
    if threshold is not None or rows != "train":
        raise InputError("precision holds for the training data: leave out threshold and rows")


def _guaranteed(
    run: RunFolder,
    base: Calibration,
    before: Int8,
    known: Int8,
    rows: Int64,
    full: Int64,
    labelled: LabelledRows,
    precision: float,
) -> tuple[Calibration, Float32, Rule, str]:
    """The most labels of a guaranteed precision.

    The labels are ranked by a calibration that was fitted without the full labels; the full labels only decide how far
    down the ranking to go, and correct the confidences without changing their order.
    """
    predicted = np.zeros(len(known), bool)
    predicted[rows] = True
    inside = np.isin(full, rows) & (before[full] > 0).any(axis=1)
    population = rows[(before[rows] > 0).any(axis=1)]
    scores = _confidences(run, before, predicted, base, "balanced")
    weights = np.ones(len(full)) if labelled.weights is None else np.asarray(labelled.weights, np.float64)
    sample = full[inside]
    guarantee = guaranteed_threshold(
        scores[population],
        before[population] == 0,
        np.searchsorted(population, sample),
        known[sample] > 0,
        weights[inside],
        precision,
    )
    calibration = corrected(base, run.independent[full], known[full], before[full])
    confidences = _confidences(run, known, ~_rows_with(np.isnan, run.probabilities), calibration, "balanced")
    if guarantee is None:
        never = Rule("balanced", np.full(len(run.classes), np.inf))
        note = (
            f"No labels are recovered: {len(sample)} fully labelled rows cannot show a precision of "
            f"{100 * precision:g}% with {100 * CONFIDENCE:g}% confidence. Label more rows, or ask for less."
        )
        return calibration, confidences, never, note
    taken = (scores[population] >= guarantee.threshold) & (known[population] == 0)
    lowest = float(confidences[population][taken].min(initial=1.0))
    note = (
        f"With {100 * CONFIDENCE:g}% confidence, at least {100 * precision:g}% of the recovered labels are correct "
        f"({len(sample)} fully labelled rows, drawn at random)."
    )
    return calibration, confidences, Rule("balanced", np.full(len(run.classes), lowest)), note


def _requested_rows(run: RunFolder, rows: str, predicted: Bool) -> tuple[Int64, list[str]]:
    """The requested rows that have predictions, and a note about those that have none."""
    parts = (run.train, run.validation) if rows == "train" else (run.train, run.validation, run.test)
    requested = np.sort(np.concatenate(parts))
    chosen = requested[predicted[requested]]
    if not len(chosen):
        raise InputError(f"the run {run.name} has no predictions for the requested rows")
    missing = len(requested) - len(chosen)
    return chosen, [f"{missing:,} rows are left out because the run has no predictions for them."] if missing else []


def _calibration_rows(run: RunFolder, known: Int8, predicted: Bool, extra: Int64) -> tuple[Int64, CalibrationRows]:
    """The rows to calibrate on, and whether they are held-out, training or cross-fitted rows."""

    def with_label(rows: Int64) -> Int64:
        rows = rows[predicted[rows]]
        return rows[(known[rows] > 0).any(axis=1)]

    kind: CalibrationRows
    rows, kind = with_label(run.validation), "held-out"
    if run.cross_fitted:
        rows, kind = with_label(np.union1d(run.train, run.validation)), "cross-fitted"
    if not len(rows):
        rows, kind = with_label(run.train), "training"
    rows = np.union1d(rows, extra[predicted[extra]])
    if not len(rows):
        raise InputError(f"the run {run.name} has no row with a label to calibrate on")
    return rows, kind


def _calibrate(
    run: RunFolder, known: Int8, rows: Int64, k: float | None, before: Int8, labelled: LabelledRows | None
) -> Calibration:
    """Fit the calibration. It may use people's answers: which questions are asked never depends on the answer."""
    has_label = _rows_with(lambda part: part > 0, known)
    has_label[run.given_labels.positives()[0]] = True  # also where a person rejected it
    at_least_one = all(bool(has_label[part].all()) for part in (run.train, run.validation, rows))
    weights = None
    if labelled is not None and labelled.weights is not None:
        weights = np.full(len(known), float(np.mean(np.asarray(labelled.weights, np.float64))))
        weights[row_indices(labelled.rows, len(known))] = labelled.weights
        weights = weights[rows]
    return calibrate(
        run.independent[rows],
        known[rows],
        k=k,
        at_least_one=at_least_one,
        observed=before[rows],
        weights=weights,
    )


def _confidences(run: RunFolder, known: Int8, predicted: Bool, calibration: Calibration, reading: Reading) -> Float32:
    confidences = np.full(run.probabilities.shape, np.nan, np.float32)
    for part in row_blocks(len(confidences), len(run.classes)):
        rows = part.start + np.flatnonzero(predicted[part])
        if len(rows):
            confidences[rows] = calibration.confidences(run.independent[rows], known[rows], reading=reading)
    return confidences


def _rows_with(condition: Callable[[Any], Any], table: npt.NDArray[Any]) -> Bool:
    """(N,) whether any entry of a row meets a condition; works in blocks to save memory."""
    return np.concatenate([condition(table[part]).any(axis=1) for part in row_blocks(len(table), table.shape[1])])


def _checked(labelled: LabelledRows | tuple[Labels, npt.ArrayLike]) -> LabelledRows:
    if not isinstance(labelled, tuple) or len(labelled) not in (2, 3) or not isinstance(labelled[0], Labels):
        raise InputError("labelled must be the path of a table, or a pair of a Labels table and its row numbers")
    rows = LabelledRows(*labelled)
    numbers = np.asarray(rows.rows).ravel()
    if len(np.unique(numbers)) < len(numbers):
        raise InputError("the row numbers of labelled rows must differ: give each row once")
    if rows.weights is not None:
        weights = np.asarray(rows.weights)
        real = weights.dtype.kind in "fiu" and weights.shape == (len(rows.labels),)
        if not (real and (weights > 0).all() and np.isfinite(weights).all()):
            raise InputError("the weights of labelled rows must be one number above 0 per row")
    return rows


def _add_labelled(run: RunFolder, known: Int8, labelled: LabelledRows) -> Int64:
    """Add the labels of some rows to `known`; returns the row numbers."""
    labels, index = labelled.labels, row_indices(labelled.rows, len(known))
    if labels.classes != run.classes:
        raise InputError(
            f"the labelled rows have the classes {', '.join(labels.classes)}, but the run {run.name} has "
            f"{', '.join(run.classes)}"
        )
    if len(labels) != len(index):
        raise InputError(f"got labels of {len(labels)} rows for {len(index)} row numbers: give one number per row")
    given, before = labels.dense(), known[index]
    clash = np.argwhere(given * before < 0)
    if len(clash):
        row, column = clash[0]
        raise InputError(
            f"row {index[row]} ({run.names[index[row]]}): {run.classes[column]!r} is labelled "
            f"{'absent' if given[row, column] < 0 else 'present'}, which contradicts the run's observed labels"
        )
    known[index] = np.where(given != 0, given, before)
    return index


def _recovers_any(rule: Rule, confidences: Float32, known: Int8, rows: Int64) -> bool:
    parts = (rows[part] for part in row_blocks(len(rows), known.shape[1]))
    return any(bool((rule.present(confidences[part], known[part]) & (known[part] == 0)).any()) for part in parts)
