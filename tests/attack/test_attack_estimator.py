"""Misuse of the scikit-learn estimator: a `ValueError` with one sentence, and nothing read as other numbers."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from spml import InputError, SinglePositiveClassifier
from support.attacks import features_of, labels_of

X, Y = features_of(), np.array(labels_of())
MATRIX = (Y[:, None] == np.unique(Y)).astype(int)

FEATURES: dict[str, Any] = {
    "masked": np.ma.masked_array(X, mask=X > 1),
    "dates": np.abs(X * 1e6).astype("M8[s]"),
    "durations": np.abs(X * 1e6).astype("m8[s]"),
    "a column of dates": pd.DataFrame({"a": X[:, 0], "b": pd.date_range("2020", periods=len(X))}),
    "no values": torch.zeros(X.shape, device="meta"),
    "a sparse tensor": torch.from_numpy(X).to_sparse(),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    with pytest.raises(InputError, match=r"masked|dates|tensor"):
        SinglePositiveClassifier().fit(FEATURES[name], Y)


TARGETS: dict[str, Any] = {
    "lists and missing ones": [None] * 12 + [["cat"]] * 12,
    "sets": [None] * 12 + [{"cat"}] * 12,
    "bytes": [name.encode() for name in Y],
    "bytes and missing ones": [None] * 12 + [b"cat"] * 12,
    "masked": np.ma.masked_array(MATRIX, mask=MATRIX > 0),
    "masked names": np.ma.masked_array(Y, mask=Y == "cat"),
    "no values": torch.zeros(MATRIX.shape, device="meta"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets(name: str) -> None:
    with pytest.raises(InputError, match=r"masked|bytes|tensor"):
        SinglePositiveClassifier().fit(X, TARGETS[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("k", value) for value in ("2", "", [], {}, True, b"2", 1j)),
        *(("method", value) for value in (None, [], {}, 3)),
        *(("settings", value) for value in (0, -1, "", [], [("a", 1)], np.ones(2))),
        *(("threshold", value) for value in (np.array([0.1, 0.2]), None, True, 1j, [])),
    ],
)
def test_parameters(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must be"):
        SinglePositiveClassifier(**{name: value}).fit(X, Y)
