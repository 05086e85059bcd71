"""The benchmarks of training on a GPU, at a tiny size on the CPU: what they print and what they record."""

import csv
import re
import sys

import numpy as np
import pytest
import torch

import protocol
import steps
from spml.data import open_data
from spml.methods import METHODS, Clock
from support.bench_pack import CLASSES, ROWS, TRAIN, write_pack

TINY = ["--backbone", "small", "--image-size", "32", "--device", "cpu"]


@pytest.fixture
def table(tmp_path):
    """Where a benchmark records, and what it recorded: the extra pairs as a dictionary."""
    path = tmp_path / "speed.csv"

    def rows():
        with path.open(newline="") as file:
            found = list(csv.DictReader(file))
        return {row["benchmark"]: row | dict(pair.split("=") for pair in row["extra"].split()) for row in found}

    return path, rows


def run_steps(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["steps.py", *arguments])  # what is recorded as the command
    monkeypatch.setattr(steps, "WARM_UP", 1)
    size = ["--rows", "21", "--batch-size", "4", "--classes", "5", "--steps", "1", "--rounds", "2"]
    steps.main([*TINY, *size, *arguments])


def test_both_loops_at_both_batch_sizes(monkeypatch, capsys, table):
    path, rows = table
    run_steps(monkeypatch, "--record", str(path))
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert [(line[0], line[1]) for line in lines if line[0] in ("eager", "ours") and line[1].isdigit()] == [
        ("eager", "4"),
        ("ours", "4"),
        ("eager", "16"),
        ("ours", "16"),
    ]
    found = rows()
    assert list(found) == ["step batch 4", "step batch 16"]
    small, large = found["step batch 4"], found["step batch 16"]
    for row, batch in ((small, 4), (large, 16)):
        assert float(row["ours_images_per_second"]) == pytest.approx(batch / float(row["ours_seconds"]), abs=1)
        ratio = float(row["theirs_seconds"]) / float(row["ours_seconds"])
        assert float(row["ratio"]) == pytest.approx(ratio, abs=0.01)
    share = 4 / float(small["ours_seconds"]) * float(large["ours_seconds"]) / 16
    assert float(small["share_of_rate_at_16"]) == pytest.approx(share, abs=2e-3)
    assert f"{float(small['ratio']):.2f} times the eager loop" in out


def test_methods_compared_with_an(monkeypatch, capsys, table):
    path, rows = table
    compare, exact = steps.compare_with, []
    monkeypatch.setattr(steps, "compare_with", lambda *arguments: exact.append(compare(*arguments)) or exact[-1])
    run_steps(monkeypatch, "--methods", "lac,em-apl,plc,iun", "--record", str(path))
    out = capsys.readouterr().out
    printed = {line.split()[0]: line.split() for line in out.splitlines()}
    found = rows()
    assert list(found) == ["step em-apl", "step plc", "step iun", "step lac"]  # by head
    for name in ("em-apl", "plc", "iun", "lac"):
        row, needs = found[f"step {name}"], METHODS[name].needs
        shown = [needs.head, str(len(needs.views)), "no"]
        assert printed[name][1:4] == [row["head"], row["views"], row["recorded"]] == shown
        step, after = float(row["step_seconds"]), float(row["after_epoch_seconds_per_step"])
        assert (after > 0) == (name == "em-apl")
        assert float(row["ours_seconds"]) == pytest.approx((step + after) / len(needs.views), rel=1e-3)
        times = float(row["ours_seconds"]) / float(row["theirs_seconds"])
        assert float(row["times_an"]) == pytest.approx(times, abs=0.01)
        assert float(printed[name][-1]) == pytest.approx(times, abs=0.01)
    assert [row["times_an"] for row in found.values()] == [f"{times:.2f}" for times in exact]
    within = sum(times <= 1.5 for times in exact)
    assert f"{within} of 4 methods within 1.5 times AN" in out


def test_benchmarked_steps_are_those_of_the_loop():
    """Steps move the network, on full batches of different rows, and the work after an epoch is the method's own."""
    task = steps.Task.draw(41, 5, 32, "small", torch.device("cpu"))
    run = task.trainer("em-apl", task.network("linear"), 8)
    seen = []
    take = run.step_runner.run
    run.step_runner.run = lambda rows, clock, *more, **last: (
        seen.append((rows, clock)),
        take(rows, clock, *more, **last),
    )
    before = [p.detach().clone() for p in run.classifier.parameters()]
    steps.turn(run, 5)
    assert all(not torch.equal(a, b) for a, b in zip(before, run.classifier.parameters(), strict=True))
    assert np.unique(np.concatenate([rows for rows, _ in seen])).size == 40
    assert [clock for _, clock in seen] == [Clock(6, 10, step, 60) for step in range(5)]
    assert torch.isnan(run.method.memory.values).all()
    steps.epoch_end(run)
    assert not torch.isnan(run.method.memory.values).all()


def test_failing_method_does_not_stop_the_others(monkeypatch, capsys):
    monkeypatch.setattr(METHODS["em"], "objective", lambda *_: 1 / 0)
    with pytest.raises(SystemExit, match="failed: em"):
        run_steps(monkeypatch, "--methods", "em,wan")
    assert re.search(r"^wan .*linear", capsys.readouterr().out, re.MULTILINE)


def run_protocol(monkeypatch, pack, *arguments):
    monkeypatch.setattr(sys, "argv", ["protocol.py", *arguments])
    protocol.main(["--data", str(pack), *TINY, "--batch-size", "8", "--epochs", "2", *arguments])


def test_protocol_and_published_style(tmp_path, monkeypatch, capsys, table):
    path, rows = table
    pack = write_pack(tmp_path / "tiny")
    cache = ["--cache", str(tmp_path / "cache"), "--record", str(path)]
    run_protocol(monkeypatch, pack, "--workers", "0", "--published-epochs", "2", *cache)
    out = capsys.readouterr().out
    assert out.count("test mAP") == 2
    row = rows()["protocol an"]
    assert row["theirs"] == "published style, 2 of 2 epochs times 1"
    assert row["decoding_measured_on"] == str(ROWS)
    ours, theirs, decoding = (float(row[name]) for name in ("ours_seconds", "theirs_seconds", "decoding_seconds"))
    assert float(row["ratio_with_decoding"]) == pytest.approx(theirs / (ours + decoding), abs=0.01)
    assert f"ratio {float(row['ratio']):.2f} (goal 8)" in out
    for side in ("ours", "their"):  # the bright channels are learned at once
        assert 0.5 < float(row[f"{side}_test_map"]) <= 1

    monkeypatch.setattr(protocol, "SAMPLE", 7)
    run_protocol(monkeypatch, pack, "--workers", "1", *cache)
    out = capsys.readouterr().out
    assert out.count("test mAP") == 1
    assert f"measured on 7 of {ROWS} images" in out
    row = rows()["protocol an"]
    assert row["theirs"] == "published style, 1 of 2 epochs times 2"
    assert "their_test_map" not in row


def test_published_style_learns_from_observed_labels(tmp_path):
    pack = open_data(write_pack(tmp_path / "tiny"))
    state = protocol.Published(pack, "small", 32, 8, 0, torch.device("cpu"))
    assert torch.equal(state.observed.sum(1), (torch.arange(ROWS) < TRAIN).float())
    before = [p.detach().clone() for p in state.network.parameters()]
    seen, scores = state.go_through("validation")
    assert (seen == pack.validation).all()
    assert scores.shape == (len(pack.validation), len(CLASSES))
    assert all(torch.equal(a, b) for a, b in zip(before, state.network.parameters(), strict=True))
    seen, _ = state.go_through("train")
    assert sorted(seen) == pack.train.tolist()
    assert (seen != pack.train).any()
    assert all(not torch.equal(a, b) for a, b in zip(before, state.network.parameters(), strict=True))


def test_scores_match_scikit_learn(tmp_path, monkeypatch):
    """Perfect scores give 1, but for a class without a positive, which counts 0."""
    pack = open_data(write_pack(tmp_path / "tiny"))
    state = protocol.Published(pack, "small", 32, 8, 0, torch.device("cpu"))
    monkeypatch.setattr(state, "go_through", lambda part: (pack.validation, state.truth[pack.validation].astype(float)))
    assert state.mean_average_precision("validation") == 1
    state.truth[:, 0] = False
    assert state.mean_average_precision("validation") == pytest.approx(2 / 3)
