"""How much memory this process can allocate, also in a container and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from spml.errors import InputError

_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Bytes of memory this process can allocate now, within its control groups; 4 GiB where that is unknown."""
    free = 4 * 2**30
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration, IndexError):
        pass
    return min([free, *_free_in_groups()])


def free_device_memory(device: torch.device) -> int:
    """Bytes of free memory of a CUDA device; without limit for any other device."""
    if device.type != "cuda":
        return 2**62
    if not torch.cuda.is_available():
        raise InputError(f"the device is {str(device)!r}, but no CUDA device is available: use 'cpu'.")
    return torch.cuda.mem_get_info(device)[0]


def _free_in_groups() -> Iterator[int]:
    """Memory left in each control group of this process and in their parents, version 2 and 1.

    In a container the path may point outside it. Then only the root exists, which is the container's own group.
    Inactive pages of files count as free.
    """
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit_file, used_file, idle = _GROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, idle = _GROUPS / "memory", "total_inactive_file"
            limit_file, used_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        parts = Path(path.strip("/")).parts
        for depth in range(len(parts) + 1):
            group = root.joinpath(*parts[:depth])
            try:
                limit, used = ((group / name).read_text().strip() for name in (limit_file, used_file))
                rows = (group / "memory.stat").read_text().splitlines()
                held = dict(row.partition(" ")[::2] for row in rows)
                if limit != "max":
                    yield max(0, int(limit) - int(used) + int(held.get(idle, 0)))
            except (OSError, ValueError):
                continue
