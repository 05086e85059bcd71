"""The log of a run: one JSON object per line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spml.atomic import check_target, explain_write_errors
from spml.errors import InputError, install_command
from spml.json_text import parse_json
from spml.runs.files import write_text
from spml.runs.schema import LOG_LINES, LogLine, check_schema, damaged

Tracker = Callable[[dict[str, float], int], None]
"""Receives the numbers of every line and its step."""


def _tensorboard(folder: Path) -> Tracker:
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Any = SummaryWriter(str(folder))

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def _trackio(folder: Path) -> Tracker:
    import trackio

    run: Any = trackio.init(project="spml", name=folder.name)
    return lambda values, step: run.log(values, step=step)


_TRACKERS: dict[str, Callable[[Path], Tracker]] = {"tensorboard": _tensorboard, "trackio": _trackio}


def tracker(name: str, folder: Path) -> Tracker:
    """Return a tracker by name. Trackers need the extra `track`."""
    if name not in _TRACKERS:
        raise InputError(f"track must be one of {', '.join(_TRACKERS)}, not {name!r}")
    try:
        return _TRACKERS[name](folder)
    except ImportError:
        raise InputError(f"track={name} needs an additional package: {install_command('track')}") from None


class RunLog:
    """The lines of `log.jsonl`. A resumed run drops those written after its checkpoint."""

    def __init__(self, path: Path, trackers: tuple[Tracker, ...] = ()) -> None:
        self.path, self.trackers = path, trackers

    def cut(self, step: int) -> None:
        """Drop all lines of steps after `step`."""
        if self.path.exists():
            kept = [line for line in read_log(self.path) if line["step"] <= step]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def has(self, kind: str) -> bool:
        """Return whether there is a line of this kind."""
        return self.path.exists() and any(line["kind"] == kind for line in read_log(self.path))

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a line, and give its numbers to the trackers."""
        check_target(self.path)
        with explain_write_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        for track in self.trackers:
            track(numbers, step)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return all complete lines of a log. A killed run may leave its last line incomplete."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise damaged(path, error) from None
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 1):
        try:
            line = parse_json(text)
        except ValueError as error:
            if number == len(texts):
                break
            raise damaged(path, f"line {number}: {error}") from None
        kind = check_schema(path, line, LogLine, f"line {number}: ")["kind"]
        check_schema(path, line, LOG_LINES.get(kind, LogLine), f"line {number}: ")
        lines.append(line)
    return lines
