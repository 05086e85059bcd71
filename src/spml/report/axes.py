"""Axes of a chart: from values to positions, with ticks at round numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from spml.report.markup import Html, join, tag

# Charts are drawn at the width of a phone, so that their text is readable there and only grows elsewhere.
WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 38


def round_ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Round numbers from low to high, roughly `about` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * m for m in (1, 2, 5, 10) if scale * m >= 0.6 * raw)  # from 0.6 to 1.5 of raw: 3 to 9 ticks
    if whole:
        step = max(1.0, float(round(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 10, 100, … from low to high; 1, 2, 5, 10, … if those are fewer than three."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 2, 5)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) >= 3:
            break
    return inside


def tick_label(number: float) -> str:
    """Return a number for a tick: 1.5k, 0.25, 3."""
    for unit, sign in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= unit:
            return with_minus_sign(f"{number / unit:.4g}{sign}")
    return with_minus_sign(f"{number:.4g}")


def with_minus_sign(text: str) -> str:
    """Use the typographic minus sign."""
    return text.replace("-", "−") if "e" not in text else text


def _cut(text: str, most: int = 32) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Axis:
    """One axis: its range, scale and label."""

    low: float
    high: float
    label: str = ""
    log: bool = False
    whole: bool = False

    @staticmethod
    def over(
        values: Iterable[float], label: str = "", *, log: bool = False, whole: bool = False, room: float = 0.06
    ) -> "Axis":
        """Return an axis that spans these values, with a margin."""
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = min(finite, default=1.0), max(finite, default=1.0)
        if log:
            return Axis(low * 0.9, high * 1.1, label, True, whole)
        pad = (high - low) * room or abs(high) * room or 1.0
        return Axis(low - pad, high + pad, label, False, whole)

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the values of the ticks and their labels."""
        values = log_ticks(self.low, self.high) if self.log else round_ticks(self.low, self.high, whole=self.whole)
        return [(value, tick_label(value)) for value in values]


@dataclass(frozen=True)
class Plane:
    """An x and a y axis in a drawing of WIDTH × `height`."""

    x: Axis
    y: Axis
    height: int = HEIGHT

    def at_x(self, value: float) -> float:
        return round(LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT), 1)

    def at_y(self, value: float) -> float:
        return round(self.height - BOTTOM - self.y.share(value) * (self.height - TOP - BOTTOM), 1)

    def drawing(self, *parts: Html, description: str, grid: bool = True) -> Html:
        """Return the axes and the parts on top of them as one SVG, with a description for screen readers."""
        right, floor = WIDTH - RIGHT, self.height - BOTTOM
        marks: list[Html] = []
        for value, text in self.y.ticks():
            y = self.at_y(value)
            if grid:
                marks.append(tag("line", class_="grid", x1=LEFT, x2=right, y1=y, y2=y))
            marks.append(tag("text", text, x=LEFT - 7, y=y + 4, text_anchor="end"))
        for value, text in self.x.ticks():
            x = self.at_x(value)
            marks.append(tag("line", class_="tick", x1=x, x2=x, y1=floor, y2=floor + 4))
            marks.append(tag("text", text, x=x, y=floor + 17, text_anchor="middle"))
        middle = round((TOP + floor) / 2, 1)
        labels = join(
            tag("line", class_="tick", x1=LEFT, x2=right, y1=floor, y2=floor),
            tag(
                "text", _cut(self.x.label), class_="axis", x=(LEFT + right) / 2, y=self.height - 5, text_anchor="middle"
            ),
            tag(
                "text",
                _cut(self.y.label),
                class_="axis",
                x=9,
                y=middle,
                text_anchor="middle",
                transform=f"rotate(-90 9 {middle})",
            ),
        )
        return tag(
            "svg",
            *marks,
            *parts,
            labels,
            viewBox=f"0 0 {WIDTH} {self.height}",
            class_="chart",
            role="img",
            aria_label=description,
        )
