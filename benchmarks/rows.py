"""A million rows from a file larger than memory: seconds per row, compared with a tenth of the rows.

    python benchmarks/rows.py                      # 100,000 and 1,000,000 rows of 1,280 float16 features, 2 GiB
    python benchmarks/rows.py --rows 5000,50000    # a quick try

Runs `spml train`, `spml predict` and `spml recover`, each in a control group with a memory limit that
includes the page cache: the file does not fit. Seconds per row exclude the time of a run on 1,000 rows, which is the
start-up time. With few rows this difference is small, and the speed of a machine changes over time; the sizes therefore
take turns, each after a start-up run, and medians are compared. The data are synthetic, in a temporary folder
that is deleted.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from limited import Used, compare, in_turns, run
from record import record

GIB = 2**30
START_UP = 1000  # rows


def make(folder: Path, rows: int, dim: int, classes: int, seed: int) -> None:
    """Write x.npy (float16: the directions of two classes plus noise) and y.npy (one of the two classes)."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(0, 0.3, (classes, dim)).astype(np.float32)
    matrix = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float16, (rows, dim))
    single = np.empty(rows, np.int64)
    for start in range(0, rows, 10_000):
        part = slice(start, min(start + 10_000, rows))
        size = part.stop - part.start
        pair = rng.integers(0, classes, (2, size))
        noise = rng.standard_normal((size, dim), np.float32)
        matrix[part] = directions[pair[0]] + directions[pair[1]] + noise
        single[part] = pair[0]
    matrix.flush()
    del matrix
    np.save(folder / "y.npy", single)


def forget(file: Path) -> None:
    """Drop a file from the page cache, so that the next command reads it from disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def stages(folder: Path, rows: int, options: argparse.Namespace) -> dict[str, Used]:
    """Run each command on the rows of a folder."""
    spml, data, trained = [sys.executable, "-m", "spml"], str(folder / "x.npy"), str(folder / "run")
    labels = str(folder / "y.npy")
    commands = {
        "train": [*spml, "train", data, "--labels", labels, "--out", trained, "--method", options.method],
        "predict": [*spml, "predict", trained, data, "--out", str(folder / "tags.parquet"), "--force"],
        "recover": [*spml, "recover", trained, "--out", str(folder / "labels.parquet"), "--force"],
    }
    shutil.rmtree(trained, ignore_errors=True)
    used = {}
    for stage, command in commands.items():
        forget(folder / "x.npy")
        used[stage] = one = run(command, options.limit, options.threads)
        print(f"  {rows:>9,} rows, {stage:8}{one.seconds:8.1f} s, {one.busy:.1f} s busy", flush=True)
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="100000,1000000", help="two numbers of rows")
    parser.add_argument("--dim", type=int, default=1280)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--method", default="an")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--limit", type=int, default=2 * GIB, help="memory limit of a command in bytes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()
    few, many = (int(part) for part in options.rows.split(","))

    sizes = (START_UP, few, many)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folders = {rows: Path(name) / str(rows) for rows in sizes}
        for rows, folder in folders.items():  # before the first run, because pending writes would slow it down
            folder.mkdir()
            make(folder, rows, options.dim, options.classes, options.seed)
        used = in_turns(lambda rows: stages(folders[rows], rows, options), sizes, options.turns)
    size = many * options.dim * 2
    print(f"{many:,} rows of {options.dim} float16 = {size / GIB:.2f} GiB, in {options.limit / GIB:.2f} GiB")
    for stage, here, there, extra in compare(used, sizes, "µs per row", 1e6):
        if options.record:
            what = {"rows": many, "dim": options.dim, "classes": options.classes}
            extra |= {"file_bytes": size, "limit_bytes": options.limit}
            record(f"rows {stage}", there, here, f"seconds per row at {few}", options.seed, **what, **extra)


if __name__ == "__main__":
    main()
