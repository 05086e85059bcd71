"""Usual names of the columns of a table, and how messages refer to columns and rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Without blanks, case, hyphens and underscores; the first one present is used.
_USUAL = {
    "image": "image imagepath imagefile imagefilename path filepath file filename img imgpath photo picture uri",
    "label": "label labels tag tags class classes classname category categories target species topic topics",
    "text": "text texts document body content message abstract review comment sentence description utterance",
    "id": "id imageid rowid sampleid uuid key",
    "split": "split subset partition set",
}
_INDEX = re.compile(r"|index|unnamed:\d+(\.\d+)*|indexlevel\d+")  # as pandas and R write them; one without a name
NUMBER = re.compile(  # also with thousands separators or a decimal comma
    r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?|[+-]?\d{1,3}(,\d{3})+(\.\d*)?"
)


def usual_column(kind: str, names: Sequence[str]) -> str | None:
    """Return the column with a usual name for this kind."""
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[name] for name in _USUAL[kind].split() if name in plain), None)


def index_columns(names: Iterable[str]) -> list[str]:
    """Return the columns that number the rows, by their names."""
    return [name for name in names if _INDEX.fullmatch(_plain(name))]


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c not in " -_")


def list_names(names: Sequence[str]) -> str:
    """At most 20 names in quotes, separated by commas."""
    return ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")


def row_label(row: int) -> str:
    """How errors refer to a row of a table."""
    return f"row {row + 1} (not counting the header)"
