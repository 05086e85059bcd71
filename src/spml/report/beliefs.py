"""What a run believes of its rows, beside what was given and, where it is known, what is true."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from spml import metrics
from spml.runs.folder import RunFolder

Bool = npt.NDArray[np.bool_]
Int8 = npt.NDArray[np.int8]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


class Recovered(Protocol):
    """What `spml.recover.recover` returns, as far as the report looks at it."""

    @property
    def notes(self) -> tuple[str, ...]: ...
    def confidence(self, rows: Any) -> Float32: ...
    def present(self, rows: Any) -> Bool: ...


def believed(run: RunFolder, recovered: Recovered | None) -> tuple[Float32, Bool]:
    """For every row and label, how sure the run is of it and whether it counts as present, both (N, L).

    Without recovered labels: the probability, and present from one half on.
    """
    if recovered is None:
        return run.probabilities, (run.probabilities >= 0.5) | (run.labels.dense() > 0)
    rows = np.arange(len(run.names))
    return recovered.confidence(rows), recovered.present(rows)


@dataclass(frozen=True)
class Recovery:
    """Counts of recovered labels. Of those whose truth is known, `judged`, so many are `right`."""

    count: int
    judged: int
    right: int
    missing: int
    """Labels that are truly there and were not given, as far as the truth is known."""

    @property
    def precision(self) -> float:
        return self.right / self.judged if self.judged else float("nan")

    @property
    def found(self) -> float:
        return self.right / self.missing if self.missing else float("nan")


class Beliefs:
    """The tables of one run, all (N, L), that its pictures are made of.

    Labels are recovered for the rows that came with one: those of train and validation.
    """

    def __init__(self, run: RunFolder, recovered: Recovered | None = None) -> None:
        self.run = run
        self.notes = () if recovered is None else recovered.notes
        self.confidence, self.present = believed(run, recovered)
        self.observed: Int8 = run.labels.dense()
        self.truth: Int8 = np.zeros_like(self.observed) if run.truth is None else run.truth.dense()
        self.rows: Int64 = np.sort(np.concatenate([run.train, run.validation]))
        inside = np.zeros((len(self.observed), 1), bool)
        inside[self.rows] = True
        self.unknown: Bool = (self.observed == 0) & inside
        """Not given, and therefore to be recovered or not."""
        self.recovered: Bool = self.unknown & self.present

    @cached_property
    def wrong(self) -> Bool:
        return self.recovered & (self.truth < 0)

    @cached_property
    def right(self) -> Bool:
        return self.recovered & (self.truth > 0)

    @cached_property
    def missed(self) -> Bool:
        """Truly there, not given and not recovered."""
        return self.unknown & ~self.present & (self.truth > 0)

    @property
    def judged(self) -> bool:
        """Whether the truth of any label that was not given is known."""
        return bool((self.unknown & (self.truth != 0)).any())

    @cached_property
    def recovery(self) -> Recovery:
        right, wrong, missed = (int(table.sum()) for table in (self.right, self.wrong, self.missed))
        return Recovery(int(self.recovered.sum()), right + wrong, right, right + missed)

    @cached_property
    def precisions(self) -> metrics.PseudoLabelPrecision:
        """Shares of right labels among those called present, and among those called absent."""
        known = self.unknown & (self.truth != 0)
        pseudo = np.where(known, np.where(self.present, 1, -1), 0)[self.rows]
        return metrics.pseudo_label_precision(pseudo, self.truth[self.rows])

    @cached_property
    def test_precision(self) -> Float64 | None:
        """Average precision of each label on the test rows, (L,); None where no truth of theirs is known."""
        known = self.truth[self.run.test] != 0
        if not known.any():
            return None
        scores, truth = self.run.probabilities[self.run.test], self.truth[self.run.test] > 0
        return metrics.average_precision(scores, truth, mask=known).numpy()

    @property
    def test_map(self) -> float:
        return float("nan") if self.test_precision is None else mean(self.test_precision)

    @cached_property
    def test_f1(self) -> float:
        """Micro F1 on the test rows of the labels believed present."""
        known = self.truth[self.run.test] != 0
        if not known.any():
            return float("nan")
        decided = self.present[self.run.test].astype(np.float32)
        return metrics.f1(decided, self.truth[self.run.test] > 0, 0.5, mask=known)

    @cached_property
    def separation(self) -> Float64 | None:
        """Wasserstein distance of each label (L,) between predictions for labels that are there and are not, of the
        training rows, among those not given; None where the truth is not fully known."""
        rows = self.run.train
        if not len(rows) or (self.truth[rows] == 0).any():
            return None
        scores, truth = self.run.probabilities[rows], self.truth[rows] > 0
        return metrics.wasserstein_distance_per_class(scores, truth, self.observed[rows]).numpy()

    def histograms(self, bins: int = 20) -> Iterator[tuple[str, Float64]]:
        """Shares of the probabilities in equal bins, for labels not given that are there and that are not; one
        histogram of counts, of all of them, where the truth is not known."""
        rows = self.rows
        known = self.unknown & (self.truth != 0)
        if known[rows].any():
            observed = np.where(known, 0, 1)[rows]
            for name, sign in (("present", 1), ("absent", -1)):
                truth = (self.truth * sign > 0)[rows]
                shares = metrics.unobserved_positive_histogram(self.run.probabilities[rows], truth, observed, bins)
                yield name, shares.numpy()
        else:
            scores = torch.from_numpy(self.run.probabilities[self.unknown].astype(np.float64))
            yield "all", torch.histc(scores, bins, 0, 1).numpy()


def mean(values: Float64) -> float:
    """The mean of what there is."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else float("nan")


def saw_more(run: RunFolder) -> bool:
    """Whether the run learned from other labels than those given: a reference on the truth, not a method to use."""
    return bool(run.labels.subset(run.train).fingerprint() != run.record["data"]["labels"])
