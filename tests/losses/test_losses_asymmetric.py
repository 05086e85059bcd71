"""Focal, ASL, LAS and LASD: known gradients, special cases (LASD Sec. 5.3) and Theorems 5.3 and 5.4."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from spml.errors import InputError
from spml.losses import assume_negative
from spml.losses.asymmetric import (
    asymmetric,
    focal,
    leveraged_asymmetric,
    leveraged_asymmetric_with_disambiguation,
    negative_leverage_of,
    view_consistency,
)
from spml.losses.cole import weak_assume_negative
from spml.losses.robust import self_paced_correction
from spml.losses.terms import signed_focal_term
from support import loss_oracles as oracle
from support.loss_cases import TABLES, LabelledLogits


def risk_consistent_full_loss(
    logits: Tensor,
    truth: Tensor,
    *,
    positive_leverage: float,
    negative_leverage: float,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
) -> Tensor:
    """Theorem 5.3, Eq. 11: the fully labelled loss that LASD is consistent with, summed over classes per row."""
    present = truth > 0
    share = 1.0 / present.sum(-1).clamp(min=1).to(logits.dtype)
    entries = signed_focal_term(logits, present, positive_focusing, negative_focusing)
    positives, negatives = (torch.where(mask, entries, 0.0).sum(-1) for mask in (present, ~present))
    return (share + positive_leverage * (1.0 - share)) * positives + negative_leverage * negatives


every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def tensors(table: LabelledLogits) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(table.logits), torch.from_numpy(table.labels)


@pytest.mark.parametrize("label", [0, -1])
@pytest.mark.parametrize(("detach", "published"), [(True, 0.059), (False, 0.209)])
def test_the_two_published_gradients_of_asl(detach: bool, published: float, label: int) -> None:
    logits = torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True)
    entries = asymmetric(logits, torch.tensor([[label]]), detach_weight=detach)
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    assert gradient.item() == pytest.approx(published, abs=5e-4)
    p = oracle.p(0.5)
    shifted = p - 0.05
    through_cost = shifted**4 / (1 - shifted) * p * (1 - p)
    through_weight = -4 * shifted**3 * math.log(1 - shifted) * p * (1 - p)
    expected = through_cost if detach else through_cost + through_weight
    assert gradient.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("logit", [-1.0, 0.3, 2.0])
def test_detached_weights_scale_the_gradient_of_cross_entropy(logit: float) -> None:
    """Without shift: p^γ · p on a negative, -(1 - p)^γ (1 - p) on a positive."""
    logits = torch.tensor([[logit, logit]], dtype=torch.float64, requires_grad=True)
    entries = asymmetric(
        logits, torch.tensor([[0, 1]]), positive_focusing=2.0, negative_focusing=3.0, shift=0.0, detach_weight=True
    )
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    p = oracle.p(logit)
    np.testing.assert_allclose(gradient[0].numpy(), [p**4, -((1 - p) ** 3)], rtol=1e-12)


def test_below_the_shift_a_negative_costs_nothing() -> None:
    logits = torch.tensor([[-4.0, -1e4]], dtype=torch.float64, requires_grad=True)  # p = 0.018 and 0
    entries = asymmetric(logits, torch.zeros(1, 2), shift=0.05)
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    assert entries.tolist() == [[0.0, 0.0]]
    assert gradient.tolist() == [[0.0, 0.0]]


@every_table
def test_special_cases_of_lasd(table: LabelledLogits) -> None:
    """Sec. 5.3: SPLC for λ+ = λ- = 1, ASL without shift if also τ = 1, WAN for τ = 1 and γ = 0."""
    logits, labels = tensors(table)
    exact = {"rtol": 1e-15, "atol": 1e-300}
    focusing = {"positive_focusing": 1.0, "negative_focusing": 4.0}
    for threshold in (0.6, 0.9):
        even = leveraged_asymmetric_with_disambiguation(
            logits, labels, positive_leverage=1.0, negative_leverage=1.0, threshold=threshold, **focusing
        )
        for epoch in (2, 7):
            splc = self_paced_correction(logits, labels, epoch, threshold=threshold, margin=0.0, **focusing)
            assert_close(even, splc, **exact)
    never = leveraged_asymmetric_with_disambiguation(
        logits, labels, positive_leverage=1.0, negative_leverage=1.0, threshold=1.0, **focusing
    )
    assert_close(never, asymmetric(logits, labels, shift=0.0, **focusing), **exact)
    weak = leveraged_asymmetric_with_disambiguation(
        logits, labels, negative_leverage=0.3, threshold=1.0, positive_focusing=0.0, negative_focusing=0.0
    )
    assert_close(weak, weak_assume_negative(logits, labels, negative_weight=0.3), **exact)
    las = leveraged_asymmetric(logits, labels, leverage=0.3, **focusing)
    lasd = leveraged_asymmetric_with_disambiguation(logits, labels, negative_leverage=0.3, threshold=1.0, **focusing)
    assert_close(las, lasd, **exact)


@every_table
def test_without_focusing_losses_are_cross_entropy(table: LabelledLogits) -> None:
    logits, labels = tensors(table)
    an = assume_negative(logits, labels)
    assert_close(focal(logits, labels, focusing=0.0), an, rtol=0, atol=0)
    asl = asymmetric(logits, labels, negative_focusing=0.0, shift=0.0)
    assert_close(asl, an, rtol=0, atol=0)
    assert_close(2 * focal(logits, labels, balance=0.5), focal(logits, labels), rtol=1e-15, atol=1e-300)
    symmetric = asymmetric(logits, labels, positive_focusing=2.0, negative_focusing=2.0, shift=0.0)
    assert_close(symmetric, focal(logits, labels), rtol=1e-15, atol=1e-300)


def test_the_threshold_is_strict() -> None:
    """Eq. 6: f > τ is a pseudo-positive, f ≤ τ is not."""
    logits = torch.tensor([[0.0, 1e-6, -1e-6]], dtype=torch.float64)
    entries = leveraged_asymmetric_with_disambiguation(
        logits,
        torch.zeros(1, 3),
        threshold=0.5,
        positive_leverage=10.0,
        negative_leverage=1.0,
        negative_focusing=0.0,
    )
    at, above, below = entries[0].tolist()
    assert above == pytest.approx(10 * math.log(2), rel=1e-5)
    assert at == pytest.approx(math.log(2), rel=1e-5)
    assert below == pytest.approx(math.log(2), rel=1e-5)


@settings(max_examples=40, deadline=None, database=None)
@given(
    present=st.lists(st.booleans(), min_size=2, max_size=7).filter(any),
    magnitudes=st.lists(st.floats(0.05, 30.0), min_size=7, max_size=7),
    positive_leverage=st.floats(0.0, 1.0),
    negative_leverage=st.floats(0.0, 1.0),
    focusing=st.sampled_from([(0.0, 4.0), (1.0, 2.0), (0.0, 0.0)]),
)
def test_lasd_averaged_over_possible_observations_is_theorem_5_3(
    present: list[bool],
    magnitudes: list[float],
    positive_leverage: float,
    negative_leverage: float,
    focusing: tuple[float, float],
) -> None:
    """Every pseudo-label right (g > σ⁻¹(τ) exactly where present): the mean over z in y equals Eq. 11."""
    bound = math.log(0.9 / 0.1)
    row = [bound + (m if y else -m) for m, y in zip(magnitudes, present, strict=False)]
    logits = torch.tensor([row], dtype=torch.float64)
    shared = {
        "positive_leverage": positive_leverage,
        "negative_leverage": negative_leverage,
        "positive_focusing": focusing[0],
        "negative_focusing": focusing[1],
    }
    sums = []
    for observed in (i for i, y in enumerate(present) if y):
        labels = torch.zeros(1, len(row))
        labels[0, observed] = 1
        entries = leveraged_asymmetric_with_disambiguation(logits, labels, threshold=0.9, **shared)
        sums.append(entries.sum().item())
    full = risk_consistent_full_loss(logits, torch.tensor([present]), **shared)
    assert full.shape == (1,)
    assert np.mean(sums) == pytest.approx(full.item(), rel=1e-10, abs=1e-12)
    expected = oracle.lasd_full(np.array(row), present, **shared)
    assert full.item() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(("classes", "size"), [(5, 1), (5, 3), (8, 7)])
def test_theorem_5_4_balances_positives_and_negatives(classes: int, size: int) -> None:
    """With λ- of the theorem, all positives together weigh as much as all negatives: Eq. 12 up to a factor."""
    positive_leverage = 0.3
    negative_leverage = negative_leverage_of(positive_leverage, size, classes)
    truth = torch.tensor([[1] * size + [0] * (classes - size)])
    leaf = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    full = risk_consistent_full_loss(
        leaf,
        truth,
        positive_leverage=positive_leverage,
        negative_leverage=negative_leverage,
        negative_focusing=0.0,
    )
    (gradient,) = torch.autograd.grad(full.sum(), leaf)
    pull_up, push_down = -gradient[0, :size].sum().item(), gradient[0, size:].sum().item()
    assert pull_up == pytest.approx(push_down, rel=1e-12)
    assert pull_up == pytest.approx((1 + positive_leverage * (size - 1)) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("positive_leverage", "k", "classes", "published"),
    [(0.10, 1.46, 20, 0.05642), (0.03, 2.94, 80, 0.01373), (0.015, 1.89, 81, 0.01281), (0.005, 31.4, 312, 0.00411)],
    ids=["voc", "coco", "nus", "cub"],
)
def test_the_published_negative_leverages(positive_leverage: float, k: float, classes: int, published: float) -> None:
    assert round(negative_leverage_of(positive_leverage, k, classes), 5) == published


@pytest.mark.parametrize("k", [0.0, -1.0, 20.0, 25.0])
def test_impossible_k_raises(k: float) -> None:
    with pytest.raises(InputError, match=rf"k must lie .* \(20\), not {k}"):
        negative_leverage_of(0.1, k, 20)


def test_a_row_without_positives_has_a_full_loss() -> None:
    full = risk_consistent_full_loss(
        torch.zeros(1, 3), torch.zeros(1, 3), positive_leverage=0.1, negative_leverage=0.5, negative_focusing=0.0
    )
    assert full.item() == pytest.approx(1.5 * math.log(2), rel=1e-6)


def test_view_consistency_is_three_squared_distances() -> None:
    rng = np.random.RandomState(0)
    views = [rng.standard_normal((4, 5)) * 3 for _ in range(3)]
    expected = np.zeros(4)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        for n, i in np.ndindex(4, 5):
            expected[n] += (oracle.p(views[a][n, i]) - oracle.p(views[b][n, i])) ** 2
    tensors = [torch.from_numpy(view) for view in views]
    np.testing.assert_allclose(view_consistency(*tensors).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(view_consistency(*reversed(tensors)).numpy(), expected, rtol=1e-12)
    halves = [view.half() for view in tensors]
    assert_close(view_consistency(*halves), view_consistency(*[h.float() for h in halves]), rtol=0, atol=0)
    for view in tensors:
        view.requires_grad_()
    assert torch.autograd.gradcheck(view_consistency, tensors)
