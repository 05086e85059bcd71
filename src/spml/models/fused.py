"""Batch normalisation and its activation in four kernels instead of eight.

At the papers' batch sizes half of a step on a GPU is batch normalisation: PyTorch's own kernels for bfloat16 images in
channels-last order read slowly, and the activation reads and writes everything once more. Here the forward pass is one
kernel for the statistics and one for normalising and clamping, the backward pass one for the two sums and one for the
gradient. A ReLU's mask is computed again from the input instead of being kept.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import math
import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own way to run kernels without a GPU
ENTRIES = 4096  # of a tile
MOST_PARTS = 256  # rows are summed in at most this many parts, which the last of them adds up


@triton.jit
def _tile(row, column, rows, columns):
    """Offsets and mask of a tile of a (rows, columns) matrix."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return row.to(tl.int64)[:, None] * columns + column[None, :], inside


@triton.jit
def _add_parts(partial, parts, column, columns, SOME: tl.constexpr, WIDTH: tl.constexpr):
    """The sum over the parts of two numbers a column, in a fixed order."""
    first = tl.zeros((WIDTH,), tl.float32)
    second = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, parts, SOME):
        part = start + tl.arange(0, SOME)
        mask = (part < parts)[:, None] & (column < columns)[None, :]
        at = partial + part[:, None] * 2 * columns + column[None, :]
        # written by other programs: from beyond this multiprocessor's own cache
        first += tl.sum(tl.load(at, mask, 0.0, cache_modifier=".cg"), 0)
        second += tl.sum(tl.load(at + columns, mask, 0.0, cache_modifier=".cg"), 0)
    return first, second


@triton.jit(do_not_specialize=["rows", "columns", "parts", "each"])
def _statistics(
    x, partial, arrived, mean_out, rstd_out, running_mean, running_var, momentum, eps, rows, columns, parts, each,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Mean and 1/σ of every column, and the running ones moved; x less the running mean is summed: that stays small."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = column < columns
    shift = tl.load(running_mean + column, there, 0.0)
    first = tl.zeros((WIDTH,), tl.float32)
    second = tl.zeros((WIDTH,), tl.float32)
    start = tl.program_id(1) * each
    stop = tl.minimum(start + each, rows)
    for row in range(start, stop, HEIGHT):
        at, inside = _tile(row + tl.arange(0, HEIGHT), column, stop, columns)
        off = tl.load(x + at, inside, 0.0).to(tl.float32) - shift[None, :]
        off = tl.where(inside, off, 0.0)
        first += tl.sum(off, 0)
        second += tl.sum(off * off, 0)
    at = partial + tl.program_id(1) * 2 * columns + column
    tl.store(at, first, there)
    tl.store(at + columns, second, there)
    tl.debug_barrier()
    if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == parts - 1:
        first, second = _add_parts(partial, parts, column, columns, 32, WIDTH)
        off = first / rows
        var = tl.maximum(second / rows - off * off, 0.0)
        mean = shift + off
        tl.store(mean_out + column, mean, there)
        tl.store(rstd_out + column, tl.rsqrt(var + eps), there)
        old = tl.load(running_var + column, there, 0.0)
        unbiased = var * (rows / tl.maximum(rows - 1.0, 1.0))
        tl.store(running_mean + column, shift + momentum * off, there)
        tl.store(running_var + column, old + momentum * (unbiased - old), there)
        tl.store(arrived + tl.program_id(0), 0)


@triton.jit(do_not_specialize=["rows", "columns"])
def _normalise(
    x, y, mean, rstd, weight, bias, low, high, rows, columns, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = column < columns
    scale = tl.load(weight + column, there, 0.0) * tl.load(rstd + column, there, 0.0)
    offset = tl.load(bias + column, there, 0.0) - tl.load(mean + column, there, 0.0) * scale
    at, inside = _tile(tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT), column, rows, columns)
    value = tl.load(x + at, inside, 0.0).to(tl.float32) * scale[None, :] + offset[None, :]
    value = tl.minimum(tl.maximum(value, low), high)
    tl.store(y + at, value.to(y.dtype.element_ty), inside)


@triton.jit
def _passed(grad, value, low, high):
    """The gradient where the activation did not clamp."""
    return tl.where((value > low) & (value < high), grad, 0.0)


@triton.jit(do_not_specialize=["rows", "columns", "parts", "each"])
def _gradient_sums(
    x, dy, mean, rstd, weight, bias, partial, arrived, weight_grad, bias_grad, low, high, rows, columns, parts, each,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = column < columns
    centre = tl.load(mean + column, there, 0.0)[None, :]
    narrow = tl.load(rstd + column, there, 0.0)[None, :]
    scale = tl.load(weight + column, there, 0.0)[None, :]
    offset = tl.load(bias + column, there, 0.0)[None, :]
    first = tl.zeros((WIDTH,), tl.float32)
    second = tl.zeros((WIDTH,), tl.float32)
    start = tl.program_id(1) * each
    stop = tl.minimum(start + each, rows)
    for row in range(start, stop, HEIGHT):
        at, inside = _tile(row + tl.arange(0, HEIGHT), column, stop, columns)
        standard = (tl.load(x + at, inside, 0.0).to(tl.float32) - centre) * narrow
        grad = tl.load(dy + at, inside, 0.0).to(tl.float32)
        grad = _passed(grad, standard * scale + offset, low, high)
        first += tl.sum(grad, 0)
        second += tl.sum(grad * standard, 0)
    at = partial + tl.program_id(1) * 2 * columns + column
    tl.store(at, first, there)
    tl.store(at + columns, second, there)
    tl.debug_barrier()
    if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == parts - 1:
        first, second = _add_parts(partial, parts, column, columns, 32, WIDTH)
        tl.store(bias_grad + column, first, there)
        tl.store(weight_grad + column, second, there)
        tl.store(arrived + tl.program_id(0), 0)


@triton.jit(do_not_specialize=["rows", "columns"])
def _gradient(
    x, dy, dx, mean, rstd, weight, bias, weight_grad, bias_grad, low, high, rows, columns,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx = w/σ (g - mean g - x̂ mean(g x̂)), g the gradient that passed the activation."""
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    there = column < columns
    centre = tl.load(mean + column, there, 0.0)[None, :]
    narrow = tl.load(rstd + column, there, 0.0)[None, :]
    scale = tl.load(weight + column, there, 0.0)[None, :]
    offset = tl.load(bias + column, there, 0.0)[None, :]
    mean_grad = (tl.load(bias_grad + column, there, 0.0) / rows)[None, :]
    mean_slope = (tl.load(weight_grad + column, there, 0.0) / rows)[None, :]
    at, inside = _tile(tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT), column, rows, columns)
    standard = (tl.load(x + at, inside, 0.0).to(tl.float32) - centre) * narrow
    grad = tl.load(dy + at, inside, 0.0).to(tl.float32)
    grad = _passed(grad, standard * scale + offset, low, high)
    value = scale * narrow * (grad - mean_grad - standard * mean_slope)
    tl.store(dx + at, value.to(dx.dtype.element_ty), inside)


class _BatchNormAct(torch.autograd.Function):
    """Images (B, C, H, W) in channels-last order: a (B·H·W, C) matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
                momentum: float, eps: float, low: float, high: float) -> Tensor:  # fmt: skip
        rows, columns, height, width, blocks, parts, each = _grid(x)
        y = torch.empty_like(x)
        mean, rstd = x.new_empty(2, columns, dtype=torch.float32)
        partial = x.new_empty(parts * 2 * columns, dtype=torch.float32)
        arrived = x.new_zeros(blocks, dtype=torch.int32)
        _statistics[blocks, parts](
            x, partial, arrived, mean, rstd, running_mean, running_var, momentum, eps, rows, columns, parts, each,
            HEIGHT=height, WIDTH=width,
        )  # fmt: skip
        _normalise[triton.cdiv(rows, height), blocks](
            x, y, mean, rstd, weight, bias, low, high, rows, columns, HEIGHT=height, WIDTH=width
        )
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.clamp = low, high
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        low, high = ctx.clamp
        dy = dy.contiguous(memory_format=torch.channels_last)
        rows, columns, height, width, blocks, parts, each = _grid(x)
        dx = torch.empty_like(x)
        weight_grad, bias_grad = torch.empty_like(weight), torch.empty_like(bias)
        partial = x.new_empty(parts * 2 * columns, dtype=torch.float32)
        arrived = x.new_zeros(blocks, dtype=torch.int32)
        _gradient_sums[blocks, parts](
            x, dy, mean, rstd, weight, bias, partial, arrived, weight_grad, bias_grad, low, high, rows, columns, parts,
            each, HEIGHT=height, WIDTH=width,
        )  # fmt: skip
        _gradient[triton.cdiv(rows, height), blocks](
            x, dy, dx, mean, rstd, weight, bias, weight_grad, bias_grad, low, high, rows, columns,
            HEIGHT=height, WIDTH=width,
        )  # fmt: skip
        return dx, weight_grad, bias_grad, None, None, None, None, None, None


def _grid(x: Tensor) -> tuple[int, int, int, int, int, int, int]:
    """Rows, columns, a tile's height and width, blocks of columns, parts of rows, and rows of each part."""
    columns = x.shape[1]
    rows = x.numel() // columns
    width = 32 if columns <= 32 else 128
    height = ENTRIES // width
    blocks = triton.cdiv(columns, width)
    tiles = triton.cdiv(triton.cdiv(rows, height), MOST_PARTS)  # of a part
    each = tiles * height
    return rows, columns, height, width, blocks, triton.cdiv(rows, each), each


def fuse(module: nn.Module) -> int:
    """Let every batch normalisation of a network train by these kernels on a GPU; returns how many there are.

    Weights keep their names. What the kernels cannot do (evaluation, another order in memory, another activation than
    none, ReLU and ReLU6) goes the way it went before.
    """
    fused = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d) and clamp_of(part) is not None]
    for part in fused:
        if type(part) not in _FUSED:
            _FUSED[type(part)] = _fused_class(type(part))
        part.__class__ = _FUSED[type(part)]
    return len(fused)


def clamp_of(part: nn.Module) -> tuple[float, float] | None:
    """The bounds that a normalisation's own activation (timm's layers have one) clamps to; None for others."""
    if not isinstance(getattr(part, "drop", nn.Identity()), nn.Identity):
        return None
    bounds = {nn.Identity: (-math.inf, math.inf), nn.ReLU: (0.0, math.inf), nn.ReLU6: (0.0, 6.0)}
    return bounds.get(type(getattr(part, "act", nn.Identity())))


_FUSED: dict[type, type[nn.BatchNorm2d]] = {}


def _fused_class(plain: type[nn.BatchNorm2d]) -> type[nn.BatchNorm2d]:
    def forward(self: nn.BatchNorm2d, x: Tensor) -> Tensor:
        bounds = clamp_of(self)
        known = self.affine and self.track_running_stats and self.momentum is not None
        order = x.is_contiguous(memory_format=torch.channels_last)
        if not (self.training and known and order and bounds is not None and (x.is_cuda or INTERPRETED)):
            return plain.forward(self, x)
        out: Tensor = _BatchNormAct.apply(
            x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps, *bounds
        )
        return out

    made: type[nn.BatchNorm2d] = type(f"Fused{plain.__name__}", (plain,), {"forward": forward})
    return made
