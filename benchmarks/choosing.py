"""Cost of choosing epoch, learning rate, k, frequencies and thresholds without full labels, compared with the truth.

    python benchmarks/choosing.py --data ../shared/data/voc12 --out choosing-voc12.csv
    python benchmarks/choosing.py --runs runs/quickstart/an runs/quickstart/auto

With --data: linear heads on the features of a pack, every method with four learning rates and 25 epochs. Epoch and
learning rate are chosen in three ways: by the full labels of the validation rows, and by one positive per validation
row (drawn again for every seed), either by its average precision, as the training loop does, or by its likelihood. The
other tables use the heads chosen by the average precision of single positives. With --runs: finished runs with known
truth. Numbers are means over seeds, in percent except for k.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from torch import Tensor

from heads_grid import LEARNING_RATES
from record import command, commit, hardware
from spml.calibration import calibrate, expected_f1_thresholds
from spml.data import open_data
from spml.data.dataset import Dataset
from spml.data.stores.features import FeatureStore
from spml.labels import Labels, simulate
from spml.metrics import f1, mean_average_precision
from spml.recover import Recovered, recover
from spml.runs.folder import RunFolder, open_run
from spml.training.evaluation import selection_score
from spml.training.experiment import Experiment
from spml.training.linear import FeatureRows, train_heads

METHODS = "auto,em,lasd,an"
LABELLED = (10, 50, 200)
DRAWS = 5  # draws of labelled rows per seed
Float64 = npt.NDArray[np.float64]


class Measured(NamedTuple):
    """One value of a table."""

    table: str
    method: str
    seed: int
    what: str
    value: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder with labels.npz and features*.npy")
    source.add_argument("--runs", type=Path, nargs="+", help="folders of finished runs with known truth")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, help="CSV file to write; by default the tables are only printed")
    options = parser.parse_args()

    measured: list[Measured] = []
    if options.runs:
        for folder in options.runs:
            run = open_run(folder)
            measured += measure(run, run.method, 0)
    else:
        pack = open_data(options.data, features=True)
        for seed in map(int, options.seeds.split(",")):
            for run, chosen in chosen_heads(pack, options.methods.split(","), seed, options.epochs, options.batch_size):
                measured += chosen
                measured += measure(run, run.method, seed)
            print(f"seed {seed} is measured", file=sys.stderr, flush=True)
    report(measured)
    if options.out:
        write(measured, options.out)


# Choosing epoch and learning rate


def chosen_heads(
    pack: Dataset, methods: list[str], seed: int, epochs: int, batch_size: int
) -> Iterator[tuple[RunFolder, list[Measured]]]:
    """For each method, the head chosen by single positives, as a run, and the cost of that choice."""
    store = pack.store
    assert isinstance(store, FeatureStore)
    rows = np.concatenate([pack.train, pack.validation, pack.test])
    parts = np.split(np.arange(len(rows)), np.cumsum([len(pack.train), len(pack.validation)]))
    truth = pack.full_labels(rows)
    positive = truth.dense() > 0
    single = simulate(truth.subset(parts[1]), seed=seed)
    known = np.concatenate([pack.labels.single()[pack.train], single.single(), np.full(len(parts[2]), -1)])
    labels = Labels.from_indices(known, pack.classes)

    kept: dict[float, Tensor] = {}  # scores of all rows, by selection criterion

    def keep(scores: Tensor, _: Tensor) -> float:
        judged = mean_average_precision(scores[parts[1]], positive[parts[1]])
        kept[judged] = scores.clone()
        return judged

    experiments = [
        Experiment.linear(method, {}, rate, batch_size, seed, epochs=epochs)
        for method in methods
        for rate in LEARNING_RATES
    ]
    results = train_heads(
        FeatureRows(store, pack.train),
        pack.labels.subset(pack.train),
        experiments,
        validation=(FeatureRows(store, rows), truth),
        selection=keep,
        progress=sys.stderr.isatty(),
    )
    known_single = single.dense()
    for method in methods:
        judged = [score for r in results if r.experiment.method == method for score in r.validation if score in kept]

        def by_precision(score: float) -> float:
            return selection_score(kept[score][parts[1]], single)

        def by_likelihood(score: float) -> float:
            return calibrate(expit(kept[score][parts[1]].numpy()), known_single).log_likelihood

        choices = {
            "all labels": max(judged),
            "AP of single positives": max(judged, key=by_precision),
            "likelihood of single positives": max(judged, key=by_likelihood),
        }
        run = RunFolder(
            folder=Path(method),
            record={"method": {"name": method}},
            best={},
            log=[],
            names=pack.names[rows].tolist(),
            labels=labels,
            truth=truth,
            probabilities=expit(kept[choices["AP of single positives"]].numpy()),
            train=parts[0],
            validation=parts[1],
            test=parts[2],
            source={},
        )
        yield (
            run,
            [
                Measured(
                    *("choice", method, seed, by),
                    100 * mean_average_precision(kept[choice][parts[2]], positive[parts[2]]),
                )
                for by, choice in choices.items()
            ],
        )


# k, frequencies, thresholds, recovered labels


def measure(run: RunFolder, method: str, seed: int) -> Iterator[Measured]:
    assert run.truth is not None, f"{run.folder} has no truth to compare with"
    validation, test = run.probabilities[run.validation], run.probabilities[run.test]
    true_validation, true_test = run.truth.dense(run.validation) > 0, run.truth.dense(run.test) > 0
    known = run.labels.dense(run.validation)
    frequencies = true_validation.mean(axis=0)

    def error(estimate: Float64) -> float:
        return float(100 * np.abs(estimate - frequencies).sum() / frequencies.sum())

    fitted = calibrate(validation, known)
    other = elkan_noto(validation, known)
    for what, value in (
        ("true k", frequencies.sum()),
        ("k", fitted.k.k),
        ("low", fitted.k.low),
        ("high", fitted.k.high),
        ("frequencies off", error(fitted.frequencies)),
        ("Elkan-Noto k", other.sum()),
        ("Elkan-Noto off", error(other)),
    ):
        yield Measured("estimates", method, seed, what, float(value))

    def scores(table: str, name: str, values: npt.NDArray[Any], thresholds: Any) -> Iterator[Measured]:
        # F1 counts scores above a threshold, while these thresholds are the lowest accepted scores.
        below = np.nextafter(np.asarray(thresholds, values.dtype), values.dtype.type(-1))
        for average in ("micro", "macro"):
            value = 100 * f1(values, true_test, torch.from_numpy(np.atleast_1d(below)).squeeze(), average)
            yield Measured(table, method, seed, f"{name}, {average}", value)

    def estimated(table: str, name: str, calibration: Any) -> Iterator[Measured]:
        thresholds = expected_f1_thresholds(calibration.confidences(validation))
        yield from scores(table, name, calibration.confidences(test), thresholds)

    yield from scores("F1", "0.5", test, 0.5)
    yield from scores("F1", "0.75", test, 0.75)
    yield from scores("F1", "full labels", test, best_thresholds(validation, true_validation))
    yield from estimated("F1", "estimated", fitted)
    yield from estimated("F1", "estimated, k told", calibrate(validation, known, k=float(frequencies.sum())))

    yield from recovery("recovered", method, seed, recover(run, k=None), run.truth)

    generator = np.random.default_rng(seed)
    for count in LABELLED:
        for draw in range(DRAWS):
            rows = np.sort(generator.choice(run.train, count, replace=False))
            with_labelled = calibrate(
                np.concatenate([validation, run.probabilities[rows]]),
                np.concatenate([known, run.truth.dense(rows)]),
            )
            off = abs(with_labelled.confidences(validation).sum(axis=1).mean() - frequencies.sum())
            yield Measured("labelled", method, DRAWS * seed + draw, f"{count}, k off", float(off))
            yield from estimated("labelled", str(count), with_labelled)
    yield Measured("labelled", method, seed, "0, k off", float(abs(fitted.k.k - frequencies.sum())))
    yield from estimated("labelled", "0", fitted)


def recovery(table: str, method: str, seed: int, recovered: Recovered, truth: Labels) -> Iterator[Measured]:
    """Compare recovered labels with the truth, where it is known."""
    rows = recovered.rows
    present, known, true = recovered.present(rows), recovered.known[rows], truth.dense(rows)
    missing, found = (known == 0) & (true > 0), (known == 0) & (true != 0) & present
    right = float((missing & found).sum())

    def of_all_labels(average: Literal["micro", "macro"]) -> float:
        return f1(present.astype(np.float32), true, 0.5, average, mask=true != 0, empty="skip")

    for what, value in (
        ("missing", missing.sum()),
        ("recovered", found.sum()),
        ("precision", 100 * right / found.sum()),
        ("recall", 100 * right / missing.sum()),
        ("F1 of all labels, micro", 100 * of_all_labels("micro")),
        ("F1 of all labels, macro", 100 * of_all_labels("macro")),
    ):
        yield Measured(table, method, seed, what, float(value))


def best_thresholds(probabilities: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> Float64:
    """The threshold with the best F1 on fully labelled rows, for each class."""
    thresholds = np.full(probabilities.shape[1], np.inf)
    for c in range(probabilities.shape[1]):
        order = np.argsort(-probabilities[:, c], kind="stable")
        right = np.cumsum(positive[order, c])
        if right[-1]:
            f1_at = 2 * right / (np.arange(1, len(order) + 1) + right[-1])
            thresholds[c] = probabilities[order[f1_at.argmax()], c]
    return thresholds


def elkan_noto(probabilities: npt.NDArray[Any], known: npt.NDArray[np.int8]) -> Float64:
    """Class frequencies by Elkan & Noto (2008): P(observed) / mean of P(observed | x) over rows where it is observed.

    P(observed | x) is a logistic regression on the logit of the class.
    """
    from sklearn.linear_model import LogisticRegression

    named = known > 0
    logits = np.log(probabilities / (1 - probabilities).clip(1e-7)).clip(-16, 16)
    estimates = np.zeros(named.shape[1])
    for c in np.flatnonzero(named.any(axis=0) & ~named.all(axis=0)):
        model = LogisticRegression().fit(logits[:, [c]], named[:, c])
        estimates[c] = named[:, c].mean() / model.predict_proba(logits[named[:, c]][:, [c]])[:, 1].mean()
    return estimates


# The tables


def report(measured: list[Measured]) -> None:
    """Markdown tables of the means, one row per method."""
    values: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for item in measured:
        values[item.table][item.method][item.what].append(item.value)
    for table, methods in values.items():
        columns = list(next(iter(methods.values())))
        print(f"\n| {table} | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
        for method, found in methods.items():
            print(f"| `{method}` | {' | '.join(_shown(name, found[name]) for name in columns)} |")


def _shown(name: str, values: list[float]) -> str:
    mean = float(np.mean(values))
    digits = 0 if name in ("missing", "recovered") else 2
    return f"{mean:.{digits}f}"


def write(measured: list[Measured], path: Path) -> None:
    made = {"command": command(), "commit": commit(), "hardware": hardware()}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*Measured._fields, *made])
        writer.writeheader()
        for item in measured:
            writer.writerow(item._asdict() | {"value": f"{item.value:.4f}"} | made)


if __name__ == "__main__":
    main()
