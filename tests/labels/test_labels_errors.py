"""Error messages of label tables: they name row, column and value, and say what to do."""

import numpy as np
import pytest

from spml.errors import InputError
from spml.labels import Labels, drop_labels, estimate_k, k_intervals, simulate, split
from support.label_tables import ANIMALS, full_table


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
        (lambda: Labels.from_indices([0], []), "classes is empty: a label table needs at least one class."),
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
