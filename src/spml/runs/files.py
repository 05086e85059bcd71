"""Files of a run: text, JSON and tensors, always written atomically. Re-exports the writer and the lock."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from spml.atomic import atomic_path as atomic_path
from spml.atomic import explain_write_errors as explain_write_errors
from spml.atomic import lock_folder as lock_folder
from spml.errors import InputError
from spml.json_text import parse_json
from spml.runs.schema import check_schema, damaged
from spml.runs.written import digest as digest

_RECORD = "record"
T = TypeVar("T")


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
    write_safetensors(path, tensors, {_RECORD: record})


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file atomically."""
    with atomic_path(path) as temporary, explain_write_errors(path):
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:  # it hides the error of the operating system in its text
            if number := re.search(r"\bos error (\d+)|\bOs { code: (\d+)", str(error)):  # by version
                code = int(number[1] or number[2])
                raise OSError(code, os.strerror(code)) from error
            raise


def read_json(path: Path, schema: type[T]) -> T:
    """Read a JSON file; raises `InputError` if it is missing, unreadable or does not fit the schema."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, error) from None
    return check_schema(path, content, schema)


def read_record(path: Path, schema: type[T]) -> T:
    """Read the record of a file written by `write_tensors`, without its tensors."""
    return _read(path, schema, tensors=False)[1]


def read_tensors(path: Path, schema: Any = dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """Read the tensors and the record of a file written by `write_tensors`."""
    return _read(path, schema, tensors=True)


def _read(path: Path, schema: type[T], tensors: bool) -> tuple[dict[str, Tensor], T]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            record = parse_json((file.metadata() or {})[_RECORD])
            names = list(file.keys()) if tensors else []
            content = {name: file.get_tensor(name) for name in names}
    except KeyError:
        raise damaged(path, "it has no record") from None
    except (SafetensorError, ValueError) as error:
        raise damaged(path, error) from None
    return content, check_schema(path, record, schema, "the record: ")


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load a state dict that was read from a file; raises `InputError` if it does not fit."""
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise damaged(path, f"its tensors do not fit the network: {' '.join(str(error).split())[:200]}") from None
