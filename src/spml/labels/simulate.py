"""From full labels to the incomplete ones of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.labels.entries import Entries, Int8, Int64, row_blocks
from spml.labels.inputs import as_array, check_seed
from spml.labels.table import Labels

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
    """Keep `positives` positives and `negatives` negatives of every row; None keeps all of that kind.

    A row that has fewer keeps what it has. Without weights every positive of a row is equally likely, and
    the draw is that of Cole et al. (2021) bit for bit: per row, one `RandomState(seed)` shuffles the
    positives, of which the first are kept, then the negatives likewise, even where none is kept. That costs
    N·L steps whatever is kept.

    With `class_preference` (L,) and/or `entry_weights` (N, L), positives are drawn one after the other with
    probability proportional to the product of the two. Positives of weight 0 come last, in random order, so
    a row all of whose positives weigh 0 is drawn uniformly. Negatives are always drawn uniformly. Equal
    preferences are a uniform draw by another stream, whose cost without negatives grows with the number of
    positives and not with N·L.
    """
    positives, negatives = _check_count("positives", positives), _check_count("negatives", negatives)
    rng = np.random.RandomState(check_seed(seed))
    entries = truth.entries()
    rows, columns = truth.positives()
    weights = _weights(truth, rows, columns, class_preference, entry_weights)
    order: Int64 = np.arange(len(rows))
    negative_rows = negative_columns = np.zeros(0, np.int64)
    if weights is not None:
        # Exponential waiting times of rate w: the order of arrival is a draw without replacement, odds w.
        arrival = rng.exponential(size=len(rows)) / np.where(weights > 0, weights, 1.0)
        order = np.lexsort((arrival, weights == 0, rows))
    if weights is None or negatives:
        negative_rows, negative_columns = _shuffle_rows(rng, entries, order, weights is None, negatives or 0)

    keep = np.ones(len(rows), bool)
    if positives is not None:
        per_row = entries.per_row(1)
        first_of_row = np.cumsum(per_row) - per_row
        keep[order] = np.arange(len(rows)) - first_of_row[rows] < positives
    if negatives is None:
        value = entries.value.copy()
        value[value == 1] = keep
        default, where = entries.default, (entries.rows, entries.column)
    else:
        value = np.repeat(np.array([1, -1], np.int8), [int(keep.sum()), len(negative_rows)])
        default = 0
        where = (
            np.concatenate([rows[keep], negative_rows]),
            np.concatenate([columns[keep], negative_columns]),
        )
    size = {"num_rows": len(truth), "num_classes": truth.num_classes}
    kept = Entries.from_coordinates(*where, value, **size, default=default)
    biases = {"class_preference": class_preference, "entry_weights": entry_weights}
    origin = {
        "made_by": "simulate",
        "positives": positives,
        "negatives": negatives,
        "seed": int(seed),
        "biased_by": [name for name, given in biases.items() if given is not None],
        "truth": truth.fingerprint(),
    }
    return Labels.from_entries(kept, truth.classes, ids=truth.ids, origin=origin)


def _shuffle_rows(
    rng: np.random.RandomState, entries: Entries, order: Int64, shuffle_positives: bool, negatives: int
) -> tuple[Int64, Int64]:
    """Row by row, shuffle the row's part of `order` in place, then its negatives: (row, class) of the kept."""
    last_of_row = np.cumsum(entries.per_row(1)).tolist()
    num_negatives = entries.per_row(-1).tolist()
    stand_in = np.arange(entries.num_classes)  # where no negative is kept, only the random stream matters
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
            rng.shuffle(stand_in[:count])
    rows = np.repeat(np.arange(len(kept) - 1), [len(part) for part in kept[1:]])
    return rows, np.concatenate(kept)


def _weights(truth: Labels, rows: Int64, columns: Int64, class_preference: Any, entry_weights: Any) -> Float64 | None:
    """The weight of every positive; None where the draw is uniform."""
    if class_preference is None and entry_weights is None:
        return None
    weights = np.ones(len(rows))
    if class_preference is not None:
        preference = as_array(class_preference)
        if preference.shape != (truth.num_classes,):
            raise InputError(
                f"class_preference has shape {preference.shape}: it takes one number for each of the "
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
            raise InputError(f"entry_weights has shape {table.shape}: it takes that of the labels, {truth.shape}.")
        entry = table[rows, columns].astype(np.float64)
        bad = np.flatnonzero(~(np.isfinite(entry) & (entry >= 0)))
        if bad.size:
            i = bad[0]
            raise InputError(f"row {rows[i]}, column {columns[i]}: entry weight {entry[i]} must be 0 or more.")
        weights *= entry
    return weights


def drop_labels(truth: Labels, share: float, *, seed: int = 1200) -> Labels:
    """Make unknown, in every row, round(share · known) of its known labels, positives and negatives alike.

    This is the missing-label setting of Zhou et al. (2022), Figure 5c. Cost and working memory are those of
    N·L random numbers, drawn some rows at a time.
    """
    if not 0 <= share <= 1:
        raise InputError(f"share is {share}: it must lie between 0 and 1.")
    rng = np.random.RandomState(check_seed(seed))

    def blocks() -> Iterator[Int8]:
        for rows in row_blocks(*truth.shape):
            block = truth.dense(np.arange(rows.start, rows.stop))
            known = block != 0
            draw = np.where(known, rng.random_sample(block.shape), 2.0)  # the unknown come last
            order = np.argsort(draw, axis=1, kind="stable")
            num_dropped = np.round(share * known.sum(axis=1, keepdims=True))
            dropped = np.empty_like(known)
            np.put_along_axis(dropped, order, np.arange(truth.num_classes) < num_dropped, axis=1)
            block[dropped] = 0
            yield block

    kept = Entries.from_blocks(blocks(), num_classes=truth.num_classes, default=0)
    origin = {
        "made_by": "drop_labels",
        "share": float(share),
        "seed": int(seed),
        "truth": truth.fingerprint(),
    }
    return Labels.from_entries(kept, truth.classes, ids=truth.ids, origin=origin)


def _check_count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise InputError(f"{name} is {value!r}: it must be a whole number, 0 or more, or None for all.")
    return int(value)
