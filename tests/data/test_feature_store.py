"""Feature stores of every kind of matrix, and errors for invalid values."""

import numpy as np
import pytest
import scipy.sparse
import torch

from spml.data import FeatureStore
from spml.data.stores import features as module
from spml.errors import InputError

ROWS = ([3, 0, 3], np.array([5]), torch.tensor([1, 2]), range(6), [])


def matrix(dtype: object = np.float32) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(6, 4)).astype(dtype)
    values[2, :3] = 0
    return values


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16, np.bool_])
@pytest.mark.parametrize("kind", ["array", "fortran", "file", "memmap", "csr", "coo", "tensor", "list"])
def test_batches(tmp_path, dtype, kind):
    values = matrix(dtype)
    path = tmp_path / "x.npy"
    np.save(path, values)
    wide = values.astype(np.float32) if dtype == np.float16 else values  # scipy has no sparse float16
    source = {
        "array": lambda: values,
        "fortran": lambda: np.asfortranarray(values),
        "file": lambda: path,
        "memmap": lambda: np.load(path, mmap_mode="r"),
        "csr": lambda: scipy.sparse.csr_matrix(wide),
        "coo": lambda: scipy.sparse.coo_array(wide),
        "tensor": lambda: torch.from_numpy(values),
        "list": lambda: values.tolist(),
    }[kind]()
    store = FeatureStore(source)
    assert (len(store), store.dim) == (6, 4)
    assert store.nbytes > 0
    store.prepare()
    for rows in ROWS:
        batch = store.batch(rows, pin=True)
        assert batch.dtype == torch.float32
        assert np.array_equal(batch.numpy(), values[np.asarray(rows, dtype=int)].astype(np.float32))
    assert store.good_rows.tolist() == list(range(6))


def test_bfloat16_tensor():
    values = torch.randn(5, 3).bfloat16()
    assert torch.equal(FeatureStore(values).batch([4, 1]), values[[4, 1]].float())


def test_arrays_and_files_are_not_copied(tmp_path):
    values = matrix()
    store = FeatureStore(values)
    values[0, 0] = 7
    assert store.batch([0])[0, 0] == 7
    path = tmp_path / "x.npy"
    np.save(path, values)
    assert isinstance(FeatureStore(path)._array, np.memmap)


def test_changing_a_batch_does_not_change_the_store():
    values = matrix()
    for source in (values.copy(), torch.from_numpy(values.copy()), scipy.sparse.csr_matrix(values)):
        store = FeatureStore(source)
        store.batch(range(6)).zero_()
        assert np.array_equal(store.batch(range(6)).numpy(), values)


@pytest.mark.parametrize("kind", ["array", "file", "csr", "tensor"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_error_locates_the_first_value_that_is_not_finite(tmp_path, monkeypatch, kind, value):
    monkeypatch.setattr(module, "_BLOCK", 8)  # two rows at a time
    values = matrix()
    values[3, 2] = values[3, 3] = values[5, 0] = value
    np.save(tmp_path / "x.npy", values)
    source = {
        "array": values,
        "file": tmp_path / "x.npy",
        "csr": scipy.sparse.csr_matrix(values),
        "tensor": torch.from_numpy(values),
    }[kind]
    with pytest.raises(InputError, match=rf"row 3, column 2 is {value} "):
        FeatureStore(source).check_finite()


def test_finite_batch_reports_the_row_of_the_matrix(tmp_path):
    values = matrix()
    values[3, 2] = np.nan
    np.save(tmp_path / "x.npy", values)
    store = FeatureStore(tmp_path / "x.npy")
    assert np.array_equal(store.finite_batch(np.array([4, 1])).numpy(), values[[4, 1]])
    assert store.finite_batch(np.array([], np.int64)).shape == (0, 4)
    with pytest.raises(InputError, match=r"x\.npy: row 3, column 2 is nan "):
        store.finite_batch(np.array([4, 3]))


@pytest.mark.parametrize("wrap", [np.asarray, scipy.sparse.csr_matrix, torch.from_numpy])
def test_values_too_large_for_float32_raise(wrap):
    values = matrix(np.float64)
    values[4, 1] = 1e300
    with pytest.raises(InputError, match=r"row 4, column 1 is inf as float32"):
        FeatureStore(wrap(values)).prepare()


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (np.zeros(4), "must be a matrix"),
        (np.zeros((2, 3, 4)), "must be a matrix"),
        (np.zeros((0, 4)), "the matrix has no rows"),
        (np.zeros((4, 0)), "the matrix has no features"),
        (np.zeros((2, 2), complex), "complex128"),
        (np.array([["a", "b"]]), "real numbers"),
        (np.array([[1, None]], dtype=object), "object"),
        (torch.zeros(2, 2, dtype=torch.complex64), "complex64"),
    ],
)
def test_invalid_matrices_raise(values, word):
    with pytest.raises(InputError, match=word):
        FeatureStore(values)


def test_invalid_files_raise(tmp_path):
    with pytest.raises(InputError, match=r"gone\.npy: no such file"):
        FeatureStore(tmp_path / "gone.npy")
    (tmp_path / "text.npy").write_text("1,2,3")
    with pytest.raises(InputError, match=r"text\.npy: this is not a \.npy file"):
        FeatureStore(tmp_path / "text.npy")
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    with pytest.raises(InputError, match=r"objects\.npy"):
        FeatureStore(tmp_path / "objects.npy")
    np.savez(tmp_path / "many.npz", a=np.zeros((2, 2)))
    with pytest.raises(InputError, match="the file holds a, not a sparse matrix"):
        FeatureStore(tmp_path / "many.npz")
    np.save(tmp_path / "number.npy", np.float32(3))
    with pytest.raises(InputError, match=r"number\.npy: features must be a matrix, not of shape \(\)"):
        FeatureStore(tmp_path / "number.npy")
    np.save(tmp_path / "cut.npy", np.zeros((100, 100)))
    with (tmp_path / "cut.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(InputError, match=r"cut\.npy"):
        FeatureStore(tmp_path / "cut.npy")


@pytest.mark.parametrize("row", [6, -1])
def test_row_out_of_range_raises(row):
    for source in (matrix(), torch.from_numpy(matrix()), scipy.sparse.csr_matrix(matrix())):
        with pytest.raises(InputError, match=f"row {row} is out of range"):
            FeatureStore(source).batch([row])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_cuda_device_raises():
    with pytest.raises(InputError, match="'cuda'"):
        FeatureStore(matrix()).to_device("cuda")


@pytest.mark.parametrize("kind", ["half", "double", "csr", "tensor"])
def test_to_device(monkeypatch, kind):
    """On CUDA if available; otherwise "meta" shows the type."""
    monkeypatch.setattr(module, "_BLOCK", 8)
    device = "cuda" if torch.cuda.is_available() else "meta"
    values = matrix(np.float16).astype(np.float32)
    source = {
        "half": values.astype(np.float16),
        "double": values.astype(np.float64),
        "csr": scipy.sparse.csr_matrix(values),
        "tensor": torch.from_numpy(values).half(),
    }[kind]
    store = FeatureStore(source)
    assert store.to_device(device)
    assert store.nbytes == 24 * (2 if kind in ("half", "tensor") else 4)
    for batch in (store.batch([3, 1]), store.batch(torch.tensor([3, 1], device=device))):
        assert batch.device.type == device
        assert batch.dtype == torch.float32
        if device == "cuda":
            assert np.array_equal(batch.cpu().numpy(), values[[3, 1]])


def test_to_device_cpu_reports_whether_features_are_in_memory(tmp_path):
    np.save(tmp_path / "x.npy", matrix())
    assert FeatureStore(matrix()).to_device("cpu")
    assert FeatureStore(torch.from_numpy(matrix())).to_device("cpu")
    assert not FeatureStore(tmp_path / "x.npy").to_device("cpu")


def test_fingerprint_depends_on_the_numbers_not_on_how_they_are_stored(tmp_path):
    values = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float16)
    before = FeatureStore(values).fingerprint()
    np.save(tmp_path / "x.npy", values.astype(np.float64))
    on_device = FeatureStore(torch.from_numpy(values))
    on_device.to_device("cpu")
    for other in (values.astype(np.float32), tmp_path / "x.npy", torch.from_numpy(values)):
        assert FeatureStore(other).fingerprint() == before
    assert on_device.fingerprint() == before
    assert FeatureStore(values[::-1]).fingerprint() != before
    assert FeatureStore(values.reshape(3, 7)).fingerprint() != before
    values[6, 2] += 1
    assert FeatureStore(values).fingerprint() != before
