"""Learning from answers on features: the correction against its formula, and that answers never make a model worse."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import expit

from spml.calibration import best_threshold
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.metrics import mean_average_precision
from spml.models.feature_model import feature_model_from_description
from spml.training.learners import fit_features
from spml.training.learners.answers import fit_correction
from spml.training.learners.design import Design

CPU = torch.device("cpu")
CLASSES = 6


def world(rows, seed):
    """Features and labels: some labels depend linearly on the features, some do not; each row has at least one."""
    fixed, draw = np.random.default_rng(3), np.random.default_rng([seed, 7])
    weight = fixed.normal(size=(12, CLASSES))
    x = draw.normal(size=(rows, 12))
    logits = 1.3 * x @ weight / 2 - 1.2 + 0.8 * (x[:, :CLASSES] ** 2 - 1)
    truth = draw.random((rows, CLASSES)) < expit(logits)
    truth[~truth.any(1), draw.integers(CLASSES)] = True
    return x.astype(np.float32), truth


def picked(truth, seed):
    """One of the present labels of every row."""
    draw = np.random.default_rng([seed, 8])
    table = np.zeros(truth.shape, np.int8)
    table[np.arange(len(truth)), (draw.random(truth.shape) * truth).argmax(1)] = 1
    return table


def answers(order, confidences, given, truth, number, seed=0):
    """Answers to some questions: +1 yes, −1 no."""
    keys = {
        "doubtful": -np.abs(confidences - 0.5),
        "confident": confidences,
        "random": np.random.default_rng(seed).random(given.shape),
        "one class": confidences + (np.arange(CLASSES) == 2),
    }[order]
    keys = np.where(given == 0, keys, -np.inf)
    asked = np.zeros(given.shape, np.int8)
    places = np.unravel_index(np.argsort(-keys, axis=None)[:number], given.shape)
    asked[places] = np.where(truth[places], 1, -1)
    return asked


def table(values):
    return Labels.from_matrix(values, [f"class {c}" for c in range(CLASSES)])


def quality(fit, known, given, truth, test_x, test_truth):
    """Test mAP; precision and F1 of the labels that were not given, answers included."""
    confidences = fit.calibration.confidences(expit(fit.evidence), known)
    thresholds = np.array([best_threshold(column) for column in confidences.T])
    found = (given == 0) & (confidences >= thresholds)
    right, missing = found & truth, truth & (given == 0)
    scores = torch.from_numpy(fit.model.presence(test_x))
    test_map = float(mean_average_precision(scores, torch.from_numpy(test_truth)))
    return np.array([test_map, right.sum() / found.sum(), 2 * right.sum() / (found.sum() + missing.sum())])


@pytest.mark.parametrize("order", ["doubtful", "confident", "random", "one class"])
def test_answers_in_any_order_never_make_the_model_worse(order):
    change = []
    test_x, test_truth = world(1500, 99)
    for seed in range(2):
        x, truth = world(300, seed)
        given = picked(truth, seed)
        before = fit_features(FeatureStore(x), table(given), base="linear", seed=seed)
        confidences = before.calibration.confidences(expit(before.evidence), given)
        asked = answers(order, confidences, given, truth, 300, seed)
        known = np.where(asked != 0, asked, given)
        after = fit_features(FeatureStore(x), table(given), answers=table(asked), base="linear", seed=seed)
        both = [
            quality(fit, *rest, given, truth, test_x, test_truth) for fit, *rest in ((before, given), (after, known))
        ]
        change.append(both[1] - both[0])
    test_map, precision, f1 = np.mean(change, axis=0)
    assert test_map > 0.005
    assert precision > 0.05
    assert f1 > 0.02


@pytest.mark.parametrize("base", ["trees", "auto"])
def test_every_learner_gains_from_answers(base):
    x, truth = world(400, 0)
    test_x, test_truth = world(1500, 99)
    given = picked(truth, 0)
    before = fit_features(FeatureStore(x), table(given), base=base)
    confidences = before.calibration.confidences(expit(before.evidence), given)
    asked = answers("doubtful", confidences, given, truth, 500)
    after = fit_features(FeatureStore(x), table(given), answers=table(asked), base=base)
    known = np.where(asked != 0, asked, given)
    both = [quality(fit, *rest, given, truth, test_x, test_truth) for fit, *rest in ((before, given), (after, known))]
    assert (both[1] > both[0]).all()
    assert "500 answers correct it" in after.summary


def test_correction_minimises_its_objective():
    draw = np.random.default_rng(0)
    x, logits = draw.normal(size=(80, 3)), draw.normal(size=(80, 2))
    asked = np.where(draw.random((80, 2)) < 0.6, np.where(x[:, :2] > 0.3, 1, -1), 0).astype(np.int8)
    found = fit_correction(FeatureStore(x), np.arange(80), logits, asked, seed=0, device=CPU)
    assert found is not None
    standard = (x - x.mean(0)) / x.std(0)
    targets = np.where(asked == 0, expit(logits), asked > 0)

    def objective(flat):
        weight, bias = flat[:6].reshape(3, 2), flat[6:]
        p = expit(logits + standard @ weight + bias)
        cross_entropy = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).sum() / 80
        return cross_entropy + found.strength / 2 * (weight**2).sum() + 0.25 / 80 * (bias**2).sum()

    best = minimize(objective, np.zeros(8), tol=1e-10).x
    np.testing.assert_allclose(found.learner.weight.T.numpy(), best[:6].reshape(3, 2), atol=5e-3)
    np.testing.assert_allclose(found.learner.bias.numpy(), best[6:], atol=5e-3)


def test_answers_that_nothing_can_be_learned_from_change_nothing():
    draw = np.random.default_rng(1)
    x, logits = draw.normal(size=(200, 3)), np.zeros((200, 2))
    asked = draw.choice([-1, 1], size=(200, 2)).astype(np.int8)
    found = fit_correction(FeatureStore(x), np.arange(200), logits, asked, seed=0, device=CPU)
    assert found is None
    none = np.zeros((200, 2), np.int8)
    assert fit_correction(FeatureStore(x), np.arange(200), logits, none, seed=0, device=CPU) is None


def test_classes_nobody_asked_about_keep_their_evidence():
    x, truth = world(300, 0)
    given = picked(truth, 0)
    before = fit_features(FeatureStore(x), table(given), base="linear")
    asked = np.zeros_like(given)
    asked[:150, 2] = np.where(truth[:150, 2], 1, -1)
    asked[given > 0] = 0
    after = fit_features(FeatureStore(x), table(given), answers=table(asked), base="linear")
    others = np.arange(CLASSES) != 2
    np.testing.assert_array_equal(after.evidence[:, others], before.evidence[:, others])
    assert np.abs(after.held_out[:, 2] - before.held_out[:, 2]).max() > 0.02  # corrected, or at least calibrated


def test_rejected_labels_are_no_targets_and_rows_without_a_given_label_use_confirmed_ones():
    x, truth = world(300, 0)
    given = picked(truth, 0)
    wrong = np.arange(20)
    given[wrong] = 0
    given[wrong, truth[wrong].argmin(1)] = 1  # labels that are absent
    asked = np.zeros_like(given)
    asked[wrong] = -given[wrong]
    asked[wrong[:10], truth[wrong[:10]].argmax(1)] = 1
    corrected = np.where(asked != 0, asked, given)
    fit = fit_features(FeatureStore(x), table(given), answers=table(asked), base="linear")
    same = fit_features(FeatureStore(x), table(np.maximum(corrected, 0)), base="linear")
    softmax = [
        [each.log_likelihood for each in one.candidates if "softmax" in each.name] for one in (fit, same)
    ]  # which knows no negatives
    assert softmax[0] == pytest.approx(softmax[1], abs=2e-3)


@pytest.mark.parametrize("name", ["em", "wan", "softmax"])
def test_other_methods_learn_from_answers(name):
    x, truth = world(300, 0)
    given = picked(truth, 0)
    asked = answers("random", np.zeros(given.shape), given, truth, 400)
    before = fit_features(FeatureStore(x), table(given), method=name)
    after = fit_features(FeatureStore(x), table(given), answers=table(asked), method=name)
    assert np.abs(after.evidence - before.evidence).max() > 0.05


def test_corrected_model_is_the_same_after_saving_on_sparse_rows_and_as_a_linear_head():
    x, truth = world(300, 0)
    x[np.abs(x) < 0.5] = 0
    given = picked(truth, 0)
    asked = answers("random", np.zeros(given.shape), given, truth, 400)
    dense = fit_features(FeatureStore(x), table(given), answers=table(asked), base="linear", normalise=False).model
    assert dense.correction is not None
    again = feature_model_from_description(dense.description)
    again.load_state_dict(dense.state_dict())
    np.testing.assert_array_equal(again.presence(x), dense.presence(x))
    weight, bias = dense.as_linear()
    head = expit(x @ weight.numpy().T + bias.numpy())
    logits = float(dense.slope) * dense.evidence(x) + dense.offsets.numpy()
    np.testing.assert_allclose(head, expit(logits), atol=1e-6)
    sparse = fit_features(FeatureStore(csr_matrix(x)), table(given), answers=table(asked), base="linear").model
    np.testing.assert_allclose(sparse.presence(csr_matrix(x)), sparse.presence(x), atol=1e-9)


def test_held_out_corrections_do_not_know_the_answer_of_their_row():
    draw = np.random.default_rng(0)
    x, logits = np.eye(60), np.zeros((60, 1))  # nothing can be learned about another row
    asked = draw.choice([-1, 1], size=(60, 1)).astype(np.int8)
    assert Design(FeatureStore(x), np.arange(60), np.arange(60) % 5, CPU).folds == 5
    found = fit_correction(FeatureStore(x), np.arange(60), logits, asked, seed=0, device=CPU)
    if found is not None:
        assert abs(np.corrcoef(found.held_out[:, 0], asked[:, 0])[0, 1]) < 0.5
