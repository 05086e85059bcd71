"""Turn paths, folders, PIL images, arrays, tensors, texts, feature rows and tables into blocks a network can process.

Blocks are read one after the other, so neither the inputs nor the predictions ever have to fit into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image
from scipy.sparse import issparse

from spml.data.dataset import TABLES
from spml.data.formats.folder import TEXT_SUFFIXES, files_below
from spml.data.stores.decode import SUFFIXES, Policy, decode
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.data.stores.texts import read_text
from spml.errors import InputError
from spml.predict.blocks import IMAGES_PER_BLOCK, TEXTS_PER_BLOCK, InputBlock, InputRows, InputSpec
from spml.predict.tables import open_table, table_rows

_MATRICES = (".npy", ".npz")

Rows: TypeAlias = npt.NDArray[np.int64]
Input: TypeAlias = str | PathLike[str] | Image.Image | npt.NDArray[Any] | torch.Tensor
Inputs: TypeAlias = Input | Sequence[Input] | Sequence[float] | Sequence[Sequence[float]]
"""What `Run.predict` and `Run.embed` accept: one input, or a sequence of inputs."""


def open_files(paths: Sequence[Path], spec: InputSpec, label_column: str | None = None) -> InputRows:
    """Open files and folders of images or texts, or one feature matrix (.npy, .npz), or one table."""
    suffixes = {path.suffix.lower() for path in paths}
    if label_column is not None and not suffixes & {*TABLES}:
        raise InputError(f"{paths[0]}: a label column applies to a table only: leave the label column out")
    if suffixes & {*_MATRICES, *TABLES}:
        if len(paths) > 1:
            raise InputError("a feature matrix or table must be the only input: predict each of them separately")
        return _open_matrix(paths[0], spec) if suffixes & {*_MATRICES} else open_table(paths[0], spec, label_column)
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
        return table_rows(Path("the table"), pa.Table.from_pandas(inputs, preserve_index=False), spec)
    if spec.texts and not _are_files(inputs):
        return _open_texts(inputs, spec)
    if isinstance(inputs, (set, frozenset, Mapping)):
        raise InputError(f"the inputs are in a {type(inputs).__name__}: pass a list, whose order is known")
    if isinstance(inputs, (str, PathLike)):
        return open_files([Path(inputs)], spec)
    if isinstance(inputs, memoryview):
        inputs = _array_of(inputs)
    items: list[Any] | None = list(inputs) if isinstance(inputs, Sequence) else None
    if items and all(isinstance(item, (str, PathLike)) for item in items):
        return open_files([Path(item) for item in items], spec)
    if spec.image_size is None:
        return _feature_blocks(inputs, spec)
    images = _images(inputs) if items is None else list(chain.from_iterable(map(_images, items)))
    return InputRows(len(images), _image_blocks(images, spec.image_size, spec.policy))


def _array_of(view: memoryview) -> npt.NDArray[Any]:
    """A memoryview as an array: as a sequence it would have one dimension at most."""
    try:
        return np.asarray(view)
    except (ValueError, TypeError) as error:
        raise InputError(f"the memoryview cannot be read ({error}): pass an array") from None


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
    if isinstance(inputs, (set, frozenset, Mapping)):
        raise InputError(f"the texts are in a {type(inputs).__name__}: pass a list, whose order is known")
    several = isinstance(inputs, Iterable) and not isinstance(inputs, (str, bytes, bytearray, memoryview, torch.Tensor))
    several = several and not (isinstance(inputs, np.ndarray) and inputs.ndim == 0)
    texts: list[Any] = list(inputs) if several else [inputs]
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
    """Return the rows of a store in blocks of `size`; the next block is read while one is processed."""

    def block(number: int) -> InputBlock:
        rows = np.arange(number * size, min((number + 1) * size, len(store)))
        return InputBlock([str(names[row]) for row in rows.tolist()], read(rows))

    return InputRows(len(store), map(block, store.reading(np.arange(len(store)), size)))


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
    """Return the images of one item: a path or PIL image is one, an array or tensor of four dimensions is several."""
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
    if isinstance(image, Image.Image) and 0 in image.size:
        raise InputError(f"input {row} is an image of {image.width}×{image.height} pixels: it has none")
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
    """Return an array (H, W), (H, W, 3) or (3, H, W) as a (3, H, W) tensor of uint8 in 0..255 or float32 in 0..1."""
    last_first = (2, 0) if isinstance(image, np.ndarray) else (0, 2)  # which axis is tried first for the channels
    pixels = None if 0 in image.shape else _pixels(image)
    if pixels is None:
        raise InputError(
            f"input {row} has shape {tuple(image.shape)} and type {image.dtype}, or masked or no values: an image is "
            "(H, W, 3), (3, H, W) or (H, W), uint8 in 0..255 or float in 0..1"
        )
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


def _pixels(image: npt.NDArray[Any] | torch.Tensor) -> torch.Tensor | None:
    """A dense copy in memory; None if that would hold other values than the image, or none."""
    if isinstance(image, torch.Tensor):
        is_plain = image.layout == torch.strided and not image.is_meta and not image.is_quantized
        return image.detach().cpu() if is_plain else None
    if np.ma.is_masked(image) or image.dtype.kind not in "biuf":
        return None
    image = np.asarray(image, image.dtype.newbyteorder("="))
    return torch.from_numpy(image.astype(np.float64 if image.dtype.kind == "f" else image.dtype))


def list_files(paths: Iterable[Path], suffixes: tuple[str, ...], noun: str) -> list[Path]:
    """Return the files among these paths, and those with the given suffixes in these folders, in order."""
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
