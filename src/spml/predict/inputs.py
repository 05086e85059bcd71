"""Turn paths, folders, PIL images, arrays, tensors, texts, feature rows and tables into blocks a network can process.

Blocks are read one after the other, so neither the inputs nor the predictions ever have to fit into memory.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import compute, parquet
from scipy.sparse import issparse

from spml.data.dataset import TABLES
from spml.data.formats import columns
from spml.data.formats.embedded_images import holds_images
from spml.data.formats.folder import TEXT_SUFFIXES, files_below
from spml.data.stores.decode import SUFFIXES, Policy, decode
from spml.data.stores.features import FeatureStore, first_not_finite
from spml.data.stores.images import ImageStore
from spml.data.stores.texts import read_text
from spml.errors import InputError

IMAGES_PER_BLOCK, FEATURE_ROWS_PER_BLOCK, TEXTS_PER_BLOCK = 32, 4096, 512
_FEATURES_PER_BLOCK = 2**25

_MATRICES = (".npy", ".npz")

Rows: TypeAlias = npt.NDArray[np.int64]
Input: TypeAlias = str | PathLike[str] | Image.Image | npt.NDArray[Any] | torch.Tensor
Inputs: TypeAlias = Input | Sequence[Input] | Sequence[float] | Sequence[Sequence[float]]
"""What `Run.predict` and `Run.embed` accept: one input, or a sequence of inputs."""


class InputWarning(UserWarning):
    """Inputs can be used, but may not be what they were in training."""


class InputBlock(NamedTuple):
    """A few rows: their names, the network's input, and each row's observed label where a label column was given."""

    names: list[str]
    inputs: torch.Tensor | list[str]
    """Images, feature rows or texts."""
    observed: list[str | None] | None = None


class InputRows(NamedTuple):
    """The number of rows, and the rows in blocks."""

    total: int
    blocks: Iterator[InputBlock]


@dataclass(frozen=True)
class InputSpec:
    """The input a network expects: images of a given size, rows of features, or texts."""

    run: str
    """Name of the run, for error messages."""
    image_size: int | None
    features: int | None
    policy: Policy = "squash"
    texts: bool = False
    columns: tuple[str, ...] = ()
    """The columns of a table that features or texts came from in training."""

    @property
    def rows_per_block(self) -> int:
        if self.image_size is not None:
            return IMAGES_PER_BLOCK
        if self.texts:
            return TEXTS_PER_BLOCK
        return max(1, min(FEATURE_ROWS_PER_BLOCK, _FEATURES_PER_BLOCK // (self.features or 1)))

    def check_width(self, width: int) -> None:
        if self.features is not None and width != self.features:
            raise InputError(f"{self.run} was trained on {self.features} features per row, not {width}")


def open_files(paths: Sequence[Path], spec: InputSpec, label_column: str | None = None) -> InputRows:
    """Open files and folders of images or texts, or one feature matrix (.npy, .npz), or one table."""
    suffixes = {path.suffix.lower() for path in paths}
    if suffixes & {*_MATRICES, *TABLES}:
        if len(paths) > 1:
            raise InputError("a feature matrix or table must be the only input: predict each of them separately")
        return _open_matrix(paths[0], spec) if suffixes & {*_MATRICES} else _open_table(paths[0], spec, label_column)
    if spec.texts:
        files = list_files(paths, TEXT_SUFFIXES, "text")
        return _text_blocks([str(file) for file in files], (read_text(file) for file in files))
    if spec.image_size is None:
        raise InputError(f"{spec.run} was trained on features, not on images: give it a .npy, .csv or .parquet file")
    files = list_files(paths, SUFFIXES, "image")
    store = ImageStore(files, spec.image_size, policy=spec.policy, cache_limit=0)
    return _store_rows(store, files, store.batch, IMAGES_PER_BLOCK)


def open_inputs(inputs: Inputs, spec: InputSpec) -> InputRows:
    """Open what a Python caller passes: one or many paths, images, texts or feature rows."""
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy") and spec.image_size is None:  # a pandas DataFrame
        return _table_rows(Path("the table"), pa.Table.from_pandas(inputs, preserve_index=False), spec, None)
    if spec.texts and not _are_files(inputs):
        return _open_texts(inputs, spec)
    if isinstance(inputs, (str, PathLike)):
        return open_files([Path(inputs)], spec)
    items: list[Any] | None = list(inputs) if isinstance(inputs, Sequence) else None
    if items and all(isinstance(item, (str, PathLike)) for item in items):
        return open_files([Path(item) for item in items], spec)
    if spec.image_size is None:
        return _feature_blocks(inputs, spec)
    images = _images(inputs) if items is None else list(chain.from_iterable(map(_images, items)))
    return InputRows(len(images), _image_blocks(images, spec.image_size, spec.policy))


def _are_files(inputs: Any) -> bool:
    """Whether the inputs of a run on texts are files: a `Path`, or the name of an existing table or .txt file."""
    items = list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else [inputs]
    return bool(items) and all(
        isinstance(item, PathLike)
        or (isinstance(item, str) and item.lower().endswith((*TABLES, *TEXT_SUFFIXES)) and Path(item).is_file())
        for item in items
    )


def _open_texts(inputs: Any, spec: InputSpec) -> InputRows:
    """Texts in memory: one, or a sequence of them."""
    single = isinstance(inputs, (str, torch.Tensor))
    texts: list[Any] = [inputs] if single else list(inputs)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"{spec.run} was trained on texts: its inputs are strings, or the paths of tables or .txt files, and "
                f"input {row} is of type {type(text).__name__}"
            )
    return _text_blocks([str(row) for row in range(len(texts))], texts)


def _text_blocks(names: list[str], texts: Iterable[str]) -> InputRows:
    def blocks() -> Iterator[InputBlock]:
        source = iter(texts)
        for start in range(0, len(names), TEXTS_PER_BLOCK):
            part = names[start : start + TEXTS_PER_BLOCK]
            yield InputBlock(part, list(islice(source, len(part))))

    return InputRows(len(names), blocks())


def _open_matrix(path: Path, spec: InputSpec) -> InputRows:
    if spec.image_size is not None or spec.texts:
        kind = "texts" if spec.texts else "images"
        raise InputError(f"{spec.run} was trained on {kind}, not on features: it cannot label {path}")
    return _feature_rows(FeatureStore(path), spec)


def _feature_rows(store: FeatureStore, spec: InputSpec) -> InputRows:
    spec.check_width(store.dim)
    return _store_rows(store, range(len(store)), store.finite_batch, spec.rows_per_block)


def _store_rows(
    store: ImageStore | FeatureStore, names: Sequence[object], read: Callable[[Rows], torch.Tensor], size: int
) -> InputRows:
    """The rows of a store in blocks of `size`; the next block is read while one is processed."""

    def block(number: int) -> InputBlock:
        rows = np.arange(number * size, min((number + 1) * size, len(store)))
        return InputBlock([str(names[row]) for row in rows.tolist()], read(rows))

    return InputRows(len(store), map(block, store.reading(np.arange(len(store)), size)))


def _open_table(path: Path, spec: InputSpec, label_column: str | None) -> InputRows:
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the table itself")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix.lower() in (".csv", ".tsv"):
        return _open_csv(path, spec, label_column)
    with parquet_errors(path):
        file = parquet.ParquetFile(path)
    columns.check_table(path, file.schema_arrow.names, file.metadata.num_rows)
    reader = TableReader(path, file.schema_arrow, spec, label_column)

    def blocks() -> Iterator[InputBlock]:
        start = 0
        with parquet_errors(path):  # a damaged page is found only when it is read
            for batch in file.iter_batches(spec.rows_per_block, columns=reader.columns):
                yield reader.block(pa.Table.from_batches([batch]), start)
                start += batch.num_rows

    return InputRows(file.metadata.num_rows, blocks())


def _open_csv(path: Path, spec: InputSpec, label_column: str | None) -> InputRows:
    texts = [*([label_column] if label_column else []), *(spec.columns if spec.texts else ())]
    table = columns.read_table(path, texts=texts)
    usual = (columns.usual(kind, table.column_names) for kind in ("id", "image", "label", "split"))
    roles = [name for name in (label_column, *usual) if name is not None and name in table.column_names]
    cells = [name for name in roles if not (spec.texts and name in spec.columns)]
    if spec.features is not None and not spec.texts and not spec.columns:  # a feature must not be left out silently
        columns.unused_columns(path, table, [*roles, *columns.feature_columns(table, roles)])
    return _table_rows(path, columns.without_guards(path, table, cells), spec, label_column)


def _table_rows(path: Path, table: pa.Table, spec: InputSpec, label_column: str | None) -> InputRows:
    reader, size = TableReader(path, table.schema, spec, label_column), spec.rows_per_block
    starts = range(0, table.num_rows, size)
    return InputRows(table.num_rows, (reader.block(table.slice(start, size), start) for start in starts))


def _feature_blocks(inputs: Any, spec: InputSpec) -> InputRows:
    """Feature rows in memory: a matrix, one row, or a sequence of rows."""
    try:
        if isinstance(inputs, Sequence) and any(isinstance(item, torch.Tensor) for item in inputs):
            inputs = torch.stack([torch.as_tensor(item) for item in inputs])
        if isinstance(inputs, torch.Tensor):
            inputs = inputs.detach().cpu()
            inputs = (inputs if inputs.is_complex() else inputs.float()).numpy()
        matrix = inputs if issparse(inputs) else np.asarray(inputs)
        if np.ma.is_masked(matrix) or np.ma.is_masked(inputs) or matrix.dtype.kind not in "biufO":
            matrix = None  # NumPy would drop masks and imaginary parts, and count days
        elif not issparse(matrix):
            matrix = np.asarray(matrix, np.float32)
    except (TypeError, ValueError, RuntimeError):
        matrix = None
    if matrix is not None and matrix.ndim == 1 and len(matrix):
        matrix = matrix[None]
    if matrix is None or (matrix.ndim != 2 and matrix.size):
        raise InputError(
            f"{spec.run} was trained on features: its inputs are rows of {spec.features} numbers, or the path of a "
            ".npy, .csv or .parquet file"
        )
    return _feature_rows(FeatureStore(matrix), spec) if len(matrix.shape) == 2 else InputRows(0, iter(()))


def _images(item: Any) -> list[Any]:
    """The images of one item: a path or PIL image is one, an array or tensor of four dimensions is several."""
    if isinstance(item, (str, PathLike)):
        return list(list_files([Path(item)], SUFFIXES, "image"))
    if isinstance(item, (np.ndarray, torch.Tensor)) and item.ndim == 4:
        return list(item)
    return [item]


def _image_blocks(images: Sequence[Any], size: int, policy: Policy) -> Iterator[InputBlock]:
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(images), IMAGES_PER_BLOCK):
            rows = range(start, min(start + IMAGES_PER_BLOCK, len(images)))
            tensors = list(pool.map(lambda row: _image_tensor(images[row], row, size, policy), rows))
            if len({tensor.dtype for tensor in tensors}) > 1:  # the network takes uint8 in 0..255 or float in 0..1
                tensors = [tensor if tensor.is_floating_point() else tensor.float() / 255 for tensor in tensors]
            yield InputBlock([str(row) for row in rows], torch.stack(tensors))


def _image_tensor(image: Any, row: int, size: int, policy: Policy) -> torch.Tensor:
    """One image as a (3, size, size) tensor."""
    if isinstance(image, (np.ndarray, torch.Tensor)):
        pixels = _channels_first(image, row)
        if tuple(pixels.shape) == (3, size, size):
            return pixels
        eight_bits = (pixels.clamp(0, 1) * 255).round().byte() if pixels.is_floating_point() else pixels
        image = Image.fromarray(eight_bits.permute(1, 2, 0).numpy())
    elif not isinstance(image, (str, PathLike, Image.Image)):
        raise InputError(
            f"input {row} is of type {type(image).__name__}: an image must be a path, a PIL image, an array or a tensor"
        )
    return torch.from_numpy(decode(image, size, policy, name=f"input {row}"))


def _channels_first(image: npt.NDArray[Any] | torch.Tensor, row: int) -> torch.Tensor:
    """An array (H, W), (H, W, 3) or (3, H, W) as a (3, H, W) tensor of uint8 in 0..255 or float32 in 0..1."""
    last_first = (2, 0) if isinstance(image, np.ndarray) else (0, 2)  # which axis is tried first for the channels
    pixels = torch.from_numpy(np.array(image)) if isinstance(image, np.ndarray) else image.detach().cpu()
    if pixels.ndim == 2:
        pixels = pixels.expand(3, -1, -1)
    axis = next((axis for axis in last_first if pixels.ndim == 3 and pixels.shape[axis] == 3), None)
    if axis is None or not (pixels.dtype == torch.uint8 or pixels.is_floating_point()):
        raise InputError(
            f"input {row} has shape {tuple(image.shape)} and type {image.dtype}: an image is (H, W, 3), (3, H, W) or "
            "(H, W), uint8 in 0..255 or float in 0..1"
        )
    pixels = pixels.movedim(axis, 0)
    if not pixels.is_floating_point():
        return pixels
    pixels = pixels.float()
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise InputError(f"input {row} holds values outside 0..1: float images are in 0..1, uint8 images in 0..255")
    return pixels


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors into one that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
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
            columns.chosen(path, table, "label_column", label_column)
        self.id = columns.usual("id", names)
        if spec.image_size is None:
            labels = [label_column, *(columns.usual(kind, names) for kind in ("label", "split"))]
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
        """The columns of features or texts."""
        spec, names = self.spec, table.column_names
        if missing := [name for name in spec.columns if name not in names]:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(
                f"{self.path}: the column {missing[0]!r}{others} is missing; {spec.run} was trained on "
                f"{columns.listed(spec.columns)}"
            )
        if spec.texts:
            guess = columns.text_column(table, used, labels_known=False) or next(
                iter(columns.free_texts(table, used)), None
            )
            if not spec.columns and guess is None:
                raise InputError(f"{self.path}: none of the columns {columns.listed(names)} holds texts")
            return list(spec.columns) or [str(guess)]
        found = columns.feature_columns(table, used)
        if extra := [name for name in found if spec.columns and name not in spec.columns]:
            warnings.warn(
                f"{self.path}: {len(extra)} columns are ignored because {spec.run} was not trained on them: "
                f"{columns.listed(extra)}",
                InputWarning,
                stacklevel=2,
            )
        if not spec.columns and not found:
            raise InputError(f"{self.path}: no column contains numbers; its columns are {columns.listed(names)}")
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
        """The block of these rows; `start` is the number of the first row."""
        rows = self.read(part, start)
        inputs = rows.tolist() if self.spec.texts else torch.from_numpy(rows)
        return InputBlock(self.names(part, start), inputs, self.observed(part))

    def names(self, part: pa.Table, start: int = 0) -> list[str]:
        if not self.has_names:
            return [str(row) for row in range(start, start + part.num_rows)]
        return self._texts(part, self.id or self.inputs[0])

    def observed(self, part: pa.Table) -> list[str | None] | None:
        """Each row's observed label; None without a label column."""
        return None if self.label is None else self._texts(part, self.label)

    def read(self, part: pa.Table, start: int = 0) -> npt.NDArray[Any]:
        """The network's input: uint8 images (B, 3, S, S), float32 features (B, D), or texts (B,)."""
        if self.spec.texts:
            kind = part.schema.field(self.inputs[0]).type
            if not columns.is_text(kind):
                raise InputError(f"{self.path}: column {self.inputs[0]!r} holds {kind}, not texts")
            return np.array([text or "" for text in part[self.inputs[0]].to_pylist()], object)
        return self._features(part, start) if self.spec.image_size is None else self._images(part, start)

    def _texts(self, part: pa.Table, column: str) -> list[Any]:
        """The cells of a column of ids, labels or paths."""
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
        for name, cell in zip(names, cells, strict=True):
            if not cell:
                raise InputError(f"{self.path}: row {name} has no image: its column {column!r} is empty")

        def image(name: str, cell: str | bytes) -> npt.NDArray[np.uint8]:
            source = cell if isinstance(cell, bytes) else self.folder / cell
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
    """The bytes of a cell, or its path where it has no bytes."""
    if not isinstance(cell, dict):
        return cell
    return cell.get("path") if cell["bytes"] is None else cell["bytes"]


def list_files(paths: Iterable[Path], suffixes: tuple[str, ...], noun: str) -> list[Path]:
    """The files among these paths, and those with the given suffixes in these folders, in order."""
    paths, files = list(paths), []
    for path in paths:
        if path.is_dir():
            files += sorted(path / name for name in files_below(path, suffixes)[0])
        elif path.exists() and not path.is_file():
            raise InputError(f"{path}: this is neither a regular file nor a folder")
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"{path}: no such file or folder")
    if not files:
        raise InputError(f"no {noun} in {', '.join(map(str, paths))}")
    for file in files:
        readable_name = str(file).encode(errors="replace").decode()
        if readable_name != str(file):
            raise InputError(f"{readable_name}: the file name is not valid UTF-8; rename it")
    return files
