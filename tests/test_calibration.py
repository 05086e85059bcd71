"""Calibration against enumeration and known truth; thresholds against brute force."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from scipy.optimize import approx_fprime
from scipy.special import expit, logit

from spml.calibration import Calibration, Presence, best_threshold, calibrate, expected_f1_thresholds
from spml.calibration.arrays import clipped_logits
from spml.calibration.posterior import k_posterior
from spml.calibration.presence import PresenceFit, choice_weights
from spml.calibration.recalibration import NO_CORRECTION, PRIOR, recalibrate
from spml.errors import InputError
from spml.labels import KEstimate
from spml.metrics import f1
from support.recovery import CLASSES, World


@pytest.fixture(scope="module")
def world() -> World:
    return World(2000)


def as_they_are(classes: int, at_least_one: bool = True) -> Calibration:
    """A calibration that changes no probability."""
    zeros, k = np.zeros(classes), KEstimate(0, 0, 0, 0)
    return Calibration(
        1.0, zeros, (Presence(1.0, zeros),), (NO_CORRECTION, NO_CORRECTION), at_least_one, zeros, k, 0, 0.0
    )


# The model


def enumerated(
    p: np.ndarray, single: int | None, absent: tuple[int, ...] = (), confirmed: tuple[int, ...] = ()
) -> np.ndarray:
    """P(y_j = 1 | at least one label, z = single) by summing over all label sets."""
    weight, with_label = 0.0, np.zeros(len(p))
    for labels in itertools.product((0, 1), repeat=len(p)):
        y = np.array(labels)
        if (
            not y.any()
            or y[list(absent)].any()
            or not y[list(confirmed)].all()
            or (single is not None and not y[single])
        ):
            continue
        probability = np.prod(np.where(y, p, 1 - p)) / (1 if single is None else y.sum())
        weight += probability
        with_label += probability * y
    return with_label / weight


@given(nps.arrays(np.float64, 5, elements=st.floats(0.001, 0.999)), st.integers(0, 4))
def test_confidences_agree_with_enumeration(p: np.ndarray, single: int) -> None:
    calibration = as_they_are(5)
    known = np.zeros((4, 5), np.int8)
    known[1:, single] = 1
    other = (single + 1) % 5
    known[2, other] = -1
    known[3, other] = 1
    confidences = calibration.confidences(np.stack([p] * 4), known)
    np.testing.assert_allclose(confidences[3], enumerated(p, single, (), (other,)), rtol=1e-5)
    np.testing.assert_allclose(confidences[0], enumerated(p, None), rtol=1e-5)
    np.testing.assert_allclose(confidences[1], enumerated(p, single), rtol=1e-5)
    np.testing.assert_allclose(confidences[2], enumerated(p, single, (other,)), rtol=1e-5)


def test_known_labels_are_certain() -> None:
    p = np.array([[0.2, 0.5, 0.7, 0.9]])
    known = np.array([[1, 1, 0, -1]], np.int8)
    confidences = as_they_are(4).confidences(p, known)
    np.testing.assert_array_equal(confidences[:, [0, 1, 3]], [[1, 1, 0]])
    assert 0 < confidences[0, 2] < 0.7  # with a third label, one of these two was less likely to be picked
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
    others = np.concatenate([[0.0], p[1:]])[None]
    assert choice_weights(others, np.ones(1, np.int64)).sum() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("at_least_one", [True, False])
@pytest.mark.parametrize("k", [None, 1.9])
def test_the_gradient_matches_the_objective(at_least_one: bool, k: float | None) -> None:
    world = World(40, seed=3)
    known = world.known.copy()
    known[:10] = world.signed[:10]
    known[10:15, 2] = np.where(world.truth[10:15, 2], known[10:15, 2], -1)
    known[15:20, 3] = np.where(world.truth[15:20, 3], 1, known[15:20, 3])
    fit = PresenceFit(logit(world.probabilities.astype(float)), known, at_least_one)
    theta = np.random.default_rng(0).normal(0, 0.5, len(CLASSES) + 2)
    value, gradient = fit.objective(theta, k)
    assert np.isfinite(value)
    np.testing.assert_allclose(
        gradient, approx_fprime(theta, lambda t: fit.objective(t, k)[0], 1e-6), rtol=1e-3, atol=1e-4
    )


def test_the_likelihood_agrees_with_enumeration() -> None:
    known = np.array([[1, 0, 0, 0], [1, -1, 0, 1], [1, -1, -1, 1]], np.int8)
    logits = np.random.default_rng(1).normal(size=known.shape)
    fit = PresenceFit(logits, known, True)
    theta = np.array([0.2, -0.4, 0.1, 0.3, -0.2, 0.0])
    presence = fit.presence(theta)
    for row, p in enumerate(expit(presence.slope * logits + presence.offsets)):
        total = sum(
            np.prod(np.where(y, p, 1 - p)) / (1 if (known[row] != 0).all() else sum(y))
            for y in itertools.product((0, 1), repeat=4)
            if all(known[row, c] == 0 or (known[row, c] > 0) == y[c] for c in range(4))
        )
        assert fit.likelihoods_of(fit.logits_of(theta))[row] == pytest.approx(np.log(total / (1 - np.prod(1 - p))))


@pytest.mark.filterwarnings("error")
def test_the_fit_is_finite_without_confident_labels() -> None:
    world = World(40, seed=3)
    fit = PresenceFit(logit(world.probabilities.astype(float)), world.known, True)
    theta = np.zeros(len(CLASSES) + 2)
    theta[1] = -500.0  # probabilities about 1e-217, whose squares are 0
    value, gradient = fit.objective(theta, 1.1)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


# Calibration


@pytest.mark.parametrize("level", [-4.0, -1.0])
def test_k_and_frequencies_are_estimated_from_single_positives(level: float) -> None:
    world = World(4000, level=level)
    found = calibrate(world.probabilities, world.known, uncertainty=False)
    true_k = world.truth.sum(axis=1).mean()
    assert found.k.k == pytest.approx(true_k, rel=0.06)
    np.testing.assert_allclose(found.frequencies, world.truth.mean(axis=0), atol=0.04)
    honest = calibrate(world.probabilities, world.known).k
    assert honest.low < true_k < honest.high
    assert honest.high - honest.low < 0.8 * true_k


def test_slope_offsets_and_confidences_are_estimated(world: World) -> None:
    fitted = calibrate(world.probabilities, world.known, uncertainty=False)
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
    found = calibrate(expit(logits), np.eye(5, dtype=np.int8)[single])
    assert found.k.low < 1.05
    assert found.k.k < 1.25


def test_many_single_labels_do_not_make_k_certain() -> None:
    """The form of the model is only an assumption: the labels per row beyond the first are known within a factor."""
    world = World(4000)
    k = calibrate(world.probabilities, world.known).k
    assert k.low < world.truth.sum(axis=1).mean() < k.high
    assert 3 < (k.high - 1) / (k.low - 1) < 6


def test_few_rows_per_class_leave_k_open() -> None:
    """The classifier's errors look like further labels: the same likelihood is trusted less with fewer rows."""
    world = World(4000)
    fit = PresenceFit(clipped_logits(world.probabilities[:200]), world.known[:200], True)
    theta = fit.maximise(fit.start())
    few, many = k_posterior(fit, theta, None, 40), k_posterior(fit, theta, None, 4000)
    assert (few.high - 1) / (few.low - 1) > 3 * (many.high - 1) / (many.low - 1)


def test_full_rows_are_counted_even_where_the_likelihood_is_wrong() -> None:
    """The classifier sees one label of several: single labels point to k = 1, 40 fully labelled rows to about 3."""
    rng = np.random.default_rng(0)
    truth = np.zeros((1500, 8), bool)
    truth[np.arange(1500)[:, None], rng.random((1500, 8)).argsort(axis=1)[:, :3]] = True
    single = np.where(truth, rng.random(truth.shape), -1).argmax(axis=1)
    logits = rng.normal(0, 1, truth.shape) + 4 * np.eye(8)[single] - 3
    observed = np.eye(8, dtype=np.int8)[single]
    known = observed.copy()
    known[:40] = np.where(truth[:40], 1, -1)
    assert calibrate(expit(logits), observed).k.high < 2
    found = calibrate(expit(logits), known, observed=observed).k
    assert found.low <= 3 <= found.high + 0.1
    assert found.high - found.low < 0.5


def test_the_cautious_reading_is_never_above_the_balanced_one(world: World) -> None:
    known = world.known.copy()
    for full in (0, 20):
        known[:full] = world.signed[:full]
        fitted = calibrate(world.probabilities, known, observed=world.known)
        for given_labels in (None, world.known):
            cautious = fitted.confidences(world.probabilities, given_labels, reading="cautious")
            balanced = fitted.confidences(world.probabilities, given_labels)
            assert (cautious <= balanced + 1e-6).all()
            lowest, highest = (
                fitted.confidences(world.probabilities, given_labels, reading=reading)  # type: ignore[arg-type]
                for reading in ("lowest", "highest")
            )
            assert (lowest <= cautious + 1e-6).all()
            assert (balanced <= highest + 1e-6).all()
            assert (cautious < balanced - 0.02).any()


def test_confusion_is_not_taken_for_several_labels() -> None:
    """Labels exclude each other, and the classifier is overconfident: the cautious reading recovers almost nothing."""
    rng = np.random.default_rng(0)
    single = rng.integers(0, 6, 2000)
    overconfident = 3 * (rng.normal(0, 1, (2000, 6)) + 1.5 * np.eye(6)[single])
    known = np.eye(6, dtype=np.int8)[single]
    found = calibrate(expit(overconfident - 3), known)
    taken = (known == 0) & (found.confidences(expit(overconfident - 3), known, reading="cautious") >= 0.5)
    assert taken.sum() < 0.02 * len(known)
    assert found.k.low < 1.1


def test_twenty_full_rows_correct_an_overestimated_k() -> None:
    rng = np.random.default_rng(0)
    single = rng.integers(0, 6, 2000)
    logits = 3 * (rng.normal(0, 1, (2000, 6)) + 1.5 * np.eye(6)[single]) - 3
    observed = np.eye(6, dtype=np.int8)[single]
    known = observed.copy()
    known[:20][known[:20] == 0] = -1
    found = calibrate(expit(logits), known, observed=observed)
    assert found.k.high < min(1.3, calibrate(expit(logits), observed).k.high)


def test_the_correction_moves_confidences_towards_the_truth() -> None:
    rng = np.random.default_rng(0)
    confidences = rng.uniform(0.05, 0.95, 3000)
    truth = rng.random(3000) < expit(0.8 * logit(confidences) - 1)
    fitted = recalibrate(confidences, truth, np.arange(3000) // 3)
    np.testing.assert_allclose(fitted.weights, [-1, 0.8], atol=0.15)
    for low in (0.3, 0.5, 0.7):
        band = (confidences >= low) & (confidences < low + 0.2)
        assert fitted.corrected(confidences)[band].mean() == pytest.approx(truth[band].mean(), abs=0.05)
    few = recalibrate(confidences[:10], truth[:10], np.arange(10))
    assert np.trace(few.covariance) > 5 * np.trace(fitted.covariance)
    np.testing.assert_array_equal(few.corrected(np.array([0.0])), [0.0])
    assert recalibrate(np.zeros(3), np.zeros(3, bool), np.arange(3)) is PRIOR
    np.testing.assert_allclose(NO_CORRECTION.corrected(confidences), confidences)
    unsure = PRIOR.corrected(np.array([0.6, 0.9, 0.99]))
    assert (unsure < [0.6, 0.9, 0.99]).all()
    assert (np.diff(unsure) > 0).all()


def test_a_given_k_is_kept(world: World) -> None:
    for k in (1.4, 2.5):
        fitted = calibrate(world.probabilities, world.known, k=k)
        assert len(fitted.readings) == 1
        assert fitted.frequencies.sum() == pytest.approx(k, rel=0.03)
        assert fitted.k.low == fitted.k.high == fitted.k.k


def test_fully_labelled_rows_narrow_k() -> None:
    few = World(60, seed=5)
    single = calibrate(few.probabilities, few.known)
    full = calibrate(few.probabilities, few.signed)
    assert (single.full_rows, full.full_rows) == (0, 60)
    assert full.k.high - full.k.low < 0.7 * (single.k.high - single.k.low)
    assert full.k.k == pytest.approx(few.truth.sum(axis=1).mean(), rel=0.02)


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
    np.testing.assert_allclose(second.frequencies, first.frequencies[columns], atol=1e-2)


def test_hard_cases_stay_finite() -> None:
    one = np.array([[1, 0, 0]], np.int8)
    for p in ([[1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0]], [[0.5, 0.5, 0.5]]):
        fitted = calibrate(np.array(p, np.float32), one)
        assert np.isfinite([fitted.slope, *fitted.offsets, *fitted.frequencies, *fitted.k.__dict__.values()]).all()
        assert np.isfinite(fitted.confidences(np.array(p, np.float32), one, reading="cautious")).all()
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
        (lambda: calibrate(np.full((2, 3), 0.5), np.ones((2, 3), np.int8), k=4), "k must be above 0 and at most 3"),
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

    pooled = confidences.reshape(-1)
    thresholds = [*expected_f1_thresholds(confidences), best_threshold(pooled)]
    for p, threshold in zip([*confidences.T, pooled], thresholds, strict=True):
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
