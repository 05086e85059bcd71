"""Forms of y: every form of the same labels gives the same table."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from spml.errors import InputError
from spml.estimator.targets import read_targets

NAMES = ["ant", "bee", "cow"]


@st.composite
def rows_of_classes(draw: st.DrawFn) -> list[int]:
    """Column of each row's class, -1 for none; every class occurs."""
    index = draw(st.lists(st.integers(-1, 2), min_size=0, max_size=20))
    return draw(st.permutations([*index, 0, 1, 2]))


@given(rows_of_classes())
def test_all_forms_of_one_class_per_row_are_equal(index: list[int]) -> None:
    names = [NAMES[i] if i >= 0 else None for i in index]
    numbers = [float(i) if i >= 0 else np.nan for i in index]
    strings = ["" if name is None else name for name in names]
    forms: list[Any] = [
        index,
        np.array(index),
        np.array(index, np.int8),
        np.array(index, float),
        numbers,
        np.array(numbers),
        np.array([None if i < 0 else i for i in index], object),
        pd.Series(index, index=range(5, 5 + len(index))),
        pd.Series(numbers),
        pd.Series([None if i < 0 else i for i in index], dtype="Int64"),
        names,
        strings,
        [float("nan") if name is None else name for name in names],
        np.array(names, object),
        np.array(strings),
        pd.Series(names),
        pd.Series(names, dtype="category"),
        pd.Series(names, dtype="string"),
    ]
    for form in forms:
        targets = read_targets(form)
        assert targets.exclusive
        assert targets.labels.single().tolist() == index, repr(form)
        assert targets.classes.tolist() in ([0, 1, 2], NAMES)


@given(st.lists(st.lists(st.sampled_from([-1, 0, 1]), min_size=3, max_size=3), min_size=1, max_size=10))
def test_all_forms_of_a_matrix_are_equal(rows: list[list[int]]) -> None:
    matrix = np.array(rows)
    if not matrix.any():
        with pytest.raises(InputError, match="no row of y has a label"):
            read_targets(matrix)
        return
    forms: list[Any] = [
        rows,
        matrix,
        matrix.astype(float),
        matrix.astype(object),
        scipy.sparse.csr_array(matrix),
        scipy.sparse.coo_matrix(matrix),
        pd.DataFrame(matrix, columns=NAMES),
        pd.DataFrame(matrix, columns=NAMES).astype("Int8"),
    ]
    for form in forms:
        targets = read_targets(form)
        assert not targets.exclusive
        np.testing.assert_array_equal(targets.labels.dense(), matrix, repr(form))
        assert targets.classes.tolist() == (NAMES if isinstance(form, pd.DataFrame) else [0, 1, 2])


def test_booleans() -> None:
    assert read_targets([True, False, True]).classes.tolist() == [False, True]
    table = pd.DataFrame({"ant": [True, False], "bee": [False, True]})
    assert read_targets(table).labels.dense().tolist() == [[1, 0], [0, 1]]


def test_minus_one_is_a_class_only_if_there_are_no_two_others() -> None:
    two = read_targets([-1, 1, 1, -1])
    assert two.classes.tolist() == [-1, 1]
    assert two.labels.single().tolist() == [0, 1, 1, 0]
    three = read_targets([-1, 1, 2, -1])
    assert three.classes.tolist() == [1, 2]
    assert three.labels.single().tolist() == [-1, 0, 1, -1]
    named = read_targets(np.array([-1, 1, 2, -1]).astype(str))
    assert named.classes.tolist() == ["-1", "1", "2"]
    assert (named.labels.single() >= 0).all()


def test_fitted_classes_decide_what_minus_one_means() -> None:
    assert read_targets([-1, 1, 1], np.array([1, 2])).labels.single().tolist() == [-1, 0, 0]
    assert read_targets([-1, 1], np.array([-1, 1])).labels.single().tolist() == [0, 1]
    assert read_targets([np.nan, 1], np.array([1, 2])).labels.single().tolist() == [-1, 0]


def test_column_of_classes_is_one_class_per_row() -> None:
    with pytest.warns(DataConversionWarning):
        targets = read_targets(np.array([["a"], ["b"]]))
    assert targets.exclusive
    assert read_targets(pd.DataFrame({"label": ["a", None, "b"]})).labels.single().tolist() == [0, -1, 1]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed, but the target y is None"),
        ("ant", "y must have one entry per row, not be a str"),
        (3, "y must have one entry per row, not be a int"),
        ([None, None], "no row of y has a label"),
        ([float("nan")] * 3, "no row of y has a label"),
        (["ant", 3], r"y mixes strings and other values \(3\)"),
        ([["ant"], ["bee", "ant"]], "MultiLabelBinarizer"),
        ([["ant", "bee"], ["bee", "ant"]], "y is a matrix of strings"),
        (np.zeros((2, 2, 2)), r"not of shape \(2, 2, 2\)"),
        ([[1, 0], [0, 2]], "row 1, column 1 of y is 2: a label matrix may hold 1"),
        ([[1, 0], [0, np.nan]], "row 1, column 1 of y is nan"),
        (pd.DataFrame([[1, 0]], columns=["ant", "ant"]), "two columns of y have the same name"),
    ],
)
def test_invalid_y_raises(y: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_targets(y)


@pytest.mark.parametrize("y", [[0.5, 1.7, 2.1], [np.inf, 0.0, 1.0]])
def test_numbers_that_are_not_classes_raise(y: list[float]) -> None:
    with pytest.raises(ValueError, match=r"continuous|infinity"):
        read_targets(y)


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (["ant", "fly"], np.array(["ant", "bee"]), "row 1 of y is 'fly', which is not one of the fitted classes"),
        ([None, "fly"], np.array(["ant", "bee"]), "row 1 of y is 'fly'"),
        ([0, 1], np.array(["ant", "bee"]), "the classifier was fitted with <U3 classes"),
        ([[0, 1, 0]], np.arange(2), "y has 3 columns, but the classifier was fitted with 2 classes"),
        (pd.DataFrame([[0, 1]], columns=["bee", "ant"]), np.array(["ant", "bee"]), "the columns of y are not those"),
    ],
)
def test_y_that_does_not_fit_the_fitted_classes_raises(y: Any, classes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_targets(y, classes)
