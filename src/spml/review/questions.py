"""Which questions to ask first, so that few answers help most."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


def expected_gain(probabilities: npt.NDArray[np.floating], open: Bool) -> Float32:
    """How much an answer about each label is expected to help.

    An answer removes the variance p·(1 − p) of a label. It counts more for rare labels, because quality is averaged
    over classes: the gain is divided by the square root of the expected number of rows with the label.

    Parameters
    ----------
    probabilities : array of shape (R, L)
        P(label present) given everything known.
    open : bool array of shape (R, L)
        Labels that nobody has decided; all others gain nothing.

    Returns
    -------
    array of shape (R, L)

    Examples
    --------
    >>> expected_gain(np.array([[0.5, 0.9], [0.1, 0.5]]), np.array([[True, True], [True, False]])).round(2)
    array([[0.25, 0.08],
           [0.09, 0.  ]], dtype=float32)
    """
    present = np.asarray(probabilities, np.float32)
    frequency = np.maximum(present.sum(axis=0), 1.0)
    return np.where(open, present * (1 - present) / np.sqrt(frequency), np.float32(0))
