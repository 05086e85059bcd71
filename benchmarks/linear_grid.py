"""Cole et al.'s linear protocol on one data set: every method at every learning rate and batch size, all at once.

    python benchmarks/linear_grid.py --data ../shared/data/voc12 --out runs/linear-voc12.csv
    python benchmarks/linear_grid.py --data ../shared/data/voc12 --device cuda --out runs/linear-voc12.csv

On VOC 2012 features that is 264 heads (11 methods, 4 learning rates, 2 batch sizes, 3 seeds) of 25 epochs. A row of
the table is one method and seed, at the learning rate and batch size with the best validation mAP over the seeds;
mAP in percent. `seconds` is the time of the whole grid, training and evaluation.
"""

import argparse
import csv
import json
import resource
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from record import command, commit, hardware
from spml.bench.linear import BATCH_SIZES, LEARNING_RATES, LinearData, linear_grid
from spml.data.pack import load_pack

METHODS = "bce,bce-ls,iun,an,an-ls,wan,epr,role,em,em-apl,lasd"
# The tables of Cole et al. come from code that smooths by ε where the paper smooths by ε/2.
SETTINGS: dict[str, dict[str, Any]] = {
    "an-ls": {"positive_smoothing": 0.2, "negative_smoothing": 0.2},
    "bce-ls": {"smoothing": 0.2},
}
K = {"voc12": 1.5, "coco": 2.9, "nuswide": 1.9, "cub": 31.4}  # Cole et al., Sec. 6.1
COLUMNS = (
    *("method", "settings", "learning_rate", "batch_size", "seed", "best_epoch"),
    *("validation_map", "test_map", "train_recovery_map", "seconds", "command", "commit", "hardware"),
)


def numbers(text: str, kind: type = int) -> tuple[Any, ...]:
    return tuple(kind(part) for part in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with labels.npz and features*.npy")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--learning-rates", default=",".join(map(str, LEARNING_RATES)))
    parser.add_argument("--batch-sizes", default=",".join(map(str, BATCH_SIZES)))
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--k", type=float, help="mean number of positives a row; known for the papers' data sets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads; by default all")
    parser.add_argument("--out", type=Path, help="the table to write; without it, only print")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    data = LinearData.from_pack(load_pack(options.data))
    methods = [(name, SETTINGS.get(name, {})) for name in options.methods.split(",")]
    seeds, rates = numbers(options.seeds), numbers(options.learning_rates, float)
    sizes = numbers(options.batch_sizes)
    started = time.perf_counter()
    rows = linear_grid(
        data,
        methods,
        learning_rates=rates,
        batch_sizes=sizes,
        seeds=seeds,
        epochs=options.epochs,
        k=options.k or K.get(options.data.name),
        device=options.device,
        progress=sys.stderr.isatty(),
    )
    seconds = time.perf_counter() - started
    report(rows, seconds, len(methods) * len(rates) * len(sizes) * len(seeds), options.device)
    if options.out:
        write(rows, seconds, options.out, options.device)


def report(rows: list[dict[str, Any]], seconds: float, heads: int, device: str) -> None:
    """The table on the screen: mean and spread over seeds."""
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_method[row["method"]].append(row)
    print(f"{'method':10} {'rate':>7} {'batch':>5} {'epochs':>8} {'validation':>10} {'test':>13} {'recovery':>9}")
    for method, runs in by_method.items():
        test = torch.tensor([100 * run["test_map"] for run in runs])
        spread = f"±{test.std():.2f}" if len(runs) > 1 else ""
        known = [100 * run["train_recovery_map"] for run in runs if run["train_recovery_map"] is not None]
        recovery = f"{sum(known) / len(known):.2f}" if known else "-"
        validation = sum(100 * run["validation_map"] for run in runs) / len(runs)
        epochs = ",".join(str(run["best_epoch"]) for run in runs)
        print(
            f"{method:10} {runs[0]['learning_rate']:7g} {runs[0]['batch_size']:5} {epochs:>8} {validation:10.2f} "
            f"{test.mean():7.2f}{spread:>6} {recovery:>9}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    on_gpu = f", {torch.cuda.max_memory_reserved() / 2**30:.2f} GiB on the GPU" if device.startswith("cuda") else ""
    print(f"{heads} heads in {seconds:.1f} s, peak memory {peak:.2f} GiB{on_gpu}, {hardware(device)}")


def write(rows: list[dict[str, Any]], seconds: float, path: Path, device: str) -> None:
    """The table as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {"seconds": f"{seconds:.1f}", "command": command(), "commit": commit(), "hardware": hardware(device)}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in rows:
            percent = {name: value for name, value in row.items() if name.endswith("_map")}
            shown = {name: "" if value is None else f"{100 * value:.2f}" for name, value in percent.items()}
            writer.writerow(row | shown | {"settings": json.dumps(row["settings"])} | made)


if __name__ == "__main__":
    main()
