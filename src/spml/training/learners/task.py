"""What learners are trained with: the labelled rows, the labels that the annotator picked, and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, log_softmax
from torch import Tensor

from spml.calibration import Calibration, calibrate
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.training.device import choose_device
from spml.training.learners.copies import copy_groups
from spml.training.learners.design import Design, assign_folds

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Progress = Callable[[str], None]

FOLDS = 5
LARGE = 2**26  # rows × classes from which a table is too large to be copied in double precision
_CALIBRATION_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Task:
    """The labelled rows, their labels, and everything else that learners are trained with.

    Attributes
    ----------
    features : FeatureStore
    known : Labels
        What is known about all rows: given labels and answers.
    given : Labels
        The given labels of all rows.
    answers : Labels, optional
    rows : array of shape (n,)
        The rows to train on: those with a positive, without rows of weight 0.
    observed : Labels
        Of these rows: the labels that the annotator picked.
    targets : Tensor of shape (n, L)
        Shares of the observed classes, times the row's weight.
    first_class : array of shape (n,)
        The first observed class.
    groups : array of shape (n,)
        Rows with equal features have the same number, see `copy_groups`.
    weight : array of shape (n,), optional
    k : float, optional
        Average number of labels per row, if known.
    seed : int
    device : torch.device
    progress : callable
        Called with a short text at every stage.
    """

    features: FeatureStore
    known: Labels
    given: Labels
    answers: Labels | None
    rows: Int64
    observed: Labels
    targets: Tensor
    first_class: Int64
    groups: Int64
    weight: Float64 | None
    k: float | None
    seed: int
    device: torch.device
    progress: Progress

    def design(self) -> Design:
        """Return the rows as linear learners need them."""
        return Design(self.features, self.rows, self._folds(), self.device)

    def calibrated(self, evidence: npt.NDArray[Any], temperature: float = 0.0) -> Calibration:
        """Calibrate held-out evidence (n, L), normalised at a temperature, by the annotator's likelihood.

        The calibration itself fits a sample of the rows. Of a large table, only evenly spaced rows are copied for it.
        """
        rows, classes = evidence.shape
        most = max(_CALIBRATION_ROWS, LARGE // classes)
        sample = np.arange(rows) if rows <= most else np.linspace(0, rows - 1, most).astype(np.int64)
        table, known = evidence[sample].astype(np.float64), self.known.dense(self.rows[sample])
        if temperature > 0:
            table = log_softmax(temperature * table, axis=1)
        return calibrate(expit(table), known, k=self.k, at_least_one=not self.known.is_full, uncertainty=False)

    def _folds(self) -> Int64:
        return assign_folds(self.first_class, FOLDS, self.seed, self.groups)


def make_task(
    features: FeatureStore,
    labels: Labels,
    answers: Labels | None,
    sample_weight: npt.ArrayLike | None,
    k: float | None,
    seed: int,
    device: str | torch.device,
    progress: Progress | None,
) -> Task:
    """Check the arguments of `fit_features` and select the rows to train on."""
    if len(features) != len(labels):
        raise InputError(f"{len(features)} rows of features, but labels for {len(labels)} rows")
    features.check_finite()
    known = labels if answers is None else labels.updated(answers)
    rows = np.unique(known.positives()[0])
    if not len(rows):
        raise InputError("no row has a positive label: there is nothing to learn from")
    weight = None
    if sample_weight is not None:
        weights = np.asarray(sample_weight, np.float64)
        if weights.shape != (len(labels),) or not np.isfinite(weights).all() or (weights < 0).any():
            raise InputError(f"sample_weight must be {len(labels)} numbers of at least 0, one per row")
        rows = rows[weights[rows] > 0]
        if not len(rows):
            raise InputError("every row with a positive label has the weight 0: there is nothing to learn from")
        weight = weights[rows] * len(rows) / weights[rows].sum()
    observed = known.subset(rows) if answers is None else _observed(labels.subset(rows), known.subset(rows))
    targets = torch.from_numpy((observed.dense() > 0).astype(np.float32))
    first_class = targets.argmax(1).numpy()
    targets /= targets.sum(1, keepdim=True)
    if weight is not None:
        targets *= torch.from_numpy(weight).float()[:, None]
    return Task(
        features=features,
        known=known,
        given=labels,
        answers=answers,
        rows=rows,
        observed=observed,
        targets=targets,
        first_class=first_class,
        groups=copy_groups(features, rows),
        weight=weight,
        k=k,
        seed=seed,
        device=choose_device(str(device)),
        progress=progress or (lambda _: None),
    )


def _observed(given: Labels, known: Labels) -> Labels:
    """The given labels, corrected by the answers; in rows without a given positive, the answers."""
    table, answered = given.dense(), known.dense()
    table = np.where(table != 0, answered, table)
    without = ~(table > 0).any(axis=1)
    table[without] = answered[without]
    return Labels.from_matrix(table, given.classes)
