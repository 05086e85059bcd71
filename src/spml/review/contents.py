"""What a person sees of a row without an image: its text with marked words, or its most telling values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spml.data.stores.features import FeatureStore
from spml.data.stores.texts import TextStore
from spml.errors import InputError
from spml.models.feature_model import FeatureModel
from spml.models.text_encoders import TfidfEncoder
from spml.predict.evidence import marked_words
from spml.runs.folder import RunFolder

_LETTERS = 600  # of a text in the grid
_VALUES, _ALL_VALUES = 5, 40  # of a row: in the grid, and by itself


class Contents(Protocol):
    """Rows as the page shows them."""

    kind: str

    def of(self, rows: Sequence[int], label: int | None, *, whole: bool) -> list[Any]:
        """One content per row, with what speaks for a label; shortened unless `whole`."""
        ...


def contents_of(run: RunFolder) -> Contents | None:
    """The contents of a run's rows; None for images."""
    if isinstance(run.store, TextStore):
        return Texts(run, run.store)
    if isinstance(run.store, FeatureStore):
        return Values(run, run.store)
    return None


class Texts:
    """Texts in pieces: [[piece, share of what it adds to the label], …]."""

    kind = "text"

    def __init__(self, run: RunFolder, store: TextStore) -> None:
        self._store, self._encoder = store, run.encoder
        self._weights = _linear(run)

    def of(self, rows: Sequence[int], label: int | None, *, whole: bool) -> list[Any]:
        return [self._pieces(text, label, whole) for text in self._store.texts(rows)]

    def _pieces(self, text: str, label: int | None, whole: bool) -> list[Any]:
        shown = text if whole or len(text) <= _LETTERS else text[:_LETTERS].rstrip() + "…"
        if label is None or self._weights is None or not isinstance(self._encoder, TfidfEncoder):
            return [[shown, 0]]
        marked = marked_words(self._encoder, shown, self._weights[0][label])
        return [[piece, round(share, 2)] for piece, share in marked]


class Values:
    """The features that say most about a label: [[name, value, what it adds to the label's logit], …]."""

    kind = "values"

    def __init__(self, run: RunFolder, store: FeatureStore) -> None:
        self._store = store
        self._names = store.columns or [f"feature {place}" for place in range(store.dim)]
        self._linear = _linear(run)

    def of(self, rows: Sequence[int], label: int | None, *, whole: bool) -> list[Any]:
        block = self._store.block(np.asarray(rows, np.int64))
        table = block.toarray() if self._store.is_sparse else block.cpu().numpy()
        weight, mean = (None, None) if label is None or self._linear is None else self._linear
        return [
            self._strongest(row, None if weight is None else weight[label], mean, _ALL_VALUES if whole else _VALUES)
            for row in table.astype(np.float64)
        ]

    def _strongest(self, row: Any, weight: Any, mean: Any, number: int) -> list[Any]:
        if weight is None:
            first = np.flatnonzero(row)[:number] if self._store.is_sparse else np.arange(min(number, len(row)))
            return [[self._names[place], _rounded(row[place]), 0] for place in first]
        parts = weight * (row - mean)
        chosen = np.argsort(-np.abs(parts), kind="stable")[:number]
        return [[self._names[place], _rounded(row[place]), _rounded(parts[place])] for place in chosen]


def _linear(run: RunFolder) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """The weights (L, D) of the linear part of a run's model, and the mean row (D,); None without one."""
    try:
        network: Any = run.network()
    except InputError:  # a custom backbone, whose code is not in the run folder
        return None
    linear = network.linear_part() if isinstance(network, FeatureModel) else None
    if linear is None:
        return None
    learners = [*network.learners, *([network.correction] if network.correction is not None else [])]
    mean = next(learner.mean for learner in learners if hasattr(learner, "mean"))
    return (float(network.slope) * linear[0]).double().numpy(), mean.double().numpy()


def _rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.4g}")
