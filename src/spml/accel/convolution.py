"""Convolutions in training on a GPU, each part by the fastest way there is. The numbers are those of PyTorch's.

- Depthwise ones that halve an image and pad as TensorFlow does go by kernels of our own (depthwise.py).
- For the other depthwise ones cuDNN makes its kernels anew for every number of images, which takes seconds: the batch
  that is left at the end of an epoch is filled up with empty images.
- What a depthwise one of stride 1 passes on is a convolution by its weights turned round: of large images cuDNN makes
  that in two thirds of the time that its own gradient takes.
- The optimiser needs the gradients of the weights, the layers before do not. At small batches neither they nor the
  gradients that are passed on fill a GPU: on a stream of their own (`Aside`) the two run at the same time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from spml.accel.depthwise import Stencil

_TRITON = find_spec("triton") is not None  # it comes with torch for GPUs, but not on every system
PENDING = 16  # weight gradients that may wait: each holds the images and gradients of its layer
LARGE = 16  # pixels a side from which turning the weights round pays


class Way(NamedTuple):
    """How a convolution goes over its images."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    stencil: Stencil | None  # for a kernel of our own
    batch: int = 1  # images come in multiples of this number, the last of them empty

    def forward(self, images: Tensor, weight: Tensor) -> Tensor:
        if self.stencil is not None:
            from spml.accel.depthwise import convolved

            return convolved(images, weight, self.stencil)
        made = F.conv2d(self._filled(images), weight, None, self.stride, self.padding, self.dilation, self.groups)
        return made[: len(images)]

    def input_gradient(self, slope: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        if self.stencil is not None:
            from spml.accel.depthwise import input_gradient

            return input_gradient(slope, images.shape, weight, self.stencil)
        if self._turns(images, weight):
            passed = F.conv2d(self._filled(slope), weight.flip(2, 3), None, 1, self.padding, 1, self.groups)
        else:
            passed = self._backward(slope, images, weight, (True, False))[0]
        return passed[: len(images)]

    def weight_gradient(self, slope: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        if self.stencil is not None:
            from spml.accel.depthwise import weight_gradient

            return weight_gradient(slope, images, weight, self.stencil)
        gradient: Tensor = self._backward(slope, images, weight, (False, True))[1]
        return gradient

    def _turns(self, images: Tensor, weight: Tensor) -> bool:
        high, wide = weight.shape[2:]
        keeps_size = self.padding == (high // 2, wide // 2) and high % 2 == 1 and wide % 2 == 1
        plain = self.stride == self.dilation == (1, 1) and self.groups == images.shape[1] == weight.shape[0] > 1
        return plain and keeps_size and min(images.shape[2:]) >= LARGE

    def _filled(self, images: Tensor) -> Tensor:
        empty = -len(images) % self.batch
        return F.pad(images, (0,) * 7 + (empty,)) if empty else images

    def _backward(self, slope: Tensor, images: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            self._filled(slope), self._filled(images), weight, None,
            self.stride, self.padding, self.dilation, False, (0, 0), self.groups, (*wanted, False),
        )  # fmt: skip


_THREAD = threading.local()  # its `aside`: what collects now, in this thread


class Aside:
    """A stream, and the gradients it makes for weights."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.pending: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()
        self.made: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within, convolutions hand their weights' gradients over to this; at its end they are the weights'."""
        _THREAD.aside = self
        try:
            yield
            self._join()
        finally:
            _THREAD.aside = None
            self.pending.clear()
            self.made.clear()

    def begin(self, way: Way, slope: Tensor, images: Tensor, weight: Tensor) -> None:
        """Begin with the gradient of a weight."""
        if self.stream is None:
            self.made.append((weight, way.weight_gradient(slope, images, weight)))
            return
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            gradient = way.weight_gradient(slope, images, weight)
            done = torch.cuda.Event()
            done.record(self.stream)
        self.made.append((weight, gradient))
        # What the other stream reads must not be freed, and then written, before it has read it.
        self.pending.append((done, (images, slope)))
        while len(self.pending) > PENDING:
            here.wait_event(self.pending.popleft()[0])

    def _join(self) -> None:
        """Wait for all gradients and add them to their weights'."""
        if self.stream is not None and self.made:
            torch.cuda.current_stream().wait_stream(self.stream)
        for weight, gradient in self.made:
            gradient = _laid_out_like(weight, gradient)
            weight.grad = gradient if weight.grad is None else weight.grad + gradient


def _laid_out_like(weight: Tensor, gradient: Tensor) -> Tensor:
    """With the strides of its weight, as autograd leaves it: only so are all of them copied, and moved, at once."""
    sides = zip(weight.stride(), gradient.stride(), weight.shape, strict=True)
    if all(mine == other or size == 1 for mine, other, size in sides):
        return gradient.as_strided(weight.shape, weight.stride())
    return torch.empty_like(weight).copy_(gradient)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, way: Way, aside: Aside | None) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.way, ctx.aside = way, aside
        ctx.weight = weight if aside is not None else None  # the very tensor whose gradient it is
        return way.forward(images, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        images, weight = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        of_weight = None
        if ctx.aside is not None:
            ctx.aside.begin(ctx.way, slope, images, ctx.weight)
        elif ctx.needs_input_grad[1]:
            of_weight = ctx.way.weight_gradient(slope, images, weight)
        passed = ctx.way.input_gradient(slope, images, weight) if ctx.needs_input_grad[0] else None
        return passed, of_weight, None, None


def speed_up(network: nn.Module, batch_size: int = 1) -> int:
    """Let a network's convolutions go these ways; returns how many do. Weights keep their names.

    Only plain ones: without bias, padded by zeros or not at all, or as TensorFlow pads. `batch_size` is that of most
    batches they will be trained on.
    """
    found = [part for part in network.modules() if _is_plain(part)]
    for part in found:
        part.__dict__["batch_size"] = batch_size
        part.__class__ = _fast_class(type(part))  # type: ignore[arg-type]
    return len(found)


def _is_plain(part: nn.Module) -> bool:
    if not isinstance(part, nn.Conv2d) or type(part) not in (*_plain_types(), *_FAST.values()):
        return False
    return part.bias is None and part.padding_mode == "zeros" and not isinstance(part.padding, str)


def _plain_types() -> tuple[type[nn.Conv2d], ...]:
    if "timm" not in sys.modules:  # then nothing here is made of its layers
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
            images, way = way_of(self, images.to(dtype), pads_itself)
            if not torch.is_grad_enabled():
                return way.forward(images, weight.to(dtype))
            if self.groups > 1:
                way = way._replace(batch=self.__dict__["batch_size"])
            own = weight.is_leaf and weight.requires_grad and weight.dtype == dtype
            aside = getattr(_THREAD, "aside", None) if own else None
            made: Tensor = _Convolution.apply(images, weight.to(dtype), way, aside)
            return made

        _FAST[plain] = type(f"Fast{plain.__name__}", (plain,), {"forward": forward})
    return _FAST[plain]


def way_of(part: nn.Conv2d, images: Tensor, pads_itself: bool) -> tuple[Tensor, Way]:
    """The way of a layer over these images, and the images, padded if there is no other way."""
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
    return images, Way((down, across), padding, dilation, part.groups, stencil)


def _pair(value: tuple[int, ...]) -> tuple[int, int]:
    first, second = value
    return first, second


def _has_kernels(images: Tensor) -> bool:
    there = _TRITON and (images.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
    return there and images.dtype in (torch.float32, torch.bfloat16, torch.float16)
