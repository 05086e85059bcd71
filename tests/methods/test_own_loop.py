"""Methods outside the training loop: everything a method needs is given, or it raises."""

import doctest

import pytest
import torch

import spml.methods.base
import spml.methods.interface
import spml.methods.registry
from spml.errors import InputError
from spml.labels import Labels
from spml.losses import RobustSchedule
from spml.losses.robust import generalised_robust
from spml.methods import METHODS, Batch, Clock, Method, Needs, Problem, method
from spml.models import Outputs

LABELS = Labels.from_indices([0, 1, 2, 0], ["a", "b", "c"])
ROWS = torch.arange(4)
LOGITS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def batch(views: int) -> Batch:
    return Batch(ROWS, LABELS.batch(ROWS), (LOGITS,) * views)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_that_is_not_prepared_raises(name):
    with pytest.raises(InputError, match=f"method '{name}' is not prepared: call prepare"):
        method(name).objective(LOGITS, LABELS.batch(ROWS), ROWS, Clock())
    with pytest.raises(InputError, match=f"method '{name}' is not prepared: call prepare"):
        method(name).loss(batch(3), Outputs, Clock())


@pytest.mark.parametrize(("name", "views"), [("plc", 2), ("lac", 2), ("lasd", 3)])
def test_fewer_views_than_needed_raise(name, views):
    several = method(name)
    several.prepare(Problem(LABELS))
    with pytest.raises(InputError, match=f"'{name}' needs {views} views of each image .* but the batch has 1"):
        several.loss(batch(1), Outputs, Clock())
    with pytest.raises(InputError, match=f"'{name}' needs {views} views"):
        several.objective(LOGITS, LABELS.batch(ROWS), ROWS, Clock())
    assert several.loss(batch(views), Outputs, Clock(1, 4)).isfinite()
    on_features = method(name)
    on_features.prepare(Problem(LABELS, features=True))
    assert on_features.objective(LOGITS, LABELS.batch(ROWS), ROWS, Clock()).isfinite()


@pytest.mark.parametrize("epoch", [0, 6])
def test_a_clock_counts_epochs_from_1(epoch):
    with pytest.raises(InputError, match=rf"epoch counts from 1 to epochs \(5\), not {epoch}"):
        Clock(epoch, 5)


@pytest.mark.parametrize("name", ["role", "an"])
def test_a_method_called_like_a_loss_raises(name):
    with pytest.raises(InputError, match=rf"not called like a loss: once, {name}\.prepare.*objective\(logits"):
        method(name)(LOGITS, LABELS.batch(ROWS))


def test_auto_raises_without_its_soft_labels():
    with pytest.raises(InputError, match="must know whether it receives soft labels"):
        method("auto").prepare(Problem(LABELS))
    auto = method("auto")
    auto.prepare(Problem(LABELS, soft_labels=True))
    with pytest.raises(InputError, match="call receive_soft_labels before the first step"):
        auto.loss(batch(1), Outputs, Clock())
    with pytest.raises(InputError, match="trains on soft labels: call loss"):
        auto.objective(LOGITS, LABELS.batch(ROWS), ROWS, Clock())
    auto.receive_soft_labels(torch.full((4, 3), 0.25))
    value = auto.loss(batch(1), Outputs, Clock())
    resumed = method("auto")
    resumed.prepare(Problem(LABELS, soft_labels=True))
    resumed.load_state_dict(auto.state_dict())
    assert resumed.loss(batch(1), Outputs, Clock()) == value


def test_auto_on_features_raises_for_a_single_head():
    auto = method("auto")
    auto.prepare(Problem(LABELS, features=True))
    for call in (auto.objective, auto.ensemble_objective):
        with pytest.raises(InputError, match="'auto' trains 2 heads on features"):
            call(LOGITS, LABELS.batch(ROWS), ROWS, Clock())
    assert auto.ensemble_objective(torch.cat([LOGITS, LOGITS], -1), LABELS.batch(ROWS), ROWS, Clock()).isfinite()


def test_a_loss_of_several_views_may_use_the_objective():
    class Both(Method):
        name, paper, summary = "both", "none", "A test."
        needs = Needs(views=("weak", "strong"))

        def objective(self, logits, labels, rows, clock):
            return logits.square().mean((-2, -1))

        def loss(self, batch, model, clock):
            return sum(self.objective(model(view).logits, batch.labels, batch.rows, clock) for view in batch.views)

    both = Both()
    both.prepare(Problem(LABELS))
    assert both.loss(batch(2), Outputs, Clock()) == pytest.approx(2 * LOGITS.square().mean().item())
    with pytest.raises(InputError, match="needs 2 views"):
        both.objective(LOGITS, LABELS.batch(ROWS), ROWS, Clock())


@pytest.mark.parametrize("schedule", [RobustSchedule(width=(3.0, 1.0)), {"width": [3.0, 1.0]}])
def test_nested_settings_are_dataclasses_or_tables(schedule):
    gr = method("gr", schedule=schedule)
    assert gr.settings.schedule == RobustSchedule(width=(3.0, 1.0))
    gr.prepare(Problem(LABELS))
    known = LABELS.batch(ROWS)
    expected = generalised_robust(LOGITS, known, 1, 1, schedule=RobustSchedule(width=(3.0, 1.0))).mean()
    assert gr.objective(LOGITS, known, ROWS, Clock()) == expected
    with pytest.raises(InputError, match="schedule must be a RobustSchedule or None"):
        method("gr", schedule={"breadth": [1, 2]})


@pytest.mark.parametrize("module", [spml.methods.base, spml.methods.interface, spml.methods.registry])
def test_docstring_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
