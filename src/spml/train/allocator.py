"""How the C library keeps memory that a step frees and the next one takes again."""

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for the next step instead of giving them back to the kernel at once.

    A step on a CPU frees and takes the same blocks of some megabytes every time; clearing their pages anew took a
    sixth of the quickstart. Other C libraries are left alone.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
    mallopt(_TRIM_THRESHOLD, 512 << 20)
