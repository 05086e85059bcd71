"""The trainer of many linear heads against a plain loop, head by head, and what it says to bad input."""

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import shared_data
from spml.bench.linear import LinearData, linear_grid
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels, simulate
from spml.methods import METHODS, Clock, Needs, Problem, method, register
from spml.methods.base import Method, mean_entry
from spml.metrics import mean_average_precision
from spml.models.feature_classifier import merge_heads
from spml.train.linear import FeatureRows, HeadResult, HeadSpec, linear_start, row_order, train_heads
from spml.train.linear import rows as rows_module

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

    def train(self, specs: list[HeadSpec], **options: Any) -> list[HeadResult]:
        defaults: dict[str, Any] = {
            "epochs": EPOCHS,
            "k": K,
            "validation": (self.validation_features, self.validation_truth),
            "full_labels": self.truth,
            "negatives_labels": self.negatives,
            "progress": False,
        }
        return train_heads(torch.from_numpy(self.features), self.labels, specs, **(defaults | options))


def plain_loop(task: Task, spec: HeadSpec, epochs: int = EPOCHS) -> HeadResult:
    """One head, trained as anybody would write it: nn.Linear, torch's Adam, one backward pass a step."""
    made = method(spec.method, **spec.settings)
    labels = task.table(spec.method)
    made.prepare(Problem(labels, k=K, seeds=spec.seed, features=True))
    torch.manual_seed(spec.seed)
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

    groups = [{"params": list(head.parameters()), "lr": spec.learning_rate}]
    groups += [{"params": p, "lr": multiple * spec.learning_rate} for p, multiple in made.parameter_groups()]
    optimiser = torch.optim.Adam(groups)
    step, scores, best = 0, [], None
    batches = math.ceil(ROWS / spec.batch_size)
    for epoch in range(1, epochs + 1):
        order = np.random.default_rng((spec.seed, epoch)).permutation(ROWS)
        for rows in np.split(order, range(spec.batch_size, ROWS, spec.batch_size)):
            clock = Clock(epoch, epochs, step, epochs * batches)
            loss = made.of_logits(head(features[rows]), labels.batch(rows), torch.from_numpy(rows), clock)
            penalty = made.penalty(head.parameters())
            optimiser.zero_grad()
            (loss if penalty is None else loss + penalty).backward()
            optimiser.step()
            made.after_step(spec.learning_rate)
            step += 1
        with torch.no_grad():
            if made.needs.epoch_predictions:
                made.end_epoch(torch.sigmoid(head(features)), Clock(epoch, epochs, step, epochs * batches))
            weight, bias = one_head()
            scored = torch.from_numpy(task.validation_features) @ weight.T + bias
        scores.append(mean_average_precision(scored, task.validation_truth.dense()))
        if best is None or scores[-1] > scores[best.best_epoch - 1]:
            state = {name: value.clone() for name, value in made.state_dict().items()}
            best = HeadResult(spec, scores, epoch, epochs, weight.T, bias, state)
    assert best is not None
    return best


def assert_same(one: HeadResult, other: HeadResult, tolerance: float = 1e-5) -> None:
    assert one.spec == other.spec
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
def grid(task: Task) -> dict[HeadSpec, HeadResult]:
    """Every method that runs on features, at two rates, two batch sizes and two seeds, all trained in one call."""
    specs = [
        HeadSpec(name, SETTINGS.get(name, {}), rate, size, seed)
        for name in ON_FEATURES
        for rate in (1e-2, 1e-3)
        for size in (BATCH, 2 * BATCH)
        for seed in (0, 5)
    ]
    return dict(zip(specs, task.train(specs), strict=True))


def of_method(grid: dict[HeadSpec, HeadResult], name: str) -> list[HeadResult]:
    return [result for spec, result in grid.items() if spec.method == name]


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_head_is_the_plain_loop(task: Task, grid: dict[HeadSpec, HeadResult], name: str) -> None:
    for result in of_method(grid, name)[::3]:  # both rates, both batch sizes, both seeds
        assert_same(result, plain_loop(task, result.spec))


@pytest.mark.parametrize("name", ON_FEATURES)
def test_every_head_is_as_trained_alone(task: Task, grid: dict[HeadSpec, HeadResult], name: str) -> None:
    alone = of_method(grid, name)[-1]
    assert_same(alone, task.train([alone.spec])[0])


def test_a_head_starts_as_nn_linear_does() -> None:
    torch.manual_seed(7)
    layer = nn.Linear(11, 4)
    weight, bias = linear_start(11, 4, seed=7)
    assert torch.equal(weight, layer.weight)
    assert torch.equal(bias, layer.bias)


def test_the_order_of_rows_changes_with_seed_and_epoch() -> None:
    orders = [tuple(row_order(seed, epoch, 20)) for seed in (0, 1) for epoch in (1, 2)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(20)) for order in orders)


SPECS = [HeadSpec(name, {}, rate, size, 2) for size in (8, 16) for name in ("an", "role") for rate in (1e-2, 1e-3)]


def test_results_come_in_the_order_of_the_specs(task: Task) -> None:
    mixed = [SPECS[i] for i in np.random.default_rng(0).permutation(len(SPECS))]
    results = task.train(mixed, epochs=2)
    assert [result.spec for result in results] == mixed
    straight = {result.spec: result for result in task.train(SPECS, epochs=2)}
    for result in results:
        assert_same(result, straight[result.spec])


def test_heads_take_turns_within_the_memory_limit(task: Task) -> None:
    for result, alone in zip(task.train(SPECS), task.train(SPECS, memory_limit=1), strict=True):
        assert_same(result, alone)


def test_a_spec_is_hashable_and_plain() -> None:
    spec = HeadSpec("em", {"entropy_weight": 0.1}, 1e-3, 8, 1)
    assert {spec: 1}[HeadSpec("em", {"entropy_weight": 0.1}, 1e-3, 8, 1)] == 1
    assert HeadSpec(**json.loads(json.dumps(asdict(spec)))) == spec
    assert spec != HeadSpec("em", {"entropy_weight": 0.2}, 1e-3, 8, 1)


def test_without_validation_the_last_epoch_is_kept(task: Task) -> None:
    spec = HeadSpec("role", {}, 1e-2, 8, 0)
    (last,) = task.train([spec], validation=None)
    assert (last.validation, last.best_epoch, last.stopped_epoch) == ([], EPOCHS, EPOCHS)
    # A score that always rises keeps the last epoch too.
    rising = iter(range(EPOCHS))
    (kept,) = task.train([spec], selection=lambda scores, truth: float(next(rising)))
    torch.testing.assert_close(last.weight, kept.weight)
    torch.testing.assert_close(last.method_state, kept.method_state)


def test_the_best_epoch_is_that_of_a_shorter_run(task: Task) -> None:
    """A head whose second epoch scores best ends with the weights and the memory it had then."""
    spec = HeadSpec("role", {}, 1e-2, 8, 0)
    scores = [0.1, 0.9, 0.5, 0.9]  # an equal score later is no improvement
    given = iter(scores)
    (result,) = task.train([spec], selection=lambda logits, truth: next(given))
    assert (result.best_epoch, result.validation) == (2, scores)
    (short,) = task.train([spec], epochs=2, validation=None)
    torch.testing.assert_close(result.weight, short.weight)
    torch.testing.assert_close(result.method_state, short.method_state)


class CountingStore(FeatureStore):
    batches = 0

    def batch(self, rows: Any, pin: bool = False) -> Tensor:
        self.batches += 1
        return super().batch(rows, pin)


@pytest.mark.parametrize(("early_stopping", "stopped"), [("first-drop", [3, 2]), (2, [6, 3]), (None, [8, 8])])
def test_each_head_stops_by_itself(
    task: Task, early_stopping: Any, stopped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "SMALL", 0)  # no copy: every batch comes from the store, and is counted
    course = [[1, 2, 2, 3, 3, 1, 9, 9], [5, 4, 4, 9, 9, 9, 9, 9]]
    calls = iter([score for epoch in zip(*course, strict=True) for score in epoch])
    specs = [HeadSpec("an", {}, rate, 8, 0) for rate in (1e-3, 1e-2)]
    store = CountingStore(task.features)
    results = train_heads(
        store,
        task.labels,
        specs,
        epochs=8,
        validation=(task.validation_features, task.validation_truth),
        selection=lambda scores, truth: float(next(calls)),
        early_stopping=early_stopping,
        progress=False,
    )
    assert [result.stopped_epoch for result in results] == stopped
    for result, scores, last in zip(results, course, stopped, strict=True):
        assert result.validation == scores[:last]
        assert result.best_epoch == 1 + int(np.argmax(scores[:last]))
    assert store.batches == max(stopped) * math.ceil(ROWS / 8)  # nothing is computed once all have stopped


def test_a_diverging_head_leaves_the_others_alone(task: Task) -> None:
    good = HeadSpec("an", {}, 1e-2, 8, 0)
    (alone,) = task.train([good])
    result, wild = task.train([good, HeadSpec("an", {}, 1e38, 8, 0)])
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
    spec = HeadSpec("wan", {}, 1e-2, 8, 0)
    (mapped,) = train_heads(store, task.labels, [spec], epochs=2, progress=False)
    (in_memory,) = train_heads(half.astype(np.float32), task.labels, [spec], epochs=2, progress=False)
    assert_same(mapped, in_memory)
    torch.testing.assert_close(mapped.score(store), torch.from_numpy(half).float() @ mapped.weight + mapped.bias)


def test_validation_without_known_negatives_counts_the_rest_as_absent(task: Task) -> None:
    observed = Labels.from_indices(task.labels.single(), task.labels.classes)
    spec = HeadSpec("an", {}, 1e-2, 8, 0)
    (result,) = task.train([spec], epochs=1, validation=(task.features, observed))
    expected = mean_average_precision(result.score(task.features), observed.dense() > 0)
    assert result.validation == [pytest.approx(expected, abs=1e-6)]


def test_unknown_validation_labels_are_left_out(task: Task) -> None:
    table = task.validation_truth.dense().copy()
    table[::3, 1] = 0
    spec = HeadSpec("an", {}, 1e-2, 8, 0)
    truth = Labels.from_matrix(table)
    (result,) = task.train([spec], epochs=1, validation=(task.validation_features, truth))
    expected = mean_average_precision(result.score(task.validation_features), table > 0, mask=table != 0)
    assert result.validation == [pytest.approx(expected, abs=1e-6)]


def test_the_grid_takes_the_rate_and_batch_that_validate_best(task: Task) -> None:
    data = LinearData(
        features=FeatureStore(task.features),
        labels=task.labels,
        validation=(FeatureStore(task.validation_features), task.validation_truth),
        test=(FeatureStore(task.features[::-1].copy()), task.truth.subset(np.arange(ROWS)[::-1])),
        truth=task.truth,
    )
    methods = ["bce", "iun", ("an-ls", {"positive_smoothing": 0.2}), "role"]
    rates, sizes, seeds = (1e-1, 1e-2, 1e-4), (8, 16), (0, 1)
    grid = {"learning_rates": rates, "batch_sizes": sizes, "seeds": seeds, "epochs": 3, "k": K, "progress": False}
    rows = linear_grid(data, methods, **grid)  # type: ignore[arg-type]
    assert [(row["method"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("bce", "iun", "an-ls", "role") for seed in seeds
    ]
    assert rows[4]["settings"] == {"positive_smoothing": 0.2}
    for m in range(len(methods)):
        mine = rows[2 * m : 2 * m + 2]
        chosen = (mine[0]["learning_rate"], mine[0]["batch_size"])
        means = {}
        for rate in rates:
            for size in sizes:
                name, settings = mine[0]["method"], mine[0]["settings"]
                results = task.train([HeadSpec(name, settings, rate, size, seed) for seed in seeds], epochs=3)
                means[rate, size] = sum(max(result.validation) for result in results)
                if (rate, size) == chosen:
                    for row, result in zip(mine, results, strict=True):
                        scores, truth = result.score(task.features), task.truth.dense()
                        unseen = task.labels.dense() == 0
                        assert row["validation_map"] == pytest.approx(max(result.validation), abs=1e-6)
                        assert row["best_epoch"] == result.best_epoch
                        assert row["test_map"] == pytest.approx(mean_average_precision(scores, truth), abs=1e-6)
                        recovery = mean_average_precision(scores, truth, mask=unseen)
                        assert row["train_recovery_map"] == pytest.approx(recovery, abs=1e-6)
        assert means[chosen] == pytest.approx(max(means.values()), abs=1e-6)


def test_iun_keeps_the_observed_positive(task: Task) -> None:
    pair = (FeatureStore(task.features), task.truth)
    data = LinearData(pair[0], task.labels, pair, pair, task.truth)
    table = data.observed_and_negatives
    assert table is not None
    assert np.array_equal(table.dense() > 0, task.labels.dense() > 0)
    assert np.array_equal(table.dense() < 0, task.truth.dense() < 0)


def test_the_order_of_the_papers_on_voc() -> None:
    """Full labels above weak negatives above assumed negatives, and no worse than a first run of the authors' code."""
    from spml.data.formats.pack import load_pack

    pack = load_pack(shared_data("voc12", "labels.npz").parent)
    rows = linear_grid(
        pack, ["bce", "wan", "an"], learning_rates=(1e-3,), batch_sizes=(16,), seeds=(0,), epochs=5, progress=False
    )
    bce, wan, an = (row["test_map"] for row in rows)
    assert bce > wan > an > 0.78


# Bad input


def test_nan_in_features_is_named(task: Task) -> None:
    features = task.features.copy()
    features[11, 4] = np.nan
    with pytest.raises(InputError, match="row 11, column 4"):
        train_heads(features, task.labels, [HeadSpec("an")], progress=False)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (HeadSpec("bce"), {"full_labels": None}, "'bce' needs full labels"),
        (HeadSpec("iun"), {"negatives_labels": None}, "'iun' needs known negatives"),
        (HeadSpec("epr"), {"k": None}, "'epr' needs k"),
        (HeadSpec("boostlu"), {}, "'boostlu' is made for the head 'cam'"),
        (HeadSpec("none"), {}, "No method named 'none'"),
        (HeadSpec("em", {"alpha": 1}), {}, "'em' has no setting 'alpha'"),
        (HeadSpec("an"), {"epochs": 0}, "epochs must be at least 1"),
        (HeadSpec("an"), {"early_stopping": 0}, "early_stopping"),
        (HeadSpec("an"), {"early_stopping": 1, "validation": None}, "early_stopping needs validation"),
        (HeadSpec("an"), {"selection": "loss"}, "selection must be"),
        (HeadSpec("an"), {"validation": (np.zeros((4, 3)), np.eye(4, CLASSES))}, "3 features a row, training 6"),
        (HeadSpec("an"), {"validation": (np.zeros((4, DIM)), np.eye(3, CLASSES))}, r"table of \(3, 5\), expected"),
        (HeadSpec("an"), {"validation": (np.zeros((4, DIM)), np.zeros((4, CLASSES)))}, "no positive"),
        (HeadSpec("an"), {"full_labels": Labels.from_matrix(np.ones((2, 2)))}, "full_labels is a table of"),
    ],
)
def test_what_cannot_be_trained_is_said(task: Task, spec: HeadSpec, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        task.train([spec], **options)


def test_more_that_cannot_be_trained(task: Task) -> None:
    with pytest.raises(InputError, match="specs is empty"):
        task.train([])
    with pytest.raises(InputError, match="36 rows of features, but labels for 37"):
        train_heads(task.features[1:], task.labels, [HeadSpec("an")], progress=False)
    for labels, specs, options, sentence in (
        (task.labels.dense(), [HeadSpec("an")], {}, "labels must be Labels"),
        (task.labels, ["an"], {}, "specs must be HeadSpecs, as HeadSpec"),
        (task.labels, [HeadSpec("an")], {"epochs": 2.5}, "epochs must be a whole number, not 2.5"),
    ):
        with pytest.raises(InputError, match=sentence):
            train_heads(task.features, labels, specs, progress=False, **options)  # type: ignore[arg-type]
    for wrong, sentence in (
        ({"batch_size": "a"}, "batch_size must be a whole number, not 'a'"),
        ({"seed": -1}, "seed must be a whole number from 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            HeadSpec("an", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="learning_rate must be above 0"):
        HeadSpec("an", {}, 0.0)
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        HeadSpec("an", {}, 1e-3, 0)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU here"):
            task.train([HeadSpec("an")], device="cuda")


def test_classes_in_another_order_are_refused(task: Task) -> None:
    names = task.labels.classes
    turned = Labels.from_matrix(task.labels.dense(), names[::-1])
    sentence = f"in the same order: column 0 is '{names[-1]}', but '{names[0]}' in the training labels"
    with pytest.raises(InputError, match=f"^validation must have the classes .* {sentence}"):
        task.train([HeadSpec("an")], validation=(task.features, turned))
    with pytest.raises(InputError, match=f"^full_labels must have the classes .* {sentence}"):
        task.train([HeadSpec("an")], full_labels=turned)
    (head,) = task.train([HeadSpec("an")], epochs=1)
    with pytest.raises(InputError, match=f"^the truth must have the classes .* {sentence}"):
        head.average_precision(task.features, turned)
    with pytest.raises(InputError, match="2 features a row, but the head learned from"):
        head.score(task.features[:, :2])


def test_an_objective_that_is_not_one_number_a_head_is_refused(task: Task) -> None:
    class Flat(Method):
        name, paper, summary, needs = "flat", "", "", Needs()

        def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
            return logits.mean()

    register(Flat)
    try:
        with pytest.raises(InputError, match=r"'flat' gives numbers of shape \(\) for 2 heads"):
            task.train([HeadSpec("flat", {}, rate) for rate in (1e-3, 1e-4)])
    finally:
        del METHODS["flat"]


def test_a_method_with_state_that_is_not_one_a_head_is_refused(task: Task) -> None:
    class Shared(Method):
        name, paper, summary, needs = "shared-state", "", "", Needs()

        def prepare(self, problem: Problem) -> None:
            super().prepare(problem)
            self.register_buffer("average", torch.zeros(7))

        def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
            return mean_entry(logits)

    register(Shared)
    try:
        with pytest.raises(InputError, match="'average' is not one a head"):
            task.train([HeadSpec("shared-state", {}, 1e-3, 8, 0)])
    finally:
        del METHODS["shared-state"]


def test_a_parameter_that_takes_no_part_in_a_step_does_not_move(task: Task) -> None:
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
            spec = HeadSpec("idle", {}, rate, 8, 0)
            (once,), (long,) = (task.train([spec], epochs=epochs, validation=None) for epochs in (1, 3))
            assert once.method_state["first_epoch_only"].abs().max() > 0
            torch.testing.assert_close(once.method_state, long.method_state)
            assert_same(task.train([spec])[0], plain_loop(task, spec))
    finally:
        del METHODS["idle"]


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_the_same_heads(task: Task, grid: dict[HeadSpec, HeadResult]) -> None:
    """All at once, so that the recorded step holds every method as a branch."""
    for result, on_gpu in zip(grid.values(), task.train(list(grid), device="cuda"), strict=True):
        # Sums in another order, and of a gradient near zero Adam's steps are as long as of a large one. Besides, a last
        # digit decides whether a 16-bit estimate is rounded up or down.
        assert_same(result, on_gpu, 1e-3 if result.spec.method == "role-16bit" else 1e-4)
