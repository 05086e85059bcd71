"""The split into training and validation rows."""

import numpy as np
import pytest

from spml.labels import split


@pytest.mark.parametrize(
    ("n_rows", "training", "validation"),
    [(5717, 4574, 1143), (82081, 65665, 16416), (150000, 120000, 30000), (5994, 4795, 1199)],
    ids=["voc", "coco", "nus", "cub"],
)
def test_split_sizes_equal_the_published_ones(n_rows: int, training: int, validation: int) -> None:
    train, val = split(n_rows)
    assert (len(train), len(val)) == (training, validation)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, val])), np.arange(n_rows))
    assert (np.diff(train) > 0).all()
    assert (np.diff(val) > 0).all()


def test_split_of_voc_equals_the_published_one(voc) -> None:
    train, val = split(5717)
    np.testing.assert_array_equal(train, voc["train"])
    np.testing.assert_array_equal(val, voc["val"])


def test_split_without_validation_and_with_other_seeds() -> None:
    train, val = split(10, validation_share=0)
    assert train.tolist() == list(range(10))
    assert val.tolist() == []
    assert split(100, seed=1)[1].tolist() != split(100, seed=2)[1].tolist()
