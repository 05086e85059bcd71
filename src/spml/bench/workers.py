"""Runs at one time, each in a process of its own: they share a GPU in turns, or take a core each."""

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from spml.errors import InputError
from spml.train.device import choose_device

interrupted = threading.Event()
"""Of a worker: once it is set, what runs shall end soon, with a checkpoint where it makes one."""


def in_workers(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    *,
    device: str,
    workers: int,
    abrupt: bool = False,
) -> Generator[tuple[int, Any], None, None]:
    """(number of a task, what `work(*task)` returned), as they finish. Bad input is said with its task's name.

    Where the caller goes no further, or is killed, `interrupted` is set in every worker; the last is waited for.
    abrupt: there a worker just ends, since nothing of what it does could be used later.
    """
    # An executor of the standard library hangs on a worker that was killed, in some versions for good.
    context = get_context("spawn")
    threads = 1 if choose_device(device).type == "cpu" else None
    waiting = deque(range(len(tasks)))
    busy: set[Connection] = set()
    crew: list[tuple[BaseProcess, Connection]] = []
    try:
        for _ in range(min(workers, len(tasks))):
            here, there = context.Pipe()
            never, lifeline = context.Pipe(duplex=False)  # nothing is sent: it ends when this process says so, or ends
            process = context.Process(target=_serve, args=(there, never, work, threads, abrupt))
            process.start()
            crew.append((process, lifeline))
            there.close()  # so that the worker's end is seen here
            never.close()
            busy.add(here)
            _tell(here, waiting.popleft(), tasks)
        while busy:
            for worker in wait(list(busy)):
                assert isinstance(worker, Connection)
                number, result = _answer(worker, names, len(crew))
                if waiting:
                    _tell(worker, waiting.popleft(), tasks)
                else:
                    busy.remove(worker)
                    worker.close()
                yield number, result
    finally:
        for end in (*busy, *(lifeline for _, lifeline in crew)):
            end.close()
        for ended, _ in crew:
            ended.join()


def _tell(worker: Connection, number: int, tasks: Sequence[tuple[Any, ...]]) -> None:
    with suppress(OSError):  # it was killed just now, which its answer will show
        worker.send((number, tasks[number]))


def _answer(worker: Connection, names: Sequence[str], workers: int) -> tuple[int, Any]:
    try:
        number, result, error = worker.recv()
    except (EOFError, OSError):
        raise InputError(
            f"one of {workers} processes was killed, most likely for want of memory: take fewer --workers; "
            "what has finished stays"
        ) from None
    if isinstance(error, InputError):
        raise InputError(f"{names[number]}: {error}")
    if error is not None:
        raise error
    return number, result


def _serve(
    caller: Connection, lifeline: Connection, work: Callable[..., Any], threads: int | None, abrupt: bool
) -> None:
    """A worker: does what it is told until nobody is there to tell it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal; the caller says what follows
    if threads:
        torch.set_num_threads(threads)
    threading.Thread(target=_watch, args=(lifeline, abrupt), daemon=True).start()
    while True:
        try:
            number, task = caller.recv()
            result, failure = None, None
            try:
                result = work(*task)
            except Exception as error:
                error.add_note(f"in a worker:\n{traceback.format_exc()}")
                failure = error
            caller.send((number, result, failure))
        except (EOFError, OSError, KeyboardInterrupt):  # the caller is gone, or the run was interrupted
            return


def _watch(lifeline: Connection, abrupt: bool) -> None:
    lifeline.poll(None)  # until it ends
    if abrupt:
        os._exit(1)
    interrupted.set()
