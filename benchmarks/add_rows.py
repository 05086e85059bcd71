"""Add the selected runs of `spml bench` to a file in results/, in place of earlier rows of the same runs.

    python benchmarks/add_rows.py runs/voc12-lite2/runs.csv results/voc12-lite2.csv
    python benchmarks/add_rows.py runs/features/runs.csv results/features-voc12.csv --all

A row replaces those with the same values of `KEY`. With `--all`, runs that the search rejected are added too.
"""

import argparse
import csv
from pathlib import Path

from spml.bench.compare import write_csv

KEY = ("bench", "data", "method", "head", "varied", "value", "learning_rate", "batch_size", "seed")
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def key(row: Row) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in KEY)


def merged(earlier: list[Row], new: list[Row]) -> list[Row]:
    """The earlier rows, each replaced where a new one has its key; then the other new rows."""
    left = {key(row): row for row in new}
    kept = [left.pop(key(row), row) for row in earlier]
    return [*kept, *left.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="runs.csv of a bench")
    parser.add_argument("results", type=Path, help="file in results/")
    parser.add_argument("--all", action="store_true", help="rejected runs of the search, too")
    options = parser.parse_args()
    new = [row for row in read(options.runs) if options.all or row["chosen"] == "True"]
    earlier = read(options.results) if options.results.exists() else []
    write_csv(options.results, merged(earlier, new))
    print(f"{options.results}: {len(new)} rows added or replaced")


if __name__ == "__main__":
    main()
