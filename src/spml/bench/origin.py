"""Where a row of results comes from: command, commit and hardware."""

import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch


def origin_of(device: str) -> dict[str, str]:
    """Return the columns of origin, which every row of results has."""
    return {"command": command(), "commit": commit(), "hardware": hardware(device)}


def command() -> str:
    """Return the command line of this process, without passwords."""
    name = Path(sys.argv[0]).name
    return without_password(shlex.join(["spml" if name in ("__main__.py", "cli.py") else name, *sys.argv[1:]]))


def without_password(text: str) -> str:
    """Replace passwords in addresses by ***."""
    text = re.sub(r"(://[^/@:\s]*:)\S*@", r"\1***@", text)
    return re.sub(r"([?&]password=)[^&\s]*", r"\1***", text)


def commit() -> str:
    """Return the short commit of the package's checkout, with + if files differ; "unknown" without a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return "unknown"

    def git(*arguments: str) -> str:
        completed = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return completed.stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def hardware(device: str = "cpu") -> str:
    """Return the name of the GPU, or the model of the CPU and the number of cores that this process may use."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = " ".join(names[0].split()) if names else model
    return f"{model}, {cores} cores"
