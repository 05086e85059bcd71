"""Record measurements in results/speed.csv: one row each, with both times, command, commit, hardware and seed."""

import csv
import shlex
import sys
from pathlib import Path

from spml.bench.origin import commit, hardware

__all__ = ["SPEED", "command", "commit", "hardware", "record"]

ROOT = Path(__file__).resolve().parents[1]
SPEED = ROOT / "results" / "speed.csv"
COLUMNS = (
    "benchmark",
    "command",
    "commit",
    "hardware",
    "seed",
    "ours_seconds",
    "theirs_seconds",
    "theirs",
    "ratio",
    "extra",
)


def record(
    benchmark: str,
    ours: float,
    theirs: float | None,
    their_name: str,
    seed: int,
    *,
    path: Path = SPEED,
    device: str = "cpu",
    **extra: object,
) -> None:
    """Append one measurement. `theirs` is None if nothing is compared; `extra` becomes `name=value` pairs."""
    row = {
        "benchmark": benchmark,
        "command": command(),
        "commit": commit(),
        "hardware": hardware(device),
        "seed": seed,
        "ours_seconds": f"{ours:.6g}",
        "theirs_seconds": "" if theirs is None else f"{theirs:.6g}",
        "theirs": their_name,
        "ratio": "" if theirs is None else f"{theirs / ours:.2f}",
        "extra": " ".join(f"{name}={value}" for name, value in extra.items()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def command() -> str:
    """The running command, with its script relative to the repository."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else Path(script.name)
    return shlex.join(["python", str(name), *sys.argv[1:]])
