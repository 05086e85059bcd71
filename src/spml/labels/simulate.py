"""Simulate the incomplete labels of an experiment from full labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.labels.entries import Entries, Int8, Int64, row_blocks
from spml.labels.inputs import as_array, check_seed
from spml.labels.table import Labels
from spml.type_checks import check_count

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]


def simulate(
    truth: Labels,
    positives: int | None = 1,
    negatives: int | None = 0,
    *,
    seed: int = 1200,
    class_preference: npt.ArrayLike | None = None,
    entry_weights: npt.ArrayLike | None = None,
) -> Labels:
    """Keep some positives and some negatives of every row; everything else becomes unknown.

    Without weights, all positives of a row are equally likely, and the draw equals that of Cole et al. (2021) bit for
    bit: for every row, one `RandomState(seed)` shuffles the positives and keeps the first ones, then does the same
    with the negatives, even if none are kept. This takes N·L steps.

    Parameters
    ----------
    truth : Labels
        Usually full labels. Unknown labels stay unknown.
    positives, negatives : int or None
        How many to keep per row. A row with fewer keeps all of them; None keeps all in every row.
    seed : int
    class_preference : array of shape (n_classes,), optional
        Positives are drawn without replacement, with probability proportional to these weights. Positives of weight 0
        are drawn last, in random order; if all positives of a row have weight 0, the draw is uniform.
    entry_weights : array of shape (n_rows, n_classes), optional
        The same with one weight per entry, for example the size of an object. If both are given, they are multiplied.

    Returns
    -------
    Labels

    Raises
    ------
    InputError
        If a count, the seed or a weight is invalid.

    Notes
    -----
    Negatives are always drawn uniformly. With equal weights the draw is uniform too, but uses another random stream.
    If no negatives are kept, its cost grows with the number of positives instead of N·L.

    Examples
    --------
    >>> truth = Labels.from_matrix([[1, 1, 0], [0, 1, 1]], ["cat", "dog", "horse"], coding="full")
    >>> simulate(truth).dense()
    array([[1, 0, 0],
           [0, 1, 0]], dtype=int8)
    >>> simulate(truth, positives=1, negatives=None).dense()
    array([[ 1,  0, -1],
           [-1,  1,  0]], dtype=int8)
    """
    positives = None if positives is None else check_count("positives", positives, least=0)
    negatives = None if negatives is None else check_count("negatives", negatives, least=0)
    rng = np.random.RandomState(check_seed(seed))
    entries = truth.entries()
    rows, columns = truth.positives()
    weights = _weights(truth, rows, columns, class_preference, entry_weights)
    order: Int64 = np.arange(len(rows)) if weights is None else _weighted_order(rng, rows, weights)
    drawn_negatives = np.zeros((2, 0), np.int64)
    if weights is None or negatives:
        drawn_negatives = _shuffle_rows(rng, entries, order, weights is None, negatives or 0)
    keep = _first_per_row(rows, order, entries.per_row(1), positives)
    if negatives is None:
        kept = _hide_positives(entries, keep)
    else:
        kept = _join(np.stack([rows[keep], columns[keep]]), drawn_negatives, truth)
    biases = {"class_preference": class_preference, "entry_weights": entry_weights}
    origin = {
        "created_by": "simulate",
        "positives": positives,
        "negatives": negatives,
        "seed": int(seed),
        "biased_by": [name for name, given in biases.items() if given is not None],
        "truth": truth.fingerprint(),
    }
    return Labels.from_entries(kept, truth.classes, ids=truth.ids, origin=origin)


def _weighted_order(rng: np.random.RandomState, rows: Int64, weights: Float64) -> Int64:
    """Order the positives of every row by a weighted draw without replacement."""
    # Sorting exponential waiting times of rate w draws without replacement with odds w.
    arrival = rng.exponential(size=len(rows)) / np.where(weights > 0, weights, 1.0)
    return np.lexsort((arrival, weights == 0, rows))


def _first_per_row(rows: Int64, order: Int64, per_row: Int64, count: int | None) -> Bool:
    """Mark, for every row, the first `count` of its positives in the given order."""
    keep = np.ones(len(rows), bool)
    if count is not None:
        first_of_row = np.cumsum(per_row) - per_row
        keep[order] = np.arange(len(rows)) - first_of_row[rows] < count
    return keep


def _hide_positives(entries: Entries, keep: Bool) -> Entries:
    """Copy the entries with all positives unknown except those marked in `keep`."""
    value = entries.value.copy()
    value[value == 1] = keep
    size = {"num_rows": len(entries), "num_classes": entries.num_classes}
    return Entries.from_coordinates(entries.rows, entries.column, value, **size, default=entries.default)


def _join(positives: Int64, negatives: Int64, truth: Labels) -> Entries:
    """Build entries from (row, column) pairs of positives and negatives; all others are unknown."""
    value = np.repeat(np.array([1, -1], np.int8), [positives.shape[1], negatives.shape[1]])
    rows, columns = np.concatenate([positives, negatives], axis=1)
    return Entries.from_coordinates(rows, columns, value, num_rows=len(truth), num_classes=truth.num_classes, default=0)


def _shuffle_rows(
    rng: np.random.RandomState, entries: Entries, order: Int64, shuffle_positives: bool, negatives: int
) -> Int64:
    """Shuffle each row's part of `order` in place, then its negatives; return the kept ones, (row, column) × K."""
    last_of_row = np.cumsum(entries.per_row(1)).tolist()
    num_negatives = entries.per_row(-1).tolist()
    placeholder = np.arange(entries.num_classes)  # shuffled if no negatives are kept, to advance the random stream
    kept: list[Int64] = [np.zeros(0, np.int64)]
    first = 0
    for row, (last, count) in enumerate(zip(last_of_row, num_negatives, strict=True)):
        if shuffle_positives:
            rng.shuffle(order[first:last])
        first = last
        if negatives:
            row_negatives = entries.classes_with(row, -1)
            rng.shuffle(row_negatives)
            kept.append(row_negatives[:negatives])
        else:
            rng.shuffle(placeholder[:count])
    rows = np.repeat(np.arange(len(kept) - 1), [len(part) for part in kept[1:]])
    return np.stack([rows, np.concatenate(kept)])


def _weights(truth: Labels, rows: Int64, columns: Int64, class_preference: Any, entry_weights: Any) -> Float64 | None:
    """Return the weight of every positive, or None for a uniform draw."""
    if class_preference is None and entry_weights is None:
        return None
    weights = np.ones(len(rows))
    if class_preference is not None:
        preference = as_array(class_preference)
        if preference.shape != (truth.num_classes,):
            raise InputError(
                f"class_preference has shape {preference.shape}: pass one number for each of the "
                f"{truth.num_classes} classes."
            )
        preference = preference.astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(preference) & (preference >= 0)))
        if bad.size:
            c = bad[0]
            raise InputError(f"class_preference of {truth.classes[c]!r} is {preference[c]}: it must be 0 or more.")
        weights *= preference[columns]
    if entry_weights is not None:
        table = as_array(entry_weights)
        if table.shape != truth.shape:
            raise InputError(
                f"entry_weights has shape {table.shape}: it must have the shape of the labels, {truth.shape}."
            )
        entry = table[rows, columns].astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(entry) & (entry >= 0)))
        if bad.size:
            i = bad[0]
            raise InputError(f"row {rows[i]}, column {columns[i]}: entry weight {entry[i]} must be 0 or more.")
        weights *= entry
    return weights


def drop_labels(truth: Labels, share: float, *, seed: int = 1200) -> Labels:
    """Make a share of every row's known labels unknown, positives and negatives alike.

    This is the missing-label setting of Zhou et al. (2022), Figure 5c.

    Parameters
    ----------
    truth : Labels
    share : float
        Between 0 and 1. A row with n known labels loses round(share · n) of them.
    seed : int

    Returns
    -------
    Labels

    Raises
    ------
    InputError
        If the share or the seed is invalid.

    Notes
    -----
    N·L random numbers are drawn, in blocks of rows.

    Examples
    --------
    >>> truth = Labels.from_matrix([[1, 1, 0, 0], [0, 1, 1, 0]], coding="full")
    >>> (drop_labels(truth, 0.5).dense() == 0).sum(axis=1)
    array([2, 2])
    """
    if not 0 <= share <= 1:
        raise InputError(f"share is {share}: it must lie between 0 and 1.")
    rng = np.random.RandomState(check_seed(seed))

    def blocks() -> Iterator[Int8]:
        for rows in row_blocks(*truth.shape):
            block = truth.dense(np.arange(rows.start, rows.stop))
            known = block != 0
            draw = np.where(known, rng.random_sample(block.shape), 2.0)  # sorts unknown labels to the end
            order = np.argsort(draw, axis=1, kind="stable")
            num_dropped = np.round(share * known.sum(axis=1, keepdims=True))
            dropped = np.empty_like(known)
            np.put_along_axis(dropped, order, np.arange(truth.num_classes) < num_dropped, axis=1)
            block[dropped] = 0
            yield block

    kept = Entries.from_blocks(blocks(), num_classes=truth.num_classes, default=0)
    origin = {"created_by": "drop_labels", "share": float(share), "seed": int(seed), "truth": truth.fingerprint()}
    return Labels.from_entries(kept, truth.classes, ids=truth.ids, origin=origin)
