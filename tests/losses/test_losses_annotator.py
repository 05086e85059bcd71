"""The annotator's choice: against every possible set of labels, and with many classes."""

import itertools
import math

import numpy as np
import pytest
import torch

from spml.losses.annotator import annotator_choice, log_probability_observed
from support import loss_oracles as oracle


def test_probabilities_of_all_observed_labels_sum_to_that_of_any_label() -> None:
    """Enumerate all sets of labels: each present label is observed with probability 1 / |set|."""
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64)
    p = torch.sigmoid(logits).tolist()
    named = [0.0] * 4
    for present in itertools.product((0, 1), repeat=4):
        chance = math.prod(q if there else 1 - q for q, there in zip(p, present, strict=True))
        for c in range(4):
            named[c] += present[c] * chance / max(sum(present), 1)
    for c in range(4):
        labels = torch.zeros(1, 4)
        labels[0, c] = 1
        assert math.exp(-annotator_choice(logits[None], labels).sum().item()) == pytest.approx(named[c], rel=1e-12)
    assert sum(named) == pytest.approx(1 - math.prod(1 - q for q in p))


@pytest.mark.parametrize(
    ("classes", "mean_logit", "tolerance"), [(80, -3.0, 1e-9), (312, -2.0, 1e-6), (2000, -6.0, 1e-9)]
)
def test_many_classes(classes: int, mean_logit: float, tolerance: float) -> None:
    generator = np.random.RandomState(0)
    logits = mean_logit + generator.standard_normal((3, classes))
    labels = np.zeros((3, classes), int)
    labels[:, 0] = 1
    ours = annotator_choice(torch.from_numpy(logits), torch.from_numpy(labels)).sum(-1)
    np.testing.assert_allclose(ours.numpy(), oracle.annotator_choice(logits, labels), atol=tolerance)


def test_two_labels_observed_equally_often_are_both_present() -> None:
    """Unlike with a softmax, the likelihood of (½, ½) is highest at p = (1, 1)."""
    logits = torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.3)
    labels = torch.tensor([[1, 0], [0, 1]])
    for _ in range(200):
        optimiser.zero_grad()
        annotator_choice(logits.expand(2, 2), labels).sum().backward()
        optimiser.step()
    assert (torch.sigmoid(logits) > 0.99).all()


def test_rows_without_an_observed_label_cost_nothing() -> None:
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    assert (log_probability_observed(logits, torch.zeros(2, 5)) == 0).all()
    assert (annotator_choice(logits, torch.zeros(2, 5)) == 0).all()
