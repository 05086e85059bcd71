"""Large loss: the number of suspected entries, their selection and their loss."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from spml.losses import assume_negative
from spml.losses.large import large_loss_count, large_loss_rejection, large_loss_temporary_correction, largest_unknown
from spml.losses.terms import negative_term, positive_term
from support.loss_cases import TABLES, LabelledLogits

BOTH = pytest.mark.parametrize("loss", [large_loss_rejection, large_loss_temporary_correction], ids=["r", "ct"])


@settings(max_examples=200, deadline=None, database=None)
@given(
    rows=st.integers(1, 512),
    classes=st.integers(1, 1000),
    epoch=st.integers(1, 100),
    share=st.sampled_from(["0.07", "0.1", "0.2", "1", "2.5", "100"]),
    cumulative=st.booleans(),
)
def test_the_count_is_the_exact_ceiling(rows: int, classes: int, epoch: int, share: str, cumulative: bool) -> None:
    """Against rational arithmetic: floating point must not push an integer over its ceiling."""
    factor = epoch - 1 if cumulative else 1
    exact = math.ceil(Fraction(rows * classes * factor) * Fraction(share) / 100)
    assert large_loss_count(rows, classes, epoch, float(share), cumulative) == min(exact, rows * classes)


def test_counts_by_hand() -> None:
    assert large_loss_count(16, 20, 1, 0.2) == 0
    assert large_loss_count(16, 20, 2, 0.2) == 1  # 0.64
    assert large_loss_count(16, 80, 6, 0.2) == 13  # 12.8
    assert large_loss_count(10, 100, 4, 0.2) == 6  # 6 exactly
    assert large_loss_count(100, 100, 2, 0.07) == 7  # 7.000000000000001 in floating point
    assert large_loss_count(10, 100, 9, 0.1, cumulative=False) == 1


@BOTH
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_first_epoch_is_an(loss, table: LabelledLogits) -> None:  # type: ignore[no-untyped-def]
    logits, labels = torch.from_numpy(table.logits), torch.from_numpy(table.labels)
    assert_close(loss(logits, labels, 1), assume_negative(logits, labels), rtol=0, atol=0)


def test_only_the_largest_unknown_entries_change() -> None:
    logits = torch.tensor([[9.0, 3.0, -1.0], [8.0, 2.0, 7.0]], dtype=torch.float64)
    labels = torch.tensor([[-1, 0, 0], [0, 1, 0]])
    # Two of six: of the unknowns the largest are 8.0 and 7.0; the verified negative at 9.0 costs more and stays.
    share = 100 * 2 / 6
    suspect = torch.tensor([[False, False, False], [True, False, True]])
    an = assume_negative(logits, labels)
    rejected = large_loss_rejection(logits, labels, 2, share=share)
    assert_close(rejected, an.masked_fill(suspect, 0.0), rtol=0, atol=0)
    corrected = large_loss_temporary_correction(logits, labels, 2, share=share)
    assert_close(corrected, torch.where(suspect, positive_term(logits), an), rtol=0, atol=0)


def test_known_labels_are_never_selected() -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    labels = torch.tensor([[1, 0], [-1, 1]])
    rejected = large_loss_rejection(logits, labels, 50, share=100.0)
    expected = assume_negative(logits, labels)
    expected[0, 1] = 0.0
    assert_close(rejected, expected, rtol=0, atol=0)


def test_rejected_entries_have_no_gradient() -> None:
    logits = torch.tensor([[5.0, 1.0, -1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 0, 0, 1]])
    (gradient,) = torch.autograd.grad(large_loss_rejection(logits, labels, 2, share=25.0).sum(), logits)
    assert gradient[0, 0] == 0
    assert (gradient[0, 1:] != 0).all()
    (gradient,) = torch.autograd.grad(large_loss_temporary_correction(logits, labels, 2, share=25.0).sum(), logits)
    assert gradient[0, 0] < 0  # drawn up, as a positive is


def test_each_head_selects_its_own_entries() -> None:
    logits = torch.tensor([[[5.0, 1.0]], [[1.0, 5.0]]])
    mask = largest_unknown(negative_term(logits), torch.zeros(1, 2), 1)
    assert mask.tolist() == [[[True, False]], [[False, True]]]
