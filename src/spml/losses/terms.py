"""The terms every loss is made of, exact and finite for any logit.

Logits carry any leading dimensions before (rows, classes); labels are coded +1 positive, -1 negative, 0 unknown
and broadcast against them. Probabilities are never formed where their logarithm is wanted: log p is
logsigmoid(g) and log(1 - p) is logsigmoid(-g), which neither overflow nor lose digits.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")


def over_entries(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A loss whose entries do not depend on each other; compiled, it is given its tensors broadcast and flat.

    A compiler splits the mean over a large batch into two sums. That of torch 2.11 then fuses a formula of more than
    30 operations into the first sum only if it runs over one dimension; over rows and classes it would store every
    entry and read it again, 8 bytes more than the 14 an entry needs.
    """

    @functools.wraps(loss)
    def flat_when_compiled(*inputs: P.args, **named: P.kwargs) -> Tensor:
        if not torch.compiler.is_compiling():
            return loss(*inputs, **named)
        given = (*inputs, *named.values())
        shape = torch.broadcast_shapes(*(value.shape for value in given if isinstance(value, Tensor)))

        def flat(value: Any) -> Any:
            return value.expand(shape).flatten() if isinstance(value, Tensor) else value

        return loss(*map(flat, inputs), **{name: flat(value) for name, value in named.items()}).view(shape)

    return flat_when_compiled


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
# made of the same e = exp(-|g|), which a compiler then computes once.
#
# Made of torch's functions, a compiled loss waits for instructions, not for memory. So the elementary functions down to
# `cost_if_present` are torch's in eager mode only; compiled, in float32 above all, they are written in the fewest
# instructions of a GPU.

# (log(1 + e) - e) / e² on [0, 1], lowest power first, and (exp(x) - 1 - x) / x² on [-½, 0]: the polynomials for which
# the largest relative error of log(1 + e) and exp(x) - 1 is smallest (Remez), 3.3e-8 and 8.8e-8. Evaluated in float32,
# rounding included, it is 1.8e-7 and 1.6e-7.
_LOG1P = (
    -0.49999648,
    0.333213226,
    -0.248571638,
    0.191536555,
    -0.137538034,
    0.0792045485,
    -0.0300658003,
    0.00536482633,
)
_EXPM1 = (0.49999463, 0.166563599, 0.0410424833, 0.00680760843)


def _in_fewest_instructions(values: Tensor) -> bool:
    return torch.compiler.is_compiling() and values.dtype == torch.float32


def beyond_first_power(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """x + c₀x² + c₁x³ + …, in as many multiply-adds as there are coefficients, and one product."""
    quotient = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        quotient = quotient * x + coefficient
    return quotient * (x * x) + x


def log1p_polynomial(e: Tensor) -> Tensor:
    """log(1 + e) for e in [0, 1]."""
    return beyond_first_power(e, _LOG1P)


def log_by_exponent(x: Tensor) -> Tensor:
    """log x for positive float32 numbers: x = 2^n (1 + f) has n log 2 + log(1 + f). Off by 1.2e-7 (1 + |log x|)."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) - 127
    fraction = ((bits & 0x7FFFFF) | 0x3F800000).view(torch.float32) - 1
    return exponent * math.log(2) + log1p_polynomial(fraction)


def exp_by_exp2(x: Tensor) -> Tensor:
    """e^x. Relative error 1e-7 (2 + |x|): no more than rounding x to float32 makes, and a rounding."""
    return torch.exp2(x * (1 / math.log(2)))


def expm1_in_two_pieces(x: Tensor) -> Tensor:
    """e^x - 1 for x ≤ 0."""
    return torch.where(x > -0.5, beyond_first_power(x, _EXPM1), exp_by_exp2(x) - 1)


def log1p(e: Tensor) -> Tensor:
    """log(1 + e) for e in [0, 1]."""
    return log1p_polynomial(e) if _in_fewest_instructions(e) else torch.log1p(e)


def log(x: Tensor) -> Tensor:
    """log x, where an absolute error is small enough: next to 1 the relative one is not."""
    return log_by_exponent(x) if _in_fewest_instructions(x) else torch.log(x)


def exp(x: Tensor) -> Tensor:
    return exp_by_exp2(x) if _in_fewest_instructions(x) else torch.exp(x)


def expm1(x: Tensor) -> Tensor:
    """e^x - 1 for x ≤ 0."""
    return expm1_in_two_pieces(x) if _in_fewest_instructions(x) else torch.expm1(x)


def tail(logits: Tensor) -> Tensor:
    """e = exp(-|g|): -log p = log(1 + e) + max(-g, 0), -log(1 - p) = log(1 + e) + max(g, 0)."""
    return exp(-logits.abs())


def inverse(x: Tensor) -> Tensor:
    """1 / x for x > 0: division is five instructions of a GPU, a reciprocal root is one."""
    return torch.rsqrt(x).square() if torch.compiler.is_compiling() else 1 / x


def sigmoid(signed: Tensor, logits: Tensor) -> Tensor:
    """σ of `signed` = ±g: 1 / (1 + e) or e / (1 + e), which when compiled share their e and their division."""
    if not torch.compiler.is_compiling():
        return torch.sigmoid(signed)
    e = tail(logits)
    near = inverse(1 + e)
    return torch.where(signed >= 0, near, e * near)


def cost_if_present(logits: Tensor) -> Tensor:
    """-log p as `positive_term`, for functions that write their derivative down."""
    if not torch.compiler.is_compiling():
        return -F.logsigmoid(logits)
    return log1p(tail(logits)) + (-logits).clamp(min=0)


def with_slope(value: Callable[..., Tensor], slope: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """value(logits, mask, *settings) as a function whose derivative by the logits is slope(logits, mask, *settings)."""

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


def _signed_value(logits: Tensor, positive: Tensor) -> Tensor:
    return log1p(tail(logits)) + torch.where(positive, -logits, logits).clamp(min=0)


def _signed_slope(logits: Tensor, positive: Tensor) -> Tensor:
    wrong = torch.where(positive, -logits, logits)
    q = sigmoid(wrong, logits)
    return torch.where(positive, -q, q)


_signed = with_slope(_signed_value, _signed_slope)


def signed_term(logits: Tensor, positive: Tensor) -> Tensor:
    """-log p where `positive`, -log(1 - p) elsewhere."""
    return _signed(logits, positive)


class _Soft(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, target: Tensor) -> Any:
        up, down = logits.clamp(min=0), (-logits).clamp(min=0)
        return log1p(tail(logits)) + target * down + (1.0 - target) * up

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, target = ctx.saved_tensors
        to_target = -gradients[0] * logits if ctx.needs_input_grad[1] else None
        return gradients[0] * (sigmoid(logits, logits) - target), to_target


def soft_term(logits: Tensor, target: Tensor | float) -> Tensor:
    """Cross-entropy against a target probability: -t log p - (1 - t) log(1 - p)."""
    if not isinstance(target, Tensor):
        target = constant(target, logits)
    values: Tensor = _Soft.apply(logits, target.expand_as(logits))
    return values


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor) -> Any:
        e = tail(logits)
        return log1p(e) + logits.abs() * (e / (1 + e))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (logits,) = ctx.saved_tensors
        return -gradients[0] * logits * sigmoid(logits, logits) * sigmoid(-logits, logits)


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -p log p - (1 - p) log(1 - p) in nats; its derivative is -g p (1 - p)."""
    values: Tensor = _Entropy.apply(logits)
    return values


# q^γ · -log(1 - q) with q the probability of the wrong answer; its derivative by the wrong answer's logit is
# q^γ (γ (1 - q) · -log(1 - q) + q), without the first part where the weight is detached. With a shift m a negative
# costs q_m^γ · -log(1 - q_m), q_m = max(q - m, 0), and 1 - q_m = (1 - q) + m is a sum of positive numbers.


def _focal_value(
    logits: Tensor, positive: Tensor, for_positive: float, for_negative: float, shift: float, detach: bool
) -> Tensor:
    wrong = torch.where(positive, -logits, logits)
    q = sigmoid(wrong, logits)
    cost = log1p(tail(logits)) + wrong.clamp(min=0)
    if shift == 0:
        return torch.where(positive, q**for_positive, q**for_negative) * cost
    shifted = torch.where(q > shift, q - shift, 0.0)
    negative = shifted**for_negative * -log(sigmoid(-wrong, logits) + shift)
    return torch.where(positive, q**for_positive * cost, torch.where(q > shift, negative, 0.0))


def _focal_slope(
    logits: Tensor, positive: Tensor, for_positive: float, for_negative: float, shift: float, detach: bool
) -> Tensor:
    wrong = torch.where(positive, -logits, logits)
    q, right = sigmoid(wrong, logits), sigmoid(-wrong, logits)

    def slope(focusing: float) -> Tensor:
        if detach or focusing == 0:
            return q**focusing * q
        return q**focusing * (focusing * right * (log1p(tail(logits)) + wrong.clamp(min=0)) + q)

    if shift == 0:
        return torch.where(positive, -slope(for_positive), slope(for_negative))
    # Below the shift the term is constant: a harmless 0.5 keeps the unused branch finite.
    shifted, rest = torch.where(q > shift, q - shift, 0.5), right + shift
    pull = shifted * inverse(rest)
    if not (detach or for_negative == 0):
        pull = pull - for_negative * log(rest)
    negative = torch.where(q > shift, shifted ** (for_negative - 1) * pull * (q * right), 0.0)
    return torch.where(positive, -slope(for_positive), negative)


_signed_focal = with_slope(_focal_value, _focal_slope)


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


def focal_positive_term(logits: Tensor, focusing: float, detach_weight: bool = False) -> Tensor:
    """-(1 - p)^γ log p."""
    every = torch.ones((), dtype=torch.bool, device=logits.device)
    return signed_focal_term(logits, every, focusing, 0.0, detach_weight=detach_weight)


def focal_negative_term(logits: Tensor, focusing: float, shift: float = 0.0, detach_weight: bool = False) -> Tensor:
    """-p_m^γ log(1 - p_m) with p_m = max(p - m, 0); without a shift m, -p^γ log(1 - p)."""
    none = torch.zeros((), dtype=torch.bool, device=logits.device)
    return signed_focal_term(logits, none, 0.0, focusing, shift=shift, detach_weight=detach_weight)


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
