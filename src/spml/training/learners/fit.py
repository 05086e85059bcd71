"""Train on features: choose and combine learners by the held-out likelihood of the observed labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
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
from spml.labels.entries import row_blocks
from spml.methods import method as registered_method
from spml.models.feature_model import FeatureModel, Learner, LinearLearner, centred, merged
from spml.training.device import choose_device
from spml.training.learners.adam import fit_with_adam
from spml.training.learners.answers import Correction, fit_correction
from spml.training.learners.design import Design, assign_folds
from spml.training.learners.discriminant import fit_discriminant
from spml.training.learners.likelihood import HeldOut, choose_shares, fit_temperature
from spml.training.learners.linear import RowLoss, SoftmaxLoss, fit_linear, is_feasible, refit
from spml.training.learners.method_loss import MethodLoss, is_pure, prepared
from spml.training.learners.trees import fit_forest, forest_kinds, promising

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Progress = Callable[[str], None]

FOLDS = 5
_ANNOTATOR = "annotator-em"
_MOST_PRODUCTS = 2**29  # rows × classes × columns up to which two losses are used
_LARGE = 2**26  # rows × classes
_CALIBRATION_ROWS = 1000


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
    """

    model: FeatureModel
    held_out: Float32
    candidates: tuple[Candidate, ...]
    log_likelihood: float
    evidence: Float32
    calibration: Calibration
    answers: str = ""

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
        chosen = [each for each in self.candidates if each.chosen]
        answers = f"; {self.answers}" if self.answers else ""
        if len(chosen) == 1:
            return f"Chosen by the likelihood of held-out labels: {chosen[0].name}{answers}"
        parts = ", ".join(f"{each.name} (weight {each.weight:.2f})" for each in chosen)
        return f"Combined by the likelihood of held-out labels: {parts}{answers}"


@dataclass(frozen=True, eq=False)
class Trained:
    """A learner with the scores (n, L) that it gives to held-out rows."""

    name: str
    learner: Callable[[], Learner]  # trained on all rows when it is needed
    scores: Tensor
    held_out: HeldOut


@dataclass(frozen=True, eq=False)
class Task:
    """The labelled rows, their labels, and everything else that learners are trained with."""

    features: FeatureStore
    labels: Labels  # what is known: given labels and answers
    given: Labels
    answers: Labels | None
    rows: Int64  # with a positive
    observed: Labels  # of these rows: the labels that the annotator picked
    targets: Tensor  # (n, L) shares of the observed classes, times the row's weight
    label: Int64  # (n,) the first observed class
    weight: Float64 | None
    k: float | None
    seed: int
    device: torch.device
    progress: Progress

    def design(self) -> Design:
        """The rows as linear learners need them."""
        return Design(self.features, self.rows, assign_folds(self.label, FOLDS, self.seed), self.device)


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
    task = _task(features, labels, answers, sample_weight, k, seed, device, progress)
    if method == "auto" and not task.labels.is_full:
        candidates, families = _auto(task, base)
        evidence, used = _combined(task, families)
        return _finish(task, candidates, evidence, used, compares_classes=True, normalise=normalise)
    if base not in ("auto", "linear"):
        raise InputError(f"base={base!r} is only used by method 'auto': {method!r} trains a linear learner")
    name = "bce" if method == "auto" else method
    candidates, trained, compares_classes = _method(task, name, settings or {})
    scores = _precise(trained.scores)
    evidence = centred(scores) if compares_classes else scores
    normalise = normalise and compares_classes
    used = [(trained, 1.0)]
    return _finish(task, candidates, evidence, used, compares_classes=compares_classes, normalise=normalise)


def _task(
    features: FeatureStore,
    labels: Labels,
    answers: Labels | None,
    sample_weight: npt.ArrayLike | None,
    k: float | None,
    seed: int,
    device: str | torch.device,
    progress: Progress | None,
) -> Task:
    if len(features) != len(labels):
        raise InputError(f"{len(features)} rows of features, but labels for {len(labels)} rows")
    features.check_finite()
    known = labels if answers is None else labels.updated(answers)
    rows = np.unique(known.positives()[0])
    if not len(rows):
        raise InputError("no row has a positive label: there is nothing to learn from")
    weight = None
    if sample_weight is not None:
        given = np.asarray(sample_weight, np.float64)
        if given.shape != (len(labels),) or not np.isfinite(given).all() or (given < 0).any():
            raise InputError(f"sample_weight must be {len(labels)} numbers of at least 0, one per row")
        rows = rows[given[rows] > 0]
        if not len(rows):
            raise InputError("every row with a positive label has the weight 0: there is nothing to learn from")
        weight = given[rows] * len(rows) / given[rows].sum()
    observed = known.subset(rows) if answers is None else _observed(labels.subset(rows), known.subset(rows))
    targets = torch.from_numpy((observed.dense() > 0).astype(np.float32))
    label = targets.argmax(1).numpy()
    targets /= targets.sum(1, keepdim=True)
    if weight is not None:
        targets *= torch.from_numpy(weight).float()[:, None]
    where = choose_device(str(device))
    told = progress or (lambda _: None)
    return Task(features, known, labels, answers, rows, observed, targets, label, weight, k, seed, where, told)


def _observed(given: Labels, known: Labels) -> Labels:
    """The given labels, corrected by the answers; in rows without a given positive, the answers."""
    table, answered = given.dense(), known.dense()
    table = np.where(table != 0, answered, table)
    without = ~(table > 0).any(axis=1)
    table[without] = answered[without]
    return Labels.from_matrix(table, given.classes)


Candidates = list[tuple[str, HeldOut]]
Family = list[Trained]  # learners that are averaged with equal shares


def _auto(task: Task, base: str) -> tuple[Candidates, list[Family]]:
    """Linear learners and forests, or what `base` names."""
    if base not in ("auto", "linear", "trees"):
        raise InputError(f"base must be 'auto', 'linear' or 'trees', not {base!r}")
    candidates: Candidates = []
    families: list[Family] = []
    if base != "trees":
        candidates, linear = _linear_family(task)
        families.append(linear)
    if base != "linear":
        forests = _forests(task, families, forced=base == "trees")
        candidates += [(each.name, each.held_out) for each in forests]
        families += [[each] for each in forests]
    return candidates, families


def _linear_family(task: Task) -> tuple[Candidates, Family]:
    """Linear learners with two losses that read the rest of a row differently.

    Softmax reads every row as having one label, and is best where that is nearly true. The annotator's likelihood, kept
    uncertain by an entropy term, allows several labels; it is left out if the data are large. For very many classes,
    discriminant analysis takes the place of both.
    """
    design, targets = task.design(), task.targets
    if not is_feasible(design, targets.shape[1]):
        return _discriminant(task, design)
    losses: dict[str, RowLoss] = {"softmax": SoftmaxLoss(targets.to(design.device))}
    if task.weight is None and targets.numel() * design.columns <= _MOST_PRODUCTS:
        method = prepared(registered_method(_ANNOTATOR), task.observed, task.k, task.seed)
        losses[_ANNOTATOR] = MethodLoss(method, task.observed, design.device)
    candidates: Candidates = []
    family: Family = []
    for name, loss in losses.items():
        tried, best = _linear(task, design, loss, name)
        candidates += tried
        family.append(best)
    return candidates, family


def _linear(task: Task, design: Design, loss: RowLoss, name: str) -> tuple[Candidates, Trained]:
    """The candidates of the path of strengths, and the best of them."""
    task.progress(f"linear learner, {name}")
    fits, best = fit_linear(design, loss, task.targets.to(design.device), task.seed)
    names = {fit.strength: f"linear ({name}), strength {fit.strength:.2g}" for fit in fits}
    candidates = [(names[fit.strength], fit.held_out) for fit in fits]
    trained = Trained(names[best.strength], partial(refit, design, loss, best), best.scores.cpu(), best.held_out)
    return candidates, trained


def _discriminant(task: Task, design: Design) -> tuple[Candidates, Family]:
    """The candidates of the path of penalties, and the best of them."""
    task.progress("linear discriminant analysis")
    fit = fit_discriminant(design, task.targets.to(design.device), task.seed)
    names = {strength: f"linear (discriminant analysis), strength {strength:.2g}" for strength, _ in fit.tried}
    trained = Trained(names[fit.strength], partial(getattr, fit, "learner"), fit.scores.cpu(), fit.held_out)
    return [(names[strength], held_out) for strength, held_out in fit.tried], [trained]


def _forests(task: Task, others: Sequence[Family], *, forced: bool) -> list[Trained]:
    """Forests of several kinds, unless a small one shows that they add nothing to the other learners."""
    kinds = forest_kinds(len(task.rows), task.features.dim, task.targets.shape[1])
    if forced and not kinds:
        raise InputError(
            f"base='trees' is not available for {len(task.rows)} labelled rows of {task.features.dim} features: trees "
            "need at least 20 rows, and too many would take too long. Use base='linear'"
        )
    if not kinds:
        return []
    matrix = task.features.block(task.rows)
    matrix = matrix.astype(np.float32) if task.features.is_sparse else matrix.cpu().numpy()
    if not forced:
        task.progress("do trees help?")
        tables = [_average(family)[0] for family in others]
        if not promising(matrix, task.label, task.targets, tables, task.seed):
            return []
    trained = []
    for kind in kinds:
        task.progress(kind.name)
        fit = fit_forest(matrix, task.label, task.targets.shape[1], kind, sample_weight=task.weight, seed=task.seed)
        held_out = fit_temperature(fit.scores, task.targets)
        trained.append(Trained(kind.name, partial(getattr, fit, "forest"), fit.scores, held_out))
    return trained


def _method(task: Task, name: str, settings: Mapping[str, Any]) -> tuple[Candidates, Trained, bool]:
    """A linear learner trained by a registered method; also whether its scores are normalised over the classes."""
    labels = task.labels.subset(task.rows)
    method = registered_method(name, **settings)
    compares_classes = method.activation == "softmax"
    method = prepared(method, labels, task.k, task.seed)
    design = task.design() if compares_classes or is_pure(method, labels) else None
    if task.weight is not None and (design is None or not compares_classes):
        raise InputError(f"sample_weight is supported by the methods 'auto' and 'softmax', not by {name!r}")
    if design is None or not is_feasible(design, labels.num_classes):
        if task.weight is not None:
            raise InputError(f"{name!r} does not support sample_weight for this many rows and classes: use 'auto'")
        task.progress(f"linear learner, {name}")
        learner, scores = fit_with_adam(
            task.features, task.rows, labels, name, settings, k=task.k, seed=task.seed, device=task.device
        )
        held_out = fit_temperature(scores, task.targets)
        return [(name, held_out)], Trained(name, lambda: learner, scores, held_out), compares_classes
    loss: RowLoss = SoftmaxLoss(task.targets.to(design.device))
    if not compares_classes:
        loss = MethodLoss(method, labels, design.device)
    candidates, best = _linear(task, design, loss, name)
    return candidates, best, compares_classes


def _average(family: Family) -> tuple[Tensor, list[float]]:
    """The mean of the centred scores, each at its temperature, and the factors of the learners in it."""
    factors = [each.held_out.temperature / len(family) for each in family]
    if not any(factors):  # nothing can be learned from these features
        factors = [1 / len(family)] * len(family)
    tables = (centred(_precise(each.scores)).mul_(factor) for factor, each in zip(factors, family, strict=True))
    return reduce(Tensor.add_, tables), factors


def _precise(table: Tensor) -> Tensor:
    """In double precision, unless the table is so large that its size matters more."""
    return table.double() if table.numel() <= _LARGE else table


def _combined(task: Task, families: Sequence[Family]) -> tuple[Tensor, list[tuple[Trained, float]]]:
    """The evidence of the combination, and its learners with their weights."""
    averages = [_average(family) for family in families]
    shares = choose_shares([table for table, _ in averages], task.targets)
    evidence = reduce(Tensor.add_, (table.mul_(share) for share, (table, _) in zip(shares, averages, strict=True)))
    weights = [
        (each, share * factor)
        for family, share, (_, factors) in zip(families, shares, averages, strict=True)
        for each, factor in zip(family, factors, strict=True)
    ]
    return evidence, [(each, weight) for each, weight in weights if weight > 0]


def _finish(
    task: Task,
    candidates: Candidates,
    evidence: Tensor,
    used: Sequence[tuple[Trained, float]],
    *,
    compares_classes: bool,
    normalise: bool,
) -> FeatureFit:
    """Calibrate the evidence, train the learners that are used on all rows, and learn the answers."""
    task.progress("final model")
    calibration, temperature = _calibrated(task, evidence.numpy()), 0.0
    if normalise:
        calibration, temperature = _normalised(task, evidence, calibration)
    if temperature > 0:
        used = [(each, temperature * weight) for each, weight in used]
        for rows in row_blocks(*evidence.shape):
            evidence[rows] = torch.log_softmax(temperature * evidence[rows], -1)
    learners = merged([(each.learner(), weight) for each, weight in used])

    def model_with(correction: LinearLearner | None) -> FeatureModel:
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

    model, message = model_with(None), ""
    every = _all_rows(task, model, evidence.numpy())
    if task.answers is not None and compares_classes:
        task.progress("answers")
        correction, message = _learn_answers(task, every, calibration)
        if correction is not None:
            learner = _scaled(correction.learner, 1 / calibration.slope)
            every = every + (correction.held_out / calibration.slope).astype(np.float32)
            calibration = _calibrated(task, every[task.rows].astype(np.float64))
            model = model_with(learner)
    chosen = {each.name: weight for each, weight in used}
    tried = [
        Candidate(name, each.log_likelihood, each.standard_error, name in chosen, chosen.get(name, 0.0))
        for name, each in candidates
    ]
    held_out = np.empty_like(every)
    for rows in row_blocks(*every.shape):
        held_out[rows] = model.presence_of(torch.from_numpy(every[rows]).double()).numpy()
    return FeatureFit(model, held_out, tuple(tried), calibration.log_likelihood, every, calibration, message)


def _learn_answers(task: Task, evidence: Float32, calibration: Calibration) -> tuple[Correction | None, str]:
    """The correction by the answers, with Δ of all rows, and what to tell about it."""
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
    alone = FeatureModel([learner], [1.0], slope=1.0, offsets=np.zeros(classes), dim=features.dim, centred=False)
    return alone.evidence(_Part(features, rows))


def _scaled(learner: LinearLearner, scale: float) -> LinearLearner:
    return LinearLearner(scale * learner.weight, scale * learner.bias, learner.mean, learner.deviation)


def _normalised(task: Task, evidence: Tensor, calibration: Calibration) -> tuple[Calibration, float]:
    """The calibration of the normalised evidence and its temperature, if it makes the labels more likely; else 0.

    Two classes may have the same evidence in a row with strong competitors and in a row without. Normalisation tells
    these rows apart. How labels are chosen does not depend on it, and whether they are present does, so that it cannot
    be chosen before the calibration.
    """
    temperature = fit_temperature(evidence, task.targets).temperature
    if temperature > 0:
        other = _calibrated(task, evidence.numpy(), temperature)
        if other.log_likelihood > calibration.log_likelihood:
            return other, temperature
    return calibration, 0.0


def _calibrated(task: Task, evidence: npt.NDArray[Any], temperature: float = 0.0) -> Calibration:
    """The annotator's likelihood of the known labels, given held-out evidence (n, L), normalised at a temperature.

    The calibration itself fits a sample of the rows. Of a large table, only evenly spaced rows are copied for it.
    """
    rows, classes = evidence.shape
    most = max(_CALIBRATION_ROWS, _LARGE // classes)
    used = np.arange(rows) if rows <= most else np.linspace(0, rows - 1, most).astype(np.int64)
    table, known = evidence[used].astype(np.float64), task.labels.dense(task.rows[used])
    if temperature > 0:
        table = log_softmax(temperature * table, axis=1)
    return calibrate(expit(table), known, k=task.k, at_least_one=not task.labels.is_full, uncertainty=False)


def _all_rows(task: Task, model: FeatureModel, evidence: npt.NDArray[Any]) -> Float32:
    """Evidence of all rows: held-out for those with a label; the model was not trained on the others."""
    if len(task.rows) == len(task.labels):
        return np.asarray(evidence, np.float32)
    out = np.empty(task.labels.shape, np.float32)
    out[task.rows] = evidence
    rest = np.setdiff1d(np.arange(len(task.labels)), task.rows)
    out[rest] = model.evidence(_Part(task.features, rest))
    return out


class _Part:
    """Some rows of a store."""

    def __init__(self, store: FeatureStore, rows: Int64) -> None:
        self._store, self._rows, self.dim = store, rows, store.dim

    def __len__(self) -> int:
        return len(self._rows)

    def block(self, rows: Int64) -> Any:
        return self._store.block(self._rows[rows])
