"""Progress bars and interruption by signals."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import get_console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def progress_bar(name: str, total: int, completed: int = 0, *, visible: bool = True) -> Iterator[Callable[..., None]]:
    """Show a progress bar if `visible`; yield a function that takes a number of finished steps and a text to show."""
    with bars(visible) as bar:
        task = bar.add_task(name, total=total, completed=completed)
        yield lambda steps, text="": bar.update(task, advance=steps, description=f"{name} {text}")


def bars(visible: bool) -> Progress:
    """Progress bars with names, numbers and times."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), disable=not visible)


@contextmanager
def stage_display(visible: bool) -> Iterator[Callable[[str], None]]:
    """Show the current stage of a computation and its time; yield a function that takes the name of the stage.

    Where the output is not a terminal, every stage is a line.
    """
    console = get_console()
    if visible and not (console.is_terminal or console.is_jupyter):
        yield lambda text: print(f"  {text}", flush=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, disable=not visible, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text)


@contextmanager
def stop_on_signals(interrupted: threading.Event) -> Iterator[None]:
    """Set the event on Ctrl-C, SIGTERM and SIGHUP, unless they are ignored. Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    old = {number: signal.getsignal(number) for number in numbers}
    for number, handler in old.items():
        if handler is not signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, lambda *_: interrupted.set())
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
