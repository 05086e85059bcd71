"""Distributions of predictions, compared with SciPy and NumPy."""

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from spml.errors import InputError
from spml.metrics import (
    unobserved_positive_histogram,
    wasserstein_distance_per_class,
)
from support.metric_tables import assert_close


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
