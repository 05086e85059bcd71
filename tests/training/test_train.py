"""The trainer: resuming, errors, schedules, averaging, images."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from spml.data import FeatureStore, ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import method
from spml.models import Outputs, build_classifier
from spml.runs.files import read_tensors, write_tensors
from spml.runs.log import read_log
from spml.testing import contract as checks
from spml.training.device import choose_device
from spml.training.distributed import Processes
from spml.training.evaluation import predict, selection_score
from spml.training.examples import Examples
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings, rate_factor

SLOW_RUN = """
import sys, time, torch
from pathlib import Path
from spml.testing import contract as checks
from spml.methods import method
from spml.data import FeatureStore

torch.set_num_threads(1)
serve, served = FeatureStore.batch, 0
def slowly(self, rows):
    global served
    served += 1
    time.sleep(0.01 if served <= 5 else 3600)  # wait to be killed, far from the end
    return serve(self, rows)
FeatureStore.batch = slowly
checks.tiny_run(lambda: method(sys.argv[1]), Path(sys.argv[2]), checkpoint_seconds=0.0).fit()
"""


@pytest.mark.parametrize("name", ["em-apl", "role"])
def test_killed_and_resumed_run_ends_with_the_same_bytes(name, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    checks.tiny_run(lambda: method(name), whole).fit()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    draw = np.random.default_rng(sum(map(ord, name)))
    last, steps = killed / "last.safetensors", []
    for _ in range(3):
        before = last.stat().st_mtime_ns if last.exists() else None
        process = subprocess.Popen([sys.executable, "-c", SLOW_RUN, name, str(killed)], env=environment)
        try:
            until = time.monotonic() + 120
            while (not last.exists() or last.stat().st_mtime_ns == before) and time.monotonic() < until:
                assert process.poll() is None
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.25))
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
        steps.append(read_tensors(last)[1]["step"])
    assert 0 <= steps[0] < steps[1] < steps[2] < 18  # of three epochs with six steps: each process resumed
    checks.tiny_run(lambda: method(name), killed).fit()
    assert checks.run_bytes(whole) == checks.run_bytes(killed)
    assert [line["epoch"] for line in read_log(killed / "log.jsonl") if line["kind"] == "epoch"] == [1, 2, 3]


def test_interrupted_run_resumes(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    checks.tiny_run(lambda: method("an"), whole).fit()
    run = checks.tiny_run(lambda: method("an"), stopped)
    serve, served = run.training.store.batch, []

    def interrupting(rows):
        served.append(rows)
        if len(served) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return serve(rows)

    run.training.store.batch = interrupting
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert read_tensors(stopped / "last.safetensors")[1]["step"] == 5
    checks.tiny_run(lambda: method("an"), stopped).fit()
    assert checks.run_bytes(whole) == checks.run_bytes(stopped)


def test_resuming_with_other_settings_names_them(tmp_path):
    checks.tiny_run(lambda: method("em"), tmp_path).fit()
    with pytest.raises(InputError, match=r"method.entropy_weight was 0.2, now 0.5"):
        checks.tiny_run(lambda: method("em", entropy_weight=0.5), tmp_path).fit()


def test_checkpoint_of_another_data_set_raises(tmp_path):
    run = checks.tiny_run(lambda: method("role"), tmp_path)
    run.fit()
    path = tmp_path / "last.safetensors"
    tensors, record = read_tensors(path)
    write_tensors(path, tensors, {**record, "labels": "of something else"})
    with pytest.raises(InputError, match="another data set"):
        checks.tiny_run(lambda: method("role"), tmp_path).fit()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_missing_gpu_raises():
    with pytest.raises(InputError, match="no GPU is available"):
        choose_device("cuda")


def features(rows=64, seed=0):
    """An easy problem for a linear head: class c is present where feature c is high."""
    draw = np.random.default_rng(seed)
    truth = draw.random((rows, 4)) < 0.4
    truth[np.arange(rows), draw.integers(0, 4, rows)] = True
    values = truth + 0.3 * draw.normal(size=truth.shape)
    return values.astype(np.float32), Labels.from_matrix(truth.astype(int), list("abcd"), coding="full")


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return Outputs(self.layer(x))


def run_on_features(folder, name="bce", labels=None, **settings):
    values, truth = features()
    examples = Examples(FeatureStore(values), np.arange(64), labels or truth)
    held_out, held_out_truth = features(seed=1)
    validation = Examples(FeatureStore(held_out), np.arange(64), held_out_truth)
    chosen = {"epochs": 6, "batch_size": 8, "learning_rate": 0.05, **settings}
    return Trainer(
        folder, Linear(), method(name), examples, validation, TrainSettings(**chosen), device="cpu", progress=False
    )


def test_training_learns_and_keeps_the_best_epoch(tmp_path):
    run = run_on_features(tmp_path)
    before = selection_score(run.predict(run.validation), run.validation.labels)
    best = run.fit()
    assert best["score"] > max(before, 0.95)
    log = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "epoch"]
    assert best["score"] == max(line["validation_raw"] for line in log)
    assert log[-1]["loss"] < log[0]["loss"]
    histograms = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "histogram"]
    assert [line["epoch"] for line in histograms] == list(range(1, 7))
    unobserved = int((run.validation.labels.dense() <= 0).sum())
    assert all(sum(line["counts"]) == unobserved for line in histograms)
    tensors, record = read_tensors(tmp_path / "best.safetensors")
    network = Linear()
    network.load_state_dict(tensors)
    scores = predict(network, run.validation.store, run.validation.rows, device=torch.device("cpu"))
    assert selection_score(scores, run.validation.labels) == pytest.approx(best["score"])
    assert record["classes"] == list("abcd")


def test_methods_check_the_labels_they_need(tmp_path):
    single = Labels.from_indices(np.zeros(64, int), list("abcd"))
    with pytest.raises(InputError, match="'bce' needs full labels"):
        run_on_features(tmp_path, "bce", single)
    with pytest.raises(InputError, match="'iun' needs known negatives"):
        run_on_features(tmp_path, "iun", single)


def test_diverging_loss_raises(tmp_path):
    run = run_on_features(tmp_path, learning_rate=1e38, checkpoint_seconds=0)
    with pytest.raises(InputError, match=r"the loss became .* try a learning rate below"):
        run.fit()
    assert not (tmp_path / "last.safetensors").exists()  # another learning rate may start in this folder


def test_early_stopping(tmp_path):
    run = run_on_features(tmp_path, epochs=50, early_stopping=1)
    run.fit()
    scores = [line["validation_raw"] for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "epoch"]
    assert len(scores) < 50
    assert all(later > earlier for earlier, later in itertools.pairwise(scores[:-1]))
    assert scores[-1] <= scores[-2]


def test_accumulated_batches_equal_one_large_batch(tmp_path):
    one, many = run_on_features(tmp_path / "a", batch_size=16), run_on_features(tmp_path / "b", accumulate=2)
    one.fit()
    many.fit()
    for a, b in zip(one.classifier.parameters(), many.classifier.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_averaged_weights(tmp_path):
    run = run_on_features(tmp_path, epochs=1, batch_size=64, averaging=0.75)
    start = run.classifier.layer.weight.detach().clone()
    run.fit()
    expected = 0.75 * start + 0.25 * run.classifier.layer.weight.detach()
    assert torch.allclose(run.state.average.layer.weight, expected, atol=1e-6)


def test_head_rate_and_clip(tmp_path):
    images = ImageStore.from_array(np.random.default_rng(0).integers(0, 255, (8, 3, 32, 32), dtype=np.uint8))
    labels = Labels.from_indices(np.zeros(8, int), list("ab"))
    torch.manual_seed(0)
    classifier = build_classifier("small", 2, pretrained=False, image_size=32)
    before = {n: p.detach().clone() for n, p in classifier.named_parameters()}
    settings = TrainSettings(epochs=1, batch_size=8, learning_rate=1e-3, head_rate=10.0, clip=1.0)
    Trainer(
        tmp_path,
        classifier,
        method("an"),
        Examples(images, np.arange(8), labels),
        None,
        settings,
        device="cpu",
        progress=False,
    ).fit()
    moved = {n: (p.detach() - before[n]).abs().max().item() for n, p in classifier.named_parameters()}
    assert max(v for n, v in moved.items() if n.startswith("backbone")) == pytest.approx(1e-3, rel=0.01)
    assert max(v for n, v in moved.items() if n.startswith("head")) == pytest.approx(1e-2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "head"),
    [("an", "linear"), ("lasd", "linear"), ("lac", "label-wise"), ("boostlu", "cam"), ("en-scl", "cam")],
)
def test_images_with_every_head(name, head, tmp_path):
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 60, (24, 3, 32, 32), dtype=np.uint8)
    single = draw.integers(0, 3, 24)
    for row, c in enumerate(single):  # a bright channel c means class c
        pixels[row, c] += 150
    labels = Labels.from_indices(single, list("abc"))
    torch.manual_seed(0)
    extra = {"boost": 5.0} if name == "boostlu" else {"width": 32} if head == "label-wise" else {}
    classifier = build_classifier("small", 3, head, pretrained=False, image_size=32, **extra)
    examples = Examples(ImageStore.from_array(pixels), np.arange(24), labels)
    settings = TrainSettings(epochs=4, batch_size=8, learning_rate=3e-3, precision="bf16", averaging=0.5)
    best = Trainer(tmp_path, classifier, method(name), examples, examples, settings, device="cpu", progress=False).fit()
    assert best["score"] > 0.6
    log = [line for line in read_log(tmp_path / "log.jsonl") if line["kind"] == "epoch"]
    assert len(log) == 4
    assert json.loads((tmp_path / "run.json").read_text())["model"]


@pytest.mark.parametrize("first_stage", [1.0, 0.5])
def test_the_projection_head_of_lac_is_frozen_in_the_first_stage(first_stage, tmp_path):
    """AdamW with a large weight decay moves every parameter that it is given a gradient for (Sec. 4.1)."""
    pixels = np.random.default_rng(0).integers(0, 255, (16, 3, 32, 32), dtype=np.uint8)
    examples = Examples(
        ImageStore.from_array(pixels), np.arange(16), Labels.from_indices(np.arange(16) % 3, list("abc"))
    )
    classifier = build_classifier("small", 3, "label-wise", pretrained=False, image_size=32, width=32)
    before = {name: value.detach().clone() for name, value in classifier.named_parameters()}
    settings = TrainSettings(epochs=2, batch_size=8, learning_rate=1e-3, optimiser="adamw", weight_decay=0.5)
    lac = method("lac", first_stage=first_stage)
    trainer = Trainer(tmp_path, classifier, lac, examples, examples, settings, device="cpu", progress=False)
    trainer.fit()
    moved = {name: not torch.equal(value, before[name]) for name, value in trainer.classifier.named_parameters()}
    projection = [name for name in moved if "projection" in name]
    assert len(projection) == 4
    assert {moved[name] for name in projection} == {first_stage < 1}
    assert all(moved[name] for name in moved if name not in projection)


def test_batch_prepared_during_a_transfer_is_the_same(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 255, (22, 3, 32, 32), dtype=np.uint8)
    examples = Examples(
        ImageStore.from_array(pixels), np.arange(22), Labels.from_indices(np.arange(22) % 3, list("abc"))
    )
    prepared = []

    def transfer(self, tensors, meanwhile):
        prepared.append(meanwhile())

    for folder in (tmp_path / "after", tmp_path / "during"):
        torch.manual_seed(0)
        classifier = build_classifier("small", 3, pretrained=False, image_size=32)
        settings = TrainSettings(epochs=2, batch_size=8)
        Trainer(folder, classifier, method("plc"), examples, None, settings, device="cpu", progress=False).fit()
        monkeypatch.setattr(Processes, "average", transfer)
    assert len(prepared) == 6
    assert checks.run_bytes(tmp_path / "after") == checks.run_bytes(tmp_path / "during")


def test_schedules():
    assert [rate_factor("constant", p) for p in (0, 0.5, 1)] == [1, 1, 1]
    assert [round(rate_factor("cosine", p), 6) for p in (0, 0.5, 1)] == [1, 0.5, 0]
    assert rate_factor("cosine", 0.05, 0.1) == pytest.approx(0.5)
    torch_one = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(torch_one, max_lr=1.0, total_steps=1001, pct_start=0.2)
    for step in range(1001):
        rate = torch_one.param_groups[0]["lr"]
        assert rate_factor("one-cycle", step / 1000) == pytest.approx(rate, abs=6e-3)
        torch_one.step()
        if step < 1000:
            schedule.step()


def test_selection_on_single_positives_ranks_like_full_labels():
    values, truth = features(400)
    good, bad = (
        torch.from_numpy(values),
        torch.from_numpy(values) + torch.randn(400, 4, generator=torch.Generator().manual_seed(0)),
    )
    from spml.labels import simulate

    single = simulate(truth)
    assert selection_score(good, truth) > selection_score(bad, truth)
    assert selection_score(good, single) > selection_score(bad, single)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epochs": 1.5}, "epochs must be a whole number, not 1.5"),
        ({"epochs": True}, "epochs must be a whole number, not True"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number, not '0.1'"),
        ({"averaging": "none"}, "averaging must be a number or None, not 'none'"),
        ({"clip": -1.0}, "clip must be above 0"),
        ({"warm_up": 1.5}, "warm_up must be at least 0 and below 1"),
        ({"early_stopping": 0}, "early_stopping must be between 1 and"),
        ({"weight_decay": -1}, "weight_decay must be at least 0"),
    ],
)
def test_settings_out_of_range_raise(values, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainSettings(**values)
    assert TrainSettings(epochs=np.int64(3), learning_rate=1, clip=np.float32(1)).epochs == 3


def test_unknown_settings_raise():
    with pytest.raises(InputError, match="schedule must be one of constant, cosine, one-cycle, not 'linear'"):
        TrainSettings(schedule="linear")
    with pytest.raises(InputError, match="epochs must be between 1 and"):
        TrainSettings(epochs=0)


def test_two_processes_equal_one(tmp_path):
    script = Path(tmp_path, "job.py")
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom spml.testing import contract as checks\n"
        "from spml.methods import method\n"
        "from spml.training.distributed import end_process\n"
        "checks.tiny_run(lambda: method('ll-r'), Path(sys.argv[1])).fit()\nprint('end', flush=False)\nend_process()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
        str(tmp_path / "two"),
    ]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    assert done.stdout.count(b"end") == 2  # no output is lost; both processes may print on one line
    checks.tiny_run(lambda: method("ll-r"), tmp_path / "one").fit()
    ones, twos = (read_tensors(tmp_path / n / "last.safetensors")[0] for n in ("one", "two"))
    assert all(torch.allclose(ones[key].double(), twos[key].double(), atol=1e-5) for key in ones)
