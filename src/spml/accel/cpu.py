"""Training in bfloat16 on CPUs that have instructions for it.

oneDNN computes convolutions in bfloat16 about twice as fast as in float32. The exceptions are two gradients of
depthwise convolutions, where its bfloat16 code takes four to forty times as long: the input gradient with a stride, and
the weight gradient of large filters. These are computed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spml.accel.convolution import ConvPlan, convolve, is_plain, plan_for

LARGE_FILTER = 5


class MixedPlan(ConvPlan):
    """A convolution in bfloat16 whose slow gradients are computed in float32."""

    def input_gradient(self, slope: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        if max(self.stride) == 1:
            return self._gradient(slope, images, weight, 0)
        shape = torch.empty_like(images, dtype=torch.float32)  # no value of it is read
        return self._gradient(slope.float(), shape, weight.float(), 0).to(images.dtype)

    def weight_gradient(self, slope: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        if max(weight.shape[2:]) < LARGE_FILTER:
            return self._gradient(slope, images, weight, 1)
        return self._gradient(slope.float(), images.float(), weight.float(), 1).to(weight.dtype)

    def _gradient(self, slope: Tensor, images: Tensor, weight: Tensor, output: int) -> Tensor:
        gradient: Tensor = self._backward(slope, images, weight, (output == 0, output == 1))[output]
        return gradient


def speed_up(network: nn.Module) -> None:
    """Replace the convolutions with slow gradients. Weights keep their names; without autocast nothing changes."""
    for part in network.modules():
        if is_plain(part) and _is_slow(part):
            part.__class__ = _mixed_class(type(part))


def _is_slow(part: nn.Conv2d) -> bool:
    return part.groups == part.in_channels > 1 and (max(part.stride) > 1 or max(part.kernel_size) >= LARGE_FILTER)


_MIXED: dict[type[nn.Conv2d], type[nn.Conv2d]] = {}


def _mixed_class(plain: type[nn.Conv2d]) -> type[nn.Conv2d]:
    if plain not in _MIXED:
        pads_itself = plain is not nn.Conv2d

        def forward(self: nn.Conv2d, images: Tensor) -> Tensor:
            if not torch.is_autocast_enabled("cpu"):
                result: Tensor = plain.forward(self, images)
                return result
            dtype = torch.get_autocast_dtype("cpu")
            images, plan = plan_for(self, images.to(dtype), pads_itself)
            return convolve(images, self.weight.to(dtype), MixedPlan(*plan))

        _MIXED[plain] = type(plain.__name__, (plain,), {"forward": forward})
    return _MIXED[plain]
