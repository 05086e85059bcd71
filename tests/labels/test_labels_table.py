"""Label tables: constructors, accessors, storage."""

import hashlib
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spml.errors import InputError
from spml.labels import Labels, drop_labels, simulate
from support.label_tables import ANIMALS, SIGNED, full_table, no_deadline

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7)


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
