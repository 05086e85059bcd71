"""Train on features: choose and combine learners by the held-out likelihood of the observed labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from torch import Tensor

from spml.calibration import calibrate
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.models.feature_model import FeatureModel, Learner, centred
from spml.training.device import choose_device
from spml.training.learners.design import Design, assign_folds
from spml.training.learners.likelihood import HeldOut, combine, fit_temperature
from spml.training.learners.linear import SoftmaxLoss, fit_path, refit
from spml.training.learners.trees import KINDS, ForestKind, fit_forest

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Progress = Callable[[str], None]

FOLDS = 5


@dataclass(frozen=True)
class Candidate:
    """A learner that was tried.

    Parameters
    ----------
    name : str
        For example "linear, strength 0.01".
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
    """

    model: FeatureModel
    held_out: Float32
    candidates: tuple[Candidate, ...]
    log_likelihood: float

    @property
    def summary(self) -> str:
        """One line about what was chosen."""
        chosen = ", ".join(f"{each.name} (weight {each.weight:.2g})" for each in self.candidates if each.chosen)
        return f"Chosen by the likelihood of held-out labels: {chosen}"


@dataclass(frozen=True, eq=False)
class _Trained:
    """A learner with the scores (n, L) that it gives to held-out rows."""

    name: str
    learner: Callable[[], Learner]  # trained on all rows when it is needed
    scores: Tensor
    held_out: HeldOut


def fit_features(
    features: FeatureStore,
    labels: Labels,
    *,
    method: str = "auto",
    settings: Mapping[str, Any] | None = None,
    base: Any = "auto",
    k: float | None = None,
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
        Rows without a positive are not used.
    method : str
        "auto", or any method that can be trained on features.
    settings : mapping, optional
        Settings of the method.
    base : {"auto", "linear", "trees"} or scikit-learn classifier
        Learners that "auto" may use.
    k : float, optional
        Average number of labels per row, if known.
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
    rows, weight = _checked(features, labels, sample_weight)
    targets, label = _targets(labels, rows, weight)
    fold = assign_folds(label, FOLDS, seed)
    trained: list[_Trained] = []
    candidates: list[tuple[str, HeldOut]] = []
    if base not in ("auto", "linear", "trees"):
        raise InputError(f"base must be 'auto', 'linear' or 'trees', not {base!r}")
    if base != "trees":
        paths, best = _linear(features, rows, fold, targets, choose_device(str(device)), progress)
        candidates += paths
        trained.append(best)
    if base != "linear":
        trained += _forests(features, rows, label, targets, weight, seed, progress)
        candidates += [(each.name, each.held_out) for each in trained if each.name not in dict(candidates)]
    weights, _ = combine([centred(each.scores) for each in trained], targets)
    used = [(each, float(w)) for each, w in zip(trained, weights, strict=True) if w > 0]
    evidence = sum((w * centred(each.scores.double()) for each, w in used), torch.zeros(())).numpy()
    known = labels.dense(rows)
    at_least_one = not labels.is_full
    calibration = calibrate(expit(evidence), known, k=k, at_least_one=at_least_one)
    if progress:
        progress("final model")
    model = FeatureModel(
        [each.learner() for each, _ in used],
        [w for _, w in used],
        slope=calibration.slope,
        offsets=calibration.offsets,
        dim=features.dim,
        at_least_one=at_least_one,
    )
    held_out = _held_out(model, features, rows, evidence, labels)
    chosen = {each.name: w for each, w in used}
    return FeatureFit(
        model,
        held_out,
        tuple(
            Candidate(name, each.log_likelihood, each.standard_error, name in chosen, chosen.get(name, 0.0))
            for name, each in candidates
        ),
        calibration.log_likelihood,
    )


def _checked(
    features: FeatureStore, labels: Labels, sample_weight: npt.ArrayLike | None
) -> tuple[Int64, Float64 | None]:
    """The rows with a positive label, and their weights."""
    if len(features) != len(labels):
        raise InputError(f"{len(features)} rows of features, but labels for {len(labels)} rows")
    features.check_finite()
    rows = np.unique(labels.positives()[0])
    if not len(rows):
        raise InputError("no row has a positive label: there is nothing to learn from")
    if sample_weight is None:
        return rows, None
    weight = np.asarray(sample_weight, np.float64)
    if weight.shape != (len(labels),) or not np.isfinite(weight).all() or (weight < 0).any():
        raise InputError(f"sample_weight must be {len(labels)} numbers of at least 0, one per row")
    rows = rows[weight[rows] > 0]
    if not len(rows):
        raise InputError("every row with a positive label has the weight 0: there is nothing to learn from")
    return rows, weight[rows] * len(rows) / weight[rows].sum()


def _targets(labels: Labels, rows: Int64, weight: Float64 | None) -> tuple[Tensor, Int64]:
    """Shares of the classes (n, L) times the row's weight, and the first positive class of every row."""
    row, column = labels.positives()
    place = np.searchsorted(rows, row)
    inside = (place < len(rows)) & (rows[np.minimum(place, len(rows) - 1)] == row)
    place, column = place[inside], column[inside]
    targets = torch.zeros(len(rows), labels.num_classes)
    targets[torch.from_numpy(place), torch.from_numpy(column.astype(np.int64))] = 1.0
    label = targets.argmax(1).numpy()
    targets /= targets.sum(1, keepdim=True)
    return (targets if weight is None else targets * torch.from_numpy(weight).float()[:, None]), label


def _linear(
    features: FeatureStore, rows: Int64, fold: Int64, targets: Tensor, device: torch.device, progress: Progress | None
) -> tuple[list[tuple[str, HeldOut]], _Trained]:
    """The candidates of the path of strengths, and the best of them."""
    if progress:
        progress("linear learner")
    design = Design(features, rows, fold, device)
    loss = SoftmaxLoss(targets.to(design.device))
    fits = fit_path(design, loss, targets.to(design.device))
    best = max(fits, key=lambda fit: fit.held_out.log_likelihood)

    def name(strength: float) -> str:
        return f"linear, strength {strength:.2g}"

    candidates = [(name(fit.strength), fit.held_out) for fit in fits]
    return candidates, _Trained(
        name(best.strength), lambda: refit(design, loss, best), best.scores.cpu(), best.held_out
    )


def _forests(
    features: FeatureStore,
    rows: Int64,
    label: Int64,
    targets: Tensor,
    weight: Float64 | None,
    seed: int,
    progress: Progress | None,
    kinds: Sequence[ForestKind] = KINDS,
) -> list[_Trained]:
    matrix = features.block(rows)
    matrix = matrix.astype(np.float32) if features.is_sparse else matrix.cpu().numpy()
    trained = []
    for kind in kinds:
        if progress:
            progress(kind.name)
        fit = fit_forest(matrix, label, targets.shape[1], kind, sample_weight=weight, seed=seed)
        trained.append(
            _Trained(kind.name, lambda fit=fit: fit.forest, fit.scores, fit_temperature(fit.scores, targets))
        )
    return trained


def _held_out(model: FeatureModel, features: FeatureStore, rows: Int64, evidence: Float64, labels: Labels) -> Float32:
    """Presence of all rows: held-out for those with a label; the others were not trained on."""
    presence = model.presence_of(torch.from_numpy(evidence)).numpy().astype(np.float32)
    if len(rows) == len(labels):
        return presence
    out = np.empty(labels.shape, np.float32)
    out[rows] = presence
    rest = np.setdiff1d(np.arange(len(labels)), rows)
    out[rest] = model.presence(_Part(features, rest))
    return out


class _Part:
    """Some rows of a store."""

    def __init__(self, store: FeatureStore, rows: Int64) -> None:
        self._store, self._rows, self.dim = store, rows, store.dim

    def __len__(self) -> int:
        return len(self._rows)

    def block(self, rows: Int64) -> Any:
        return self._store.block(self._rows[rows])
