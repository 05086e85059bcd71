"""Sparse matrices in the .npz files of SciPy, checked before anything is allocated, and read without pickle."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format
import numpy.typing as npt

from spml.arrays import UNREADABLE, check_header
from spml.errors import InputError
from spml.free_memory import free_memory

_INDEX_ARRAYS = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}
_ADVICE = "save the matrix with scipy.sparse.save_npz"


def read_sparse(path: Path) -> Any:
    """Read a matrix that `scipy.sparse.save_npz` wrote, as CSR.

    Parameters
    ----------
    path : path
        A .npz file with a CSR, CSC or COO matrix of real numbers.

    Returns
    -------
    scipy.sparse.csr_matrix

    Raises
    ------
    InputError
        If the file is something else, its arrays contradict each other, or it does not fit into memory.
    """
    from scipy import sparse

    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    try:
        with zipfile.ZipFile(path) as archive:
            form, shape, names = _description(path, archive)
            _check_size(path, archive, names, shape)
            data, first, second = (_read(archive, name) for name in names)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{path}: this is not a .npz file of a sparse matrix ({error}); {_ADVICE}.") from error
    if data.dtype.kind not in "fiub":
        raise InputError(f"{path}: features must be real numbers, not {data.dtype}.")
    _check_indices(path, form, shape, data, first, second)
    if form == "coo":
        return sparse.coo_matrix((data, (first, second)), shape=shape).tocsr()
    return (sparse.csr_matrix if form == "csr" else sparse.csc_matrix)((data, first, second), shape=shape).tocsr()


def _description(path: Path, archive: zipfile.ZipFile) -> tuple[str, tuple[int, int], list[str]]:
    """Return the format of the matrix, its shape and the names of its arrays."""
    members = {name.removesuffix(".npy") for name in archive.namelist()}
    if not {"format", "shape", "data"} <= members:
        raise InputError(
            f"{path}: the file holds {', '.join(sorted(members)[:8]) or 'nothing'}, not a sparse matrix; {_ADVICE}."
        )
    for name in ("format", "shape"):  # both are tiny; a file that claims otherwise is not read
        header = _header(archive, name)
        if math.prod(header[0]) > 2 or header[1].itemsize > 64:
            raise InputError(f"{path}: the array {name!r} is not that of a sparse matrix; {_ADVICE}.")
    label = _read(archive, "format").item()
    form = label.decode("ascii", "replace") if isinstance(label, bytes) else str(label)
    if form not in _INDEX_ARRAYS:
        raise InputError(f"{path}: a sparse matrix in the format {form!r}; convert it to CSR (`tocsr()`) and save it.")
    sizes = _read(archive, "shape")
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu" or not all(0 < size < 2**62 for size in sizes.tolist()):
        raise InputError(f"{path}: the shape of the matrix is {sizes.tolist()}; two numbers above 0 are expected.")
    names = ["data", *_INDEX_ARRAYS[form]]
    for name in names:
        if name not in members:
            raise InputError(f"{path}: the array {name!r} is missing; {_ADVICE}.")
    return form, (int(sizes[0]), int(sizes[1])), names


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array; see `check_header`."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        return check_header(member, info.file_size, info.filename)


def _check_size(path: Path, archive: zipfile.ZipFile, names: list[str], shape_of_matrix: tuple[int, int]) -> None:
    needed = 8 * sum(shape_of_matrix)  # row pointers, and a number per column in whatever is trained on it
    for name in names:
        shape, dtype = _header(archive, name)
        if len(shape) != 1:
            raise InputError(f"{path}: the array {name!r} is not that of a sparse matrix; {_ADVICE}.")
        needed += math.prod(shape) * dtype.itemsize
    if 2 * needed > (free := free_memory()):
        raise InputError(
            f"{path}: the matrix needs about {2 * needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are "
            "free: use fewer rows or columns."
        )


def _read(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _check_indices(
    path: Path,
    form: str,
    shape: tuple[int, int],
    data: npt.NDArray[Any],
    first: npt.NDArray[Any],
    second: npt.NDArray[Any],
) -> None:
    """Indices must lie inside the matrix: SciPy does not check them, and reads foreign memory if they do not."""
    for name, values in zip(_INDEX_ARRAYS[form], (first, second), strict=True):
        if values.dtype.kind not in "iu":
            raise InputError(f"{path}: the array {name!r} holds {values.dtype}, not whole numbers.")
    if form == "coo":
        fits = len(first) == len(second) == len(data)
        limits = [(first, shape[0]), (second, shape[1])]
    else:
        lines, length = shape if form == "csr" else shape[::-1]
        pointers = second
        fits = len(first) == len(data) and len(pointers) == lines + 1
        fits = fits and pointers[0] == 0 and pointers[-1] == len(data) and bool((np.diff(pointers) >= 0).all())
        limits = [(first, length)]
    if not fits or any(len(values) and (values.min() < 0 or values.max() >= limit) for values, limit in limits):
        raise InputError(f"{path}: the arrays of the sparse matrix contradict each other or its shape {shape}.")
