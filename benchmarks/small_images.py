"""Small image sets on a CPU: test mAP of `auto` and the published losses on the same frozen features.

    python benchmarks/mosaics.py ../shared/data/voc12 packs/mosaics
    python benchmarks/small_images.py ../shared/data packs --record      # appends to results/small-images.csv
    python benchmarks/small_images.py ../shared/data --sets voc12-10 --methods auto,em --draws 1    # a quick try
    python benchmarks/small_images.py --summary

A set is a pack with images in one of the given folders; `voc12-10` is every tenth training row of `voc12`. A draw keeps
one random positive of every training row, the same for all methods. `auto` is what `spml train` does on images without
a GPU. The others train one linear head on the same features of whole images, as in `tables.py`; `epr` gets the true k.
`bce`, a reference, learns from all labels. `auto/mean` and `bce/mean` use the mean over positions at one image size,
as is usual, and no regions. Rows that are already in the file are skipped.
"""

import argparse
import csv
import time
from functools import cache
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch

from record import ROOT, command, commit, hardware
from spml.data import ImageStore, open_data
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.methods import METHODS
from spml.metrics import mean_average_precision
from spml.models import build_classifier
from spml.models.frozen import ZOOMS
from spml.models.heads import REGIONS, Pooling
from spml.training.frozen.epr_head import with_epr_head
from spml.training.frozen.pooled_features import pooled_features
from spml.training.frozen.regions import with_regions
from spml.training.learners import FeatureFit, fit_features
from tables import COLUMNS, Split, recorded, summarise

TABLE = ROOT / "results" / "small-images.csv"
SETS = ("voc12-5", "voc12-10", "mosaics")
PUBLISHED = ("epr", "em", "an", "wan", "gr", "lasd", "softmax")
REFERENCE = "bce"
SIZE = 320
Features = Literal["regions", "whole", "mean"]


@cache
def split_of(folders: tuple[Path, ...], name: str, features: Features, backbone: str = "lite2") -> Split:
    """The rows of a set, with the features of images and regions, of whole images, or their plain mean."""
    base, _, every = name.partition("-")
    folder = next((folder for folder in folders if (folder / base).is_dir()), None)
    if folder is None:
        raise SystemExit(f"{base}: no such folder in {', '.join(map(str, folders))}")
    if features == "whole":
        both = split_of(folders, name, "regions", backbone)
        train, test = (part[:, : part.shape[1] // (1 + REGIONS)] for part in (both.train, both.test))
        return Split(train, both.train_labels, test, both.test_labels)
    data = open_data(folder / base, size=SIZE, cache_limit=0)
    assert isinstance(data.store, ImageStore)
    labels = [data.full_labels(part).dense() > 0 for part in (data.train, data.test)]
    rows = data.train[labels[0].any(axis=1)][:: int(every or 1)]
    pooling: Pooling | Literal["auto"] = "mean" if features == "mean" else "auto"
    network = build_classifier(backbone, len(data.classes), image_size=SIZE, pooling=pooling).eval()
    zooms = (1.0,) if features == "mean" else ZOOMS
    train, test = (
        pooled_features(network, data.store, part, "cpu", zooms=zooms, regions=features == "regions", progress=name)
        .batch(np.arange(len(part)))
        .numpy()
        for part in (rows, data.test)
    )
    return Split(train, data.full_labels(rows).dense() > 0, test, labels[1])


def features_of(method: str) -> Features:
    """Which features a method gets."""
    return cast(Features, {"auto": "regions"}.get(method, "mean" if method.endswith("/mean") else "whole"))


def fit(method: str, split: Split, draw: int) -> FeatureFit:
    classes = list(map(str, range(split.train_labels.shape[1])))
    features = FeatureStore(split.train)
    method, _, plain = method.partition("/")
    if method == REFERENCE:
        full = Labels.from_matrix(np.where(split.train_labels, 1, -1).astype(np.int8), classes)
        return fit_features(features, full, method=REFERENCE, seed=draw)
    labels = Labels.from_indices(split.draw(draw), classes)
    if method == "auto":
        whole = features if plain else FeatureStore(split.train[:, : split.train.shape[1] // (1 + REGIONS)])
        alone = fit_features(whole, labels, base="linear", normalise=False, seed=draw)
        both = with_epr_head(alone, whole, labels, seed=draw)
        return both if plain else with_regions(both, features, labels)
    k = float(split.train_labels.sum(axis=1).mean()) if METHODS[method].needs.k else None
    return fit_features(features, labels, method=method, k=k, seed=draw)


def measure(name: str, split: Split, method: str, draw: int) -> dict[str, str]:
    started = time.process_time()
    found = fit(method, split, draw)
    seconds = time.process_time() - started
    score = mean_average_precision(
        found.model.presence(FeatureStore(split.test[:, : found.model.dim])), split.test_labels
    )
    rows, features = len(split.train), found.model.dim
    kind = {"auto": "ours", REFERENCE: "reference"}.get(method.partition("/")[0], "published")
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
    every = ("auto", *PUBLISHED, REFERENCE, "auto/mean", f"{REFERENCE}/mean")
    parser.add_argument("--methods", default=",".join(every))
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
        for method in options.methods.split(","):
            if (name, method, draw) in done:
                continue
            split = split_of(tuple(options.folders), name, features_of(method))
            row = measure(name, split, method, draw)
            print(name, method, draw, row["test_map"], f"{row['seconds']} s", row["chosen"], flush=True)
            rows.append(row)
            if options.record:
                append(TABLE, row)
    summarise([row for row in rows if row["kind"] != "reference"])


if __name__ == "__main__":
    main()
