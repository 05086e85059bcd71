"""Many linear heads at once, compared with a plain loop for each head; and errors for wrong input."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.data import open_data
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels, simulate
from spml.methods import METHODS, Clock, Needs, Problem, method, register
from spml.methods.base import Method, mean_entry
from spml.metrics import mean_average_precision
from spml.training.experiment import Experiment
from spml.training.linear import FeatureRows, HeadResult, train_heads
from spml.training.linear import rows as rows_module
from spml.training.linear.heads import linear_start, merge_heads
from spml.training.linear.rows import row_order
from support.shared_data import shared_data

ON_FEATURES = sorted(name for name, cls in METHODS.items() if cls.needs.head == "linear")
# Settings under which a run of four epochs meets every part of a method.
SETTINGS: dict[str, dict[str, Any]] = {
    "em-apl": {"warm_up": 1, "positive_proportion": 0.2},
    "ll-r": {"share": 4.0},
    "ll-ct": {"share": 4.0},
    "ll-cp": {"share": 2.0},
    "lasd": {"threshold": 0.6},
    "plc": {"threshold": 0.55},
    "l1r": {"weight": 1e-2},
    "l2r": {"weight": 1e-2},
    "role-factorised": {"rank": 3},
}
ROWS, DIM, CLASSES, EPOCHS, BATCH, K = 37, 6, 5, 4, 8, 1.7


def head(name: str, settings: Any = None, rate: float = 1e-3, size: int = 16, seed: int = 0, **more: Any) -> Experiment:
    """An experiment on features, with the epochs and k of these tests."""
    return Experiment.linear(name, settings, rate, size, seed, **{"epochs": EPOCHS, "k": K, **more})


class Task:
    """Rows whose labels are a noisy linear function of their features, with a validation set."""

    def __init__(self, rows: int = ROWS, dim: int = DIM, classes: int = CLASSES) -> None:
        rng = np.random.default_rng(3)
        teacher = rng.normal(size=(dim, classes))
        self.features, self.validation_features = rng.normal(size=(2, rows, dim)).astype(np.float32)

        def truth(features: np.ndarray) -> np.ndarray:
            scores = features @ teacher + rng.normal(size=(len(features), classes))
            return np.where((scores > 1.2) | (scores == scores.max(1, keepdims=True)), 1, -1)

        self.truth = Labels.from_matrix(truth(self.features))
        self.validation_truth = Labels.from_matrix(truth(self.validation_features))
        self.labels = simulate(self.truth, positives=1, negatives=0)
        self.negatives = simulate(self.truth, positives=1, negatives=None)

    def table(self, name: str) -> Labels:
        return {"positives": self.labels, "full": self.truth, "negatives": self.negatives}[METHODS[name].needs.labels]

    def train(self, specs: list[Experiment], **options: Any) -> list[HeadResult]:
        defaults: dict[str, Any] = {
            "validation": (self.validation_features, self.validation_truth),
            "full_labels": self.truth,
            "negatives_labels": self.negatives,
            "progress": False,
        }
        return train_heads(torch.from_numpy(self.features), self.labels, specs, **(defaults | options))


def plain_loop(task: Task, experiment: Experiment, epochs: int = EPOCHS) -> HeadResult:
    """One head, trained as anybody would write it: nn.Linear, torch's Adam, one backward pass per step."""
    made = method(experiment.method, **experiment.settings)
    labels = task.table(experiment.method)
    made.prepare(Problem(labels, k=K, seeds=experiment.train.seed, features=True))
    torch.manual_seed(experiment.train.seed)
    head = nn.Linear(DIM, CLASSES)
    members, features = made.members(CLASSES), torch.from_numpy(task.features)
    if members:  # as many heads, which start alike, as one wide one
        wide = nn.Linear(DIM, len(members) * CLASSES)
        wide.load_state_dict({name: torch.cat([value] * len(members)) for name, value in head.state_dict().items()})
        head = wide

    def one_head() -> tuple[Tensor, Tensor]:
        if not members:
            return head.weight.detach().clone(), head.bias.detach().clone()
        parts = (value.detach().unflatten(0, (len(members), CLASSES)) for value in (head.weight, head.bias))
        return merge_heads(*parts, [member.share for member in members], features.mean(0))

    groups = [{"params": list(head.parameters()), "lr": experiment.train.learning_rate}]
    groups += [
        {"params": p, "lr": multiple * experiment.train.learning_rate} for p, multiple in made.parameter_groups()
    ]
    optimiser = torch.optim.Adam(groups)
    step, scores, best = 0, [], None
    batches = math.ceil(ROWS / experiment.train.batch_size)
    for epoch in range(1, epochs + 1):
        order = np.random.default_rng((experiment.train.seed, epoch)).permutation(ROWS)
        for rows in np.split(order, range(experiment.train.batch_size, ROWS, experiment.train.batch_size)):
            clock = Clock(epoch, epochs, step, epochs * batches)
            loss = made.ensemble_objective(head(features[rows]), labels.batch(rows), torch.from_numpy(rows), clock)
            penalty = made.penalty(head.parameters())
            optimiser.zero_grad()
            (loss if penalty is None else loss + penalty).backward()
            optimiser.step()
            made.after_step(experiment.train.learning_rate)
            step += 1
        with torch.no_grad():
            if made.needs.epoch_predictions:
                made.end_epoch(torch.sigmoid(head(features)), Clock(epoch, epochs, step, epochs * batches))
            weight, bias = one_head()
            scored = torch.from_numpy(task.validation_features) @ weight.T + bias
            if experiment.method == "softmax":
                scored = scored.double().softmax(1)
        scores.append(mean_average_precision(scored, task.validation_truth.dense()))
        if best is None or scores[-1] > scores[best.best_epoch - 1]:
            state = {name: value.clone() for name, value in made.state_dict().items()}
            best = HeadResult(experiment, scores, epoch, epochs, weight.T, bias, state)
    assert best is not None
    return best


def assert_same(one: HeadResult, other: HeadResult, tolerance: float = 1e-5) -> None:
    assert one.experiment == other.experiment
    assert (one.best_epoch, one.stopped_epoch) == (other.best_epoch, other.stopped_epoch)
    assert one.validation == pytest.approx(other.validation, abs=1e-6)
    torch.testing.assert_close(one.weight, other.weight, atol=tolerance, rtol=0)
    torch.testing.assert_close(one.bias, other.bias, atol=tolerance, rtol=0)
    assert one.method_state.keys() == other.method_state.keys()
    for name, value in one.method_state.items():
        # In 16 bit a last digit of float32 may round to a neighbour, and the next steps start from there.
        apart = 1e-3 if value.dtype in (torch.float16, torch.bfloat16) else tolerance
        torch.testing.assert_close(value, other.method_state[name], atol=apart, rtol=0, equal_nan=True)


@pytest.fixture(scope="module")
def task() -> Task:
    return Task()


@pytest.fixture(scope="module")
def grid(task: Task) -> dict[Experiment, HeadResult]:
    """Every method that runs on features, at two rates, two batch sizes and two seeds, all trained in one call."""
    specs = [
        head(name, SETTINGS.get(name, {}), rate, size, seed)
        for name in ON_FEATURES
        for rate in (1e-2, 1e-3)
        for size in (BATCH, 2 * BATCH)
        for seed in (0, 5)
    ]
    return dict(zip(specs, task.train(specs), strict=True))


def of_method(grid: dict[Experiment, HeadResult], name: str) -> list[HeadResult]:
    return [result for experiment, result in grid.items() if experiment.method == name]


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_head_equals_a_plain_loop(task: Task, grid: dict[Experiment, HeadResult], name: str) -> None:
    for result in of_method(grid, name)[::3]:  # both rates, both batch sizes, both seeds
        assert_same(result, plain_loop(task, result.experiment))


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_head_equals_training_it_alone(task: Task, grid: dict[Experiment, HeadResult], name: str) -> None:
    alone = of_method(grid, name)[-1]
    assert_same(alone, task.train([alone.experiment])[0])


def test_head_starts_like_nn_linear() -> None:
    torch.manual_seed(7)
    layer = nn.Linear(11, 4)
    weight, bias = linear_start(11, 4, seed=7)
    assert torch.equal(weight, layer.weight)
    assert torch.equal(bias, layer.bias)


def test_order_of_rows_depends_on_seed_and_epoch() -> None:
    orders = [tuple(row_order(seed, epoch, 20)) for seed in (0, 1) for epoch in (1, 2)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)


EXPERIMENTS = [head(name, {}, rate, size, 2) for size in (8, 16) for name in ("an", "role") for rate in (1e-2, 1e-3)]


def test_results_have_the_order_of_the_experiments(task: Task) -> None:
    mixed = [EXPERIMENTS[i] for i in np.random.default_rng(0).permutation(len(EXPERIMENTS))]
    results = task.train(mixed)
    assert [result.experiment for result in results] == mixed
    straight = {result.experiment: result for result in task.train(EXPERIMENTS)}
    for result in results:
        assert_same(result, straight[result.experiment])


def test_memory_limit_splits_the_heads_into_batches(task: Task) -> None:
    for result, alone in zip(task.train(EXPERIMENTS), task.train(EXPERIMENTS, memory_limit=1), strict=True):
        assert_same(result, alone)


def test_without_validation_the_last_epoch_is_kept(task: Task) -> None:
    spec = head("role", {}, 1e-2, 8, 0)
    (last,) = task.train([spec], validation=None)
    assert (last.validation, last.best_epoch, last.stopped_epoch) == ([], EPOCHS, EPOCHS)
    # A score that always rises keeps the last epoch too.
    rising = iter(range(EPOCHS))
    (kept,) = task.train([spec], selection=lambda scores, truth: float(next(rising)))
    torch.testing.assert_close(last.weight, kept.weight)
    torch.testing.assert_close(last.method_state, kept.method_state)


def test_best_epoch_equals_the_end_of_a_shorter_run(task: Task) -> None:
    """A head whose second epoch scores best ends with the weights and the memory it had then."""
    spec = head("role", {}, 1e-2, 8, 0)
    scores = [0.1, 0.9, 0.5, 0.9]  # an equal score later is no improvement
    given = iter(scores)
    (result,) = task.train([spec], selection=lambda logits, truth: next(given))
    assert (result.best_epoch, result.validation) == (2, scores)
    (short,) = task.train([replace(spec, train=replace(spec.train, epochs=2))], validation=None)
    torch.testing.assert_close(result.weight, short.weight)
    torch.testing.assert_close(result.method_state, short.method_state)


class CountingStore(FeatureStore):
    batches = 0

    def batch(self, rows: Any, pin: bool = False) -> Tensor:
        self.batches += 1
        return super().batch(rows, pin)


@pytest.mark.parametrize(("early_stopping", "stopped"), [(1, [3, 2]), (2, [6, 3]), (None, [8, 8])])
def test_each_head_stops_by_itself(
    task: Task, early_stopping: Any, stopped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "SMALL", 0)  # no copy: every batch comes from the store, and is counted
    course = [[1, 2, 2, 3, 3, 1, 9, 9], [5, 4, 4, 9, 9, 9, 9, 9]]
    calls = iter([score for epoch in zip(*course, strict=True) for score in epoch])
    specs = [head("an", {}, rate, 8, epochs=8, early_stopping=early_stopping) for rate in (1e-3, 1e-2)]
    store = CountingStore(task.features)
    results = train_heads(
        store,
        task.labels,
        specs,
        validation=(task.validation_features, task.validation_truth),
        selection=lambda scores, truth: float(next(calls)),
        progress=False,
    )
    assert [result.stopped_epoch for result in results] == stopped
    for result, scores, last in zip(results, course, stopped, strict=True):
        assert result.validation == scores[:last]
        assert result.best_epoch == 1 + int(np.argmax(scores[:last]))
    assert store.batches == max(stopped) * math.ceil(ROWS / 8)  # nothing is computed once all have stopped


def test_a_diverging_head_leaves_the_others_alone(task: Task) -> None:
    good = head("an", {}, 1e-2, 8, 0)
    (alone,) = task.train([good])
    result, wild = task.train([good, head("an", {}, 1e38, 8, 0)])
    assert_same(result, alone)
    assert all(math.isnan(score) for score in wild.validation[1:])


@pytest.mark.parametrize("small", [0, 2**28])
def test_features_from_a_file_by_rows(task: Task, tmp_path: Any, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 features in a mapped file, of which the training rows are some, equal a matrix in memory.

    Batches come from the file itself, and its labels from the table, where a copy would not be small.
    """
    monkeypatch.setattr(rows_module, "SMALL", small)
    half = task.features.astype(np.float16)
    scattered = np.zeros((3 * ROWS, DIM), np.float16)
    rows = np.random.default_rng(1).choice(3 * ROWS, ROWS, replace=False)
    scattered[rows] = half
    np.save(tmp_path / "features.npy", scattered)
    store = FeatureRows(FeatureStore(tmp_path / "features.npy"), rows)
    spec = head("wan", {}, 1e-2, 8, epochs=2)
    (mapped,) = train_heads(store, task.labels, [spec], progress=False)
    (in_memory,) = train_heads(half.astype(np.float32), task.labels, [spec], progress=False)
    assert_same(mapped, in_memory)
    torch.testing.assert_close(mapped.score(store), torch.from_numpy(half).float() @ mapped.weight + mapped.bias)


def test_validation_without_known_negatives_counts_the_rest_as_absent(task: Task) -> None:
    observed = Labels.from_indices(task.labels.single(), task.labels.classes)
    (result,) = task.train([head("an", {}, 1e-2, 8, epochs=1)], validation=(task.features, observed))
    expected = mean_average_precision(result.score(task.features), observed.dense() > 0)
    assert result.validation == [pytest.approx(expected, abs=1e-6)]


def test_unknown_validation_labels_are_left_out(task: Task) -> None:
    table = task.validation_truth.dense().copy()
    table[::3, 1] = 0
    truth = Labels.from_matrix(table)
    (result,) = task.train([head("an", {}, 1e-2, 8, epochs=1)], validation=(task.validation_features, truth))
    expected = mean_average_precision(result.score(task.validation_features), table > 0, mask=table != 0)
    assert result.validation == [pytest.approx(expected, abs=1e-6)]


def test_order_of_methods_on_voc() -> None:
    """Full labels beat weak negatives, and those beat assumed negatives, as in the papers."""
    data = open_data(shared_data("voc12", "labels.npz").parent, features=True)
    store = data.store
    assert isinstance(store, FeatureStore)
    results = train_heads(
        FeatureRows(store, data.train),
        data.labels.subset(data.train),
        [Experiment.linear(name, {}, 1e-3, 16, 0, epochs=5) for name in ("bce", "wan", "an")],
        validation=(FeatureRows(store, data.validation), data.full_labels(data.validation)),
        full_labels=data.full_labels(data.train),
        progress=False,
    )
    test, truth = FeatureRows(store, data.test), data.full_labels(data.test).dense()
    bce, wan, an = (mean_average_precision(result.score(test), truth) for result in results)
    assert bce > wan > an > 0.78


def test_heads_of_one_call_may_differ_in_epochs_and_k(task: Task) -> None:
    mixed = [head("role", epochs=2), head("role", epochs=3, k=2.5), head("an", epochs=2)]
    for result, experiment in zip(task.train(mixed), mixed, strict=True):
        assert result.stopped_epoch == experiment.train.epochs
        assert_same(result, task.train([experiment])[0])


# Bad input


def test_error_for_nan_in_features(task: Task) -> None:
    features = task.features.copy()
    features[11, 4] = np.nan
    with pytest.raises(InputError, match="row 11, column 4"):
        train_heads(features, task.labels, [head("an")], progress=False)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (head("bce"), {"full_labels": None}, "'bce' needs full labels"),
        (head("iun"), {"negatives_labels": None}, "'iun' needs known negatives"),
        (head("epr", k=None), {}, "'epr' needs k"),
        (head("boostlu"), {}, "'boostlu' needs the head 'cam'"),
        (head("none"), {}, "No method named 'none'"),
        (head("em", {"alpha": 1}), {}, "'em' has no setting 'alpha'"),
        (head("an", early_stopping=1), {"validation": None}, "early_stopping needs validation"),
        (head("an"), {"selection": "loss"}, "selection must be"),
        (head("an"), {"validation": (np.zeros((4, 3)), np.eye(4, CLASSES))}, "3 features per row, training 6"),
        (head("an"), {"validation": (np.zeros((4, DIM)), np.eye(3, CLASSES))}, r"table of \(3, 5\), expected"),
        (head("an"), {"validation": (np.zeros((4, DIM)), np.zeros((4, CLASSES)))}, "no positive"),
        (head("an"), {"full_labels": Labels.from_matrix(np.ones((2, 2)))}, "full_labels is a table of"),
    ],
)
def test_error_for_heads_that_cannot_be_trained(
    task: Task, spec: Experiment, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        task.train([spec], **options)


def test_error_for_wrong_arguments(task: Task) -> None:
    with pytest.raises(InputError, match="experiments is empty"):
        task.train([])
    with pytest.raises(InputError, match="36 rows of features, but labels for 37"):
        train_heads(task.features[1:], task.labels, [head("an")], progress=False)
    for labels, specs, sentence in (
        (task.labels.dense(), [head("an")], "labels must be Labels"),
        (task.labels, ["an"], "experiments must be Experiments, such as Experiment.linear"),
    ):
        with pytest.raises(InputError, match=sentence):
            train_heads(task.features, labels, specs, progress=False)  # type: ignore[arg-type]
    for wrong, sentence in (
        ({"batch_size": "a"}, "batch_size must be a whole number, not 'a'"),
        ({"epochs": 2.5}, "epochs must be a whole number, not 2.5"),
        ({"epochs": 0}, "epochs must be between 1 and"),
        ({"early_stopping": 0}, "early_stopping must be between 1 and"),
        ({"seed": -1}, "seed must be between 0 and"),
    ):
        with pytest.raises(InputError, match=sentence):
            Experiment.linear("an", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="learning_rate must be above 0"):
        head("an", {}, 0.0)
    with pytest.raises(InputError, match="batch_size must be between 1 and"):
        head("an", {}, 1e-3, 0)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU is available"):
            task.train([head("an")], device="cuda")


def test_error_for_classes_in_another_order(task: Task) -> None:
    names = task.labels.classes
    turned = Labels.from_matrix(task.labels.dense(), names[::-1])
    sentence = f"in the same order: column 0 is '{names[-1]}', but '{names[0]}' in the training labels"
    with pytest.raises(InputError, match=f"^validation must have the classes .* {sentence}"):
        task.train([head("an")], validation=(task.features, turned))
    with pytest.raises(InputError, match=f"^full_labels must have the classes .* {sentence}"):
        task.train([head("an")], full_labels=turned)
    (trained,) = task.train([head("an", epochs=1)])
    with pytest.raises(InputError, match=f"^the truth must have the classes .* {sentence}"):
        trained.average_precision(task.features, turned)
    with pytest.raises(InputError, match="2 features per row, but the head was trained on"):
        trained.score(task.features[:, :2])


def test_error_for_an_objective_without_one_value_per_head(task: Task) -> None:
    class Flat(Method):
        name, paper, summary, needs = "flat", "", "", Needs()

        def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
            return logits.mean()

    register(Flat)
    try:
        with pytest.raises(InputError, match=r"'flat': objective returned .* \(\): return one value per head"):
            task.train([head("flat", {}, rate) for rate in (1e-3, 1e-4)])
    finally:
        del METHODS["flat"]


def test_error_for_memory_without_a_dimension_of_heads(task: Task) -> None:
    class Shared(Method):
        name, paper, summary, needs = "shared-state", "", "", Needs()

        def prepare(self, problem: Problem) -> None:
            super().prepare(problem)
            self.register_buffer("average", torch.zeros(7))

        def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
            return mean_entry(logits)

    register(Shared)
    try:
        with pytest.raises(InputError, match="'average' has no dimension of heads"):
            task.train([head("shared-state", {}, 1e-3, 8, 0)])
    finally:
        del METHODS["shared-state"]


def test_parameters_without_a_gradient_do_not_change(task: Task) -> None:
    class Idle(Method):
        name, paper, summary, needs = "idle", "", "", Needs()

        def prepare(self, problem: Problem) -> None:
            super().prepare(problem)
            self.first_epoch_only = nn.Parameter(torch.zeros(*problem.heads, problem.classes))

        def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
            moved = logits + self.first_epoch_only[..., None, :] if clock.epoch == 1 else logits
            return mean_entry(moved.square())

        def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
            return [([self.first_epoch_only], 2.0)]

    register(Idle)
    try:
        for rate in (1e-2, 1e-3):
            spec = head("idle", {}, rate, 8)
            short_and_long = (head("idle", {}, rate, 8, epochs=epochs) for epochs in (1, 3))
            (once,), (long,) = (task.train([each], validation=None) for each in short_and_long)
            assert once.method_state["first_epoch_only"].abs().max() > 0
            torch.testing.assert_close(once.method_state, long.method_state)
            assert_same(task.train([spec])[0], plain_loop(task, spec))
    finally:
        del METHODS["idle"]


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_trains_the_same_heads(task: Task, grid: dict[Experiment, HeadResult]) -> None:
    """All at once, so that the recorded step holds every method as a branch."""
    for result, on_gpu in zip(grid.values(), task.train(list(grid), device="cuda"), strict=True):
        # Sums in another order, and of a gradient near zero Adam's steps are as long as of a large one. Besides, a last
        # digit decides whether a 16-bit estimate is rounded up or down.
        assert_same(result, on_gpu, 1e-3 if result.experiment.method == "role-16bit" else 1e-4)


def test_ensemble_of_heads_is_merged_into_their_average() -> None:
    generator = torch.Generator().manual_seed(0)
    direction, centre = torch.randn(2, 3, 8, generator=generator), torch.randn(8, generator=generator)
    weight, bias = direction * torch.tensor([0.1, 5.0])[:, None, None], torch.randn(2, 3, generator=generator)
    merged, shift = merge_heads(weight, bias, (2 / 3, 1 / 3), centre)
    unit = F.normalize(direction, dim=-1)
    wanted = (2 * unit[0] + unit[1]) / 3 * weight[1].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(merged, wanted)  # independent of the scale of each head
    torch.testing.assert_close(merged @ centre + shift, weight[1] @ centre + bias[1])
    alike, same = merge_heads(weight[[1, 1]], bias[[1, 1]], (2 / 3, 1 / 3), centre)
    torch.testing.assert_close(alike, weight[1])
    torch.testing.assert_close(same, bias[1])
    weight[:, 1] = 0.0
    assert torch.isfinite(torch.cat([part.flatten() for part in merge_heads(weight, bias, (0.5, 0.5))])).all()
