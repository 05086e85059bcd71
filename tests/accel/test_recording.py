"""When a step runs eagerly, is recorded and is replayed. Needs no GPU."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from spml.methods import Batch, Clock

module = pytest.importorskip("spml.accel.graph")
StepGraph = module.StepGraph

BATCHES = 7  # per epoch, the last one smaller


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened: e run eagerly, R recorded, . replayed."""
    events: list[str] = []

    class Recording:
        def __init__(self) -> None:
            events.append("R")

        def replay(self) -> None:
            events.append(".")

        def pool(self) -> None:
            return None

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(module, "recording", lambda *_, **__: nullcontext())
    monkeypatch.setattr(StepGraph, "_run_eagerly", lambda *_: events.append("e"))
    return events


def run(step: Any, changes: bool, epochs: int = 3, batch_read: Any = lambda: None) -> None:
    graph = StepGraph(torch.device("cpu"), changes_between_epochs=changes)
    for epoch in range(1, epochs + 1):
        for number in range(BATCHES):
            rows = torch.zeros(4 if number + 1 < BATCHES else 2, dtype=torch.long)
            graph.run(step, Batch(rows, rows, ()), Clock(epoch, epochs, number, BATCHES), batch_read)


def test_step_independent_of_the_clock_is_recorded_once(done: list[str]) -> None:
    run(lambda batch, clock: None, changes=False)
    assert "".join(done) == "eeeR...e" + "......e" * 2


@pytest.mark.parametrize(("reads", "changes"), [(True, False), (False, True)])
def test_step_that_depends_on_the_epoch_runs_eagerly_once_and_is_recorded_again(
    done: list[str], reads: bool, changes: bool
) -> None:
    run(lambda batch, clock: clock.progress if reads else None, changes)
    assert "".join(done) == "eeeR...e" + "eR.....e" * 2


def test_batch_read_is_called_after_the_last_read(done: list[str]) -> None:
    run(lambda batch, clock: None, changes=False, batch_read=lambda: done.append("t"))
    assert "".join(done) == "etetet" + "R" + "t.t.t." + "et" + ("t.t.t.t.t.t." + "et") * 2


def test_watched_clock_notes_what_was_read() -> None:
    clock = module.WatchedClock(Clock(2, 4, 10, 40))
    assert clock.read == set()
    assert clock.progress == 1 / 3
    assert clock.read == {"epoch", "epochs"}
    assert clock.step == 10
    assert "step" in clock.read
