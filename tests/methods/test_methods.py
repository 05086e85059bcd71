"""Methods: the contract for each, and an oracle of the state of those that have one."""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
import torch

from spml.bench.measure import pseudo_label_threshold
from spml.errors import InputError
from spml.labels import Labels
from spml.losses import assume_negative
from spml.methods import METHODS, Batch, Clock, Geometry, Method, Needs, Problem, loss_method, method, register
from spml.methods.memory import RowMemory
from spml.models import Outputs
from spml.testing import check_method, check_two_processes, checks
from spml.testing.contract import check_resume

NAMES = ["a", "b", "c", "d"]


def table(rows: int = 40, seed: int = 0) -> Labels:
    return Labels.from_indices(np.random.default_rng(seed).integers(0, len(NAMES), rows), NAMES)


def prepared(name: str, labels: Labels, **settings):
    instance = method(name, **settings)
    instance.prepare(Problem(labels, k=1.5))
    return instance.train()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_contract(name):
    check_method(name)


def test_two_processes_equal_one():
    check_two_processes(sorted(METHODS))


def test_the_contract_detects_changed_labels():
    class Greedy(METHODS["an"]):
        def objective(self, logits, labels, rows, clock):
            labels[labels == 0] = 1
            return super().objective(logits, labels, rows, clock)

    with pytest.raises(AssertionError, match="changed the labels"):
        checks.check_observed_labels(Greedy)


def test_the_contract_detects_a_cost_that_grows_with_rows():
    class Heavy(METHODS["an"]):
        def prepare(self, problem):
            super().prepare(problem)
            self.register_buffer("all_rows", torch.zeros(problem.rows, problem.classes))

        def objective(self, logits, labels, rows, clock):
            return super().objective(logits, labels, rows, clock) + (self.all_rows * 2).sum()

    with pytest.raises(AssertionError, match="40 times as many"):
        checks.check_cost(Heavy)


def test_the_contract_detects_state_that_is_not_saved():
    class Forgetful(METHODS["an"]):
        steps = 0

        def objective(self, logits, labels, rows, clock):
            self.steps += 1  # a plain attribute is not saved
            return super().objective(logits, labels, rows, clock) * self.steps

    with pytest.raises(AssertionError, match="same bytes"):
        check_resume(Forgetful)


class Remembering(METHODS["an"]):
    """Entries are weighted by the prediction at the last visit of the row."""

    needs = Needs()

    def prepare(self, problem):
        super().prepare(problem)
        self.last = RowMemory(problem.rows, (problem.classes,), heads=problem.heads)

    def objective(self, logits, labels, rows, clock):
        entries = assume_negative(logits, labels) * (1 - self.last.read(rows))
        if self.training:
            self.last.write(rows, torch.sigmoid(logits.detach().float()))
        return self.of(entries, labels)

    def of(self, entries, labels):
        return entries.mean((-2, -1))


def test_the_contract_of_a_instancewith_memory():
    check_method(Remembering)
    check_method(Remembering())  # an instance works too


def variant(**members):
    return type("Variant", (Remembering,), members)


def plain_state(self, problem):
    METHODS["an"].prepare(self, problem)
    self.last = torch.zeros(problem.rows, problem.classes)


def plain_attribute(self, logits, labels, rows, clock):
    entries = assume_negative(logits, labels) * (1 - self.last[rows])
    self.last[rows] = torch.sigmoid(logits.detach().float())
    return self.of(entries, labels)


def always_written(self, logits, labels, rows, clock):
    entries = assume_negative(logits, labels) * (1 - self.last.read(rows))
    self.last.write(rows, torch.sigmoid(logits.detach().float()))
    return self.of(entries, labels)


def without_heads(self, problem):
    METHODS["an"].prepare(self, problem)
    self.last = RowMemory(problem.rows, (problem.classes,))


def turned_around(self, logits, labels, rows, clock):
    """An observed positive becomes a negative once it is predicted very low."""
    low = self.last.read(rows)
    self.last.write(rows, torch.maximum(low, (logits.detach() < -4).float()))
    return assume_negative(logits, torch.where(low > 0, -1, labels)).mean((-2, -1))


def towards_a_half(self, logits, labels, rows, clock):
    entries = (torch.sigmoid(logits.float()) - 0.5).square()
    return torch.where(labels > 0, entries, assume_negative(logits, labels)).mean((-2, -1))


def negatives_as_positives(self, logits, labels, rows, clock):
    return assume_negative(logits, labels.abs()).mean((-2, -1))


def forgotten_when_sure(self, logits, labels, rows, clock):
    """A verified negative counts as a positive once it is predicted very low."""
    sure = (logits.detach() < -4) & (labels < 0)
    return assume_negative(logits, torch.where(sure, 1, labels)).mean((-2, -1))


def clamped(self, logits, labels, rows, clock):
    with torch.no_grad():
        logits.clamp_(-5, 5)
    return assume_negative(logits, labels).mean((-2, -1))


def whole_memory(self, logits, labels, rows, clock):
    return assume_negative(logits, labels).mean((-2, -1)) * (1 + self.last.values.mean((-2, -1)))


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"of": lambda self, entries, labels: entries}, "returns a loss of shape (4, 17) for one head"),
        ({"of": lambda self, entries, labels: None}, "returns a NoneType as its loss, not a tensor"),
        ({"of": lambda self, entries, labels: entries.mean().item()}, "returns a float as its loss"),
        ({"of": lambda self, entries, labels: entries.detach().mean((-2, -1))}, "has no gradient"),
        ({"of": lambda self, entries, labels: (entries * torch.rand(17)).mean((-2, -1))}, "draws random numbers"),
        ({"of": lambda self, entries, labels: entries.mean()}, "shape () for two heads"),
        (
            {"of": lambda self, entries, labels: (entries / entries.detach().max()).mean((-2, -1))},
            "a head of an depends on the other heads",
        ),
        (
            {"of": lambda self, entries, labels: (entries * (labels > 0)).sum((-2, -1)).sqrt()},
            "gradient is not finite for rows [3]",
        ),
        ({"prepare": plain_state, "objective": plain_attribute}, "keeps state in the plain attribute 'last'"),
        ({"objective": always_written}, "changes 'last.values' in evaluation"),
        ({"prepare": without_heads}, "'last.values' has no dimension for heads"),
        ({"objective": turned_around}, "pushes an observed positive down, at a logit of -6"),
        ({"objective": towards_a_half}, "pushes an observed positive down, at a logit of 2"),
        ({"objective": negatives_as_positives}, "pulls a verified negative up, at a logit of 2"),
        ({"objective": forgotten_when_sure}, "pulls a verified negative up, at a logit of -6"),
        ({"objective": clamped}, "changes the logits it receives"),
        ({"objective": whole_memory}, "40 times as many"),
        ({"end_epoch": lambda self, probabilities, clock: None}, "has an end_epoch that is never called"),
    ],
)
def test_the_contract_names_the_problem(members, sentence):
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        check_method(variant(**members))


def masked(self, logits, labels, rows, clock):
    labels = labels.clone()
    labels[(labels == 0) & (torch.sigmoid(logits) > 0.1)] = 1
    return assume_negative(logits, labels).mean((-2, -1))


def test_a_loss_function_that_reduces_raises(monkeypatch):
    def reduced(logits, labels):
        return assume_negative(logits, labels).mean()

    cls = loss_method("reduced", reduced, paper="none", summary="A test.")
    monkeypatch.delitem(METHODS, "reduced")
    with pytest.raises(InputError, match=r"reduced returned a tensor of shape .* return one value per entry"):
        check_method(cls)


def test_invalid_needs_raise():
    for needs, sentence in (
        ({"labels": "positive"}, "needs: labels must be one of ('positives', 'negatives', 'full'), not 'positive'"),
        ({"views": ("weak", "strog")}, "needs: views must be a tuple of"),
        ({"views": "weak"}, "needs: views must be a tuple of"),
        ({"splits": "columns"}, "needs: splits must be one of"),
        ({"k": 1.5}, "k must be true or false, not 1.5"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            Needs(**needs)


class TwoViews(Method):
    """A loss of several views and all outputs of a head, without an objective."""

    name, paper, summary = "two-views", "none", "A test."
    needs = Needs(views=("weak", "strong"), head="label-wise")

    def loss(self, batch, model, clock):
        weak, strong = (model(view) for view in batch.views)
        apart = (weak.embeddings - strong.embeddings).square().mean() + (weak.maps - strong.maps).square().mean()
        return self.sign * assume_negative(strong.logits, batch.labels).mean() + apart

    sign = 1


def test_the_contract_of_a_instancewithout_objective():
    check_method(TwoViews)

    class Upside(TwoViews):
        sign = -1

    with pytest.raises(AssertionError, match="pushes an observed positive down"):
        check_method(Upside)


@pytest.mark.parametrize("name", ["an-ls", "bce-ls"])
def test_the_contract_allows_label_smoothing_but_not_targets_near_a_half(name):
    setting = {"an-ls": "positive_smoothing", "bce-ls": "smoothing"}[name]
    checks.check_observed_labels(lambda: method(name, **{setting: 0.2}))
    with pytest.raises(AssertionError, match="pushes an observed positive down"):
        checks.check_observed_labels(lambda: method(name, **{setting: 0.8}))


def test_the_contract_explains_an_error_of_the_method():
    for make, sentence in (
        (variant(objective=masked), "raised IndexError"),
        (variant(objective=masked), "choose entries with torch.where"),
        (variant(prepare=lambda self, problem: None), "its prepare must call super().prepare(problem)"),
        (type("OneView", (TwoViews,), {"needs": Needs()}), "one view for each of Needs(views=('weak',))"),
        (lambda: 3, "creates a int, not a method"),
    ):
        with pytest.raises(AssertionError, match=re.escape(sentence)):
            check_method(make)


def test_every_published_method_is_registered():
    published = (
        "bce bce-ls iu iun an an-ls wan dw l1r l2r n-ls epr pr role entmin focal asl ll-r ll-ct ll-cp em em-apl las "
        "lasd en en-cl en-scl plc lac splc hill gr boostlu softmax"
    )
    assert set(published.split()) <= set(METHODS)
    for cls in METHODS.values():
        assert cls.paper
        assert cls.summary.endswith(".") or cls.summary.endswith(").")
        assert dataclasses.is_dataclass(cls.Settings)


def test_unknown_names_and_settings_raise():
    with pytest.raises(InputError, match="No method named 'emm'"):
        method("emm")
    with pytest.raises(InputError, match=r"'em' has no setting 'alpha'; its settings: entropy_weight"):
        method("em", alpha=0.1)
    with pytest.raises(InputError, match="needs k"):
        method("role").prepare(Problem(table()))


@pytest.mark.parametrize(
    ("name", "setting", "value", "kind"),
    [
        ("em", "entropy_weight", "big", "a number"),
        ("em", "entropy_weight", None, "a number"),
        ("role", "k", "1", "a number or None"),
        ("em-apl", "warm_up", 1.5, "a whole number"),
        ("em-apl", "hard", 1, "true or false"),
        ("gr", "schedule", "slow", "a RobustSchedule or None"),
    ],
)
def test_settings_of_another_type_raise(name, setting, value, kind):
    with pytest.raises(InputError, match=f"^method '{name}': {setting} must be {kind}, not {value!r}$"):
        method(name, **{setting: value})


def test_loss_method_registers_a_method():
    def squared(logits, labels, epoch, *, weight=1.0):
        return weight * epoch * (logits.sigmoid() - (labels > 0).float()) ** 2

    try:
        instance = loss_method("squared", squared, paper="none", summary="A test.", needs=Needs(), weight=3.0)()
        with pytest.raises(InputError, match="method 'squared': weight must be a number"):
            method("squared", weight="heavy")  # a number by its default
        instance.prepare(Problem(table()))
        rows = torch.arange(4)
        value = instance.objective(torch.zeros(4, 4), table().batch(rows), rows, Clock(epoch=2, epochs=3))
        assert value.item() == pytest.approx(3.0 * 2 * 0.25)
    finally:
        METHODS.pop("squared")


def no_labels(logits, *, weight=1.0): ...
def loose_setting(logits, labels, weight=1.0): ...
def unknown_input(logits, labels, weak_logits): ...
def late_epoch(logits, labels, *, epoch): ...
def bare_setting(logits, labels, *, weight): ...
def any_settings(logits, labels, **settings): ...


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (no_labels, "no_labels: the first two positional parameters must be logits and labels"),
        (loose_setting, "loose_setting: the parameter 'weight=1.0' is not supported: positional parameters are logits"),
        (unknown_input, "unknown_input: the parameter 'weak_logits' is not supported"),
        (late_epoch, "late_epoch: 'epoch' changes at every step: make it positional"),
        (bare_setting, "bare_setting: the setting 'weight' needs a default"),
        (any_settings, "any_settings: the parameter '\\*\\*settings' is not supported"),
        (functools.partial(no_labels), "is not a named function"),
    ],
)
def test_losses_with_an_unsupported_signature_raise(function, sentence):
    with pytest.raises(TypeError, match=sentence):
        loss_method("wrong", function, paper="none", summary="A test.")
    assert "wrong" not in METHODS


def test_settings_must_be_a_dataclass():
    with pytest.raises(TypeError, match=r"Variant\.Settings must be decorated"):
        variant(Settings=type("Settings", (), {"threshold": 0.5}))()


def test_a_instancewithout_objective_or_loss_raises():
    with pytest.raises(TypeError, match="Idle must define 'objective' or 'loss'"):

        @register
        class Idle(Method):
            name, paper, summary = "idle", "none", "A test."

    assert "idle" not in METHODS


def test_role_is_the_mean_of_both_halves():
    labels = table()
    role = prepared("role", labels)
    rows = torch.tensor([3, 17, 5])
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    value = role.objective(logits, labels.batch(rows), rows, Clock()).item()

    def half(taught, teacher, observed):
        size = taught.size
        agreement = -(teacher * np.log(taught) + (1 - teacher) * np.log(1 - taught)).sum() / size
        positives = -np.log(taught[observed]).sum() / size
        return agreement + positives + ((taught.sum(1).mean() - 1.5) / taught.shape[1]) ** 2

    f = 1 / (1 + np.exp(-logits.double().numpy()))
    y = 1 / (1 + np.exp(-role.memory.values[rows].detach().double().numpy()))
    observed = labels.dense(rows.numpy()) > 0
    assert value == pytest.approx((half(f, y, observed) + half(y, f, observed)) / 2, rel=1e-5)


def test_role_starts_as_published():
    labels = table(500)
    values = prepared("role", labels).memory.values.detach().numpy()
    observed = labels.dense() > 0
    assert values[observed] == pytest.approx(math.log(0.995 / 0.005))
    bound = math.log(0.6 / 0.4)
    rest = values[~observed]
    assert np.abs(rest).max() <= bound
    assert rest.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("name", ["role", "role-16bit", "role-factorised"])
def test_role_starts_verified_negatives_opposite_to_positives(name):
    known = np.zeros((6, 4), np.int8)
    known[np.arange(6), [0, 1, 2, 3, 0, 1]] = 1
    known[:3, 3] = -1
    labels, rows = Labels.from_matrix(known), torch.arange(6)
    role = prepared(name, labels)
    estimates = role.estimates(labels.batch(rows), rows).detach().float().numpy()
    tolerance = 5e-3 if name == "role-16bit" else 1e-6
    np.testing.assert_allclose(estimates[known == 1], math.log(0.995 / 0.005), atol=tolerance)
    np.testing.assert_allclose(estimates[known == -1], -math.log(0.995 / 0.005), atol=tolerance)
    assert np.abs(estimates[known == 0]).max() < 3


@pytest.mark.parametrize("name", ["role", "role-16bit"])
def test_role_estimates_have_ten_times_the_learning_rate(name):
    labels = table()
    role = prepared(name, labels)
    before = role.memory.values.detach().float().clone()
    rows = torch.arange(8)
    optimiser = torch.optim.Adam(
        [{"params": p, "lr": 1e-2 * m} for p, m in role.parameter_groups()] or [torch.zeros(1)]
    )
    role.objective(torch.randn(8, 4), labels.batch(rows), rows, Clock()).backward()
    optimiser.step()
    role.after_step(1e-2)
    moved = (role.memory.values.detach().float() - before).abs()
    assert moved[:8].median().item() == pytest.approx(0.1, rel=0.02)  # Adam's first step is its rate
    assert moved[8:].max() == 0


def test_sixteen_bit_role_keeps_small_steps_in_expectation():
    from spml.methods.cole import hashed_uniform, round_stochastically

    value = torch.full((4000, 4), 0.5 + 2e-5)  # a twelfth of a float16 unit above 0.5
    uniform = hashed_uniform(torch.arange(4000), torch.ones(4000, 1), 4)
    rounded = round_stochastically(value, uniform, torch.float16).float()
    assert set(rounded.unique().tolist()) == {0.5, 0.50048828125}
    assert rounded.mean().item() == pytest.approx(value.mean().item(), abs=1e-5)


def test_apl_assigns_soft_labels_to_the_lowest_predictions_of_each_class_once():
    labels = table(60)
    em_apl = prepared("em-apl", labels, warm_up=2, proportion=0.9)
    generator = np.random.default_rng(1)
    given: dict[tuple[int, int], float] = {}
    unknown = labels.dense() == 0
    for epoch in range(1, 6):
        p = generator.random((60, 4)).astype(np.float32)
        em_apl.end_epoch(torch.from_numpy(p), Clock(epoch, 5))
        if 2 <= epoch < 5:  # the paper's Algorithm 1, entry by entry
            for c in range(4):
                take = int(0.9 / 3 * unknown[:, c].sum())
                left = sorted((p[n, c], n) for n in range(60) if unknown[n, c] and (n, c) not in given)
                given.update({(n, c): float(value) for value, n in left[:take]})
    values = em_apl.memory.values.numpy()
    for n in range(60):
        for c in range(4):
            if (n, c) in given:
                assert values[n, c] == pytest.approx(given[n, c])
            else:
                assert np.isnan(values[n, c])


def test_apl_ablations():
    labels = table(60)
    hard = prepared("em-apl", labels, warm_up=1, hard=True, positive_proportion=0.2)
    hard.end_epoch(torch.rand(60, 4), Clock(1, 3))
    given = hard.memory.values[~torch.isnan(hard.memory.values)]
    assert set(given.tolist()) == {0.0, 1.0}


def test_ll_cp_flips_only_unknown_labels_permanently():
    labels = table()
    ll_cp = prepared("ll-cp", labels, share=10.0)
    rows = torch.arange(10)
    batch = labels.batch(rows)
    logits = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    ll_cp.objective(logits, batch, rows, Clock(1, 5))
    assert not ll_cp.memory.values.any()  # nothing in the first epoch
    ll_cp.objective(logits, batch, rows, Clock(2, 5))
    flipped = ll_cp.memory.values[:10]
    expected = torch.where(batch == 0, logits, -torch.inf).flatten().topk(4).indices
    assert flipped.flatten().nonzero().flatten().sort().values.equal(expected.sort().values)
    ll_cp.objective(logits, batch, rows, Clock(3, 5))
    assert (ll_cp.memory.values[:10] & flipped).equal(flipped)
    assert ll_cp.memory.values.sum() == 8
    assert not (ll_cp.memory.values[:10] & (batch > 0)).any()


def test_lac_starts_its_second_stage_half_way_and_fills_its_queue():
    labels = table()
    lac = prepared("lac", labels, queue=6, embedding_width=8)
    rows = torch.arange(4)
    generator = torch.Generator().manual_seed(0)

    def model(view):
        embeddings = torch.nn.functional.normalize(torch.randn(4, 4, 8, generator=generator), dim=-1)
        return Outputs(torch.full((4, 4), -5.0), embeddings)

    batch = Batch(rows, labels.batch(rows), (rows, rows))
    lac.loss(batch, model, Clock(2, 4))
    assert (lac.queue_classes == -1).all()
    lac.loss(batch, model, Clock(3, 4))
    assert lac.queue_classes[:4].tolist() == labels.single()[:4].tolist()
    assert lac.queue_position == 4
    lac.loss(batch, model, Clock(3, 4))  # the queue wraps around: the oldest two are gone
    assert lac.queue_position == 2
    assert lac.queue_classes[:6].tolist() == [*labels.single()[2:4], *labels.single()[2:4], *labels.single()[:2]]


@pytest.mark.parametrize("name", ["plc", "lac"])
def test_plc_divided_by_its_targets_as_in_the_authors_code(name):
    """Σ AN / (B·L) + λ Σ PLC / M in float64, with its gradient; M counts the targets, observed positives included."""
    labels = table()
    instance = prepared(name, labels, divide_by_sure=True, consistency_weight=0.7)
    rows, draw = torch.arange(5), np.random.default_rng(1)
    weak, strong = 3 * draw.normal(size=(2, 5, 4))
    known = labels.dense(np.arange(5))
    sigmoid = lambda g: 1 / (1 + np.exp(-g))  # noqa: E731

    def value(weak, strong):
        assumed = np.where(known > 0, -np.log(sigmoid(weak)), -np.log(1 - sigmoid(weak))).sum() / 20
        up = (known > 0) | (sigmoid(weak0) >= 0.6)
        down = (known == 0) & (sigmoid(weak0) <= 0.4)
        targets = np.where(up, -np.log(sigmoid(strong)), 0) + np.where(down, -np.log(1 - sigmoid(strong)), 0)
        return assumed + 0.7 * targets.sum() / (up | down).sum()

    weak0 = weak.copy()
    leaves = [torch.from_numpy(view.copy()).requires_grad_() for view in (weak, strong)]
    found = instance.loss(Batch(rows, labels.batch(rows), tuple(leaves)), lambda view: Outputs(view), Clock(1, 4))
    assert found.item() == pytest.approx(value(weak, strong), rel=1e-12)
    gradients = torch.autograd.grad(found, leaves)
    for place, view in enumerate((weak, strong)):
        moved = view.copy()
        moved[2, 1] += 1e-6
        arguments = [weak, strong]
        arguments[place] = moved
        slope = (value(*arguments) - value(weak, strong)) / 1e-6
        assert gradients[place][2, 1].item() == pytest.approx(slope, abs=1e-5)
    heads = torch.stack([leaves[0].detach(), leaves[1].detach()])
    if name == "plc":  # each head divides by its own targets, and the objective does not split by rows
        instance = prepared("plc", labels, divide_by_sure=True)
        each = [instance.two_views(head, head, labels.batch(rows), 0.6) for head in heads]
        torch.testing.assert_close(instance.two_views(heads, heads, labels.batch(rows), 0.6), torch.stack(each))
        assert instance.needs.splits is None
        assert prepared("plc", labels).needs.splits == "rows"


def test_lac_with_supervised_contrast_averages_over_both_views_and_the_queue():
    labels, rows = table(), torch.arange(4)
    generator = torch.Generator().manual_seed(0)
    views = [torch.nn.functional.normalize(torch.randn(4, 4, 8, generator=generator), dim=-1) for _ in range(2)]
    losses = {}
    for weight in (0.0, 1.0):
        lac = prepared("lac", labels, queue=6, embedding_width=8, supervised_contrast=True, contrast_weight=weight)
        lac.queue_embeddings[:2] = views[0][0, :2]
        lac.queue_classes[:2] = torch.tensor([labels.single()[0], 3])
        outputs = iter(Outputs(torch.full((4, 4), -5.0), view) for view in views)
        batch = Batch(rows, labels.batch(rows), (rows, rows))
        losses[weight] = lac.loss(batch, lambda view, given=outputs: next(given), Clock(3, 4)).item()
    single = labels.single()[:4]
    z = np.concatenate([*(view[np.arange(4), single].numpy() for view in views), views[0][0, :2].numpy()])
    classes = np.array([*single, *single, single[0], 3])
    costs = []
    for i in range(10):
        others = [a for a in range(10) if a != i]
        total = sum(np.exp(z[i] @ z[a] / 0.5) for a in others)
        same = [a for a in others if classes[a] == classes[i]]
        costs.append(np.mean([-np.log(np.exp(z[i] @ z[a] / 0.5) / total) for a in same]) if same else 0.0)
    assert losses[1.0] - losses[0.0] == pytest.approx(np.mean(costs), rel=1e-5)


def test_large_loss_counts_are_never_whole_in_the_published_trainings():
    """Where B·L·(t - 1)·Δ/100 is whole, the authors' code takes one entry more; in ten epochs that never happens."""
    published = {20: (0.2, 0.1), 80: (0.4, 0.2), 81: (0.4, 0.2), 312: (0.4, 0.2)}
    for classes, shares in published.items():
        for tenths in (round(10 * share) for share in shares):
            assert all(16 * classes * epochs * tenths % 1000 for epochs in range(1, 10)), (classes, tenths)


def test_en_ignores_unknowns_above_their_class():
    labels = table()
    en = prepared("en", labels)
    rows = torch.arange(2)
    logits = torch.tensor([[3.0, 3.0, 3.0, 3.0], [-3.0, -3.0, -3.0, -3.0]], requires_grad=True)
    batch = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.int8)
    en.objective(logits, batch, rows, Clock()).backward()
    assert (logits.grad[0, 1:] == 0).all()  # above the class average: cost nothing
    assert (logits.grad[1, [0, 2, 3]] > 0).all()  # below: negatives
    assert (logits.grad[[0, 1], [0, 1]] < 0).all()


def test_en_scl_remembers_maps_in_image_coordinates():
    labels = table()
    en_scl = prepared("en-scl", labels, map_size=4)
    heat = torch.linspace(-3, 3, 16).reshape(1, 1, 4, 4).expand(1, 4, 4, 4).clone()
    rows = torch.tensor([0])

    def loss(flip):
        shown = heat.flip(-1) if flip else heat
        geometry = Geometry(torch.tensor([flip]))
        batch = Batch(rows, labels.batch(rows), (rows,), (geometry,))
        return en_scl.loss(batch, lambda view: Outputs(torch.zeros(1, 4), None, shown), Clock())

    loss(True)
    assert torch.allclose(en_scl.heat.values[0].float(), heat[0].sigmoid(), atol=1e-3)
    without = en_scl.objective(torch.zeros(1, 4), labels.batch(rows), rows, Clock())
    assert loss(False).item() == pytest.approx(without.item(), abs=1e-5)  # the same image, seen the other way round


def test_l1_and_l2_penalties_are_per_head():
    parameters = [torch.full((2, 3), 2.0), torch.tensor([1.0, -1.0, 0.0])]
    assert method("l1r", weight=0.5).penalty(parameters).item() == pytest.approx(0.5 * 14)
    heads = [torch.stack([p, 2 * p]) for p in parameters]
    assert method("l2r", weight=1.0).penalty(heads, heads=1).tolist() == pytest.approx([26.0, 104.0])


def test_predictive_values_use_a_declared_threshold_not_any_setting_of_that_name(monkeypatch):
    def capped(logits, labels, *, threshold: float = 3.0):
        return assume_negative(logits.clamp(max=threshold), labels)

    monkeypatch.setattr(METHODS, "data", dict(METHODS.data))
    assert pseudo_label_threshold(loss_method("capped", capped, paper="none", summary="A test.")()) == 0.5
    assert pseudo_label_threshold(method("lasd")) == 0.9
    assert pseudo_label_threshold(method("splc", threshold=0.7)) == 0.7
    assert {pseudo_label_threshold(method(name)) for name in ("plc", "lac")} == {0.6}
    with pytest.raises(TypeError, match="pseudo_label_setting names 'limit', which is no setting"):
        loss_method("capped", capped, paper="none", summary="A test.", pseudo_label_setting="limit")


def test_lasd_with_one_view_still_splits_into_rows():
    lasd = method("lasd", consistency_weight=0)
    assert (lasd.needs.views, lasd.needs.splits) == (("weak",), "rows")
    checks.check_splits(lambda: method("lasd", consistency_weight=0))


def test_lasd_leverage_follows_k():
    lasd = prepared("lasd", table())
    assert lasd.negative_leverage == pytest.approx((1 + 0.1 * 0.5) / (4 - 1.5))
    assert method("lasd", consistency_weight=0.0).needs.views == ("weak",)


def test_the_contract_detects_wrong_splits():
    class Claims(METHODS["epr"]):
        needs = Needs(k=True, splits="rows")

    with pytest.raises(AssertionError, match="is not a mean over rows"):
        checks.check_splits(Claims)


def test_f1_thresholds_and_head_settings_are_stated_by_the_methods():
    assert {name for name, cls in METHODS.items() if cls.f1_threshold == 0.75} == {"em", "em-apl", "annotator-em"}
    assert {cls.f1_threshold for cls in METHODS.values()} == {0.5, 0.75}
    assert {name: dict(cls.head_settings) for name, cls in METHODS.items() if cls.head_settings} == {
        "boostlu": {"boost": 5.0}
    }
    assert {name for name, cls in METHODS.items() if cls.activation != "sigmoid"} == {"softmax"}
