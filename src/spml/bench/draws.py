"""What of the training rows' labels a run is shown: the data's own single positives, or a draw of the study's."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.data.formats.pack import Pack
from spml.errors import InputError
from spml.labels import Labels, drop_labels, simulate
from spml.type_checks import check_types

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Draw:
    """How the labels of the training rows are drawn from the truth. The default is the draw that comes with the data.

    A draw other than that needs the full labels of the official training set, which is train and validation
    together: the draw goes over all its rows, before the split, as Cole et al. do it.
    """

    rows: float = 1.0
    """Share of the training rows that take part (Cole et al., Figure 1); a smaller share is part of a larger one."""
    positives: int = 1
    negatives: int = 0
    """Known negatives a row: 1 is the IU of Cole et al., Table 1."""
    drop: float | None = None
    """Instead of single labels: all labels, of which this share of every row is dropped (Zhou et al., Figure 5c)."""
    by: str = "uniform"
    """Which of a row's labels is named: uniform, class (by the class's frequency), size (by its largest box)."""
    strength: float = 1.0
    """The power of that frequency or size; 0 is uniform, below 0 prefers the rare and the small."""
    seed: int = 1200

    def __post_init__(self) -> None:
        check_types(self)
        if self.by not in ("uniform", "class", "size"):
            raise InputError(f"draw.by must be uniform, class or size, not {self.by!r}")
        if not 0 < self.rows <= 1:
            raise InputError(f"draw.rows is a share over 0 and up to 1, not {self.rows}")
        for name in ("positives", "negatives"):
            if getattr(self, name) < 0:
                raise InputError(f"draw.{name} is a number of labels, 0 or more, not {getattr(self, name)}")
        if self.drop is not None and not 0 <= self.drop < 1:
            raise InputError(f"draw.drop is a share from 0 and below 1, not {self.drop}")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"draw.seed is a whole number from 0 to 2^32 - 1, not {self.seed}")
        if not math.isfinite(self.strength):
            raise InputError(f"draw.strength is a finite number, not {self.strength}")
        if self.by == "uniform" and self.strength != 1:
            raise InputError("draw.strength is the power of what draw.by names: give draw.by, class or size")

    @property
    def own(self) -> bool:
        """Whether the labels are those that came with the data."""
        return (self.positives, self.negatives, self.drop, self.by, self.seed) == (1, 0, None, "uniform", 1200)

    @property
    def single(self) -> bool:
        """Whether a row shows one positive and nothing else."""
        return self.positives <= 1 and self.negatives == 0 and self.drop is None

    def shown(self, pack: Pack, need: str = "positives") -> tuple[Int64, Labels]:
        """The training rows that take part, and what a method that needs such labels sees of them.

        `need` is `Needs.labels`: a reference that needs full labels sees the truth; one that needs negatives sees
        those drawn, or where none is drawn all true ones beside the observed positive.
        """
        rows = self._rows(pack)
        if need == "full":
            return rows, pack.full_labels(rows)
        if self.own and need == "positives":
            return rows, Labels.from_indices(pack.observed[rows], pack.classes, ids=pack.ids[rows].tolist())
        drawn = self._drawn(pack, rows)
        if need == "negatives" and not self.negatives and self.drop is None:
            truth = pack.full_labels(rows).dense()
            signed = np.where(truth < 0, truth, drawn.dense())
            drawn = Labels.from_matrix(signed, pack.classes, ids=pack.ids[rows].tolist(), coding="signed")
        return rows, drawn

    def _rows(self, pack: Pack) -> Int64:
        if self.rows == 1:
            return pack.train
        order = np.random.RandomState(self.seed).permutation(len(pack.train))
        return np.sort(pack.train[order[: max(1, round(self.rows * len(pack.train)))]])

    def _drawn(self, pack: Pack, rows: Int64) -> Labels:
        if self.own:
            return Labels.from_indices(pack.observed[rows], pack.classes, ids=pack.ids[rows].tolist())
        official = np.sort(np.concatenate([pack.train, pack.val]))
        if not pack.known[official].all():
            official = pack.train  # where validation rows are no part of the official training set
        truth = pack.full_labels(official)
        if self.drop is not None:
            labels = drop_labels(truth, self.drop, seed=self.seed)
        else:
            biases = self._biases(pack, official)
            labels = simulate(truth, self.positives, self.negatives, seed=self.seed, **biases)
        return labels.subset(np.searchsorted(official, rows))

    def _biases(self, pack: Pack, rows: Int64) -> dict[str, Any]:
        if self.by == "class":
            frequency = np.maximum((pack.truth[rows] > 0).mean(0), 1 / len(rows))
            return {"class_preference": _powers(frequency, self.strength)}
        if self.by == "size":
            if pack.largest_share is None:
                raise InputError(f"{pack.directory}: no box sizes are recorded, so labels cannot be drawn by size")
            share = np.maximum(pack.largest_share[rows], 1e-6)
            return {"entry_weights": _powers(np.where(pack.truth[rows] > 0, share, 0.0), self.strength)}
        return {}


def _powers(values: npt.NDArray[Any], strength: float) -> npt.NDArray[np.float64]:
    """values^strength, and 0 where there is none, up to a factor a row that the odds in a row do not see."""
    logs = np.where(values > 0, strength * np.log(np.where(values > 0, values, 1.0)), -np.inf)
    largest = logs.max(-1, keepdims=True)
    powers: npt.NDArray[np.float64] = np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))
    return powers
