"""Recovered labels against the truth: calibration error, precision, recall and k, with 0, 20 and 60 full rows.

Every set is fully labelled; single positives are drawn anew for each draw. Predictions are those of `spml train` with
its defaults: cross-fitted by `fit_features`. `before` repeats the rule of version 0.1 with the current code: the most
likely calibration, and thresholds with the best expected F1. The pooled rows combine all draws of a set; a calibration
error of few labels is mostly noise, see the column `recovered`. `stated_low` and `stated_high` are the 80% interval of
the precision that `spml recover` prints. `--predictions` keeps the predictions, so that another calibration is measured
in minutes.

    python benchmarks/recovery.py --data FOLDER --out results/recovery.csv
    python benchmarks/recovery.py --debian INDEX --sets "debian use" "debian tools" --out results/recovery.csv
    python benchmarks/recovery.py --figure docs/images/recovery.svg --out results/recovery.csv
"""

import argparse
import csv
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np

import debian
from record import command, commit, hardware
from spml.calibration import best_threshold, calibrate
from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.models.text_encoders import DEFAULT_ENCODER, fit_encoder
from spml.recover.guarantee import CONFIDENCE, guaranteed_threshold
from spml.recover.rule import Rule, choose_rule, reading_of
from spml.recover.sample import expected_labels, inclusion_probabilities, systematic_sample
from spml.training.learners import fit_features

DEVELOPMENT = ("scene", "yeast", "medical", "hallmarks", "voc", "voc by class", "voc by size", "cub")
SETS = (*DEVELOPMENT, *debian.SETS)
_FEW = 30  # recovered labels; the share that is correct among fewer is mostly noise
COLUMNS = (
    *("set", "draw", "when", "full_rows", "rows", "labels", "true_k", "k", "k_low", "k_high", "k_covered"),
    *("recovered", "recovered_per_row", "precision", "confidence", "calibration_error", "recall", "wide_k"),
    *("stated_low", "stated_high", "precision_as_stated"),
    *("guarantees_found", "guarantees_held", "command", "commit", "hardware"),
)


def load(folder: Path, name: str, index: Path | None = None):
    """Features or texts, full labels, and for VOC the size of the largest object of each class."""
    if name in debian.SETS:
        return *debian.load(index, name), None
    if name == "hallmarks":
        with (folder / "text" / "hallmarks.csv").open() as file:
            rows = list(csv.DictReader(file))
        classes = sorted({label for row in rows for label in row["all_labels"].split("|")})
        truth = np.array([[c in row["all_labels"].split("|") for c in classes] for row in rows])
        return np.array([row["text"] for row in rows], object), truth, None
    where = {"voc": "voc12", "cub": "cub"}.get(name, f"tabular/{name}")
    table = np.load(folder / where / "labels.npz")
    image = name in ("voc", "cub")
    features = np.load(folder / where / ("features-lite2-320.npy" if image else "features.npy")).astype(np.float32)
    rows = np.concatenate([table["val"], table["test"]]) if name == "cub" else np.arange(len(features))
    rows = rows[(table["labels"][rows] > 0).any(axis=1)]
    return features[rows], table["labels"][rows] > 0, table["largest_share"][rows] if name == "voc" else None


def draw_singles(truth, bias: str, share, rng):
    weight = truth * (truth.mean(0) if bias == "class" else (share + 1e-3 if bias == "size" else 1.0))
    edges = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    return (edges > rng.random((len(truth), 1))).argmax(axis=1)


def cross_fit(features, single, classes: int, seed: int):
    """What `spml train` stores as the input of the calibration."""
    if features.dtype == object:
        features = fit_encoder(DEFAULT_ENCODER, list(features)).encode(list(features))
    labels = Labels.from_indices(single, [f"class {c}" for c in range(classes)])
    return fit_features(FeatureStore(features), labels, seed=seed).independent


def kept(folder: Path | None, name: str, single, compute):
    """Predictions in a folder, computed and stored if they are not there."""
    file = None if folder is None else folder / f"{name}.npz"
    if file is not None and file.exists():
        stored = np.load(file)
        if not np.array_equal(stored["single"], single):
            raise SystemExit(f"{file} is of other rows or another draw: use another folder")
        return stored["predictions"]
    predictions = compute()
    if file is not None:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, predictions=predictions, single=single)
    return predictions


def calibration_error(confidence, right) -> float:
    """Expected calibration error with ten bins of equal width."""
    bins = np.minimum((confidence * 10).astype(int), 9)
    shares = [(bins == b) for b in np.unique(bins)]
    return float(sum(abs(confidence[some].mean() - right[some].mean()) * some.mean() for some in shares))


def measure(calibration, rule, probabilities, confidences, truth, observed, rest) -> tuple[dict[str, object], tuple]:
    """The columns of one setting, and what is needed to pool them over draws."""
    present = rule.present(confidences, observed) & (observed == 0)
    taken, right = confidences[rest][present[rest]], truth[rest][present[rest]]
    low, high = (
        float(calibration.confidences(probabilities[rest], observed[rest], reading=reading)[present[rest]].mean())
        if len(taken)
        else float("nan")
        for reading in ("lowest", "highest")
    )
    missing = int((truth[rest] & (observed[rest] == 0)).sum())
    k, true_k = calibration.k, float(truth.sum(axis=1).mean())
    columns = summary(taken, right, missing, len(rest)) | {
        "true_k": round(true_k, 3),
        "k": round(k.k, 3),
        "k_low": round(k.low, 3),
        "k_high": round(k.high, 3),
        "k_covered": k.low <= true_k <= k.high,
        "wide_k": k.high - 1 > 2 * (k.low - 1),
    }
    if len(taken):
        columns |= {
            "stated_low": round(low, 3),
            "stated_high": round(high, 3),
            "precision_as_stated": low <= right.mean() <= high,
        }
    return columns, (taken, right, missing, len(rest))


def summary(taken, right, missing: int, rows: int) -> dict[str, object]:
    found = len(taken) > 0
    return {
        "recovered": len(taken),
        "recovered_per_row": round(len(taken) / rows, 4),
        "precision": round(float(right.mean()), 3) if found else "",
        "confidence": round(float(taken.mean()), 3) if found else "",
        "calibration_error": round(calibration_error(taken, right), 3) if found else "",
        "recall": round(float(right.sum() / max(missing, 1)), 3),
    }


def before(probabilities, observed):
    """The calibration and the rule of version 0.1."""
    calibration = calibrate(probabilities, observed, uncertainty=False)
    confidences = calibration.confidences(probabilities, observed)
    thresholds = np.array([best_threshold(confidences[:, c]) for c in range(confidences.shape[1])])
    return calibration, Rule("balanced", thresholds), probabilities, confidences


def results(probabilities, observed, truth, rng, full_rows):
    rows = np.arange(len(truth))
    yield {"when": "before", "full_rows": 0}, *measure(*before(probabilities, observed), truth, observed, rows)
    base = calibrate(probabilities, observed)
    sizes = expected_labels(base.confidences(probabilities, observed), observed)
    for count in full_rows:
        known, calibration, drawn = observed.copy(), base, np.zeros(0, np.int64)
        if count:
            chances = inclusion_probabilities(sizes, count)
            drawn = systematic_sample(chances, rng)
            known[drawn] = np.where(truth[drawn], 1, -1)
            calibration = calibrate(probabilities, known, observed=observed, weights=1 / chances)
        reading = reading_of(calibration, "balanced", None)
        confidences = calibration.confidences(probabilities, observed, reading=reading)
        rule = choose_rule(calibration, confidences, rows, "balanced", None)
        rest = np.setdiff1d(rows, drawn)
        key = {"when": "after", "full_rows": count}
        yield key, *measure(calibration, rule, probabilities, confidences, truth, observed, rest)


def guarantees(probabilities, observed, truth, rng, rows: int, draws: int, precision: float):
    """In how many of `draws` samples a precision could be guaranteed, and in how many of these it holds."""
    base = calibrate(probabilities, observed)
    scores, unknown = base.confidences(probabilities, observed), observed == 0
    chances = inclusion_probabilities(expected_labels(scores, observed), rows)
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


def figure(results: Path, path: Path) -> None:
    """Stated confidence against precision of the recovered labels, pooled over the draws of each set."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "spml"  # the same file from the same numbers
    import matplotlib.pyplot as plt

    with results.open(newline="", encoding="utf-8") as file:
        pooled = [row for row in csv.DictReader(file) if row["draw"] == "pooled" and int(row["recovered"]) >= _FEW]
    panels = (
        ("before", 0, "version 0.1"),
        ("after", 0, "now, no full rows"),
        ("after", 20, "20 full rows"),
        ("after", 60, "60 full rows"),
    )
    fig, axes = plt.subplots(1, len(panels), figsize=(11, 3.6), sharex=True, sharey=True, layout="constrained")
    colours = {name: f"C{place}" for sets in (DEVELOPMENT, debian.SETS) for place, name in enumerate(sets)}
    markers = {name: "^" if name in debian.SETS else "o" for name in SETS}
    for axis, (when, rows, title) in zip(axes, panels, strict=True):
        axis.plot([0.2, 1], [0.2, 1], "--", color="grey", linewidth=1)
        for row in pooled:
            if (row["when"], int(row["full_rows"])) == (when, rows):
                axis.plot(
                    float(row["confidence"]),
                    float(row["precision"]),
                    markers[row["set"]],
                    color=colours[row["set"]],
                    label=row["set"],
                )
        axis.set(title=title, xlabel="mean confidence")
    axes[0].set(ylabel="share that is correct", xlim=(0.4, 1), ylim=(0.1, 1))
    handles = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    fig.legend(handles.values(), handles, loc="outside right center", frameon=False, fontsize="small")
    fig.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with tabular/, text/, voc12/ and cub/")
    parser.add_argument("--debian", type=Path, help="output of apt-cache dumpavail, for sets of debian.py")
    parser.add_argument("--predictions", type=Path, help="folder that keeps the predictions")
    parser.add_argument("--figure", type=Path, help="instead: draw what --out holds (SVG)")
    parser.add_argument("--out", type=Path, default=Path("results/recovery.csv"))
    parser.add_argument("--sets", nargs="+", default=list(DEVELOPMENT), choices=SETS, metavar="SET")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first-draw", type=int, default=0)
    parser.add_argument("--rows", type=int, default=2000, help="rows of each set, at most")
    parser.add_argument("--full-rows", type=int, nargs="+", default=[0, 20, 60])
    parser.add_argument("--guarantee-draws", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.figure:
        return figure(arguments.out, arguments.figure)
    if arguments.data is None and not set(arguments.sets) <= debian.SETS.keys():
        parser.error("--data is missing")
    if arguments.debian is None and set(arguments.sets) & debian.SETS.keys():
        parser.error("--debian is missing: apt-cache dumpavail > FILE")
    warnings.filterwarnings("ignore")
    call = command()
    for path, word in ((arguments.data, "DATA"), (arguments.debian, "INDEX"), (arguments.predictions, "PREDICTIONS")):
        call = call.replace(str(path), word) if path is not None else call
    origin = {"command": call, "commit": commit(), "hardware": hardware("cpu")}
    new = not arguments.out.exists()
    with arguments.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        pools: dict[tuple[object, ...], list[tuple]] = defaultdict(list)
        for draw in range(arguments.first_draw, arguments.first_draw + arguments.draws):
            for name in arguments.sets:
                kind, _, bias = name.partition(" by ")
                features, truth, share = load(arguments.data, kind, arguments.debian)
                rng = np.random.default_rng([draw, 0])
                some = np.sort(rng.permutation(len(truth))[: arguments.rows])
                truth = truth[some]
                single = draw_singles(truth, bias, None if share is None else share[some], rng)
                probabilities = kept(
                    arguments.predictions,
                    f"{name} {draw}",
                    single,
                    lambda x=features[some], y=single, n=truth.shape[1], draw=draw: cross_fit(x, y, n, draw),
                )
                observed = np.zeros(truth.shape, np.int8)
                observed[np.arange(len(truth)), single] = 1
                common = {"set": name, "rows": len(truth), "labels": truth.shape[1], **origin}
                for key, columns, pool in results(probabilities, observed, truth, rng, arguments.full_rows):
                    pools[name, key["when"], key["full_rows"]].append(pool)
                    writer.writerow(common | {"draw": draw} | key | columns)
                for precision in (0.7, 0.8, 0.9) if draw == arguments.first_draw and arguments.guarantee_draws else ():
                    line = guarantees(probabilities, observed, truth, rng, 100, arguments.guarantee_draws, precision)
                    writer.writerow(common | {"draw": draw} | line)
                file.flush()
                print(name, draw, flush=True)
        for (name, when, count), parts in pools.items():
            taken, right = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
            columns = summary(taken, right, sum(part[2] for part in parts), sum(part[3] for part in parts))
            key = {"set": name, "draw": "pooled", "when": when, "full_rows": count}
            writer.writerow(origin | key | columns)


if __name__ == "__main__":
    main()
