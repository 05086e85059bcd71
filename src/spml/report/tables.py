"""The numbers behind a report: predictions of a run, observed labels and, where it is known, the truth."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from spml import metrics
from spml.calibration import Bool, Float32, Float64, Int8, Int64
from spml.methods import METHODS
from spml.models.feature_model import FeatureModel
from spml.recover import Recovered
from spml.runs.folder import RunFolder


def confidence_and_presence(run: RunFolder, recovered: Recovered | None) -> tuple[Float32, Bool]:
    """Confidence and presence of every label in every row, both (N, L).

    Without recovered labels, the confidence is the probability, and a label is present above the method's F1 threshold.
    """
    if recovered is None:
        known = METHODS.get(run.method)
        threshold = 0.5 if known is None else known.f1_threshold
        return run.probabilities, (run.probabilities > threshold) | (run.labels.dense() > 0)
    rows = np.arange(len(run.names))
    return recovered.confidence(rows), recovered.present(rows)


@dataclass(frozen=True)
class RecoveryCounts:
    """Counts of recovered labels; `right` of the `checked` ones, whose truth is known, are correct."""

    count: int
    checked: int
    right: int
    missing: int
    """Labels that are present but were not observed, as far as the truth is known."""

    @property
    def precision(self) -> float:
        return self.right / self.checked if self.checked else float("nan")

    @property
    def found(self) -> float:
        return self.right / self.missing if self.missing else float("nan")


class RunTables:
    """The tables of one run, all of shape (N, L). Labels are recovered for the training and validation rows."""

    def __init__(self, run: RunFolder, recovered: Recovered | None = None) -> None:
        self.run = run
        self.notes = () if recovered is None else recovered.notes
        self.confidence, self.present = confidence_and_presence(run, recovered)
        self.observed: Int8 = run.labels.dense()
        self.truth: Int8 = np.zeros_like(self.observed) if run.truth is None else run.truth.dense()
        self.rows: Int64 = np.sort(np.concatenate([run.train, run.validation]))
        inside = np.zeros((len(self.observed), 1), bool)
        inside[self.rows] = True
        self.unknown: Bool = (self.observed == 0) & inside
        """Not observed: candidates for recovery."""
        self.recovered: Bool = self.unknown & self.present

    @cached_property
    def wrong(self) -> Bool:
        return self.recovered & (self.truth < 0)

    @cached_property
    def right(self) -> Bool:
        return self.recovered & (self.truth > 0)

    @cached_property
    def missed(self) -> Bool:
        """Present, but neither observed nor recovered."""
        return self.unknown & ~self.present & (self.truth > 0)

    @cached_property
    def has_truth(self) -> bool:
        """Whether the truth of any unobserved label is known."""
        return bool((self.unknown & (self.truth != 0)).any())

    @cached_property
    def recovery(self) -> RecoveryCounts:
        right, wrong, missed = (int(table.sum()) for table in (self.right, self.wrong, self.missed))
        return RecoveryCounts(int(self.recovered.sum()), right + wrong, right, right + missed)

    @cached_property
    def precisions(self) -> metrics.PseudoLabelPrecision:
        """Fraction of correct labels among those predicted present, and among those predicted absent."""
        known = self.unknown & (self.truth != 0)
        pseudo = np.where(known, np.where(self.present, 1, -1), 0)[self.rows]
        return metrics.pseudo_label_precision(pseudo, self.truth[self.rows])

    @cached_property
    def test_precision(self) -> Float64 | None:
        """Average precision per class (L,) on the test rows; None if no truth is known for them."""
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
        """Micro F1 of the labels predicted present, on the test rows."""
        known = self.truth[self.run.test] != 0
        if not known.any():
            return float("nan")
        decided = self.present[self.run.test].astype(np.float32)
        return metrics.f1(decided, self.truth[self.run.test] > 0, 0.5, mask=known)

    @cached_property
    def separation(self) -> Float64 | None:
        """Wasserstein distance per class (L,) between the predictions for present and for absent labels, over the
        unobserved labels of the training rows; None unless the full truth is known."""
        rows = self.run.train
        if not len(rows) or (self.truth[rows] == 0).any():
            return None
        scores, truth = self.run.probabilities[rows], self.truth[rows] > 0
        return metrics.wasserstein_distance_per_class(scores, truth, self.observed[rows]).numpy()

    @cached_property
    def linear_weights(self) -> Float64 | None:
        """(L, D) what each feature adds to the score of a label in the linear part of the model; None without one."""
        network = self.run.network()
        linear = network.linear_part() if isinstance(network, FeatureModel) else None
        return None if linear is None else np.asarray(linear[0].numpy(), np.float64)

    def histograms(self, bins: int = 20) -> Iterator[tuple[str, Float64]]:
        """Histograms of the confidences of unobserved labels, as shares, for present and for absent labels; if the
        truth is unknown, one histogram of counts over all of them."""
        rows, confidence = self.rows, np.nan_to_num(self.confidence)
        if self.has_truth:
            observed = np.where(self.unknown & (self.truth != 0), 0, 1)[rows]
            for name, sign in (("present", 1), ("absent", -1)):
                truth = (self.truth * sign > 0)[rows]
                shares = metrics.unobserved_positive_histogram(confidence[rows], truth, observed, bins)
                yield name, shares.numpy()
        else:
            scores = torch.from_numpy(confidence[self.unknown].astype(np.float64))
            yield "labels", torch.histc(scores, bins, 0, 1).numpy()


def mean(values: Float64) -> float:
    """Return the mean of the values that are not NaN."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def trained_on_more_labels(run: RunFolder) -> bool:
    """Return whether the run was trained on labels other than the observed ones: a reference, not a usable method."""
    return bool(run.labels.subset(run.train).fingerprint() != run.record["data"]["labels"])
