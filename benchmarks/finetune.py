"""Fine-tune a backbone by many methods on one pack, several at a time on one GPU, and print a table.

    python benchmarks/finetune.py --data ../shared/data/voc12 --methods an,em,bce --seeds 0 --out runs/voc12

`published` is Cole et al.'s protocol at batch 16 and learning rate 1e-4: ten epochs, flips, the best validation epoch.
`modern` adds a cosine schedule, averaged weights (0.998) and random resized crops (at least 0.7 of the area).
"""

import argparse
import csv
import dataclasses
import time
from pathlib import Path

import torch

from record import command, commit, hardware
from spml.bench.jobs import Job, run_jobs
from spml.data import ViewSettings
from spml.train.settings import TrainSettings

RECIPES = {
    "published": TrainSettings(epochs=10, batch_size=16, learning_rate=1e-4, precision="bf16"),
    "modern": TrainSettings(
        epochs=10,
        batch_size=16,
        learning_rate=1e-4,
        precision="bf16",
        schedule="cosine",
        averaging=0.998,
        views=ViewSettings(crop_scale=(0.7, 1.0)),
    ),
}

# Settings the published tables were made with, where they are not the method's defaults.
TABLE_SETTINGS = {
    "an-ls": {"positive_smoothing": 0.2, "negative_smoothing": 0.2},
    "asl": {"negative_focusing": 2.0, "shift": 0.2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--methods", required=True, help="comma-separated; name@setting=value+setting=value changes settings"
    )
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--recipe", choices=RECIPES, default="published")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--k", type=float, default=1.5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    options = parser.parse_args()

    recipe = RECIPES[options.recipe]
    if options.epochs:
        recipe = dataclasses.replace(recipe, epochs=options.epochs)
    jobs = []
    for seed in map(int, options.seeds.split(",")):
        for text in options.methods.split(","):
            name, settings = parse_method(text)
            train = dataclasses.replace(recipe, seed=seed)
            head_settings = {"boost": 5.0} if name == "boostlu" else {}
            jobs.append(Job(options.data, name, settings, train, k=options.k, head_settings=head_settings))
    started, rows = time.perf_counter(), []
    for row in run_jobs(jobs, options.out, device=options.device, workers=options.workers):
        rows.append(row)
        at, score = time.perf_counter() - started, 100 * row["test_map"]
        print(
            f"{at:7.1f} s  {row['method']:<16} seed {row['seed']}  test {score:.2f}  epoch {row['best_epoch']} "
            f"({row['weights']})  {row['seconds']} s  {row['rows_per_second']} rows/s",
            flush=True,
        )
    rows.sort(key=lambda row: -row["test_map"])
    columns = ("test_map", "recovery_map", "test_micro_f1", "test_macro_f1")
    print(f"\n{'method':<18}{'seed':>5}" + "".join(f"{name:>15}" for name in columns) + f"{'s':>8}{'GiB':>7}")
    for row in rows:
        scores = "".join(f"{100 * row[name]:>15.2f}" if row[name] is not None else f"{'-':>15}" for name in columns)
        print(f"{row['method']:<18}{row['seed']:>5}{scores}{row['seconds']:>8.1f}{row['memory_gib'] or 0:>7.2f}")
    if options.csv:
        write_csv(options.csv, rows, {"recipe": options.recipe, "epochs": recipe.epochs})


def parse_method(text: str) -> tuple[str, dict[str, object]]:
    """'em@entropy_weight=0.1' as the name and its settings."""
    name, _, rest = text.partition("@")
    settings: dict[str, object] = dict(TABLE_SETTINGS.get(name, {}))
    for pair in filter(None, rest.split("+")):
        key, _, value = pair.partition("=")
        settings[key] = float(value)
    return name, settings


def write_csv(path: Path, rows: list[dict[str, object]], extra: dict[str, object]) -> None:
    made = {
        "command": command(),
        "commit": commit(),
        "hardware": hardware("cuda" if torch.cuda.is_available() else "cpu"),
    }
    written = [{**extra, **row, **made} for row in rows]
    if path.exists():  # older rows may have other columns: all are written anew under the columns of both
        with open(path, newline="", encoding="utf-8") as file:
            written = [*csv.DictReader(file), *written]
    columns = list(dict.fromkeys(name for row in written for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    with open(beside, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(written)
    beside.replace(path)


if __name__ == "__main__":
    main()
