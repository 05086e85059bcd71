"""Converged linear heads on features: the path of regularisation strengths against scikit-learn, on the same machine.

    python benchmarks/heads.py ../shared/data --record                      # the sets of the tables benchmark
    python benchmarks/heads.py --random 4574x1280x20 --record               # random features of that size
    python benchmarks/heads.py --random 200000x1280x5 --stream 0.9 --record # from a file, with 0.9 GiB of memory

Ours is `fit_path` with the multinomial loss: every strength of the path, five folds each, and the final head on all
rows. Theirs is one-vs-rest `LogisticRegression` on standardised features, on all rows, for the same strengths without
any fold: a user who cross-validates needs six times that. Both are solved on one thread, one after the other.
`auto` is the whole of `fit_features`, forests and calibration included.
"""

import argparse
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import record
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.training import learners
from spml.training.learners import fit_features
from spml.training.learners.design import Design, assign_folds
from spml.training.learners.linear import SoftmaxLoss, fit_path, refit
from spml.training.learners.task import FOLDS
from tables import load

SETS = ("scene", "yeast", "medical", "hallmarks", "voc12")
CPU = torch.device("cpu")


def path(store: FeatureStore, label: np.ndarray, classes: int) -> tuple[list[float], int]:
    """Solve our path; return the strengths and the place of the chosen one."""
    targets = torch.nn.functional.one_hot(torch.from_numpy(label), classes).float()
    design, loss = Design(store, np.arange(len(label)), assign_folds(label, FOLDS, 0), CPU), SoftmaxLoss(targets)
    fits = fit_path(design, loss, targets)
    best = int(np.argmax([fit.likelihood.log_likelihood for fit in fits]))
    refit(design, loss, fits[best])
    return [fit.strength for fit in fits], best


def one_vs_rest(features: Any, label: np.ndarray, strengths: Sequence[float]) -> None:
    """scikit-learn's heads for the same strengths, without folds."""
    from scipy.sparse import issparse
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import StandardScaler

    warnings.simplefilter("ignore", ConvergenceWarning)
    sparse = issparse(features)
    # Ours divides sparse features by one number, of which the strengths of the path know.
    scale = float(np.sqrt(features.multiply(features).sum() / np.prod(features.shape))) if sparse else 1.0
    scaled = features / scale if sparse else StandardScaler().fit_transform(features.astype(np.float32))
    for strength in strengths:
        OneVsRestClassifier(LogisticRegression(C=1 / (strength * len(label)))).fit(scaled, label)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Time of this process on its processors: other jobs on the machine do not count."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def measure(name: str, features: Any, label: np.ndarray, classes: int, options: argparse.Namespace) -> None:
    store = FeatureStore(features)
    ours, (strengths, best) = seconds(lambda: path(store, label, classes))
    theirs = None if options.stream else seconds(lambda: one_vs_rest(features, label, strengths))[0]
    auto = None
    if options.auto:
        labels = Labels.from_indices(label, map(str, range(classes)))
        auto = round(seconds(lambda: fit_features(store, labels))[0], 2)
    whole = "" if auto is None else f"; auto {auto} s"
    compared = "" if theirs is None else f", scikit-learn {theirs:.2f} s, {ours / theirs:.2f} of its time"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name}: {len(store)} × {store.dim}, {classes} classes, {len(strengths)} strengths, chosen {best + 1}: "
        f"{ours:.2f} s{compared}{whole}; peak memory {memory:.1f} GiB",
        flush=True,
    )
    if options.record:
        size: dict[str, Any] = {"data": name, "rows": len(store), "features": store.dim, "classes": classes}
        more: dict[str, Any] = {
            "strengths": len(strengths),
            "folds": FOLDS,
            "auto_seconds": auto,
            "peak_gib": round(memory, 2),
        }
        more |= {} if auto is None else {"auto_seconds": auto}
        record("heads", ours, theirs, "scikit-learn one-vs-rest, no folds", 0, **size, **more)


def random_features(size: str, folder: str) -> tuple[Any, np.ndarray, int]:
    """Rows around one centre per class, written to a file block by block."""
    rows, dim, classes = map(int, size.split("x"))
    draw = np.random.default_rng(0)
    file, label = Path(folder) / "features.npy", draw.integers(0, classes, rows)
    centres = draw.normal(size=(classes, dim)).astype(np.float32) / dim**0.25
    matrix = np.lib.format.open_memmap(file, "w+", np.float32, (rows, dim))
    for start in range(0, rows, 10_000):
        part = label[start : start + 10_000]
        matrix[start : start + len(part)] = centres[part] + draw.standard_normal((len(part), dim), np.float32)
    matrix.flush()
    return str(file), label, classes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder with tabular/, text/ and voc12/")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--random", metavar="ROWSxFEATURESxCLASSES", help="random features instead of data")
    parser.add_argument("--stream", type=float, metavar="GiB", help="leave the random features in their file, as above "
                        "2 GiB, limit private memory to this, and leave scikit-learn out")  # fmt: skip
    parser.add_argument("--auto", action="store_true", help="also time the whole of fit_features")
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.random:
        with tempfile.TemporaryDirectory() as folder:
            features, label, classes = random_features(options.random, folder)
            if options.stream:
                limit = int(options.stream * 2**30)
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
                learners.design._RESIDENT = 0
            else:
                features = np.load(features)
            measure("random", features, label, classes, options)
        return
    if options.data is None:
        sys.exit("pass the folder of the data, or --random")
    for name in options.sets.split(","):
        split = load(options.data, name)
        measure(name, split.train, split.draw(0), split.train_labels.shape[1], options)


if __name__ == "__main__":
    main()
