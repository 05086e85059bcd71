"""The end of every command: errors, signals and crashes become one sentence and an exit code."""

import contextlib
import os
import platform
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from spml.errors import InputError, missing_package, one_line

INPUT_ERROR = 2
CRASHED = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_LONGEST = 1500
"""Characters of a message; only names make it longer."""
_NO_MEMORY = "memory ran out: use a smaller --batch-size or --size, or fewer --workers"
_LOST_PEER = ("gloo", "nccl", "closed by peer", "reset by peer", "tcpstore", "heartbeat")


class _Interruption(KeyboardInterrupt):
    """After a plain `KeyboardInterrupt` inside `exec`, as imports run it, `python -m` ends by SIGINT, not by 130."""


def run_guarded(command: Callable[[], object], rename: Callable[[str], str] = str) -> int:
    """Run a command and return its exit code; print at most one sentence about what went wrong.

    Parameters
    ----------
    command : callable
        May raise anything.
    rename : callable
        Applied to the messages of input errors.

    Returns
    -------
    int
        0, 2 for input errors, 130 after an interruption, 70 for an unexpected error, or the code of a `SystemExit`.
    """
    with _signals() as received:
        try:
            command()
        except BaseException as error:
            if received or isinstance(error, KeyboardInterrupt) or getattr(error, "code", None) == INTERRUPTED:
                return _print("Interrupted. Run the same command to resume.", INTERRUPTED)
            return _report(error, rename)
    return 0


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Raise `KeyboardInterrupt` for signals that end a process; the list receives their numbers.

    An import or a library may turn the exception into another one, or drop it: the second signal ends the process.
    """
    received: list[int] = []

    def interrupt(number: int, frame: types.FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(_print("Interrupted. Run the same command to resume.", INTERRUPTED))
        raise _Interruption

    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    old = {number: signal.getsignal(number) for number in numbers}
    for number, handler in old.items():
        if handler is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _report(error: BaseException, rename: Callable[[str], str]) -> int:
    """Print what a command raised."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            return _print(f"spml: {error.code}", INPUT_ERROR)
        return int(error.code or 0)
    if isinstance(error, InputError):
        return _print(f"spml: {rename(str(error))}", INPUT_ERROR)
    if isinstance(error, ModuleNotFoundError) and (known := missing_package(error, "this command")) is not error:
        return _print(f"spml: {known}", INPUT_ERROR)
    if isinstance(error, BrokenPipeError):  # as in `spml methods | head`
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        return _print(
            f"spml: {error.object!a:.300} is not Unicode text: rename the file, or save it as UTF-8", INPUT_ERROR
        )
    text = " ".join(str(error).split())
    if _out_of_memory(error, text):
        return _print(f"spml: {_NO_MEMORY}", INPUT_ERROR)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and any(word in text.lower() for word in _LOST_PEER):
        return _print("spml: another process of this training ended. Run the same command to resume.", 1)
    if isinstance(error, RuntimeError) and "Symlink loop from" in text:  # Path.resolve of Python 3.12 and earlier
        return _print(f"spml: {text.partition('from ')[2]} is a symbolic link to itself", INPUT_ERROR)
    if isinstance(error, OSError) and error.strerror:
        return _print(f"spml: {error.filename or 'reading or writing a file'}: {error.strerror}", INPUT_ERROR)
    return _crash(error, text)


def _out_of_memory(error: BaseException, text: str) -> bool:
    # torch raises its own class for GPUs, and a RuntimeError for memory of the CPU
    named = isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "ArrowMemoryError")
    return named or "can't allocate memory" in text or "not enough memory" in text


def _crash(error: BaseException, text: str) -> int:
    """Report an error that nobody foresaw; its traceback goes to a file."""
    details = "".join(traceback.format_exception(error))
    if os.environ.get("SPML_DEBUG") == "1":
        print(details, file=sys.stderr)
    log = _write_crash_log(details, sys.argv[1:])
    where = f"the file {log}" if log else "the output of the same command with SPML_DEBUG=1"
    kind = f"{type(error).__name__}: {text[:200]}".rstrip(": ")
    return _print(
        f"spml: unexpected error ({kind}). This is a bug in spml: please report it to its maintainers, with {where}.",
        CRASHED,
    )


def _write_crash_log(details: str, arguments: Sequence[str]) -> Path | None:
    """Write a traceback to a new file in the user's cache folder; None if that is not possible."""
    from spml import __version__

    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(home, "spml", f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log")
    header = f"spml {__version__}, Python {platform.python_version()}, {platform.platform()}\nspml {list(arguments)}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(f"{header}\n{details}")
    except OSError:
        return None
    return path


def _print(message: str, code: int) -> int:
    if os.environ.get("RANK", "0") == "0" or code != INTERRUPTED:  # every process of torchrun is interrupted
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            line = one_line(message).encode("utf-8", "replace").decode()
            print(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…", file=sys.stderr, flush=True)
    return code
