"""Labels for new rows from a trained run: images, feature matrices or parquet tables of any length.

A block of rows is read, labelled and written before the next one is read: neither the inputs nor the labels are ever
all in memory. No GPU and no training data is needed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import compute, csv, parquet
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from spml.data.formats import columns
from spml.data.formats.folder import hidden
from spml.data.stores.features import FeatureStore, first_not_finite
from spml.data.stores.images import SUFFIXES, ImageStore, decode
from spml.errors import InputError
from spml.models import Classifier
from spml.recover import Calibration
from spml.recover import recover as recover_labels
from spml.runs.files import atomic_path, explain_write_errors, read_json
from spml.runs.folder import best_network, check_output_path, open_run
from spml.train.device import choose_device, keep_freed_memory

FORMATS = (".csv", ".parquet", ".jsonl")
IMAGE_ROWS, FEATURE_ROWS = 32, 4096  # rows of a block

_LINES = 1 << 16  # lines of a group of a parquet file
_TABLES = 16  # tables of lines that wait to be one


class Block(NamedTuple):
    """Some rows: their names, what the network takes of them, and which label of each is known, None without any."""

    names: list[str]
    inputs: torch.Tensor
    known: list[str | None] | None = None


def predict_files(
    run: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    threshold: float = 0.5,
    top: int = 1,
    device: str = "auto",
    recover: bool = False,
    label_column: str | None = None,
    progress: bool = False,
) -> int:
    """Write the labels of all inputs; returns how many rows there were.

    inputs: image files and folders of them; or one `.npy` feature matrix; or one `.parquet` table (`TableRows`).
    recover: labels as `spml recover` finds them (`Labeller`), not those of probability `threshold` and the `top`.
    label_column: of a table, the column of the label that is known of each row, for `recover`.
    """
    if out.suffix not in FORMATS:
        raise InputError(f"{out}: the file must end in {', '.join(FORMATS)}")
    check_label_column(label_column, recover)
    check_output_path(out, run)
    if out.resolve() in [path.resolve() for path in inputs]:
        raise InputError(f"--out {out} is what shall be labelled: name another file")
    label = Labeller(run, threshold=threshold, top=top, device=device, recover=recover)
    count, parts = blocks(inputs, label, label_column)
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*shown, disable=not progress) as bar, _writer(out, label.schema) as write:
        task = bar.add_task("rows", total=count)
        for block in parts:
            write(label(block))
            bar.advance(task, len(block.names))
    return count


def check_label_column(label_column: str | None, recover: bool) -> None:
    if label_column is not None and not recover:
        raise InputError("a label column is what is known of the rows, which only recover uses: ask for it too")


class Labeller:
    """A run's network, and what it says of a block of rows: one line a label.

    With `recover` the probabilities become confidences by the run's own calibration, given the label that is known of
    a row if one is, and a label is believed present from its class's threshold on: what `spml recover` does for the
    rows that were trained on. Without, labels of at least `threshold` are listed, and the `top` most probable.
    """

    def __init__(
        self, run: Path, *, threshold: float = 0.5, top: int = 1, device: str = "auto", recover: bool = False
    ) -> None:
        if not (run / "best.safetensors").exists():
            raise InputError(f"{run} is not a finished run: there is no best.safetensors in it")
        self.run, self.threshold, self.top = run, threshold, top
        network = best_network(run)
        self.image_size: int | None = network.description["image_size"] if isinstance(network, Classifier) else None
        self.dim: int | None = None if self.image_size else network.description["features"]
        self.device = choose_device(device)
        self.network: nn.Module = network.to(self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.classes: list[str] = read_json(run / "run.json", "classes")["classes"]
        self._index = {name: place for place, name in enumerate(self.classes)}
        self.calibration: Calibration | None = None
        if recover:
            recovered = recover_labels(open_run(run))
            self.calibration, self.thresholds = recovered.calibration, recovered.thresholds

    @property
    def schema(self) -> pa.Schema:
        """The lines' columns."""
        name = ("image" if self.image_size else "row", pa.string())
        if self.calibration is None:
            return pa.schema([name, ("label", pa.string()), ("probability", pa.float64())])
        numbers = [(column, pa.float64()) for column in ("confidence", "probability", "threshold")]
        return pa.schema([name, ("label", pa.string()), ("observed", pa.bool_()), *numbers])

    @torch.inference_mode()
    def probabilities(self, inputs: torch.Tensor) -> npt.NDArray[np.float32]:
        """(B, L)"""
        moved = inputs.to(self.device)
        if moved.dim() == 4:
            moved = moved.contiguous(memory_format=torch.channels_last)
        elif moved.shape[1] != self.dim:
            raise InputError(f"{self.run} was trained on {self.dim} features a row, not {moved.shape[1]}")
        result: npt.NDArray[np.float32] = torch.sigmoid(self.network(moved).logits.float()).cpu().numpy()
        return result

    def __call__(self, block: Block) -> pa.Table:
        probability = self.probabilities(block.inputs)
        if np.isnan(probability.max(initial=0)):
            wrong = int(np.isnan(probability).any(axis=1).argmax())
            raise InputError(
                f"row {block.names[wrong]}: the network of {self.run} answers with no number: are its inputs like "
                "those it was trained on?"
            )
        if self.calibration is None:
            order = np.argsort(-probability, axis=1, kind="stable")
            sorted_ = np.take_along_axis(probability, order, axis=1)
            row, place = np.nonzero((sorted_ >= self.threshold) | (np.arange(len(self.classes)) < self.top))
            label = order[row, place]
            values: list[Any] = [probability[row, label]]
        else:
            known = self._known(block.known, len(probability))
            confidence = self.calibration.confidences(probability, known)
            row, label = np.nonzero((known > 0) | (confidence >= self.thresholds))
            order = np.lexsort((-confidence[row, label], known[row, label] <= 0, row))
            row, label = row[order], label[order]
            numbers = (confidence[row, label], probability[row, label], self.thresholds[label])
            values = [known[row, label] > 0, *numbers]
        texts = [pa.array(block.names, pa.string()).take(row), pa.array(self.classes, pa.string()).take(label)]
        rounded = [value if value.dtype == bool else value.astype(np.float64).round(6) for value in values]
        return pa.table([*texts, *rounded], schema=self.schema)

    def _known(self, names: list[str | None] | None, rows: int) -> npt.NDArray[np.int8]:
        known = np.zeros((rows, len(self.classes)), np.int8)
        for row, name in enumerate(names or ()):
            if name is None or name == "":
                continue
            if name not in self._index:
                raise InputError(f"the label {name!r} is none of the run's {len(self.classes)} classes")
            known[row, self._index[name]] = 1
        return known


Rows = tuple[int, Iterator[Block]]
"""How many rows there are, and they themselves, a block at a time."""


def blocks(inputs: Sequence[Path], label: Labeller, label_column: str | None = None) -> Rows:
    """The rows of the inputs."""
    suffixes = {path.suffix.lower() for path in inputs}
    if suffixes & {".npy", ".parquet", ".pq"}:
        if len(inputs) > 1:
            raise InputError("a feature matrix or a table is labelled alone: give one of them, and nothing else")
        return _of_matrix(inputs[0], label) if suffixes == {".npy"} else _of_table(inputs[0], label, label_column)
    if label.image_size is None:
        raise InputError(f"{label.run} was trained on features, not on images: give a .npy or .parquet file of them")
    return _of_images(list_images(inputs), label.image_size)


def _of_images(files: list[Path], size: int) -> Rows:
    store = ImageStore(files, size, cache_limit=0)

    def block(number: int) -> Block:
        rows = np.arange(number * IMAGE_ROWS, min((number + 1) * IMAGE_ROWS, len(files)))
        return Block([str(files[row]) for row in rows], store.batch(rows))

    return len(files), map(block, store.reading(np.arange(len(files)), IMAGE_ROWS))


def _of_matrix(path: Path, label: Labeller) -> Rows:
    if label.image_size is not None:
        raise InputError(f"{label.run} was trained on images, not on features: {path} cannot be labelled by it")
    store = FeatureStore(path)

    def block(number: int) -> Block:
        rows = np.arange(number * FEATURE_ROWS, min((number + 1) * FEATURE_ROWS, len(store)))
        return Block([str(row) for row in rows.tolist()], store.finite_batch(rows))

    return len(store), map(block, store.reading(np.arange(len(store)), FEATURE_ROWS))


def _of_table(path: Path, label: Labeller, label_column: str | None) -> Rows:
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    with readable(path):
        file = parquet.ParquetFile(path)
    reader = TableRows(path, file.schema_arrow, label.image_size, label_column)

    def parts() -> Iterator[Block]:
        start = 0
        with readable(path):  # damage inside of the file shows only here
            for batch in file.iter_batches(IMAGE_ROWS if label.image_size else FEATURE_ROWS, columns=reader.columns):
                yield reader.block(pa.Table.from_batches([batch]), start)
                start += batch.num_rows

    return file.metadata.num_rows, parts()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Says of a parquet file, or folder of them, that it cannot be read, where pyarrow finds so inside."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{path}: this cannot be read as parquet ({reason})") from error


class TableRows:
    """Which columns of a parquet table are taken, and the rows of a part of it.

    Images are a column of paths, relative to the table's folder (`path`, or that of the file `path`), or of the files'
    bytes, or of Hugging Face's structs of `bytes` and, where those are null, `path`. Features are a column of lists,
    or all columns of numbers. A row's name is its id, or its cell in a column of paths, or else its number.
    """

    def __init__(self, path: Path, schema: pa.Schema, image_size: int | None, label_column: str | None = None) -> None:
        self.path, self.image_size, self.label = path, image_size, label_column
        self.folder = path if path.is_dir() else path.parent
        table, names = schema.empty_table(), schema.names
        if label_column is not None:
            columns.chosen(path, table, "label_column", label_column)
        self.id = columns.usual("id", names)
        if image_size is None:
            labels = [label_column, *(columns.usual(kind, names) for kind in ("label", "split"))]
            self.inputs = columns.feature_columns(path, table, [name for name in (self.id, *labels) if name])
        else:
            files = [field.name for field in schema if _is_file(field.type)]
            image = columns.usual("image", names) or (files[0] if files else None)
            if image is None:
                raise InputError(f"{path}: none of the columns {', '.join(names)} holds images (paths or bytes)")
            self.inputs = [image]
        self.is_path = image_size is not None and not _is_file(schema.field(self.inputs[0]).type)
        for column in (self.id, self.label, self.inputs[0] if self.is_path else None):
            if column is not None:
                self._texts(table, column)  # what type cannot be one shows without any row

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        wanted = (self.id, self.label, *self.inputs)
        return list(dict.fromkeys(name for name in wanted if name is not None))

    @property
    def has_names(self) -> bool:
        """Whether rows are named by the table itself, not by their number."""
        return self.id is not None or self.is_path

    def names(self, part: pa.Table, start: int = 0) -> list[str]:
        """The rows' names; `start` is the number of the first."""
        if not self.has_names:
            return [str(row) for row in range(start, start + part.num_rows)]
        return self._texts(part, self.id or self.inputs[0])

    def known(self, part: pa.Table) -> list[str | None] | None:
        """The label that is known of each row."""
        return None if self.label is None else self._texts(part, self.label)

    def _texts(self, part: pa.Table, column: str) -> list[Any]:
        """The cells of a column of ids, labels or paths."""
        try:
            texts: list[Any] = compute.cast(part[column], pa.string()).to_pylist()
        except pa.ArrowException as error:
            role = "id" if column == self.id else "label" if column == self.label else "image"
            right = "a path, the bytes of a file, or a struct of `bytes` and `path`" if role == "image" else "one text"
            kind = part.schema.field(column).type
            raise InputError(f"{self.path}: column {column!r} holds {kind}: a row's {role} must be {right}") from error
        return texts

    def read(self, part: pa.Table, start: int = 0) -> npt.NDArray[Any]:
        """What the network takes: uint8 images (B, 3, S, S), or float32 features (B, D)."""
        if self.image_size is None:
            return self._features(part, start)
        names, size, column = self.names(part, start), self.image_size, self.inputs[0]
        cells = self._texts(part, column) if self.is_path else [_content(cell) for cell in part[column].to_pylist()]
        for name, cell in zip(names, cells, strict=True):
            if not cell:
                raise InputError(f"{self.path}: row {name} has no image: column {column!r} is empty there")

        def image(name: str, cell: str | bytes) -> npt.NDArray[np.uint8]:
            source = cell if isinstance(cell, bytes) else self.folder / cell
            return decode(source, size, name=f"{self.path}: row {name}" if isinstance(cell, bytes) else None)

        with ThreadPoolExecutor() as pool:
            return np.stack(list(pool.map(image, names, cells)))

    def _features(self, part: pa.Table, start: int) -> npt.NDArray[np.float32]:
        if len(self.inputs) == 1 and not pa.types.is_primitive(part.schema.field(self.inputs[0]).type):
            lists = part[self.inputs[0]].combine_chunks()
            flat = compute.list_flatten(lists).to_numpy(zero_copy_only=False)
            if lists.null_count or len(flat) % len(lists) or not _even(lists):
                raise InputError(
                    f"{self.path}: the lists of column {self.inputs[0]!r} differ in length, first from row {start} on"
                )
            matrix = np.array(flat, np.float32).reshape(len(lists), -1)
        else:
            matrix = np.stack([part[name].to_numpy() for name in self.inputs], axis=1).astype(np.float32)
        if wrong := first_not_finite(torch.from_numpy(matrix)):
            name = self.names(part, start)[wrong[0]]
            raise InputError(f"{self.path}: row {name} has a feature that is no finite number")
        return matrix

    def block(self, part: pa.Table, start: int = 0) -> Block:
        """All of it."""
        return Block(self.names(part, start), torch.from_numpy(self.read(part, start)), self.known(part))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_file(kind: Any) -> bool:
    """Whether cells are the bytes of files, or Hugging Face's structs of those and a path."""
    fields = list(kind) if pa.types.is_struct(kind) else []
    return _is_bytes(kind) or any(field.name == "bytes" and _is_bytes(field.type) for field in fields)


def _content(cell: Any) -> Any:
    """A file's bytes, or its path, from such a cell."""
    if not isinstance(cell, dict):
        return cell
    return cell.get("path") if cell["bytes"] is None else cell["bytes"]


def _even(lists: pa.Array) -> bool:
    lengths = compute.list_value_length(lists)
    return bool(compute.min(lengths).as_py() == compute.max(lengths).as_py())


def list_images(paths: Sequence[Path]) -> list[Path]:
    """The image files among these paths and inside these folders, in order."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(
                file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and not hidden(file.name)
            )
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"{path}: there is no such file or folder")
    if not files:
        raise InputError(f"there is no image in {', '.join(map(str, paths))}")
    for file in files:
        readable_name = str(file).encode(errors="replace").decode()
        if readable_name != str(file):
            raise InputError(f"{readable_name}: the name is not valid UTF-8; rename it")
    return files


@contextmanager
def _writer(out: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """A function that appends lines to a file which takes the place of `out` at the end, or is gone if that fails."""
    waiting: list[pa.Table] = []

    def flush() -> None:
        if waiting:
            with explain_write_errors(out):
                append(pa.concat_tables(waiting))
            waiting.clear()

    def write(lines: pa.Table) -> None:
        waiting.append(lines)
        if len(waiting) == _TABLES:  # else each keeps the memory around it from being one piece for the next block
            waiting[:] = [pa.concat_tables(waiting).combine_chunks()]
        if sum(len(table) for table in waiting) >= _LINES:
            flush()

    with atomic_path(out) as temporary, ExitStack() as open_file:
        with explain_write_errors(out):
            append = open_file.enter_context(_sink(temporary, out.suffix, schema))
        yield write
        flush()
        with explain_write_errors(out):
            open_file.close()


@contextmanager
def _sink(path: Path, suffix: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    if suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            yield lambda lines: file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in lines.to_pylist())
    else:
        with (csv.CSVWriter if suffix == ".csv" else parquet.ParquetWriter)(path, schema) as writer:
            yield writer.write_table
