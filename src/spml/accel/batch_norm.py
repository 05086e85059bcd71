"""Batch normalisation and its activation in four kernels instead of eight.

At small batch sizes batch normalisation takes half of a step on a GPU: PyTorch's kernels for bfloat16 images in
channels-last order read slowly, and the activation reads and writes everything again. Here the forward pass has one
kernel for the statistics and one that normalises and clamps; the backward pass has one for two sums and one for the
gradient. A ReLU's mask is recomputed from the input instead of stored. Evaluation needs only the second kernel.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import functools
import math
import os
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter runs kernels without a GPU
WARPS = 4  # per tile
ENTRIES = 2048  # per tile: more would need so many registers that few programs run at a time
SUMMED_ENTRIES, SUMMED_WIDTH = 4096, 32  # per summed tile: summing across warps takes time proportional to its width
AT_A_TIME = 2  # summing programs per multiprocessor: the fewer, the sooner their sums are added


@triton.jit
def column_block(units, MULTIPLE: tl.constexpr, WIDTH: tl.constexpr, block):
    """The number of columns, the columns of this block, and a mask of those that exist.

    The number is a multiple of a constant, so Triton knows that rows are aligned and loads 16 bytes at a time.
    """
    columns = units * MULTIPLE
    column = block * WIDTH + tl.arange(0, WIDTH)
    return columns, column, column < columns


@triton.jit
def _add_parts(partial, parts, column, columns, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """The sum over the parts of two numbers per column, in a fixed order."""
    first = tl.zeros((HEIGHT, WIDTH), tl.float32)
    second = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for start in range(0, parts, HEIGHT):
        part = start + tl.arange(0, HEIGHT)
        mask = (part < parts)[:, None] & (column < columns)[None, :]
        address = partial + part[:, None] * 2 * columns + column[None, :]
        # written by other programs: bypass this multiprocessor's cache
        first += tl.load(address, mask, 0.0, cache_modifier=".cg")
        second += tl.load(address + columns, mask, 0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit(do_not_specialize=["rows", "units", "parts", "rows_per_part"])
def _statistics(
    x, partial, arrived, mean_out, rstd_out, running_mean, running_var, momentum, eps, rows, units, parts,
    rows_per_part, MULTIPLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Mean and 1/σ of every column; updates the running ones. Sums x − running mean, which stays small."""
    columns, column, in_range = column_block(units, MULTIPLE, WIDTH, tl.program_id(0))
    shift = tl.load(running_mean + column, in_range, 0.0)
    first = tl.zeros((HEIGHT, WIDTH), tl.float32)
    second = tl.zeros((HEIGHT, WIDTH), tl.float32)
    start = tl.program_id(1) * rows_per_part
    remaining = tl.minimum(rows_per_part, rows - start)
    x += start.to(tl.int64) * columns
    for row in tl.range(0, remaining, HEIGHT, num_stages=3):
        row_index = row + tl.arange(0, HEIGHT)
        inside = (row_index < remaining)[:, None] & in_range[None, :]
        address = row_index[:, None] * columns + column[None, :]
        deviation = tl.load(x + address, inside, 0.0).to(tl.float32) - shift[None, :]
        deviation = tl.where(inside, deviation, 0.0)
        first += deviation
        second += deviation * deviation
    address = partial + tl.program_id(1) * 2 * columns + column
    tl.store(address, tl.sum(first, 0), in_range)
    tl.store(address + columns, tl.sum(second, 0), in_range)
    tl.debug_barrier()
    if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == parts - 1:
        sum_first, sum_second = _add_parts(partial, parts, column, columns, HEIGHT, WIDTH)
        off_mean = sum_first / rows
        var = tl.maximum(sum_second / rows - off_mean * off_mean, 0.0)
        tl.store(mean_out + column, shift + off_mean, in_range)
        tl.store(rstd_out + column, tl.rsqrt(var + eps), in_range)
        old = tl.load(running_var + column, in_range, 0.0)
        unbiased = var * (rows / tl.maximum(rows - 1.0, 1.0))
        tl.store(running_mean + column, shift + momentum * off_mean, in_range)
        tl.store(running_var + column, old + momentum * (unbiased - old), in_range)
        tl.store(arrived + tl.program_id(0), 0)  # for the next time


@triton.jit(do_not_specialize=["rows", "units"])
def _normalise(
    x, y, mean, spread, eps, weight, bias, low, high, rows, units,
    IS_VARIANCE: tl.constexpr, MULTIPLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """`spread` is 1/σ of every column, or the variance."""
    columns, column, in_range = column_block(units, MULTIPLE, WIDTH, tl.program_id(1))
    start = tl.program_id(0) * HEIGHT
    row_index = tl.arange(0, HEIGHT)
    inside = (row_index < rows - start)[:, None] & in_range[None, :]
    address = start.to(tl.int64) * columns + (row_index[:, None] * columns + column[None, :])
    value = tl.load(x + address, inside, 0.0).to(tl.float32)
    inverse_std = tl.load(spread + column, in_range, 0.0)
    if IS_VARIANCE:
        inverse_std = tl.rsqrt(inverse_std + eps)
    scale = tl.load(weight + column, in_range, 0.0) * inverse_std
    offset = tl.load(bias + column, in_range, 0.0) - tl.load(mean + column, in_range, 0.0) * scale
    value = value * scale[None, :] + offset[None, :]
    value = tl.minimum(tl.maximum(value, low), high)
    tl.store(y + address, value.to(y.dtype.element_ty), inside)


@triton.jit
def _passed(grad, value, low, high):
    """The gradient where the activation did not clamp."""
    return tl.where((value > low) & (value < high), grad, 0.0)


@triton.jit(do_not_specialize=["rows", "units", "parts", "rows_per_part"])
def _gradient_sums(
    x, dy, mean, rstd, weight, bias, partial, arrived, weight_grad, bias_grad, low, high, rows, units, parts,
    rows_per_part, MULTIPLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    columns, column, in_range = column_block(units, MULTIPLE, WIDTH, tl.program_id(0))
    centre = tl.load(mean + column, in_range, 0.0)[None, :]
    inverse_std = tl.load(rstd + column, in_range, 0.0)[None, :]
    scale = tl.load(weight + column, in_range, 0.0)[None, :]
    offset = tl.load(bias + column, in_range, 0.0)[None, :]
    first = tl.zeros((HEIGHT, WIDTH), tl.float32)
    second = tl.zeros((HEIGHT, WIDTH), tl.float32)
    start = tl.program_id(1) * rows_per_part
    remaining = tl.minimum(rows_per_part, rows - start)
    x += start.to(tl.int64) * columns
    dy += start.to(tl.int64) * columns
    for row in tl.range(0, remaining, HEIGHT, num_stages=3):
        row_index = row + tl.arange(0, HEIGHT)
        inside = (row_index < remaining)[:, None] & in_range[None, :]
        address = row_index[:, None] * columns + column[None, :]
        standard = (tl.load(x + address, inside, 0.0).to(tl.float32) - centre) * inverse_std
        grad = tl.load(dy + address, inside, 0.0).to(tl.float32)
        grad = _passed(grad, standard * scale + offset, low, high)
        first += grad
        second += grad * standard
    address = partial + tl.program_id(1) * 2 * columns + column
    tl.store(address, tl.sum(first, 0), in_range)
    tl.store(address + columns, tl.sum(second, 0), in_range)
    tl.debug_barrier()
    if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == parts - 1:
        sum_first, sum_second = _add_parts(partial, parts, column, columns, HEIGHT, WIDTH)
        tl.store(bias_grad + column, sum_first, in_range)
        tl.store(weight_grad + column, sum_second, in_range)
        tl.store(arrived + tl.program_id(0), 0)  # for the next time


@triton.jit(do_not_specialize=["rows", "units"])
def _gradient(
    x, dy, dx, mean, rstd, weight, bias, weight_grad, bias_grad, low, high, rows, units,
    MULTIPLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx = w/σ (g - mean g - x̂ mean(g x̂)), g the gradient that passed the activation."""
    columns, column, in_range = column_block(units, MULTIPLE, WIDTH, tl.program_id(1))
    start = tl.program_id(0) * HEIGHT
    row_index = tl.arange(0, HEIGHT)
    inside = (row_index < rows - start)[:, None] & in_range[None, :]
    address = start.to(tl.int64) * columns + (row_index[:, None] * columns + column[None, :])
    value = tl.load(x + address, inside, 0.0).to(tl.float32)
    grad = tl.load(dy + address, inside, 0.0).to(tl.float32)
    inverse_std = tl.load(rstd + column, in_range, 0.0)
    scale = tl.load(weight + column, in_range, 0.0)
    standard = (value - tl.load(mean + column, in_range, 0.0)[None, :]) * inverse_std[None, :]
    grad = _passed(grad, standard * scale[None, :] + tl.load(bias + column, in_range, 0.0)[None, :], low, high)
    mean_grad = tl.load(bias_grad + column, in_range, 0.0) / rows
    mean_slope = tl.load(weight_grad + column, in_range, 0.0) / rows
    slope = (scale * inverse_std)[None, :] * (grad - mean_grad[None, :] - standard * mean_slope[None, :])
    tl.store(dx + address, slope.to(dx.dtype.element_ty), inside)


class Tiles(NamedTuple):
    """How a (rows, columns) matrix is divided into tiles."""

    rows: int
    units: int  # columns / multiple
    multiple: int
    height: int
    width: int
    blocks: int  # of columns

    @property
    def over_all(self) -> tuple[int, int]:
        return triton.cdiv(self.rows, self.height), self.blocks

    @property
    def options(self) -> dict[str, int]:
        return {"MULTIPLE": self.multiple, "HEIGHT": self.height, "WIDTH": self.width, "num_warps": WARPS}

    def parts(self, device: torch.device) -> tuple[int, int]:
        """For a sum over the rows: the number of parts and the rows per part."""
        tiles = triton.cdiv(self.rows, self.height)
        programs = AT_A_TIME * multiprocessors(device)
        rows_per_part = triton.cdiv(tiles, min(tiles, max(1, programs // self.blocks))) * self.height
        return triton.cdiv(self.rows, rows_per_part), rows_per_part


def tiles_of(x: Tensor, entries: int = ENTRIES, widest: int = 128) -> Tiles:
    """Return the tiles of images in channels-last order, which are a (B·H·W, C) matrix."""
    columns = x.shape[1]
    multiple, width, blocks = channel_blocks(columns, widest)
    return Tiles(x.numel() // columns, columns // multiple, multiple, entries // width, width, blocks)


def summed_tiles_of(x: Tensor) -> Tiles:
    return tiles_of(x, SUMMED_ENTRIES, SUMMED_WIDTH)


def channel_blocks(columns: int, widest: int = 128) -> tuple[int, int, int]:
    """Return a divisor of the number of columns, the width of a block of columns, and the number of blocks."""
    # the widest block that wastes at most an eighth of its columns
    widths = (width for width in (128, 64) if width <= widest)
    width = next((w for w in widths if 8 * (triton.cdiv(columns, w) * w - columns) <= columns), 32)
    return 8 if columns % 8 == 0 else 1, width, triton.cdiv(columns, width)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class _BatchNormAct(torch.autograd.Function):
    """`arrived` (one number per block of columns) is 0 before and after: the last program to arrive adds the sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor,
                arrived: Tensor, momentum: float, eps: float, low: float, high: float) -> Tensor:  # fmt: skip
        tiles, summed, columns = tiles_of(x), summed_tiles_of(x), x.shape[1]
        parts, rows_per_part = summed.parts(x.device)
        y = torch.empty_like(x)
        mean, rstd = x.new_empty(2, columns, dtype=torch.float32)
        partial = x.new_empty(parts * 2 * columns, dtype=torch.float32)
        _statistics[summed.blocks, parts](
            x, partial, arrived, mean, rstd, running_mean, running_var, momentum, eps,
            summed.rows, summed.units, parts, rows_per_part, **summed.options,
        )  # fmt: skip
        _normalise[tiles.over_all](
            x, y, mean, rstd, eps, weight, bias, low, high, tiles.rows, tiles.units, IS_VARIANCE=False, **tiles.options
        )
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.arrived, ctx.clamp = arrived, (low, high)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        low, high = ctx.clamp
        dy = dy.contiguous(memory_format=torch.channels_last)
        tiles, summed = tiles_of(x), summed_tiles_of(x)
        parts, rows_per_part = summed.parts(x.device)
        dx = torch.empty_like(x)
        weight_grad, bias_grad = torch.empty_like(weight), torch.empty_like(bias)
        partial = x.new_empty(parts * 2 * x.shape[1], dtype=torch.float32)
        _gradient_sums[summed.blocks, parts](
            x, dy, mean, rstd, weight, bias, partial, ctx.arrived, weight_grad, bias_grad, low, high,
            summed.rows, summed.units, parts, rows_per_part, **summed.options,
        )  # fmt: skip
        _gradient[tiles.over_all](
            x, dy, dx, mean, rstd, weight, bias, weight_grad, bias_grad, low, high, tiles.rows, tiles.units,
            **tiles.options,
        )  # fmt: skip
        return dx, weight_grad, bias_grad, *(None,) * 7


def _evaluated(x: Tensor, norm: nn.BatchNorm2d, low: float, high: float) -> Tensor:
    """Normalise by the running statistics, without gradient."""
    tiles = tiles_of(x)
    y = torch.empty_like(x)
    _normalise[tiles.over_all](
        x, y, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias, low, high, tiles.rows, tiles.units,
        IS_VARIANCE=True, **tiles.options,
    )  # fmt: skip
    return y


def fuse(module: nn.Module) -> int:
    """Make every batch normalisation of a network use these kernels on a GPU, and return their number.

    Weights keep their names. What the kernels do not support (evaluation with a gradient, other memory formats,
    activations other than none, ReLU and ReLU6) is computed as before.
    """
    fused = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d) and clamp_of(part) is not None]
    for part in fused:
        if type(part) not in _FUSED:
            _FUSED[type(part)] = _fused_class(type(part))
        part.__class__ = _FUSED[type(part)]
    return len(fused)


def clamp_of(part: nn.Module) -> tuple[float, float] | None:
    """The bounds to which a layer's activation (timm's layers include one) clamps; None for other activations."""
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
        if not (known and order and bounds is not None and (x.is_cuda or INTERPRETED)):
            return plain.forward(self, x)
        if not self.training:
            return plain.forward(self, x) if torch.is_grad_enabled() else _evaluated(x, self, *bounds)
        arrived = self.__dict__.get("arrived")
        if arrived is None or arrived.device != x.device:
            arrived = self.__dict__["arrived"] = torch.zeros(
                summed_tiles_of(x).blocks, dtype=torch.int32, device=x.device
            )
        running = self.running_mean, self.running_var
        out: Tensor = _BatchNormAct.apply(
            x, self.weight, self.bias, *running, arrived, self.momentum, self.eps, *bounds
        )
        return out

    fused: type[nn.BatchNorm2d] = type(f"Fused{plain.__name__}", (plain,), {"forward": forward})
    return fused
