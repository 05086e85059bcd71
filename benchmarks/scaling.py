"""Two processes compared with one: the same work in less time (strong), twice the work in the same time (weak).

    python benchmarks/scaling.py --record

Trains on features (a linear head of 20 classes, as in VOC, and of 312, as in CUB) and on images (the network `small` on
the built-in scenes), with one thread per process and gloo between the processes. Processes are not bound to cores,
because gloo's threads would have to share them. Weak: every process keeps its share of the batch, so the batch doubles.
Strong: the batch stays the same. Apart: two independent runs of one process at the same time, which shows how much the
cores slow each other down. The variants take turns; the fastest epoch of each counts, since other programs can only
slow one down.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from record import record

STEPS, EPOCHS = 12, 4
SHARE = {"features": 2048, "features-312": 2048, "images": 64}  # rows per batch and process
CLASSES = {"features": 20, "features-312": 312}


def train(kind: str, folder: Path, batch: int) -> None:
    """One process's part of a run with STEPS steps per epoch."""
    import torch

    from spml.data.formats.scenes import scenes
    from spml.data.stores.features import FeatureStore
    from spml.labels import Labels
    from spml.methods import method
    from spml.models import Outputs, build_classifier
    from spml.training.examples import Examples
    from spml.training.network.trainer import Trainer
    from spml.training.settings import TrainSettings

    class LinearNetwork(torch.nn.Linear):
        def forward(self, features: torch.Tensor) -> Outputs:  # type: ignore[override]
            return Outputs(super().forward(features))

    torch.set_num_threads(1)
    rows = STEPS * batch
    torch.manual_seed(0)
    if kind in CLASSES:
        classes = CLASSES[kind]
        store = FeatureStore(np.random.default_rng(0).standard_normal((rows, 1280), np.float32))
        labels = Labels.from_indices(np.arange(rows) % classes, map(str, range(classes)))
        training = Examples(store, np.arange(rows), labels)
        network: torch.nn.Module = LinearNetwork(1280, classes)
    else:
        data = scenes(train=round(rows / 0.8) + 5, test=20)
        training = Examples(data.store, data.train[:rows], data.labels.subset(data.train[:rows]))
        network = build_classifier("small", len(data.classes), image_size=data.store.size)
    settings = TrainSettings(epochs=EPOCHS, batch_size=batch, learning_rate=1e-3)
    run = Trainer(folder, network, method("an"), training, None, settings, device="cpu", progress=False)
    before = time.process_time()
    run.fit()
    busy = (time.process_time() - before) / (STEPS * EPOCHS)
    folder.with_name(f"busy-{os.environ['RANK']}").write_text(str(busy))


def launch(kind: str, processes: int, batch: int, apart: bool) -> tuple[float, float]:
    """Seconds per step of the fastest epoch, and CPU seconds per step of the busiest process, start-up included."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        folders = [Path(name) / str(number if apart else 0) / "run" for number in range(processes)]
        started = []
        for number, folder in enumerate(folders):
            rank = "0" if apart else str(number)
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(1 if apart else processes),
                "RANK": rank,
                "LOCAL_RANK": rank,
            }
            child = [sys.executable, __file__, "--train", kind, "--batch", str(batch), "--folder", str(folder)]
            started.append(subprocess.Popen(child, env=environment))
        if any(list(map(subprocess.Popen.wait, started))):
            raise SystemExit(f"{kind} with {processes} processes failed")
        busy = max(float(file.read_text()) for file in Path(name).glob("*/busy-*"))
        return max(fastest_epoch(folder) for folder in folders) / STEPS, busy


def fastest_epoch(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return min(line["seconds"] for line in lines if line["kind"] == "epoch")


def compare(kind: str, repeat: int, keep: bool) -> None:
    share = SHARE[kind]
    sides = {"one": (1, share), "apart": (2, share), "weak": (2, 2 * share), "strong": (2, share)}
    best, busy = dict.fromkeys(sides, float("inf")), dict.fromkeys(sides, float("inf"))
    for _ in range(repeat):
        for side, (processes, batch) in sides.items():
            wall, processor = launch(kind, processes, batch, side == "apart")
            best[side], busy[side] = min(best[side], wall), min(busy[side], processor)
    print(f"{kind}, {share} rows per process; one thread each; fastest epoch of {repeat} runs")
    for side, (processes, batch) in sides.items():
        print(f"  {side:8}{processes} process(es), batch {batch:5}{1e3 * best[side]:9.1f} ms per step", end="")
        print(f"{batch / best[side]:12,.0f} rows a second{1e3 * busy[side]:9.1f} ms busy")
    weak, strong = best["one"] / best["weak"], best["one"] / best["strong"]
    alone = best["one"] / best["apart"]
    print(f"  weak efficiency {100 * weak:.0f} % where two that do not talk have {100 * alone:.0f} %", end="")
    print(f", strong speed-up {strong:.2f}, on {os.cpu_count()} cores")
    if keep:
        for side, what, value in (("weak", "efficiency", weak), ("strong", "speed_up", strong)):
            record(
                f"scaling {kind} {side}",
                best[side],
                best["one"],
                "one process",
                0,
                processes=2,
                batch=sides[side][1],
                one_process_batch=share,
                busy_seconds=f"{busy[side]:.4g}",
                one_process_busy_seconds=f"{busy['one']:.4g}",
                **{what: f"{value:.3f}", "apart": f"{alone:.3f}"},
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(SHARE))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        from spml.training.distributed import end_process

        train(options.train, options.folder, options.batch)
        end_process()
    for kind in options.kinds.split(","):
        compare(kind, options.repeat, options.record)


if __name__ == "__main__":
    main()
