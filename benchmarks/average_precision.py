"""Average precision of every class: this package, scikit-learn class by class, and torchmetrics.

    python benchmarks/average_precision.py                  # 40,137 x 80, COCO's validation set
    python benchmarks/average_precision.py --device cuda
    python benchmarks/average_precision.py --large          # also the peak memory at 1,000,000 x 100

All three get the same scores and must agree before anything is timed. With --device cuda the scores are on the GPU
for this package and torchmetrics, and in host memory for scikit-learn.
"""

import argparse
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from record import SPEED, hardware, record
from spml.metrics import average_precision

LARGE = (1_000_000, 100)


def tables(rows: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sigmoid scores in float32 and int8 truth with about 3 % positives, a different share in every class.

    Filled in slices, so that creating them needs almost no memory beyond their own.
    """
    rng = np.random.default_rng(seed)
    share = np.minimum(rng.gamma(1.0, 0.03, classes), 0.5)
    scores = np.empty((rows, classes), np.float32)
    targets = np.empty((rows, classes), np.int8)
    for start in range(0, rows, 10_000):
        part = slice(start, min(start + 10_000, rows))
        shape = (part.stop - part.start, classes)
        targets[part] = rng.random(shape) < share
        scores[part] = 1 / (1 + np.exp(-(rng.normal(-3.0, 2.0, shape) + 3.0 * targets[part])))
    targets[np.arange(classes) % rows, np.arange(classes)] = 1  # the libraries differ on classes without positives
    return torch.from_numpy(scores), torch.from_numpy(targets)


def sides(scores: Tensor, targets: Tensor) -> dict[str, Callable[[], np.ndarray]]:
    """The functions to compare. Each starts from inputs in its own form and returns one number per class."""
    from sklearn.metrics import average_precision_score
    from torchmetrics.classification import MultilabelAveragePrecision

    host_scores, host_targets = scores.cpu().numpy(), targets.cpu().numpy()
    wide = targets.long()  # torchmetrics needs integers; the conversion is not timed
    classes = scores.shape[1]
    # Without its input checks, which would only slow it down.
    metric = MultilabelAveragePrecision(classes, average=None, validate_args=False).to(scores.device)

    def torchmetrics_all() -> np.ndarray:
        metric.reset()
        metric.update(scores, wide)
        return metric.compute().cpu().numpy()

    return {
        "spml": lambda: average_precision(scores, targets).cpu().numpy(),
        "scikit-learn": lambda: np.array(
            [average_precision_score(host_targets[:, c], host_scores[:, c]) for c in range(classes)]
        ),
        "torchmetrics": torchmetrics_all,
    }


def timed(runs: dict[str, Callable[[], np.ndarray]], repeat: int) -> dict[str, float]:
    """Median seconds of each function. They take turns, so that other load on the machine affects all of them.

    Every function returns its result to the host, which synchronises the device.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def compare(rows: int, classes: int, device: str, repeat: int, seed: int, out: Path | None) -> None:
    scores, targets = (table.to(device) for table in tables(rows, classes, seed))
    runs = sides(scores, targets)
    found = {name: run() for name, run in runs.items()}  # also warms up every function
    exact = float(np.abs(found["spml"] - found["scikit-learn"]).max())
    rough = float(np.abs(found["spml"] - found["torchmetrics"]).max())
    if not (exact <= 1e-12 and rough <= 1e-4):  # torchmetrics adds in float32
        raise SystemExit(f"the sides disagree: by {exact:g} with scikit-learn, {rough:g} with torchmetrics")
    seconds = timed(runs, repeat)

    print(f"average precision, {rows:,} x {classes}, float32, {hardware(device)}, median of {repeat}")
    print(f"{'':14}{'seconds':>10}{'ratio':>8}")
    for name, value in seconds.items():
        print(f"{name:14}{value:10.4f}{value / seconds['spml']:8.1f}")
    print(f"largest difference from scikit-learn {exact:.1e}, from torchmetrics {rough:.1e}")
    if out is not None:
        name = min((n for n in seconds if n != "spml"), key=seconds.__getitem__)
        record(
            "average_precision",
            seconds["spml"],
            seconds[name],
            name,
            seed,
            path=out,
            device=device,
            rows=rows,
            classes=classes,
            device_type=device,
            **{f"{n}_seconds": f"{s:.6g}" for n, s in seconds.items()},
            largest_difference=f"{exact:.1e}",
        )


def resident(which: str) -> int:
    """Resident memory of this process in bytes: VmRSS is the current value, VmHWM the peak.

    The peak of getrusage survives exec, so in a child it may be the parent's. It is used only where /proc is missing.
    """
    status = Path("/proc/self/status")
    line = re.search(rf"{which}:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * (int(line[1]) if line else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def measure_large(device: str, seed: int) -> None:
    """Run in a separate process: print seconds, bytes of the inputs, and the peak memory above the start."""
    cuda = device.startswith("cuda")
    average_precision(*(table.to(device) for table in tables(10, 2, seed)))
    before = torch.cuda.memory_allocated(device) if cuda else resident("VmRSS")
    scores, targets = (table.to(device) for table in tables(*LARGE, seed))
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    average_precision(scores, targets).cpu()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(device) if cuda else resident("VmHWM")
    print(seconds, scores.nbytes + targets.nbytes, peak - before)


def large(device: str, seed: int, out: Path | None) -> None:
    child = [sys.executable, __file__, "--measure-large", "--device", device, "--seed", str(seed)]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, inputs, peak = (float(word) for word in done.stdout.split())
    rows, classes = LARGE
    print(
        f"{rows:,} x {classes} on {device}: {seconds:.2f} s, inputs {inputs / 2**20:,.0f} MiB, "
        f"peak {peak / 2**20:,.0f} MiB = {peak / inputs:.2f} times the inputs"
    )
    if out is not None:
        record(
            "average_precision_memory",
            seconds,
            None,
            "",
            seed,
            path=out,
            device=device,
            rows=rows,
            classes=classes,
            device_type=device,
            input_bytes=int(inputs),
            peak_bytes=int(peak),
            peak_over_inputs=f"{peak / inputs:.2f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=40_137)
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="also measure the peak memory at 1,000,000 x 100")
    parser.add_argument("--out", type=Path, help=f"append to this table, such as {SPEED.parent.name}/{SPEED.name}")
    parser.add_argument("--measure-large", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure_large:
        measure_large(options.device, options.seed)
        return
    compare(options.rows, options.classes, options.device, options.repeat, options.seed, options.out)
    if options.large:
        large(options.device, options.seed, options.out)


if __name__ == "__main__":
    main()
