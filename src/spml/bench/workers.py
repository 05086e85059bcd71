"""Several runs at a time, each in its own process: they share a GPU, or use one CPU core each."""

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
from spml.methods.registry import import_plugins, imported_plugins
from spml.training.device import choose_device

interrupted = threading.Event()
"""In a worker: set when the current task should end soon, with a checkpoint if it writes one."""


def in_workers(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    *,
    device: str,
    workers: int,
    abrupt: bool = False,
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks in worker processes, which import the same plug-ins as this process.

    If the caller stops iterating or is killed, `interrupted` is set in every worker, and all are waited for.

    Parameters
    ----------
    work : callable
        Called as `work(*task)` in a worker.
    tasks : sequence of tuple
    names : sequence of str
        One name per task, for error messages.
    device : {"auto", "cpu", "cuda"}
        On a CPU every worker uses one thread.
    workers : int
        Number of processes.
    abrupt : bool
        Interrupted workers exit at once, because nothing they do can be used later.

    Yields
    ------
    (int, object)
        The number of a task and its result, in the order in which they finish.

    Raises
    ------
    InputError
        If a task raises one, with the task's name; or if a worker is killed.
    """
    # The executors of the standard library hang if a worker is killed, in some versions forever.
    context = get_context("spawn")
    threads = 1 if choose_device(device).type == "cpu" else None
    waiting = deque(range(len(tasks)))
    busy: set[Connection] = set()
    processes: list[tuple[BaseProcess, Connection]] = []
    try:
        for _ in range(min(workers, len(tasks))):
            parent_end, worker_end = context.Pipe()
            never, lifeline = context.Pipe(duplex=False)  # nothing is sent: it closes with this process, or before
            process = context.Process(
                target=_serve, args=(worker_end, never, work, threads, abrupt, imported_plugins())
            )
            process.start()
            processes.append((process, lifeline))
            worker_end.close()  # so that the end of the worker is noticed
            never.close()
            busy.add(parent_end)
            _send(parent_end, waiting.popleft(), tasks)
        while busy:
            for worker in wait(list(busy)):
                assert isinstance(worker, Connection)
                number, result = _receive(worker, names, len(processes))
                if waiting:
                    _send(worker, waiting.popleft(), tasks)
                else:
                    busy.remove(worker)
                    worker.close()
                yield number, result
    finally:
        for end in (*busy, *(lifeline for _, lifeline in processes)):
            end.close()
        for ended, _ in processes:
            ended.join()


def _send(worker: Connection, number: int, tasks: Sequence[tuple[Any, ...]]) -> None:
    with suppress(OSError):  # the worker was just killed, which `_receive` reports
        worker.send((number, tasks[number]))


def _receive(worker: Connection, names: Sequence[str], workers: int) -> tuple[int, Any]:
    try:
        number, result, error = worker.recv()
    except (EOFError, OSError):
        raise InputError(
            f"One of {workers} workers was killed, probably because memory ran out. Use fewer --workers. Finished runs "
            "are kept"
        ) from None
    if isinstance(error, InputError):
        raise InputError(f"{names[number]}: {error}")
    if error is not None:
        raise error
    return number, result


def _serve(
    caller: Connection,
    lifeline: Connection,
    work: Callable[..., Any],
    threads: int | None,
    abrupt: bool,
    plugins: Sequence[str],
) -> None:
    """The main function of a worker: run tasks until the caller closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the caller handles it
    if threads:
        torch.set_num_threads(threads)
    threading.Thread(target=_watch, args=(lifeline, abrupt), daemon=True).start()
    while True:
        try:
            number, task = caller.recv()
            result, failure = None, None
            try:
                import_plugins(plugins)  # only once
                result = work(*task)
            except Exception as error:
                error.add_note(f"in a worker:\n{traceback.format_exc()}")
                failure = error
            caller.send((number, result, failure))
        except (EOFError, OSError, KeyboardInterrupt):  # the caller has ended, or the run was interrupted
            return


def _watch(lifeline: Connection, abrupt: bool) -> None:
    lifeline.poll(None)  # until it is closed
    if abrupt:
        os._exit(1)
    interrupted.set()
