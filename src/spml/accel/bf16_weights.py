"""The convolution weights in bfloat16, converted once per step.

Autocast converts every weight to bfloat16 when it is used and every gradient back to float32: two small kernels per
convolution, a considerable share of all kernels at small batches. Converting all at once gives the same numbers.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Bf16Weights:
    """Copies of a network's convolution weights that replace them in forward and backward passes."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        convolutions = [(name, part) for name, part in network.named_modules() if isinstance(part, nn.Conv2d)]
        self.names = [f"{name}.weight" for name, part in convolutions if part.weight.requires_grad]
        self.full = [part.weight for _, part in convolutions if part.weight.requires_grad]
        self.copies = [weight.detach().to(torch.bfloat16).requires_grad_() for weight in self.full]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights, before each step."""
        if self.copies:  # torch rejects empty lists, and a head on features has no convolution
            torch._foreach_copy_(self.copies, self.full)

    def __call__(self, images: Tensor) -> object:
        """Return the network's outputs, computed with the copies."""
        return functional_call(self.network, dict(zip(self.names, self.copies, strict=True)), (images,))

    @torch.no_grad()
    def hand_over_gradients(self) -> None:
        """Move the copies' gradients to the weights, after each backward pass."""
        used = [(full, copy.grad) for full, copy in zip(self.full, self.copies, strict=True) if copy.grad is not None]
        if not used:
            return
        gradients = [torch.empty_like(full) for full, _ in used]
        torch._foreach_copy_(gradients, [gradient for _, gradient in used])
        for (full, _), gradient in zip(used, gradients, strict=True):
            full.grad = gradient if full.grad is None else full.grad + gradient
        for copy in self.copies:
            copy.grad = None
