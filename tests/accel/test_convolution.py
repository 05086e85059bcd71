"""Convolutions by other ways: outputs and gradients are those of PyTorch's own."""

import pytest
import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import nn

from spml.accel.bf16_weights import HalfWeights
from spml.accel.convolution import Aside, speed_up
from spml.models import build_classifier
from support.triton_interpreter import run_interpreted

CPU = torch.device("cpu")


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Conv2dSame(3, 8, 3, stride=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False),  # its gradient by weights turned round
        nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False),
        Conv2dSame(8, 8, 3, stride=2, groups=8, bias=False),
        nn.Conv2d(8, 4, 1),  # a bias: stays as it is
    ).double()


def gradients(network: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in network.parameters() if p.grad is not None]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("size", [40, 41])
def test_outputs_and_gradients_are_those_of_autograd_for_several_views(beside: bool, size: int) -> None:
    plain, other = layers(), layers()
    assert speed_up(other) == 4
    assert speed_up(other) == 4  # again, for another run
    views = [torch.randn(2, 3, size, size, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    sum(plain(view).square().sum() for view in views).backward()
    passed = [view.grad for view in views]
    for view in views:
        view.grad = None
    if beside:
        with Aside(CPU).collecting():
            sum(other(view).square().sum() for view in views).backward()
            assert other[0].weight.grad is None
    else:
        sum(other(view).square().sum() for view in views).backward()
    for a, b in zip(passed + gradients(plain), [v.grad for v in views] + gradients(other), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(plain(views[0]), other(views[0]))
    assert list(plain.state_dict()) == list(other.state_dict())


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_last_batch_is_filled_up_for_depthwise_convolutions_and_learns_the_same(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, other = layers(), layers()
    speed_up(other, batch_size=4)
    asked, conv2d = set(), torch.nn.functional.conv2d

    def noting(images, weight, bias, stride, padding, dilation, groups):  # type: ignore[no-untyped-def]
        asked.add((groups > 1, len(images)))
        return conv2d(images, weight, bias, stride, padding, dilation, groups)

    monkeypatch.setattr("torch.nn.functional.conv2d", noting)
    images = torch.randn(count, 3, 40, 40, dtype=torch.float64, requires_grad=True)
    with Aside(CPU).collecting():
        other(images).square().sum().backward()
    passed, images.grad = images.grad, None
    assert asked == {(False, count), (True, 4 if count <= 4 else 8)}
    plain(images).square().sum().backward()
    for a, b in zip([images.grad, *gradients(plain)], [passed, *gradients(other)], strict=True):
        torch.testing.assert_close(a, b)


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    network, aside = layers(), Aside(CPU)
    speed_up(network)

    def step() -> None:
        with aside.collecting():
            network(torch.randn(2, 3, 9, 9, dtype=torch.float64)).sum().backward()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step()
    assert not aside.made
    network(torch.randn(2, 3, 9, 9, dtype=torch.float64)).sum().backward()
    assert network[0].weight.grad is not None


def test_with_weights_in_bfloat16() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    found = []
    for fast in (False, True):
        torch.manual_seed(0)
        network = build_classifier("small", 4, image_size=32)
        half, aside = HalfWeights(network), Aside(CPU)
        if fast:
            assert speed_up(network) == 4
        with aside.collecting():
            with torch.autocast("cpu", torch.bfloat16):
                loss = half(images).logits.square().mean()
            loss.backward()
        half.hand_over_gradients()
        found.append(gradients(network))
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-6)


KERNELS = """
import torch
from timm.layers.conv2d_same import Conv2dSame
from spml.accel.convolution import speed_up, way_of

for channels, size, stride, high, wide in ((24, 3, 2, 8, 6), (130, 5, 2, 7, 9), (40, 3, 3, 10, 7), (8, 5, 1, 5, 6)):
    torch.manual_seed(0)
    plain, fast = (Conv2dSame(channels, channels, size, stride=stride, groups=channels, bias=False) for _ in range(2))
    fast.load_state_dict(plain.state_dict())
    assert speed_up(fast) == 1
    images = torch.randn(3, channels, high, wide).contiguous(memory_format=torch.channels_last)
    assert way_of(fast, images, True)[1].stencil is not None
    found = []
    for layer in (plain, fast):
        x = images.clone(memory_format=torch.preserve_format).requires_grad_()
        y = layer(x)
        y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape).contiguous(memory_format=torch.channels_last))
        found.append((y, x.grad, layer.weight.grad))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
print("equal")
"""


def test_the_kernels_convolve() -> None:
    assert run_interpreted(KERNELS) == "equal"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [64, 97])
def test_on_a_gpu_a_network_has_the_gradients_of_pytorch(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = []
    for fast in (False, True):
        torch.manual_seed(0)
        network = build_classifier("lite2", 4, pretrained=False, image_size=size).cuda()
        network = network.to(memory_format=torch.channels_last)
        if fast:
            assert speed_up(network) > 60
        images = torch.randint(0, 256, (4, 3, size, size), dtype=torch.uint8, device="cuda")
        with Aside(torch.device("cuda")).collecting():
            network(images.contiguous(memory_format=torch.channels_last)).logits.square().sum().backward()
        found.append(torch.cat([g.flatten() for g in gradients(network)]))
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-3
