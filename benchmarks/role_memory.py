"""Memory and time of ROLE's label estimates: dense (one number per row and class, with Adam), factorised and 16-bit.

    python benchmarks/role_memory.py --record              # memory and time of a step at 200,000 and 1,000,000 rows
    python benchmarks/role_memory.py --data ../shared/data/voc12     # the mAP of each

Each estimator is measured in a separate process with one thread. Bytes are its peak memory above the start, with
the method prepared and some steps done. Dense Adam is measured with the smaller number of rows; for the larger one both
values are extrapolated, as they are proportional to the rows.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from record import record

DENSE = "role"
METHODS = (DENSE, "role-factorised", "role-16bit")
STEPS = 8


def memory(which: str) -> int:
    """Resident memory of this process in bytes: VmRSS is the current value, VmHWM the peak."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def measure(name: str, rows: int, classes: int, batch: int) -> dict[str, float]:
    """Seconds of a step (objective, gradient, update of the estimates) and bytes."""
    from spml.labels import Labels
    from spml.methods import Clock, Problem, method

    torch.set_num_threads(1)
    labels = Labels.from_indices(np.arange(rows) % classes, map(str, range(classes)))
    torch.optim.Adam([torch.zeros(1)], fused=True)  # imports a compiler, whose memory does not count
    before = memory("VmRSS")
    made = method(name)
    made.prepare(Problem(labels, k=2.0))
    own = list(made.parameters())
    adam = torch.optim.Adam(own, 1e-2, fused=True) if own else None
    generator = torch.Generator().manual_seed(0)
    seconds = []
    for step in range(STEPS):
        some = torch.randint(0, rows, (batch,), generator=generator).unique()
        logits = torch.randn(len(some), classes, generator=generator, requires_grad=True)
        known = labels.batch(some)
        start = time.perf_counter()
        made.objective(logits, known, some, Clock(1, 1, step, STEPS)).backward()
        if adam is not None:
            adam.step()
            adam.zero_grad()
        made.after_step(1e-3)
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds[2:]), "peak_bytes": memory("VmHWM") - before}


def in_child(name: str, rows: int, options: argparse.Namespace) -> dict[str, float]:
    child = [sys.executable, __file__, "--measure", name, "--rows", str(rows)]
    child += ["--classes", str(options.classes), "--batch", str(options.batch)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(child, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} at {rows} rows: {done.stderr or f'ended by signal {-done.returncode}'}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(options: argparse.Namespace) -> None:
    few, many = (int(part) for part in options.rows.split(","))
    print(f"{'':18}{'rows':>11}{'ms/step':>12}{'GiB':>9}{'':4}{options.classes:,} classes, batch {options.batch}")
    dense: dict[str, float] = {}
    for rows in (few, many):
        found = {name: in_child(name, rows, options) for name in METHODS if name != DENSE or rows == few}
        if DENSE not in found:
            found[DENSE] = {name: value * rows / few for name, value in dense.items()}
        dense = found[DENSE]
        for name in METHODS:
            one = found[name]
            how = "computed" if name == DENSE and rows != few else ""
            print(f"{name:18}{rows:11,}{1e3 * one['seconds']:12.1f}{one['peak_bytes'] / 2**30:9.2f}    {how}")
            if options.record and name != DENSE:
                record(
                    f"role estimates {name}",
                    one["seconds"],
                    dense["seconds"],
                    "role (dense Adam)" + (", computed from fewer rows" if rows != few else ""),
                    0,
                    rows=rows,
                    classes=options.classes,
                    batch=options.batch,
                    peak_bytes=int(one["peak_bytes"]),
                    theirs_peak_bytes=int(dense["peak_bytes"]),
                )


def accuracy(options: argparse.Namespace) -> None:
    """Test mAP on features in the linear protocol; learning rate and batch size are chosen by validation."""
    from heads_grid import heads_grid
    from spml.data import open_data

    rates = tuple(float(part) for part in options.learning_rates.split(","))
    start = time.perf_counter()
    rows = heads_grid(
        open_data(options.data, features=True),
        {name: {} for name in METHODS},
        learning_rates=rates,
        seeds=(0, 1, 2),
        epochs=options.epochs,
        k=options.k,
        progress=sys.stderr.isatty(),
    )
    seconds = time.perf_counter() - start
    scores = {name: [100 * row["test_map"] for row in rows if row["method"] == name] for name in METHODS}
    dense = statistics.mean(scores[DENSE])
    print(f"test mAP on {options.data.name}, three seeds, {seconds:.0f} s")
    for name, values in scores.items():
        chosen = next(row for row in rows if row["method"] == name)
        each = " ".join(f"{value:.2f}" for value in values)
        print(
            f"{name:18}{statistics.mean(values):8.2f}{statistics.mean(values) - dense:+8.2f}   ({each}; rate "
            f"{chosen['learning_rate']:g}, batch {chosen['batch_size']})"
        )
        if options.record and name != DENSE:
            record(
                f"role accuracy {name}",
                seconds,
                None,
                "",
                0,
                data=options.data.name,
                seeds=3,
                test_map=f"{statistics.mean(values):.2f}",
                dense_test_map=f"{dense:.2f}",
                difference=f"{statistics.mean(values) - dense:+.2f}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="200000,1000000", help="two numbers of rows")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--data", type=Path, help="measure the mAP on this pack of features instead")
    parser.add_argument("--k", type=float, default=1.5, help="average number of positives per row, for --data")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--learning-rates", default="0.01,0.001,0.0001,0.00001")
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, int(options.rows), options.classes, options.batch)))
    elif options.data:
        accuracy(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
