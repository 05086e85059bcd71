"""Which labels of the training rows a run may learn from: those of the data, or a simulated draw of them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.data.dataset import Dataset
from spml.errors import InputError
from spml.labels import Labels, drop_labels, simulate
from spml.type_checks import check_rules, check_types

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelDraw:
    """How the labels of the training rows are drawn from the full labels.

    The default is the draw that comes with the data. Any other draw needs the full labels of the official training
    set, which is train and validation together: the draw precedes the split, as in Cole et al. 2021.

    Parameters
    ----------
    rows : float
        Share of the training rows to use (Cole et al., Figure 1). A smaller share is a subset of a larger one.
    positives : int
        Observed positives per row.
    negatives : int
        Known negatives per row; 1 is "IU" of Cole et al., Table 1.
    drop : float, optional
        Instead of single labels: keep all labels but drop this share per row (Zhou et al., Figure 5c).
    by : {"uniform", "class", "size"}
        Which of a row's labels is observed: any, by the class's frequency, or by the size of its largest box.
    strength : float
        The power of that frequency or size. 0 is uniform, a negative value prefers rare classes and small objects.
    seed : int

    Examples
    --------
    >>> from spml.data import open_data
    >>> rows, labels = LabelDraw(rows=0.5).select(open_data("scenes", train=20, test=10))
    >>> len(rows), labels.is_single_positive
    (8, True)
    """

    rows: float = 1.0
    positives: int = 1
    negatives: int = 0
    drop: float | None = None
    by: str = "uniform"
    strength: float = 1.0
    seed: int = 1200

    def __post_init__(self) -> None:
        check_types(self)
        check_rules(
            self,
            ("by", self.by in ("uniform", "class", "size"), "be uniform, class or size"),
            ("rows", 0 < self.rows <= 1, "be a share above 0 and up to 1"),
            ("positives", 1 <= self.positives < 2**31, "be at least 1 label per row"),
            ("negatives", 0 <= self.negatives < 2**31, "be 0 or more labels per row"),
            ("drop", self.drop is None or 0 <= self.drop < 1, "be a share of at least 0 and below 1"),
            ("seed", 0 <= self.seed < 2**32, "be a whole number from 0 to 2^32 - 1"),
            ("strength", math.isfinite(self.strength), "be a finite number"),
            prefix="draw.",
        )
        if self.by == "uniform" and self.strength != 1:
            raise InputError("draw.strength has no effect on a uniform draw: set draw.by to class or size")

    @property
    def from_data(self) -> bool:
        """Whether the labels are those that come with the data."""
        return (self.positives, self.negatives, self.drop, self.by, self.seed) == (1, 0, None, "uniform", 1200)

    @property
    def single(self) -> bool:
        """Whether a row has one observed positive and nothing else."""
        return self.positives <= 1 and self.negatives == 0 and self.drop is None

    def select(self, dataset: Dataset, need: str = "positives") -> tuple[Int64, Labels]:
        """Return the training rows to use, and the labels that a method may learn from.

        Parameters
        ----------
        dataset : Dataset
        need : {"positives", "negatives", "full"}
            What the method needs (`Needs.labels`). "full" gives the full labels. "negatives" gives the drawn
            negatives; if none are drawn, all true negatives in addition to the observed positive.

        Returns
        -------
        rows : array of int64
        labels : Labels
            Of these rows, in this order.

        Raises
        ------
        InputError
            If full labels are needed and not known.
        """
        rows = self._rows(dataset)
        if need == "full":
            return rows, dataset.full_labels(rows)
        labels = dataset.labels.subset(rows) if self.from_data else self._simulated(dataset, rows)
        if need == "negatives" and not self.negatives and self.drop is None:
            truth = dataset.full_labels(rows).dense()
            signed = np.where(truth < 0, truth, labels.dense())
            labels = Labels.from_matrix(signed, dataset.classes, ids=dataset.names[rows].tolist(), coding="signed")
        return rows, labels

    def count(self, dataset: Dataset) -> int:
        """Return the number of training rows to use."""
        return max(1, round(self.rows * len(dataset.train)))

    def _rows(self, dataset: Dataset) -> Int64:
        if self.rows == 1:
            return dataset.train
        order = np.random.RandomState(self.seed).permutation(len(dataset.train))
        return np.sort(dataset.train[order[: self.count(dataset)]])

    def _simulated(self, dataset: Dataset, rows: Int64) -> Labels:
        official = np.sort(np.concatenate([dataset.train, dataset.validation]))
        if not dataset.fully_labelled[official].all():
            official = dataset.train  # validation rows may not belong to the official training set
        truth = dataset.full_labels(official)
        if self.drop is not None:
            labels = drop_labels(truth, self.drop, seed=self.seed)
        else:
            biases = self._biases(dataset, truth.dense() > 0, official)
            labels = simulate(truth, self.positives, self.negatives, seed=self.seed, **biases)
        return labels.subset(np.searchsorted(official, rows))

    def _biases(self, dataset: Dataset, present: npt.NDArray[np.bool_], rows: Int64) -> dict[str, Any]:
        if self.by == "class":
            frequency = np.maximum(present.mean(0), 1 / len(rows))
            return {"class_preference": _powers(frequency, self.strength)}
        if self.by == "size":
            shares = None if dataset.truth is None else dataset.truth.largest_share()
            if shares is None:
                raise InputError(f"{dataset.name}: no box sizes are recorded, so draw.by cannot be size")
            share = np.maximum(shares[rows], 1e-6)
            return {"entry_weights": _powers(np.where(present, share, 0.0), self.strength)}
        return {}


def _powers(values: npt.NDArray[Any], strength: float) -> npt.NDArray[np.float64]:
    """values^strength, and 0 where the value is 0, up to a constant factor per row, which leaves the odds unchanged."""
    logs = np.where(values > 0, strength * np.log(np.where(values > 0, values, 1.0)), -np.inf)
    largest = logs.max(-1, keepdims=True)
    powers: npt.NDArray[np.float64] = np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))
    return powers
