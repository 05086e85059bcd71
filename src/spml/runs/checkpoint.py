"""Files written whole or not at all, beside their place and renamed; those of a run have a JSON record in them."""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spml.errors import InputError

RECORD = "record"
_MASK = os.umask(0)  # it can be read by changing it only, and not while threads write
os.umask(_MASK)
_MODE = 0o666 & ~_MASK


@contextmanager
def written_beside(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A path to write to that takes the place of `path` at the end, or is gone if that fails.

    shared: other commands may write in the folder, too. Else one that was killed leaves what the next one replaces.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part" if shared else f".{path.name}.new")
    try:
        yield beside
        with writing(path):
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(beside, path)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What fails in here is the writing of `path`, and says so. What else is done between writes stays outside."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if "Detail: [errno" in reason:  # pyarrow's, which names the file beside
            reason = reason.rpartition("] ")[2].rstrip(".")
        if not path.parent.is_dir():
            reason = f"there is no folder {path.parent}"
        raise InputError(f"{path} cannot be written: {reason[:1].lower()}{reason[1:]}.") from error


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step: it is the old one or the new one, never half."""
    with written_beside(path) as beside, writing(path):
        beside.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Replace a safetensors file in one step; the record travels in its header."""
    _save(path, _copies(tensors), json.dumps(record, sort_keys=True))


File = tuple[Path, Mapping[str, Tensor], Mapping[str, Any]]
"""What `write_tensors` takes."""


class Writer:
    """`write_tensors` on a thread: the caller goes on as soon as the tensors are copied, and may change them.

    Files are written in order. What fails is said by the next call; as a context, it ends when all is written.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def write(self, *files: File) -> None:
        self.wait()  # before the copies: there are never those of two calls
        copies = [(path, _copies(tensors), json.dumps(record, sort_keys=True)) for path, tensors, record in files]
        self._thread = threading.Thread(target=self._write, args=(copies,))
        self._thread.start()

    def _write(self, files: list[tuple[Path, dict[str, Tensor], str]]) -> None:
        try:
            for file in files:
                _save(*file)
        except Exception as error:
            self._error = error

    def wait(self) -> None:
        """Until what was given is written."""
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with nullcontext() if kind is None else suppress(InputError):  # what ended the caller is said, not this
            self.wait()


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    plain = torch.contiguous_format
    return {name: tensor.detach().to("cpu", copy=True, memory_format=plain) for name, tensor in tensors.items()}


def _save(path: Path, tensors: dict[str, Tensor], record: str) -> None:
    with written_beside(path) as beside, writing(path):
        save_file(tensors, beside, metadata={RECORD: record})
        os.chmod(beside, _MODE)  # safetensors writes for its owner alone


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder for this process alone; one that is killed leaves nothing to clean up."""
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path, mine = folder / ".lock", False
    while not mine:
        with open(path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another command is working in {folder}: wait for it, or name another folder"
                ) from None
            except OSError:  # a file system without locks
                pass
            with suppress(FileNotFoundError):  # the command before this one took it away since it was opened
                mine = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            if mine:
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.unlink(path)


def read_json(path: Path, *keys: str) -> Any:
    """A JSON file of a run, which must have these keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except ValueError as error:
        raise InputError(f"{path} is not a file this program wrote ({error})") from None
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise InputError(f"{path} is not a file this program wrote ({key!r} is missing)")
    return content


def read_record(path: Path) -> dict[str, Any]:
    """The record alone, without reading the tensors."""
    return _read(path, tensors=False)[1]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the record of a file written by `write_tensors`."""
    return _read(path, tensors=True)


def _read(path: Path, tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {})[RECORD])
            names = list(file.keys()) if tensors else []
            return {name: file.get_tensor(name) for name in names}, record
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} is not a file this program wrote ({error})") from None


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state by parameter position."""

    def entries() -> Iterator[tuple[str, Tensor]]:
        for position, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                yield f"{position}.{name}", torch.as_tensor(value)

    return dict(entries())


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimiser_tensors`; a moment takes the memory layout of its parameter again."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        position, name = key.split(".", 1)
        like = parameters[int(position)]
        same_shape = tensor.shape == like.shape
        state.setdefault(int(position), {})[name] = torch.empty_like(like).copy_(tensor) if same_shape else tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
