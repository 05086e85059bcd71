"""Training steps: accelerated against eager, and every method against AN.

    python benchmarks/steps.py --record                    # the eager loop and ours, at batch 16 and 64
    python benchmarks/steps.py --parts --record            # the eager loop, then one part of spml.accel after another
    python benchmarks/steps.py --methods all --record      # every method compared with AN, per view
    python benchmarks/steps.py --backbone small --image-size 32 --rows 96 --device cpu --steps 2 --methods an,em-apl

A network with random weights trains on random images in the device's memory, in bfloat16. `eager` is our loop without
`spml.accel`. Sides take turns in one process; the median over the rounds is reported.

A method's time includes its work after an epoch, mainly predictions for all training rows, divided by the steps per
epoch. The clock is in epoch 6 of 10, where every method is fully active: LAC is in its second stage, APL assigns
pseudo-labels. A method with another head than the linear one is compared with AN on that head.
"""

from __future__ import annotations

import argparse
import copy
import gc
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import SPEED, hardware, record
from spml.data import ImageStore
from spml.labels import Labels
from spml.methods import METHODS, Clock, method
from spml.models import Classifier, build_classifier
from spml.training.accelerator import Accelerator, EagerAccelerator
from spml.training.device import choose_device
from spml.training.examples import Examples
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings

SEED = 0
EPOCH, EPOCHS = 6, 10
K = 1.5
WARM_UP = 6  # three eager steps, one that is recorded, and two more
HEADS = ("linear", "cam", "label-wise")  # one after another, so that only one AN baseline is in memory
PARTS = ("graph", "prefetch", "norm", "convolutions", "bf16_weights")  # in the order in which they are added
GOALS = {"eager": 2.5, "large batch": 0.75, "an": 1.5}


@dataclass(frozen=True)
class Task:
    """Random images on the device, and everything else a training needs."""

    store: ImageStore
    observed: np.ndarray
    truth: np.ndarray  # (N, L) signed; the observed positive and sometimes another
    backbone: str
    device: torch.device

    @classmethod
    def draw(cls, rows: int, classes: int, size: int, backbone: str, device: torch.device) -> Task:
        draw = np.random.default_rng(SEED)
        store = ImageStore.from_array(draw.integers(0, 256, (rows, 3, size, size), dtype=np.uint8))
        if not store.to_device(device):
            raise SystemExit(
                f"{rows} images of {size} pixels do not fit half of the memory of {device}: take fewer rows"
            )
        observed = draw.integers(0, classes, rows)
        present = draw.random((rows, classes)) < (K - 1) / classes
        present[np.arange(rows), observed] = True
        return cls(store, observed, np.where(present, 1, -1).astype(np.int8), backbone, device)

    def labels(self, need: str) -> Labels:
        """The labels for a method with this `Needs.labels`."""
        names = [f"class {column}" for column in range(self.truth.shape[1])]
        if need == "positives":
            return Labels.from_indices(self.observed, names)
        shown = self.truth.copy()
        if need == "negatives":
            shown[shown > 0] = 0
            shown[np.arange(len(shown)), self.observed] = 1
        return Labels.from_matrix(shown, names, coding="signed")

    def network(self, head: str, **settings: Any) -> Classifier:
        torch.manual_seed(SEED)
        size, classes = self.store.size, self.truth.shape[1]
        return build_classifier(self.backbone, classes, head, pretrained=False, image_size=size, **settings)

    def trainer(
        self, name: str, network: Classifier, batch_size: int, accelerator: Accelerator | None = None
    ) -> Trainer:
        """A trainer with a copy of the network, before its first step."""
        chosen = method(name)
        training = Examples(self.store, np.arange(len(self.store)), self.labels(chosen.needs.labels))
        settings = TrainSettings(epochs=EPOCHS, batch_size=batch_size, precision="bf16", seed=SEED)
        nowhere = Path(os.devnull)  # single steps write no files
        options: dict[str, Any] = {"k": K, "device": str(self.device), "progress": False, "accelerator": accelerator}
        return Trainer(nowhere, copy.deepcopy(network), chosen, training, None, settings, **options)


def now(device: torch.device) -> float:
    """The time, once the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def turn(run: Trainer, steps: int, epoch: int = EPOCH) -> float:
    """Seconds per step, over this many full batches."""
    size, order, state = run.settings.batch_size, run.batch_maker.order(epoch), run.state
    full = len(order) // size
    started = now(run.device)
    for _ in range(steps):
        positions, following = (order[number % full * size :][:size] for number in (state.step, state.step + 1))
        run.step_runner.run(positions, Clock(epoch, EPOCHS, state.step, run.steps), following, last=False)
        state.step += 1
    return (now(run.device) - started) / steps


def in_turns(runs: Sequence[Trainer], steps: int, rounds: int) -> list[float]:
    """Seconds per step of each run: the median of its turns."""
    for run in runs:
        turn(run, WARM_UP)
    found = [[turn(run, steps) for run in runs] for _ in range(rounds)]
    for run in runs:
        loss = float(run.state.loss_sum)
        if not math.isfinite(loss):
            raise RuntimeError(f"{run.method.name}: the loss is {loss}, so these were not usual steps")
    return [statistics.median(times) for times in zip(*found, strict=True)]


def epoch_end(run: Trainer) -> float:
    """Seconds of the method's work after an epoch, including predictions for all training rows if it needs them."""
    if not run.method.needs.epoch_predictions:
        return 0.0
    clock, times = Clock(EPOCH, EPOCHS, run.state.step, run.steps), []
    for _ in range(3):
        started = now(run.device)
        run.method.end_epoch(run.predict(run.training), clock)
        times.append(now(run.device) - started)
    return statistics.median(times)


def is_recorded(run: Trainer) -> bool:
    graph = getattr(run.accelerator, "graph", None)  # the eager accelerator has none
    return graph is not None and graph.graph is not None


def release(device: torch.device) -> None:
    """Free the memory of dropped runs: a run and its recording refer to each other until they are collected."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def compare_batches(task: Task, batch: int, steps: int, rounds: int, table: Path | None) -> None:
    """The eager loop and ours, at a batch and at one four times as large."""
    network, large = task.network("linear"), 4 * batch
    runs = {
        (side, size): task.trainer("an", network, size, EagerAccelerator() if side == "eager" else None)
        for size in (batch, large)
        for side in ("eager", "ours")
    }
    seconds = dict(zip(runs, in_turns(list(runs.values()), steps, rounds), strict=True))
    rates = {(side, size): size / took for (side, size), took in seconds.items()}
    print(f"{'side':8}{'batch':>6}{'recorded':>10}{'ms per step':>13}{'images/s':>10}")
    for (side, size), run in runs.items():
        recorded = "yes" if is_recorded(run) else "no"
        print(f"{side:8}{size:6}{recorded:>10}{1e3 * seconds[side, size]:13.2f}{rates[side, size]:10,.0f}")
    ratio, share = rates["ours", batch] / rates["eager", batch], rates["ours", batch] / rates["ours", large]
    print(
        f"ours at batch {batch}: {ratio:.2f} times the eager loop (goal {GOALS['eager']}), "
        f"{share:.0%} of our own rate at batch {large} (goal {GOALS['large batch']:.0%})"
    )
    recording = 0.0
    if is_recorded(runs["ours", batch]):
        recording = max(0.0, turn(runs["ours", batch], 1, EPOCH + 1) - seconds["ours", batch])
        print(f"recording the step, once per epoch: {1e3 * recording:.0f} ms")
    if table is not None:
        for size in (batch, large):
            extra = {f"{side}_images_per_second": f"{rates[side, size]:.0f}" for side in ("ours", "eager")}
            if size == batch:
                extra |= {f"share_of_rate_at_{large}": f"{share:.3f}", "recording_seconds": f"{recording:.4f}"}
            keep(
                table, f"step batch {size}", seconds["ours", size], seconds["eager", size], "eager loop", task, **extra
            )


def compare_parts(task: Task, batch: int, steps: int, rounds: int, table: Path | None) -> None:
    """The eager loop, then with one part of `spml.accel` after another."""
    from spml.accel import GpuAccelerator, Parts

    network = task.network("linear")
    runs = {"eager": task.trainer("an", network, batch, EagerAccelerator())}
    for count, added in enumerate(PARTS, 1):
        parts = Parts(**{part: part in PARTS[:count] for part in PARTS})
        name = added if count == 1 else f"+ {added}"
        runs[name] = task.trainer("an", network, batch, GpuAccelerator(task.device, parts))
    seconds = in_turns(list(runs.values()), steps, rounds)
    print(f"{'parts':16}{'ms per step':>13}{'gain':>8}")
    before = seconds[0]
    for name, took in zip(runs, seconds, strict=True):
        print(f"{name:16}{1e3 * took:13.2f}{1 - took / before:8.1%}")
        before = took
        if table is not None:
            keep(table, f"step {name.replace('+ ', 'with ')}", took, seconds[0], "eager loop", task, batch=batch)


def compare_methods(task: Task, names: list[str], batch: int, steps: int, rounds: int, table: Path | None) -> None:
    """Compare each method with AN on the same head, taking turns."""
    print(
        f"{'method':17}{'head':>11}{'views':>6}{'recorded':>9}{'ms/step':>10}{'after epoch':>12}{'ms/view':>10}"
        f"{'AN ms':>8}{'times AN':>9}",
        flush=True,
    )
    over, failed = [], []
    for head in HEADS:
        own = [name for name in names if METHODS[name].needs.head == head]
        if not own:
            continue
        network = task.network(head)
        baseline = task.trainer("an", network, batch)
        for name in own:
            try:
                times = compare_with(baseline, task, name, network, batch, steps, rounds, table)
                if times > GOALS["an"]:
                    over.append(f"{name} {times:.2f}")
            except Exception:  # measure the other methods all the same
                traceback.print_exc()
                failed.append(name)
            release(task.device)
        del baseline, network
        release(task.device)
    within = len(names) - len(over) - len(failed)
    print(f"{within} of {len(names)} methods within {GOALS['an']} times AN per view", end="")
    print(f"; over it: {', '.join(over)}" if over else "")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def compare_with(
    baseline: Trainer,
    task: Task,
    name: str,
    network: Classifier,
    batch: int,
    steps: int,
    rounds: int,
    table: Path | None,
) -> float:
    """Measure, print and record one method; returns its time per view divided by AN's."""
    head, settings = METHODS[name].needs.head, METHODS[name].head_settings
    run = task.trainer(name, task.network(head, **settings) if settings else network, batch)
    views = len(run.method.views)
    an, step = in_turns([baseline, run], steps, rounds)
    after = epoch_end(run) / run.batches
    per_view = (step + after) / views
    recorded = "yes" if is_recorded(run) else "no"
    print(
        f"{name:17}{head:>11}{views:6}{recorded:>9}{1e3 * step:10.2f}{1e3 * after:12.2f}{1e3 * per_view:10.2f}"
        f"{1e3 * an:8.2f}{per_view / an:9.2f}",
        flush=True,
    )
    if table is not None:
        extra = {"times_an": f"{per_view / an:.2f}", "views": views, "head": head, "recorded": recorded}
        seconds = {"step_seconds": f"{step:.6g}", "after_epoch_seconds_per_step": f"{after:.4g}"}
        keep(table, f"step {name}", per_view, an, "an, per view", task, batch=batch, **extra, **seconds)
    return per_view / an


def keep(table: Path, what: str, ours: float, theirs: float, whose: str, task: Task, **extra: object) -> None:
    sizes = {"backbone": task.backbone, "image_size": task.store.size, "rows": len(task.store)}
    record(what, ours, theirs, whose, SEED, path=table, device=str(task.device), **extra, **sizes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", help="all, or names separated by commas: compare these with AN")
    parser.add_argument("--parts", action="store_true", help="add one part of spml.accel after another; needs a GPU")
    parser.add_argument("--backbone", default="lite2")
    parser.add_argument("--image-size", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rows", type=int, default=4574, help="training rows, as in VOC 2012")
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12, help="timed steps per turn")
    parser.add_argument("--rounds", type=int, help="turns per side; default 3 for methods, else 10")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--record", type=Path, nargs="?", const=SPEED, metavar="FILE", help="append to results/speed.csv, or to FILE"
    )
    options = parser.parse_args(arguments)
    names = [] if options.methods is None else options.methods.split(",")
    names = list(METHODS) if names == ["all"] else names
    for name in names:
        method(name)  # raises an error that lists the names
    if options.rows < 4 * options.batch_size:
        parser.error(f"--rows {options.rows} must be at least four batches of --batch-size {options.batch_size}")
    began, device = time.perf_counter(), choose_device(options.device)
    if options.parts and device.type != "cuda":
        parser.error("--parts needs a GPU")
    task = Task.draw(options.rows, options.classes, options.image_size, options.backbone, device)
    rounds = options.rounds or (3 if names else 10)
    print(
        f"{options.backbone} at {options.image_size} pixels, {options.rows:,} rows, batch {options.batch_size}, bf16, "
        f"{hardware(str(device))}, torch {torch.__version__}; medians of {rounds} turns of {options.steps} steps",
        flush=True,
    )
    if options.parts:
        compare_parts(task, options.batch_size, options.steps, rounds, options.record)
    elif names:
        compare_methods(task, names, options.batch_size, options.steps, rounds, options.record)
    else:
        compare_batches(task, options.batch_size, options.steps, rounds, options.record)
    print(f"{time.perf_counter() - began:.0f} s in total", file=sys.stderr)


if __name__ == "__main__":
    main()
