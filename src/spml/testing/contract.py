"""The contract of a method as one function, and its checks that train: resuming, and two processes."""

import copy
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from inspect import getdoc
from pathlib import Path

import torch

from spml.errors import InputError
from spml.methods import Method, method
from spml.methods.plugin_errors import as_raised
from spml.methods.registry import import_plugins, imported_plugins
from spml.runs.files import read_tensors
from spml.runs.schema import CheckpointRecord
from spml.testing import checks
from spml.testing.tiny import MakeMethod, Stopped, run_bytes, tiny_run
from spml.training.distributed import end_process


def check_method(make: MakeMethod | Method | str) -> None:
    """Check that a method keeps the contract; for the tests of a plug-in.

    Contract 6 (two processes compute what one computes) starts processes: see `check_two_processes`.

    Parameters
    ----------
    make : class, function, Method or str
        A method class, a function that creates the method, a method, or the name of a registered one.

    Raises
    ------
    AssertionError
        With a sentence that names what is broken. An error that the method raises is its cause.
    InputError
        If the name is not registered, or the method was not prepared.

    Examples
    --------
    >>> check_method("em")
    """
    if isinstance(make, str):
        make = partial(method, make)
    elif isinstance(make, Method):
        make = partial(copy.deepcopy, make)
    checked = make()
    if not isinstance(checked, Method):
        raise AssertionError(f"check_method got {make!r}, which creates a {type(checked).__name__}, not a method")
    for check in _CHECKS:
        try:
            with as_raised():
                check(make)
        except (AssertionError, InputError):
            raise
        except Exception as error:
            raise AssertionError(_explain(checked, check, error)) from error


def _explain(method: Method, check: Callable[[MakeMethod], None], error: Exception) -> str:
    """Where a method raised an error, and the usual reason."""
    text = f"{method.name} raised {type(error).__name__} ({error}) while this was checked: {getdoc(check)}"
    if check is checks.check_heads:
        text += (
            " With several heads the logits have a dimension more than the labels: choose entries with torch.where, "
            "not with a mask as an index."
        )
    elif type(method).objective is Method.objective:
        text += f" Its loss receives one view for each of Needs(views={method.needs.views})."
    return text


def check_resume(make: MakeMethod, stops: tuple[int, ...] = (1, 4, 8, 15)) -> None:
    """5. A run that is killed and resumed ends with the same bytes as one that is not."""
    with tempfile.TemporaryDirectory() as temporary:
        whole, broken = Path(temporary, "whole"), Path(temporary, "broken")
        tiny_run(make, whole).fit()
        for stop in stops:
            try:
                tiny_run(make, broken, stop, checkpoint_seconds=0.0).fit()
            except Stopped:
                continue
        tiny_run(make, broken, checkpoint_seconds=0.0).fit()
        assert run_bytes(whole) == run_bytes(broken), f"{make().name} does not resume to the same bytes"


_CHECKS = (
    *(checks.check_form, checks.check_memory, checks.check_observed_labels, checks.check_truth_closed),
    *(checks.check_permutations, checks.check_extreme_logits, check_resume, checks.check_odd_batches),
    *(checks.check_cost, checks.check_heads, checks.check_splits),
)


def check_two_processes(names: Sequence[str]) -> None:
    """Check contract 6: two processes compute what one computes.

    Parameters
    ----------
    names : sequence of str
        Registered methods. They are trained in the same two processes, which import the plug-ins of this one.

    Raises
    ------
    AssertionError
        If the weights or the state of a method differ.
    """
    with tempfile.TemporaryDirectory() as temporary:
        arguments = (list(names), temporary, imported_plugins())
        torch.multiprocessing.spawn(_one_of_two, arguments, nprocs=2)  # type: ignore[attr-defined]
        for name in names:
            alone, together = Path(temporary, "alone", name), Path(temporary, "together", name)
            tiny_run(partial(method, name), alone).fit()
            _compare(name, alone, together)


def _one_of_two(rank: int, names: list[str], temporary: str, plugins: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    import_plugins(plugins)
    os.environ.update(WORLD_SIZE="2", RANK=str(rank))
    # The processes find each other through a file, because a port might be in use.
    torch.distributed.init_process_group("gloo", f"file://{temporary}/meeting", rank=rank, world_size=2)
    for name in names:
        tiny_run(partial(method, name), Path(temporary, "together", name)).fit()
    end_process()


def _compare(name: str, alone: Path, together: Path) -> None:
    ones, twos = (read_tensors(run / "last.safetensors", CheckpointRecord)[0] for run in (alone, together))
    for key, value in ones.items():
        # A sum in another order may round a 16-bit number the other way.
        tolerance = 4e-3 if value.dtype in (torch.float16, torch.bfloat16) else 1e-4
        close = torch.allclose(value.double(), twos[key].double(), rtol=tolerance, atol=tolerance / 10, equal_nan=True)
        assert close, f"{name}: {key} differs between one process and two"
