"""SPLC, Hill and GR: margins, epochs, gradients through detached factors, and limits."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from spml.losses import RobustSchedule, assume_negative
from spml.losses.asymmetric import focal
from spml.losses.cole import ignore_unobserved
from spml.losses.robust import generalised_robust, hill, self_paced_correction
from spml.losses.terms import negative_term, positive_term
from support import loss_oracles as oracle
from support.loss_cases import TABLES, LabelledLogits

every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
LOGITS = np.array([-1e4, -20.0, -3.0, -0.4, 0.0, 0.7, 2.0, 12.0, 1e4])


@every_table
def test_before_correction_and_margin_splc_is_focal(table: LabelledLogits) -> None:
    logits, labels = torch.from_numpy(table.logits), torch.from_numpy(table.labels)
    splc = self_paced_correction(logits, labels, 1, margin=0.0)
    assert_close(splc, focal(logits, labels, focusing=2.0), rtol=1e-15, atol=1e-300)


def test_the_second_epoch_corrects_only_confident_unknown_labels() -> None:
    logits = torch.tensor([[2.0, 2.0, 2.0, 0.3]], dtype=torch.float64)  # p = 0.88, 0.88, 0.88, 0.57
    labels = torch.tensor([[0, -1, 1, 0]])
    first, second = (self_paced_correction(logits, labels, epoch) for epoch in (1, 2))
    assert (first != second).tolist() == [[True, False, False, False]]
    # Margins are for observed positives only: the corrected label is asked for less.
    assert second[0, 0].item() == pytest.approx(oracle.focal_positive(2.0, 2.0), rel=1e-14)
    assert second[0, 2].item() == pytest.approx(oracle.focal_positive(1.0, 2.0), rel=1e-14)


def test_the_gradient_of_hill_vanishes_for_confident_negatives() -> None:
    """d/dp (λ - p) p² = p (2λ - 3p): nothing left at p = 1 when λ = 1.5."""
    logits = torch.from_numpy(LOGITS)[None].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(hill(logits, torch.zeros(1, len(LOGITS))).sum(), logits)
    p, q = (np.array([f(g) for g in LOGITS]) for f in (oracle.p, oracle.not_p))
    np.testing.assert_allclose(gradient[0].numpy(), 3 * p**2 * q**2, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("now", [(1, 8), (3, 8), (8, 8)])
@pytest.mark.parametrize("powers", [(0.01, 1.0), (0.5, 0.7)])
def test_gr_detaches_belief_and_weight(now: tuple[int, int], powers: tuple[float, float]) -> None:
    """V [-K p^q2 (1 - p) + (1 - K) (1 - p)^q3 p]."""
    logits = torch.from_numpy(LOGITS)[None].clone().requires_grad_()
    entries = generalised_robust(
        logits, torch.zeros(1, len(LOGITS)), *now, positive_power=powers[0], negative_power=powers[1]
    )
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    expected = []
    for g in LOGITS:
        belief, weight = oracle.gr_belief_and_weight(g, oracle.gr_at(*now))
        up = -(oracle.p(g) ** powers[0]) * oracle.not_p(g)
        down = oracle.not_p(g) ** powers[1] * oracle.p(g)
        expected.append(weight * (belief * up + (1 - belief) * down))
    np.testing.assert_allclose(gradient[0].numpy(), expected, rtol=1e-11, atol=1e-15)


def test_the_schedule_moves_as_in_the_authors_code() -> None:
    schedule = RobustSchedule()
    assert schedule.at(1, 8) == pytest.approx((0.0, -2.0, 0.5375, 1.8125))
    assert schedule.at(8, 8) == pytest.approx((1.75, -2.0, 0.8, 0.5))
    assert schedule.at(1, 1) == pytest.approx((0.0, -2.0, 0.8, 0.5))


def fixed(belief: float) -> RobustSchedule:
    """K = σ(belief) for every probability, and V = 1."""
    return RobustSchedule((0.0, 0.0), (belief, belief), (0.5, 0.5), (1e9, 1e9))


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_limits_of_gr(scale: float) -> None:
    """(1 - p^q)/q is cross-entropy as q falls to 0 and 1 - p at q = 1; a sure belief leaves one of the two terms."""
    logits = scale * torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(4, 5)
    tiny = {"positive_power": 1e-9, "negative_power": 1e-9}
    as_positive = generalised_robust(logits, labels, 1, 8, schedule=fixed(60.0), **tiny)
    assert_close(as_positive, positive_term(logits), rtol=1e-6, atol=1e-9)
    as_negative = generalised_robust(logits, labels, 1, 8, schedule=fixed(-60.0), **tiny)
    assert_close(as_negative, assume_negative(logits, labels), rtol=1e-6, atol=1e-9)
    assert_close(
        generalised_robust(logits, labels, 1, 8, schedule=fixed(-60.0)), torch.sigmoid(logits), rtol=1e-12, atol=1e-14
    )
    undecided = generalised_robust(logits, labels, 1, 8, schedule=fixed(0.0), **tiny)
    assert_close(undecided, (positive_term(logits) + negative_term(logits)) / 2, rtol=1e-6, atol=1e-9)


def test_gr_without_weight_ignores_the_unobserved() -> None:
    nowhere = RobustSchedule(centre=(1e3, 1e3), width=(1.0, 1.0))
    logits = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 0, 0, 1]).expand(4, 5)
    gr = generalised_robust(logits, labels, 4, 8, schedule=nowhere)
    assert_close(gr, ignore_unobserved(logits, labels), rtol=1e-14, atol=1e-15)
