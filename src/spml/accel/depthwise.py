"""Kernels for depthwise convolutions with a stride and any padding.

Networks from TensorFlow pad one side more than the other where they halve an image. PyTorch's convolutions cannot, so
images are first copied into larger ones, and gradients are cropped from larger ones: on the largest layers that takes
longer than the convolution. These kernels treat pixels outside the image as zeros instead.

All images are in channels-last order, that is (pixels, channels) matrices.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spml.accel.batch_norm import channel_blocks, column_block, multiprocessors

ENTRIES = 2048  # per tile
WARPS = 4
PROGRAMS = 8  # per multiprocessor, for weight gradients


@triton.jit
def _place(pixel, height, width):
    """Image, row and column of a pixel, from its number."""
    line = pixel // width
    return line // height, line % height, pixel % width


@triton.jit(do_not_specialize=["pixels", "units", "height", "width", "out_height", "out_width", "top", "left"])
def _convolved(
    x, weight, y, pixels, units, height, width, out_height, out_width, top, left,
    STRIDE: tl.constexpr, SIZE: tl.constexpr, MULTIPLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """y[i, j] = Σ x[i·stride + a - top, j·stride + b - left] w[a, b]."""
    columns, column, in_range = column_block(units, MULTIPLE, WIDTH, tl.program_id(1))
    pixel = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    image, row, across = _place(pixel, out_height, out_width)
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for a in tl.static_range(SIZE):
        for b in tl.static_range(SIZE):
            i, j = row * STRIDE + a - top, across * STRIDE + b - left
            inside = (pixel < pixels) & (i >= 0) & (i < height) & (j >= 0) & (j < width)
            address = ((image * height + i) * width + j).to(tl.int64) * columns
            value = tl.load(x + address[:, None] + column[None, :], inside[:, None] & in_range[None, :], 0.0).to(
                tl.float32
            )
            factor = tl.load(weight + (a * SIZE + b) * columns + column, in_range, 0.0).to(tl.float32)
            total += value * factor[None, :]
    address = pixel.to(tl.int64) * columns
    mask = (pixel < pixels)[:, None] & in_range[None, :]
    tl.store(y + address[:, None] + column[None, :], total.to(y.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["positions", "units", "height", "width", "out_height", "out_width", "top", "left"])
def _passed_on(
    dy, weight, dx, positions, units, height, width, out_height, out_width, top, left,
    STRIDE: tl.constexpr, SIZE: tl.constexpr, MULTIPLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of x. Pixels whose row and column have the same remainders modulo the stride meet the same weights:
    a program handles only such pixels, and reads only those weights."""
    columns, column, in_range = column_block(units, MULTIPLE, WIDTH, tl.program_id(1))
    row_rest, across_rest = tl.program_id(2) // STRIDE, tl.program_id(2) % STRIDE
    position = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    image, row, across = _place(position, tl.cdiv(height, STRIDE), tl.cdiv(width, STRIDE))
    row, across = row * STRIDE + row_rest, across * STRIDE + across_rest
    exists = (position < positions) & (row < height) & (across < width)
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for m in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
        for n in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
            a, b = (row_rest + top) % STRIDE + m * STRIDE, (across_rest + left) % STRIDE + n * STRIDE
            shifted_row, shifted_column = row + top - a, across + left - b  # multiples of the stride
            i, j = shifted_row // STRIDE, shifted_column // STRIDE
            inside = exists & (shifted_row >= 0) & (i < out_height) & (shifted_column >= 0) & (j < out_width)
            inside = (
                inside & (row + top - shifted_row < SIZE) & (across + left - shifted_column < SIZE)
            )  # a and b, of every pixel
            address = ((image * out_height + i) * out_width + j).to(tl.int64) * columns
            slope = tl.load(dy + address[:, None] + column[None, :], inside[:, None] & in_range[None, :], 0.0).to(
                tl.float32
            )
            tap = tl.minimum(a, SIZE - 1) * SIZE + tl.minimum(b, SIZE - 1)
            factor = tl.load(weight + tap * columns + column, in_range, 0.0).to(tl.float32)
            total += slope * factor[None, :]
    address = ((image * height + row) * width + across).to(tl.int64) * columns
    tl.store(
        dx + address[:, None] + column[None, :], total.to(dx.dtype.element_ty), exists[:, None] & in_range[None, :]
    )


@triton.jit(
    do_not_specialize=[
        "pixels",
        "units",
        "height",
        "width",
        "out_height",
        "out_width",
        "top",
        "left",
        "pixels_per_part",
    ]
)
def _weight_sums(
    x, dy, partial, pixels, units, height, width, out_height, out_width, top, left, pixels_per_part,
    STRIDE: tl.constexpr, SIZE: tl.constexpr, MULTIPLE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of one weight of every channel, summed over a part of all pixels."""
    columns, column, in_range = column_block(units, MULTIPLE, WIDTH, tl.program_id(0))
    a, b = tl.program_id(1) // SIZE, tl.program_id(1) % SIZE
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    start = tl.program_id(2) * pixels_per_part
    for first in tl.range(0, tl.minimum(pixels_per_part, pixels - start), HEIGHT, num_stages=3):
        pixel = start + first + tl.arange(0, HEIGHT)
        image, row, across = _place(pixel, out_height, out_width)
        i, j = row * STRIDE + a - top, across * STRIDE + b - left
        inside = (pixel < pixels) & (i >= 0) & (i < height) & (j >= 0) & (j < width)
        mask = inside[:, None] & in_range[None, :]
        address = ((image * height + i) * width + j).to(tl.int64) * columns
        value = tl.load(x + address[:, None] + column[None, :], mask, 0.0).to(tl.float32)
        slope = tl.load(dy + pixel.to(tl.int64)[:, None] * columns + column[None, :], mask, 0.0).to(tl.float32)
        total += value * slope
    address = (tl.program_id(2) * SIZE * SIZE + tl.program_id(1)) * columns
    tl.store(partial + address + column, tl.sum(total, 0), in_range)


class Stencil(NamedTuple):
    """The input pixels of output pixel (i, j): `size`² of them, from (i·stride - top, j·stride - left)."""

    size: int
    stride: int
    top: int
    left: int
    out_height: int
    out_width: int


def _tile(columns: int) -> tuple[int, int, dict[str, int]]:
    """Blocks of channels, pixels per tile, and a kernel's options."""
    multiple, width, blocks = channel_blocks(columns)
    height = ENTRIES // width
    return blocks, height, {"MULTIPLE": multiple, "HEIGHT": height, "WIDTH": width, "num_warps": WARPS}


def _sizes(stencil: Stencil, images: torch.Size, multiple: int) -> tuple[int, ...]:
    _, channels, height, width = images
    return channels // multiple, height, width, stencil.out_height, stencil.out_width, stencil.top, stencil.left


def _by_tap(weight: Tensor) -> Tensor:
    """(size², C): weights of neighbouring channels are adjacent, like their pixels."""
    return weight.flatten(1).t().contiguous()


def convolved(x: Tensor, weight: Tensor, stencil: Stencil) -> Tensor:
    """Each channel (B, C, H, W) with its own weights (C, 1, size, size)."""
    batch, channels = x.shape[:2]
    blocks, height, tile = _tile(channels)
    y = _images(x, batch, channels, stencil.out_height, stencil.out_width)
    pixels = batch * stencil.out_height * stencil.out_width
    _convolved[triton.cdiv(pixels, height), blocks](
        x, _by_tap(weight), y, pixels, *_sizes(stencil, x.shape, tile["MULTIPLE"]),
        STRIDE=stencil.stride, SIZE=stencil.size, **tile,
    )  # fmt: skip
    return y


def input_gradient(dy: Tensor, images: torch.Size, weight: Tensor, stencil: Stencil) -> Tensor:
    batch, channels, high, wide = images
    blocks, height, tile = _tile(channels)
    dx = _images(dy, batch, channels, high, wide)
    stride = stencil.stride
    positions = batch * triton.cdiv(high, stride) * triton.cdiv(wide, stride)
    _passed_on[triton.cdiv(positions, height), blocks, stride * stride](
        dy, _by_tap(weight), dx, positions, *_sizes(stencil, images, tile["MULTIPLE"]),
        STRIDE=stride, SIZE=stencil.size, **tile,
    )  # fmt: skip
    return dx


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, stencil: Stencil) -> Tensor:
    channels, taps = x.shape[1], stencil.size**2
    blocks, height, tile = _tile(channels)
    pixels = dy.numel() // channels
    tiles = triton.cdiv(pixels, height)
    parts = min(tiles, max(1, PROGRAMS * multiprocessors(x.device) // (blocks * taps)))
    pixels_per_part = triton.cdiv(tiles, parts) * height
    parts = triton.cdiv(pixels, pixels_per_part)
    partial = x.new_empty(parts, taps, channels, dtype=torch.float32)
    _weight_sums[blocks, taps, parts](
        x, dy, partial, pixels, *_sizes(stencil, x.shape, tile["MULTIPLE"]), pixels_per_part,
        STRIDE=stencil.stride, SIZE=stencil.size, **tile,
    )  # fmt: skip
    gradient: Tensor = partial.sum(0).t().reshape(weight.shape).to(weight.dtype)
    return gradient


def _images(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)
