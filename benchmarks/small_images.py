"""Small image sets on a CPU: test mAP of `auto` and the published losses on the same frozen features.

    python benchmarks/mosaics.py ../shared/data/voc12 packs/mosaics
    python benchmarks/small_images.py ../shared/data packs --record      # appends to results/small-images.csv
    python benchmarks/small_images.py ../shared/data --sets voc12-10 --methods auto,em --draws 1    # a quick try
    python benchmarks/small_images.py --summary

A set is a folder with pooled features (features*.npy) and labels.npz in one of the given folders; `voc12-10` is every
tenth training row of `voc12`. A draw keeps one random positive of every training row, the same for all methods. `auto`
is what `spml train` does on images without a GPU. The others train one linear head, as in `tables.py`; `epr` gets
the true k. `bce`, a reference, learns from all labels. Rows that are already in the file are skipped.
"""

import argparse
import csv
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from record import ROOT, command, commit, hardware
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.methods import METHODS
from spml.metrics import mean_average_precision
from spml.training.frozen.epr_head import with_expected_positives
from spml.training.learners import FeatureFit, fit_features
from tables import COLUMNS, Split, load, recorded, summarise

TABLE = ROOT / "results" / "small-images.csv"
SETS = ("voc12-5", "voc12-10", "mosaics", "cub")
PUBLISHED = ("epr", "em", "an", "wan", "gr", "lasd", "softmax")
REFERENCE = "bce"


def split_of(folders: Sequence[Path], name: str) -> Split:
    base, _, every = name.partition("-")
    folder = next((folder for folder in folders if (folder / base).is_dir()), None)
    if folder is None:
        raise SystemExit(f"{base}: no such folder in {', '.join(map(str, folders))}")
    whole, step = load(folder, base), int(every or 1)
    return Split(whole.train[::step], whole.train_labels[::step], whole.test, whole.test_labels)


def fit(method: str, split: Split, draw: int) -> FeatureFit:
    classes = list(map(str, range(split.train_labels.shape[1])))
    features = FeatureStore(split.train)
    if method == REFERENCE:
        full = Labels.from_matrix(np.where(split.train_labels, 1, -1).astype(np.int8), classes)
        return fit_features(features, full, method=REFERENCE, seed=draw)
    labels = Labels.from_indices(split.draw(draw), classes)
    if method == "auto":
        alone = fit_features(features, labels, base="linear", seed=draw)
        return with_expected_positives(alone, features, labels, seed=draw)
    k = float(split.train_labels.sum(axis=1).mean()) if METHODS[method].needs.k else None
    return fit_features(features, labels, method=method, k=k, seed=draw)


def measure(name: str, split: Split, method: str, draw: int) -> dict[str, str]:
    started = time.process_time()
    found = fit(method, split, draw)
    seconds = time.process_time() - started
    score = mean_average_precision(found.model.presence(FeatureStore(split.test)), split.test_labels)
    rows, features = split.train.shape
    kind = {"auto": "ours", REFERENCE: "reference"}.get(method, "published")
    chosen = "; ".join(f"{each.name} (weight {each.weight:.2f})" for each in found.candidates if each.chosen)
    values = {
        **{"data": name, "rows": rows, "features": features, "classes": split.train_labels.shape[1]},
        **{"k": f"{split.train_labels.sum(axis=1).mean():.2f}", "method": method, "kind": kind, "draw": draw},
        **{"test_map": f"{score:.5f}", "seconds": f"{seconds:.1f}", "chosen": chosen},
        **{"command": command(), "commit": commit(), "hardware": hardware("cpu")},
    }
    return {column: str(value) for column, value in values.items()}


def append(path: Path, row: dict[str, str]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="folders that hold the sets")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(("auto", *PUBLISHED, REFERENCE)))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", action="store_true", help=f"append to {TABLE.relative_to(ROOT)}")
    parser.add_argument("--summary", action="store_true", help="summarise the file and run nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = recorded(TABLE)
    done = {(row["data"], row["method"], int(row["draw"])) for row in rows} if options.record else set()
    rows = rows if options.record or options.summary else []
    jobs = (
        [] if options.summary else [(draw, name) for draw in range(options.draws) for name in options.sets.split(",")]
    )
    for draw, name in jobs:
        split = split_of(options.folders, name)
        for method in options.methods.split(","):
            if (name, method, draw) in done:
                continue
            row = measure(name, split, method, draw)
            print(name, method, draw, row["test_map"], f"{row['seconds']} s", row["chosen"], flush=True)
            rows.append(row)
            if options.record:
                append(TABLE, row)
    summarise([row for row in rows if row["kind"] != "reference"])


if __name__ == "__main__":
    main()
