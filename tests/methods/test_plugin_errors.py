"""Errors in method classes outside the package name the method, the file and the line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from spml.errors import InputError
from spml.labels import Labels
from spml.methods import METHODS, Batch, Method, Problem, loss_method, mean_entry
from spml.methods.interface import Clock
from spml.models import Outputs

LABELS = Labels.from_indices([0, 1, 2], ["a", "b", "c"])
ROWS = torch.arange(3)


def plugin(**functions: Callable[..., Any]) -> Method:
    cls = type("Mine", (Method,), {"__module__": __name__, "name": "mine", "paper": "none", "summary": "", **functions})
    made: Method = cls()
    return made


def objective_of(function: Callable[..., Any]) -> torch.Tensor:
    method = plugin(objective=function)
    method.prepare(Problem(LABELS, features=True))
    return method.objective(torch.zeros(3, 3, requires_grad=True), LABELS.batch(ROWS), ROWS, Clock())


OBJECTIVES: dict[str, tuple[Callable[..., Any], str]] = {
    "an attribute that does not exist": (
        lambda self, logits, labels, rows, clock: self.settings.weight * logits.mean(),
        r"method 'mine': objective fails in .*test_plugin_errors\.py, line \d+ \(AttributeError: .*correct the plug-in",
    ),
    "shapes that do not fit": (
        lambda self, logits, labels, rows, clock: torch.nn.functional.mse_loss(logits.view(2, 2), labels),
        r"test_plugin_errors\.py, line \d+ \(RuntimeError",
    ),
    "the end of the process": (lambda self, *inputs: exit(0), r"test_plugin_errors\.py.*SystemExit"),
    "no value": (lambda self, *inputs: None, "returned an object of type NoneType"),
    "a number": (lambda self, *inputs: 0.5, "returned an object of type float"),
    "whole numbers": (lambda self, *inputs: torch.tensor(1), r"returned torch\.int64"),
    "entries": (lambda self, logits, *inputs: logits, r"shape \(3, 3\): return one value per head, here of shape \(\)"),
    "no gradient": (lambda self, logits, *inputs: logits.detach().mean(), "does not depend on the logits"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives(name: str) -> None:
    function, message = OBJECTIVES[name]
    with pytest.raises(InputError, match=message):
        objective_of(function)


def test_an_objective_without_faults_is_not_changed() -> None:
    assert objective_of(lambda self, logits, *inputs: logits.mean()).item() == 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, batch, model, clock: model(batch.views[1]).logits.mean(), r"test_plugin_errors\.py.*IndexError"),
        (lambda self, batch, model, clock: model(batch.views[0]).logits, r"shape \(3, 3\)"),
    ],
)
def test_losses_of_batches(function: Callable[..., Any], message: str) -> None:
    method = plugin(loss=function)
    method.prepare(Problem(LABELS))
    with pytest.raises(InputError, match=message):
        method.loss(Batch(ROWS, LABELS.batch(ROWS), (torch.zeros(3, 3),)), lambda view: Outputs(view), Clock())


def test_other_functions_that_training_calls() -> None:
    def fails(self: Method, *inputs: Any) -> None:
        raise KeyError("memory")

    method = plugin(objective=lambda *inputs: None, prepare=fails, end_epoch=fails, after_step=fails)
    for call in (
        lambda: method.prepare(Problem(LABELS)),
        lambda: method.end_epoch(torch.zeros(3, 3), Clock()),
        lambda: method.after_step(0.1),
    ):
        with pytest.raises(InputError, match=r"fails in .*test_plugin_errors\.py.*KeyError: 'memory'"):
            call()


def test_reducing_the_entries_belongs_to_the_plugin() -> None:
    def entries(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits * labels

    cls = loss_method("doctest-reduce", entries, paper="none", summary="", reduce=lambda table: mean_entry(table)[0])
    METHODS.pop("doctest-reduce")
    method = cls()
    method.prepare(Problem(LABELS, features=True))
    with pytest.raises(InputError, match=r"method 'doctest-reduce': objective fails in .*IndexError"):
        method.objective(torch.zeros(3, 3, requires_grad=True), LABELS.batch(ROWS), ROWS, Clock())


def test_errors_of_the_package_itself_stay_what_they_are() -> None:
    method = METHODS["em"]()
    method.prepare(Problem(LABELS, features=True))
    with pytest.raises(AttributeError):
        method.objective(None, LABELS.batch(ROWS), ROWS, Clock())  # type: ignore[arg-type]
