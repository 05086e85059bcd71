"""Charts as inline SVG, coloured by CSS variables so that they fit light and dark themes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spml.report.axes import Axis, Plane, round_ticks, tick_label, with_minus_sign
from spml.report.markup import Html, join, tag

Values = npt.NDArray[np.floating]

COLOURS = 6


@dataclass(frozen=True)
class Series:
    """One line: its points and, with several runs, the standard deviation at each."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    mark: str = ""
    """A CSS class instead of the next colour: "guide" for a line that is not a measurement."""

    @staticmethod
    def averaged(name: str, values: Mapping[float, Sequence[float]]) -> "Series":
        """Return the mean of the values at each x and, if any x has several, their standard deviation."""
        xs, repeated = sorted(values), any(len(at) > 1 for at in values.values())
        spread = [float(np.std(values[x], ddof=1)) if len(values[x]) > 1 else 0.0 for x in xs]
        return Series(name, xs, [float(np.mean(values[x])) for x in xs], spread if repeated else None)


def colour(index: int) -> str:
    """CSS classes of the n-th colour; after the last, colours repeat as dashed lines."""
    return f"s{index % COLOURS + 1}" + (" again" if index >= COLOURS else "")


def figure(title: str, *parts: Html | None, note: str = "") -> Html:
    """Return a titled chart with a note on how to read it."""
    caption = tag("figcaption", tag("h3", title), tag("p", note) if note else None)
    return tag("figure", caption, *parts, class_="card figure")


def legend(names: Sequence[str], marks: Sequence[str]) -> Html | None:
    """Names and their colours; None for a single name."""
    if len(names) < 2:
        return None
    items = [
        tag("li", tag("span", class_=f"key {mark}"), name, class_="name")
        for name, mark in zip(names, marks, strict=True)
    ]
    return tag("ul", *items, class_="legend")


def numbers(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "Show numbers") -> Html:
    """Return the numbers of a chart, as a collapsed table."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    table = tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", *body)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=title,
    )
    return tag("details", tag("summary", title), table, class_="numbers")


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str = "",
    log_x: bool = False,
    whole_x: bool = False,
    y_range: tuple[float, float] | None = None,
    mark: tuple[float, str] | None = None,
) -> Html:
    """Lines over x, with a band of one standard deviation if given. `mark` is a named position on the x axis."""
    x = Axis.over((v for s in series for v in s.x), x_label, log=log_x, whole=whole_x, room=0.03)
    edges = [
        v + sign * w for s in series for v, w in zip(s.y, s.spread or [0.0] * len(s.y), strict=True) for sign in (-1, 1)
    ]
    y = Axis(*y_range, y_label) if y_range else Axis.over(edges, y_label)
    plane = Plane(x, y)
    parts: list[Html] = []
    if mark is not None and x.low <= mark[0] <= x.high:
        parts.append(_mark(plane, *mark))
    for index, line in enumerate(series):
        parts.append(tag("g", *_line(plane, line), class_=line.mark or colour(index)))
    description = f"{title}. " + "; ".join(_in_words(s) for s in series)
    head = [x_label, *(s.name for s in series)]
    every_x = sorted({v for s in series for v in s.x if math.isfinite(v)})
    lookup = [dict(zip(s.x, s.y, strict=True)) for s in series]
    rows = [[_formatted(v), *(_formatted(values.get(v)) for values in lookup)] for v in every_x]
    return figure(
        title,
        legend([s.name for s in series], [s.mark or colour(index) for index, s in enumerate(series)]),
        plane.drawing(*parts, description=description),
        numbers(head, rows),
        note=note,
    )


def histogram(
    groups: Sequence[tuple[str, str, Values]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str = "",
    log_y: bool = False,
) -> Html:
    """Histograms with equal bins over [0, 1]. A group is a name, a CSS class and one height per bin."""
    top = max((float(heights.max()) for _, _, heights in groups), default=1.0) or 1.0
    y = Axis(0.5, max(top * 1.5, 10), y_label, log=True) if log_y else Axis(0, top * 1.05, y_label)
    plane = Plane(Axis(0, 1, x_label), y)
    parts = []
    for name, mark, heights in groups:
        edges = np.linspace(0, 1, len(heights) + 1)
        floor = plane.at_y(y.low)
        steps = [f"M{plane.at_x(0)} {floor}"]
        for height, left, right in zip(heights, edges[:-1], edges[1:], strict=True):
            level = plane.at_y(max(float(height), y.low))
            steps.append(f"L{plane.at_x(float(left))} {level}L{plane.at_x(float(right))} {level}")
        steps.append(f"L{plane.at_x(1)} {floor}Z")
        parts.append(tag("g", tag("path", tag("title", name), class_="area", d="".join(steps)), class_=mark))
    bins = len(groups[0][2])
    rows = [
        [f"{i / bins:.2f} to {(i + 1) / bins:.2f}", *(_formatted(float(heights[i])) for _, _, heights in groups)]
        for i in range(bins)
    ]
    names = [name for name, _, _ in groups]
    return figure(
        title,
        legend(names, [mark for _, mark, _ in groups]),
        plane.drawing(*parts, description=f"{title}: {', '.join(names)}, {y_label} in {bins} bins of {x_label}"),
        numbers([x_label, *names], rows),
        note=note,
    )


def heat_map(values: Values, *, title: str, x: Axis, y: Axis, note: str = "", high: float) -> Html:
    """A matrix as a picture, row 0 at the bottom: the stronger the colour, from 0 to `high`, the larger the value."""
    plane = Plane(x, y)
    rows, columns = values.shape
    xs = np.linspace(plane.at_x(x.low), plane.at_x(x.high), columns + 1)
    ys = np.linspace(plane.at_y(y.low), plane.at_y(y.high), rows + 1)
    cells = []
    for row in range(rows):
        for column in range(columns):
            share = float(values[row, column]) / (high or 1.0)
            if not share > 0.004:  # invisible, or NaN
                continue
            cells.append(
                tag(
                    "rect",
                    tag("title", f"{values[row, column]:.3g}"),
                    class_="cell",
                    x=round(float(xs[column]), 2),
                    y=round(float(ys[row + 1]), 2),
                    width=round(float(xs[column + 1] - xs[column]), 2),
                    height=round(float(ys[row] - ys[row + 1]), 2),
                    fill_opacity=round(min(share, 1.0), 3),
                )
            )
    scale = tag("p", tag("span", "0"), tag("span", class_="ramp"), tag("span", f"{high:.3g}"), class_="scale")
    description = f"{title}. {x.label} against {y.label}; from 0 to {high:.3g}"
    return figure(title, scale, plane.drawing(*cells, description=description, grid=False), note=note)


def scatter(
    x: Sequence[float],
    y: Sequence[float],
    names: Sequence[str],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str = "",
) -> Html:
    """Named points and the line y = x."""
    both = [v for v in (*x, *y) if math.isfinite(v)]
    axis = Axis.over([0.0, *both])
    high = axis.high
    plane = Plane(Axis(0, high, x_label), Axis(0, high, y_label), height=290)
    diagonal = tag("line", class_="mark", x1=plane.at_x(0), y1=plane.at_y(0), x2=plane.at_x(high), y2=plane.at_y(high))
    points_drawn = [
        (a, b, name) for a, b, name in zip(x, y, names, strict=True) if math.isfinite(a) and math.isfinite(b)
    ]
    points = [_dot(plane, a, b, f"{name}: {a:.3g}, {b:.3g}", radius=4.5) for a, b, name in points_drawn]
    description = f"{title}. {x_label} against {y_label} for {len(points_drawn)} labels"
    rows = [[name, _formatted(a), _formatted(b)] for a, b, name in points_drawn]
    drawing = plane.drawing(diagonal, tag("g", *points, class_="s1"), description=description)
    return figure(title, drawing, numbers(["label", x_label, y_label], rows), note=note)


@dataclass(frozen=True)
class Bar:
    """One bar: name, length in [-1, 1] and displayed value."""

    name: str
    length: float
    value: str
    mark: str = "s1"


def bars(entries: Sequence[Bar], *, show: int = 24) -> Html:
    """Horizontal bars. Of more than `show`, the first and last ones are shown, all of them in a collapsed list."""

    def listed(part: Sequence[Bar]) -> Html:
        signed = any(bar.length < 0 for bar in entries)
        return tag("ol", *(_bar(bar, signed) for bar in part), class_="bars")

    if len(entries) <= show:
        return listed(entries)
    half = show // 2
    gap = tag("p", f"… {len(entries) - 2 * half} more …", class_="gap")
    everything = tag("details", tag("summary", f"All {len(entries)}"), listed(entries))
    return join(listed(entries[:half]), gap, listed(entries[-half:]), everything)


def _bar(bar: Bar, signed: bool) -> Html:
    length = 0.0 if bar.length != bar.length else max(-1.0, min(1.0, bar.length))
    if signed:  # zero is in the centre
        left, width = (50 + 50 * min(length, 0), 50 * abs(length))
    else:
        left, width = 0.0, 100 * length
    fill = tag("span", class_=f"fill {bar.mark}", style=f"left:{left:.1f}%;width:{width:.1f}%")
    return tag(
        "li",
        tag("span", bar.name, class_="name"),
        tag("span", fill, class_="bar" + (" signed" if signed else "")),
        tag("span", bar.value, class_="value"),
    )


@dataclass(frozen=True)
class Spread:
    """One row: name, the values of its runs, the displayed text, and a value to compare them with."""

    name: str
    values: Sequence[float]
    value: str
    reference: float | None = None
    mark: str = "s1"


def spreads(entries: Sequence[Spread]) -> Html:
    """One line per entry on a common scale: a dot for every value, a ring for the reference value."""
    all_values = [value for entry in entries for value in (*entry.values, entry.reference) if value is not None]
    axis = Axis.over(all_values, room=0.03)

    def at(value: float, kind: str, text: str) -> Html:
        return tag("span", text, class_=kind, style=f"left:{100 * axis.share(value):.1f}%")

    lines = []
    for entry in entries:
        dots = [at(value, f"point {entry.mark}", "") for value in entry.values]
        if entry.reference is not None:
            dots.append(at(entry.reference, "ring", ""))
        name = tag("span", entry.name, class_="name")
        lines.append(tag("li", name, tag("span", *dots, class_="spread"), tag("span", entry.value, class_="value")))
    ticks = [at(value, "place", tick_label(value)) for value in round_ticks(axis.low, axis.high)]
    scale = tag("li", tag("span"), tag("span", *ticks, class_="ticks"), tag("span"), aria_hidden="true")
    return tag("ol", *lines, scale, class_="bars")


def _line(plane: Plane, series: Series) -> list[Html]:
    points = [(x, y, w) for x, y, w in zip(series.x, series.y, series.spread or [0.0] * len(series.y), strict=True)]
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            pieces[-1].append(point)
        elif pieces[-1]:
            pieces.append([])
    drawn: list[Html] = []
    for piece in pieces:
        if series.spread is not None and len(piece) > 1:
            around = [(x, y + w) for x, y, w in piece] + [(x, y - w) for x, y, w in reversed(piece)]
            drawn.append(tag("path", class_="band", d=_path(plane, around) + "Z"))
        if len(piece) > 1:
            drawn.append(tag("path", class_="line", d=_path(plane, [(x, y) for x, y, _ in piece])))
        if len(points) <= 30:
            drawn += [
                _dot(plane, x, y, f"{series.name}, {tick_label(x)}: {_formatted(y)}", radius=2.6) for x, y, _ in piece
            ]
    return drawn


def _dot(plane: Plane, x: float, y: float, title: str, radius: float) -> Html:
    return tag("circle", tag("title", title), class_="dot", cx=plane.at_x(x), cy=plane.at_y(y), r=radius)


def _path(plane: Plane, points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{plane.at_x(x)} {plane.at_y(y)}" for x, y in points)


def _mark(plane: Plane, x: float, name: str) -> Html:
    position = plane.at_x(x)
    end = plane.x.share(x) > 0.6
    return join(
        tag("line", class_="mark", x1=position, x2=position, y1=plane.at_y(plane.y.low), y2=plane.at_y(plane.y.high)),
        tag(
            "text",
            name,
            class_="axis",
            x=position + (-6 if end else 6),
            y=plane.at_y(plane.y.high) + 10,
            text_anchor="end" if end else "start",
        ),
    )


def _in_words(series: Series) -> str:
    finite = [(x, y) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(y)]
    if not finite:
        return f"{series.name}: no values"
    (first_x, first), (last_x, last) = finite[0], finite[-1]
    return f"{series.name}: {_formatted(first)} at {tick_label(first_x)}, {_formatted(last)} at {tick_label(last_x)}"


def _formatted(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return with_minus_sign(f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}")
