"""Faster convolutions: outputs and gradients equal PyTorch's."""

import pytest
import torch
from timm.layers.conv2d_same import Conv2dSame
from torch import nn

from spml.models import build_classifier
from support.triton_interpreter import run_interpreted

accel = pytest.importorskip("spml.accel.convolution")
Bf16Weights = pytest.importorskip("spml.accel.bf16_weights").Bf16Weights
WeightGradStream, speed_up = accel.WeightGradStream, accel.speed_up

CPU = torch.device("cpu")


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Conv2dSame(3, 8, 3, stride=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False),
        nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False),
        Conv2dSame(8, 8, 3, stride=2, groups=8, bias=False),
        nn.Conv2d(8, 4, 1),  # with a bias: not replaced
    ).double()


def gradients(network: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in network.parameters() if p.grad is not None]


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("size", [40, 41])
def test_outputs_and_gradients_equal_autograd_for_several_views(own_stream: bool, size: int) -> None:
    plain, other = layers(), layers()
    assert speed_up(other) == 4
    assert speed_up(other) == 4  # again, as by a second run
    views = [torch.randn(2, 3, size, size, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    sum(plain(view).square().sum() for view in views).backward()
    input_gradients = [view.grad for view in views]
    for view in views:
        view.grad = None
    if own_stream:
        with WeightGradStream(CPU).collecting():
            sum(other(view).square().sum() for view in views).backward()
            assert other[0].weight.grad is None
    else:
        sum(other(view).square().sum() for view in views).backward()
    for a, b in zip(input_gradients + gradients(plain), [v.grad for v in views] + gradients(other), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(plain(views[0]), other(views[0]))
    assert list(plain.state_dict()) == list(other.state_dict())


@pytest.mark.parametrize("count", [3, 4, 7])
def test_smaller_last_batch_is_padded_for_depthwise_convolutions(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = layers(), layers()
    speed_up(other, batch_size=4)
    sizes, conv2d = set(), torch.nn.functional.conv2d

    def noting(images, weight, bias, stride, padding, dilation, groups):  # type: ignore[no-untyped-def]
        sizes.add((groups > 1, len(images)))
        return conv2d(images, weight, bias, stride, padding, dilation, groups)

    monkeypatch.setattr("torch.nn.functional.conv2d", noting)
    images = torch.randn(count, 3, 40, 40, dtype=torch.float64, requires_grad=True)
    with WeightGradStream(CPU).collecting():
        other(images).square().sum().backward()
    input_gradient, images.grad = images.grad, None
    assert sizes == {(False, count), (True, 4 if count <= 4 else 8)}
    plain(images).square().sum().backward()
    for a, b in zip([images.grad, *gradients(plain)], [input_gradient, *gradients(other)], strict=True):
        torch.testing.assert_close(a, b)


def test_failed_step_leaves_no_gradients() -> None:
    network, gradient_stream = layers(), WeightGradStream(CPU)
    speed_up(network)

    def step() -> None:
        with gradient_stream.collecting():
            network(torch.randn(2, 3, 9, 9, dtype=torch.float64)).sum().backward()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step()
    assert not gradient_stream.computed
    network(torch.randn(2, 3, 9, 9, dtype=torch.float64)).sum().backward()
    assert network[0].weight.grad is not None


def test_together_with_bf16_weights() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    found = []
    for fast in (False, True):
        torch.manual_seed(0)
        network = build_classifier("small", 4, image_size=32)
        weights, gradient_stream = Bf16Weights(network), WeightGradStream(CPU)
        if fast:
            assert speed_up(network) == 4
        with gradient_stream.collecting():
            with torch.autocast("cpu", torch.bfloat16):
                loss = weights(images).logits.square().mean()
            loss.backward()
        weights.hand_over_gradients()
        found.append(gradients(network))
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-6)


KERNELS = """
import torch
from timm.layers.conv2d_same import Conv2dSame
from spml.accel.convolution import speed_up, plan_for

for channels, size, stride, high, wide in ((24, 3, 2, 8, 6), (130, 5, 2, 7, 9), (40, 3, 3, 10, 7), (8, 5, 1, 5, 6)):
    torch.manual_seed(0)
    plain, fast = (Conv2dSame(channels, channels, size, stride=stride, groups=channels, bias=False) for _ in range(2))
    fast.load_state_dict(plain.state_dict())
    assert speed_up(fast) == 1
    images = torch.randn(3, channels, high, wide).contiguous(memory_format=torch.channels_last)
    assert plan_for(fast, images, True)[1].stencil is not None
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


def test_depthwise_kernels_equal_convolutions() -> None:
    assert run_interpreted(KERNELS) == "equal"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [64, 97])
def test_gradients_on_a_gpu_equal_pytorch(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = []
    for fast in (False, True):
        torch.manual_seed(0)
        network = build_classifier("lite2", 4, pretrained=False, image_size=size).cuda()
        network = network.to(memory_format=torch.channels_last)
        if fast:
            assert speed_up(network) > 60
        images = torch.randint(0, 256, (4, 3, size, size), dtype=torch.uint8, device="cuda")
        with WeightGradStream(torch.device("cuda")).collecting():
            network(images.contiguous(memory_format=torch.channels_last)).logits.square().sum().backward()
        found.append(torch.cat([g.flatten() for g in gradients(network)]))
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-3
