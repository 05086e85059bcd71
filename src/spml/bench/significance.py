"""Tests of the difference between two methods, and their correction for the number of comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PairedTest:
    """A paired comparison of two methods: the mean difference over common seeds, and its p-value if there is a test."""

    difference: float
    p: float | None
    name: str


def paired_test(first: Mapping[int, float], second: Mapping[int, float]) -> PairedTest | None:
    """Compare two methods' scores by seed with Student's paired t-test.

    There is no p-value for fewer than three common seeds, and no comparison without one. The test asks whether other
    seeds would give the same order on this data, split and draw of labels. It says nothing about other data.
    """
    from scipy import stats

    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    gains = np.array([first[seed] - second[seed] for seed in seeds])
    difference = float(gains.mean())
    if len(seeds) < 3:
        return PairedTest(difference, None, "")
    name = f"paired t over {len(seeds)} seeds"
    if np.ptp(gains) == 0:  # t is undefined without variance
        return PairedTest(difference, 1.0 if difference == 0 else 0.0, name)
    return PairedTest(difference, float(stats.ttest_1samp(gains, 0.0).pvalue), name)


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's step-down method.

    Parameters
    ----------
    values : sequence of float

    Returns
    -------
    list of float
        In the given order.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.02])
    [0.03, 0.04, 0.04]
    """
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        corrected[index] = largest
    return corrected


def with_corrected(rows: Sequence[dict[str, Any]], *group: str) -> list[dict[str, Any]]:
    """Return rows with their p-values as text and corrected: all rows with equal values in `group` are one family."""
    families: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["p"] is not None:
            families.setdefault(tuple(row[name] for name in group), []).append(row)
    corrected: dict[int, float] = {}
    for family in families.values():
        corrected |= zip(map(id, family), holm([row["p"] for row in family]), strict=True)
    return [{**row, "p": _shown_p(row["p"]), "p_holm": _shown_p(corrected.get(id(row)))} for row in rows]


def _shown_p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
