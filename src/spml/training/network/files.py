"""The files a training writes: run.json, the log, checkpoints and the best epoch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spml.errors import InputError
from spml.labels import Labels
from spml.runs.checkpoint import BackgroundWriter, TensorFile
from spml.runs.files import read_json, read_tensors, write_text
from spml.runs.log import RunLog, Tracker
from spml.runs.schema import CheckpointRecord, RunRecord, damaged
from spml.training.distributed import Processes
from spml.training.network.state import TrainingState

Record = dict[str, Any]


class TrainingFiles:
    """The folder of a training. All processes read it; only the first one writes."""

    def __init__(
        self,
        folder: Path,
        state: TrainingState,
        record: Callable[[], Record],
        processes: Processes,
        trackers: tuple[Tracker, ...],
    ) -> None:
        self.folder, self.state, self.record, self.processes = folder, state, record, processes
        self.log = RunLog(folder / "log.jsonl", trackers if processes.first else ())
        self.writer = BackgroundWriter()
        self.checkpoint = folder / "last.safetensors"

    def open(self, labels: Labels, prepare: Callable[[], None]) -> None:
        """Load the checkpoint of a run with the same settings; without one, call `prepare` and write the first."""
        path = self.folder / "run.json"
        if path.exists():
            refuse_other_settings(path, self.record())
        elif self.processes.first:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(self.record(), indent=2))
        if self.checkpoint.exists():
            tensors, record = read_tensors(self.checkpoint, CheckpointRecord)
            if record["labels"] != labels.fingerprint():  # its per-row memory would be meaningless
                raise InputError(
                    f"{self.checkpoint} belongs to another data set: its labels differ from the current ones"
                )
            try:
                self.state.load(tensors, record)
            except (RuntimeError, KeyError, ValueError, IndexError) as error:
                raise damaged(self.checkpoint, f"its tensors do not fit this training: {error}") from None
        else:
            prepare()
            self.save()
        if self.processes.first:
            self.log.cut(self.state.step)
        self.processes.wait()

    def save(self, *before: TensorFile) -> None:
        """Write a checkpoint, after these files."""
        if self.processes.first:
            record = {**self.state.progress(), "labels": self.record()["data"]["labels"]}
            self.writer.write(*before, (self.checkpoint, self.state.tensors(), record))

    def best_epoch(self) -> list[TensorFile]:
        """Return the files of the best epoch, which is the current one."""
        record = {**self.record(), "best": self.state.best}
        network = self.state.networks()[self.state.best["weights"]]
        return [
            (self.folder / "best-memory.safetensors", self.state.method.state_dict(), record),
            (self.folder / "best.safetensors", network.state_dict(), record),
        ]

    def forget_checkpoint(self) -> None:
        """Delete the checkpoint, so that a run with other settings may start in this folder."""
        if self.processes.first:
            self.writer.wait()
            self.checkpoint.unlink(missing_ok=True)

    def write_log(self, kind: str, **values: Any) -> None:
        """Append a line to the log."""
        if self.processes.first:
            self.log.write(kind, self.state.step, **values)


_DATA = {  # what a changed fingerprint means
    "data.source": "the rows or their files have changed",
    "data.labels": "the training labels have changed",
    "data.validation": "the held-out labels have changed",
}


def refuse_other_settings(path: Path, record: Record) -> None:
    """Raise `InputError` if a run was started with other settings than these, and name the differences."""

    def flat(value: Any, name: str = "") -> Record:
        if isinstance(value, dict):
            parts = [flat(v, f"{name}.{key}" if name else key) for key, v in value.items()]
            return {k: v for part in parts for k, v in part.items()}
        return {name: value}

    old = flat({key: value for key, value in read_json(path, RunRecord).items() if key != "files"})
    new = flat(json.loads(json.dumps(record)))
    differing = [n for n in sorted(old.keys() | new.keys()) if old.get(n) != new.get(n)]
    differing.sort(key=lambda name: (name != "method.name", name not in _DATA))  # the most informative ones first
    if differing:
        changes = "; ".join(_DATA.get(n) or f"{n} was {old.get(n)!r}, now {new.get(n)!r}" for n in differing[:5])
        others = f"; and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise InputError(
            f"{path.parent} was started with other settings: {changes}{others}. Use the same settings or another folder"
        )
