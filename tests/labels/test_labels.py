"""Label tables, and the simulation of incomplete labels."""

import copy
import hashlib
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import shared_data
from spml.errors import InputError
from spml.labels import Labels, drop_labels, estimate_k, k_intervals, simulate, split

ANIMALS = ("ant", "bee", "cat", "dog")
SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7)
no_deadline = settings(deadline=None, max_examples=60)  # a busy machine is slow
SIGNED = hnp.arrays(np.int8, SHAPES, elements=st.integers(-1, 1))


def full_table(num_rows: int, num_classes: int, *, mean: float = 2.0, seed: int = 0) -> Labels:
    """Random fully known labels with about `mean` positives per row."""
    truth = np.random.default_rng(seed).random((num_rows, num_classes)) < mean / num_classes
    return Labels.from_matrix(truth, coding="full")


@pytest.fixture(scope="module")
def voc() -> dict[str, np.ndarray]:
    with np.load(shared_data("voc12", "labels.npz"), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def voc_truth(voc: dict[str, np.ndarray]) -> Labels:
    """The official training rows, fully labelled."""
    rows = np.union1d(voc["train"], voc["val"])
    return Labels.from_matrix(voc["labels"][rows], voc["classes"], voc["image"][rows], coding="full")


# Constructors


@no_deadline
@given(SIGNED)
def test_signed_round_trip(matrix: np.ndarray) -> None:
    labels = Labels.from_matrix(matrix, coding="signed")
    np.testing.assert_array_equal(labels.dense(), matrix)
    assert labels.dense().dtype == np.int8
    np.testing.assert_array_equal(Labels.from_matrix(torch.from_numpy(matrix)).dense(), matrix)
    np.testing.assert_array_equal(Labels.from_matrix(matrix.astype(np.float16)).dense(), matrix)


@no_deadline
@given(SIGNED)
def test_full_round_trip(matrix: np.ndarray) -> None:
    coded = np.where(matrix == 0, np.nan, matrix > 0)
    labels = Labels.from_matrix(coded, coding="full")
    np.testing.assert_array_equal(labels.dense(), matrix)
    as_objects = np.where(matrix == 0, None, (matrix > 0).astype(object))
    np.testing.assert_array_equal(Labels.from_matrix(as_objects, coding="full").dense(), matrix)


@no_deadline
@given(hnp.arrays(bool, SHAPES))
def test_positive_round_trip(matrix: np.ndarray) -> None:
    labels = Labels.from_matrix(matrix, coding="positive")
    np.testing.assert_array_equal(labels.dense(), matrix.astype(np.int8))


@no_deadline
@given(SIGNED, st.data())
def test_all_accessors_agree_with_the_dense_table(matrix: np.ndarray, data: st.DataObject) -> None:
    labels = Labels.from_matrix(matrix)
    rows = data.draw(st.lists(st.integers(0, len(matrix) - 1), max_size=9))
    batch = labels.batch(rows)
    assert batch.dtype == torch.int8
    np.testing.assert_array_equal(batch.numpy(), matrix[rows])
    np.testing.assert_array_equal(labels.batch(torch.tensor(rows, dtype=torch.int64)).numpy(), matrix[rows])
    np.testing.assert_array_equal(labels.dense(rows), matrix[rows])
    np.testing.assert_array_equal(labels.subset(rows).dense(), matrix[rows])
    np.testing.assert_array_equal(np.stack(labels.positives()), np.stack(np.nonzero(matrix == 1)))
    for count, value in zip(labels.counts(), (1, -1, 0), strict=True):
        np.testing.assert_array_equal(count, (matrix == value).sum(axis=0))
    for value in (1, -1, 0):
        np.testing.assert_array_equal(labels.entries().per_row(value), (matrix == value).sum(axis=1))
    assert labels.is_full == bool((matrix != 0).all())
    single = bool((matrix >= 0).all() and ((matrix == 1).sum(axis=1) <= 1).all())
    assert labels.is_single_positive == single
    if single:
        expected = np.where((matrix == 1).any(axis=1), matrix.argmax(axis=1), -1)
        np.testing.assert_array_equal(labels.single(), expected)
        assert labels.single().dtype == np.int32
    else:
        with pytest.raises(InputError, match=r"^row \d+ has .* these are not single positive labels\."):
            labels.single()


@no_deadline
@given(SIGNED)
def test_all_constructors_store_the_cheaper_default(matrix: np.ndarray) -> None:
    names = [str(c) for c in range(matrix.shape[1])]
    listed = Labels.from_lists(
        [[names[c] for c in np.flatnonzero(row == 1)] for row in matrix],
        names,
        negatives=[[names[c] for c in np.flatnonzero(row == -1)] for row in matrix],
    )
    labels = Labels.from_matrix(matrix)
    assert listed.fingerprint() == labels.fingerprint()
    entries = labels.entries()
    positive, negative, unknown = ((matrix == value).sum() for value in (1, -1, 0))
    assert len(entries.column) == positive + min(negative, unknown)


def test_constructors_agree_on_single_positives() -> None:
    same = [
        Labels.from_indices([2, 0, -1], ANIMALS),
        Labels.from_indices(torch.tensor([2, 0, -1]), np.array(ANIMALS)),
        Labels.from_names(["cat", "ant", None], ANIMALS),
        Labels.from_names(np.array(["cat", "ant", ""]), ANIMALS),
        Labels.from_names(["cat", "ant", float("nan")], ANIMALS),
        Labels.from_lists([["cat"], ("ant",), []], ANIMALS),
        Labels.from_lists([["cat", "cat"], {"ant"}, None], ANIMALS),
        Labels.from_matrix([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], ANIMALS, coding="positive"),
        Labels.from_matrix([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], ANIMALS, coding="signed"),
    ]
    for labels in same:
        assert labels.is_single_positive
        assert not labels.is_full
        assert labels.single().tolist() == [2, 0, -1]
        assert labels.shape == (3, 4)
        assert len(labels) == 3
        assert labels.num_classes == 4
    assert len({labels.fingerprint() for labels in same}) == 1


def test_constructors_agree_on_full_labels() -> None:
    same = [
        Labels.from_lists([["cat", "ant"], []], ANIMALS, rest="negative"),
        Labels.from_matrix([[1, 0, 1, 0], [0, 0, 0, 0]], ANIMALS, coding="full"),
        Labels.from_matrix([[1, -1, 1, -1], [-1, -1, -1, -1]], ANIMALS, coding="signed"),
    ]
    for labels in same:
        assert labels.is_full
        assert not labels.is_single_positive
        np.testing.assert_array_equal(labels.dense(), [[1, -1, 1, -1], [-1, -1, -1, -1]])
    assert len({labels.fingerprint() for labels in same}) == 1


def test_default_classes_are_sorted_names_or_column_numbers() -> None:
    assert Labels.from_names(["dog", None, "ant", "dog"]).classes == ("ant", "dog")
    assert Labels.from_lists([["dog"], ["ant", "bee"]]).classes == ("ant", "bee", "dog")
    assert Labels.from_lists([["dog"]], negatives=[["cat"]]).classes == ("cat", "dog")
    assert Labels.from_matrix([[1, 0]]).classes == ("0", "1")


@pytest.mark.parametrize(
    ("values", "classes", "origin", "dense"),
    [
        (["cat", "", None], ANIMALS, {"created_by": "from_names"}, [[0, 0, 1, 0], [0] * 4, [0] * 4]),
        (np.array(["cat"]), ANIMALS, {"created_by": "from_names"}, [[0, 0, 1, 0]]),
        (["cat", float("nan")], None, {"created_by": "from_names"}, [[1], [0]]),
        ([["cat", "ant"], []], ANIMALS, {"created_by": "from_lists", "rest": "unknown"}, [[1, 0, 1, 0], [0] * 4]),
        (
            [["cat", "ant"], ["cat", "dog"]],
            None,
            {"created_by": "from_lists", "rest": "unknown"},
            [[1, 1, 0], [0, 1, 1]],
        ),
        ([[], []], ANIMALS, {"created_by": "from_lists", "rest": "unknown"}, [[0] * 4, [0] * 4]),
        ([3, -1], ANIMALS, {"created_by": "from_indices"}, [[0, 0, 0, 1], [0] * 4]),
        (torch.tensor([3]), ANIMALS, {"created_by": "from_indices"}, [[0, 0, 0, 1]]),
        ([[1, -1], [0, 1]], None, {"created_by": "from_matrix", "coding": "signed"}, [[1, -1], [0, 1]]),
        ([[1, 0], [None, 1]], None, {"created_by": "from_matrix", "coding": "full"}, [[1, -1], [0, 1]]),
        (np.array([[1, 0], [np.nan, 1]]), None, {"created_by": "from_matrix", "coding": "full"}, [[1, -1], [0, 1]]),
        ([[1, 0], [0, 1]], None, {"created_by": "from_matrix", "coding": "positive"}, [[1, 0], [0, 1]]),
        ([[1, 0], [0, 0]], None, {"created_by": "from_matrix", "coding": "full"}, [[1, -1], [-1, -1]]),
        (torch.tensor([[True, True]]), None, {"created_by": "from_matrix", "coding": "full"}, [[1, 1]]),
    ],
)
def test_from_any_detects_the_form_and_records_it(values, classes, origin, dense) -> None:
    labels = Labels.from_any(values, classes)
    assert labels.origin == origin
    np.testing.assert_array_equal(labels.dense(), dense)
    assert Labels.from_any(labels) is labels


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1], r"pass classes too, here or to Labels\.from_indices"),
        ([0.5, 1.0], r"shape \(2,\) holding float64: use Labels\.from_names"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        ([[1], [0, 1]], r"shape \(2,\) holding object: use Labels\.from_names"),
        ("cat", "labels cannot be read from a str"),
        (7, "labels cannot be read from a int"),
        (["cat", ["dog"]], r"row 1 is \['dog'\], but other rows are strings: use Labels\.from_lists"),
        (["cat", None, 3], r"row 2 is 3, but other rows are strings"),
        ([[0.0, 0.3]], r"row 0, column 1: value 0\.3 does not fit coding 'full'"),
        ([[-1, np.nan]], r"row 0, column 1: value nan does not fit coding 'signed'"),
    ],
)
def test_from_any_raises_if_the_form_is_ambiguous(values, message) -> None:
    with pytest.raises(InputError, match=message):
        Labels.from_any(values)


def test_tables_without_rows_labels_or_several_classes() -> None:
    nothing = Labels.from_names([None, ""], ANIMALS)
    assert nothing.is_single_positive
    assert nothing.counts().positives.tolist() == [0, 0, 0, 0]
    for empty in (
        Labels.from_indices([], ANIMALS),
        Labels.from_names([], ANIMALS, ids=[]),
        Labels.from_lists([], ANIMALS),
        Labels.from_matrix(np.zeros((0, 4)), ANIMALS, coding="full"),
        nothing.subset([]),
    ):
        assert empty.shape == (0, 4)
        assert empty.batch([]).shape == (0, 4)
        assert empty.dense().shape == (0, 4)
        assert empty.single().shape == (0,)
        assert simulate(empty).shape == (0, 4)
        assert drop_labels(empty, 0.5).shape == (0, 4)
    one_class = Labels.from_indices([0, 0], ["only"])
    assert one_class.is_single_positive
    assert one_class.is_full
    assert one_class.subset(np.array([True, False])).shape == (1, 1)


# Errors name the row and the value, and say what to do


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Labels.from_names(["cat", "dgo"], ANIMALS),
            "row 1: label 'dgo' is not one of the 4 classes; did you mean 'dog'?",
        ),
        (
            lambda: Labels.from_names(["zebra"], ANIMALS),
            "row 0: label 'zebra' is not one of the 4 classes. Correct it, or add it to the classes.",
        ),
        (lambda: Labels.from_names([3], ANIMALS), "row 0: label 3 is not a string: labels are class names."),
        (
            lambda: Labels.from_lists([[], ["ant", "zebra"]], ANIMALS),
            "row 1: label 'zebra' is not one of the 4 classes. Correct it, or add it to the classes.",
        ),
        (
            lambda: Labels.from_lists(["cat"], ANIMALS),
            "row 0 is the string 'cat': pass a list of names, or use Labels.from_names.",
        ),
        (
            lambda: Labels.from_lists([["ant"], ["cat", "dog"]], ANIMALS, negatives=[[], ["ant", "dog"]]),
            "row 1: label 'dog' is both positive and negative. Remove one of them.",
        ),
        (
            lambda: Labels.from_lists([["ant"]], ANIMALS, negatives=[]),
            "negatives has 0 rows, but lists has 1.",
        ),
        (
            lambda: Labels.from_lists([], ANIMALS, rest="absent"),
            "rest is 'absent': it must be 'unknown' or 'negative'.",
        ),
        (
            lambda: Labels.from_indices([0, 4], ANIMALS),
            "row 1: class index 4 is out of range. With 4 classes, use 0 to 3, or -1 for no label.",
        ),
        (
            lambda: Labels.from_indices([0, 1, -2], ANIMALS),
            "row 2: class index -2 is out of range. With 4 classes, use 0 to 3, or -1 for no label.",
        ),
        (lambda: Labels.from_indices([0.0], ANIMALS), "class indices must be integers, not float64."),
        (
            lambda: Labels.from_indices([[0]], ANIMALS),
            "pass one class index per row, not an array of shape (1, 1).",
        ),
        (
            lambda: Labels.from_indices([0, 1, 2], ANIMALS, ids=["a", "b", "a"]),
            "rows 0 and 2 have the same id 'a': ids must differ.",
        ),
        (
            lambda: Labels.from_indices([0, 1], ANIMALS, ids=["a"]),
            "there are 1 ids for 2 rows: pass one id per row.",
        ),
        (
            lambda: Labels.from_indices([0], ANIMALS, ids=[None]),
            "row 0: id None must be a string or a whole number.",
        ),
        (
            lambda: Labels.from_indices([0], ["cat", "dog", "cat"]),
            "classes 0 and 2 are both named 'cat': class names must differ.",
        ),
        (lambda: Labels.from_indices([0], []), "there are no classes: a table of labels needs at least one."),
        (lambda: Labels.from_indices([0], "cat"), "classes is the string 'cat': pass a list of names."),
        (
            lambda: Labels.from_indices([0], ["cat", ""]),
            "class 1 is named '': a class name must be a non-empty string.",
        ),
        (
            lambda: Labels.from_matrix([[0, 1], [2, 0]]),
            "row 1, column 0: value 2 does not fit coding 'signed', which accepts +1 (positive), -1 (negative) "
            "and 0 (unknown). Correct the value or pass another coding.",
        ),
        (
            lambda: Labels.from_matrix([[0, 1], [0, -1]], coding="full"),
            "row 1, column 1: value -1 does not fit coding 'full', which accepts 1 (positive), 0 (negative) and "
            "NaN (unknown). Correct the value or pass another coding.",
        ),
        (
            lambda: Labels.from_matrix([[0, np.nan]], coding="positive"),
            "row 0, column 1: value nan does not fit coding 'positive', which accepts 1 (positive) and 0 (unknown). "
            "Correct the value or pass another coding.",
        ),
        (
            lambda: Labels.from_matrix([[0, 1]], ANIMALS),
            "there are 4 class names, but the matrix has 2 columns.",
        ),
        (
            lambda: Labels.from_matrix([0, 1]),
            "a label matrix must have 2 dimensions, rows × classes, not the shape (2,).",
        ),
        (lambda: Labels.from_matrix([["a"]]), "a label matrix must contain numbers, not <U1."),
        (
            lambda: Labels.from_matrix([[1]], coding="onehot"),
            "coding is 'onehot': it must be one of 'signed', 'full', 'positive'.",
        ),
        (
            lambda: Labels.from_indices([0], ANIMALS).batch([1]),
            "row 1 is out of range: the table has 1 rows.",
        ),
        (
            lambda: Labels.from_indices([0], ANIMALS).subset([-1]),
            "row -1 is out of range: the table has 1 rows.",
        ),
        (lambda: Labels.from_indices([0], ANIMALS).dense([0.0]), "rows must be whole numbers, not float64."),
        (
            lambda: Labels.from_indices([0], ANIMALS, ids=["a"]).subset([0, 0]),
            "rows 0 and 1 have the same id 'a': ids must differ.",
        ),
        (
            lambda: Labels.from_matrix([[1, 0], [1, -1]]).single(),
            "row 1 has 1 known positives and 1 known negatives: these are not single positive labels. "
            "Use dense() or positives() instead.",
        ),
        (
            lambda: simulate(full_table(2, 3), positives=-1),
            "positives must be a whole number of at least 0, not -1",
        ),
        (
            lambda: simulate(full_table(2, 3), seed=-1),
            "seed is -1: it must be a whole number from 0 to 2**32 - 1.",
        ),
        (
            lambda: simulate(full_table(2, 3), class_preference=[1, 2]),
            "class_preference has shape (2,): pass one number for each of the 3 classes.",
        ),
        (
            lambda: simulate(full_table(2, 3), class_preference=[1, -2, 1]),
            "class_preference of '1' is -2.0: it must be 0 or more.",
        ),
        (
            lambda: simulate(full_table(2, 3), entry_weights=np.ones((3, 2))),
            "entry_weights has shape (3, 2): it must have the shape of the labels, (2, 3).",
        ),
        (
            lambda: simulate(Labels.from_indices([0, 1], ANIMALS), entry_weights=[[1, 1, 1, 1], [1, np.nan, 1, 1]]),
            "row 1, column 1: entry weight nan must be 0 or more.",
        ),
        (lambda: drop_labels(full_table(2, 3), 1.5), "share is 1.5: it must lie between 0 and 1."),
        (
            lambda: split(10, validation_share=1.0),
            "validation_share is 1.0: it must be at least 0 and below 1.",
        ),
        (
            lambda: estimate_k(Labels.from_matrix([[1, -1], [0, 1]])),
            "row 1 has 1 unknown labels. Pass fully labelled rows only.",
        ),
        (
            lambda: estimate_k(full_table(2, 3).subset([])),
            "k cannot be estimated from a table without rows. Pass at least one fully labelled row.",
        ),
        (
            lambda: k_intervals(full_table(4, 3), sample_sizes=(5,)),
            "a sample of 5 rows cannot be drawn from 4 rows. Use smaller sample_sizes.",
        ),
    ],
)
def test_error_message(make, message) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message


# Storage


def test_a_million_single_positives_are_small_and_fast() -> None:
    num_rows, num_classes = 1_000_000, 100_000
    indices = np.random.default_rng(0).integers(-1, num_classes, num_rows)
    start = time.process_time()
    labels = Labels.from_indices(indices, [f"class {c}" for c in range(num_classes)])
    rows = np.arange(0, num_rows, num_rows // 16)[:16]
    batch = labels.batch(rows)
    seconds = time.process_time() - start
    assert labels.nbytes <= 8 * num_rows
    assert batch.shape == (16, num_classes)
    assert batch.sum(dim=1).tolist() == (indices[rows] >= 0).astype(int).tolist()
    assert labels.subset(rows).single().tolist() == indices[rows].tolist()
    assert seconds < 2  # a dense table would be 100 GB


def test_sparse_tables_store_only_listed_entries() -> None:
    truth = full_table(1000, 81)
    num_positives = len(truth.positives()[0])
    assert truth.nbytes == 1001 * 8 + num_positives * 5
    one_positive_all_negatives = simulate(truth, 1, None)
    assert one_positive_all_negatives.nbytes == truth.nbytes  # the other positives are now listed as unknown


def test_tables_are_immutable() -> None:
    labels = full_table(5, 4)
    single = simulate(labels)
    for array in (labels.entries().value, labels.entries().column, labels.entries().start):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    single.single()[:] = 3
    single.origin["seed"] = 7
    single.dense()[:] = 1
    single.batch([0])[:] = 1
    assert simulate(labels).fingerprint() == single.fingerprint()
    assert single.origin["seed"] == 1200


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
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="no space left"):
        new.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["labels.npz"]
    assert Labels.load(path).fingerprint() == old.fingerprint()


def test_load_raises_on_other_files(tmp_path) -> None:
    path = tmp_path / "labels.npz"
    with pytest.raises(InputError, match=r"labels\.npz: no such file\.$"):
        Labels.load(path)
    np.savez(path, header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match=r"labels\.npz: not a readable file of labels .*allow_pickle=False"):
        Labels.load(path)
    for content in (b"", b"hello", b"PK\x03\x04 not a zip"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"labels\.npz: not a readable file of labels"):
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


def test_fingerprint_depends_on_labels_and_classes_only() -> None:
    labels = Labels.from_indices([0, 1], ANIMALS)
    same = Labels.from_names(["ant", "bee"], ANIMALS, ids=["x", "y"])
    others = [
        Labels.from_indices([1, 0], ANIMALS),
        Labels.from_indices([0, -1], ANIMALS),
        Labels.from_indices([0, 1, -1], ANIMALS),
        Labels.from_indices([0, 1], ANIMALS[::-1]),
        Labels.from_lists([["ant"], ["bee"]], ANIMALS, rest="negative"),
    ]
    assert labels.fingerprint() == same.fingerprint()
    assert len({labels.fingerprint(), *(other.fingerprint() for other in others)}) == 6
    # Checkpoints record it, so it must never change for the same labels.
    content = b'["spml labels 1", 2, 0, ["ant", "bee", "cat", "dog"]]'
    content += np.array([0, 1, 2], "<i8").tobytes() + np.array([0, 1], "<i4").tobytes() + b"\x01\x01"
    assert labels.fingerprint() == hashlib.sha256(content).hexdigest()


def test_subset_keeps_ids_and_origin() -> None:
    labels = Labels.from_names(["cat", "ant", "bee"], ids=[7, 8, 9])
    assert labels.ids is not None
    assert labels.ids.tolist() == ["7", "8", "9"]
    part = labels.subset([2, 0]).subset([1])
    assert part.ids is not None
    assert part.ids.tolist() == ["7"]
    assert part.origin == {"created_by": "from_names", "subset": {"rows": 1, "of": 3}}
    assert repr(labels) == "Labels(3 rows × 3 classes: 3 positive, 0 negative, 6 unknown)"


# Simulation


def drawn_row_by_row(truth: np.ndarray, positives: int | None, negatives: int | None, seed: int) -> np.ndarray:
    """Cole et al.'s draw, written row by row."""
    rng = np.random.RandomState(seed)
    observed = np.zeros(truth.shape, np.int8)
    for row, out in zip(truth, observed, strict=True):
        for value, keep in ((1, positives), (-1, negatives)):
            where = np.flatnonzero(row == value)
            rng.shuffle(where)
            out[where[:keep]] = value
    return observed


@no_deadline
@given(SIGNED, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_uniform_draw_follows_the_protocol(matrix, positives, negatives, seed) -> None:
    labels = simulate(Labels.from_matrix(matrix), positives, negatives, seed=seed)
    np.testing.assert_array_equal(labels.dense(), drawn_row_by_row(matrix, positives, negatives, seed))


def test_uniform_draw_on_voc_equals_the_published_one(voc, voc_truth) -> None:
    labels = simulate(voc_truth)
    rows = np.union1d(voc["train"], voc["val"])
    assert len(rows) == 5717
    np.testing.assert_array_equal(labels.single(), voc["observed"][rows])
    assert (voc["observed"][voc["test"]] == -1).all()
    assert labels.ids is not None
    assert labels.ids.tolist() == voc["image"][rows].tolist()


def test_simulation_records_its_origin() -> None:
    truth = full_table(6, 4)
    assert simulate(truth, 1, None, seed=3).origin == {
        "created_by": "simulate",
        "positives": 1,
        "negatives": None,
        "seed": 3,
        "biased_by": [],
        "truth": truth.fingerprint(),
    }
    biased = simulate(truth, np.int64(2), class_preference=np.ones(4), entry_weights=np.ones((6, 4)))
    assert biased.origin["biased_by"] == ["class_preference", "entry_weights"]
    assert biased.origin["positives"] == 2
    dropped = drop_labels(truth, 0.25, seed=5).origin
    assert dropped == {"created_by": "drop_labels", "share": 0.25, "seed": 5, "truth": truth.fingerprint()}


def test_simulation_of_120_000_rows_is_fast() -> None:
    truth = full_table(120_000, 81, mean=1.9)
    start = time.process_time()
    labels = simulate(truth)
    assert time.process_time() - start < 20
    assert labels.nbytes == 4 * 120_000
    np.testing.assert_array_equal(labels.single() >= 0, truth.entries().per_row(1) > 0)


@no_deadline
@given(SIGNED, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3), st.integers(0, 99))
def test_biased_draw_keeps_the_requested_numbers_of_true_labels(matrix, positives, negatives, seed) -> None:
    weights = np.random.default_rng(seed).integers(0, 3, matrix.shape)
    drawn = simulate(Labels.from_matrix(matrix), positives, negatives, seed=seed, entry_weights=weights).dense()
    assert ((drawn == 0) | (drawn == matrix)).all()
    for value, requested in ((1, positives), (-1, negatives)):
        available = (matrix == value).sum(axis=1)
        np.testing.assert_array_equal(
            (drawn == value).sum(axis=1), available if requested is None else np.minimum(available, requested)
        )
    if positives is not None:  # positives of weight 0 are drawn last
        left_over = (matrix == 1) & (drawn == 0) & (weights > 0)
        taken_at_zero = (drawn == 1) & (weights == 0)
        assert not (left_over.any(axis=1) & taken_at_zero.any(axis=1)).any()


def shares(labels: Labels) -> np.ndarray:
    return labels.counts().positives / len(labels)


def test_biased_draws_have_the_requested_odds() -> None:
    n = 40_000  # an error of 0.01 has a probability below 1e-4
    truth = Labels.from_lists([["ant", "bee", "cat"]] * n, ANIMALS, rest="negative")
    drawn = simulate(truth, class_preference=[1, 2, 5, 100])
    np.testing.assert_allclose(shares(drawn), [1 / 8, 2 / 8, 5 / 8, 0], atol=0.01)
    drawn = simulate(truth, entry_weights=np.tile(np.float16([0.25, 0.25, 0.5, 1]), (n, 1)))
    np.testing.assert_allclose(shares(drawn), [0.25, 0.25, 0.5, 0], atol=0.01)
    drawn = simulate(truth, class_preference=[4, 1, 0, 1], entry_weights=np.tile([1, 2, 9, 9], (n, 1)))
    np.testing.assert_allclose(shares(drawn), [2 / 3, 1 / 3, 0, 0], atol=0.01)
    # Two of three without replacement: the class that would come third is left out.
    first, second, third = 1 / 8, 2 / 8, 5 / 8
    out = first * second / (second + third) + second * first / (first + third)
    drawn = simulate(truth, positives=2, class_preference=[1, 2, 5, 1])
    np.testing.assert_allclose(shares(drawn)[2], 1 - out, atol=0.01)
    # All weights zero, or all equal: uniform.
    for preference in ([0, 0, 0, 1], [3, 3, 3, 3]):
        np.testing.assert_allclose(
            shares(simulate(truth, class_preference=preference)), [1 / 3, 1 / 3, 1 / 3, 0], atol=0.01
        )
    uniform = simulate(truth)
    np.testing.assert_allclose(shares(uniform), [1 / 3, 1 / 3, 1 / 3, 0], atol=0.01)


def test_size_biased_draw_on_voc_prefers_large_objects(voc, voc_truth) -> None:
    size = voc["largest_share"][np.union1d(voc["train"], voc["val"])].astype(float)
    rows = np.arange(len(size))
    uniform, biased = simulate(voc_truth).single(), simulate(voc_truth, entry_weights=size).single()
    assert (voc_truth.dense()[rows, biased] == 1).all()
    # Expected size of the chosen object: Σ s²/Σ s over a row's positives when drawn by size.
    positive = voc_truth.dense() == 1
    expected = np.where(positive, size**2, 0).sum(1) / np.where(positive, size, 0).sum(1)
    assert size[rows, biased].mean() == pytest.approx(expected.mean(), abs=0.005)
    assert size[rows, uniform].mean() == pytest.approx(
        (np.where(positive, size, 0).sum(1) / positive.sum(1)).mean(), abs=0.005
    )


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_drop_labels_drops_the_share_of_every_row(share: float) -> None:
    truth = full_table(4000, 20, mean=3)
    dropped = drop_labels(truth, share)
    before, after = truth.dense(), dropped.dense()
    assert ((after == 0) | (after == before)).all()
    np.testing.assert_array_equal((after == 0).sum(axis=1), round(share * 20))
    # Positives, negatives and all classes are dropped equally often.
    assert (after[before == 1] == 0).mean() == pytest.approx(share, abs=0.03)
    np.testing.assert_allclose((after == 0).mean(axis=0), share, atol=0.05)
    assert drop_labels(truth, share).fingerprint() == dropped.fingerprint()


@no_deadline
@given(SIGNED, st.floats(0, 1))
def test_drop_labels_counts_only_known_labels(matrix: np.ndarray, share: float) -> None:
    after = drop_labels(Labels.from_matrix(matrix), share).dense()
    known = (matrix != 0).sum(axis=1)
    np.testing.assert_array_equal((after != 0).sum(axis=1), known - np.round(share * known))
    assert ((after == 0) | (after == matrix)).all()


def test_draws_do_not_depend_on_the_block_size(monkeypatch) -> None:
    truth = full_table(40, 6)
    whole = drop_labels(truth, 0.4)
    monkeypatch.setattr("spml.labels.entries._BLOCK", 7)
    assert drop_labels(truth, 0.4).fingerprint() == whole.fingerprint()
    assert full_table(40, 6).fingerprint() == truth.fingerprint()
    broken = truth.dense()
    broken[33, 2] = 5
    with pytest.raises(InputError, match=r"^row 33, column 2: value 5"):
        Labels.from_matrix(broken)


# Splitting


@pytest.mark.parametrize(
    ("n_rows", "training", "validation"),
    [(5717, 4574, 1143), (82081, 65665, 16416), (150000, 120000, 30000), (5994, 4795, 1199)],
    ids=["voc", "coco", "nus", "cub"],
)
def test_split_sizes_equal_the_published_ones(n_rows: int, training: int, validation: int) -> None:
    train, val = split(n_rows)
    assert (len(train), len(val)) == (training, validation)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, val])), np.arange(n_rows))
    assert (np.diff(train) > 0).all()
    assert (np.diff(val) > 0).all()


def test_split_of_voc_equals_the_published_one(voc) -> None:
    train, val = split(5717)
    np.testing.assert_array_equal(train, voc["train"])
    np.testing.assert_array_equal(val, voc["val"])


def test_split_without_validation_and_with_other_seeds() -> None:
    train, val = split(10, validation_share=0)
    assert train.tolist() == list(range(10))
    assert val.tolist() == []
    assert split(100, seed=1)[1].tolist() != split(100, seed=2)[1].tolist()


# k


def test_k_intervals_of_voc_equal_table_a2(voc_truth) -> None:
    intervals = k_intervals(voc_truth)
    printed = {size: (round(low, 1), round(high, 1)) for size, (low, high) in intervals.items()}
    assert printed == {5: (1.0, 2.0), 10: (1.1, 1.9), 25: (1.2, 1.7)}
    assert round(estimate_k(voc_truth).k, 1) == 1.5


def test_k_intervals_are_percentiles_of_draws_without_replacement() -> None:
    truth = full_table(60, 12, mean=4)
    per_row = (truth.dense() == 1).sum(axis=1)
    rng = np.random.default_rng(1)
    for size, (low, high) in k_intervals(truth, (7, 40), trials=20_000).items():
        means = [rng.choice(per_row, size, replace=False).mean() for _ in range(20_000)]
        np.testing.assert_allclose((low, high), np.percentile(means, [5, 95]), atol=1 / size + 1e-9)
    (exact,) = set(k_intervals(truth, (60,), trials=10).values())
    assert exact == (per_row.mean(), per_row.mean())  # a sample of all rows has no variance


def test_estimate_k_is_the_mean_with_a_bootstrap_interval() -> None:
    sample = Labels.from_lists([["ant"], ["ant", "bee", "cat"], [], ["dog", "cat"]], ANIMALS, rest="negative")
    estimate = estimate_k(sample)
    assert estimate.k == 1.5
    assert estimate.rows == 4
    # Compare with all 256 resamples of four rows.
    resamples = np.stack(np.meshgrid(*[[1, 3, 0, 2]] * 4)).reshape(4, -1).mean(axis=0)
    assert (estimate.low, estimate.high) == tuple(np.percentile(resamples, [5, 95], method="nearest"))
    assert estimate == estimate_k(sample)
    certain = estimate_k(Labels.from_lists([["ant"], ["bee"]], ANIMALS, rest="negative"))
    assert (certain.k, certain.low, certain.high) == (1.0, 1.0, 1.0)
