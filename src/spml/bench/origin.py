"""What made a row of results: the command, the commit and the hardware."""

import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch


def made_by(device: str) -> dict[str, str]:
    """The columns that every row of results carries."""
    return {"command": command(), "commit": commit(), "hardware": hardware(device)}


def command() -> str:
    """The command that is running, without the password of a storage it names."""
    name = Path(sys.argv[0]).name
    return without_password(shlex.join(["spml" if name in ("__main__.py", "cli.py") else name, *sys.argv[1:]]))


def without_password(text: str) -> str:
    """The text with *** for the passwords of addresses in it."""
    text = re.sub(r"(://[^/@:\s]*:)\S*@", r"\1***@", text)
    return re.sub(r"([?&]password=)[^&\s]*", r"\1***", text)


def commit() -> str:
    """The short commit of the checkout this package lies in, with + where files differ; 'unknown' outside one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return "unknown"

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


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
