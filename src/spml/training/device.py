"""The device to train on, its random generators and the allocator's settings."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from spml.errors import InputError
from spml.type_checks import check_type

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt


def choose_device(name: str = "auto") -> torch.device:
    """Parse a device name; "auto" is the GPU if there is one.

    Raises
    ------
    InputError
        If the name is not a device, or the machine does not have it. Apple's GPUs (mps) are not tested.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_type("device", name, str)
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (number and (kind != "cuda" or not number.isdecimal())):
        raise InputError(f"device must be auto, cpu, cuda, cuda:NUMBER or mps, not {name!r}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError("device is mps, but this machine or build of torch does not support it: use cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {name}, but no GPU is available: use cpu")
    if kind == "cuda" and number and not 0 <= int(number) < torch.cuda.device_count():
        raise InputError(f"device is {name}, but this machine has {torch.cuda.device_count()} GPUs, from cuda:0")
    return torch.device(name)


def default_precision(device: torch.device) -> str:
    """bf16 on a GPU, and on a CPU with instructions for it, which trains almost twice as fast; otherwise 32."""
    if device.type == "cpu":
        find: Callable[[], dict[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)  # not in torch 2.6
        return "bf16" if find().get("avx512_bf16") or find().get("amx_bf16") else "32"
    return "bf16" if device.type == "cuda" else "32"


def step_seed(seed: int, step: int, stream: int) -> int:
    """Return an independent seed for every combination of seed, step and stream."""
    return int(np.random.SeedSequence([seed, step, stream]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators a step can use. `torch.manual_seed` seeds every backend, which takes half a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep freed blocks for the next step instead of returning them to the kernel.

    Every step on a CPU frees and allocates the same blocks of some megabytes. Zeroing their pages again took a sixth of
    the quickstart's time. Other C libraries are not affected.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, 32 << 20)  # glibc's maximum
    mallopt(_TRIM_THRESHOLD, 512 << 20)
