"""Which questions to ask first, so that few answers help most."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


def expected_gain(probabilities: npt.NDArray[np.floating], recovered: Bool, open: Bool) -> Float32:
    """How much an answer about each label is expected to help.

    An answer corrects the label with the probability that it is wrong: 1 − p if it was recovered, p if not. It also
    removes the variance p·(1 − p), from which the model learns about similar rows. Both count equally. An answer
    counts more for rare labels, because quality is averaged over classes: the gain is divided by the square root of
    the expected number of rows with the label.

    Parameters
    ----------
    probabilities : array of shape (R, L)
        P(label present) given everything known.
    recovered : bool array of shape (R, L)
        Labels that count as present unless an answer says otherwise.
    open : bool array of shape (R, L)
        Labels that nobody has decided; all others gain nothing.

    Returns
    -------
    array of shape (R, L)

    Examples
    --------
    >>> p = np.array([[0.5, 0.9, 0.9], [0.1, 0.5, 0.1]])
    >>> expected_gain(p, np.array([[0, 1, 0], [0, 0, 1]], bool), np.array([[1, 1, 1], [1, 0, 1]], bool)).round(2)
    array([[0.75, 0.16, 0.99],
           [0.19, 0.  , 0.99]], dtype=float32)
    """
    present = np.asarray(probabilities, np.float32)
    frequency = np.maximum(present.sum(axis=0), 1.0)
    gain = np.where(recovered, 1 - present, present) + present * (1 - present)
    return np.where(open, gain / np.sqrt(frequency), np.float32(0))
