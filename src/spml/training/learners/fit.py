"""Train on features: choose and combine learners by the held-out likelihood of the observed labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from torch import Tensor

from spml.calibration import Calibration
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.entries import row_blocks
from spml.models.feature_model import FeatureModel, Learner, LinearLearner, centred, sum_linear_learners
from spml.training.learners.answers import Correction, fit_correction
from spml.training.learners.families import (
    Likelihoods,
    TrainedLearner,
    combine_families,
    double_unless_large,
    train_families,
    train_method,
)
from spml.training.learners.likelihood import held_out_likelihood
from spml.training.learners.task import Progress, Task, make_task

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidate:
    """A learner that was tried.

    Parameters
    ----------
    name : str
        For example "linear (softmax), strength 0.01".
    log_likelihood : float
        Mean log-likelihood per row of the observed labels of held-out rows.
    standard_error : float
        Of `log_likelihood`.
    chosen : bool
        Whether the model uses this learner.
    weight : float
        Its weight in the model.
    """

    name: str
    log_likelihood: float
    standard_error: float
    chosen: bool
    weight: float


@dataclass(frozen=True, eq=False)
class FeatureFit:
    """The result of `fit_features`.

    Parameters
    ----------
    model : FeatureModel
    held_out : array of shape (N, L)
        `model.presence` of the training rows, each row from models that were not trained on its label.
    candidates : tuple of Candidate
        Every learner that was tried.
    log_likelihood : float
        Mean log-likelihood per row of the observed labels under the held-out predictions.
    evidence : array of shape (N, L)
        What `held_out` was computed from; σ(evidence) is the input of `calibration`.
    calibration : Calibration
        `calibration.confidences(expit(evidence), known)` is P(label present | features, known labels).
    answers : str
        What was learned from answers; empty if there are none.
    evidence_in : callable, optional
        Returns the evidence (N, L) in other features of the same rows, by the models that `held_out` comes from. What
        was learned from answers is left out. None if forests are used.
    """

    model: FeatureModel
    held_out: Float32
    candidates: tuple[Candidate, ...]
    log_likelihood: float
    evidence: Float32
    calibration: Calibration
    answers: str = ""
    evidence_in: Callable[[FeatureStore], Float64] | None = None

    @property
    def independent(self) -> Float32:
        """p of `model` for the training rows, each row from models that were not trained on its label, (N, L)."""
        table = np.empty_like(self.evidence)
        for rows in row_blocks(*table.shape):
            logits = self.calibration.slope * self.evidence[rows].astype(np.float64) + self.calibration.offsets
            table[rows] = expit(logits)
        return table

    @property
    def summary(self) -> str:
        """One line about what was chosen."""
        chosen = [candidate for candidate in self.candidates if candidate.chosen]
        answers = f"; {self.answers}" if self.answers else ""
        answers += "; the strongest region of an image counts as much as the whole" if self.model.num_regions else ""
        if len(chosen) == 1:
            return f"Chosen by the likelihood of held-out labels: {chosen[0].name}{answers}"
        parts = ", ".join(f"{candidate.name} (weight {candidate.weight:.2f})" for candidate in chosen)
        return f"Combined by the likelihood of held-out labels: {parts}{answers}"


def fit_features(
    features: FeatureStore,
    labels: Labels,
    *,
    answers: Labels | None = None,
    method: str = "auto",
    settings: Mapping[str, Any] | None = None,
    base: str = "auto",
    k: float | None = None,
    normalise: bool = True,
    sample_weight: npt.ArrayLike | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> FeatureFit:
    """Train a multi-label classifier on features from observed labels.

    Nothing has to be tuned: the strength of regularisation, and the weights of linear learner and trees, maximise the
    likelihood of the observed labels of held-out rows. Probabilities are calibrated by the annotator's likelihood.

    Parameters
    ----------
    features : FeatureStore
        Dense or sparse.
    labels : Labels
        Observed labels. Rows without a positive are not used.
    answers : Labels, optional
        Labels that people verified: +1 yes, −1 no, 0 not asked. They take precedence over `labels`. People are asked
        about labels in doubt, so "auto" and "softmax" learn answers separately (`spml.training.learners.answers`).
        Other methods treat them as known labels.
    method : str
        "auto", or any method that can be trained on features. Other methods train one linear learner: to convergence
        if their loss is a function of logits and labels, otherwise with Adam.
    settings : mapping, optional
        Settings of the method.
    base : {"auto", "linear", "trees"}
        Learners that "auto" may use.
    k : float, optional
        Average number of labels per row, if known.
    normalise : bool
        Whether "auto" and "softmax" may normalise the evidence over the classes. Then no linear head is equivalent.
    sample_weight : array of shape (N,), optional
        Weight of every row.
    seed : int
    device : str or torch.device
    progress : callable, optional
        Called with a short text at every stage.

    Returns
    -------
    FeatureFit

    Raises
    ------
    InputError
        If inputs do not fit together, or no row has a positive label.

    Examples
    --------
    >>> draw = np.random.default_rng(0)
    >>> rows, label = draw.normal(size=(60, 4)), np.arange(60) % 3
    >>> rows[np.arange(60), label] += 3
    >>> fit = fit_features(FeatureStore(rows), Labels.from_indices(label, ["cat", "dog", "bird"]), base="linear")
    >>> fit.model.presence(rows).shape, fit.held_out.shape
    ((60, 3), (60, 3))
    """
    task = make_task(features, labels, answers, sample_weight, k, seed, device, progress)
    if method == "auto" and not task.known.is_full:
        likelihoods, linear, forests = train_families(task, base)
        evidence, used = combine_families(task, linear, forests)
        return _finish(task, likelihoods, evidence, used, compares_classes=True, normalise=normalise)
    if base not in ("auto", "linear"):
        raise InputError(f"base={base!r} is only used by method 'auto': {method!r} trains a linear learner")
    name = "bce" if method == "auto" else method
    likelihoods, trained, compares_classes = train_method(task, name, settings or {})
    scores = double_unless_large(trained.scores)
    evidence = centred(scores) if compares_classes else scores
    normalise = normalise and compares_classes
    used = [(trained, 1.0)]
    return _finish(task, likelihoods, evidence, used, compares_classes=compares_classes, normalise=normalise)


def _finish(
    task: Task,
    likelihoods: Likelihoods,
    evidence: Tensor,
    used: Sequence[tuple[TrainedLearner, float]],
    *,
    compares_classes: bool,
    normalise: bool,
) -> FeatureFit:
    """Calibrate the evidence, train the learners that are used on all rows, and learn the answers.

    `evidence` is overwritten.
    """
    task.progress("final model")
    calibration, temperature = task.calibrated(evidence.numpy()), 0.0
    if normalise:
        calibration, temperature = _normalised(task, evidence, calibration)
    if temperature > 0:
        used = [(trained, temperature * weight) for trained, weight in used]
        for rows in row_blocks(*evidence.shape):
            evidence[rows] = torch.log_softmax(temperature * evidence[rows], -1)
    final = [(trained.final(), weight) for trained, weight in used]

    def model_of(
        parts: Sequence[tuple[Learner, float]], calibration: Calibration, correction: LinearLearner | None = None
    ) -> FeatureModel:
        learners = sum_linear_learners(parts)
        return FeatureModel(
            [learner for learner, _ in learners],
            [weight for _, weight in learners],
            slope=calibration.slope,
            offsets=calibration.offsets,
            dim=task.features.dim,
            centred=compares_classes,
            normalised=temperature > 0,
            at_least_one=calibration.at_least_one,
            correction=correction,
        )

    model_of_parts = partial(model_of, calibration=calibration)
    before_answers = model_of_parts(final)
    all_evidence = _all_rows(task, before_answers, evidence.numpy())
    model, message = before_answers, ""
    if task.answers is not None and compares_classes:
        task.progress("answers")
        correction, message = _learn_answers(task, all_evidence, calibration)
        if correction is not None:
            learner = _scaled(correction.learner, 1 / calibration.slope)
            all_evidence = all_evidence + (correction.held_out / calibration.slope).astype(np.float32)
            calibration = task.calibrated(all_evidence[task.rows])
            model = model_of(final, calibration, learner)

    def evidence_in(features: FeatureStore) -> Float64:
        return _cross_fitted(task, used, before_answers, model_of_parts, features)

    return FeatureFit(
        model=model,
        held_out=_held_out_presence(model, all_evidence),
        candidates=_compared(likelihoods, used),
        log_likelihood=calibration.log_likelihood,
        evidence=all_evidence,
        calibration=calibration,
        answers=message,
        evidence_in=evidence_in if all(trained.folds is not None for trained, _ in used) else None,
    )


def _compared(likelihoods: Likelihoods, used: Sequence[tuple[TrainedLearner, float]]) -> tuple[Candidate, ...]:
    """All learners that were tried, with the weights of those that are used."""
    weight_of = {trained.name: weight for trained, weight in used}
    return tuple(
        Candidate(
            name, likelihood.log_likelihood, likelihood.standard_error, name in weight_of, weight_of.get(name, 0.0)
        )
        for name, likelihood in likelihoods
    )


def _held_out_presence(model: FeatureModel, evidence: Float32) -> Float32:
    """The presence that follows from held-out evidence."""
    presence = np.empty_like(evidence)
    for rows in row_blocks(*evidence.shape):
        presence[rows] = model.presence_of(torch.from_numpy(evidence[rows]).double()).numpy()
    return presence


def _cross_fitted(
    task: Task,
    used: Sequence[tuple[TrainedLearner, float]],
    model_of_all_rows: FeatureModel,
    model_of_parts: Callable[[Sequence[tuple[Learner, float]]], FeatureModel],
    features: FeatureStore,
) -> Float64:
    """Evidence of all rows: of those with a label from the model without their fold, of others from that of all rows.

    `model_of_parts` makes a model of learners and their weights.
    """
    folds = [(trained.folds(), weight) for trained, weight in used if trained.folds is not None]
    fold = np.full(len(task.known), -1)
    fold[task.rows] = folds[0][0].fold  # all learners of a fit have the same folds
    out = np.empty(task.known.shape)
    for number in np.unique(fold):
        rows = np.flatnonzero(fold == number)
        without = [(part.learners[number], weight) for part, weight in folds]
        model = model_of_all_rows if number < 0 else model_of_parts(without)
        out[rows] = model.evidence(_StoreRows(features, rows))
    return out


def _learn_answers(task: Task, evidence: Float32, calibration: Calibration) -> tuple[Correction | None, str]:
    """The correction by the answers, with Δ of all rows, and a description for the user."""
    assert task.answers is not None
    # An answer about a given label says nothing about labels of other rows, which nobody picked.
    asked = np.where(task.given.dense() == 0, task.answers.dense(), 0)
    rows = np.union1d(task.rows, np.flatnonzero(asked.any(axis=1)))
    logits = calibration.slope * evidence[rows].astype(np.float64) + calibration.offsets
    correction = fit_correction(task.features, rows, logits, asked[rows], seed=task.seed, device=task.device)
    number = int(np.count_nonzero(asked))
    if correction is None:
        return None, f"{number:,} answers calibrate it"
    held_out = np.zeros(evidence.shape)
    held_out[rows] = correction.held_out
    rest = np.setdiff1d(np.arange(len(evidence)), rows)
    if len(rest):
        held_out[rest] = _scores(correction.learner, task.features, rest)
    return replace(correction, held_out=held_out), f"{number:,} answers correct it, strength {correction.strength:.2g}"


def _scores(learner: LinearLearner, features: FeatureStore, rows: Int64) -> Float64:
    """A linear learner's scores of some rows."""
    classes = len(learner.bias)
    model = FeatureModel([learner], [1.0], slope=1.0, offsets=np.zeros(classes), dim=features.dim, centred=False)
    return model.evidence(_StoreRows(features, rows))


def _scaled(learner: LinearLearner, scale: float) -> LinearLearner:
    return LinearLearner(scale * learner.weight, scale * learner.bias, learner.mean, learner.deviation)


def _normalised(task: Task, evidence: Tensor, calibration: Calibration) -> tuple[Calibration, float]:
    """The calibration of the normalised evidence and its temperature, if it makes the labels more likely; else 0.

    A class may have the same evidence in a row with strong competitors and in a row without. Normalisation tells these
    rows apart. It changes whether labels are present, but not which of them is picked, so that only the calibration can
    choose it.
    """
    temperature = held_out_likelihood(evidence, task.targets).temperature
    if temperature > 0:
        normalised = task.calibrated(evidence.numpy(), temperature)
        if normalised.log_likelihood > calibration.log_likelihood:
            return normalised, temperature
    return calibration, 0.0


def _all_rows(task: Task, model: FeatureModel, evidence: npt.NDArray[Any]) -> Float32:
    """Evidence of all rows: held-out for those with a label; the model was not trained on the others."""
    if len(task.rows) == len(task.known):
        return np.asarray(evidence, np.float32)
    out = np.empty(task.known.shape, np.float32)
    out[task.rows] = evidence
    rest = np.setdiff1d(np.arange(len(task.known)), task.rows)
    out[rest] = model.evidence(_StoreRows(task.features, rest))
    return out


class _StoreRows:
    """Some rows of a feature store, as a `FeatureSource`."""

    def __init__(self, store: FeatureStore, rows: Int64) -> None:
        self._store, self._rows, self.dim = store, rows, store.dim

    def __len__(self) -> int:
        return len(self._rows)

    def block(self, rows: Int64) -> Any:
        return self._store.block(self._rows[rows])
