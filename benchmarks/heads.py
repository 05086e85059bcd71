"""Converged linear heads beside scikit-learn's LogisticRegression: the same rows, labels and path of strengths.

    python benchmarks/heads.py ../shared/data --record        # scene, yeast, medical and VOC features; 2 threads
    python benchmarks/heads.py --rows 200000 --dim 1280       # random rows in a file that is read block by block

Ours solves the folds of the cross-validation together along the path; scikit-learn fits one-vs-rest and multinomial
models for each fold and strength, with warm starts along the path. Both stop at comparable tolerances.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from record import SPEED, record
from spml.data.stores.features import FeatureStore
from spml.training.learners.design import Design, assign_folds
from spml.training.learners.linear import SoftmaxLoss, fit_path
from tables import load

FOLDS = 5


def ours(features: FeatureStore, label: np.ndarray, classes: int, device: str) -> tuple[float, list[float]]:
    """Seconds for the path, standardisation included, and its strengths."""
    started = time.perf_counter()
    design = Design(features, np.arange(len(label)), assign_folds(label, FOLDS, 0), torch.device(device))
    targets = torch.eye(classes)[torch.from_numpy(label)].to(design.device)
    fits = fit_path(design, SoftmaxLoss(targets), targets)
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started, [fit.strength for fit in fits]


def theirs(features: np.ndarray, label: np.ndarray, strengths: Sequence[float], one_vs_rest: bool) -> float:
    """Seconds for the same folds and strengths."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    started = time.perf_counter()
    scaled = StandardScaler().fit_transform(features.astype(np.float32))
    fold = assign_folds(label, FOLDS, 0)
    problems = [label == c for c in np.unique(label)] if one_vs_rest else [label]
    for number in range(FOLDS):
        inside = fold != number
        for target in problems:
            model = LogisticRegression(warm_start=True, max_iter=500)
            for strength in strengths:
                model.set_params(C=1 / (strength * inside.sum())).fit(scaled[inside], target[inside])
    return time.perf_counter() - started


def compare(data: Path, names: Sequence[str], device: str, path: Path | None) -> None:
    for name in names:
        split = load(data, name)
        label, classes = split.draw(0), split.train_labels.shape[1]
        seconds, strengths = ours(FeatureStore(split.train), label, classes, device)
        for one_vs_rest in (True, False):
            kind = "one-vs-rest" if one_vs_rest else "multinomial"
            reference = theirs(split.train, label, strengths, one_vs_rest)
            print(f"{name}: spml {seconds:.1f} s, scikit-learn {kind} {reference:.1f} s", flush=True)
            if path:
                rows, dim = split.train.shape
                sizes = {"rows": rows, "features": dim, "classes": classes, "strengths": len(strengths)}
                their_name = f"LogisticRegression, {kind}"
                record(f"heads {name}", seconds, reference, their_name, 0, path=path, device=device, **sizes)


def from_file(rows: int, dim: int, classes: int, device: str) -> None:
    """Train on random rows in a float16 file."""
    from spml.labels import Labels
    from spml.training.learners import fit_features

    draw = np.random.default_rng(0)
    label = draw.integers(0, classes, rows)
    centres = draw.normal(size=(classes, dim)) / dim**0.5 * 3
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "features.npy"
        table = np.lib.format.open_memmap(path, "w+", np.float16, (rows, dim))
        for start in range(0, rows, 10_000):
            part = label[start : start + 10_000]
            table[start : start + 10_000] = draw.standard_normal((len(part), dim), np.float32) + centres[part]
        table.flush()
        started = time.perf_counter()
        labels = Labels.from_indices(label, map(str, range(classes)))
        fit = fit_features(FeatureStore(path), labels, base="linear", device=device, progress=print)
        seconds = time.perf_counter() - started
        correct = (fit.held_out.argmax(axis=1) == label).mean()
        print(f"{rows:,} rows of {dim} features from a file: {seconds:.0f} s; held-out accuracy {correct:.3f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--sets", default="scene,yeast,medical,voc12")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, help="instead: train on this many random rows in a file")
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.rows:
        from_file(options.rows, options.dim, options.classes, options.device)
    elif options.data is None:
        parser.error("the folder of the data is missing")
    else:
        compare(options.data, options.sets.split(","), options.device, SPEED if options.record else None)


if __name__ == "__main__":
    main()
