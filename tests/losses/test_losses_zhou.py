"""Zhou et al. 2022: the gradient regime of EM, pseudo-labels, regularisers, and special cases."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from spml.losses.cole import weak_assume_negative
from spml.losses.terms import entropy
from spml.losses.zhou import (
    down_weighted,
    entropy_maximisation,
    entropy_maximisation_with_soft_labels,
    entropy_minimisation,
    l1_regularised,
    l1_regulariser,
    l2_regularised,
    l2_regulariser,
)
from support import loss_oracles as oracle
from support.loss_cases import TABLES, LabelledLogits

every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
LOGITS = [-1e4, -90.0, -20.0, -12.0, -3.0, -1e-3, 0.0, 1e-3, 0.5, 3.0, 12.0, 20.0, 90.0, 1e4]


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["64", "32"])
def test_the_gradient_on_unannotated_labels_is_eq_5(dtype: torch.dtype, rtol: float) -> None:
    logits = torch.tensor([LOGITS], dtype=dtype, requires_grad=True)
    entries = entropy_maximisation(logits, torch.zeros(1, len(LOGITS), dtype=torch.int8), entropy_weight=0.2)
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    expected = [oracle.em_gradient(g, 0.2) for g in logits[0].tolist()]
    np.testing.assert_allclose(gradient[0].numpy(), expected, rtol=rtol, atol=1e-37)


def test_the_gradient_regime_of_em() -> None:
    """None at 0, largest where g tanh(g/2) = 1, and 0 for confident predictions; AN's stays at 1."""
    peak = 1.5434046384182085
    logits = torch.tensor([[0.0, peak - 0.01, peak, peak + 0.01, 20.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy_maximisation(logits, torch.zeros(1, 5), entropy_weight=1.0).sum(), logits)
    nothing, before, most, after, confident = gradient[0].tolist()
    assert nothing == 0.0
    assert before < most > after
    assert 0 < confident < 1e-7


def test_entropy_is_even_and_ln_2_at_most() -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    values = entropy(logits)
    assert_close(values, entropy(-logits), rtol=0, atol=0)
    assert values.max().item() == math.log(2)
    assert (values >= 0).all()


def test_entropy_is_exact_with_its_derivatives() -> None:
    """In float32 at g = 90, -p log p - (1 - p) log(1 - p) from a rounded p would be 0 or NaN."""
    logits = torch.tensor([12.0, 20.0, 60.0, -60.0])
    expected = [oracle.entropy(g) for g in logits.tolist()]
    np.testing.assert_allclose(entropy(logits).numpy(), expected, rtol=2e-6)
    double = torch.tensor([-3.0, -0.2, 0.7, 4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(entropy, (double,))


@every_table
def test_without_pseudo_labels_apl_is_em(table: LabelledLogits) -> None:
    logits, labels = torch.from_numpy(table.logits), torch.from_numpy(table.labels)
    leaf = logits.clone().requires_grad_()
    none_given = torch.full_like(logits, torch.nan)
    entries = entropy_maximisation_with_soft_labels(leaf, labels, none_given, entropy_weight=0.3)
    assert_close(entries, entropy_maximisation(logits, labels, entropy_weight=0.3), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(entries.sum(), leaf)
    assert torch.isfinite(gradient).all()  # the NaN of an absent label reaches no gradient


def test_the_loss_of_a_pseudo_label_is_minimal_at_its_value() -> None:
    logits = torch.tensor([[-2.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    soft = torch.sigmoid(logits.detach())
    entries = entropy_maximisation_with_soft_labels(logits, torch.zeros(1, 3), soft, soft_weight=0.9)
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-15)


def test_a_pseudo_label_never_overrides_a_known_label() -> None:
    logits = torch.tensor([[-2.0, 1.0]], dtype=torch.float64)
    labels = torch.tensor([[1, -1]])
    soft = torch.tensor([[0.1, 0.9]], dtype=torch.float64)
    entries = entropy_maximisation_with_soft_labels(logits, labels, soft)
    assert_close(entries, entropy_maximisation(logits, labels), rtol=0, atol=0)


def test_soft_labels_in_half_precision() -> None:
    logits = torch.tensor([[-2.0, 1.0]])
    soft = torch.tensor([[0.25, torch.nan]])
    labels = torch.zeros(1, 2)
    half = entropy_maximisation_with_soft_labels(logits, labels, soft.half())
    assert half.dtype == torch.float32
    assert_close(half, entropy_maximisation_with_soft_labels(logits, labels, soft), rtol=0, atol=0)


@every_table
def test_entropy_minimisation_is_maximisation_with_opposite_sign(table: LabelledLogits) -> None:
    logits, labels = torch.from_numpy(table.logits), torch.from_numpy(table.labels)
    least, most = (f(logits, labels, entropy_weight=0.4) for f in (entropy_minimisation, entropy_maximisation))
    sign = torch.where(labels == 0, -1.0, 1.0).double()
    assert_close(least, sign * most, rtol=0, atol=0)


@every_table
def test_dw_is_wan_with_its_own_weight(table: LabelledLogits) -> None:
    logits, labels = torch.from_numpy(table.logits), torch.from_numpy(table.labels)
    weak = weak_assume_negative(logits, labels, negative_weight=0.1)
    assert_close(down_weighted(logits, labels), weak, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("loss", "regulariser", "norm", "slope"),
    [
        (l1_regularised, l1_regulariser, lambda w: w.abs().sum(), torch.sign),
        (l2_regularised, l2_regulariser, lambda w: w.square().sum(), lambda w: 2 * w),
    ],
    ids=["l1", "l2"],
)
def test_the_gradient_reaches_every_parameter_once(loss, regulariser, norm, slope) -> None:  # type: ignore[no-untyped-def]
    model = torch.nn.Linear(3, 2).double()
    entries = loss(torch.zeros(4, 2), torch.zeros(4, 2), model.parameters(), weight=0.5)
    gradients = torch.autograd.grad(entries.mean(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert_close(gradient, 0.5 * slope(parameter))
    assert_close(regulariser(model.parameters()), norm(model.weight) + norm(model.bias))
