"""Random scores and targets, and average precision by scikit-learn."""

from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score


def by_sklearn(scores: np.ndarray, targets: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    kept = np.ones(targets.shape, bool) if mask is None else mask
    columns = [(scores[k, c], targets[k, c] > 0) for c, k in enumerate(kept.T)]
    return np.array([average_precision_score(y, s) if y.any() else np.nan for s, y in columns])


def random_tables(rows: int, classes: int, seed: int = 0, share: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, classes)), (rng.random((rows, classes)) < share).astype(np.int8)


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=1e-12)
