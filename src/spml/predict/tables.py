"""Tables as inputs of a network: Parquet and CSV files, and tables in memory."""

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import compute, parquet

from spml.data.formats import columns
from spml.data.formats.column_names import list_names, row_label, usual_column
from spml.data.formats.embedded_images import holds_images
from spml.data.formats.table_files import check_table, read_table, without_guards
from spml.data.stores.decode import decode
from spml.data.stores.features import first_not_finite
from spml.errors import InputError
from spml.predict.blocks import InputBlock, InputRows, InputSpec, InputWarning


def open_table(path: Path, spec: InputSpec, label_column: str | None = None) -> InputRows:
    """Open a Parquet or CSV table of images, features or texts."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the table itself")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix.lower() in (".csv", ".tsv"):
        return _open_csv(path, spec, label_column)
    with parquet_errors(path):
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
    check_table(path, names, file.metadata.num_rows)
    reader = TableReader(path, file.schema_arrow, spec, label_column)
    if reader.id is not None:
        with parquet_errors(path):
            _check_ids(path, reader.id, parquet.read_table(path, columns=[reader.id])[reader.id])

    def blocks() -> Iterator[InputBlock]:
        start = 0
        with parquet_errors(path):  # a damaged page is found only when it is read
            for batch in file.iter_batches(spec.rows_per_block, columns=reader.columns):
                yield reader.block(pa.Table.from_batches([batch]), start)
                start += batch.num_rows

    return InputRows(file.metadata.num_rows, blocks())


def _open_csv(path: Path, spec: InputSpec, label_column: str | None) -> InputRows:
    texts = [*([label_column] if label_column else []), *(spec.columns if spec.texts else ())]
    table = read_table(path, texts=texts)
    usual = (usual_column(kind, table.column_names) for kind in ("id", "image", "label", "split"))
    roles = [name for name in (label_column, *usual) if name is not None and name in table.column_names]
    cells = [name for name in roles if not (spec.texts and name in spec.columns)]
    if spec.features is not None and not spec.texts and not spec.columns:  # a feature must not be left out silently
        columns.unused_columns(path, table, [*roles, *columns.feature_columns(table, roles)])
    return table_rows(path, without_guards(path, table, cells), spec, label_column)


def table_rows(path: Path, table: pa.Table, spec: InputSpec, label_column: str | None = None) -> InputRows:
    """Return the rows of a table in memory; `path` names it in errors."""
    reader, size = TableReader(path, table.schema, spec, label_column), spec.rows_per_block
    if reader.id is not None:
        _check_ids(path, reader.id, table[reader.id])
    starts = range(0, table.num_rows, size)
    return InputRows(table.num_rows, (reader.block(table.slice(start, size), start) for start in starts))


def _check_ids(path: Path, name: str, ids: pa.ChunkedArray) -> None:
    """Raise `InputError` if a row has no id, or two rows have the same: their labels could not be told apart."""
    hint = f"correct it, or rename column {name!r} if it does not name the rows"
    empty = np.flatnonzero(compute.is_null(ids).to_numpy())
    if len(empty):
        raise InputError(f"{path}: {row_label(int(empty[0]))}, column {name!r} is empty: {hint}")
    counts = compute.value_counts(ids)
    repeated = np.flatnonzero(counts.field("counts").to_numpy() > 1)
    if len(repeated):
        twice = counts.field("values")[int(repeated[0])].as_py()
        raise InputError(f"{path}: several rows have the id {twice!r:.100}: {hint}")


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into one that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{path} cannot be read as Parquet ({reason})") from error


class TableReader:
    """Read the rows of a Parquet or CSV table.

    Images are a column of paths relative to the table's folder or, in Parquet, a column of encoded images (bytes) or
    of Hugging Face's structs of `bytes` and `path`. Features and texts are found by the names of their columns in
    training; if the training data had no names, features are a column of lists or all numeric columns. A row is named
    by its id, else by its image path, else by its number.
    """

    def __init__(self, path: Path, schema: pa.Schema, spec: InputSpec, label_column: str | None = None) -> None:
        self.path, self.spec, self.label = path, spec, label_column
        self.folder = path if path.is_dir() else path.parent
        table, names = pa.Table.from_batches([], schema), schema.names  # `empty_table` cannot make all types
        if label_column is not None:
            columns.existing_column(path, table, "label_column", label_column)
        self.id = usual_column("id", names)
        if spec.image_size is None:
            labels = [label_column, *(usual_column(kind, names) for kind in ("label", "split"))]
            self.inputs = self._named_inputs(table, [name for name in (self.id, *labels) if name])
        else:
            embedded = [field.name for field in schema if holds_images(field.type)]
            image = columns.image_column(table, names, embedded)
            if image is None:
                raise InputError(f"{path}: none of the columns {', '.join(names)} holds images (paths or bytes)")
            self.inputs = [image]
        self.is_path = spec.image_size is not None and not holds_images(schema.field(self.inputs[0]).type)
        for column in (self.id, self.label, self.inputs[0] if self.is_path else None):
            if column is not None:
                self._texts(table, column)  # a wrong type is found without reading a row

    def _named_inputs(self, table: pa.Table, used: Sequence[str]) -> list[str]:
        """Return the columns of features or texts."""
        spec, names = self.spec, table.column_names
        if missing := [name for name in spec.columns if name not in names]:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(
                f"{self.path}: the column {missing[0]!r}{others} is missing; {spec.run} was trained on "
                f"{list_names(spec.columns)}"
            )
        if spec.texts:
            guess = columns.text_column(table, used, labels_known=False) or next(
                iter(columns.free_texts(table, used)), None
            )
            if not spec.columns and guess is None:
                raise InputError(f"{self.path}: none of the columns {list_names(names)} holds texts")
            return list(spec.columns) or [str(guess)]
        found = columns.feature_columns(table, used)
        if extra := [name for name in found if spec.columns and name not in spec.columns]:
            warnings.warn(
                f"{self.path}: {len(extra)} columns are ignored because {spec.run} was not trained on them: "
                f"{list_names(extra)}",
                InputWarning,
                stacklevel=2,
            )
        if not spec.columns and not found:
            raise InputError(f"{self.path}: no column contains numbers; its columns are {list_names(names)}")
        return list(spec.columns) or found

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        names = (self.id, self.label, *self.inputs)
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def has_names(self) -> bool:
        """Whether the table itself names its rows."""
        return self.id is not None or self.is_path

    def block(self, part: pa.Table, start: int = 0) -> InputBlock:
        """Return the block of these rows; `start` is the number of the first row."""
        rows = self.read(part, start)
        inputs = rows.tolist() if self.spec.texts else torch.from_numpy(rows)
        return InputBlock(self.names(part, start), inputs, self.observed(part))

    def names(self, part: pa.Table, start: int = 0) -> list[str]:
        if not self.has_names:
            return [str(row) for row in range(start, start + part.num_rows)]
        return self._texts(part, self.id or self.inputs[0])

    def observed(self, part: pa.Table) -> list[str | None] | None:
        """Each row's observed label; None without a label column."""
        if self.label is None:
            return None
        return [None if label is None else label.strip() for label in self._texts(part, self.label)]

    def read(self, part: pa.Table, start: int = 0) -> npt.NDArray[Any]:
        """Return the network's input: uint8 images (B, 3, S, S), float32 features (B, D), or texts (B,)."""
        if self.spec.texts:
            kind = part.schema.field(self.inputs[0]).type
            if not columns.is_text(kind):
                raise InputError(f"{self.path}: column {self.inputs[0]!r} holds {kind}, not texts")
            return np.array([text or "" for text in part[self.inputs[0]].to_pylist()], object)
        return self._features(part, start) if self.spec.image_size is None else self._images(part, start)

    def _texts(self, part: pa.Table, column: str) -> list[Any]:
        """Return the cells of a column of ids, labels or paths."""
        try:
            texts: list[Any] = compute.cast(part[column], pa.string()).to_pylist()
        except pa.ArrowException as error:
            role = "id" if column == self.id else "label" if column == self.label else "image"
            right = "a path, the bytes of a file, or a struct of `bytes` and `path`" if role == "image" else "a string"
            kind = part.schema.field(column).type
            raise InputError(f"{self.path}: column {column!r} holds {kind}: a row's {role} must be {right}") from error
        return texts

    def _images(self, part: pa.Table, start: int) -> npt.NDArray[np.uint8]:
        names, size, column = self.names(part, start), self.spec.image_size, self.inputs[0]
        assert size is not None
        cells = (
            self._texts(part, column) if self.is_path else [_file_content(cell) for cell in part[column].to_pylist()]
        )
        for row, (name, cell) in enumerate(zip(names, cells, strict=True), start):
            if not cell:
                called = f"row {name}" if name else row_label(row)
                raise InputError(f"{self.path}: {called} has no image: its column {column!r} is empty")

        def image(name: str, cell: str | bytes) -> npt.NDArray[np.uint8]:
            source = (
                cell if isinstance(cell, bytes) else self.folder / cell.strip().replace("\\", "/")
            )  # as in training
            called = f"{self.path}: row {name}" if isinstance(cell, bytes) else None
            return decode(source, size, self.spec.policy, name=called)

        with ThreadPoolExecutor() as pool:
            return np.stack(list(pool.map(image, names, cells)))

    def _features(self, part: pa.Table, start: int) -> npt.NDArray[np.float32]:
        matrix = columns.feature_matrix(self.path, part, self.inputs, start)
        self.spec.check_width(matrix.shape[1])
        if wrong := first_not_finite(torch.from_numpy(matrix)):
            name = self.names(part, start)[wrong[0]]
            raise InputError(f"{self.path}: row {name} has a feature that is not a finite number")
        return matrix


def _file_content(cell: Any) -> Any:
    """Return the bytes of a cell, or its path where it has no bytes."""
    if not isinstance(cell, dict):
        return cell
    return cell.get("path") if cell["bytes"] is None else cell["bytes"]
