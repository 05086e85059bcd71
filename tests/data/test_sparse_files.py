"""Sparse matrices in .npz files: all formats, and files that are damaged or made to harm."""

import zipfile

import numpy as np
import pytest
from scipy import sparse

from spml.data import FeatureStore, open_data, write_pack
from spml.errors import InputError

MATRIX = sparse.random(12, 7, density=0.4, format="csr", random_state=0)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("compressed", [True, False])
def test_every_format_gives_the_same_features(tmp_path, form, compressed):
    sparse.save_npz(tmp_path / "x.npz", MATRIX.asformat(form), compressed=compressed)
    store = FeatureStore(tmp_path / "x.npz")
    np.testing.assert_allclose(store.batch(range(12)).numpy(), MATRIX.toarray(), rtol=1e-6)
    assert store.fingerprint() == FeatureStore(MATRIX).fingerprint()


def test_fingerprint_covers_values_places_and_shape():
    other = MATRIX.copy()
    other.data[3] += 1
    moved = sparse.csr_matrix((MATRIX.data, (MATRIX.indices + 1) % 7, MATRIX.indptr), shape=MATRIX.shape)
    wider = sparse.csr_matrix((MATRIX.data, MATRIX.indices, MATRIX.indptr), shape=(12, 8))
    digests = {FeatureStore(matrix).fingerprint() for matrix in (MATRIX, other, moved, wider, MATRIX[::-1])}
    assert len(digests) == 5
    rows, columns = np.indices(MATRIX.shape).reshape(2, -1)
    with_zero = sparse.csr_matrix((MATRIX.toarray().ravel(), (rows, columns)), shape=MATRIX.shape)
    assert with_zero.nnz > MATRIX.nnz
    assert FeatureStore(with_zero).fingerprint() == FeatureStore(MATRIX).fingerprint()


def test_sparse_matrix_with_labels_next_to_it(tmp_path):
    sparse.save_npz(tmp_path / "words.npz", MATRIX)
    np.save(tmp_path / "words-labels.npy", np.arange(12) % 3)
    data = open_data(tmp_path / "words.npz")
    assert data.source["kind"] == "features"
    assert data.labels.single().tolist() == (np.arange(12) % 3).tolist()
    np.save(tmp_path / "words-labels.npy", np.arange(11) % 3)
    with pytest.raises(InputError, match=r"it labels 11 rows, .*words\.npz has 12"):
        open_data(tmp_path / "words.npz")


def test_pack_of_a_sparse_matrix(tmp_path):
    (tmp_path / "labels.csv").write_text("cat,dog\n" + "1,0\n1,1\n0,1\n" * 4)
    sparse.save_npz(tmp_path / "x.npz", MATRIX)
    of_file = write_pack(tmp_path / "x.npz", tmp_path / "labels.csv", tmp_path / "one")
    of_memory = write_pack(MATRIX, tmp_path / "labels.csv", tmp_path / "two")
    assert of_file.store.fingerprint() == of_memory.store.fingerprint() == FeatureStore(MATRIX).fingerprint()


def parts(**changes):
    arrays = {
        "format": np.array(b"csr"),
        "shape": np.array([12, 7]),
        "data": MATRIX.data,
        "indices": MATRIX.indices,
        "indptr": MATRIX.indptr,
    }
    return {name: value for name, value in (arrays | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"indices": MATRIX.indices + 100}, "contradict each other"),
        ({"indices": MATRIX.indices - 5}, "contradict each other"),
        ({"indices": MATRIX.indices[:-1]}, "contradict each other"),
        ({"indptr": MATRIX.indptr[::-1].copy()}, "contradict each other"),
        ({"indptr": MATRIX.indptr[:-1]}, "contradict each other"),
        ({"indices": MATRIX.indices.astype(float)}, "holds float64, not whole numbers"),
        ({"shape": np.array([12])}, "two numbers above 0"),
        ({"shape": np.array([0, 7])}, "two numbers above 0"),
        ({"shape": np.array([2**61, 7])}, "needs about .* GiB of memory"),
        ({"format": np.array(b"dia")}, "convert it to CSR"),
        ({"data": MATRIX.data * 1j}, "real numbers, not complex128"),
        ({"indptr": None}, "'indptr' is missing"),
        ({"data": None}, "not a sparse matrix"),
        ({"shape": np.arange(1000)}, "'shape' is not that of a sparse matrix"),
    ],
)
def test_contradictions_raise(tmp_path, changes, problem):
    np.savez(tmp_path / "x.npz", **parts(**changes))
    with pytest.raises(InputError, match=problem):
        FeatureStore(tmp_path / "x.npz")


def test_objects_are_not_unpickled(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, value in parts(data=np.array([{}], dtype=object)).items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, value, allow_pickle=True)
    with pytest.raises(InputError, match="holds Python objects"):
        FeatureStore(tmp_path / "x.npz")


def test_header_that_promises_more_than_the_file_holds_raises(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        for name, value in parts().items():
            with archive.open(f"{name}.npy", "w") as member:
                if name == "data":
                    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
                    np.lib.format.write_array_header_1_0(member, header)
                else:
                    np.lib.format.write_array(member, value)
    with pytest.raises(InputError, match=r"data\.npy should have 8,000,000,000,128 bytes"):
        FeatureStore(tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04nonsense", b"text"])
def test_other_files_raise(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz: this is not a \.npz file of a sparse matrix"):
        FeatureStore(tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"gone\.npz: no such file"):
        FeatureStore(tmp_path / "gone.npz")
