"""A small table of features whose rows have one to three labels by a linear rule, one of which is observed."""

import numpy as np


class SingleLabels:
    """Features X, the true labels, and observed labels in several forms.

    Attributes
    ----------
    X : array of shape (rows, dim)
    truth : bool array of shape (rows, classes)
    y : array of shape (rows,), the observed class
    names : array of shape (rows,), its name
    one_hot : array of shape (rows, classes), 1 for observed and 0 for unknown
    signed : array of shape (rows, classes), the same with some verified negatives, -1
    """

    classes = np.array(["ant", "bee", "cow", "dog", "eel"])

    def __init__(self, rows: int = 300, dim: int = 8) -> None:
        rng = np.random.default_rng(0)
        scores = (X := rng.normal(size=(rows, dim))) @ rng.normal(size=(dim, 5)) - 1.5
        self.X = X
        self.truth = (scores > 0) | (scores == scores.max(1, keepdims=True))
        self.y = np.array([rng.choice(np.flatnonzero(row)) for row in self.truth])
        self.names = self.classes[self.y]
        self.one_hot = np.eye(5, dtype=int)[self.y]
        self.signed = np.where(self.truth, self.one_hot, -(rng.random(self.truth.shape) < 0.3).astype(int))
