"""Split a training set into training and validation rows."""

from __future__ import annotations

import numpy as np

from spml.errors import InputError
from spml.labels.entries import Int64
from spml.labels.inputs import check_seed


def split(n_rows: int, *, validation_share: float = 0.2, seed: int = 1200) -> tuple[Int64, Int64]:
    """Split rows into training and validation as Cole et al. (2021) do.

    Parameters
    ----------
    n_rows : int
    validation_share : float
        At least 0 and below 1. The last round(validation_share · n_rows) rows of
        `RandomState(seed).permutation(n_rows)` become validation rows.
    seed : int

    Returns
    -------
    training, validation : arrays of int64
        Row numbers, ascending.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> training, validation = split(10)
    >>> len(training), len(validation)
    (8, 2)
    """
    if n_rows < 0:
        raise InputError(f"n_rows is {n_rows}: it cannot be negative.")
    if not 0 <= validation_share < 1:
        raise InputError(f"validation_share is {validation_share}: it must be at least 0 and below 1.")
    permutation = np.random.RandomState(check_seed(seed)).permutation(n_rows)
    first_validation = n_rows - round(validation_share * n_rows)
    return np.sort(permutation[:first_validation]), np.sort(permutation[first_validation:])
