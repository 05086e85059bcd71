"""Simulation of incomplete labels."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spml.errors import InputError
from spml.labels import Labels, drop_labels, simulate
from support.label_tables import ANIMALS, SIGNED, full_table, no_deadline


def drawn_row_by_row(truth: np.ndarray, positives: int | None, negatives: int | None, seed: int) -> np.ndarray:
    """Cole et al.'s draw, written row by row."""
    rng = np.random.RandomState(seed)
    observed = np.zeros(truth.shape, np.int8)
    for row, out in zip(truth, observed, strict=True):
        for value, keep in ((1, positives), (-1, negatives)):
            where = np.flatnonzero(row == value)
            rng.shuffle(where)
            out[where[:keep]] = value
    return observed


@no_deadline
@given(SIGNED, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_uniform_draw_follows_the_protocol(matrix, positives, negatives, seed) -> None:
    labels = simulate(Labels.from_matrix(matrix), positives, negatives, seed=seed)
    np.testing.assert_array_equal(labels.dense(), drawn_row_by_row(matrix, positives, negatives, seed))


def test_uniform_draw_on_voc_equals_the_published_one(voc, voc_truth) -> None:
    labels = simulate(voc_truth)
    rows = np.union1d(voc["train"], voc["val"])
    assert len(rows) == 5717
    np.testing.assert_array_equal(labels.single(), voc["observed"][rows])
    assert (voc["observed"][voc["test"]] == -1).all()
    assert labels.ids is not None
    assert labels.ids.tolist() == voc["image"][rows].tolist()


def test_simulation_records_its_origin() -> None:
    truth = full_table(6, 4)
    assert simulate(truth, 1, None, seed=3).origin == {
        "created_by": "simulate",
        "positives": 1,
        "negatives": None,
        "seed": 3,
        "biased_by": [],
        "truth": truth.fingerprint(),
    }
    biased = simulate(truth, np.int64(2), class_preference=np.ones(4), entry_weights=np.ones((6, 4)))
    assert biased.origin["biased_by"] == ["class_preference", "entry_weights"]
    assert biased.origin["positives"] == 2
    dropped = drop_labels(truth, 0.25, seed=5).origin
    assert dropped == {"created_by": "drop_labels", "share": 0.25, "seed": 5, "truth": truth.fingerprint()}


def test_simulation_of_120_000_rows_is_fast() -> None:
    truth = full_table(120_000, 81, mean=1.9)
    start = time.process_time()
    labels = simulate(truth)
    assert time.process_time() - start < 20
    assert labels.nbytes == 4 * 120_000
    np.testing.assert_array_equal(labels.single() >= 0, truth.entries().per_row(1) > 0)


@no_deadline
@given(SIGNED, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3), st.integers(0, 99))
def test_biased_draw_keeps_the_requested_numbers_of_true_labels(matrix, positives, negatives, seed) -> None:
    weights = np.random.default_rng(seed).integers(0, 3, matrix.shape)
    drawn = simulate(Labels.from_matrix(matrix), positives, negatives, seed=seed, entry_weights=weights).dense()
    assert ((drawn == 0) | (drawn == matrix)).all()
    for value, requested in ((1, positives), (-1, negatives)):
        available = (matrix == value).sum(axis=1)
        np.testing.assert_array_equal(
            (drawn == value).sum(axis=1), available if requested is None else np.minimum(available, requested)
        )
    if positives is not None:  # positives of weight 0 are drawn last
        left_over = (matrix == 1) & (drawn == 0) & (weights > 0)
        taken_at_zero = (drawn == 1) & (weights == 0)
        assert not (left_over.any(axis=1) & taken_at_zero.any(axis=1)).any()


def shares(labels: Labels) -> np.ndarray:
    return labels.counts().positives / len(labels)


def test_biased_draws_have_the_requested_odds() -> None:
    n = 40_000  # an error of 0.01 has a probability below 1e-4
    truth = Labels.from_lists([["ant", "bee", "cat"]] * n, ANIMALS, rest="negative")
    drawn = simulate(truth, class_preference=[1, 2, 5, 100])
    np.testing.assert_allclose(shares(drawn), [1 / 8, 2 / 8, 5 / 8, 0], atol=0.01)
    drawn = simulate(truth, entry_weights=np.tile(np.float16([0.25, 0.25, 0.5, 1]), (n, 1)))
    np.testing.assert_allclose(shares(drawn), [0.25, 0.25, 0.5, 0], atol=0.01)
    drawn = simulate(truth, class_preference=[4, 1, 0, 1], entry_weights=np.tile([1, 2, 9, 9], (n, 1)))
    np.testing.assert_allclose(shares(drawn), [2 / 3, 1 / 3, 0, 0], atol=0.01)
    # Two of three without replacement: the class that would come third is left out.
    first, second, third = 1 / 8, 2 / 8, 5 / 8
    out = first * second / (second + third) + second * first / (first + third)
    drawn = simulate(truth, positives=2, class_preference=[1, 2, 5, 1])
    np.testing.assert_allclose(shares(drawn)[2], 1 - out, atol=0.01)
    # All weights zero, or all equal: uniform.
    for preference in ([0, 0, 0, 1], [3, 3, 3, 3]):
        np.testing.assert_allclose(
            shares(simulate(truth, class_preference=preference)), [1 / 3, 1 / 3, 1 / 3, 0], atol=0.01
        )
    uniform = simulate(truth)
    np.testing.assert_allclose(shares(uniform), [1 / 3, 1 / 3, 1 / 3, 0], atol=0.01)


def test_size_biased_draw_on_voc_prefers_large_objects(voc, voc_truth) -> None:
    size = voc["largest_share"][np.union1d(voc["train"], voc["val"])].astype(float)
    rows = np.arange(len(size))
    uniform, biased = simulate(voc_truth).single(), simulate(voc_truth, entry_weights=size).single()
    assert (voc_truth.dense()[rows, biased] == 1).all()
    # Expected size of the chosen object: Σ s²/Σ s over a row's positives when drawn by size.
    positive = voc_truth.dense() == 1
    expected = np.where(positive, size**2, 0).sum(1) / np.where(positive, size, 0).sum(1)
    assert size[rows, biased].mean() == pytest.approx(expected.mean(), abs=0.005)
    assert size[rows, uniform].mean() == pytest.approx(
        (np.where(positive, size, 0).sum(1) / positive.sum(1)).mean(), abs=0.005
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_drop_labels_drops_the_share_of_every_row(share: float) -> None:
    truth = full_table(4000, 20, mean=3)
    dropped = drop_labels(truth, share)
    before, after = truth.dense(), dropped.dense()
    assert ((after == 0) | (after == before)).all()
    np.testing.assert_array_equal((after == 0).sum(axis=1), round(share * 20))
    # Positives, negatives and all classes are dropped equally often.
    assert (after[before == 1] == 0).mean() == pytest.approx(share, abs=0.03)
    np.testing.assert_allclose((after == 0).mean(axis=0), share, atol=0.05)
    assert drop_labels(truth, share).fingerprint() == dropped.fingerprint()


@no_deadline
@given(SIGNED, st.floats(0, 1))
def test_drop_labels_counts_only_known_labels(matrix: np.ndarray, share: float) -> None:
    after = drop_labels(Labels.from_matrix(matrix), share).dense()
    known = (matrix != 0).sum(axis=1)
    np.testing.assert_array_equal((after != 0).sum(axis=1), known - np.round(share * known))
    assert ((after == 0) | (after == matrix)).all()


def test_draws_do_not_depend_on_the_block_size(monkeypatch) -> None:
    truth = full_table(40, 6)
    whole = drop_labels(truth, 0.4)
    monkeypatch.setattr("spml.labels.entries._BLOCK", 7)
    assert drop_labels(truth, 0.4).fingerprint() == whole.fingerprint()
    assert full_table(40, 6).fingerprint() == truth.fingerprint()
    broken = truth.dense()
    broken[33, 2] = 5
    with pytest.raises(InputError, match=r"^row 33, column 2: value 5"):
        Labels.from_matrix(broken)
