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


# The functions below write the derivative down instead of leaving it to automatic differentiation, for two reasons:
# it stays exact where two nearly equal numbers would be subtracted or |g| has a corner, and every term of one entry is
# made of the same exp(-|g|), which a compiler then computes once.


def _tail(logits: Tensor) -> tuple[Tensor, Tensor]:
    """e = exp(-|g|) and log(1 + e): -log p = log(1 + e) + max(-g, 0), -log(1 - p) = log(1 + e) + max(g, 0)."""
    e = torch.exp(-logits.abs())
    return e, torch.log1p(e)


class _Signed(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, positive: Tensor) -> Any:
        return _tail(logits)[1] + torch.where(positive, -logits, logits).clamp(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, positive = ctx.saved_tensors
        return gradients[0] * torch.where(positive, -torch.sigmoid(-logits), torch.sigmoid(logits)), None


def signed_term(logits: Tensor, positive: Tensor) -> Tensor:
    """-log p where `positive`, -log(1 - p) elsewhere."""
    values: Tensor = _Signed.apply(logits, positive.expand_as(logits))
    return values


class _Soft(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, target: Tensor) -> Any:
        up, down = logits.clamp(min=0), (-logits).clamp(min=0)
        return _tail(logits)[1] + target * down + (1.0 - target) * up

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, target = ctx.saved_tensors
        to_target = -gradients[0] * logits if ctx.needs_input_grad[1] else None
        return gradients[0] * (torch.sigmoid(logits) - target), to_target


def soft_term(logits: Tensor, target: Tensor | float) -> Tensor:
    """Cross-entropy against a target probability: -t log p - (1 - t) log(1 - p)."""
    if not isinstance(target, Tensor):
        target = constant(target, logits)
    values: Tensor = _Soft.apply(logits, target.expand_as(logits))
    return values


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor) -> Any:
        e, tail = _tail(logits)
        return tail + logits.abs() * (e / (1 + e))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (logits,) = ctx.saved_tensors
        return -gradients[0] * logits * torch.sigmoid(logits) * torch.sigmoid(-logits)


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -p log p - (1 - p) log(1 - p) in nats; its derivative is -g p (1 - p)."""
    values: Tensor = _Entropy.apply(logits)
    return values


class _SignedFocal(torch.autograd.Function):
    """q^γ · -log(1 - q) with q the probability of the wrong answer; its derivative by the right answer's logit is
    -q^γ (γ (1 - q) · -log(1 - q) + q), without the first part where the weight is detached."""

    @staticmethod
    def forward(logits: Tensor, positive: Tensor, for_positive: float, for_negative: float, detach: bool) -> Any:
        wrong = torch.where(positive, -logits, logits)
        q = torch.sigmoid(wrong)
        cost = _tail(logits)[1] + wrong.clamp(min=0)
        return torch.where(positive, q**for_positive, q**for_negative) * cost

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        logits, positive, *ctx.settings = inputs
        ctx.save_for_backward(logits, positive)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, positive = ctx.saved_tensors
        for_positive, for_negative, detach = ctx.settings
        wrong = torch.where(positive, -logits, logits)
        q = torch.sigmoid(wrong)
        cost = _tail(logits)[1] + wrong.clamp(min=0)
        pull = torch.sigmoid(-wrong) * cost

        def slope(focusing: float) -> Tensor:
            return q**focusing * (q if detach else focusing * pull + q)

        by_wrong = torch.where(positive, -slope(for_positive), slope(for_negative))
        return gradients[0] * by_wrong, None, None, None, None


def signed_focal_term(
    logits: Tensor, positive: Tensor, for_positive: float, for_negative: float, detach_weight: bool = False
) -> Tensor:
    """-(1 - p)^γ+ log p where `positive`, -p^γ- log(1 - p) elsewhere; γ+ is `for_positive`, γ- `for_negative`."""
    mask = positive.expand_as(logits)
    values: Tensor = _SignedFocal.apply(logits, mask, float(for_positive), float(for_negative), detach_weight)
    return values


def focal_positive_term(logits: Tensor, focusing: float, detach_weight: bool = False) -> Tensor:
    """-(1 - p)^γ log p."""
    every = torch.ones((), dtype=torch.bool, device=logits.device)
    return signed_focal_term(logits, every, focusing, 0.0, detach_weight)


def focal_negative_term(logits: Tensor, focusing: float, shift: float = 0.0, detach_weight: bool = False) -> Tensor:
    """-p_m^γ log(1 - p_m) with p_m = max(p - m, 0); without a shift m, -p^γ log(1 - p)."""
    if shift == 0:
        none = torch.zeros((), dtype=torch.bool, device=logits.device)
        return signed_focal_term(logits, none, 0.0, focusing, detach_weight)
    probability = torch.sigmoid(logits)
    above = probability > shift
    # Below the shift the term is constant: a harmless probability keeps the unused branch's gradient finite.
    shifted = torch.where(above, probability - shift, 0.5)
    cost = -torch.log1p(-shifted)
    weight = shifted**focusing
    if detach_weight:
        weight = weight.detach()
    return torch.where(above, weight * cost, 0.0)


def constant(value: float, like: Tensor) -> Tensor:
    """A number in the type and on the device of a tensor, made without waiting for the device."""
    return torch.full((), value, dtype=like.dtype, device=like.device)


def logit(probability: float) -> float:
    """σ⁻¹, with ±inf at 0 and 1: a comparison p > τ is made as g > σ⁻¹(τ)."""
    if probability <= 0:
        return -math.inf
    if probability >= 1:
        return math.inf
    return math.log(probability) - math.log1p(-probability)
