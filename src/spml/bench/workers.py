"""Runs at one time, each in a process of its own: they share a GPU in turns, or take a core each."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.synchronize import Event
from typing import Any

import torch

from ..errors import InputError
from ..train.loop import choose_device

interrupted = threading.Event()
"""Of a worker: once it is set, what runs shall end soon, with a checkpoint where it makes one."""

_working = threading.Lock()  # of a worker: held while it runs something


def in_workers(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    *,
    device: str,
    workers: int,
    abrupt: bool = False,
) -> Iterator[tuple[int, Any]]:
    """(number of a task, what `work(*task)` returned), as they finish. An error is said with its task's name.

    Where the caller goes no further, `interrupted` is set in every worker, and the last of them is waited for.
    abrupt: there a worker just ends, since nothing of what it does could be used later.
    """
    context = get_context("spawn")
    stop, threads = context.Event(), 1 if choose_device(device).type == "cpu" else None
    pool = ProcessPoolExecutor(workers, context, _begin, (stop, threads, abrupt))
    futures = {pool.submit(_do, work, task): number for number, task in enumerate(tasks)}
    try:
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except InputError as error:
                raise InputError(f"{names[futures[future]]}: {error}") from None
            except BrokenProcessPool:
                raise InputError(
                    f"one of {workers} processes was killed, most likely for want of memory: take fewer --workers; "
                    "what has finished stays"
                ) from None
    finally:
        if not all(future.done() for future in futures):
            stop.set()
        pool.shutdown(cancel_futures=True)


def _begin(stop: Event, threads: int | None, abrupt: bool) -> None:
    """A worker whose run ends when `stop` is set. A signal would not do: one that waits for work holds a lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal; the caller says what follows
    if threads:
        torch.set_num_threads(threads)
    caller = parent_process()

    def watch() -> None:
        while not stop.wait(1) and caller is not None and caller.is_alive():
            pass
        interrupted.set()
        if abrupt:
            os._exit(1)
        if not stop.is_set():  # the caller was killed: nobody else will end this process
            with _working:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do(work: Callable[..., Any], task: tuple[Any, ...]) -> Any:
    with _working:
        if interrupted.is_set():
            raise KeyboardInterrupt
        return work(*task)
