"""Texts by row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spml.errors import InputError
from spml.labels.inputs import row_indices


class TextStore:
    """N texts, one per row.

    Parameters
    ----------
    texts : iterable of str
        None counts as an empty text.
    name : str, optional
        Where the texts come from, for error messages.
    column : str, optional
        The column of a table they come from.

    Raises
    ------
    InputError
        If there is no row, a row is not a text, or every text is empty.

    Examples
    --------
    >>> store = TextStore(["the lights stay on", "refund, please"])
    >>> store
    TextStore(2 texts)
    >>> store.texts([1])
    ['refund, please']
    """

    def __init__(self, texts: Iterable[str | None], name: str = "the texts", column: str | None = None) -> None:
        self.column = column
        self._texts = ["" if text is None else text for text in texts]
        if not self._texts:
            raise InputError(f"{name}: there are no rows.")
        for row, text in enumerate(self._texts):
            if not isinstance(text, str):
                raise InputError(f"{name}: row {row} is of type {type(text).__name__}; a text is expected.")
        self.empty_rows: npt.NDArray[np.int64] = np.flatnonzero([not text.strip() for text in self._texts])
        """Rows without any visible character."""
        if len(self.empty_rows) == len(self._texts):
            raise InputError(f"{name}: all {len(self._texts)} texts are empty.")

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        return f"TextStore({len(self)} texts)"

    @property
    def good_rows(self) -> npt.NDArray[np.int64]:
        """All rows: texts that cannot be read raise an error and are never skipped."""
        return np.arange(len(self))

    def texts(self, rows: Any = None) -> list[str]:
        """Return the texts of the given rows; by default of all rows."""
        if rows is None:
            return list(self._texts)
        return [self._texts[row] for row in row_indices(rows, len(self)).tolist()]

    def notes(self) -> list[str]:
        """Return a sentence about empty texts, if there are any."""
        if not len(self.empty_rows):
            return []
        return [f"{len(self.empty_rows)} of {len(self)} texts are empty, for example row {self.empty_rows[0] + 1}."]

    def prepare(self, progress: bool = False) -> None:
        """Texts need no preparation; for the same signature as `ImageStore.prepare`."""

    def fingerprint(self) -> str:
        """Return a digest of all texts."""
        digest = hashlib.sha256()
        for text in self._texts:
            content = text.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
        return digest.hexdigest()


def read_text(path: Path) -> str:
    """Read a text file, which must be UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the text is not UTF-8 (byte {error.start}): save it as UTF-8.") from error
    except OSError as error:
        raise InputError(f"{path}: the text cannot be read ({error.strerror}).") from error
