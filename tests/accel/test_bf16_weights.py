"""Converting all weights to bfloat16 at once equals autocast, for every head."""

import pytest
import torch
from torch import Tensor, nn

from spml.models import build_classifier
from spml.testing.tiny import TinyNetwork

Bf16Weights = pytest.importorskip("spml.accel.bf16_weights").Bf16Weights


def gradients(network: nn.Module, forward, images: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    with torch.autocast("cpu", torch.bfloat16):
        loss = sum(forward(view).logits.square().mean() for view in images)
    loss.backward()
    return loss.detach(), [p.grad for p in network.parameters() if p.grad is not None]


@pytest.mark.parametrize("head", ["linear", "cam", "label-wise"])
def test_gradients_equal_autocast(head: str) -> None:
    settings = {"width": 32, "dropout": 0.0} if head == "label-wise" else {}
    torch.manual_seed(0)
    plain = build_classifier("small", 4, head, image_size=32, **settings)
    torch.manual_seed(0)
    copied = build_classifier("small", 4, head, image_size=32, **settings)
    images = [torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8) for _ in range(2)]
    weights = Bf16Weights(copied)
    assert weights.names
    for network in (plain, copied):  # the copies must follow their weights
        for parameter in network.parameters():
            parameter.data.add_(0.01)
    weights.refresh()
    one, of_one = gradients(plain, plain, images)
    other, of_other = gradients(copied, weights, images)
    weights.hand_over_gradients()
    of_other = [p.grad for p in copied.parameters() if p.grad is not None]
    assert one == other
    assert len(of_one) == len(of_other)
    for a, b in zip(of_one, of_other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-6)
    assert all(copy.grad is None for copy in weights.copies)


def test_existing_gradients_are_kept() -> None:
    network = build_classifier("small", 4, image_size=32)
    weights = Bf16Weights(network)
    weights.full[0].grad = torch.ones_like(weights.full[0])
    weights.copies[0].grad = torch.full_like(weights.copies[0], 2.0)
    weights.hand_over_gradients()
    assert (weights.full[0].grad == 3).all()


def test_network_without_convolutions() -> None:
    network, rows = TinyNetwork(width=3, classes=2), torch.randn(5, 3)
    weights = Bf16Weights(network)
    weights.refresh()
    weights(rows).logits.sum().backward()
    weights.hand_over_gradients()
    torch.testing.assert_close(weights(rows).logits, network(rows).logits)
    torch.testing.assert_close(network.to_logits.grad, rows.sum(0)[:, None].expand(3, 2))
