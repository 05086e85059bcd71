"""The convolutions' weights in bfloat16, made for a step all at once.

Autocast makes a bfloat16 copy of every weight when it is used, and a float32 copy of every gradient: two small kernels
for each convolution, which at small batches are a good part of all there are. These are the same numbers.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call


class HalfWeights:
    """Copies of a network's convolution weights that stand in for them in forward and backward passes."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        convolutions = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Conv2d)]
        self.names = [f"{name}.weight" for name, part in convolutions if part.weight.requires_grad]
        self.full = [part.weight for _, part in convolutions if part.weight.requires_grad]
        self.half = [weight.detach().to(torch.bfloat16).requires_grad_() for weight in self.full]

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the weights: before each step."""
        if self.half:  # torch refuses lists of nothing, and a head on features has no convolution
            torch._foreach_copy_(self.half, self.full)

    def __call__(self, images: Tensor) -> object:
        """The network's outputs, by the copies."""
        return functional_call(self.network, dict(zip(self.names, self.half, strict=True)), (images,))

    @torch.no_grad()
    def hand_over_gradients(self) -> None:
        """Give the weights their copies' gradients: after each backward pass."""
        used = [(full, half.grad) for full, half in zip(self.full, self.half, strict=True) if half.grad is not None]
        if not used:
            return
        gradients = [torch.empty_like(full) for full, _ in used]
        torch._foreach_copy_(gradients, [gradient for _, gradient in used])
        for (full, _), gradient in zip(used, gradients, strict=True):
            full.grad = gradient if full.grad is None else full.grad + gradient
        for half in self.half:
            half.grad = None
