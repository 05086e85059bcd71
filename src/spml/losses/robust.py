"""Robust losses beyond the four papers: SPLC and Hill (Zhang et al. 2021), GR (Chen et al. 2024)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from spml.losses.names import named
from spml.losses.terms import (
    constant,
    in_full_precision,
    logit,
    negative_term,
    positive_term,
    signed_focal_term,
    with_derivative,
)
from spml.type_checks import Count, NonNegative, Positive, Range, Share, check_rules, check_types


def _margined(logits: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Subtract a margin from the logits of observed positives."""
    return logits - torch.where(labels > 0, constant(margin, logits), constant(0.0, logits))


@named("splc")
def self_paced_correction(
    logits: Tensor,
    labels: Tensor,
    epoch: int,
    *,
    threshold: Share = 0.6,
    margin: NonNegative = 1.0,
    positive_focusing: NonNegative = 2.0,
    negative_focusing: NonNegative = 2.0,
    first_epoch: Count = 2,
) -> Tensor:
    """SPLC: from the second epoch on, an unknown label predicted above τ counts as a positive.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    epoch : int
        Current epoch, from 1.
    threshold : float
        τ.
    margin : float
        Subtracted from the logits of observed positives.
    positive_focusing, negative_focusing : float
        γ+ and γ-.
    first_epoch : int
        First epoch with corrections.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[1.0, 2.0, -2.0]]), torch.tensor([[1, 0, 0]])
    >>> self_paced_correction(logits, labels, epoch=1)
    tensor([[0.1733, 1.6501, 0.0018]])
    >>> self_paced_correction(logits, labels, epoch=2)  # p = 0.88 counts as a positive
    tensor([[0.1733, 0.0018, 0.0018]])
    """
    logits = in_full_precision(logits)
    corrected = (labels == 0) & (logits > logit(threshold))
    positive = (labels > 0) | corrected if epoch >= first_epoch else labels > 0
    return signed_focal_term(_margined(logits, labels, margin), positive, positive_focusing, negative_focusing)


def _hill_value(logits: Tensor, positive: Tensor, crest: float, focusing: float) -> Tensor:
    p = torch.sigmoid(logits)
    up = torch.sigmoid(-logits) ** focusing * positive_term(logits)
    return torch.where(positive, up, (crest - p) * p.square())


def _hill_derivative(logits: Tensor, positive: Tensor, crest: float, focusing: float) -> Tensor:
    """-(1 - p)^γ (γ p · -log p + 1 - p), and p² (1 - p) (2λ - 3p) with 2λ - 3p = (2λ - 3) + 3 (1 - p)."""
    p, rest = torch.sigmoid(logits), torch.sigmoid(-logits)
    up = rest**focusing * (focusing * p * positive_term(logits) + rest)
    return torch.where(positive, -up, p.square() * rest * (2 * crest - 3 + 3 * rest))


_hill = with_derivative(_hill_value, _hill_derivative)


@named("hill")
def hill(
    logits: Tensor,
    labels: Tensor,
    *,
    crest: Annotated[float, Range(1)] = 1.5,
    margin: NonNegative = 1.0,
    positive_focusing: NonNegative = 2.0,
) -> Tensor:
    """Hill: focal loss with a margin on positives, and (λ - p) p² on all others, whose gradient vanishes near p = 1.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    crest : float
        λ.
    margin : float
        Subtracted from the logits of observed positives.
    positive_focusing : float
        γ.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.tensor([[1.0, 0.0, 9.0]]), torch.tensor([[1, 0, 0]])
    >>> hill(logits, labels)
    tensor([[0.1733, 0.2500, 0.5000]])
    """
    logits = in_full_precision(logits)
    return _hill(_margined(logits, labels, margin), labels > 0, float(crest), float(positive_focusing))


@dataclass(frozen=True)
class RobustSchedule:
    """GR's four scalars at the start and at the end of training; they move linearly over the epochs, see `at`.

    Parameters
    ----------
    slope, offset : tuple of two floats
        w and b of K = σ(w p + b).
    centre, width : tuple of two floats
        μ and σ of V = exp(-(p - μ)²/2σ²).
    """

    slope: tuple[float, float] = (0.0, 2.0)
    offset: tuple[float, float] = (-2.0, -2.0)
    centre: tuple[float, float] = (0.5, 0.8)
    width: tuple[float, float] = (2.0, 0.5)

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("slope", "offset", "centre", "width"):
            values = getattr(self, name)
            limit = Range(0, ends="(]") if name == "width" else Range()
            check_rules(self, (name, all(value in limit for value in values), f"hold numbers {limit}"))

    def at(self, epoch: int, epochs: int) -> tuple[float, float, float, float]:
        """Return (w, b, μ, σ) in an epoch, counted from 1.

        As in the authors' code, w and b have moved by (epoch - 1)/epochs, μ and σ by epoch/epochs.
        """
        early, late = (epoch - 1) / epochs, epoch / epochs
        moved = ((self.slope, early), (self.offset, early), (self.centre, late), (self.width, late))
        w, b, mu, sigma = (start + (end - start) * share for (start, end), share in moved)
        return w, b, mu, sigma


_PUBLISHED_SCHEDULE = RobustSchedule()


def _belief_and_weight(p: Tensor, slope: float, offset: float, centre: float, width: float) -> tuple[Tensor, Tensor]:
    """K = σ(w p + b) and V = exp(-(p - μ)²/2σ²)."""
    sureness = slope * p + offset
    return torch.sigmoid(sureness), torch.exp((p - centre).square() * (-0.5 / width**2))


def _box_cox(cost: Tensor, power: float) -> Tensor:
    """(1 - p^q) / q, from -log p."""
    return -torch.expm1(-power * cost) / power


def _robust_value(
    logits: Tensor, labels: Tensor, positive_power: float, negative_power: float, *schedule: float
) -> Tensor:
    p, cost = torch.sigmoid(logits), positive_term(logits)
    belief, weight = _belief_and_weight(p, *schedule)
    as_positive = _box_cox(cost, positive_power)
    as_negative = p if negative_power == 1 else _box_cox(negative_term(logits), negative_power)
    unknown = weight * (as_negative + belief * (as_positive - as_negative))
    return torch.where(labels > 0, cost, torch.where(labels < 0, as_negative, unknown))


def _robust_derivative(
    logits: Tensor, labels: Tensor, positive_power: float, negative_power: float, *schedule: float
) -> Tensor:
    """The derivative of (1 - p^q)/q is -p^q (1 - p); with 1 - p in place of p it is (1 - p)^q p."""
    p, rest = torch.sigmoid(logits), torch.sigmoid(-logits)
    belief, weight = _belief_and_weight(p, *schedule)
    as_positive = -rest * torch.exp(-positive_power * positive_term(logits))
    as_negative = p * (rest if negative_power == 1 else torch.exp(-negative_power * negative_term(logits)))
    unknown = weight * (as_negative + belief * (as_positive - as_negative))
    return torch.where(labels > 0, -rest, torch.where(labels < 0, as_negative, unknown))


_robust = with_derivative(_robust_value, _robust_derivative)


@named("gr")
def generalised_robust(
    logits: Tensor,
    labels: Tensor,
    epoch: int,
    epochs: int,
    *,
    schedule: RobustSchedule | None = None,
    positive_power: Positive = 0.01,
    negative_power: Positive = 1.0,
) -> Tensor:
    """GR: an unknown label costs V·[K (1 - p^q2)/q2 + (1 - K)(1 - (1 - p)^q3)/q3].

    K = σ(w p + b) is the estimated probability that it is positive and V = exp(-(p - μ)²/2σ²) its weight, both without
    gradient. Known positives cost -log p, verified negatives the full (1 - (1 - p)^q3)/q3.

    Parameters
    ----------
    logits : Tensor of shape (…, n_rows, n_classes)
    labels : Tensor of shape (n_rows, n_classes)
        +1 positive, -1 negative, 0 unknown.
    epoch, epochs : int
        Current epoch, from 1, and the number of epochs.
    schedule : RobustSchedule, optional
        (w, b, μ, σ) over the course of training.
    positive_power, negative_power : float
        q2 and q3.

    Returns
    -------
    Tensor of shape (…, n_rows, n_classes)

    Examples
    --------
    >>> logits, labels = torch.zeros(1, 3), torch.tensor([[1, 0, -1]])
    >>> generalised_robust(logits, labels, epoch=8, epochs=8)
    tensor([[0.6931, 0.4567, 0.5000]])
    """
    logits = in_full_precision(logits)
    slope, offset, centre, width = (schedule or _PUBLISHED_SCHEDULE).at(epoch, epochs)
    return _robust(logits, labels, float(positive_power), float(negative_power), slope, offset, centre, width)
