"""Sections that compare several runs, grouped by method."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from spml.calibration import Float64
from spml.errors import InputError
from spml.methods import METHODS
from spml.report.axes import with_minus_sign
from spml.report.figures import Bar, Series, bars, figure, line_chart, scatter
from spml.report.landscape import Landscape, landscape_chart
from spml.report.markup import Html, count, join, percent, score_text, tag, with_code
from spml.report.sections import (
    MAP,
    RECOVERED,
    Section,
    chart_section,
    data_name,
    explanation,
    flat,
    pictures,
    precision_down_the_list,
    row_noun,
    sections,
    summary,
)
from spml.report.tables import RunTables, trained_on_more_labels
from spml.runs.folder import RunFolder

Landscapes = Mapping[str, Landscape]
"""Loss landscapes by run name."""

PAIRS = 4


@dataclass(frozen=True)
class MethodGroup:
    """Runs that differ only in their seed."""

    name: str
    runs: tuple[RunTables, ...]
    more: bool = False
    """Whether it was trained on more labels per row than another group."""

    @property
    def first(self) -> RunTables:
        return self.runs[0]

    @property
    def reference(self) -> str:
        """Why the group is a reference and is not ranked; "" if it is ranked."""
        if trained_on_more_labels(self.first.run):
            return "was trained on more than the observed labels"
        return "was trained on more labels per row" if self.more else ""

    def values(self, metric: Callable[[RunTables], float]) -> list[float]:
        return [value for value in map(metric, self.runs) if math.isfinite(value)]

    def mean(self, metric: Callable[[RunTables], float]) -> float:
        values = self.values(metric)
        return float(np.mean(values)) if values else float("nan")

    def class_mean(self, metric: Callable[[RunTables], Float64 | None]) -> Float64 | None:
        """Return the mean over seeds of one value per class; None if a run has none."""
        values = [metric(tables) for tables in self.runs]
        return None if any(v is None for v in values) else np.mean(np.stack([v for v in values if v is not None]), 0)


def groups(tables: Sequence[RunTables]) -> list[MethodGroup]:
    """Group runs by everything but their seed, in order, and name the groups by what distinguishes them."""
    by_key: dict[str, list[RunTables]] = {}
    for item in tables:
        by_key.setdefault(json.dumps(_outcome_settings(item.run), sort_keys=True, default=str), []).append(item)
    named = []
    for key, runs in by_key.items():
        method = runs[0].run.method
        alike = [json.loads(k) for k, m in by_key.items() if m[0].run.method == method]
        settings = json.loads(key)
        differing = [name for name in settings if any(other.get(name) != settings[name] for other in alike)]
        if "model.head" in differing:  # another head has other settings: its name is enough
            differing = [name for name in differing if not name.startswith("model.head_settings")]
        details = ", ".join(f"{name.rpartition('.')[2]} {settings[name]}" for name in differing[:3])
        named.append(MethodGroup(f"{method} ({details})" if details else method, tuple(runs)))
    labels = [_labels_per_row(group.first.run) for group in named]
    return [replace(group, more=item > min(labels) + 0.05) for group, item in zip(named, labels, strict=True)]


def _labels_per_row(run: RunFolder) -> float:
    """Average number of known labels per training row."""
    counts = run.labels.subset(run.train).counts()
    return float((counts.positives + counts.negatives).sum()) / max(len(run.train), 1)


def _outcome_settings(run: RunFolder) -> dict[str, Any]:
    """Everything that determines a run's result except the seed and the initial weights."""
    data = {"rows": len(run.train), "labels": f"{_labels_per_row(run):.1f} per row"}
    parts = {**{name: run.record.get(name) for name in ("method", "train", "model", "k")}, "data": data}
    return {name: value for name, value in flat(parts) if name != "train.seed" and not name.startswith("model.weights")}


def check_comparable(tables: Sequence[RunTables]) -> None:
    """Raise if the runs' numbers are not comparable."""
    first = tables[0].run
    folders = [table.run.folder.resolve() for table in tables]
    if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
        raise InputError(f"{twice} is given twice, and would count as two runs: give each run once")
    for other in (table.run for table in tables[1:]):
        if other.classes != first.classes:
            raise InputError(f"{first.folder} and {other.folder} have different classes: they cannot be compared")
        if _compared(other) != _compared(first):
            rows = "test rows" if len(first.test) and len(other.test) else "rows"
            raise InputError(f"{first.folder} and {other.folder} have different {rows}: they cannot be compared")


def _compared(run: RunFolder) -> list[str]:
    """The names of the rows that the numbers of a run are about: the test rows, or all if there are none."""
    return [run.names[row] for row in run.test] if len(run.test) else list(run.names)


def comparison_opening(tables: Sequence[RunTables]) -> tuple[str, str, Html]:
    """Title, the line above it, and the opening with the table of all methods."""
    check_comparable(tables)
    all_groups = groups(tables)
    run = tables[0].run
    best = _best_group(all_groups)
    score = best.mean(_map)
    sentence = f"Comparison of {count(len(tables), 'run')} with {count(len(all_groups), 'method')} on the same data."
    if math.isfinite(score):
        sentence += f" The best method is {best.name}, with a test mAP of {score_text(score)}."
        references = [group for group in all_groups if group.reference and math.isfinite(group.mean(_map))]
        if references and best not in references:
            first = references[0]
            sentence += f" The reference {first.name}, which {first.reference}, reaches {score_text(first.mean(_map))}."
    opening = join(tag("p", sentence, class_="lead"), _table(all_groups), _explained())
    kicker = f"{count(len(tables[0].rows), row_noun(run))} · {count(len(run.classes), 'class', 'classes')}"
    return f"Comparison of methods: {data_name(run)}", kicker, opening


def comparison(tables: Sequence[RunTables], landscapes: Landscapes) -> Iterator[Section]:
    """Pictures of the best run, charts that compare the methods, then each run."""
    all_groups = groups(tables)
    best_group = _best_group(all_groups)
    best = max(best_group.runs, key=lambda tables: _or_lowest(_ranking(all_groups)(tables)))
    yield pictures(best, "best-", 4, 192, f"Recovered labels: {best_group.name}")
    pairs = list(_pairs(all_groups))
    yield from chart_section("curves", "Learning curves and precision", [_held_out(all_groups), _precision(all_groups)])
    intro = "Difference in average precision on the test rows, per class."
    yield from chart_section("gain", "Gain per class", [_gain(*pair) for pair in pairs], intro)
    intro = (
        "Wasserstein distance between the predictions for missing labels and for absent ones, per class. Larger is "
        "better."
    )
    scatters = [_separation(*pair) for pair in pairs]
    yield from chart_section("separation", "Separation of missing and absent labels", scatters, intro)
    intro = (
        "How much the loss increases around the trained network along two random directions, all on the same scale. "
        "A wide pale area is a flat minimum, which tends to generalise better."
    )
    high = max((float(landscape.rise().max()) for landscape in landscapes.values()), default=0.0)
    drawn = [landscape_chart(landscape, name, high) for name, landscape in landscapes.items()]
    yield from chart_section("landscape", "Loss landscape", drawn, intro)
    yield Section(
        "runs",
        "Runs",
        join(*_runs(all_groups, best)),
        "Pictures are shown for one run of each method; those of the best method are above.",
    )


def _map(tables: RunTables) -> float:
    return tables.test_map


def _held_out_score(tables: RunTables) -> float:
    score = tables.run.best["score"]
    return float("nan") if score is None else float(score)


def _ranking(all_groups: Sequence[MethodGroup]) -> Callable[[RunTables], float]:
    """What methods are ranked by: test mAP, or the held-out score if no truth is known."""
    return _map if any(math.isfinite(group.mean(_map)) for group in all_groups) else _held_out_score


def _best_group(all_groups: Sequence[MethodGroup]) -> MethodGroup:
    """Return the best method that is not a reference."""
    usable = [group for group in all_groups if not group.reference] or all_groups
    return max(usable, key=lambda group: _or_lowest(group.mean(_ranking(all_groups))))


def _or_lowest(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


class _Column(NamedTuple):
    name: str
    value: Callable[[RunTables], float]
    format: Callable[[float], str]
    ranked: bool = False


def _columns(all_groups: Sequence[MethodGroup]) -> list[_Column]:
    if _ranking(all_groups) is _map:
        columns = [
            _Column("test mAP", _map, score_text, ranked=True),
            _Column("test F1", lambda t: t.test_f1, score_text, ranked=True),
        ]
    else:
        columns = [_Column("held-out score", _held_out_score, score_text, ranked=True)]
    columns.append(_Column("labels recovered", lambda t: float(t.recovery.count), lambda v: f"{v:,.0f}"))
    if any(group.first.has_truth for group in all_groups):
        # Not ranked: predicting every label has full recall, predicting a single one often has full precision.
        columns += [
            _Column("precision", lambda t: t.precisions.positive, score_text),
            _Column("recall", lambda t: t.recovery.found, score_text),
        ]
    return columns


def _table(all_groups: Sequence[MethodGroup]) -> Html:
    columns = _columns(all_groups)
    best = {
        column.name: max((_or_lowest(g.mean(column.value)) for g in all_groups if not g.reference), default=math.inf)
        for column in columns
        if column.ranked and len(all_groups) > 1
    }
    head = tag("tr", *(tag("th", name, scope="col") for name in ("method", "runs", *(c.name for c in columns))))
    order = sorted(all_groups, key=lambda g: -_or_lowest(g.mean(_ranking(all_groups))))
    rows = [_table_row(group, columns, best) for group in order]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="card compare")


def _table_row(group: MethodGroup, columns: Sequence[_Column], best: Mapping[str, float]) -> Html:
    known = METHODS.get(group.first.run.method)
    description = known.summary if known else ""
    if group.reference:
        description = f"Reference: it {group.reference}"
    cells = [tag("td", str(len(group.runs)), data_name="runs")]
    for column in columns:
        values, mean = group.values(column.value), group.mean(column.value)
        text = column.format(mean) if values else "–"
        if len(values) > 1:
            text += f" ± {column.format(float(np.std(values, ddof=1)))}"
        top = not group.reference and best.get(column.name) == mean
        cells.append(tag("td", text, data_name=column.name, class_="best" if top else None))
    return tag("tr", tag("th", group.name, tag("small", with_code(description)), scope="row", class_="name"), *cells)


def _explained() -> Html:
    return explanation(
        "Scores are in percent. ± is the standard deviation over runs that differ only in their seed.",
        MAP,
        "F1 combines precision and recall of the labels predicted for the test rows.",
        f"{RECOVERED} Precision is the share of recovered labels that are correct, recall the share of missing labels "
        "that were recovered.",
    )


def _held_out(all_groups: Sequence[MethodGroup]) -> Html | None:
    """Held-out score of every method by epoch, averaged over its runs."""
    series = []
    for group in all_groups:
        scores_at: dict[float, list[float]] = {}
        for tables in group.runs:
            for line in tables.run.epochs():
                scores = [line[key] for key in ("validation_raw", "validation_averaged") if key in line]
                if scores:
                    scores_at.setdefault(float(line["epoch"]), []).append(100 * max(scores))
        if scores_at:
            series.append(Series.averaged(group.name, scores_at))
    if not series:
        return None
    return line_chart(
        series,
        title="Held-out score",
        x_label="epoch",
        y_label="score",
        whole_x=True,
        note="mAP on examples not used for training; the better of the model and its weight average. Bands show one "
        "standard deviation. With one observed label per example, use it to compare epochs, not methods: it rewards "
        "predicting nothing but the observed label.",
    )


def _precision(all_groups: Sequence[MethodGroup]) -> Html | None:
    """Precision of the recovered labels, most confident first, for each method's first run."""
    series = []
    for group in all_groups:
        checked = group.first.recovered & (group.first.truth != 0)
        if checked.any():
            curve = precision_down_the_list(group.first.confidence[checked], group.first.truth[checked] > 0)
            series.append(Series(group.name, *curve))
    if not series:
        return None
    return line_chart(
        series,
        title="Precision of recovered labels",
        x_label="most confident labels kept",
        y_label="% correct",
        y_range=(0, 102),
        note="Each line ends at the number of labels that the method recovered. First run of each method.",
    )


def _pairs(all_groups: Sequence[MethodGroup]) -> Iterator[tuple[MethodGroup, MethodGroup]]:
    """(baseline, other): the baseline is `an` if it was run, else the method with the lowest mAP."""
    baseline = next(
        (g for g in all_groups if g.first.run.method == "an"), min(all_groups, key=lambda g: _or_lowest(g.mean(_map)))
    )
    others = sorted((g for g in all_groups if g is not baseline), key=lambda g: -_or_lowest(g.mean(_map)))
    for other in others[:PAIRS]:
        yield baseline, other


def _gain(baseline: MethodGroup, other: MethodGroup) -> Html | None:
    """Zhou et al. 2022, figure 4c."""
    before, after = (group.class_mean(lambda b: b.test_precision) for group in (baseline, other))
    if before is None or after is None:
        return None
    gain = after - before
    defined = np.flatnonzero(~np.isnan(gain))
    if not len(defined):
        return None
    order = defined[np.argsort(-gain[defined], kind="stable")]
    most = float(np.abs(gain[defined]).max()) or 1.0
    names = baseline.first.run.classes
    entries = [
        Bar(names[c], float(gain[c]) / most, with_minus_sign(f"{100 * gain[c]:+.1f}"), "s3" if gain[c] >= 0 else "s2")
        for c in order
    ]
    better = float((gain[defined] > 0).mean())
    average = with_minus_sign(f"{100 * float(gain[defined].mean()):+.1f}")
    note = f"{percent(better)} of the classes improve; the average change is {average}."
    if other.reference:
        note += f" {other.name} is a reference: it {other.reference}."
    return figure(f"{other.name} compared with {baseline.name}", bars(entries), note=note)


def _separation(baseline: MethodGroup, other: MethodGroup) -> Html | None:
    """Zhou et al. 2022, figure 4a."""
    x, y = (group.class_mean(lambda b: b.separation) for group in (baseline, other))
    if x is None or y is None:
        return None
    defined = ~(np.isnan(x) | np.isnan(y))
    if not defined.any():
        return None
    above = float((y[defined] > x[defined]).mean())
    return scatter(
        x.tolist(),
        y.tolist(),
        baseline.first.run.classes,
        title=f"{other.name} compared with {baseline.name}",
        x_label=baseline.name,
        y_label=other.name,
        note=f"Each point is a class. {percent(above)} lie above the line, where {other.name} separates better.",
    )


def _runs(all_groups: Sequence[MethodGroup], best: RunTables) -> Iterator[Html]:
    """Each run, collapsed; the pictures of the best one are at the top of the page."""
    index = 0
    for group in all_groups:
        for number, tables in enumerate(group.runs):
            run = tables.run
            per_gallery = 0 if number or best in group.runs else 4
            evidence = bool(per_gallery) or tables is best
            parts = sections(tables, f"run{index}-", per_gallery=per_gallery, size=128, evidence=evidence)
            head = tag("summary", tag("b", run.name, class_="name"), " ", tag("small", f"{group.name}, {_seed(run)}"))
            yield tag("details", head, summary(tables), *(part.html() for part in parts), class_="card run")
            index += 1


def _seed(run: RunFolder) -> str:
    return f"seed {run.record['train']['seed']}"
