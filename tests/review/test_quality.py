"""The estimated precision and recall: their intervals contain the truth, whatever the order of the questions."""

import numpy as np
import pytest
from scipy.special import expit

from spml.review.quality import Quality
from spml.review.questions import expected_gain

ROWS, CLASSES, ROUND = 500, 8, 50


def world(kind, seed):
    """Confidences, and labels that are present with other probabilities."""
    draw = np.random.default_rng([seed, 5])
    logits = draw.normal(-2.2, 0.8, CLASSES) + 2 * draw.normal(size=(ROWS, CLASSES))
    present = draw.random((ROWS, CLASSES)) < expit(logits)
    shown = {
        "right": logits,
        "too high": 1.5 * logits + 0.7,
        "shifted by class": logits + draw.normal(0, 0.8, CLASSES),
        "stretched by class": logits * np.exp(draw.normal(0, 0.4, CLASSES)),
        "bent": np.where(logits > -1, 1.6 * logits + 0.6, 0.8 * logits - 0.2),
        "noisy": 0.6 * logits - 0.5 + 0.8 * draw.normal(size=logits.shape),
    }[kind]
    return expit(shown).astype(np.float32), present


def questions(order, quality, confidences, recovered, open_, draw):
    key = {
        "suggested": lambda: expected_gain(quality.probabilities(confidences), recovered, open_),
        "confident": lambda: confidences,
        "random": lambda: draw.random(confidences.shape),
    }[order]()
    places = np.argsort(-np.where(open_, key, -1), axis=None, kind="stable")[:ROUND]
    return zip(*np.unravel_index(places, open_.shape), strict=True)


def coverage(kind, order, answers, seed):
    """Which of the intervals of precision and recall contain the true values of the classes."""
    confidences, truth = world(kind, seed)
    recovered, open_ = confidences >= 0.5, np.ones(truth.shape, bool)
    quality, draw = Quality(confidences, recovered, open_.copy()), np.random.default_rng([seed, 6])
    for _ in range(answers // ROUND):
        for row, label in questions(order, quality, confidences, recovered, open_, draw):
            quality.answer(int(row), int(label), 1 if truth[row, label] else -1)
            open_[row, label] = False
    inside = []
    kept = (truth & ~open_) | (recovered & open_)
    for label, estimate in enumerate(quality.labels(np.arange(CLASSES))):
        right = (kept & truth)[:, label].sum()
        for interval, whole in ((estimate.precision, kept), (estimate.recall, truth)):
            if number := whole[:, label].sum():
                inside.append(interval.low - 1e-9 <= right / number <= interval.high + 1e-9)
    return inside


@pytest.mark.parametrize("kind", ["right", "too high", "shifted by class", "stretched by class", "bent", "noisy"])
@pytest.mark.parametrize("order", ["suggested", "confident", "random"])
def test_intervals_contain_the_truth(kind, order):
    found = [coverage(kind, order, answers, seed) for answers in (150, 500) for seed in range(4)]
    assert np.mean(np.concatenate(found)) >= 0.87


def test_intervals_become_narrow_where_people_answered_only():
    confidences, truth = world("right", 0)
    recovered, open_ = confidences >= 0.5, np.ones(truth.shape, bool)
    quality = Quality(confidences, recovered, open_)
    before = quality.labels(np.arange(CLASSES))
    for row in np.flatnonzero(recovered[:, 0]):
        quality.answer(int(row), 0, 1 if truth[row, 0] else -1)
    after = quality.labels(np.arange(CLASSES))
    exact = truth[recovered[:, 0], 0].mean()
    assert after[0].precision.low == pytest.approx(1.0)  # everything that is kept was confirmed
    assert before[0].precision.low < exact
    assert after[0].recall.high - after[0].recall.low > 0.1  # nobody asked about the labels of low confidence
    width = [each.precision.high - each.precision.low for each in (before[1], after[1])]
    assert 0.3 * width[0] < width[1] <= width[0] + 0.02


def test_enough_is_never_said_where_nothing_was_recovered():
    confidences = np.full((300, 1), 0.2)  # about 60 labels are missing
    quality = Quality(confidences, confidences > 0.5, np.ones((300, 1), bool))
    (estimate,) = quality.labels([0])
    assert estimate.recall == (0, 0, 0)
    assert not estimate.enough


def test_enough_is_not_said_where_answers_found_only_a_few_of_the_missing_labels():
    confidences = np.full((2000, 1), 0.3)  # about 600 labels are missing
    quality = Quality(confidences, confidences > 0.5, np.ones((2000, 1), bool))
    quality.answer(0, 0, 1)
    (estimate,) = quality.labels([0])
    assert estimate.precision == (1, 1, 1)
    assert estimate.recall.high < 0.05
    assert not estimate.enough


def test_most_likely_curves_maximise_the_posterior():
    """Against the formula: Bernoulli likelihood, Gaussian priors on the values at the knots."""
    from scipy.optimize import minimize

    from spml.review import quality as module

    draw = np.random.default_rng(0)
    asked = draw.integers(0, 4, size=(2, 2, module._BINS))
    fit = module._Fit.of(asked)
    knots, centres = module._KNOTS, module._CENTRES

    def kernel(constant, slope, deviation):
        apart = knots[:, None] - knots[None, :]
        smooth = deviation**2 * np.exp(-0.5 * (apart / 4) ** 2)
        return constant**2 + slope**2 * np.outer(knots, knots) + smooth + 1e-4 * np.eye(len(knots))

    shared, own = np.linalg.inv(kernel(1.0, 0.4, 0.6)), np.linalg.inv(kernel(0.9, 0.35, 0.5))

    def negative(flat):
        f, *of_class = flat.reshape(3, len(knots))
        value = 0.5 * f @ shared @ f
        for label, each in enumerate(of_class):
            p = expit(centres + np.interp(centres, knots, f + each))
            value -= (asked[label, 1] * np.log(p) + asked[label, 0] * np.log(1 - p)).sum() - 0.5 * each @ own @ each
        return value

    best = minimize(negative, np.zeros(3 * len(knots)), method="BFGS", options={"gtol": 1e-4}).x.reshape(3, -1)
    expected = np.stack([centres + np.interp(centres, knots, best[0] + each) for each in best[1:]])
    np.testing.assert_allclose(fit.logits(), expected, atol=0.03)


@pytest.mark.parametrize("kind", ["right", "too high", "shifted by class", "bent"])
@pytest.mark.parametrize("least", [0.5, 0.75])
def test_suggested_questions_need_at_most_half_of_the_answers_of_random_ones(kind, least):
    """F1 of all labels, answers included, after 300 suggested and 600 random answers."""

    def reached(order, answers, seed):
        confidences, truth = world(kind, seed)
        recovered, open_ = confidences >= least, np.ones(truth.shape, bool)
        quality, draw = Quality(confidences, recovered, open_.copy()), np.random.default_rng([seed, 6])
        for _ in range(answers // ROUND):
            for row, label in questions(order, quality, confidences, recovered, open_, draw):
                quality.answer(int(row), int(label), 1 if truth[row, label] else -1)
                open_[row, label] = False
        kept = (truth & ~open_) | (recovered & open_)
        return 2 * (kept & truth).sum() / (kept.sum() + truth.sum())

    suggested, at_random = (
        np.mean([reached(order, answers, seed) for seed in range(3)])
        for order, answers in (("suggested", 300), ("random", 600))
    )
    assert suggested > at_random + 0.005
