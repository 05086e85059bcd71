"""Cole et al. 2021: known gradients, the double sum of PR, R_k, and special cases."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from spml.losses import LOSSES, assume_negative
from spml.losses.cole import (
    expected_positive,
    expected_positive_regulariser,
    expected_positives,
    ignore_unobserved,
    pairwise_ranking,
    smoothed_assume_negative,
    smoothed_bce,
    weak_assume_negative,
)
from spml.losses.terms import positive_term
from spml.losses.zhou import entropy_maximisation, negative_smoothed
from support import loss_oracles as oracle
from support.loss_cases import TABLES, LabelledLogits

every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


def tensors(table: LabelledLogits) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(table.logits), torch.from_numpy(table.labels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("logit", [-12.0, -20.0, -1e4])
def test_a_confidently_missed_positive_keeps_its_gradient(logit: float, dtype: torch.dtype) -> None:
    """p - 1, about -1. With log(p + 1e-5) it is -0.38 at -12 and -2e-4 at -20."""
    logits = torch.tensor([[logit]], dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(assume_negative(logits, torch.tensor([[1]])).sum(), logits)
    assert gradient.item() == pytest.approx(-1.0, abs=1e-5)
    probability = torch.sigmoid(torch.tensor([logit], dtype=torch.float64)).requires_grad_()
    (naive,) = torch.autograd.grad(-torch.log(probability + 1e-5).sum(), probability)
    naive_by_logit = (naive * probability * (1 - probability)).item()
    assert naive_by_logit > -0.4  # what this library is there to avoid


@every_table
def test_bce_iu_and_iun_are_one_formula(table: LabelledLogits) -> None:
    assert LOSSES["bce"] is LOSSES["iu"] is ignore_unobserved
    logits, labels = tensors(table)
    assert_close(LOSSES["iun"](logits, labels), ignore_unobserved(logits, labels), rtol=0, atol=0)
    known = torch.where(labels == 0, -1, labels)
    assert_close(ignore_unobserved(logits, known), assume_negative(logits, labels), rtol=0, atol=0)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, (known > 0).double(), reduction="none")
    assert_close(ignore_unobserved(logits, known), bce, rtol=1e-12, atol=1e-14)


@every_table
def test_zero_smoothing_equals_the_hard_losses(table: LabelledLogits) -> None:
    logits, labels = tensors(table)
    hard = assume_negative(logits, labels)
    exact = {"rtol": 1e-15, "atol": 1e-300}
    smoothed = smoothed_assume_negative(logits, labels, positive_smoothing=0.0, negative_smoothing=0.0)
    assert_close(smoothed, hard, **exact)
    assert_close(negative_smoothed(logits, labels, smoothing=0.0), hard, **exact)
    assert_close(smoothed_bce(logits, labels, smoothing=0.0), ignore_unobserved(logits, labels), **exact)


@every_table
def test_smoothing_negatives_alone_leaves_positives_hard(table: LabelledLogits) -> None:
    logits, labels = tensors(table)
    without_verified = labels.clamp(min=0)
    one_sided = smoothed_assume_negative(logits, without_verified, positive_smoothing=0.0, negative_smoothing=0.3)
    assert_close(negative_smoothed(logits, without_verified, smoothing=0.3), one_sided, rtol=0, atol=0)


def test_smoothing_is_halved_as_in_the_paper() -> None:
    """ε = 0.1 gives targets 0.95 and 0.05: the loss is least exactly there."""
    for label, target in ((1, 0.95), (0, 0.05)):
        logits = torch.tensor([[np.log(target) - np.log1p(-target)]], requires_grad=True)
        entries = smoothed_assume_negative(logits, torch.tensor([[label]]))
        (gradient,) = torch.autograd.grad(entries.sum(), logits)
        assert abs(gradient.item()) < 1e-12


@every_table
def test_weight_one_is_an_and_weight_zero_is_iu(table: LabelledLogits) -> None:
    logits, labels = tensors(table)
    assert_close(
        weak_assume_negative(logits, labels, negative_weight=1.0), assume_negative(logits, labels), rtol=0, atol=0
    )
    assert_close(
        weak_assume_negative(logits, labels, negative_weight=0.0), ignore_unobserved(logits, labels), rtol=0, atol=0
    )


def test_wan_gives_the_positive_as_much_weight_as_all_assumed_negatives() -> None:
    entries = weak_assume_negative(torch.zeros(1, 8, dtype=torch.float64), torch.tensor([[0, 0, 1, 0, 0, 0, 0, 0]]))
    assert entries[0, 2].item() == pytest.approx(entries.sum().item() - entries[0, 2].item(), rel=1e-14)


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_pairwise_ranking_is_the_hinge_over_all_pairs(scale: float) -> None:
    """The tensor form of the double sum, with its max(0, ·) written out, and its gradient."""
    rng = np.random.RandomState(2)
    logits = torch.from_numpy(scale * rng.standard_normal((6, 7))).requires_grad_()
    labels = torch.from_numpy(rng.choice([0, 0, 1], size=(6, 7)))
    f = torch.sigmoid(logits)
    hinge = (1 - f[:, :, None] + f[:, None, :]).clamp(min=0)
    pairs = (labels[:, :, None] == 1) & (labels[:, None, :] != 1)
    expected = torch.where(pairs, hinge, 0.0).sum((1, 2))
    actual = pairwise_ranking(logits, labels).sum(-1)
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert_close(
        torch.autograd.grad(actual.sum(), logits), torch.autograd.grad(expected.sum(), logits), rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(
        actual.detach().numpy(), oracle.pr(logits.detach().numpy(), labels.numpy()), rtol=1e-12, atol=1e-12
    )


def test_epr_costs_only_known_labels_where_k_is_met() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.3], [-3.0, 0.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([[1, 0, 0], [0, 0, 1]])
    k = expected_positives(logits)
    assert k.item() == pytest.approx(sum(oracle.p(g) for g in logits.flatten().tolist()) / 2, rel=1e-14)
    assert expected_positive_regulariser(logits, k).item() == 0.0
    published = (positive_term(logits[0, 0]) + positive_term(logits[1, 2])) / 2
    assert expected_positive(logits, labels, k=k.item()).mean().item() == pytest.approx(published.item(), rel=1e-14)
    divided = expected_positive(logits, labels, k=k.item(), divide_by_classes=True).mean().item()
    assert divided == pytest.approx(published.item() / 3, rel=1e-14)


def test_r_k_has_a_value_for_every_head() -> None:
    logits = torch.zeros(3, 4, 10, dtype=torch.float64)  # every row predicts five positives
    values = expected_positive_regulariser(logits, torch.tensor([5.0, 4.0, 0.0], dtype=torch.float64))
    assert_close(values, torch.tensor([0.0, 0.01, 0.25], dtype=torch.float64), rtol=1e-14, atol=1e-16)


@every_table
def test_without_entropy_em_ignores_the_unobserved(table: LabelledLogits) -> None:
    logits, labels = tensors(table)
    assert_close(
        entropy_maximisation(logits, labels, entropy_weight=0.0), ignore_unobserved(logits, labels), rtol=0, atol=0
    )
