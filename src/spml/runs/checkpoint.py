"""Checkpoints: the tensors of a training state, written in the background."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spml.errors import InputError
from spml.runs.files import copy_tensors, save_tensors

TensorFile = tuple[Path, Mapping[str, Tensor], Mapping[str, Any]]
"""The arguments of `write_tensors`: path, tensors, record."""


class BackgroundWriter:
    """`write_tensors` on a thread. `write` returns once the tensors are copied, so that they may change.

    Files are written in order. An error is raised by the next call. As a context manager it waits at the end until
    everything is written.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def write(self, *files: TensorFile) -> None:
        self.wait()  # before copying, so that only one set of copies exists at a time
        copies = [(path, copy_tensors(tensors), json.dumps(record, sort_keys=True)) for path, tensors, record in files]
        self._thread = threading.Thread(target=self._write, args=(copies,))
        self._thread.start()

    def _write(self, files: list[tuple[Path, dict[str, Tensor], str]]) -> None:
        try:
            for file in files:
                save_tensors(*file)
        except Exception as error:
            self._error = error

    def wait(self) -> None:
        """Wait until everything is written; raise what failed."""
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with nullcontext() if kind is None else suppress(InputError):  # report the caller's error rather than this one
            self.wait()


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's state by parameter position."""

    def entries() -> Iterator[tuple[str, Tensor]]:
        for position, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                yield f"{position}.{name}", torch.as_tensor(value)

    return dict(entries())


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimiser_tensors`. Each moment takes the memory layout of its parameter."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        position, name = key.split(".", 1)
        like = parameters[int(position)]
        same_shape = tensor.shape == like.shape
        state.setdefault(int(position), {})[name] = torch.empty_like(like).copy_(tensor) if same_shape else tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
