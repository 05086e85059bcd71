"""When a step is run as usual, recorded and replayed; no GPU is needed to decide that."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from spml.accel import graph as module
from spml.accel.graph import StepGraph
from spml.methods import Batch, Clock

BATCHES = 7  # of an epoch, the last one smaller


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done: u as usual, R recorded and replayed, . replayed."""
    done: list[str] = []

    class Recording:
        def __init__(self) -> None:
            done.append("R")

        def replay(self) -> None:
            done.append(".")

        def pool(self) -> None:
            return None

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(module, "recording", lambda *_, **__: nullcontext())
    monkeypatch.setattr(StepGraph, "_run_aside", lambda *_: done.append("u"))
    return done


def run(step: Any, changes: bool, epochs: int = 3, taken: Any = lambda: None) -> None:
    made = StepGraph(step, torch.device("cpu"), changes_between_epochs=changes)
    for epoch in range(1, epochs + 1):
        for number in range(BATCHES):
            rows = torch.zeros(4 if number + 1 < BATCHES else 2, dtype=torch.long)
            made.run(Batch(rows, rows, ()), Clock(epoch, epochs, number, BATCHES), taken)


def test_a_step_that_asks_nothing_is_recorded_once(said: list[str]) -> None:
    run(lambda batch, clock: None, changes=False)
    assert "".join(said) == "uuuR...u" + "......u" * 2


@pytest.mark.parametrize(("asks", "changes"), [(True, False), (False, True)])
def test_what_may_change_with_the_epoch_runs_once_as_usual_and_is_recorded_anew(
    said: list[str], asks: bool, changes: bool
) -> None:
    run(lambda batch, clock: clock.progress if asks else None, changes)
    assert "".join(said) == "uuuR...u" + "uR.....u" * 2


def test_a_batch_is_taken_when_nothing_more_will_read_it(said: list[str]) -> None:
    run(lambda batch, clock: None, changes=False, taken=lambda: said.append("t"))
    assert "".join(said) == "ututut" + "R" + "t.t.t." + "ut" + ("t.t.t.t.t.t." + "ut") * 2
