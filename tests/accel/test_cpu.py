"""Training in bfloat16 on a CPU."""

import copy

import pytest
import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import nn

from spml.accel import cpu
from spml.accel.cpu import speed_up
from spml.training.accelerator import CpuAccelerator, choose_accelerator
from spml.training.device import default_precision


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 1, bias=False),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False),
        nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False),
        Conv2dSame(8, 8, 5, stride=2, groups=8, bias=False),
    ).to(memory_format=torch.channels_last)


def test_only_depthwise_convolutions_with_stride_or_large_filters_are_replaced() -> None:
    net = network()
    speed_up(net)
    speed_up(net)
    assert [type(part) in cpu._MIXED.values() for part in net] == [False, False, True, True, True]
    types: list[torch.dtype] = []
    for part in net:
        part.register_forward_hook(lambda module, inputs, output: types.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(2, 4, 9, 9))
    assert types == [torch.bfloat16] * 5


def test_values_and_gradients_are_those_of_float32_up_to_bfloat16() -> None:
    plain, fast, images = network(), network(), torch.randn(3, 4, 9, 9)
    speed_up(fast)
    plain(images).square().sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        result = fast(images)
    result.float().square().sum().backward()
    for one, other in zip(plain.parameters(), fast.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(other.grad, one.grad, rtol=0.05, atol=0.05 * float(one.grad.abs().max()))


def test_without_autocast_nothing_changes() -> None:
    plain, images = network(), torch.randn(3, 4, 9, 9)
    fast = copy.deepcopy(plain)
    CpuAccelerator().prepare(fast, 3)
    assert torch.equal(plain(images), fast(images))
    assert list(plain.state_dict()) == list(fast.state_dict())
    assert torch.equal(copy.deepcopy(fast)(images), plain(images))


@pytest.mark.parametrize(
    ("found", "precision"), [({}, "32"), ({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True}, "bf16")]
)
def test_precision_follows_the_processor(
    found: dict[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    assert default_precision(torch.device("cpu")) == precision
    assert default_precision(torch.device("cuda")) == "bf16"


def test_a_cpu_gets_its_accelerator() -> None:
    assert isinstance(choose_accelerator(torch.device("cpu")), CpuAccelerator)
    assert not isinstance(choose_accelerator(torch.device("cpu"), accelerate=False), CpuAccelerator)
