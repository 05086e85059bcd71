"""Faster convolutions for training on a GPU. The numbers are those of PyTorch.

- Depthwise convolutions with a stride and TensorFlow's padding use the kernels of depthwise.py.
- For other depthwise convolutions cuDNN compiles kernels for every batch size, which takes seconds. The smaller last
  batch of an epoch is therefore padded with zeros.
- The input gradient of a depthwise convolution with stride 1 is a convolution with flipped weights. On large images
  cuDNN computes that in two thirds of the time of its own gradient.
- Only the optimiser needs weight gradients, earlier layers do not. At small batches neither they nor the input
  gradients fill a GPU, so they are computed on two streams at the same time (`WeightGradStream`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from spml.accel.depthwise import Stencil

_TRITON = find_spec("triton") is not None  # it comes with torch for GPUs, but not on every system
LARGE_IMAGE = 16  # pixels per side from which flipping the weights is faster
PENDING = 16  # weight gradients that may be under way: each keeps the images and gradients of its layer in memory


class ConvPlan(NamedTuple):
    """How a convolution is computed."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    stencil: Stencil | None  # for the kernels of depthwise.py; None: cuDNN
    batch: int = 1  # the number of images is padded to a multiple of this

    def forward(self, images: Tensor, weight: Tensor) -> Tensor:
        if self.stencil is not None:
            from spml.accel.depthwise import convolved

            return convolved(images, weight, self.stencil)
        images_out = F.conv2d(
            self._pad_batch(images), weight, None, self.stride, self.padding, self.dilation, self.groups
        )
        return images_out[: len(images)]

    def input_gradient(self, slope: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        if self.stencil is not None:
            from spml.accel.depthwise import input_gradient

            return input_gradient(slope, images.shape, weight, self.stencil)
        if self._can_flip(images, weight):
            gradient = F.conv2d(self._pad_batch(slope), weight.flip(2, 3), None, 1, self.padding, 1, self.groups)
        else:
            gradient = self._backward(slope, images, weight, (True, False))[0]
        return gradient[: len(images)]

    def weight_gradient(self, slope: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        if self.stencil is not None:
            from spml.accel.depthwise import weight_gradient

            return weight_gradient(slope, images, weight, self.stencil)
        gradient: Tensor = self._backward(slope, images, weight, (False, True))[1]
        return gradient

    def _can_flip(self, images: Tensor, weight: Tensor) -> bool:
        high, wide = weight.shape[2:]
        keeps_size = self.padding == (high // 2, wide // 2) and high % 2 == 1 and wide % 2 == 1
        depthwise = self.stride == self.dilation == (1, 1) and self.groups == images.shape[1] == weight.shape[0] > 1
        return depthwise and keeps_size and min(images.shape[2:]) >= LARGE_IMAGE

    def _pad_batch(self, images: Tensor) -> Tensor:
        empty = -len(images) % self.batch
        return F.pad(images, (0,) * 7 + (empty,)) if empty else images

    def _backward(self, slope: Tensor, images: Tensor, weight: Tensor, output_mask: tuple[bool, bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            self._pad_batch(slope), self._pad_batch(images), weight, None,
            self.stride, self.padding, self.dilation, False, (0, 0), self.groups, (*output_mask, False),
        )  # fmt: skip


_THREAD = threading.local()  # its attribute `weight_gradients` is the WeightGradStream in use


class WeightGradStream:
    """A stream that computes weight gradients while the backward pass continues."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()
        self.computed: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within this context, convolutions leave their weight gradients to this stream; at its end they are added."""
        _THREAD.weight_gradients = self
        try:
            yield
            self._join()
        finally:
            _THREAD.weight_gradients = None
            self.pending.clear()
            self.computed.clear()

    def start(self, plan: ConvPlan, slope: Tensor, images: Tensor, weight: Tensor) -> None:
        """Start to compute the gradient of a weight."""
        if self.stream is None:
            self.computed.append((weight, plan.weight_gradient(slope, images, weight)))
            return
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            gradient = plan.weight_gradient(slope, images, weight)
            done = torch.cuda.Event()
            done.record(self.stream)
        self.computed.append((weight, gradient))
        # What this stream reads must not be freed and overwritten before it has been read.
        self.pending.append((done, (images, slope)))
        while len(self.pending) > PENDING:
            current.wait_event(self.pending.popleft()[0])

    def _join(self) -> None:
        """Wait for all gradients and add them to those of the weights."""
        if self.stream is not None and self.computed:
            torch.cuda.current_stream().wait_stream(self.stream)
        for weight, gradient in self.computed:
            gradient = _laid_out_like(weight, gradient)
            weight.grad = gradient if weight.grad is None else weight.grad + gradient


def _laid_out_like(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with its weight's strides, as autograd gives it: fused copies and optimisers need that."""
    sides = zip(weight.stride(), gradient.stride(), weight.shape, strict=True)
    if all(weight_stride == gradient_stride or size == 1 for weight_stride, gradient_stride, size in sides):
        return gradient.as_strided(weight.shape, weight.stride())
    return torch.empty_like(weight).copy_(gradient)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, plan: ConvPlan, stream: WeightGradStream | None) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.plan, ctx.stream = plan, stream
        ctx.weight = weight if stream is not None else None  # the leaf tensor itself, which receives the gradient
        return plan.forward(images, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        images, weight = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        of_weight = None
        if ctx.stream is not None:
            ctx.stream.start(ctx.plan, slope, images, ctx.weight)
        elif ctx.needs_input_grad[1]:
            of_weight = ctx.plan.weight_gradient(slope, images, weight)
        of_images = ctx.plan.input_gradient(slope, images, weight) if ctx.needs_input_grad[0] else None
        return of_images, of_weight, None, None


def convolve(images: Tensor, weight: Tensor, plan: ConvPlan) -> Tensor:
    """Convolve as planned, also in the backward pass."""
    convolved: Tensor = _Convolution.apply(images, weight, plan, None)
    return convolved


def speed_up(network: nn.Module, batch_size: int = 1) -> int:
    """Make a network's convolutions faster and return their number. Weights keep their names.

    This concerns convolutions without bias whose padding is zeros, none or TensorFlow's. `batch_size` is the size of
    most training batches.
    """
    found = [part for part in network.modules() if is_plain(part) or type(part) in _FAST.values()]
    for part in found:
        part.__dict__["batch_size"] = batch_size
        part.__class__ = _fast_class(type(part))  # type: ignore[arg-type]
    return len(found)


def is_plain(part: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether this is a convolution without bias whose padding is zeros, none or TensorFlow's."""
    if not isinstance(part, nn.Conv2d) or type(part) not in _plain_types():
        return False
    return part.bias is None and part.padding_mode == "zeros" and not isinstance(part.padding, str)


def _plain_types() -> tuple[type[nn.Conv2d], ...]:
    if "timm" not in sys.modules:  # then no network uses its layers
        return (nn.Conv2d,)
    from timm.layers.conv2d_same import Conv2dSame

    return nn.Conv2d, Conv2dSame


_FAST: dict[type[nn.Conv2d], type[nn.Conv2d]] = {}


def _fast_class(plain: type[nn.Conv2d]) -> type[nn.Conv2d]:
    if plain in _FAST.values():
        return plain
    if plain not in _FAST:
        pads_itself = plain is not nn.Conv2d

        def forward(self: nn.Conv2d, images: Tensor) -> Tensor:
            weight, kind = self.weight, images.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else images.dtype
            images, plan = plan_for(self, images.to(dtype), pads_itself)
            if not torch.is_grad_enabled():
                return plan.forward(images, weight.to(dtype))
            if self.groups > 1:
                plan = plan._replace(batch=self.__dict__["batch_size"])
            takes_gradient = weight.is_leaf and weight.requires_grad and weight.dtype == dtype
            stream = getattr(_THREAD, "weight_gradients", None) if takes_gradient else None
            convolved: Tensor = _Convolution.apply(images, weight.to(dtype), plan, stream)
            return convolved

        _FAST[plain] = type(f"Fast{plain.__name__}", (plain,), {"forward": forward})
    return _FAST[plain]


def plan_for(part: nn.Conv2d, images: Tensor, pads_itself: bool) -> tuple[Tensor, ConvPlan]:
    """Return the plan of a layer for these images, and the images, padded if the plan cannot pad them."""
    (high, wide), (down, across) = part.kernel_size, part.stride
    dilation, padding = _pair(part.dilation), _pair(part.padding)  # type: ignore[arg-type]
    stencil = None
    if pads_itself:
        from timm.layers.padding import get_same_padding

        sizes = zip(images.shape[2:], (high, wide), (down, across), dilation, strict=True)
        (top, bottom), (left, right) = (
            (zeros // 2, zeros - zeros // 2) for zeros in (get_same_padding(*s) for s in sizes)
        )
        padding = (0, 0)
        square = high == wide and down == across and dilation == (1, 1)
        if square and part.groups == part.in_channels == part.out_channels > 1 and _has_kernels(images):
            from spml.accel.depthwise import Stencil

            out = (-(-size // down) for size in images.shape[2:])
            stencil = Stencil(high, down, top, left, *out)
            images = images.contiguous(memory_format=torch.channels_last)
        else:
            images = F.pad(images, (left, right, top, bottom))
    return images, ConvPlan((down, across), padding, dilation, part.groups, stencil)


def _pair(value: tuple[int, ...]) -> tuple[int, int]:
    first, second = value
    return first, second


def _has_kernels(images: Tensor) -> bool:
    available = _TRITON and (images.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
    return available and images.dtype in (torch.float32, torch.bfloat16, torch.float16)
