"""Files of a run: text, JSON and tensors, always written atomically. Re-exports the writer and the lock."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spml.atomic import atomic_path as atomic_path
from spml.atomic import explain_write_errors as explain_write_errors
from spml.atomic import lock_folder as lock_folder
from spml.errors import InputError

_RECORD = "record"


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as temporary, explain_write_errors(path):
        temporary.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write a safetensors file atomically, with a JSON record in its header."""
    save_tensors(path, copy_tensors(tensors), json.dumps(record, sort_keys=True))


def copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies in CPU memory."""
    plain = torch.contiguous_format
    return {name: tensor.detach().to("cpu", copy=True, memory_format=plain) for name, tensor in tensors.items()}


def save_tensors(path: Path, tensors: dict[str, Tensor], record: str) -> None:
    """`write_tensors` of contiguous CPU tensors and an encoded record, without copying."""
    with atomic_path(path) as temporary, explain_write_errors(path):
        try:
            save_file(tensors, temporary, metadata={_RECORD: record})
        except SafetensorError as error:
            raise OSError(str(error)) from error


def read_json(path: Path, *keys: str) -> Any:
    """Read a JSON file of a run; raises `InputError` if it is missing, unreadable or lacks one of the keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except ValueError as error:
        raise InputError(f"{path} was not written by spml ({error})") from None
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise InputError(f"{path} was not written by spml ({key!r} is missing)")
    return content


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of a file written by `write_tensors`, without its tensors."""
    return _read(path, tensors=False)[1]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the record of a file written by `write_tensors`."""
    return _read(path, tensors=True)


def _read(path: Path, tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {})[_RECORD])
            names = list(file.keys()) if tensors else []
            return {name: file.get_tensor(name) for name in names}, record
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path} was not written by spml ({error})") from None
