"""What is at a path: a summary of a data set, and whether it has the counts of the papers' tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from spml.data.dataset import Dataset
from spml.data.formats import coco, cub, nuswide, voc
from spml.data.formats.official import PaperCounts
from spml.errors import InputError

PAPERS = {"voc12": voc.PAPER, "coco": coco.PAPER, "nus": nuswide.PAPER, "cub": cub.PAPER}
"""Counts in the papers' tables, by the name of the data set in the protocols."""
_OFFICIAL = {"voc": "voc12", "coco": "coco", "nuswide": "nus", "cub": "cub"}  # of formats that are a published data set


def describe_data(dataset: Dataset, paper: str | None = None) -> tuple[dict[str, str], list[str]]:
    """Summarise a data set and compare its counts with the papers'.

    Parameters
    ----------
    dataset : Dataset
    paper : {"voc12", "coco", "nus", "cub"}, optional
        The published data set it should be. Detected for the official layouts.

    Returns
    -------
    summary : dict of str
        By what is described.
    differences : list of str
        Every count that differs from the papers', one sentence each.

    Raises
    ------
    InputError
        If there is no such published data set.
    """
    if paper is not None and paper not in PAPERS:
        raise InputError(f"--paper {paper}: choose from {', '.join(PAPERS)}")
    kind = str(dataset.source.get("kind", "")) if dataset.source else ""
    known = dataset.labels.counts()
    summary: dict[str, Any] = {
        "data": dataset.source["path"] if dataset.source else dataset.name,
        "format": kind,
        "rows": f"{len(dataset.train)} train, {len(dataset.validation)} validation, {len(dataset.test)} test",
        "classes": len(dataset.classes),
        "observed labels": f"{int(known.positives.sum())} positive, {int(known.negatives.sum())} negative",
    }
    if dataset.truth is not None:
        per_row = _positives_per_row(dataset)
        summary["labels per training row"] = f"{per_row.mean():.2f} on average, {per_row.min()} to {per_row.max()}"
    expected = PAPERS.get(paper or _OFFICIAL.get(kind, ""))
    differences = [] if expected is None else expected.mismatches(dataset)
    if expected is not None:
        summary["counts of the papers"] = _verdict(expected, differences)
    others = [note for note in dataset.notes if note not in differences]
    return {name: str(value) for name, value in summary.items() if value != ""} | _numbered(others), differences


def _positives_per_row(dataset: Dataset) -> np.ndarray:
    assert dataset.truth is not None
    rows = np.concatenate([dataset.train, dataset.validation])
    return dataset.truth.open().subset(rows).entries().per_row(1)


def _verdict(expected: PaperCounts, differences: list[str]) -> str:
    return f"{len(differences)} differ" if differences else f"all equal ({expected.where})"


def _numbered(notes: list[str]) -> dict[str, str]:
    return {f"note {number}" if len(notes) > 1 else "note": note for number, note in enumerate(notes, 1)}
