"""The terms every loss is made of, exact and finite for any logit.

Logits carry any leading dimensions before (rows, classes); labels are coded +1 positive, -1 negative, 0 unknown
and broadcast against them. Probabilities are never formed where their logarithm is wanted: log p is
logsigmoid(g) and log(1 - p) is logsigmoid(-g), which neither overflow nor lose digits.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def in_full_precision(logits: Tensor) -> Tensor:
    """float16 and bfloat16 logits as float32, so that every sum accumulates there; others unchanged."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def positive_term(logits: Tensor) -> Tensor:
    """-log p: what an entry costs if the label is present."""
    return -F.logsigmoid(logits)


def negative_term(logits: Tensor) -> Tensor:
    """-log(1 - p): what an entry costs if the label is absent."""
    return -F.logsigmoid(-logits)


def signed_term(logits: Tensor, positive: Tensor) -> Tensor:
    """-log p where `positive`, -log(1 - p) elsewhere, with one logarithm instead of two."""
    return -F.logsigmoid(torch.where(positive, logits, -logits))


def soft_term(logits: Tensor, target: Tensor | float) -> Tensor:
    """Cross-entropy against a target probability: -t log p - (1 - t) log(1 - p)."""
    return target * positive_term(logits) + (1.0 - target) * negative_term(logits)


class _Entropy(torch.autograd.Function):
    """H and its exact derivative -g p (1 - p); automatic differentiation would subtract two equal numbers."""

    @staticmethod
    def forward(logits: Tensor) -> Any:
        magnitude = logits.abs()  # H is even in g; on |g| no two large numbers cancel
        return torch.log1p(torch.exp(-magnitude)) + magnitude * torch.sigmoid(-magnitude)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (logits,) = ctx.saved_tensors
        return -gradients[0] * logits * torch.sigmoid(logits) * torch.sigmoid(-logits)


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -p log p - (1 - p) log(1 - p) in nats."""
    values: Tensor = _Entropy.apply(logits)
    return values


def focal_positive_term(logits: Tensor, focusing: float, detach_weight: bool = False) -> Tensor:
    """-(1 - p)^γ log p."""
    if focusing == 0:
        return positive_term(logits)
    weight = torch.exp(focusing * F.logsigmoid(-logits))
    return (weight.detach() if detach_weight else weight) * positive_term(logits)


def focal_negative_term(logits: Tensor, focusing: float, shift: float = 0.0, detach_weight: bool = False) -> Tensor:
    """-p_m^γ log(1 - p_m) with p_m = max(p - m, 0); without a shift m, -p^γ log(1 - p)."""
    if shift == 0:
        cost = negative_term(logits)
        if focusing == 0:
            return cost
        weight = torch.exp(focusing * F.logsigmoid(logits))
        return (weight.detach() if detach_weight else weight) * cost
    probability = torch.sigmoid(logits)
    above = probability > shift
    # Below the shift the term is constant: a harmless probability keeps the unused branch's gradient finite.
    shifted = torch.where(above, probability - shift, 0.5)
    cost = -torch.log1p(-shifted)
    weight = shifted**focusing
    if detach_weight:
        weight = weight.detach()
    return torch.where(above, weight * cost, 0.0)


def logit(probability: float) -> float:
    """σ⁻¹, with ±inf at 0 and 1: a comparison p > τ is made as g > σ⁻¹(τ)."""
    if probability <= 0:
        return -math.inf
    if probability >= 1:
        return math.inf
    return math.log(probability) - math.log1p(-probability)
