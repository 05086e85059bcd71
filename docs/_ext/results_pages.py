"""Directives that turn the files in results/ and the papers' tables into a leaderboard and a figure."""

import csv
from collections import defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import Path
from statistics import mean, stdev

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
PAPERS = ROOT / "src" / "spml" / "bench" / "files" / "papers"
DATA_SETS = ("voc12", "coco", "nus", "cub")
REFERENCES = {"bce", "bce-ls", "iun", "iu"}  # they learn from more than one positive per row
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """Rows of a result file that a search did not reject."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row.get("chosen") != "False"]


def grouped(rows: list[Row], *keys: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by the values of some columns."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return dict(groups)


def starred(method: str) -> str:
    return f"`{method}`" + (r"\*" if method in REFERENCES else "")


def published(paper: str, table: str, setting: str) -> Iterator[str]:
    """One of a paper's tables: methods × data sets, best first on VOC."""
    rows = [
        row
        for row in read(PAPERS / f"{paper}.csv")
        if (row["table"], row["setting"], row["measure"]) == (table, setting, "test_map")
    ]
    cells = {(row["method"], row["dataset"]): row["value"] for row in rows}
    methods = sorted({row["method"] for row in rows}, key=lambda name: -float(cells.get((name, "voc12"), 0)))
    yield "| method | VOC | COCO | NUS | CUB |"
    yield "| --- | --- | --- | --- | --- |"
    for method in methods:
        values = " | ".join(cells.get((method, data), "") for data in DATA_SETS)
        yield f"| {starred(method)} | {values} |"


def measured(file: str) -> Iterator[str]:
    """A result file: methods by test mAP, with the conditions of each."""
    rows = read(RESULTS / file)
    with_head = "head" in rows[0]
    lines = []
    for (method, *head), group in grouped(rows, "method", *(["head"] if with_head else [])).items():
        scores = [100 * float(row["test_map"]) for row in group]
        score, shown = mean(scores), f"{mean(scores):.2f}"
        if len(scores) > 1:
            shown += f" ± {stdev(scores):.2f}"
        seeds = len({row["seed"] for row in group})
        place = sorted({f"{row['hardware']}, {row['commit']}" for row in group})
        cells = [starred(method), *head, shown, str(seeds), "; ".join(place)]
        lines.append((score, "| " + " | ".join(cells) + " |"))
    titles = ["method", *(["head"] if with_head else []), "test mAP", "seeds", "hardware and commit"]
    yield "| " + " | ".join(titles) + " |"
    yield "| " + " | ".join("---" for _ in titles) + " |"
    yield from (line for _, line in sorted(lines, key=lambda pair: -pair[0]))


class Published(SphinxDirective):
    """`published`: a paper's table. Arguments: file, table, setting."""

    required_arguments = 3

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(PAPERS / f"{self.arguments[0]}.csv"))
        return self.parse_text_to_nodes("\n".join(published(*self.arguments)))


class Measured(SphinxDirective):
    """`measured`: a file of results/."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(RESULTS / self.arguments[0]))
        return self.parse_text_to_nodes("\n".join(measured(self.arguments[0])))


class AccuracyAgainstTime(SphinxDirective):
    """`accuracy-against-time`: test mAP against seconds of training, for a file of results/."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(RESULTS / self.arguments[0]))
        points = []
        for (method, head, commit), group in grouped(
            read(RESULTS / self.arguments[0]), "method", "head", "commit"
        ).items():
            seconds = min(float(row["seconds"]) for row in group)  # a first start of the process takes longer
            points.append((method, head, commit, seconds, 100 * mean(float(row["test_map"]) for row in group)))
        return [nodes.raw("", figure(points), format="html")]


def figure(points: list[tuple[str, str, str, float, float]]) -> str:
    """An SVG in the colours of the page."""
    width, height, left, bottom = 760, 560, 56, 46
    longest = 1.25 * max(point[3] for point in points)
    low, high = int(min(point[4] for point in points)) - 0.5, max(point[4] for point in points) + 0.5
    commits = sorted({point[2] for point in points})
    colours = ("var(--pst-color-primary)", "var(--pst-color-secondary)", "var(--pst-color-accent)")

    def x(seconds: float) -> float:
        return left + seconds / longest * (width - left - 20)

    def y(score: float) -> float:
        return (height - bottom) * (1 - (score - low) / (high - low)) + 6

    parts = []
    for tick in range(0, int(longest) + 1, 20):
        parts.append(f'<text x="{x(tick):.0f}" y="{height - bottom + 26}" text-anchor="middle">{tick}</text>')
    for tick in range(int(low) + 1, int(high) + 1):
        parts.append(f'<text x="{left - 10}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick}</text>')
        parts.append(f'<path d="M{left} {y(tick):.0f}H{width - 20}" stroke="currentColor" opacity=".15"/>')
    parts.append(f'<text x="{width / 2}" y="{height - 4}" text-anchor="middle">seconds of training</text>')
    parts.append(f'<text x="{left - 46}" y="14">test mAP</text>')
    taken = [(x(point[3]) - 5, x(point[3]) + 5, y(point[4]) + 4) for point in points]  # the dots
    for method, head, commit, seconds, score in sorted(points, key=lambda point: point[4]):
        text = method + ("*" if method in REFERENCES else "") + ("" if head == "linear" else f", {head}")
        colour = colours[commits.index(commit) % len(colours)]
        start, level = free_place(x(seconds), y(score), 7.2 * len(text), taken, left)
        taken.append((start, start + 7.2 * len(text), level))
        beside, anchor = (start, "start") if start > x(seconds) else (x(seconds) - 9, "end")
        if abs(level - 4 - y(score)) > 8:
            line = f"M{x(seconds):.1f} {y(score):.1f}L{beside:.1f} {level - 4:.1f}"
            parts.append(f'<path d="{line}" stroke="currentColor" opacity=".5"/>')
        parts.append(f'<circle cx="{x(seconds):.1f}" cy="{y(score):.1f}" r="4.5" fill="{colour}"/>')
        parts.append(f'<text x="{beside:.1f}" y="{level:.1f}" text-anchor="{anchor}">{escape(text)}</text>')
    for number, commit in enumerate(commits):
        level = height - bottom - 16 * (len(commits) - number)
        parts.append(f'<circle cx="{width - 190}" cy="{level - 4}" r="4.5" fill="{colours[number % len(colours)]}"/>')
        parts.append(f'<text x="{width - 178}" y="{level}">measured at {escape(commit)}</text>')
    title = "<title>Test mAP against seconds of training</title>"
    return f'<svg class="chart" viewBox="0 0 {width} {height}" role="img">{title}{"".join(parts)}</svg>\n'


def free_place(
    x: float, y: float, width: float, taken: list[tuple[float, float, float]], left: float
) -> tuple[float, float]:
    """Left end and base line of a label near a dot, right or left of it, where it covers no other."""
    for distance in range(0, 200, 2):
        for level in (y + 4 - distance, y + 4 + distance):
            for start in (x + 9, x - 9 - width):
                if start > left and not any(
                    abs(level - other) < 13 and start < end and begin < start + width for begin, end, other in taken
                ):
                    return start, level
    return x + 9, y + 4


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("published", Published)
    app.add_directive("measured", Measured)
    app.add_directive("accuracy-against-time", AccuracyAgainstTime)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
