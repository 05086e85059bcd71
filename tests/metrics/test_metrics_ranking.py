"""Average precision, and precision and recall at k, compared with scikit-learn and manual counts."""

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

from spml.errors import InputError
from spml.metrics import (
    average_precision,
    mean_average_precision,
    mean_over_classes,
    precision_at,
    recall_at,
)
from spml.metrics.inputs import scores_and_truth
from spml.metrics.ranking import _by_counting, _by_cumulating
from support.metric_tables import assert_close, by_sklearn, random_tables

FEW_EXAMPLES = settings(max_examples=60, deadline=None)
Route = Callable[..., np.ndarray[Any, Any]]


@pytest.fixture(params=["counting", "cumulating"])
def route(request: pytest.FixtureRequest) -> Route:
    """Both implementations of average precision on the CPU: the one for CPUs and the one for GPUs."""
    implementation = {"counting": _by_counting, "cumulating": _by_cumulating}[request.param]

    def run(scores: Any, targets: Any, mask: Any = None) -> np.ndarray[Any, Any]:
        return implementation(*scores_and_truth(scores, targets, mask)).numpy()

    return run


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
