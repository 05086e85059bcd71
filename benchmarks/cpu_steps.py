"""Training steps of the default network on a CPU: bfloat16 with exceptions, against float32.

    python benchmarks/cpu_steps.py --record
    python benchmarks/cpu_steps.py --size 320 --backbone lite2 --threads 4

Both sides take turns in one process, step by step; the ratio is that of their median CPU times per step, which do not
depend on what else the machine does. `plain bf16` is autocast alone, without `spml.accel.cpu`.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from record import record
from spml.data import ImageStore
from spml.labels import Labels
from spml.methods import Clock, method
from spml.models import build_classifier
from spml.training.accelerator import EagerAccelerator
from spml.training.device import default_precision
from spml.training.examples import Examples
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings

CLASSES = 20


def trainer(side: str, examples: Examples, options: argparse.Namespace, folder: Path) -> Trainer:
    torch.manual_seed(options.seed)
    network = build_classifier(options.backbone, CLASSES, image_size=options.size, pretrained=False)
    settings = TrainSettings(
        epochs=1, batch_size=options.batch_size, averaging=0.99, precision="32" if side == "float32" else "bf16"
    )
    accelerator = EagerAccelerator() if side == "plain bf16" else None
    task = method("em"), examples, None, settings
    return Trainer(folder / side, network, *task, device="cpu", progress=False, accelerator=accelerator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows, draw = options.batch_size, np.random.default_rng(options.seed)
    pixels = draw.integers(0, 256, (rows, 3, options.size, options.size), dtype=np.uint8)
    labels = Labels.from_indices(draw.integers(0, CLASSES, rows), list(map(str, range(CLASSES))))
    examples = Examples(ImageStore.from_array(pixels), np.arange(rows), labels)
    cpu: dict[str, list[float]] = {"float32": [], "plain bf16": [], "bf16": []}
    wall: dict[str, list[float]] = {side: [] for side in cpu}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {side: trainer(side, examples, options, Path(folder)) for side in cpu}
        for step in range(options.steps + 1):
            for side, each in trainers.items():
                each.classifier.train()
                started, used = time.perf_counter(), time.process_time()
                each.step_runner.run(np.arange(rows), Clock(1, 1, step, options.steps + 1), np.arange(0), False)
                cpu[side].append(time.process_time() - used)
                wall[side].append(time.perf_counter() - started)
    busy = {side: median(times[1:]) for side, times in cpu.items()}  # the first step compiles
    passed = {side: median(times[1:]) for side, times in wall.items()}
    for side in cpu:
        print(f"{side:12}{rows / passed[side]:8.1f} images/s, {rows / busy[side]:.1f} per second of CPU time, "
              f"{busy['float32'] / busy[side]:.2f} times float32")  # fmt: skip
    print(f"default here: {default_precision(torch.device('cpu'))}")
    if options.record:
        names = ("backbone", "size", "batch_size", "threads", "steps")
        extra = {name: getattr(options, name) for name in names} | {"measured": "cpu_time_per_step"}
        extra |= {f"{side.replace(' ', '_')}_wall_seconds": f"{passed[side]:.3f}" for side in cpu}
        extra |= {"plain_bf16_seconds": f"{busy['plain bf16']:.3f}"}
        record("cpu steps", busy["bf16"], busy["float32"], "float32", options.seed, **extra)


if __name__ == "__main__":
    main()
