"""How many answers a review needs, by the order of its questions. Answers are the true labels.

    python benchmarks/review_study.py --data packs/voc12 --out results/review-study.csv
    spml quickstart --out demo
    python benchmarks/review_study.py --data scenes --network demo/auto --out results/review-study.csv
    python benchmarks/review_study.py --figure docs/images/review-study.svg --out results/review-study.csv

A linear model learns from the given labels and the answers, as `spml train --base linear` on features. After every 250
answers it is trained again, and the questions are ordered again. Orders: random, by confidence (highest first), and the
suggested order of `spml review`. On the scenes, the features are those of the network of `spml quickstart`, which was
trained from the single labels of 8,000 other scenes.

Measured after each round: test mAP; precision and recall of the labels that were not given, as `spml recover` writes
them, answers included; and how often the 90% intervals of the page contain the truth.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

import spml
from record import command, commit, hardware
from spml.data import FeatureStore, open_data
from spml.labels import Labels
from spml.metrics import mean_average_precision
from spml.recover import recover
from spml.review.quality import Quality
from spml.review.questions import expected_gain
from spml.runs.folder import RunFolder
from spml.training.learners import fit, fit_features

MEASURES = {"recall": "recall of missing labels", "precision": "precision", "test_map": "test mAP"}
PALETTE = {"random": "#8a94a0", "confidence": "#c0560a", "suggested": "#1f5fbf"}
EVERY = 250
RENEWED = 50  # answers between two looks at the list, as on the page
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


class Data(NamedTuple):
    """Standardised features, given labels and true labels of the reviewed rows; features and truth of the test rows."""

    name: str
    store: FeatureStore
    given: npt.NDArray[np.int8]
    truth: Bool
    test: Float32
    test_truth: Bool


Order = Callable[["Round", np.random.Generator], Iterator[tuple[int, int]]]


class Round(NamedTuple):
    """What is known before 250 questions are asked."""

    confidences: Float32
    present: Bool
    open: Bool
    truth: Bool
    quality: Quality


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="pack with features*.npy, or scenes")
    parser.add_argument("--network", help="scenes: a run of `spml quickstart`")
    parser.add_argument("--figure", type=Path, help="instead: draw what --out holds (SVG)")
    parser.add_argument("--out", type=Path, help="CSV to append to")
    parser.add_argument("--orders", default="random,confidence,suggested")
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=2500, help="reviewed rows")
    parser.add_argument("--seeds", default="0,1")
    options = parser.parse_args()
    if options.figure:
        figure(options.out, options.figure)
        return
    learn_given_labels_once()
    for seed in map(int, options.seeds.split(",")):
        scenic = options.data == "scenes"
        data = scenes(options.network, options.rows, seed) if scenic else pack(options.data, options.rows, seed)
        for order in options.orders.split(","):
            for line in study(data, order, options.answers, seed):
                write(options.out, {"data": data.name, "order": order, "seed": seed, **line})


def learn_given_labels_once() -> None:
    """Keep the learners of a data set between rounds: answers do not change what is learned from the given labels."""
    train, kept = fit.train_families, dict[int, Any]()

    def train_families(task: fit.Task, base: str) -> Any:
        if id(task.features) not in kept:
            candidates, *learners = train(task, base)
            kept.clear()
            kept[id(task.features)] = (
                candidates,
                *([replace(trained, final=cache(trained.final)) for trained in some] for some in learners),
            )
        return kept[id(task.features)]

    fit.train_families = train_families


def study(data: Data, order: str, answers: int, seed: int) -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng([seed, 1])
    answered = np.zeros_like(data.given)
    given, store = _labels(data.given), data.store
    for asked in range(0, answers + 1, EVERY):
        decided = _labels(answered)
        model = fit_features(store, given, answers=decided if asked else None, base="linear", seed=seed)
        recovered = recover(_run(data, model.held_out), decisions=decided if asked else None)
        known, open_ = recovered.known, recovered.known == 0
        confidences = recovered.calibration.confidences(model.held_out, known)
        present = recovered.present(recovered.rows) & open_
        quality = Quality(confidences, present, open_)
        test = torch.from_numpy(model.model.presence(data.test))
        yield {"answers": asked, **measures(data, known, present, quality), "test_map": test_map(test, data)}
        state = Round(confidences, present, open_.copy(), data.truth, quality)
        for number, (row, label) in enumerate(ORDERS[order](state, draw)):
            if number == EVERY:
                break
            answered[row, label] = 1 if data.truth[row, label] else -1


def _run(data: Data, held_out: Float32) -> RunFolder:
    """A finished run on features, with cross-fitted predictions of all rows."""
    rows, none = np.arange(len(data.given)), np.zeros(0, np.int64)
    return RunFolder(
        folder=Path(data.name),
        record={"method": {"name": "auto"}, "model": {"learners": []}, "k": None},
        best={},
        log=[],
        names=[str(row) for row in rows],
        labels=_labels(data.given),
        truth=None,
        probabilities=held_out,
        train=rows,
        validation=none,
        test=none,
        source={},
    )


def _labels(known: npt.NDArray[np.int8]) -> Labels:
    return Labels.from_matrix(known, [str(c) for c in range(known.shape[1])])


def measures(data: Data, known: npt.NDArray[np.int8], present: Bool, quality: Quality) -> dict[str, float]:
    """Micro and macro quality of the labels that were not given, and the coverage of the page's intervals."""
    asked = data.given == 0
    found = asked & ((known > 0) | present)
    right, wanted = found & data.truth, asked & data.truth
    counts = [table.sum(axis=0) for table in (right, found, wanted)]
    inside = []
    remaining = present & data.truth
    for label, estimate in enumerate(quality.labels(np.arange(known.shape[1]))):
        # the page counts labels that are open at this point
        hits, kept, all_ = (int(table[:, label].sum()) for table in (remaining, present, (known == 0) & data.truth))
        if kept:
            inside.append(estimate.precision.low <= hits / kept <= estimate.precision.high)
        if all_:
            inside.append(estimate.recall.low <= hits / all_ <= estimate.recall.high)
    return {
        "precision": counts[0].sum() / max(counts[1].sum(), 1),
        "recall": counts[0].sum() / max(counts[2].sum(), 1),
        "macro_f1": float(np.mean(2 * counts[0] / np.maximum(counts[1] + counts[2], 1))),
        "coverage": float(np.mean(inside)),
        "yes": int(((known > 0) & asked).sum()),
    }


def test_map(scores: torch.Tensor, data: Data) -> float:
    return float(mean_average_precision(scores, torch.from_numpy(data.test_truth)))


# Orders


def random(state: Round, draw: np.random.Generator) -> Iterator[tuple[int, int]]:
    for row, label in draw.permutation(np.argwhere(state.open)):
        yield int(row), int(label)


def confidence(state: Round, draw: np.random.Generator) -> Iterator[tuple[int, int]]:
    yield from _highest(np.where(state.open, state.confidences, -1), int(state.open.sum()))


def suggested(state: Round, draw: np.random.Generator) -> Iterator[tuple[int, int]]:
    while state.open.any():
        gain = expected_gain(state.quality.probabilities(state.confidences), state.present, state.open)
        for row, label in _highest(gain, min(RENEWED, int(state.open.sum()))):
            yield row, label
            state.quality.answer(row, label, 1 if state.truth[row, label] else -1)
            state.open[row, label] = False


def _highest(values: npt.NDArray[Any], number: int) -> Iterator[tuple[int, int]]:
    flat = np.argsort(-values, axis=None, kind="stable")[:number]
    for row, label in zip(*np.unravel_index(flat, values.shape), strict=True):
        yield int(row), int(label)


ORDERS: dict[str, Order] = {"random": random, "confidence": confidence, "suggested": suggested}


# Data


def pack(path: str, rows: int, seed: int) -> Data:
    """Some training rows of a pack, their observed labels, and its test rows."""
    data = open_data(path, features=next(Path(path).glob("features*.npy")).name)
    assert data.truth is not None
    some = np.sort(np.random.default_rng([seed, 0]).permutation(np.concatenate([data.train, data.validation]))[:rows])
    features = data.tensor_store.batch
    given, truth = data.labels.dense(some), data.truth.open()
    return _data(data.name, features(some), given, truth, some, features(data.test), data.test)


def scenes(network: str, rows: int, seed: int) -> Data:
    """Features of new scenes by the network of a run on other scenes."""
    run = spml.load(network)
    data = open_data("scenes", train=rows, test=2000, seed=seed + 1)  # seed 0 made the scenes of the quickstart
    assert data.truth is not None
    some = np.concatenate([data.train, data.validation])
    embed = lambda part: torch.from_numpy(run.embed(data.tensor_store.batch(part)))  # noqa: E731
    given, truth = data.labels.dense(some), data.truth.open()
    return _data("scenes", embed(some), given, truth, some, embed(data.test), data.test)


def _data(
    name: str, features: torch.Tensor, given: Any, truth: Labels, rows: Any, test: torch.Tensor, test_rows: Any
) -> Data:
    mean, deviation = features.mean(0), features.std(0) + 1e-6
    standard = lambda x: ((x - mean) / deviation).float().numpy()  # noqa: E731
    truth_of = lambda part: truth.dense(part) > 0  # noqa: E731
    return Data(name, FeatureStore(standard(features)), given, truth_of(rows), standard(test), truth_of(test_rows))


def figure(results: Path, path: Path) -> None:
    """Recall, precision and test mAP by number of answers: one column per data set, means over seeds."""
    with results.open(newline="") as file:
        lines = list(csv.DictReader(file))
    parts = []
    for row, (measure, title) in enumerate(MEASURES.items()):
        for column, data in enumerate(dict.fromkeys(line["data"] for line in lines)):
            left, top = 60 + 350 * column, 20 + 150 * row
            parts.append(f'<text x="{left}" y="{top}" font-weight="600">{data}: {title} (%)</text>')
            parts += _panel([line for line in lines if line["data"] == data], measure, left, top + 15)
    for place, (order, colour) in enumerate(PALETTE.items()):
        parts.append(f'<text x="{230 + 100 * place}" y="476" fill="{colour}" font-weight="600">{order}</text>')
    style = 'font-family="sans-serif" font-size="12" fill="#66707c"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 486" {style}>'
    path.write_text("\n".join([head, *parts, "</svg>\n"]))


def _panel(lines: list[dict[str, str]], measure: str, left: int, top: int) -> Iterator[str]:
    """The curves of all orders, 260 by 90, with the extreme values and numbers of answers."""
    values: dict[tuple[str, int], list[float]] = {}
    for line in lines:
        values.setdefault((line["order"], int(line["answers"])), []).append(100 * float(line[measure]))
    means = {key: float(np.mean(each)) for key, each in values.items()}
    low, high, last = min(means.values()), max(means.values()), max(answers for _, answers in means)
    height = lambda value: top + 90 * (1 - (value - low) / (high - low))  # noqa: E731
    for value in (low, high):
        yield f'<path d="M{left} {height(value):.1f}h260" stroke="#8884"/>'
        yield f'<text x="{left - 8}" y="{height(value) + 4:.1f}" text-anchor="end">{value:.1f}</text>'
    for answers in (0, last // 2, last):
        yield f'<text x="{left + 260 * answers / last:.1f}" y="{top + 106}" text-anchor="middle">{answers:,}</text>'
    for order, colour in PALETTE.items():
        points = " ".join(
            f"{left + 260 * answers / last:.1f},{height(mean):.1f}"
            for (of, answers), mean in means.items()
            if of == order
        )
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'


def write(path: Path | None, line: dict[str, Any]) -> None:
    shown = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in line.items()}
    print(*(f"{name}={value}" for name, value in shown.items()), flush=True)
    if path is None:
        return
    shown |= {"command": command(), "commit": commit(), "hardware": hardware("cpu")}
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(shown))
        if new:
            writer.writeheader()
        writer.writerow(shown)


if __name__ == "__main__":
    main()
