"""Label tables for tests."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spml.labels import Labels

ANIMALS = ("ant", "bee", "cat", "dog")
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7)
SIGNED = hnp.arrays(np.int8, SHAPES, elements=st.integers(-1, 1))
no_deadline = settings(deadline=None, max_examples=60)  # a busy machine is slow


def full_table(num_rows: int, num_classes: int, *, mean: float = 2.0, seed: int = 0) -> Labels:
    """Random fully known labels with about `mean` positives per row."""
    truth = np.random.default_rng(seed).random((num_rows, num_classes)) < mean / num_classes
    return Labels.from_matrix(truth, coding="full")
