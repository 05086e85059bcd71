"""Array types, checks and logits that the calibration shares."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logit

from spml.errors import InputError
from spml.labels.entries import row_blocks

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def checked(probabilities: npt.NDArray[Any], classes: int) -> npt.NDArray[Any]:
    """Validate a table of probabilities; `classes` −1 means any number of classes."""
    table = np.asarray(probabilities)
    if table.ndim != 2 or 0 in table.shape or (classes >= 0 and table.shape[1] != classes):
        expected = f"{classes} classes" if classes >= 0 else "classes"
        raise InputError(f"probabilities must be a table of rows × {expected} with at least one row, not {table.shape}")
    for rows in row_blocks(*table.shape):
        wrong = ~((table[rows] >= 0) & (table[rows] <= 1)).all(axis=1)
        if wrong.any():
            row = rows.start + int(wrong.argmax())
            raise InputError(f"row {row} has a probability that is not a number from 0 to 1")
    return table


def clipped_logits(probabilities: npt.NDArray[Any]) -> Float64:
    """Logits, clipped to the precision of float32 near 1."""
    logits: Float64 = logit(np.clip(probabilities, 1e-7, 1 - 1e-7, dtype=np.float64))
    return logits
