"""Cole et al.'s linear protocol on one data set: all heads at once, compared with one head after another as published.

    python benchmarks/linear_grid.py --data ../shared/data/voc12 --record
    python benchmarks/linear_grid.py --data ../shared/data/voc12 --device cuda --record

On VOC 2012 features the grid has 264 heads (11 methods, 4 learning rates, 2 batch sizes, 3 seeds) and 25 epochs, with
validation after every epoch. The baseline is one head of AN, trained like the published code: a DataLoader over rows, a
loss on probabilities, predictions copied to the host after every batch, average precision by scikit-learn. One epoch
per batch size is measured and multiplied by epochs and heads. The result tables come from `spml bench features`.
"""

import argparse
import resource
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from heads_grid import BATCH_SIZES, LEARNING_RATES, heads_grid
from record import hardware, record
from spml.data import open_data
from spml.data.dataset import Dataset
from spml.data.stores.features import FeatureStore
from spml.training.device import choose_device

METHODS = "bce,bce-ls,iun,an,an-ls,wan,epr,role,em,em-apl,lasd"
# The code behind the tables of Cole et al. smooths by ε; the paper's formula smooths by ε/2.
SETTINGS: dict[str, dict[str, Any]] = {
    "an-ls": {"positive_smoothing": 0.2, "negative_smoothing": 0.2},
    "bce-ls": {"smoothing": 0.2},
}
K = {"voc12": 1.5, "coco": 2.9, "nuswide": 1.9, "cub": 31.4}  # Cole et al., Sec. 6.1


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
    parser.add_argument("--k", type=float, help="average number of positives per row; known for the papers' data sets")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)

    pack = open_data(options.data, features=True)
    methods = {name: SETTINGS.get(name, {}) for name in options.methods.split(",")}
    seeds, rates = numbers(options.seeds), numbers(options.learning_rates, float)
    sizes = numbers(options.batch_sizes)
    each = {size: published_epoch(pack, size, rates[0], options.device) for size in sizes}
    started = time.perf_counter()
    rows = heads_grid(
        pack,
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
    heads = len(methods) * len(rates) * len(sizes) * len(seeds)
    theirs = statistics.mean(each.values()) * options.epochs * heads
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report(rows)
    print(f"{heads} heads of {options.epochs} epochs in {seconds:.1f} s, peak memory {peak:.2f} GiB, "
          f"{hardware(options.device)}")  # fmt: skip
    epochs = ", ".join(f"{took:.2f} s at batch {size}" for size, took in each.items())
    print(
        f"as published an epoch of one head takes {epochs}; all heads {theirs:.0f} s, {theirs / seconds:.0f} times ours"
    )
    if options.record:
        record("linear grid", seconds, theirs, "one head after another, as published, from one epoch", seeds[0],
               device=options.device, heads=heads, epochs=options.epochs, peak_gib=f"{peak:.2f}")  # fmt: skip


def published_epoch(pack: Dataset, batch_size: int, rate: float, device: str) -> float:
    """Seconds of one epoch of one head, validation included."""
    target = choose_device(device)
    store, classes = pack.store, len(pack.classes)
    assert isinstance(store, FeatureStore)
    observed = torch.from_numpy((pack.labels.dense(pack.train) > 0).astype(np.float32))
    rows = torch.arange(len(pack.train))
    train = DataLoader(TensorDataset(store.batch(pack.train), observed, rows), batch_size, shuffle=True)
    truth = (pack.full_labels(pack.validation).dense() > 0).astype(np.float32)
    validation = DataLoader(TensorDataset(store.batch(pack.validation), torch.from_numpy(truth)), batch_size)
    torch.manual_seed(0)
    head = nn.Linear(store.dim, classes).to(target)
    optimiser = torch.optim.Adam(head.parameters(), lr=rate)
    seen = np.zeros((len(pack.train), classes))
    started = time.perf_counter()
    for features, labels, index in train:
        p = torch.sigmoid(head(features.to(target)))
        loss = assume_negative(p, labels.to(target))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seen[index.numpy()] = p.detach().cpu().numpy()
    scores = []
    with torch.no_grad():
        for features, _ in validation:
            scores.append(torch.sigmoid(head(features.to(target))).cpu().numpy())
    predicted = np.concatenate(scores)
    for column in range(classes):
        average_precision_score(truth[:, column], predicted[:, column])
    return time.perf_counter() - started


def assume_negative(p: Tensor, labels: Tensor) -> Tensor:
    return -(labels * torch.log(p + 1e-5) + (1 - labels) * torch.log(1 - p + 1e-5)).mean()


def report(rows: list[dict[str, Any]]) -> None:
    """Print mean and standard deviation over seeds."""
    by_method: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_method[row["method"]].append(row)
    print(f"{'method':10} {'rate':>7} {'batch':>5} {'epochs':>8} {'validation':>10} {'test':>13}")
    for method, runs in by_method.items():
        test = torch.tensor([100 * run["test_map"] for run in runs])
        spread = f"±{test.std():.2f}" if len(runs) > 1 else ""
        validation = sum(100 * run["validation_map"] for run in runs) / len(runs)
        epochs = ",".join(str(run["best_epoch"]) for run in runs)
        print(
            f"{method:10} {runs[0]['learning_rate']:7g} {runs[0]['batch_size']:5} {epochs:>8} {validation:10.2f} "
            f"{test.mean():7.2f}{spread:>6}"
        )


if __name__ == "__main__":
    main()
