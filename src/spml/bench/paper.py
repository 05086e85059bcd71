"""Published numbers: the tables of papers that results are compared with."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from spml.bench.toml_files import packaged_files


@dataclass(frozen=True)
class Paper:
    """The published table to compare with: a file of `files/papers/`, the table's number, and its column."""

    file: str
    table: str
    setting: str = ""


@dataclass(frozen=True)
class PaperValue:
    """One number of a paper, in percent."""

    value: float
    sd: float | None

    def __str__(self) -> str:
        return mean_and_sd(self.value, self.sd)


def mean_and_sd(mean: float, sd: float | None) -> str:
    """86.50 ± 0.31"""
    return f"{mean:.2f}" + ("" if sd is None else f" ± {sd:.2f}")


def paper_values(paper: Paper | None, measure: str = "test_map") -> dict[tuple[str, str, str], PaperValue]:
    """The numbers of a paper's table by setting, method and data set; only of `paper.setting`, if it is given."""
    if paper is None:
        return {}
    with packaged_files("papers")[paper.file].open(newline="", encoding="utf-8") as file:
        return {
            (row["setting"], row["method"], row["dataset"]): PaperValue(
                float(row["value"]), float(row["sd"]) if row["sd"] else None
            )
            for row in csv.DictReader(file)
            if row["table"] == paper.table and row["measure"] == measure and paper.setting in ("", row["setting"])
        }
