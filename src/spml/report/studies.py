"""Line charts of result tables: mean and standard deviation over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spml.errors import InputError
from spml.report.figures import Series, line_chart
from spml.report.markup import Html, tag
from spml.report.sections import Section

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class StudyChart:
    """Rows of results (as read from a CSV file) and the columns to plot: `y` over `x`, one line per value of `by`."""

    title: str
    rows: Rows
    x: str
    y: str = "test_map"
    by: str = "method"
    x_label: str = ""
    y_label: str = "test mAP"
    log_x: bool = False
    note: str = ""


def study_figure(study: StudyChart) -> Html:
    """Plot a study as a line chart; scores in [0, 1] are shown in percent."""
    points: dict[str, dict[float, list[float]]] = {}
    for index, row in enumerate(study.rows):
        points.setdefault(str(row.get(study.by, "")), {}).setdefault(_number(study, index, row, study.x), []).append(
            100 * _number(study, index, row, study.y)
        )
    series = [Series.averaged(name, values) for name, values in sorted(points.items())]
    note = study.note + (" The band shows one standard deviation over seeds." if any(s.spread for s in series) else "")
    return line_chart(
        series,
        title=study.title,
        x_label=study.x_label or study.x,
        y_label=study.y_label,
        note=note.strip(),
        log_x=study.log_x,
    )


def studies_section(studies: Sequence[StudyChart]) -> Section:
    charts = tag("div", *(study_figure(study) for study in studies), class_="figures")
    return Section("studies", "Studies", charts)


def _number(study: StudyChart, index: int, row: Mapping[str, Any], column: str) -> float:
    try:
        number = float(row[column])
    except KeyError:
        columns = ", ".join(map(str, row))
        raise InputError(f"{study.title}: row {index} has no column {column!r}; its columns are {columns}") from None
    except (TypeError, ValueError):
        raise InputError(f"{study.title}: row {index}, column {column!r} is {row[column]!r}, not a number") from None
    if not math.isfinite(number) or (study.log_x and column == study.x and number <= 0):
        raise InputError(f"{study.title}: row {index}, column {column!r} is {number:g}, which cannot be plotted")
    return number
