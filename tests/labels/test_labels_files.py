"""Files of label tables."""

import copy
import errno

import numpy as np
import pytest

from spml.errors import InputError
from spml.labels import Labels, drop_labels, simulate
from support.label_tables import full_table


def test_save_and_load(tmp_path) -> None:
    truth = full_table(30, 5)
    with_ids = Labels.from_names(["cat", None, "größe\0"], ids=["a/1.jpg", "b", "ü"])
    for i, labels in enumerate((truth, simulate(truth), drop_labels(truth, 0.7), with_ids, truth.subset([]))):
        path = tmp_path / f"{i}.labels"
        labels.save(path)
        labels.save(path)  # replaces the existing file
        again = Labels.load(path)
        assert again.fingerprint() == labels.fingerprint()
        assert again.classes == labels.classes
        assert again.origin == labels.origin
        assert (again.ids is None) == (labels.ids is None)
        assert labels.ids is None or again.ids.tolist() == labels.ids.tolist()
        assert again.is_single_positive == labels.is_single_positive
        assert copy.deepcopy(labels).fingerprint() == labels.fingerprint()
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{i}.labels" for i in range(5)]


def test_failed_save_keeps_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "labels.npz"
    old, new = full_table(3, 2), full_table(4, 2)
    old.save(path)

    def full_disk(file, **arrays) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(InputError, match=r"labels\.npz cannot be written: no space left"):
        new.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["labels.npz"]
    assert Labels.load(path).fingerprint() == old.fingerprint()


def test_load_raises_on_other_files(tmp_path) -> None:
    path = tmp_path / "labels.npz"
    with pytest.raises(InputError, match=r"labels\.npz: no such file\.$"):
        Labels.load(path)
    np.savez(path, header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match=r"labels\.npz: this is not a readable file of labels .*Python objects"):
        Labels.load(path)
    for content in (b"", b"hello", b"PK\x03\x04 not a zip"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"labels\.npz: this is not a readable file of labels"):
            Labels.load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match="not a readable file of labels"):
        Labels.load(path)
    full_table(50, 9).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not a readable file of labels"):
        Labels.load(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("start", lambda a: a + 1),
        ("start", lambda a: a[:-1]),
        ("column", lambda a: a + 9),
        ("column", lambda a: np.zeros_like(a)),
        ("value", lambda a: a * 2),
        ("value", lambda a: a[:-1]),
    ],
)
def test_load_raises_on_damaged_arrays(tmp_path, name, change) -> None:
    path = tmp_path / "labels.npz"
    full_table(50, 9, mean=3).save(path)
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    arrays[name] = change(arrays[name])
    np.savez(path, **arrays)
    with pytest.raises(InputError, match="not a readable file of labels"):
        Labels.load(path)
