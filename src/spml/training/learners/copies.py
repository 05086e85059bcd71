"""Rows with equal features, such as a text that occurs twice.

A model that was trained on a copy of a row knows the row's label, or believes that it does. Predictions for such a row
would look better than they are, and the label that the copy has would look like the only one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from spml.data.stores.features import FeatureStore

Int64 = npt.NDArray[np.int64]

_BLOCK = 2**24  # features that are read at a time


def copy_groups(features: FeatureStore, rows: Int64) -> Int64:
    """Find the rows with equal features.

    If fewer than half of the rows are different, the features take few values, so that equal rows need not be copies of
    each other. Then every row is a group of its own.

    Parameters
    ----------
    features : FeatureStore
    rows : array of shape (n,)
        Row numbers.

    Returns
    -------
    array of shape (n,)
        The group of every row: the position in `rows` of the first row with the same features.

    Examples
    --------
    >>> store = FeatureStore(np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0], [5.0, 5.0]]))
    >>> copy_groups(store, np.arange(4))
    array([0, 1, 0, 3])
    """
    digests = np.fromiter(_digests(features, rows), np.uint64, len(rows))
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    return first[group] if 2 * len(first) >= len(rows) else np.arange(len(rows))


def _digests(features: FeatureStore, rows: Int64) -> Iterator[int]:
    """Digests of 64 bits of the features of each row."""
    size = max(1, _BLOCK // features.dim)
    for start in range(0, len(rows), size):
        block = features.block(rows[start : start + size])
        if features.is_sparse:
            columns, values = block.indices, block.data
            for low, high in zip(block.indptr[:-1], block.indptr[1:], strict=True):
                yield _digest(columns[low:high], values[low:high])
        else:
            for row in block.cpu().numpy() + 0.0:  # −0 becomes 0
                yield _digest(row)


def _digest(*arrays: npt.NDArray[np.generic]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest(), "little")
