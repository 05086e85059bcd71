"""One row a measurement in results/speed.csv: both sides, and the command, commit, hardware and seed behind them."""

import csv
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

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
    """Append one measurement, of one side alone where `theirs` is None; `extra` becomes `name=value` pairs."""
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
    """The command that is running, its script relative to the repository."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else Path(script.name)
    return shlex.join(["python", str(name), *sys.argv[1:]])


def commit() -> str:
    """The short commit of the checkout, with + where files differ from it; 'unknown' without git."""
    try:
        short = _git("rev-parse", "--short", "HEAD")
        return short + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def hardware(device: str = "cpu") -> str:
    """The GPU's name, or the CPU's model and the cores this process may use."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = " ".join(names[0].split()) if names else model
    return f"{model}, {cores} cores"
