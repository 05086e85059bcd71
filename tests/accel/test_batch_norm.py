"""Fused batch normalisation equals torch's."""

import pytest

from support.triton_interpreter import run_interpreted

pytest.importorskip("spml.accel.batch_norm", exc_type=ImportError)

PROGRAM = """
import math, torch
from torch import nn
from timm.layers import BatchNormAct2d
from spml.accel.batch_norm import fuse

torch.manual_seed(0)

def check(plain, fused, images):
    results = []
    for layer, dtype in ((plain.double(), torch.float64), (fused, torch.float32)):
        x = images.to(dtype).requires_grad_()
        y = layer(x)
        slope = torch.linspace(-1, 1, y.numel(), dtype=dtype).view(y.shape)
        y.backward(slope.contiguous(memory_format=torch.channels_last))
        results.append([y, x.grad, *(p.grad for p in layer.parameters()), layer.running_mean, layer.running_var])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=1e-4, atol=1e-4)
    wanted = plain.eval()(images.double()).float()
    torch.testing.assert_close(wanted, fused.eval()(images), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(wanted, fused(images), rtol=1e-4, atol=1e-4)

for channels, mean, activation in ((24, 0.0, nn.ReLU6), (130, 20.0, None), (40, -3.0, nn.ReLU)):
    pair = []
    for _ in range(2):
        torch.manual_seed(1)
        layer = nn.BatchNorm2d(channels) if activation is None else BatchNormAct2d(channels, act_layer=activation)
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.normal_(layer.bias)
        layer.running_mean.fill_(0.9 * mean)
        pair.append(layer)
    assert fuse(pair[1]) == 1 and list(pair[0].state_dict()) == list(pair[1].state_dict())
    images = (mean + 2 * torch.randn(3, channels, 5, 7)).contiguous(memory_format=torch.channels_last)
    check(*pair, images)
assert fuse(BatchNormAct2d(8, act_layer=nn.SiLU)) == 0
print("equal")
"""


def test_fused_equals_plain_batch_normalisation():
    assert run_interpreted(PROGRAM) == "equal"
