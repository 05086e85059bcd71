"""The terms of all losses, exact and finite for any logit.

Logits may have leading dimensions before (rows, classes); labels are coded +1 positive, -1 negative, 0 unknown, and
broadcast against them. log p is logsigmoid(g) and log(1 - p) is logsigmoid(-g), which neither overflow nor lose digits;
probabilities are never formed where their logarithm is needed.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def in_full_precision(logits: Tensor) -> Tensor:
    """Convert float16 and bfloat16 logits to float32, so that every sum accumulates there."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def positive_term(logits: Tensor) -> Tensor:
    """-log p: the loss of an entry whose label is present."""
    return -F.logsigmoid(logits)


def negative_term(logits: Tensor) -> Tensor:
    """-log(1 - p): the loss of an entry whose label is absent."""
    return -F.logsigmoid(-logits)


def signed_term(logits: Tensor, positive: Tensor) -> Tensor:
    """-log p where `positive`, -log(1 - p) elsewhere."""
    return positive_term(torch.where(positive, logits, -logits))


def soft_term(logits: Tensor, target: Tensor | float) -> Tensor:
    """Cross-entropy against a target probability: -t log p - (1 - t) log(1 - p)."""
    return target * positive_term(logits) + (1.0 - target) * negative_term(logits)


# The derivatives below are written out because automatic differentiation would subtract nearly equal numbers, or
# multiply 0 by infinity where a power or a logarithm has no finite slope.


def with_derivative(value: Callable[..., Tensor], slope: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return value(logits, mask, *settings) as a function with the derivative slope(logits, mask, *settings)."""

    class WithSlope(torch.autograd.Function):
        @staticmethod
        def forward(logits: Tensor, mask: Tensor, *settings: Any) -> Any:
            return value(logits, mask, *settings)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
            logits, mask, *ctx.settings = inputs
            ctx.save_for_backward(logits, mask)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * slope(*ctx.saved_tensors, *ctx.settings), None, *(None for _ in ctx.settings)

    def function(logits: Tensor, mask: Tensor, *settings: Any) -> Tensor:
        values: Tensor = WithSlope.apply(logits, mask.expand_as(logits), *settings)
        return values

    return function


def _entropy_value(logits: Tensor, _: Tensor) -> Tensor:
    size = logits.abs()
    return positive_term(size) + size * torch.sigmoid(-size)


def _entropy_derivative(logits: Tensor, _: Tensor) -> Tensor:
    return -logits * torch.sigmoid(logits) * torch.sigmoid(-logits)


_entropy = with_derivative(_entropy_value, _entropy_derivative)


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -p log p - (1 - p) log(1 - p) in nats; its derivative is -g p (1 - p)."""
    return _entropy(logits, logits.detach())


# q^γ · -log(1 - q) with q the probability of the wrong answer; its derivative by the wrong answer's logit is
# q^γ (γ (1 - q) · -log(1 - q) + q), without the first part where the weight is detached. With a shift m a negative
# costs q_m^γ · -log(1 - q_m), q_m = max(q - m, 0), and 1 - q_m = (1 - q) + m is a sum of positive numbers.


def _focal_value(
    logits: Tensor, positive: Tensor, for_positive: float, for_negative: float, shift: float, detach: bool
) -> Tensor:
    wrong = torch.where(positive, -logits, logits)
    q, cost = torch.sigmoid(wrong), negative_term(wrong)
    if shift == 0:
        return torch.where(positive, q**for_positive, q**for_negative) * cost
    shifted = torch.where(q > shift, q - shift, 0.0)
    negative = shifted**for_negative * -torch.log(torch.sigmoid(-wrong) + shift)
    return torch.where(positive, q**for_positive * cost, torch.where(q > shift, negative, 0.0))


def _focal_derivative(
    logits: Tensor, positive: Tensor, for_positive: float, for_negative: float, shift: float, detach: bool
) -> Tensor:
    wrong = torch.where(positive, -logits, logits)
    q, right = torch.sigmoid(wrong), torch.sigmoid(-wrong)

    def slope(focusing: float) -> Tensor:
        if detach or focusing == 0:
            return q**focusing * q
        return q**focusing * (focusing * right * negative_term(wrong) + q)

    if shift == 0:
        return torch.where(positive, -slope(for_positive), slope(for_negative))
    # Below the shift the term is constant: a harmless 0.5 keeps the unused branch finite.
    shifted, rest = torch.where(q > shift, q - shift, 0.5), right + shift
    pull = shifted / rest
    if not (detach or for_negative == 0):
        pull = pull - for_negative * torch.log(rest)
    negative = torch.where(q > shift, shifted ** (for_negative - 1) * pull * (q * right), 0.0)
    return torch.where(positive, -slope(for_positive), negative)


_signed_focal = with_derivative(_focal_value, _focal_derivative)


def signed_focal_term(
    logits: Tensor,
    positive: Tensor,
    for_positive: float,
    for_negative: float,
    *,
    shift: float = 0.0,
    detach_weight: bool = False,
) -> Tensor:
    """-(1 - p)^γ+ log p where `positive`, -p_m^γ- log(1 - p_m) elsewhere, p_m = max(p - m, 0).

    γ+ is `for_positive`, γ- `for_negative`, m `shift`.
    """
    return _signed_focal(logits, positive, float(for_positive), float(for_negative), float(shift), detach_weight)


def constant(value: float, like: Tensor) -> Tensor:
    """Create a scalar with the type and device of a tensor, without synchronising with the device."""
    return torch.full((), value, dtype=like.dtype, device=like.device)


def logit(probability: float) -> float:
    """Return σ⁻¹ of a probability, so that p > τ can be computed as g > σ⁻¹(τ).

    Parameters
    ----------
    probability : float
        A threshold.

    Returns
    -------
    float
        Its logit; ±inf at 0 and 1.

    Examples
    --------
    >>> round(logit(0.75), 4), logit(1.0)
    (1.0986, inf)
    """
    if probability <= 0:
        return -math.inf
    if probability >= 1:
        return math.inf
    return math.log(probability) - math.log1p(-probability)
