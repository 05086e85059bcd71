"""Time and memory of loss, training step, average precision and recovery with 20 to 100,000 classes.

    python benchmarks/classes.py --record                 # appends to results/classes.csv and results/speed.csv
    python benchmarks/classes.py --classes 20,1000        # a quick try
    python benchmarks/classes.py --draw docs/images       # draw the curves from results/classes.csv
    python benchmarks/classes.py --average-precision      # 100,000 rows x 10,000 classes

Each measurement runs in a separate process with one thread. Bytes are its peak memory above the memory after imports
and inputs. The training step is compared with the same step in torch.nn.Linear, torch.optim.Adam and a dense loss.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from record import ROOT, command, commit, hardware, record
from spml.labels import Labels

TABLE = ROOT / "results" / "classes.csv"
COLUMNS = ("what", "classes", "rows", "seconds", "peak_bytes", "command", "commit", "hardware")
BATCH, DIM, STEPS = 256, 1280, 3
JUDGED_ROWS, JUDGED_DIM, RECOVERED_ROWS = 2_000, 64, 250
WHAT = {
    "loss an": "loss, AN",
    "loss annotator-em": "loss, annotator-em",
    "step an": "training step, AN",
    "step auto": "training step, auto",
    "step torch": "the same in plain torch",
    "average precision": "average precision",
    "recovery": "recovery",
}


def memory(which: str) -> int:
    """Resident memory of this process in bytes: VmRSS is the current value, VmHWM the peak."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def measured(run: Callable[[], float]) -> dict[str, float]:
    """The seconds that `run` returns, and its peak memory above the current value."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = memory("VmRSS")
    seconds = run()
    return {"seconds": seconds, "peak_bytes": memory("VmHWM") - before}


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def single(rows: int, classes: int) -> Labels:
    index = np.random.default_rng(0).integers(0, classes, rows)
    return Labels.from_indices(index, map(str, range(classes)))


def loss(name: str, classes: int) -> dict[str, float]:
    """Forward and backward pass of a batch."""
    from spml.methods import Clock, Problem, method

    labels = single(BATCH, classes)
    made = method(name)
    made.prepare(Problem(labels))
    logits = torch.randn(BATCH, classes, generator=torch.Generator().manual_seed(0)).requires_grad_()
    batch, rows = labels.batch(np.arange(BATCH)), torch.arange(BATCH)

    def run() -> float:
        return timed(lambda: made.objective(logits, batch, rows, Clock()).backward())

    first = measured(run)
    return {**first, "seconds": min(run() for _ in range(3))}


def step(name: str, classes: int) -> dict[str, float]:
    """A step of the linear trainer, measured as the extra time of STEPS more steps."""
    from spml.training.experiment import Experiment
    from spml.training.linear import train_heads

    x = np.random.default_rng(0).standard_normal((BATCH, DIM), np.float32)
    labels = single(BATCH, classes)

    def epochs(count: int) -> float:
        experiment = Experiment.linear(name, batch_size=BATCH, epochs=count)
        return timed(lambda: train_heads(x, labels, [experiment], progress=False))

    return measured(lambda: (epochs(1 + STEPS) - epochs(1)) / STEPS)


def plain_step(classes: int) -> dict[str, float]:
    """The same batch in plain PyTorch."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((BATCH, DIM), np.float32))
    labels = single(BATCH, classes)

    def run() -> float:
        head = torch.nn.Linear(DIM, classes)
        adam = torch.optim.Adam(head.parameters(), 1e-3)

        def one() -> None:
            target = (labels.batch(np.arange(BATCH)) > 0).float()
            cost = torch.nn.functional.binary_cross_entropy_with_logits(head(x), target)
            adam.zero_grad()
            cost.backward()
            adam.step()

        one()
        return sum(timed(one) for _ in range(STEPS)) / STEPS

    return measured(run)


def judge(classes: int, rows: int = JUDGED_ROWS) -> dict[str, float]:
    """Average precision of a head on labelled rows, logits included."""
    from spml.training.experiment import Experiment
    from spml.training.linear import HeadResult

    rng = np.random.default_rng(0)
    truth = single(rows, classes)
    weight = torch.from_numpy(rng.standard_normal((JUDGED_DIM, classes), np.float32))
    x = rng.standard_normal((rows, JUDGED_DIM), np.float32)
    head = HeadResult(Experiment.linear("an"), [], 1, 1, weight, torch.zeros(classes), {})
    return measured(lambda: timed(lambda: head.average_precision(x, truth)))


def recovery(classes: int) -> dict[str, float]:
    """Calibration, confidences, thresholds and the table of labels of a finished run."""
    from spml.recover import recover
    from spml.runs.folder import RunFolder

    rows, rng = RECOVERED_ROWS, np.random.default_rng(0)
    probabilities = rng.random((rows, classes), np.float32)
    probabilities **= 2 * max(1, classes // 20)  # a few labels per row
    parts = np.split(np.arange(rows), [8 * rows // 10])
    run = RunFolder(
        folder=Path("run"),
        record={"method": {"name": "an"}},
        best={},
        log=[],
        names=[str(row) for row in range(rows)],
        labels=single(rows, classes),
        truth=None,
        probabilities=probabilities,
        train=parts[0],
        validation=parts[1],
        test=np.zeros(0, np.int64),
        source={},
    )
    return measured(lambda: timed(lambda: recover(run).entries))


def measure(what: str, classes: int, rows: int | None) -> dict[str, float]:
    torch.set_num_threads(1)
    kind, _, name = what.partition(" ")
    if what == "step torch":
        return plain_step(classes)
    if kind in ("loss", "step"):
        return (loss if kind == "loss" else step)(name, classes)
    return judge(classes, rows or JUDGED_ROWS) if what == "average precision" else recovery(classes)


def in_child(what: str, classes: int, rows: int | None = None) -> dict[str, float]:
    child = [sys.executable, __file__, "--measure", what, "--classes", str(classes)]
    child += ["--rows", str(rows)] if rows else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(child, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{what} at {classes} classes: {done.stderr or f'ended by signal {-done.returncode}'}")
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(what: str) -> int:
    return {"average precision": JUDGED_ROWS, "recovery": RECOVERED_ROWS}.get(what, BATCH)


def compare(sizes: list[int], keep: bool) -> None:
    print(f"{'':26}{'classes':>9}{'rows':>8}{'seconds':>10}{'GiB':>8}")
    made = []
    for what, name in WHAT.items():
        for classes in sizes:
            found = in_child(what, classes)
            rows = rows_of(what)
            print(
                f"{name:26}{classes:9,}{rows:8,}{found['seconds']:10.4f}{found['peak_bytes'] / 2**30:8.2f}", flush=True
            )
            made.append({"what": what, "classes": classes, "rows": rows, **found})
    if not keep:
        return
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in made:
            plain = {"seconds": f"{row['seconds']:.6g}", "peak_bytes": int(row["peak_bytes"])}
            writer.writerow({**row, **plain, "command": command(), "commit": commit(), "hardware": hardware()})
    of = {(row["what"], row["classes"]): row for row in made}
    for classes in sizes:
        ours, theirs = of["step an", classes], of["step torch", classes]
        record(
            "classes training step",
            ours["seconds"],
            theirs["seconds"],
            "torch.nn.Linear and Adam",
            0,
            classes=classes,
            batch=BATCH,
            dim=DIM,
            peak_bytes=int(ours["peak_bytes"]),
            theirs_peak_bytes=int(theirs["peak_bytes"]),
        )


def draw(folder: Path) -> None:
    """Draw the table as two figures, with one line per operation."""
    from spml.report.axes import Axis, Plane
    from spml.report.markup import Html, tag
    from spml.report.theme import PALETTE

    with TABLE.open(newline="") as file:
        lines = list(csv.DictReader(file))
    shown = [what for what in WHAT if what != "step torch"]
    for column, unit, scale in (("seconds", "seconds", 1.0), ("peak_bytes", "GiB without the inputs", 2.0**-30)):
        points = {
            what: [
                (float(row["classes"]), max(scale * float(row[column]), 1e-4)) for row in lines if row["what"] == what
            ]
            for what in shown
        }
        flat = [point for of in points.values() for point in of]
        plane = Plane(
            Axis.over((x for x, _ in flat), "classes", log=True), Axis.over((y for _, y in flat), unit, log=True), 260
        )
        parts = []
        for place, (what, of) in enumerate(points.items()):
            ink = PALETTE[f"series-{place + 1}"][0]
            path = "M" + "L".join(f"{plane.at_x(x)} {plane.at_y(y)}" for x, y in of)
            parts.append(tag("path", d=path, fill="none", stroke=ink, stroke_width=2))
            parts.append(tag("text", WHAT[what], x=64, y=24 + 13 * place, fill=ink))
        quiet, grid = PALETTE["quiet"][0], PALETTE["grid"][0]
        look = f"text{{font:11px sans-serif;fill:{quiet}}}.grid,.tick{{stroke:{grid}}}svg{{background:#fff}}"
        style = tag("style", Html(look))
        picture = str(plane.drawing(style, *parts, says=f"{unit} by the number of classes"))
        picture = picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        # A colour set on an element takes precedence over the style sheet.
        picture = re.sub(r'(<text [^>]*?)fill="(#\w+)"', r'\1style="fill:\2"', picture)
        (folder / f"classes-{column.replace('_', '-')}.svg").write_text(picture + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", default="20,1000,10000,100000")
    parser.add_argument("--record", action="store_true", help="write results/classes.csv, append to results/speed.csv")
    parser.add_argument("--average-precision", action="store_true", help="measure only 100,000 rows x 10,000 classes")
    parser.add_argument("--draw", type=Path, help="folder for the figures")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [int(part) for part in options.classes.split(",")]
    if options.measure:
        print(json.dumps(measure(options.measure, sizes[0], options.rows)))
    elif options.draw:
        draw(options.draw)
    elif options.average_precision:
        rows, classes = 100_000, 10_000
        found = in_child("average precision", classes, rows)
        dense = rows * classes * 5
        print(
            f"average precision of {rows:,} x {classes:,}: {found['seconds']:.1f} s, peak "
            f"{found['peak_bytes'] / 2**30:.2f} GiB; scores and truth alone would be {dense / 2**30:.2f} GiB"
        )
        if options.record:
            extra = {"rows": rows, "classes": classes, "peak_bytes": int(found["peak_bytes"]), "dense_bytes": dense}
            record("average_precision by class blocks", found["seconds"], None, "", 0, **extra)
    else:
        compare(sizes, options.record)


if __name__ == "__main__":
    main()
