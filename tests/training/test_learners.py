"""Training on features: the converged solver against scikit-learn, forests, combination, and difficult inputs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import method
from spml.metrics import mean_average_precision
from spml.models.feature_model import LinearLearner, sum_linear_learners
from spml.training.learners import design, families, fit_features
from spml.training.learners.copies import copy_groups
from spml.training.learners.design import Design, assign_folds
from spml.training.learners.lbfgs import minimise
from spml.training.learners.likelihood import choose_shares, combine, held_out_likelihood
from spml.training.learners.linear import SoftmaxLoss, fit_path, held_out_scores, refit, solve
from spml.training.learners.method_loss import is_pure, prepared
from spml.training.learners.trees import ForestKind, fit_forest, forest_from_sklearn, forest_kinds

NAMES = ["cat", "dog", "bird", "fish"]
CPU = torch.device("cpu")


def blobs(rows=200, dim=6, classes=4, seed=0, apart=1.5):
    """Rows around one centre per class, and the class of each row."""
    centres = apart * np.random.default_rng(0).normal(size=(classes, dim))
    label = np.arange(rows) % classes
    return np.random.default_rng([seed, 1]).normal(size=(rows, dim)) + centres[label], label


def one_hot(label, classes=4):
    return torch.eye(classes)[torch.from_numpy(label)]


def labels_of(label, classes=4):
    return Labels.from_indices(label, NAMES[:classes])


def rings(rows, seed=0):
    """Two classes that no line separates: a disc and the ring around it."""
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(rows, 2))
    return points, (np.linalg.norm(points, axis=1) > 1.1).astype(np.int64)


def test_problems_of_a_batch_do_not_affect_each_other():
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 5, 5, generator=draw, dtype=torch.float64)
    hessian = matrix @ matrix.mT + torch.eye(5) * torch.tensor([1.0, 10.0, 0.1])[:, None, None]
    target = torch.randn(3, 5, generator=draw, dtype=torch.float64)

    def function(x, which=slice(None)):
        slope = torch.einsum("pij,pj->pi", hessian[which], x - target[which])
        return 0.5 * torch.einsum("pi,pi->p", x - target[which], slope), slope

    start = torch.zeros(3, 5, dtype=torch.float64)
    together, _ = minimise(function, start, tolerance=1e-14)
    torch.testing.assert_close(together, target, rtol=1e-4, atol=1e-4)
    for i in range(3):
        alone, _ = minimise(lambda x, i=i: function(x, slice(i, i + 1)), start[i : i + 1], tolerance=1e-14)
        torch.testing.assert_close(alone[0], together[i], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strength", [1.0, 0.05])
def test_converged_softmax_equals_scikit_learn(strength):
    x, label = blobs()
    data = Design(FeatureStore(x), np.arange(len(x)), np.zeros(len(x), np.int64), CPU)
    loss = SoftmaxLoss(one_hot(label))
    (solution,) = solve(data, loss, torch.tensor([-1]), strength, torch.zeros(1, 4, 7))
    weights = torch.cat([data.in_features(solution[:, :-1]), solution[:, -1:]], 1).numpy()
    scaled = StandardScaler().fit_transform(x)
    theirs = LogisticRegression(C=1 / (strength * len(x)), tol=1e-8, max_iter=5000).fit(scaled, label)
    np.testing.assert_allclose(weights[:, :-1], theirs.coef_, atol=5e-3)
    ours = softmax(scaled @ weights[:, :-1].T + weights[:, -1], axis=1)
    np.testing.assert_allclose(ours, theirs.predict_proba(scaled), atol=5e-3)


def of_coordinates(data, weights):
    """Products of the rows and weights (columns, K), in the order of the rows."""
    out, matrix = torch.zeros(len(data), weights.shape[1]), data.for_blocks(weights.T).T
    for block in data.blocks():
        out[block.positions] = block.times(matrix)
    return out


@pytest.mark.parametrize("kind", ["tall", "wide", "sparse and wide", "read in blocks", "too large to rotate"])
def test_coordinates_are_a_rotation_of_the_rows(kind, monkeypatch):
    rows, dim = (40, 90) if "wide" in kind else (90, 7)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, dim)) * (draw.random((rows, dim)) < 0.5) + (draw.normal(size=dim) if dim == 7 else 0)
    if kind == "read in blocks":
        monkeypatch.setattr(design, "_RESIDENT", 0)
        monkeypatch.setattr(design, "_BLOCK", 7 * 16)
    if kind == "too large to rotate":
        monkeypatch.setattr(design, "_MOST_AXES", 3)
    store = FeatureStore(csr_matrix(x) if "sparse" in kind else x)
    data = Design(store, np.arange(rows), np.arange(rows) % 3, CPU)
    scaled = torch.from_numpy((x - data.scaling.mean.numpy()) / data.scaling.deviation.numpy()).float()
    weights = torch.from_numpy(draw.normal(size=(4, data.columns))).float()
    scores = of_coordinates(data, weights.T)
    torch.testing.assert_close(scores, scaled @ data.in_features(weights).T, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(weights.norm(), data.in_features(weights).norm(), atol=1e-3, rtol=1e-3)
    columns = of_coordinates(data, torch.eye(data.columns))
    torch.testing.assert_close(data.variance, columns.square().mean(0), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(columns @ columns.T, scaled @ scaled.T, atol=1e-2, rtol=1e-3)
    spectral = float(np.linalg.norm(scaled.double().numpy(), 2) ** 2 / rows)
    assert data.largest_variance == pytest.approx(spectral, rel=0.2)


def test_more_features_than_rows_equal_scikit_learn():
    x, label = blobs(50, dim=200, apart=0.3)
    data = Design(FeatureStore(x), np.arange(50), np.zeros(50, np.int64), CPU)
    assert data.columns < 50
    (solution,) = solve(data, SoftmaxLoss(one_hot(label)), torch.tensor([-1]), 0.5, torch.zeros(1, 4, data.columns + 1))
    scaled = StandardScaler().fit_transform(x)
    theirs = LogisticRegression(C=1 / (0.5 * 50), tol=1e-8, max_iter=5000).fit(scaled, label)
    np.testing.assert_allclose(data.in_features(solution[:, :-1]).numpy(), theirs.coef_, atol=2e-3)


def test_a_head_equals_training_without_its_fold():
    x, label = blobs(120)
    fold = assign_folds(label, 3, seed=0)
    data, loss = Design(FeatureStore(x), np.arange(120), fold, CPU), SoftmaxLoss(one_hot(label))
    heads = solve(data, loss, torch.arange(3), 0.1, torch.zeros(3, 4, 7))
    inside = np.flatnonzero(fold != 1)
    scaled = StandardScaler().fit_transform(x)
    theirs = LogisticRegression(C=1 / (0.1 * len(inside)), tol=1e-8, max_iter=5000).fit(scaled[inside], label[inside])
    np.testing.assert_allclose(data.in_features(heads[1, :, :-1]).numpy(), theirs.coef_, atol=5e-3)
    outside = np.flatnonzero(fold == 1)
    expected = scaled[outside] @ theirs.coef_.T
    ours = held_out_scores(data, heads)[outside].numpy()
    np.testing.assert_allclose(ours - ours.mean(1, keepdims=True), expected + theirs.intercept_, atol=0.03)


def test_rows_read_in_blocks_give_the_same_solution(monkeypatch, tmp_path):
    x, label = blobs(300)
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    fold = assign_folds(label, 3, seed=0)
    loss = SoftmaxLoss(one_hot(label))
    resident = fit_path(Design(FeatureStore(x), np.arange(300), fold, CPU), loss, one_hot(label))
    monkeypatch.setattr(design, "_RESIDENT", 0)
    monkeypatch.setattr(design, "_BLOCK", 6 * 64)
    streamed = fit_path(Design(FeatureStore(tmp_path / "x.npy"), np.arange(300), fold, CPU), loss, one_hot(label))
    assert len(streamed) == len(resident)
    torch.testing.assert_close(streamed[2].scores, resident[2].scores, atol=5e-3, rtol=5e-3)


def test_sparse_rows_equal_dense_rows():
    draw = np.random.default_rng(0)
    x = np.abs(draw.normal(size=(150, 8))) * (draw.random((150, 8)) < 0.4)
    label = np.arange(150) % 3
    x[np.arange(150), label] += 1
    fit = fit_features(FeatureStore(csr_matrix(x)), labels_of(label, 3), base="linear")
    np.testing.assert_allclose(fit.model.presence(csr_matrix(x)), fit.model.presence(x), atol=1e-9)
    assert mean_average_precision(fit.held_out, one_hot(label, 3).numpy()) > 0.9


def test_strength_is_chosen_inside_the_path():
    x, label = blobs(150, dim=60, apart=0.4)
    fits = fit_path(
        Design(FeatureStore(x), np.arange(150), assign_folds(label, 5, 0), CPU),
        SoftmaxLoss(one_hot(label)),
        one_hot(label),
    )
    likelihood = [fit.likelihood.log_likelihood for fit in fits]
    assert 0 < int(np.argmax(likelihood)) < len(fits) - 1
    assert [fit.strength for fit in fits] == sorted((fit.strength for fit in fits), reverse=True)


def test_temperature_undoes_scaling():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 4, generator=draw, dtype=torch.float64) * 2
    targets = torch.eye(4)[torch.multinomial(torch.softmax(logits, 1), 1, generator=draw)[:, 0]]
    direct, scaled = held_out_likelihood(logits, targets), held_out_likelihood(logits / 7, targets)
    assert scaled.temperature == pytest.approx(7 * direct.temperature, rel=1e-3)
    assert scaled.log_likelihood == pytest.approx(direct.log_likelihood, rel=1e-6)
    assert direct.temperature == pytest.approx(1.0, abs=0.25)


def test_shares_follow_the_likelihood_the_more_rows_there_are():
    draw = torch.Generator().manual_seed(0)
    good = torch.randn(5000, 4, generator=draw, dtype=torch.float64)
    targets = torch.eye(4)[torch.multinomial(torch.softmax(2 * good, 1), 1, generator=draw)[:, 0]]
    noise = torch.randn(5000, 4, generator=draw, dtype=torch.float64)
    assert choose_shares([-good, good], targets) == [0, 1]
    of_few = choose_shares([-good[:150], good[:150]], targets[:150])
    assert of_few == pytest.approx([0.25, 0.75], abs=1e-6)  # half from the likelihood, half equal
    assert choose_shares([-good], targets) == [1]  # useless, but there is no other
    both = choose_shares([good + noise, good - noise], targets)  # their errors cancel
    assert both == pytest.approx([0.5, 0.5], abs=0.05)
    weight, rows = combine([good, -good], targets)
    assert weight[1] == 0
    assert float(rows.mean()) == pytest.approx(held_out_likelihood(good, targets).log_likelihood, abs=1e-6)


def test_linear_learners_are_added_up_to_one():
    draw = torch.Generator().manual_seed(0)
    scale = torch.zeros(5).double(), torch.full((5,), 2.0).double()
    one, other = (
        LinearLearner(torch.randn(3, 5, generator=draw), torch.randn(3, generator=draw), *scale) for _ in "ab"
    )
    ((both, weight),) = sum_linear_learners([(one, 0.3), (other, 2.0)])
    x = torch.randn(7, 5, generator=draw)
    torch.testing.assert_close(weight * both(x), 0.3 * one(x) + 2.0 * other(x))
    assert sum_linear_learners([(one, 0.3)]) == [(one, 0.3)]


@pytest.mark.parametrize("make", [RandomForestClassifier, ExtraTreesClassifier])
def test_forest_arrays_vote_as_scikit_learn(make):
    x, label = blobs(90)
    grown = make(7, random_state=0, min_samples_leaf=2).fit(x, np.array([0, 3, 5, 9])[label])
    forest = forest_from_sklearn(grown, classes=10)
    votes = forest.votes(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(votes[:, [0, 3, 5, 9]], grown.predict_proba(x), atol=1e-6)
    assert votes[:, [1, 2, 4, 6, 7, 8]].max() == 0


def test_out_of_bag_scores_do_not_see_the_label():
    draw = np.random.default_rng(0)
    x, label = draw.normal(size=(200, 5)), draw.integers(0, 4, 200)  # nothing can be learned
    fit = fit_forest(x.astype(np.float32), label, 4, ForestKind("forest", 60), np.arange(200))
    correct = (fit.scores.argmax(1).numpy() == label).mean()
    assert correct < 0.4  # 0.25 by chance, 1 on the trees' own rows


@pytest.mark.parametrize(("name", "base"), [("auto", "linear"), ("auto", "trees"), ("em", "auto"), ("role", "auto")])
def test_held_out_scores_do_not_see_the_labels_of_copies(name, base):
    draw = np.random.default_rng(0)
    x, label = draw.normal(size=(120, 8)), draw.integers(0, 4, 120)  # nothing can be learned
    x, label = np.concatenate([x, x[:60]]), np.concatenate([label, label[:60]])
    fit = fit_features(FeatureStore(x), labels_of(label), method=name, base=base, k=1.5)
    correct = (fit.held_out.argmax(1) == label)[np.r_[:60, 120:180]].mean()
    assert correct < 0.45  # 0.25 by chance


def test_rows_are_copies_unless_features_take_few_values():
    x = np.random.default_rng(0).normal(size=(6, 3))
    x[4] = x[1]
    assert copy_groups(FeatureStore(x), np.arange(6)).tolist() == [0, 1, 2, 3, 1, 5]
    assert copy_groups(FeatureStore(x), np.array([5, 4, 1, 0])).tolist() == [0, 1, 1, 3]
    sparse = csr_matrix(np.where(x > 0, x, 0.0))
    assert copy_groups(FeatureStore(sparse), np.arange(6)).tolist() == [0, 1, 2, 3, 1, 5]
    few = np.arange(6)[:, None] % 2
    assert copy_groups(FeatureStore(few.astype(float)), np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5]


def test_copies_share_a_fold_and_other_rows_keep_theirs():
    label = np.arange(40) % 4
    groups = np.arange(40)
    assert np.array_equal(assign_folds(label, 5, 0, groups), assign_folds(label, 5, 0))
    groups[[7, 30]] = 3
    folds = assign_folds(label, 5, 0, groups)
    assert len(set(folds[[3, 7, 30]])) == 1
    assert len(set(folds)) == 5


@pytest.mark.parametrize(("rows", "expected"), [(10**6, [0.75, 0.05, 0.2]), (150, [0.54, 0.19, 0.27])])
def test_the_annotators_likelihood_decides_the_share_of_forests(rows, expected):
    tables = [torch.full((2, 3), value) for value in (0.0, 5.0, 10.0)]  # forests, in shares of 0.2 to 0.8: 9.0

    def calibrated(evidence):
        return SimpleNamespace(log_likelihood=-abs(evidence.mean() - 0.25 * 9.0))

    task = SimpleNamespace(calibrated=calibrated, rows=range(rows))
    shares = families._share_of_forests(task, tables, [0.5, 0.1, 0.4])
    assert shares == pytest.approx(expected, abs=0.005)


def test_forests_are_skipped_where_they_are_too_slow():
    assert len(forest_kinds(1000, 100, 10)) == 3
    assert [kind.random_splits for kind in forest_kinds(5000, 500, 400)] == [True]
    assert forest_kinds(1_000_000, 1280, 20) == ()


def test_trees_are_chosen_where_lines_do_not_separate():
    x, label = rings(400)
    labels = labels_of(label, 2)
    fit = fit_features(FeatureStore(x), labels)
    chosen = [each.name for each in fit.candidates if each.chosen]
    assert any("forest" in name or "trees" in name for name in chosen)
    test, truth = rings(300, seed=1)
    auto = mean_average_precision(fit.model.presence(test), one_hot(truth, 2).numpy())
    linear = fit_features(FeatureStore(x), labels, base="linear")
    assert auto > mean_average_precision(linear.model.presence(test), one_hot(truth, 2).numpy()) + 0.1
    assert "weight" in fit.summary or "Chosen" in fit.summary


def test_evidence_is_normalised_where_rows_with_one_label_look_like_it():
    images = load_digits().images
    draw = np.random.default_rng(0)
    pairs = draw.integers(len(images), size=(400, 2))
    pairs[::2, 1] = pairs[::2, 0]  # every other image has one digit, the others two, one over the other
    rows, label = images[pairs].max(1).reshape(400, 64), load_digits().target[pairs]
    truth = float(np.mean([len(set(pair)) for pair in label]))
    labels = Labels.from_indices(label[np.arange(400), draw.integers(2, size=400)], list("0123456789"))
    normalised, plain = (
        fit_features(FeatureStore(rows), labels, base="trees", normalise=allowed) for allowed in (True, False)
    )
    assert normalised.model.normalised
    assert not plain.model.normalised
    assert normalised.log_likelihood > plain.log_likelihood
    assert abs(normalised.calibration.k.k - truth) < abs(plain.calibration.k.k - truth) / 2
    np.testing.assert_allclose(np.exp(normalised.evidence).sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(normalised.model.evidence(rows)).sum(axis=1), 1, rtol=1e-9)


def test_held_out_predictions_do_not_see_the_label():
    draw = np.random.default_rng(0)
    x, label = draw.normal(size=(160, 40)), draw.integers(0, 4, 160)
    fit = fit_features(FeatureStore(x), labels_of(label), base="linear")
    assert (fit.held_out.argmax(1) == label).mean() < 0.4
    assert fit.log_likelihood < -1.3  # log 4 = 1.386: no better than guessing


def test_same_seed_same_model():
    x, label = blobs(80)
    one, other = (fit_features(FeatureStore(x), labels_of(label), seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.held_out, other.held_out)
    np.testing.assert_array_equal(one.model.presence(x), other.model.presence(x))


def test_unscaled_and_constant_features_change_nothing():
    x, label = blobs(100)
    scaled = np.column_stack([1e6 + 1e4 * x[:, :3], 1e-5 * x[:, 3:], np.full(100, 7.0), np.full(100, 0.1)])
    plain = fit_features(FeatureStore(x), labels_of(label), base="linear").model.presence(x)
    other = fit_features(FeatureStore(scaled.astype(np.float64)), labels_of(label), base="linear").model.presence(
        scaled
    )
    np.testing.assert_allclose(plain, other, atol=0.05)


def test_rows_without_a_label_are_predicted_but_not_used():
    x, label = blobs(100)
    table = np.zeros((100, 4), np.int8)
    table[np.arange(80), label[:80]] = 1
    with_rest = fit_features(FeatureStore(x), Labels.from_matrix(table), base="linear")
    alone = fit_features(FeatureStore(x[:80]), labels_of(label[:80]), base="linear")
    np.testing.assert_allclose(with_rest.held_out[:80], alone.held_out, atol=1e-5)
    np.testing.assert_allclose(with_rest.held_out[80:], alone.model.presence(x[80:]), atol=1e-5)


def test_weight_two_equals_a_row_twice():
    x, label = blobs(60)
    weight = np.where(np.arange(60) < 20, 2.0, 1.0)
    fold = np.arange(60) % 2
    doubled = np.concatenate([np.arange(60), np.arange(20)])
    weighted = SoftmaxLoss(one_hot(label) * torch.from_numpy(weight * 60 / weight.sum()).float()[:, None])
    repeated = SoftmaxLoss(one_hot(label[doubled]))
    scaled = StandardScaler().fit_transform(x)  # the scale must not depend on the repetition
    one = Design(FeatureStore(scaled), np.arange(60), fold, CPU)
    other = Design(FeatureStore(scaled), doubled, fold[doubled], CPU)
    other.scaling = one.scaling
    other._axes, other._blocks, other._rotated = one._axes, other._read_all(), False
    start = torch.zeros(1, 4, 7)
    torch.testing.assert_close(
        one.in_features(solve(one, weighted, torch.tensor([-1]), 0.1, start)[0, :, :-1]),
        other.in_features(solve(other, repeated, torch.tensor([-1]), 0.1, start)[0, :, :-1]),
        atol=5e-3,
        rtol=5e-3,
    )
    fit = fit_features(FeatureStore(x), labels_of(label), base="linear", sample_weight=weight)
    assert np.isfinite(fit.held_out).all()


def test_several_observed_labels_per_row():
    x, label = blobs(90)
    table = np.zeros((90, 4), np.int8)
    table[np.arange(90), label] = 1
    table[:30, 0] = 1
    fit = fit_features(FeatureStore(x), Labels.from_matrix(table), base="linear")
    assert fit.held_out.shape == (90, 4)


def test_full_labels_use_every_entry():
    x, label = blobs(120)
    table = np.full((120, 4), -1, np.int8)
    table[np.arange(120), label] = 1
    table[np.arange(120), (label + 1) % 4] = 1
    fit = fit_features(FeatureStore(x), Labels.from_matrix(table))
    assert fit.held_out.sum(1).mean() == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("base", ["auto", "linear"])
@pytest.mark.parametrize(
    ("rows", "label"),
    [(1, [0]), (2, [0, 1]), (3, [0, 0, 0]), (12, [0] * 11 + [1])],
    ids=["one row", "two rows", "one class", "a class with one row"],
)
def test_very_little_data_works(base, rows, label):
    x = np.random.default_rng(0).normal(size=(rows, 3))
    fit = fit_features(FeatureStore(x), labels_of(np.array(label)), base=base)
    presence = fit.model.presence(x)
    assert np.isfinite(presence).all()
    assert np.isfinite(fit.held_out).all()
    assert ((presence >= 0) & (presence <= 1)).all()


def test_features_that_are_all_constant_work():
    fit = fit_features(FeatureStore(np.ones((20, 2))), labels_of(np.arange(20) % 4))
    np.testing.assert_allclose(fit.model.presence(np.ones((1, 2))).std(), 0, atol=0.05)


def test_bad_input_is_an_input_error():
    x, label = blobs(20)
    labels = labels_of(label)
    broken = x.copy()
    broken[3, 2] = np.nan
    for features, table, options, message in (
        (broken, labels, {}, "row 3, column 2"),
        (x[:5], labels, {}, "5 rows of features"),
        (x, Labels.from_matrix(np.zeros((20, 4), np.int8)), {}, "no row has a positive"),
        (x, labels, {"base": "svm"}, "'linear' or 'trees'"),
        (x, labels, {"method": "an", "base": "trees"}, "only used by method 'auto'"),
        (x, labels, {"sample_weight": -np.ones(20)}, "sample_weight"),
        (x, labels, {"sample_weight": np.zeros(20)}, "weight 0"),
        (x, labels, {"method": "an", "sample_weight": np.ones(20)}, "'auto' and 'softmax'"),
        (x, labels, {"method": "lac"}, "head"),
    ):
        with pytest.raises(InputError, match=message):
            fit_features(FeatureStore(features), table, **options)


def test_which_methods_are_solved_to_convergence():
    labels = labels_of(np.arange(40) % 4)
    for name, pure in {"an": True, "em": True, "asl": True, "role": False, "epr": False, "ll-r": False}.items():
        options = {"k": 1.5} if method(name).needs.k else {}
        assert is_pure(prepared(method(name), labels, options.get("k"), 0), labels) is pure, name


@pytest.mark.parametrize("name", ["an", "annotator", "role", "softmax", "em-apl"])
def test_every_kind_of_method_learns(name):
    x, label = blobs(200)
    k = 1.2 if method(name).needs.k else None
    fit = fit_features(FeatureStore(x), labels_of(label), method=name, k=k)
    test, truth = blobs(100, seed=1)
    assert mean_average_precision(fit.model.presence(test), one_hot(truth).numpy()) > 0.8


def test_refit_starts_from_the_folds_and_uses_all_rows():
    x, label = blobs(100)
    data = Design(FeatureStore(x), np.arange(100), assign_folds(label, 4, 0), CPU)
    loss = SoftmaxLoss(one_hot(label))
    fits = fit_path(data, loss, one_hot(label))
    learner = refit(data, loss, fits[2])
    direct = solve(data, loss, torch.tensor([-1]), fits[2].strength, torch.zeros(1, 4, 7))[0]
    torch.testing.assert_close(learner.weight, data.in_features(direct[:, :-1]), atol=5e-3, rtol=1e-2)
