"""Calibration against enumeration and known truth, thresholds against brute force, recovered labels, exports."""

import csv
import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from scipy.optimize import approx_fprime
from scipy.special import expit, logit

from spml.calibration import _WEIGHTS, _Fit, _others_absent
from spml.errors import InputError
from spml.labels import KEstimate, Labels
from spml.metrics import f1
from spml.recover import (
    FORMATS,
    Calibration,
    Recovered,
    calibrate,
    estimate_frequencies,
    evaluate_recovery,
    expected_f1_thresholds,
    export,
    label_studio_config,
    recover,
)
from spml.runs.files import atomic_path
from spml.runs.folder import RunFolder

CLASSES = ("cat", 'a "big" dog', "Straße, nass", "<b>&amp;", "鳥", "line\nbreak")


class World:
    """Rows whose labels are drawn from known probabilities, given that there is one; one of them is observed.

    The network's logits are the true ones, shifted by class and shrunk.
    """

    def __init__(self, rows: int, *, classes: int = len(CLASSES), level: float = -2.0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.offsets = rng.normal(0, 0.5, classes)
        self.slope = 2.0
        logits = level + 3.0 * rng.normal(size=(4 * rows, classes)) + self.offsets
        present = rng.random(logits.shape) < expit(logits)
        some = np.flatnonzero(present.any(axis=1))[:rows]
        assert len(some) == rows
        self.truth = present[some]
        self.p = expit(logits[some])
        self.probabilities = expit((logits[some] - self.offsets) / self.slope).astype(np.float32)
        self.single = np.where(self.truth, rng.random(self.truth.shape), -1).argmax(axis=1)
        self.known = np.zeros(self.truth.shape, np.int8)
        self.known[np.arange(rows), self.single] = 1

    @property
    def signed(self) -> np.ndarray:
        return np.where(self.truth, 1, -1).astype(np.int8)

    def run(self, name: str = "a run", **changes: Any) -> RunFolder:
        rows = len(self.truth)
        train, validation, test = np.split(np.arange(rows), [rows // 2, 4 * rows // 5])
        known = self.known.copy()
        known[test] = 0
        fields: dict[str, Any] = {
            "folder": Path("runs") / name,
            "record": {"method": {"name": "em"}, "k": None},
            "best": {},
            "log": [],
            "names": [f'photos/ü {row}, "{row}".jpg' for row in range(rows)],
            "labels": Labels.from_matrix(known, CLASSES),
            "truth": Labels.from_matrix(self.signed, CLASSES),
            "probabilities": self.probabilities,
            "train": train,
            "validation": validation,
            "test": test,
            "source": {},
        }
        return RunFolder(**(fields | changes))


@pytest.fixture(scope="module")
def world() -> World:
    return World(2000)


@pytest.fixture(scope="module")
def run(world: World) -> RunFolder:
    return world.run()


@pytest.fixture(scope="module")
def recovered(run: RunFolder) -> Recovered:
    return recover(run)


def as_they_are(classes: int, at_least_one: bool = True) -> Calibration:
    """A calibration that changes no probability."""
    return Calibration(1.0, np.zeros(classes), at_least_one, np.zeros(classes), KEstimate(0, 0, 0, 0), 0, 0.0)


# The model


def enumerated(p: np.ndarray, single: int | None, absent: tuple[int, ...] = ()) -> np.ndarray:
    """P(y_j = 1 | at least one label, z = single) by summing over all label sets."""
    weight, with_label = 0.0, np.zeros(len(p))
    for labels in itertools.product((0, 1), repeat=len(p)):
        y = np.array(labels)
        if not y.any() or y[list(absent)].any() or (single is not None and not y[single]):
            continue
        probability = np.prod(np.where(y, p, 1 - p)) / (1 if single is None else y.sum())
        weight += probability
        with_label += probability * y
    return with_label / weight


@given(nps.arrays(np.float64, 5, elements=st.floats(0.001, 0.999)), st.integers(0, 4))
def test_confidences_agree_with_enumeration(p: np.ndarray, single: int) -> None:
    calibration = as_they_are(5)
    known = np.zeros((3, 5), np.int8)
    known[1:, single] = 1
    other = (single + 1) % 5
    known[2, other] = -1
    confidences = calibration.confidences(np.stack([p] * 3), known)
    np.testing.assert_allclose(confidences[0], enumerated(p, None), rtol=1e-5)
    np.testing.assert_allclose(confidences[1], enumerated(p, single), rtol=1e-5)
    np.testing.assert_allclose(confidences[2], enumerated(p, single, (other,)), rtol=1e-5)


def test_known_labels_are_certain_and_several_positives_do_not_change_the_rest() -> None:
    p = np.array([[0.2, 0.5, 0.7, 0.9]])
    known = np.array([[1, 1, 0, -1]], np.int8)
    np.testing.assert_allclose(as_they_are(4).confidences(p, known), [[1, 1, 0.7, 0]], rtol=1e-6)
    np.testing.assert_allclose(as_they_are(4, at_least_one=False).confidences(p), p, rtol=1e-6)
    assert np.isfinite(as_they_are(4).confidences(np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]))).all()


@pytest.mark.parametrize(
    ("classes", "labels", "tolerance"), [(2, 1.0, 1e-12), (20, 1.5, 1e-12), (312, 31.0, 1e-9), (1000, 200.0, 1e-3)]
)
def test_the_integral_is_the_mean_inverse_number_of_labels(classes: int, labels: float, tolerance: float) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(classes)) * labels
    p = np.minimum(p, 0.95)
    count = np.ones(1)  # the distribution of the number of other labels, one label at a time
    for q in p[1:]:
        count = np.convolve(count, [1 - q, q])
    expected = count @ (1 / np.arange(1, len(count) + 1))
    assert (_WEIGHTS @ _others_absent(p[None], np.zeros(1, np.int64)))[0] == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("at_least_one", [True, False])
@pytest.mark.parametrize("k", [None, 1.9])
def test_the_gradient_matches_the_objective(at_least_one: bool, k: float | None) -> None:
    world = World(40, seed=3)
    known = world.known.copy()
    known[:10] = world.signed[:10]
    known[10:15, 2] = np.where(world.truth[10:15, 2], known[10:15, 2], -1)
    fit = _Fit(logit(world.probabilities.astype(float)), known, (known != 0).all(axis=1), at_least_one, k)
    theta = np.random.default_rng(0).normal(0, 0.5, len(CLASSES) + 2)
    value, gradient = fit.objective(theta)
    assert np.isfinite(value)
    np.testing.assert_allclose(
        gradient, approx_fprime(theta, lambda t: fit.objective(t)[0], 1e-6), rtol=1e-3, atol=1e-4
    )


@pytest.mark.filterwarnings("error")
def test_the_fit_is_finite_without_confident_labels() -> None:
    world = World(40, seed=3)
    fit = _Fit(logit(world.probabilities.astype(float)), world.known, np.zeros(40, bool), True, 1.1)
    theta = np.zeros(len(CLASSES) + 2)
    theta[1] = -500.0  # probabilities about 1e-217, whose squares are 0
    value, gradient = fit.objective(theta)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


# Calibration


@pytest.mark.parametrize("level", [-4.0, -1.0])
def test_k_and_frequencies_are_estimated_from_single_positives(level: float) -> None:
    world = World(4000, level=level)
    found = estimate_frequencies(world.probabilities, world.single)
    true_k = world.truth.sum(axis=1).mean()
    assert found.k.k == pytest.approx(true_k, rel=0.06)
    assert found.k.low < true_k < found.k.high
    assert found.k.high - found.k.low < 0.5 * true_k
    np.testing.assert_allclose(found.frequencies, world.truth.mean(axis=0), atol=0.04)


def test_slope_offsets_and_confidences_are_estimated(world: World) -> None:
    fitted = calibrate(world.probabilities, world.known)
    assert fitted.slope == pytest.approx(world.slope, rel=0.2)
    np.testing.assert_allclose(fitted.offsets, world.offsets, atol=0.6)
    expected = world.p / (1 - np.prod(1 - world.p, axis=1, keepdims=True))
    confidences = fitted.confidences(world.probabilities)
    assert np.abs(confidences - expected).mean() < 0.03
    before = np.abs(world.probabilities - expected).mean()
    assert np.abs(confidences - expected).mean() < 0.5 * before
    given_single = fitted.confidences(world.probabilities, world.known)[world.known == 0]
    truth = world.truth[world.known == 0]
    for low in (0.2, 0.4, 0.6):  # of the labels with a confidence of 20 to 40 %, this share is present
        band = (given_single >= low) & (given_single < low + 0.2)
        assert truth[band].mean() == pytest.approx(given_single[band].mean(), abs=0.08)


def test_the_likelihood_of_observed_labels_prefers_better_predictions(world: World) -> None:
    fitted = calibrate(world.probabilities, world.known)
    p = expit(fitted.slope * logit(world.probabilities.astype(float)) + fitted.offsets)
    rows = np.arange(50)
    named = [
        sum(
            np.prod(np.where(y, p[row], 1 - p[row])) / sum(y)
            for y in itertools.product((0, 1), repeat=len(CLASSES))
            if y[world.single[row]]
        )
        / (1 - np.prod(1 - p[row]))
        for row in rows
    ]
    few = calibrate(world.probabilities[rows], world.known[rows])
    assert few.log_likelihood >= np.log(named).mean() - 1e-3  # fitted to these rows, it is no less likely
    assert few.log_likelihood == pytest.approx(np.log(named).mean(), abs=0.15)
    assert fitted.log_likelihood == pytest.approx(np.log(named).mean(), abs=0.3)
    rng = np.random.default_rng(0)
    noisy = [
        calibrate(expit(logit(world.probabilities.astype(float)) + sd * rng.normal(size=p.shape)), world.known)
        for sd in (0.3, 0.6, 1.2)
    ]
    likelihoods = [fitted.log_likelihood, *(other.log_likelihood for other in noisy)]
    assert likelihoods == sorted(likelihoods, reverse=True)


def test_data_with_one_label_per_row_has_k_of_one() -> None:
    rng = np.random.default_rng(0)
    single = rng.integers(0, 5, 1500)
    logits = rng.normal(0, 1, (1500, 5)) + 3 * np.eye(5)[single]  # often unsure which of two it is
    assert estimate_frequencies(expit(logits), single).k.k < 1.15


def test_a_given_k_is_kept(world: World) -> None:
    for k in (1.4, 2.5):
        fitted = calibrate(world.probabilities, world.known, k=k)
        assert fitted.confidences(world.probabilities).sum(axis=1).mean() == pytest.approx(k, rel=0.03)
        assert fitted.k.low == fitted.k.high == fitted.k.k


def test_fully_labelled_rows_narrow_k() -> None:
    few = World(60, seed=5)
    single = calibrate(few.probabilities, few.known)
    full = calibrate(few.probabilities, few.signed)
    assert (single.full_rows, full.full_rows) == (0, 60)
    assert full.k.high - full.k.low < 0.7 * (single.k.high - single.k.low)
    assert full.k.k == pytest.approx(few.truth.sum(axis=1).mean())


def test_rows_without_a_label_drop_the_at_least_one_assumption(world: World) -> None:
    known = world.known.copy()
    known[::4] = 0
    with_empty = calibrate(world.probabilities, known)
    assert not with_empty.at_least_one
    assert calibrate(world.probabilities, world.known).at_least_one
    dull = np.full((1, len(CLASSES)), 0.01)
    assert with_empty.confidences(dull).sum() < 1 <= calibrate(world.probabilities, world.known).confidences(dull).sum()
    empty = world.signed.copy()
    empty[:5] = -1
    assert not calibrate(world.probabilities, empty).at_least_one


def test_calibration_does_not_depend_on_the_order_of_rows_or_classes(world: World) -> None:
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(300), rng.permutation(len(CLASSES))
    first = calibrate(world.probabilities[:300], world.known[:300])
    second = calibrate(world.probabilities[rows][:, columns], world.known[rows][:, columns])
    np.testing.assert_allclose(second.offsets, first.offsets[columns], atol=1e-2)
    np.testing.assert_allclose(second.frequencies, first.frequencies[columns], atol=1e-3)


def test_hard_cases_stay_finite() -> None:
    one = np.array([[1, 0, 0]], np.int8)
    for p in ([[1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0]], [[0.5, 0.5, 0.5]]):
        fitted = calibrate(np.array(p, np.float32), one)
        assert np.isfinite([fitted.slope, *fitted.offsets, *fitted.frequencies, *fitted.k.__dict__.values()]).all()
    never = World(200, seed=1)
    known = never.known.copy()
    keep = never.single != 3  # a class that was never observed
    fitted = calibrate(never.probabilities[keep], known[keep])
    assert fitted.frequencies[3] < 0.1


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: calibrate(np.full((2, 3), np.nan), np.ones((2, 3), np.int8)), "row 0 has a probability"),
        (lambda: calibrate(np.array([[0.5], [1.5]]), np.ones((2, 1), np.int8)), "row 1 has a probability"),
        (lambda: calibrate(np.full((2, 3), 0.5), np.ones((2, 2), np.int8)), "rows × 2 classes"),
        (lambda: calibrate(np.full((2, 3), 0.5), np.ones((1, 3), np.int8)), r"known has the shape \(1, 3\)"),
        (lambda: calibrate(np.full((2, 3), 0.5), np.zeros((2, 3), np.int8)), "none of the 2 rows"),
        (lambda: calibrate(np.full((2, 3), 0.5), np.ones((2, 3), np.int8), k=4), "k is 4: .* at most 3"),
        (lambda: estimate_frequencies(np.full((2, 3), 0.5), [0, 3]), "classes are 0 to 2"),
        (lambda: estimate_frequencies(np.full((2, 3), 0.5), [0.0, 1.0]), "one class index"),
        (lambda: as_they_are(3).confidences(np.full((2, 4), 0.5)), "rows × 3 classes"),
        (lambda: expected_f1_thresholds(np.zeros((0, 3))), "at least one row"),
    ],
)
def test_invalid_calibration_input_raises(call: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


# Thresholds


@given(nps.arrays(np.float64, (7, 2), elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0])))
def test_thresholds_have_the_best_expected_f1(confidences: np.ndarray) -> None:
    def expected(p: np.ndarray, threshold: float) -> float:
        taken = p >= threshold
        return 2 * p[taken].sum() / (taken.sum() + p.sum())

    for together, parts in ((False, confidences.T), (True, confidences.reshape(1, -1))):
        thresholds = expected_f1_thresholds(confidences, together=together)
        for p, threshold in zip(parts, thresholds, strict=False):
            if p.sum() == 0:
                assert threshold == np.inf
                continue
            best = max(expected(p, candidate) for candidate in p)
            assert expected(p, threshold) == pytest.approx(best)


def test_thresholds_are_close_to_the_best_ones(world: World) -> None:
    fitted = calibrate(world.probabilities, world.known)
    confidences = fitted.confidences(world.probabilities)
    ours = f1(confidences, world.truth, expected_f1_thresholds(confidences) - 1e-9, "macro")
    best = np.mean(
        [
            max(f1(confidences[:, [c]], world.truth[:, [c]], bar, "macro") for bar in np.linspace(0.05, 0.95, 19))
            for c in range(len(CLASSES))
        ]
    )
    assert ours > best - 0.01


# Recovered labels


def test_observed_labels_are_always_present(recovered: Recovered, run: RunFolder) -> None:
    entries = recovered.entries
    rows, columns = run.labels.subset(recovered.rows).positives()
    handed = set(zip(entries.row[entries.observed].tolist(), entries.label[entries.observed].tolist(), strict=True))
    assert handed == set(zip(recovered.rows[rows].tolist(), columns.tolist(), strict=True))
    assert (entries.confidence[entries.observed] == 1).all()
    low = recover(run, threshold=1.0).entries
    assert low.observed.sum() == entries.observed.sum()


def test_entries_explain_each_label(recovered: Recovered, run: RunFolder) -> None:
    entries = recovered.entries
    assert (np.diff(entries.row) >= 0).all()
    found_labels = ~entries.observed
    assert found_labels.sum() > 100
    assert (entries.confidence >= entries.threshold)[found_labels].all()
    np.testing.assert_array_equal(entries.threshold, recovered.thresholds[entries.label])
    np.testing.assert_array_equal(entries.probability, run.probabilities[entries.row, entries.label])
    for i in np.random.default_rng(0).choice(len(entries.row), 50):
        of_class = run.probabilities[recovered.rows, entries.label[i]]
        assert (
            entries.rank[i]
            == 1
            + (of_class > entries.probability[i]).sum()
            + ((of_class == entries.probability[i]) & (recovered.rows < entries.row[i])).sum()
        )
    same_row = np.diff(entries.row) == 0
    later = entries.observed[1:].astype(int) * 2 + entries.confidence[1:]
    earlier = entries.observed[:-1].astype(int) * 2 + entries.confidence[:-1]
    assert (earlier >= later)[same_row].all()


def test_requested_rows(run: RunFolder, recovered: Recovered) -> None:
    np.testing.assert_array_equal(recovered.rows, np.concatenate([run.train, run.validation]))
    everything = recover(run, rows="all")
    assert len(everything.rows) == len(run.names)
    assert not everything.entries.observed[np.isin(everything.entries.row, run.test)].any()
    assert recovered.present(run.test).any()
    np.testing.assert_array_equal(recovered.confidence(run.test), everything.confidence(run.test))
    entries = recovered.entries
    table = np.zeros((len(run.names), len(CLASSES)), bool)
    table[entries.row, entries.label] = True
    np.testing.assert_array_equal(recovered.present(recovered.rows), table[recovered.rows])
    assert recovered.summary().startswith(f"Recovered {(~entries.observed).sum():,} missing labels in 1,600 rows")


def test_recovered_labels_are_mostly_correct(recovered: Recovered, run: RunFolder) -> None:
    assert run.truth is not None
    scores = evaluate_recovery(recovered, run.truth)
    assert scores.precision > 0.7
    assert scores.recall > 0.6
    only_observed = evaluate_recovery(recover(run, threshold=1.0), run.truth)
    assert scores.f1_micro > only_observed.f1_micro + 0.05


def test_evaluation_agrees_with_a_loop(recovered: Recovered, world: World) -> None:
    signed = world.signed
    signed[5:30, 2] = 0
    signed[40] = 0
    scores = evaluate_recovery(recovered, Labels.from_matrix(signed, CLASSES))
    present, truth, known = (a[recovered.rows] for a in (recovered.present(np.arange(2000)), signed, recovered.known))
    missing = (truth > 0) & (known == 0)
    found_labels = present & (known == 0) & (truth != 0)
    assert (scores.missing, scores.recovered) == (missing.sum(), found_labels.sum())
    assert scores.right == (missing & found_labels).sum()
    assert scores.precision == pytest.approx((missing & found_labels).sum() / found_labels.sum())
    assert scores.recall == pytest.approx((missing & found_labels).sum() / missing.sum())
    assert scores.f1 == pytest.approx(2 * scores.precision * scores.recall / (scores.precision + scores.recall))
    for average, ours in (("micro", scores.f1_micro), ("macro", scores.f1_macro)):
        assert ours == pytest.approx(f1(present.astype(float), truth, 0.5, average, mask=truth != 0))


def test_rows_without_predictions_are_left_out(world: World) -> None:
    probabilities = world.probabilities.copy()
    probabilities[[0, 3, 1100]] = np.nan
    found = recover(world.run(probabilities=probabilities))
    assert not np.isin([0, 3, 1100], found.rows).any()
    assert "3 rows are left out" in found.notes[0]
    assert np.isnan(found.confidences[3]).all()
    assert np.isfinite(found.confidences[found.rows]).all()
    assert not found.present([0])[0, world.single[0] - 1]
    everywhere = world.run(probabilities=np.full_like(probabilities, np.nan))
    with pytest.raises(InputError, match="no predictions for the requested rows"):
        recover(everywhere)


def test_without_validation_rows_training_rows_are_used(world: World) -> None:
    found = recover(world.run(validation=np.zeros(0, np.int64)))
    assert any("Calibrated on training rows" in note for note in found.notes)
    assert found.calibration.k.rows == 1000
    unlabelled = world.run()
    known = unlabelled.labels.dense()
    known[unlabelled.validation] = 0
    assert recover(world.run(labels=Labels.from_matrix(known, CLASSES))).calibration.k.rows == 1000
    with pytest.raises(InputError, match="no row with a label"):
        recover(world.run(labels=Labels.from_matrix(np.zeros_like(known), CLASSES)))


def test_known_negatives_are_never_recovered(world: World) -> None:
    run = world.run()
    known = run.labels.dense()
    known[: len(run.train), 1] = np.where(known[: len(run.train), 1] > 0, 1, -1)
    found = recover(world.run(labels=Labels.from_matrix(known, CLASSES)))
    assert not (found.present(run.train) & (known[run.train] < 0)).any()


def test_labelled_rows_are_known_and_used_for_calibration(world: World, run: RunFolder) -> None:
    rows = np.array([7, 900, 1700])
    labels = Labels.from_matrix(world.signed[rows], CLASSES)
    found = recover(run, labelled=(labels, rows))
    assert found.calibration.full_rows == 3
    assert found.calibration.k.rows == len(run.validation) + 3
    np.testing.assert_array_equal(found.present(rows), world.truth[rows])
    with pytest.raises(InputError, match="got labels of 3 rows for 2"):
        recover(run, labelled=(labels, rows[:2]))
    with pytest.raises(InputError, match="the labelled rows have the classes a, b"):
        recover(run, labelled=(Labels.from_indices([0], ["a", "b"]), [0]))
    wrong = world.signed[rows]
    wrong[1, world.single[900]] = -1
    with pytest.raises(InputError, match=r"row 900 \(photos/ü 900.*is labelled absent"):
        recover(run, labelled=(Labels.from_matrix(wrong, CLASSES), rows))


def test_labelled_rows_improve_k() -> None:
    truth = World(600, seed=9)
    flat = truth.run(probabilities=expit(0.2 * logit(truth.probabilities.astype(float)) + 1).astype(np.float32))
    rows = np.arange(200)
    with_them = recover(flat, labelled=(Labels.from_matrix(truth.signed[rows], CLASSES), rows))
    without = recover(flat)
    true = truth.truth.sum(axis=1).mean()
    assert abs(with_them.calibration.k.k - true) < 0.05 * true
    assert (
        with_them.calibration.k.high - with_them.calibration.k.low
        < without.calibration.k.high - without.calibration.k.low
    )


def test_k_defaults_to_the_value_given_to_training(world: World) -> None:
    with_k = world.run(record={"method": {"name": "role"}, "k": 1.5})
    assert recover(with_k).calibration.k.k == pytest.approx(1.5, rel=0.06)
    assert recover(with_k, k=2.2).calibration.k.k == pytest.approx(2.2, rel=0.06)


def test_the_summary_describes_the_calibration(world: World, run: RunFolder, recovered: Recovered) -> None:
    estimate = recovered.calibration.k
    expected = f"labels per row: {estimate.k:.1f} (90% interval {estimate.low:.1f} to {estimate.high:.1f})."
    assert recovered.summary().endswith(
        f"Calibrated on {len(run.validation)} held-out rows, each with one observed label and no full labels; "
        f"estimated {expected}"
    )
    labelled = (Labels.from_matrix(world.signed[:2], CLASSES), [0, 1])
    assert (
        f"{len(run.validation) + 2} held-out rows, 2 of them fully labelled"
        in recover(run, labelled=labelled).summary()
    )
    assert recover(run, k=1.5).summary().endswith("no full labels; with k = 1.5 as given.")
    without = recover(world.run(validation=np.zeros(0, np.int64)))
    assert "Calibrated on 1,000 training rows" in without.summary()


def test_an_uncertain_k_is_reported(world: World) -> None:
    rng = np.random.default_rng(0)
    nothing_learned = expit(rng.normal(0, 0.3, world.probabilities.shape)).astype(np.float32)
    assert any(
        "Give k (`spml recover --k`), or label some" in note
        for note in recover(world.run(probabilities=nothing_learned)).notes
    )
    assert recover(world.run()).notes == ()


def test_invalid_arguments_raise(run: RunFolder, recovered: Recovered) -> None:
    with pytest.raises(InputError, match="rows is 'test'"):
        recover(run, rows="test")  # type: ignore[arg-type]
    for threshold in (0.0, 1.5, "f2", float("nan")):
        with pytest.raises(InputError, match="threshold is"):
            recover(run, threshold=threshold)  # type: ignore[arg-type]
    for k in (0.0, -1.0, float("nan"), len(CLASSES) + 1.0):
        with pytest.raises(InputError, match=f"k must be above 0 and at most {len(CLASSES)}"):
            recover(run, k=k)
    with pytest.raises(InputError, match="the truth has 1 rows"):
        evaluate_recovery(recovered, Labels.from_indices([0], CLASSES))


# Exports


def expected_lines(recovered: Recovered) -> list[tuple[str, str, bool, float]]:
    entries = recovered.entries
    return [
        (recovered.names[row], CLASSES[label], bool(observed), round(float(confidence), 6))
        for row, label, observed, confidence in zip(*entries[:4], strict=True)
    ]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_tables_can_be_read_back(recovered: Recovered, tmp_path: Path, suffix: str) -> None:
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    path = tmp_path / f"labels{suffix}"
    export(recovered, path)
    if suffix == ".parquet":
        table = parquet.read_table(path)
    else:
        table = arrow_csv.read_csv(path, parse_options=arrow_csv.ParseOptions(newlines_in_values=True))
        with path.open(newline="", encoding="utf-8") as file:  # and by another reader
            assert [(line["name"], line["label"]) for line in csv.DictReader(file)] == [
                line[:2] for line in expected_lines(recovered)
            ]
    assert table.column_names == ["name", "label", "observed", "confidence", "probability", "threshold", "rank"]
    columns = [table[name].to_pylist() for name in ("name", "label", "observed", "confidence")]
    assert list(zip(*columns, strict=True)) == expected_lines(recovered)
    np.testing.assert_array_equal(table["rank"].to_numpy(), recovered.entries.rank)
    np.testing.assert_allclose(table["threshold"].to_numpy(), recovered.entries.threshold, atol=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def read(recovered: Recovered, tmp_path: Path, name: str, **options: Any) -> Any:
    export(recovered, tmp_path / "labels.json", format=name, overwrite=True, **options)
    return json.loads((tmp_path / "labels.json").read_text(encoding="utf-8"))


def test_coco(recovered: Recovered, tmp_path: Path) -> None:
    content = read(recovered, tmp_path, "coco", prefix="images/")
    names = {image["id"]: image["file_name"] for image in content["images"]}
    classes = {category["id"]: category["name"] for category in content["categories"]}
    assert list(classes.values()) == list(CLASSES)
    assert len(names) == len(recovered.rows)
    assert [
        (names[note["image_id"]], classes[note["category_id"]], note["observed"], note["score"])
        for note in content["annotations"]
    ] == [("images/" + name, *rest) for name, *rest in expected_lines(recovered)]
    assert len({note["id"] for note in content["annotations"]}) == len(content["annotations"])


def test_coco_is_readable_by_pycocotools(recovered: Recovered, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    read(recovered, tmp_path, "coco")
    loaded = coco.COCO(str(tmp_path / "labels.json"))
    (category,) = loaded.getCatIds(catNms=[CLASSES[4]])
    assert len(loaded.getAnnIds(catIds=[category])) == (recovered.entries.label == 4).sum()


def test_label_studio(recovered: Recovered, tmp_path: Path) -> None:
    tasks = read(recovered, tmp_path, "label-studio", prefix="/data/local-files/?d=")
    assert len(tasks) == len(recovered.rows)
    lines = iter(expected_lines(recovered))
    for task in tasks:
        (prediction,) = task["predictions"]
        (result,) = prediction["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == ("labels", "image", "choices")
        for choice in result["value"]["choices"]:
            name, label, observed, confidence = next(lines)
            assert task["data"]["image"] == f"/data/local-files/?d={name}"
            assert (choice, choice in task["data"]["observed"]) == (label, observed)
            assert task["data"]["confidence"][label] == confidence
        assert prediction["score"] == min(task["data"]["confidence"].values())
    assert next(lines, None) is None


def test_the_label_studio_configuration_lists_the_classes() -> None:
    from xml.etree import ElementTree

    root = ElementTree.fromstring(label_studio_config(CLASSES))
    assert [choice.get("value") for choice in root.iter("Choice")] == list(CLASSES)
    (choices,) = root.iter("Choices")
    assert (choices.get("name"), choices.get("toName"), choices.get("choice")) == ("labels", "image", "multiple")


def test_label_studio_accepts_the_tasks(recovered: Recovered, tmp_path: Path) -> None:
    interfaces = pytest.importorskip("label_studio_sdk.label_interface")
    interface = interfaces.LabelInterface(label_studio_config(CLASSES))
    for task in read(recovered, tmp_path, "label-studio")[:20]:
        assert interface.validate_task({"data": task["data"]})
        (prediction,) = task["predictions"]
        assert interface.validate_prediction(prediction)
        prediction["result"][0]["value"]["choices"].append("a class that is not there")
        assert not interface.validate_prediction(prediction)


def test_fiftyone(recovered: Recovered, tmp_path: Path) -> None:
    content = read(recovered, tmp_path, "fiftyone")
    assert content["media_type"] == "image"
    assert content["sample_fields"]["recovered"].endswith("(fiftyone.core.labels.Classifications)")
    found = [
        (sample["filepath"], label["label"], label["tags"] == ["observed"], label["confidence"])
        for sample in content["samples"]
        for label in sample["recovered"]["classifications"]
    ]
    assert found == expected_lines(recovered)


def test_fiftyone_reads_the_samples(recovered: Recovered, tmp_path: Path) -> None:
    fiftyone = pytest.importorskip("fiftyone")
    content = read(recovered, tmp_path, "fiftyone")
    samples = [fiftyone.Sample.from_dict(sample) for sample in content["samples"][:20]]
    lines = iter(expected_lines(recovered))
    for sample in samples:
        assert isinstance(sample["recovered"], fiftyone.Classifications)
        for label in sample["recovered"].classifications:
            assert (label.label, label.confidence) == (lambda line: (line[1], line[3]))(next(lines))
    try:  # the whole file, where its database can run
        dataset = fiftyone.Dataset.from_json(str(tmp_path / "labels.json"), rel_dir=str(tmp_path))
    except fiftyone.core.config.FiftyOneConfigError as error:
        pytest.skip(f"fiftyone has no database here: {error}")
    assert len(dataset) == len(recovered.rows)
    assert dataset.count("recovered.classifications") == len(recovered.entries.row)
    dataset.delete()


def test_rows_without_labels_are_exported_too(world: World, tmp_path: Path) -> None:
    found = recover(world.run(), rows="all", threshold=1.0)
    assert len(found.entries.row) < len(found.rows)
    assert len(read(found, tmp_path, "coco")["images"]) == len(found.rows)
    tasks = read(found, tmp_path, "label-studio")
    assert len(tasks) == len(found.rows)
    assert tasks[-1]["predictions"] == [{"model_version": "a run", "score": 0.0, "result": []}]
    assert len(read(found, tmp_path, "fiftyone")["samples"]) == len(found.rows)


def test_invalid_exports_raise(recovered: Recovered, tmp_path: Path) -> None:
    for name, format, sentence in (
        ("labels.json", None, "coco, label-studio, fiftyone; give the format"),
        ("labels.txt", None, "use the ending .csv or .parquet"),
        ("labels.csv", "excel", "unknown format 'excel'"),
        ("nowhere/labels.csv", None, "cannot be written: there is no folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            export(recovered, tmp_path / name, format=format)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        export(recovered, tmp_path / "folder.csv", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_a_read_error_is_not_reported_as_a_write_error(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "out") as temporary:
            temporary.write_text("half")
            raise OSError("the input went away")

    with pytest.raises(OSError, match="the input went away"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_on_request(recovered: Recovered, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("mine")
    with pytest.raises(InputError, match=r"labels.csv already exists: pass overwrite=True"):
        export(recovered, path)
    assert path.read_text() == "mine"
    export(recovered, path, overwrite=True)
    assert path.read_text().startswith('"name"')


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failed_write_keeps_the_old_file(
    recovered: Recovered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    path = tmp_path / "labels.out"
    path.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync" if code == errno.ENOSPC else "replace", fail)
    with pytest.raises(InputError, match=f"labels.out cannot be written: {os.strerror(code).lower()}"):
        export(recovered, path, format=name, overwrite=True)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["labels.out"]
