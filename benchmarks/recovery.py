"""Recovered labels against the truth: calibration error, precision, recall and k, with 0, 20 and 60 full rows.

Every set is fully labelled; single positives are drawn anew for each draw. Predictions are cross-fitted one-vs-rest
logistic regressions, so that sets and draws compare the calibration and nothing else. `before` repeats the rule of
version 0.1 with the current code: the most likely calibration, and thresholds with the best expected F1.

    python benchmarks/recovery.py --data FOLDER --out results/recovery.csv
"""

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier

from record import command, commit, hardware
from spml.calibration import best_threshold, calibrate
from spml.recover.guarantee import CONFIDENCE, guaranteed_threshold
from spml.recover.rule import Rule, choose_rule
from spml.recover.sample import inclusion_probabilities, systematic_sample

STRENGTH = {"scene": 0.01, "yeast": 0.01, "medical": 0.1, "hallmarks": 10.0, "voc": 0.03, "cub": 0.003}
SETS = ("scene", "yeast", "medical", "hallmarks", "voc", "voc by class", "voc by size", "cub")
COLUMNS = (
    *("set", "draw", "when", "full_rows", "rows", "labels", "true_k", "k", "k_low", "k_high", "k_covered"),
    *("recovered_per_row", "precision", "confidence", "calibration_error", "recall", "wide_k"),
    *("guarantees_found", "guarantees_held", "command", "commit", "hardware"),
)


def load(folder: Path, name: str):
    """Features, full labels, and for VOC the size of the largest object of each class."""
    if name == "hallmarks":
        with (folder / "text" / "hallmarks.csv").open() as file:
            rows = list(csv.DictReader(file))
        classes = sorted({label for row in rows for label in row["all_labels"].split("|")})
        truth = np.array([[c in row["all_labels"].split("|") for c in classes] for row in rows])
        return TfidfVectorizer(min_df=2, sublinear_tf=True).fit_transform([row["text"] for row in rows]), truth, None
    where = {"voc": "voc12", "cub": "cub"}.get(name, f"tabular/{name}")
    table = np.load(folder / where / "labels.npz")
    image = name in ("voc", "cub")
    features = np.load(folder / where / ("features-lite2-320.npy" if image else "features.npy")).astype(np.float32)
    rows = np.arange(len(features))
    if name == "cub":
        rows = np.concatenate([table["val"], table["test"]])
    rows = rows[(table["labels"][rows] > 0).any(axis=1)]
    features, truth = features[rows], table["labels"][rows] > 0
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    if image:
        basis = np.linalg.svd(features[:2000], full_matrices=False)[2][:200]
        features = features @ basis.T
        features /= features.std()
    return features, truth, table["largest_share"][rows] if name == "voc" else None


def draw_singles(truth, bias: str, share, rng):
    weight = truth * (truth.mean(0) if bias == "class" else (share + 1e-3 if bias == "size" else 1.0))
    edges = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    return (edges > rng.random((len(truth), 1))).argmax(axis=1)


def cross_fit(features, single, classes: int, strength: float, seed: int):
    logits = np.full((len(single), classes), -12.0)
    for inside, outside in KFold(4, shuffle=True, random_state=seed).split(single):
        model = OneVsRestClassifier(LogisticRegression(C=strength, max_iter=100, tol=1e-3))
        model.fit(features[inside], single[inside])
        logits[np.ix_(outside, model.classes_)] = model.decision_function(features[outside])
    return expit(logits)


def measure(calibration, rule: Rule, confidences, truth, observed, rest) -> dict[str, object]:
    present = rule.present(confidences, observed) & (observed == 0)
    taken, right = confidences[rest][present[rest]], truth[rest][present[rest]]
    bins = np.minimum((taken * 10).astype(int), 9)
    error = sum(abs(taken[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins))
    missing = (truth[rest] & (observed[rest] == 0)).sum()
    k, true_k = calibration.k, float(truth.sum(axis=1).mean())
    return {
        "true_k": round(true_k, 3),
        "k": round(k.k, 3),
        "k_low": round(k.low, 3),
        "k_high": round(k.high, 3),
        "k_covered": k.low <= true_k <= k.high,
        "recovered_per_row": round(1 + len(taken) / len(rest), 3),
        "precision": round(float(right.mean()), 3) if len(taken) else "",
        "confidence": round(float(taken.mean()), 3) if len(taken) else "",
        "calibration_error": round(float(error), 3) if len(taken) else "",
        "recall": round(float(right.sum() / max(missing, 1)), 3),
        "wide_k": k.high - 1 > 2 * (k.low - 1),
    }


def before(probabilities, observed):
    """The calibration and the rule of version 0.1."""
    calibration = calibrate(probabilities, observed, uncertainty=False)
    confidences = calibration.confidences(probabilities, observed)
    thresholds = np.array([best_threshold(confidences[:, c]) for c in range(confidences.shape[1])])
    return calibration, Rule("balanced", thresholds), confidences


def results(probabilities, observed, truth, rng, full_rows):
    rows = np.arange(len(truth))
    yield {"when": "before", "full_rows": 0} | measure(*before(probabilities, observed), truth, observed, rows)
    base = calibrate(probabilities, observed)
    doubt = base.confidences(probabilities, observed).astype(float)
    doubt = (doubt * (1 - doubt)).sum(axis=1)
    for count in full_rows:
        known, calibration, weights = observed.copy(), base, np.ones(len(truth))
        drawn = np.zeros(0, np.int64)
        if count:
            chances = inclusion_probabilities(doubt, count)
            drawn, weights = systematic_sample(chances, rng), 1 / chances
            known[drawn] = np.where(truth[drawn], 1, -1)
            calibration = calibrate(probabilities, known, observed=observed, weights=weights)
        confidences = calibration.confidences(probabilities, observed, reading="cautious")
        rule = choose_rule(calibration, confidences, rows, "balanced", None)
        rest = np.setdiff1d(rows, drawn)
        yield {"when": "after", "full_rows": count} | measure(calibration, rule, confidences, truth, observed, rest)


def guarantees(probabilities, observed, truth, rng, rows: int, draws: int, precision: float):
    """In how many of `draws` samples a precision could be guaranteed, and in how many of these it holds."""
    base = calibrate(probabilities, observed)
    scores, unknown = base.confidences(probabilities, observed), observed == 0
    doubt = (scores * (1 - scores)).sum(axis=1).astype(float)
    chances = inclusion_probabilities(doubt, rows)
    found = held = 0
    for _ in range(draws):
        drawn = systematic_sample(chances, rng)
        result = guaranteed_threshold(scores, unknown, drawn, truth[drawn], 1 / chances[drawn], precision)
        if result is not None:
            found += 1
            held += truth[unknown & (scores >= result.threshold)].mean() >= precision
    return {
        "when": f"precision {precision:g} with {CONFIDENCE:g}",
        "full_rows": rows,
        "guarantees_found": f"{found} of {draws}",
        "guarantees_held": f"{held} of {found}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with tabular/, text/, voc12/ and cub/")
    parser.add_argument("--out", type=Path, default=Path("results/recovery.csv"))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2000, help="rows of each set, at most")
    parser.add_argument("--full-rows", type=int, nargs="+", default=[0, 20, 60])
    parser.add_argument("--guarantee-draws", type=int, default=200)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    call = command().replace(str(arguments.data), "DATA")
    origin = {"command": call, "commit": commit(), "hardware": hardware("cpu")}
    new = not arguments.out.exists()
    with arguments.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        for draw in range(arguments.draws):
            for name in arguments.sets:
                kind, _, bias = name.partition(" by ")
                features, truth, share = load(arguments.data, kind)
                rng = np.random.default_rng([draw, 0])
                some = np.sort(rng.permutation(len(truth))[: arguments.rows])
                features, truth = features[some], truth[some]
                single = draw_singles(truth, bias, None if share is None else share[some], rng)
                x = features if sparse.issparse(features) else np.asarray(features, np.float64)
                probabilities = cross_fit(x, single, truth.shape[1], STRENGTH[kind], draw)
                observed = np.zeros(truth.shape, np.int8)
                observed[np.arange(len(truth)), single] = 1
                common = {"set": name, "draw": draw, "rows": len(truth), "labels": truth.shape[1], **origin}
                lines = list(results(probabilities, observed, truth, rng, arguments.full_rows))
                if draw == 0 and arguments.guarantee_draws:
                    for precision in (0.8, 0.9):
                        lines.append(
                            guarantees(probabilities, observed, truth, rng, 100, arguments.guarantee_draws, precision)
                        )
                for line in lines:
                    writer.writerow(common | line)
                file.flush()
                print(name, draw, flush=True)


if __name__ == "__main__":
    main()
