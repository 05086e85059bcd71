"""Elementary functions in the fewest instructions, and the compiled float32 losses made of them."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from spml.losses import LOSSES
from spml.losses.terms import exp_by_exp2, expm1_in_two_pieces, log1p_polynomial, log_by_exponent, sigmoid, tail
from support.loss_cases import ONE_A_NAME, TABLES, Case, LabelledLogits, to_torch

EVERYWHERE = next(table for table in TABLES if table.name == "special")
# Dense, and down to the smallest normal numbers of float32.
UNIT = torch.cat([torch.linspace(0, 1, 200_001)[1:], torch.logspace(-37, 0, 50_001)])


def relative_error(values: Tensor, exact: NDArray[np.float64]) -> float:
    return float(np.abs(values.double().numpy() / exact - 1).max())


def test_log1p_is_a_polynomial_to_float32_precision() -> None:
    assert relative_error(log1p_polynomial(UNIT), np.log1p(UNIT.double().numpy())) < 2e-7
    assert log1p_polynomial(torch.zeros(1)).item() == 0.0


def test_log_by_exponent_to_an_absolute_error() -> None:
    x = torch.cat([UNIT, 1 + UNIT])
    exact = np.log(x.double().numpy())
    wrong = np.abs(log_by_exponent(x).double().numpy() - exact)
    assert (wrong < 1.2e-7 * (1 + np.abs(exact))).all()


def test_exp_is_wrong_by_no_more_than_a_rounded_argument() -> None:
    x = -87 * UNIT
    exact = np.exp(x.double().numpy())
    wrong = np.abs(exp_by_exp2(x).double().numpy() / exact - 1)
    assert (wrong < 1e-7 * (2 + x.abs().double().numpy())).all()
    assert exp_by_exp2(torch.tensor([0.0, -1e4, -torch.inf])).tolist() == [1.0, 0.0, 0.0]


def test_expm1_in_two_pieces_meets_in_the_middle() -> None:
    x = torch.cat([-UNIT, -100 * UNIT, torch.tensor([-0.5, np.nextafter(np.float32(-0.5), np.float32(0))])])
    assert relative_error(expm1_in_two_pieces(x), np.expm1(x.double().numpy())) < 4e-7
    assert expm1_in_two_pieces(torch.tensor([0.0, -1e4])).tolist() == [0.0, -1.0]


def test_compiled_sigmoids_share_a_tail_and_sum_to_one() -> None:
    torch._dynamo.reset()
    logits = torch.cat([-30 * UNIT, 30 * UNIT, torch.tensor([0.0, 1e4, -1e4])])
    both = torch.compile(lambda g: (sigmoid(g, g), sigmoid(-g, g), tail(g)), fullgraph=True, backend="aot_eager")
    present, absent, e = both(logits)
    # 3e-7 and what the tail is wrong by
    bound = 3e-7 + 1e-7 * (2 + logits.abs().double())
    assert ((present.double() / torch.sigmoid(logits.double()) - 1).abs() <= bound).logical_or(logits <= -87).all()
    assert_close(present + absent, torch.ones_like(logits), rtol=0, atol=3e-7)
    assert_close(torch.minimum(present, absent) / torch.maximum(present, absent), e, rtol=1e-6, atol=0)


def together(tables: list[LabelledLogits]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Tables of equal width as one batch: one compilation for all."""
    return np.concatenate([t.logits for t in tables]), np.concatenate([t.labels for t in tables])


def as_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double().numpy()
    return [as_arrays(v) for v in value] if isinstance(value, list) else value


# One name a function, without those whose entries are made of others'.
MADE_OF_TERMS = list(
    {LOSSES[case.name]: case for case in ONE_A_NAME if case.name not in ("l1r", "l2r", "ll-r")}.values()
)


@pytest.mark.parametrize("case", MADE_OF_TERMS, ids=lambda case: case.name)
def test_compiled_float32_is_the_oracle(case: Case) -> None:
    """Values against the papers' formulas, gradients against float64, at any logit: what only a compiler is given."""
    torch._dynamo.reset()
    wide = [t for t in TABLES if t.logits.shape[1] == EVERYWHERE.logits.shape[1]]
    assert len(wide) >= 7
    table, labels = together(wide)
    logits = to_torch(table, torch.float32).requires_grad_()
    inputs = [to_torch(value, torch.float32) for value in case.draw_inputs(table.shape)]
    compiled = torch.compile(case.entries, fullgraph=True, dynamic=False, backend="aot_eager")
    entries = compiled(logits, torch.from_numpy(labels), *inputs)
    expected = case.expected(as_arrays(logits.detach()), labels, *map(as_arrays, inputs))
    np.testing.assert_allclose(as_arrays(case.comparable(entries.detach())), expected, rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    exact = logits.detach().double().requires_grad_()
    doubles = [to_torch(as_arrays(value)) for value in inputs]
    (true,) = torch.autograd.grad(case.entries(exact, torch.from_numpy(labels), *doubles).sum(), exact)
    assert_close(gradient.double(), true, rtol=1e-5, atol=1e-6)
