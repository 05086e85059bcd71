"""Feature tables and texts: test mAP of spml, scikit-learn and the published losses, from the same single labels.

    python benchmarks/tables.py ../shared/data --workers 16 --record     # appends to results/tables.csv
    python benchmarks/tables.py ../shared/data --sets scene --draws 1    # a quick try
    python benchmarks/tables.py --summary                                # means and paired differences

A draw keeps one random positive of every training row. All methods learn from the same draws; the full labels are
used only to evaluate on the test rows. Every job runs on one core. Jobs that are already in the file are skipped.

The sets: scene, yeast and medical (MULAN, official split), hallmarks (TF-IDF of abstracts), VOC 2012 and a fifth of it
(EfficientNet-Lite2 features), CUB (3,000 rows of the fully labelled official test set for training, the rest for
testing), and 157 rows of scene and yeast.
"""

import argparse
import csv
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from record import ROOT, command, commit, hardware

TABLE = ROOT / "results" / "tables.csv"
COLUMNS = (
    *("data", "rows", "features", "classes", "k", "method", "kind", "draw", "test_map", "seconds", "chosen"),
    *("command", "commit", "hardware"),
)
SETS = ("scene", "yeast", "medical", "hallmarks", "voc12", "voc12-fifth", "cub", "scene-157", "yeast-157")
SKLEARN = ("sklearn softmax", "sklearn ovr", "sklearn forest", "sklearn boosting")
TIE = 0.3  # mAP
MOST_BOOSTED = 2_000_000  # rows × features × classes above which boosting takes hours


@dataclass(frozen=True)
class Split:
    """Training rows with full labels, from which single labels are drawn, and test rows."""

    train: Any
    train_labels: np.ndarray
    test: Any
    test_labels: np.ndarray

    def draw(self, seed: int) -> np.ndarray:
        """One random positive of every training row."""
        chance = np.random.default_rng([seed, 0xD4A3]).random(self.train_labels.shape)
        return np.where(self.train_labels, chance, -1.0).argmax(axis=1)


@cache
def load(data: Path, name: str) -> Split:
    base, _, part = name.partition("-")
    if base == "hallmarks":
        return _hallmarks(data / "text" / "hallmarks.csv")
    folder = data / "tabular" / base if base in ("scene", "yeast", "medical") else data / base
    features = np.load(next(iter(sorted(folder.glob("features*.npy")))))
    with np.load(folder / "labels.npz") as labels:
        full, train, test = labels["labels"] > 0, labels["train"], labels["test"]
        validation = labels["val"] if "val" in labels else train[:0]
    if base == "cub":  # the training rows have no full labels
        rows = np.random.default_rng(7).permutation(np.concatenate([validation, test]))
        train, test = rows[:3000], rows[3000:]
    elif base != "voc12":
        train = np.concatenate([train, validation])
    train = train[full[train].any(axis=1)]
    if part == "fifth":
        train = train[::5]
    elif part:
        train = np.random.default_rng(7).permutation(train)[: int(part)]
    return Split(features[train], full[train], features[test], full[test])


def _hallmarks(path: Path) -> Split:
    from sklearn.feature_extraction.text import TfidfVectorizer

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    classes = sorted({name for row in rows for name in row["all_labels"].split("|")})
    full = np.array([[name in row["all_labels"].split("|") for name in classes] for row in rows])
    test = np.array([row["part"] == "test" for row in rows])
    text = np.array([row["text"] for row in rows], dtype=object)
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2).fit(text[~test])
    return Split(words.transform(text[~test]).tocsr(), full[~test], words.transform(text[test]).tocsr(), full[test])


def methods() -> tuple[str, ...]:
    """Ours, scikit-learn's, and every registered method that can learn from positives on features."""
    from spml.errors import InputError
    from spml.methods import METHODS
    from spml.training.examples import check_on_features

    names = ["auto", *SKLEARN]
    for name, method in METHODS.items():
        try:
            check_on_features(method)
        except InputError:
            continue
        if name != "auto" and method.needs.labels == "positives":
            names.append(name)
    return tuple(names)


def scores(method: str, split: Split, label: np.ndarray, seed: int, device: str) -> tuple[np.ndarray, str]:
    """Test scores of a method, and what it chose."""
    if method.startswith("sklearn "):
        return sklearn_scores(method.removeprefix("sklearn "), split, label, seed), ""
    from spml.data.stores.features import FeatureStore
    from spml.labels import Labels
    from spml.training.learners import fit_features

    classes = split.train_labels.shape[1]
    labels = Labels.from_indices(label, map(str, range(classes)))
    k = float(split.train_labels.sum(axis=1).mean()) if _needs_k(method) else None
    fit = fit_features(FeatureStore(split.train), labels, method=method, k=k, seed=seed, device=device)
    return fit.model.presence(FeatureStore(split.test)), "; ".join(each.name for each in fit.candidates if each.chosen)


def _needs_k(method: str) -> bool:
    from spml.methods import METHODS

    return METHODS[method].needs.k


def sklearn_scores(kind: str, split: Split, label: np.ndarray, seed: int) -> np.ndarray:
    """Probabilities of an ordinary classifier of the single label, (rows, classes)."""
    from scipy.sparse import issparse
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    sparse = issparse(split.train)
    # TF-IDF rows have length 1: the usual C = 1 there, 0.01 for standardised features.
    linear = LogisticRegression(C=1.0 if sparse else 0.01, max_iter=2000)
    scaler = StandardScaler(with_mean=not sparse, with_std=not sparse)
    make: dict[str, Callable[[], Any]] = {
        "softmax": lambda: make_pipeline(scaler, linear),
        "ovr": lambda: make_pipeline(scaler, OneVsRestClassifier(linear)),
        "forest": lambda: RandomForestClassifier(300, random_state=seed),
        "boosting": lambda: HistGradientBoostingClassifier(random_state=seed),
    }
    train, test = (split.train, split.test) if sparse else (split.train.astype(float), split.test.astype(float))
    if kind == "boosting" and sparse:
        train, test = train.toarray(), test.toarray()
    classifier = make[kind]().fit(train, label)
    out = np.zeros((test.shape[0], split.train_labels.shape[1]))
    out[:, classifier.classes_] = classifier.predict_proba(test)
    return out


def too_slow(method: str, split: Split) -> bool:
    rows, features = split.train.shape
    return method == "sklearn boosting" and rows * features * split.train_labels.shape[1] > MOST_BOOSTED


def measure(data: Path, name: str, method: str, draw: int, device: str) -> dict[str, object] | None:
    """One job, in a process with one core; None if it would take too long."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    from spml.metrics import mean_average_precision

    split = load(data, name)
    if too_slow(method, split):
        return None
    started = time.perf_counter()
    predicted, chosen = scores(method, split, split.draw(draw), draw, device)
    seconds = time.perf_counter() - started
    kind = "ours" if method == "auto" else "scikit-learn" if method.startswith("sklearn") else "published"
    rows, features = split.train.shape
    classes = split.train_labels.shape[1]
    k = f"{split.train_labels.sum(axis=1).mean():.2f}"
    known = {"data": name, "rows": rows, "features": features, "classes": classes, "k": k}
    result = f"{mean_average_precision(predicted, split.test_labels):.5f}"
    return known | {
        **{"method": method, "kind": kind, "draw": draw, "test_map": result, "seconds": f"{seconds:.1f}"},
        **{"chosen": chosen, "command": command(), "commit": commit(), "hardware": hardware(device)},
    }


def recorded(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def results(jobs: Sequence[tuple[Path, str, str, int, str]], workers: int) -> Iterator[dict[str, object]]:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(measure, *job): job for job in jobs}
        for future in as_completed(running):
            try:
                row = future.result()
            except Exception as error:  # one failed job must not stop the others
                print("failed:", *running[future][1:4], repr(error)[:300], file=sys.stderr, flush=True)
                continue
            if row is not None:
                yield row


def summarise(rows: Sequence[dict[str, str]]) -> None:
    """Mean test mAP per set and method, differences from auto over the same draws, and how often auto is first."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found[row["data"]][row["method"]][int(row["draw"])] = 100 * float(row["test_map"])
    first = 0
    for name, by_method in found.items():
        ours = by_method.get("auto", {})
        print(f"\n{name}: auto {np.mean(list(ours.values())) if ours else float('nan'):.2f}")
        gaps = []
        for method, by_draw in by_method.items():
            shared = sorted(set(by_draw) & set(ours))
            if method == "auto" or not shared:
                continue
            gap = np.array([ours[draw] - by_draw[draw] for draw in shared])
            error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else float("nan")
            gaps.append((gap.mean(), method))
            print(
                f"  {method:18} {np.mean(list(by_draw.values())):6.2f}  auto is {gap.mean():+6.2f} ± {error:.2f} better"
            )
        if gaps:
            first += min(gaps)[0] >= -TIE
    print(f"\nauto is first or tied (within {TIE} mAP) on {first} of {len(found)} sets")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder with tabular/, text/, voc12/ and cub/")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", help="default: all")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="for spml; scikit-learn uses the CPU")
    parser.add_argument("--record", action="store_true", help=f"append to {TABLE.relative_to(ROOT)}")
    parser.add_argument("--out", type=Path, help="append to this file instead")
    parser.add_argument("--summary", action="store_true", help="summarise the file and run nothing")
    options = parser.parse_args(arguments)
    path = options.out or TABLE
    if options.summary:
        summarise(recorded(path))
        return
    if options.data is None:
        parser.error("the folder of the data is missing")
    chosen = options.methods.split(",") if options.methods else methods()
    done = {(row["data"], row["method"], int(row["draw"])) for row in recorded(path)}
    jobs = [
        (options.data, name, method, draw, options.device)
        for draw in range(options.draws)
        for name in options.sets.split(",")
        for method in chosen
        if (name, method, draw) not in done
    ]
    rows = []
    for row in results(jobs, options.workers):
        print(
            row["data"], row["method"], row["draw"], row["test_map"], f"{row['seconds']} s", row["chosen"], flush=True
        )
        rows.append({name: str(value) for name, value in row.items()})
        if options.record or options.out:
            new = not path.exists()
            with path.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if new:
                    writer.writeheader()
                writer.writerow(row)
    summarise(recorded(path) if options.record or options.out else rows)


if __name__ == "__main__":
    main()
