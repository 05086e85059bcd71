"""Estimates of k."""

import numpy as np

from spml.labels import Labels, estimate_k, k_intervals
from support.label_tables import ANIMALS, full_table


def test_k_intervals_of_voc_equal_table_a2(voc_truth) -> None:
    intervals = k_intervals(voc_truth)
    printed = {size: (round(low, 1), round(high, 1)) for size, (low, high) in intervals.items()}
    assert printed == {5: (1.0, 2.0), 10: (1.1, 1.9), 25: (1.2, 1.7)}
    assert round(estimate_k(voc_truth).k, 1) == 1.5


def test_k_intervals_are_percentiles_of_draws_without_replacement() -> None:
    truth = full_table(60, 12, mean=4)
    per_row = (truth.dense() == 1).sum(axis=1)
    rng = np.random.default_rng(1)
    for size, (low, high) in k_intervals(truth, (7, 40), trials=20_000).items():
        means = [rng.choice(per_row, size, replace=False).mean() for _ in range(20_000)]
        np.testing.assert_allclose((low, high), np.percentile(means, [5, 95]), atol=1 / size + 1e-9)
    (exact,) = set(k_intervals(truth, (60,), trials=10).values())
    assert exact == (per_row.mean(), per_row.mean())  # a sample of all rows has no variance


def test_estimate_k_is_the_mean_with_a_bootstrap_interval() -> None:
    sample = Labels.from_lists([["ant"], ["ant", "bee", "cat"], [], ["dog", "cat"]], ANIMALS, rest="negative")
    estimate = estimate_k(sample)
    assert estimate.k == 1.5
    assert estimate.rows == 4
    # Compare with all 256 resamples of four rows.
    resamples = np.stack(np.meshgrid(*[[1, 3, 0, 2]] * 4)).reshape(4, -1).mean(axis=0)
    assert (estimate.low, estimate.high) == tuple(np.percentile(resamples, [5, 95], method="nearest"))
    assert estimate == estimate_k(sample)
    certain = estimate_k(Labels.from_lists([["ant"], ["bee"]], ANIMALS, rest="negative"))
    assert (certain.k, certain.low, certain.high) == (1.0, 1.0, 1.0)
