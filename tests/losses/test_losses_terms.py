"""The terms of the losses: precision in float32, at any logit."""

import pytest
import torch

from spml.losses.terms import entropy, negative_term, positive_term, signed_focal_term, signed_term, soft_term

POSITIVE = torch.tensor([True, False]).repeat(2001)
TERMS = {
    "positive": positive_term,
    "negative": negative_term,
    "signed": lambda g: signed_term(g, POSITIVE),
    "soft": lambda g: soft_term(g, 0.3),
    "entropy": entropy,
    "focal": lambda g: signed_focal_term(g, POSITIVE, 1.0, 2.0),
    "shifted focal": lambda g: signed_focal_term(g, ~POSITIVE, 0.0, 4.0, shift=0.05),
}


@pytest.mark.parametrize("name", TERMS)
def test_float32_values_and_gradients_are_exact(name):
    """Against float64, with a small relative error down to the tails of the sigmoid."""
    logits = torch.cat([torch.linspace(-80, 80, 4000), torch.tensor([-1e4, 1e4])])
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = logits.to(dtype).requires_grad_()
        values = TERMS[name](leaf)
        results.append((values.detach().double(), torch.autograd.grad(values.sum(), leaf)[0].double()))
    for single, exact in zip(*results, strict=True):
        assert single.isfinite().all()
        torch.testing.assert_close(single, exact, rtol=2e-5, atol=1e-30 if "shifted" not in name else 1e-8)
