"""Progress bars and interruption by signals."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(name: str, total: int, completed: int, visible: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar if `visible`; yields a function that advances it by one step."""
    if not visible:
        yield lambda text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn()) as bar:
        task = bar.add_task(name, total=total, completed=completed)
        yield lambda text: bar.update(task, advance=1, description=f"{name} {text}")


@contextmanager
def stop_on_signals(interrupted: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set the event. Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {s: signal.signal(s, lambda *_: interrupted.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
