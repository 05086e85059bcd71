"""Data with known probabilities, to test calibration and recovery."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from spml.labels import Labels
from spml.runs.folder import RunFolder

CLASSES = ("cat", 'a "big" dog', "Straße, nass", "<b>&amp;", "鳥", "line\nbreak")


class World:
    """Rows whose labels are drawn from known probabilities, given that there is one; one of them is observed.

    The network's logits are the true ones, shifted by class and shrunk.
    """

    def __init__(self, rows: int, *, classes: int = len(CLASSES), level: float = -2.0, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.offsets = rng.normal(0, 0.5, classes)
        self.slope = 2.0
        logits = level + 3.0 * rng.normal(size=(4 * rows, classes)) + self.offsets
        present = rng.random(logits.shape) < expit(logits)
        some = np.flatnonzero(present.any(axis=1))[:rows]
        assert len(some) == rows
        self.truth = present[some]
        self.p = expit(logits[some])
        self.probabilities = expit((logits[some] - self.offsets) / self.slope).astype(np.float32)
        self.single = np.where(self.truth, rng.random(self.truth.shape), -1).argmax(axis=1)
        self.known = np.zeros(self.truth.shape, np.int8)
        self.known[np.arange(rows), self.single] = 1

    @property
    def signed(self) -> np.ndarray:
        return np.where(self.truth, 1, -1).astype(np.int8)

    def run(self, name: str = "a run", **changes: Any) -> RunFolder:
        rows = len(self.truth)
        train, validation, test = np.split(np.arange(rows), [rows // 2, 4 * rows // 5])
        known = self.known.copy()
        known[test] = 0
        fields: dict[str, Any] = {
            "folder": Path("runs") / name,
            "record": {"method": {"name": "em"}, "k": None},
            "best": {},
            "log": [],
            "names": [f'photos/ü {row}, "{row}".jpg' for row in range(rows)],
            "labels": Labels.from_matrix(known, CLASSES),
            "truth": Labels.from_matrix(self.signed, CLASSES),
            "probabilities": self.probabilities,
            "train": train,
            "validation": validation,
            "test": test,
            "source": {},
        }
        return RunFolder(**(fields | changes))
