"""Metrics compared with scikit-learn, SciPy and manual counts; ties, empty classes and bad input."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import wasserstein_distance
from sklearn.metrics import average_precision_score, f1_score

from spml.errors import InputError
from spml.metrics import (
    average_precision,
    f1,
    mean_average_precision,
    mean_over_classes,
    precision_at,
    predictive_values,
    pseudo_label_precision,
    recall_at,
    unobserved_positive_histogram,
    wasserstein_distance_per_class,
)
from spml.metrics.inputs import scores_and_truth
from spml.metrics.ranking import _by_counting, _by_cumulating

FEW_EXAMPLES = settings(max_examples=60, deadline=None)
Route = Callable[..., np.ndarray[Any, Any]]


@pytest.fixture(params=["counting", "cumulating"])
def route(request: pytest.FixtureRequest) -> Route:
    """Both implementations of average precision on the CPU: the one for CPUs and the one for GPUs."""
    implementation = {"counting": _by_counting, "cumulating": _by_cumulating}[request.param]

    def run(scores: Any, targets: Any, mask: Any = None) -> np.ndarray[Any, Any]:
        return implementation(*scores_and_truth(scores, targets, mask)).numpy()

    return run


def by_sklearn(scores: np.ndarray, targets: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    kept = np.ones(targets.shape, bool) if mask is None else mask
    columns = [(scores[k, c], targets[k, c] > 0) for c, k in enumerate(kept.T)]
    return np.array([average_precision_score(y, s) if y.any() else np.nan for s, y in columns])


def random_tables(rows: int, classes: int, seed: int = 0, share: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, classes)), (rng.random((rows, classes)) < share).astype(np.int8)


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=1e-12)


# Average precision


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("levels", [None, 200, 7])
def test_average_precision_equals_sklearn(route: Route, dtype: type, levels: int | None) -> None:
    scores, targets = random_tables(997, 13)
    scores = scores.astype(dtype) if levels is None else (np.round(scores * levels / 6) / levels).astype(dtype)
    assert_close(route(scores, targets), by_sklearn(scores, targets))


def test_float64_scores_that_are_equal_in_float32(route: Route) -> None:
    scores = 1.0 + np.array([[1e-9], [2e-9], [3e-9], [4e-9]])
    assert len(np.unique(scores.astype(np.float32))) == 1
    assert_close(route(scores, [[1], [0], [1], [0]]), [0.5])


def test_bfloat16_scores_are_compared_in_their_precision(route: Route) -> None:
    scores, targets = random_tables(500, 5)
    coarse = torch.tensor(scores).bfloat16()
    assert_close(route(coarse, targets), by_sklearn(coarse.double().numpy(), targets))


@pytest.mark.parametrize(
    ("scores", "targets", "expected"),
    [
        ([0.5, 0.5, 0.5, 0.5], [1, 0, 0, 0], 0.25),  # constant: the share of positives
        ([0.5, 0.5, 0.1, 0.1], [0, 1, 1, 0], 0.5),
        ([0.9, 0.8, 0.7], [1, 0, 1], (1 + 2 / 3) / 2),
        ([-np.inf, np.inf, -np.inf, 0.0], [1, 1, 0, 0], (1 + 2 / 4) / 2),
        ([0.0, -0.0, 1.0], [1, 0, 0], 1 / 3),  # 0.0 and -0.0 are equal scores
        ([0.3], [1], 1.0),
        ([0.3], [0], np.nan),
    ],
)
def test_average_precision_by_hand(route: Route, scores: list, targets: list, expected: float) -> None:
    assert_close(route(np.array([scores]).T, np.array([targets]).T), [expected])


def test_only_classes_without_positives_are_nan(route: Route) -> None:
    scores, targets = random_tables(50, 4)
    targets[:, 2] = 0
    found = route(scores, targets)
    assert np.isnan(found).tolist() == [False, False, True, False]
    assert_close(found, by_sklearn(scores, targets))


def test_entries_outside_the_mask_do_not_count(route: Route) -> None:
    scores, targets = random_tables(300, 6)
    scores = np.round(scores, 1)
    mask = np.random.default_rng(1).random(scores.shape) < 0.5
    mask[:, 3] = False
    scores[~mask] = np.random.default_rng(2).choice([np.nan, np.inf, -np.inf, 0.0], size=(~mask).sum())
    targets[~mask] = 9
    found = route(scores, targets, mask)
    assert_close(found, by_sklearn(scores, targets, mask))
    assert np.isnan(found[3])


def test_result_does_not_depend_on_the_memory_budget() -> None:
    scores, targets = random_tables(100, 9)
    mask = random_tables(100, 9, seed=1)[0] > 0
    whole = average_precision(scores, targets, mask=mask)
    assert_close(whole, by_sklearn(scores, targets, mask))
    for memory in (1, 100 * 20, 100 * 50):  # blocks of one, two and five classes
        assert average_precision(scores, targets, mask=mask, memory=memory).equal(whole)


def test_any_array_type_is_accepted_and_not_modified() -> None:
    scores, targets = random_tables(200, 5)
    expected = by_sklearn(scores, targets)
    frozen = scores.copy()
    frozen.flags.writeable = False
    for given_scores in (
        torch.tensor(scores, requires_grad=True),
        np.asfortranarray(scores),
        torch.tensor(scores).T.contiguous().T,
        frozen,
        scores[::-1].copy()[::-1],
        scores.tolist(),
    ):
        assert_close(average_precision(given_scores, targets), expected)
        after = given_scores.detach() if isinstance(given_scores, torch.Tensor) else given_scores
        np.testing.assert_array_equal(np.asarray(after), scores)
    for given_targets in (
        targets.astype(bool),
        targets * 2 - 1,
        targets.astype(np.float32),
        targets.astype(np.uint8),
        targets.astype(np.uint32),
        torch.tensor(targets),
    ):
        assert_close(average_precision(scores, given_targets), expected)


def test_integer_scores() -> None:
    targets = random_tables(80, 3)[1]
    scores = np.random.default_rng(0).integers(-5, 5, size=targets.shape)
    assert_close(average_precision(scores, targets), by_sklearn(scores, targets))


def test_result_is_one_float64_per_class() -> None:
    scores, targets = random_tables(20, 3)
    found = average_precision(torch.tensor(scores).half(), targets)
    assert found.shape == (3,)
    assert found.dtype == torch.float64


tables = st.tuples(st.integers(1, 30), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.int64, shape, elements=st.integers(-4, 4)).map(lambda a: a / 4),
        hnp.arrays(np.bool_, shape),
        st.permutations(range(shape[1])),
        st.permutations(range(shape[0])),
    )
)


@FEW_EXAMPLES
@given(tables)
def test_average_precision_invariants(case: tuple[np.ndarray, np.ndarray, list[int], list[int]]) -> None:
    scores, targets, classes, rows = case
    for compute in (_by_counting, _by_cumulating):

        def ap(s: np.ndarray, y: np.ndarray, compute: Callable[..., torch.Tensor] = compute) -> np.ndarray:
            return compute(*scores_and_truth(s, y)).numpy()

        found = ap(scores, targets)
        assert_close(found, by_sklearn(scores, targets))
        np.testing.assert_array_equal(np.isnan(found), ~targets.any(0))
        defined = found[targets.any(0)]
        assert ((defined > 0) & (defined <= 1)).all()
        np.testing.assert_array_equal(ap(scores[:, classes], targets[:, classes]), found[classes])
        assert_close(ap(scores[rows], targets[rows]), found)
        assert_close(ap(np.exp(3 * scores) - 7, targets), found)  # a strictly increasing transform
        assert_close(ap(np.repeat(scores, 3, 0), np.repeat(targets, 3, 0)), found)  # each row repeated
        perfect = ap(targets + 0.5, targets)
        assert_close(perfect[targets.any(0)], 1.0)


def test_mean_average_precision_skips_or_zeroes_empty_classes() -> None:
    scores, targets = random_tables(60, 4)
    targets[:, 1] = 0
    each = by_sklearn(scores, targets)
    assert mean_average_precision(scores, targets) == pytest.approx(np.nansum(each) / 3, abs=1e-12)
    assert mean_average_precision(scores, targets, empty="zero") == pytest.approx(np.nansum(each) / 4, abs=1e-12)
    assert np.isnan(mean_average_precision(scores, np.zeros_like(targets)))
    assert mean_average_precision(scores, np.zeros_like(targets), empty="zero") == 0.0
    with pytest.raises(InputError, match="empty must be 'skip' or 'zero', not 'drop'"):
        mean_over_classes(torch.tensor([0.5]), "drop")  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_average_precision_on_a_gpu(dtype: torch.dtype) -> None:
    scores, targets = random_tables(3001, 17)
    given_scores = torch.tensor(np.round(scores, 2)).to("cuda", dtype)
    expected = by_sklearn(given_scores.double().cpu().numpy(), targets)
    for memory in (1, 3001 * 48 * 5, 2**26):
        found = average_precision(given_scores, torch.tensor(targets).cuda(), memory=memory)
        assert found.device == given_scores.device
        assert_close(found.cpu(), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_gpu_is_not_synchronised_after_the_checks() -> None:
    scores, targets = random_tables(3001, 17)
    ready = scores_and_truth(torch.tensor(scores).cuda(), torch.tensor(targets).cuda())
    torch.cuda.set_sync_debug_mode("error")
    try:
        _by_cumulating(*ready)
    finally:
        torch.cuda.set_sync_debug_mode("default")


MEMORY_PROBE = """
import re, torch
from spml.metrics import average_precision
def resident(which):
    with open("/proc/self/status") as status:
        return int(re.search(which + r":\\s+(\\d+) kB", status.read()).group(1)) * 1024
average_precision(torch.rand(10, 2), torch.ones(10, 2, dtype=torch.int8))
before = resident("VmRSS")
scores, targets = torch.rand(200_000, 100), torch.zeros(200_000, 100, dtype=torch.int8)
targets[::30] = 1
average_precision(scores, targets)
print((resident("VmHWM") - before) / (scores.nbytes + targets.nbytes))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak memory from /proc")
def test_peak_memory_is_below_twice_the_inputs() -> None:
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 1 < float(done.stdout) < 2


# Precision and recall at k


def test_precision_and_recall_at_k_by_hand() -> None:
    scores = [[0.9, 0.8, 0.1, 0.0], [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]
    targets = [[1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert precision_at(scores, targets, 1) == pytest.approx(2 / 3)
    assert precision_at(scores, targets, 3) == pytest.approx((2 / 3 + 1 / 3 + 0) / 3)
    assert recall_at(scores, targets, 1) == pytest.approx((1 / 2 + 1) / 2)
    assert recall_at(scores, targets, 3) == pytest.approx(1.0)
    assert np.isnan(recall_at(scores, np.zeros((3, 4)), 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_lower_class_comes_first_among_equal_scores(dtype: torch.dtype) -> None:
    classes = 300
    scores = torch.zeros(classes, classes, dtype=dtype)
    for k in (1, 7, classes):  # the only positive of row i is class i, found exactly if i < k
        assert recall_at(scores, torch.eye(classes, dtype=torch.int8), k) == pytest.approx(k / classes)
        assert precision_at(scores, torch.eye(classes, dtype=torch.int8), k) == pytest.approx(1 / classes)


@pytest.mark.parametrize("k", [0, 4])
def test_k_out_of_range_raises(k: int) -> None:
    with pytest.raises(InputError, match=f"k is {k}; with 3 classes it must be between 1 and 3"):
        precision_at(np.zeros((2, 3)), np.zeros((2, 3)), k)


# Decisions


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("thresholds", [0.5, 0.75, np.linspace(-0.5, 0.9, 6)])
def test_f1_equals_sklearn(average: Any, thresholds: Any) -> None:
    scores, targets = random_tables(400, 6, seed=3)
    targets[:, 0] = 0
    scores[:, 0] = -9  # neither a positive nor a prediction
    scores[:, 1] = -9  # positives, no prediction
    targets[:, 2] = 0  # predictions, no positive
    expected = f1_score(targets, scores > thresholds, average=average, zero_division=0)
    assert f1(scores, targets, thresholds, average) == pytest.approx(expected, abs=1e-12)


def test_f1_of_empty_classes() -> None:
    scores, targets = [[0.9, 0.1], [0.1, 0.1]], [[1, 0], [0, 0]]
    assert f1(scores, targets, average="macro") == 0.5
    assert f1(scores, targets, average="macro", empty="skip") == 1.0
    assert f1([[0.1]], [[0]]) == 0.0


def test_score_equal_to_the_threshold_is_not_predicted() -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        scores = torch.tensor([[0.9, 0.3]], dtype=dtype)  # neither is a binary fraction
        for thresholds in ([0.9, 0.3], torch.tensor([0.9, 0.3], dtype=torch.float64)):
            assert f1(scores, [[1, 1]], thresholds) == 0.0
        assert f1(scores, [[1, 0]], 0.9) == 0.0


def test_f1_counts_only_entries_inside_the_mask() -> None:
    scores, targets = random_tables(100, 3)
    mask = np.random.default_rng(5).random(scores.shape) < 0.5
    expected = f1_score(targets[mask], scores[mask] > 0.5)
    assert f1(scores, targets, mask=mask) == pytest.approx(expected, abs=1e-12)


def test_f1_raises_on_invalid_thresholds_and_averages() -> None:
    scores, targets = random_tables(5, 3)
    with pytest.raises(InputError, match=r"thresholds have shape \(2,\); pass one number, or one for .* 3 classes"):
        f1(scores, targets, [0.1, 0.2])
    with pytest.raises(InputError, match="threshold is NaN"):
        f1(scores, targets, float("nan"))
    with pytest.raises(InputError, match="average must be 'micro' or 'macro', not 'samples'"):
        f1(scores, targets, average="samples")  # type: ignore[arg-type]


def test_predictive_values_by_hand() -> None:
    scores = np.array([[0.95, 0.2], [0.92, 0.3], [0.10, 0.1], [0.90, 0.4]])
    targets = np.array([[1, 0], [-1, 1], [-1, -1], [1, -1]]) > 0
    # Class 0 at 0.9: TP 1, FP 1, TN 1, FN 1 (0.90 is not greater). Class 1: no predictions, TN 3, FN 1.
    ppv, npv = predictive_values(scores, targets, 0.9)
    assert ppv == pytest.approx(1 / 2)
    assert npv == pytest.approx((1 / 2 + 3 / 4) / 2)
    assert predictive_values(scores, targets, 0.9, empty="zero").ppv == pytest.approx(1 / 4)
    everything = predictive_values(scores, targets, 0.0)
    assert everything.ppv == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert np.isnan(everything.npv)


def test_pseudo_label_precision_by_hand() -> None:
    pseudo = np.array([[1, 1, 0, -1], [-1, -1, -1, 0]], dtype=np.int8)
    truth = np.array([[1, -1, 1, -1], [-1, 1, -1, -1]], dtype=np.int8)
    for coded in (truth, truth > 0, (truth > 0).astype(np.float32)):
        found = pseudo_label_precision(pseudo, coded)
        assert found.positive == pytest.approx(1 / 2)
        assert found.negative == pytest.approx(3 / 4)
    only_negative = pseudo_label_precision(np.minimum(pseudo, 0), truth)
    assert np.isnan(only_negative.positive)
    assert only_negative.negative == pytest.approx(3 / 4)
    unknown_where_unassigned = truth * (pseudo != 0)
    assert pseudo_label_precision(pseudo, unknown_where_unassigned) == found


def test_pseudo_label_precision_raises_on_other_codings() -> None:
    truth = np.array([[1, 0, 1]])
    with pytest.raises(InputError, match=r"pseudo-labels contain 0\.3 in row 0, column 2 .*use \+1 for positive"):
        pseudo_label_precision(np.array([[1, 0, 0.3]]), truth)
    with pytest.raises(InputError, match=r"pseudo-labels have dtype torch\.bool; use"):
        pseudo_label_precision(truth > 0, truth)
    with pytest.raises(InputError, match=r"truth contain both -1 and 0, the first 0 in row 0, column 1 "):
        pseudo_label_precision(np.array([[1, 1, 1]]), np.array([[1, 0, -1]]))


# Distributions


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [2, 15])
def test_wasserstein_distance_equals_scipy(dtype: type, decimals: int) -> None:
    rng = np.random.default_rng(0)
    scores = np.round(rng.random((500, 7)), decimals).astype(dtype)
    truth = np.where(rng.random((500, 7)) < 0.3, 1, -1).astype(np.int8)
    observed = np.where((truth == 1) & (rng.random((500, 7)) < 0.5), 1, 0).astype(np.int8)
    observed[(truth == -1) & (rng.random((500, 7)) < 0.1)] = -1
    observed[:, 2] = truth[:, 2] == 1  # no unobserved positive
    truth[:, 3], observed[:, 3] = 1, 0  # no negative at all
    scores[observed != 0] = 50.0  # observed entries must not count
    unobserved = observed == 0
    for memory in (1, 2**26):
        found = wasserstein_distance_per_class(scores, truth, observed, memory=memory)
        assert found.isnan().nonzero().flatten().tolist() == [2, 3]
        for c in (0, 1, 4, 5, 6):
            s, y = scores[unobserved[:, c], c].astype(float), truth[unobserved[:, c], c]
            assert_close(found[c], wasserstein_distance(s[y == 1], s[y == -1]))


def test_wasserstein_distance_of_two_points_and_of_one_point() -> None:
    nothing = np.zeros((2, 1), np.int8)
    assert_close(wasserstein_distance_per_class([[0.9], [0.2]], [[1], [0]], nothing), [0.7])
    assert wasserstein_distance_per_class([[0.9]], [[1]], nothing[:1]).isnan().all()


def test_wasserstein_distance_raises_on_infinite_scores() -> None:
    with pytest.raises(InputError, match="scores are infinite in row 1, column 0"):
        wasserstein_distance_per_class([[0.9], [np.inf]], [[1], [0]], np.zeros((2, 1)))


@pytest.mark.parametrize("bins", [1, 3, 10, 20])
def test_histogram_of_unobserved_positives_equals_numpy(bins: int) -> None:
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.random((300, 4)), rng.integers(0, bins + 1, (100, 4)) / bins])
    truth = rng.random(scores.shape) < 0.4
    observed = (truth & (rng.random(scores.shape) < 0.5)).astype(np.int8)
    expected = np.histogram(scores[truth & (observed == 0)], np.arange(bins + 1) / bins)[0]
    found = unobserved_positive_histogram(scores, truth, observed, bins=bins)
    assert_close(found, expected / expected.sum())
    assert unobserved_positive_histogram(scores, truth, truth, bins=bins).tolist() == [0.0] * bins


def test_histogram_raises_on_logits_and_on_zero_bins() -> None:
    zeros = np.zeros((1, 2))
    with pytest.raises(InputError, match=r"scores contain 2\.5 in row 0, column 1 .*between 0 and 1"):
        unobserved_positive_histogram([[0.5, 2.5]], zeros, zeros)
    with pytest.raises(InputError, match="bins must be a whole number of at least 1, not 0"):
        unobserved_positive_histogram(zeros, zeros, zeros, bins=0)


# Bad input

METRICS: dict[str, Callable[[Any, Any], Any]] = {
    "average_precision": average_precision,
    "mean_average_precision": mean_average_precision,
    "f1": f1,
    "precision_at": lambda s, y: precision_at(s, y, 1),
    "recall_at": lambda s, y: recall_at(s, y, 1),
    "predictive_values": lambda s, y: predictive_values(s, y, 0.5),
    "wasserstein": lambda s, y: wasserstein_distance_per_class(s, y, np.zeros((4, 3))),
    "histogram": lambda s, y: unobserved_positive_histogram(s, y, np.zeros((4, 3))),
}


@pytest.fixture(params=METRICS)
def metric(request: pytest.FixtureRequest) -> Callable[[Any, Any], Any]:
    return METRICS[request.param]


def test_error_names_row_and_column_of_nan(metric: Callable[[Any, Any], Any]) -> None:
    scores, targets = np.full((4, 3), 0.5), np.ones((4, 3))
    scores[2, 1] = scores[3, 0] = np.nan
    with pytest.raises(InputError, match=r"scores contain NaN, first in row 2, column 1 \(counted from 0\)"):
        metric(scores, targets)


def test_error_names_wrong_shapes(metric: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(InputError, match=r"must have the same shape, not \(4, 3\) and \(4, 2\)"):
        metric(np.zeros((4, 3)), np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"scores must be a table of \(rows, classes\).*not \(4,\)"):
        metric(np.zeros(4), np.zeros(4))
    with pytest.raises(InputError, match=r"at least one of each, not \(0, 3\)"):
        metric(np.zeros((0, 3)), np.zeros((0, 3)))


def test_error_names_different_devices(metric: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(InputError, match="must be on the same device, not cpu and meta"):
        metric(torch.zeros(4, 3), torch.zeros(4, 3, device="meta"))


@pytest.mark.parametrize("value", [2, -2, 0.5, np.nan])
def test_error_names_invalid_targets(metric: Callable[[Any, Any], Any], value: float) -> None:
    targets = np.ones((4, 3))
    targets[1, 2] = value
    with pytest.raises(InputError, match=rf"contain {value:g} in row 1, column 2 .*use 1 and 0, or \+1 and -1"):
        metric(np.full((4, 3), 0.5), targets)


def test_unknown_targets_raise(metric: Callable[[Any, Any], Any]) -> None:
    targets = np.full((4, 3), -1, np.int8)
    targets[3, 1] = 0
    with pytest.raises(InputError, match=r"both -1 and 0, the first 0 in row 3, column 1 .*by a mask"):
        metric(np.full((4, 3), 0.5), targets)


def test_mask_excludes_unknown_labels_and_must_have_the_same_shape() -> None:
    scores, labels = random_tables(40, 3)
    labels = labels * 2 - 1
    labels[::3] = 0
    assert_close(average_precision(scores, labels, mask=labels != 0), by_sklearn(scores, labels, labels != 0))
    with pytest.raises(InputError, match=r"scores and mask must have the same shape, not \(40, 3\) and \(40, 2\)"):
        average_precision(scores, labels, mask=np.ones((40, 2)))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.ones((1, 1), bool), r"scores must be real numbers, not torch\.bool"),
        (np.ones((1, 1), complex), r"scores must be real numbers, not torch\.complex128"),
        (np.array([["a"]]), "scores must contain numbers, not <U1"),
    ],
)
def test_scores_that_are_not_numbers_raise(scores: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        average_precision(scores, [[1]])
