"""The sections that compare several runs, grouped by method."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spml.errors import InputError
from spml.methods import METHODS
from spml.report.axes import minus
from spml.report.beliefs import Beliefs, Float64, saw_more
from spml.report.figures import Bar, Series, bars, figure, line_chart, scatter
from spml.report.landscape import Landscape, landscape_chart
from spml.report.markup import Html, count, hundred, join, percent, tag
from spml.report.sections import MAP, Section, data_name, flat, noun, precision_down_the_list, sections, summary
from spml.runs.folder import RunFolder

Landscapes = Mapping[str, Landscape]
"""Loss landscapes by the name of their run."""

PAIRS = 4


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    name: str
    members: tuple[Beliefs, ...]
    more: bool = False  # whether its rows came with more labels than those of another group

    @property
    def first(self) -> Beliefs:
        return self.members[0]

    @property
    def reference(self) -> str:
        """Why it does not compete, "" if it does."""
        if saw_more(self.first.run):
            return "learned from labels that were not given"
        return "was given more labels" if self.more else ""

    def values(self, of: Callable[[Beliefs], float]) -> list[float]:
        return [value for value in map(of, self.members) if math.isfinite(value)]

    def mean(self, of: Callable[[Beliefs], float]) -> float:
        values = self.values(of)
        return float(np.mean(values)) if values else float("nan")

    def class_mean(self, of: Callable[[Beliefs], Float64 | None]) -> Float64 | None:
        """The mean over seeds of one value a label; None where a run has none."""
        tables = [of(member) for member in self.members]
        return None if any(t is None for t in tables) else np.mean(np.stack([t for t in tables if t is not None]), 0)


def groups(beliefs: Sequence[Beliefs]) -> list[Group]:
    """Runs by everything but their seed, in the order given, named by what tells them apart."""
    by_key: dict[str, list[Beliefs]] = {}
    for each in beliefs:
        by_key.setdefault(json.dumps(_decided(each.run), sort_keys=True, default=str), []).append(each)
    named = []
    for key, members in by_key.items():
        method = members[0].run.method
        alike = [json.loads(k) for k, m in by_key.items() if m[0].run.method == method]
        own = json.loads(key)
        differing = [name for name in own if any(other.get(name) != own[name] for other in alike)]
        if "model.head" in differing:  # another head has other settings: its name says enough
            differing = [name for name in differing if not name.startswith("model.head_settings")]
        told = ", ".join(f"{name.rpartition('.')[2]} {own[name]}" for name in differing[:3])
        named.append(Group(f"{method} ({told})" if told else method, tuple(members)))
    shown = [_labels_a_row(group.first.run) for group in named]
    return [replace(group, more=each > min(shown) + 0.05) for group, each in zip(named, shown, strict=True)]


def _labels_a_row(run: RunFolder) -> float:
    """How many labels of a training row were given, in the mean."""
    counts = run.labels.subset(run.train).counts()
    return float((counts.positives + counts.negatives).sum()) / max(len(run.train), 1)


def _decided(run: RunFolder) -> dict[str, Any]:
    """Everything that decides a run's outcome but the seed and the weights it started from."""
    given = {"rows": len(run.train), "labels": f"{_labels_a_row(run):.1f} a row"}
    parts = {**{name: run.record.get(name) for name in ("method", "train", "model", "k")}, "given": given}
    return {name: value for name, value in flat(parts) if name != "train.seed" and not name.startswith("model.weights")}


def check_comparable(beliefs: Sequence[Beliefs]) -> None:
    """Refuse runs whose numbers mean different things."""
    first = beliefs[0].run
    for other in (each.run for each in beliefs[1:]):
        if other.classes != first.classes:
            raise InputError(f"{first.folder} and {other.folder} have different labels: they cannot be compared.")
        names = ([run.names[row] for row in run.test] for run in (first, other))
        if next(names) != next(names):
            raise InputError(f"{first.folder} and {other.folder} have different test rows: they cannot be compared.")


def title_of_several(beliefs: Sequence[Beliefs]) -> tuple[str, str, Html]:
    """Title, the line over it, and the opening with the table of all methods."""
    check_comparable(beliefs)
    all_groups = groups(beliefs)
    run = beliefs[0].run
    usable = [group for group in all_groups if not group.reference] or all_groups
    best = max(usable, key=lambda group: _or_least(group.mean(_map)))
    score = best.mean(_map)
    ways = count(len(all_groups), "way") + " of training"
    sentence = f"{count(len(beliefs), 'run')} compare {ways} on the same data."
    if math.isfinite(score):
        sentence += f" {best.name} is best, with a test mAP of {hundred(score)}"
        others = [group for group in all_groups if group.reference and math.isfinite(group.mean(_map))]
        if others and best not in others:
            reached = hundred(others[0].mean(_map))
            sentence += f"; the reference {others[0].name}, which {others[0].reference}, reaches {reached}"
        sentence += "."
    opening = join(tag("p", sentence, class_="lead"), _table(all_groups), _explained(beliefs))
    kicker = f"{count(len(beliefs[0].rows), noun(run))} · {count(len(run.classes), 'label')}"
    return f"Methods compared: {data_name(run)}", kicker, opening


def comparison(beliefs: Sequence[Beliefs], landscapes: Landscapes, extra: Sequence[Section]) -> Iterator[Section]:
    """Pictures that set methods side by side, the `extra` sections, then every run by itself."""
    all_groups = groups(beliefs)
    curves = [chart for chart in (_held_out(all_groups), _precision(all_groups)) if chart is not None]
    if curves:
        yield Section("curves", "Side by side", tag("div", *curves, class_="figures"))
    pairs = list(_pairs(all_groups))
    gains = [chart for pair in pairs if (chart := _gain(*pair)) is not None]
    if gains:
        intro = "Average precision on the test rows: how much each label gains or loses."
        yield Section("gain", "Gain by label", tag("div", *gains, class_="figures"), intro)
    scatters = [chart for pair in pairs if (chart := _separation(*pair)) is not None]
    if scatters:
        intro = (
            "For labels nobody gave: the distance (Wasserstein) between the probabilities of those that are there "
            "and those that are not. Further is better."
        )
        yield Section("separation", "Telling missing from absent", tag("div", *scatters, class_="figures"), intro)
    if landscapes:
        yield _landscapes(landscapes)
    yield from extra
    yield Section("runs", "The runs", join(*_runs(all_groups)), "Pictures are of the first run of each method.")


def _map(beliefs: Beliefs) -> float:
    return beliefs.test_map


def _held_out_score(beliefs: Beliefs) -> float:
    score = beliefs.run.best["score"]
    return float("nan") if score is None else float(score)


def _or_least(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


def _table(all_groups: Sequence[Group]) -> Html:
    measured = any(math.isfinite(group.mean(_map)) for group in all_groups)
    judged = any(group.first.judged for group in all_groups)
    columns: list[tuple[str, Callable[[Beliefs], float], Callable[[float], str], bool]] = []
    if measured:
        columns += [
            ("test mAP", _map, hundred, True),
            ("test F1", lambda b: b.test_f1, hundred, True),
        ]
    else:
        columns.append(("held-out score", _held_out_score, hundred, True))
    columns.append(("labels recovered", lambda b: float(b.recovery.count), lambda v: f"{v:,.0f}", False))
    if judged:
        # Neither of these two competes: saying yes to everything finds all, saying yes once is easily right.
        columns += [
            ("of them right", lambda b: b.precisions.positive, hundred, False),
            ("of missing found", lambda b: b.recovery.found, hundred, False),
        ]
    best = {
        name: max((_or_least(g.mean(of)) for g in all_groups if not g.reference), default=math.inf)
        for name, of, _, compete in columns
        if compete
    }
    head = tag(
        "tr",
        tag("th", "method", scope="col"),
        tag("th", "runs", scope="col"),
        *(tag("th", name, scope="col") for name, *_ in columns),
    )
    rows = []
    order = sorted(all_groups, key=lambda g: -_or_least(g.mean(_map if measured else _held_out_score)))
    for group in order:
        known = METHODS.get(group.first.run.method)
        told = known.summary if known else ""
        if group.reference:
            told = f"a reference: it {group.reference}"
        cells = []
        for name, of, shown, _ in columns:
            values = group.values(of)
            mean = group.mean(of)
            text = shown(mean) if values else "–"
            if len(values) > 1:
                text += f" ± {shown(float(np.std(values, ddof=1)))}"
            top = not group.reference and len(all_groups) > 1 and best.get(name) == mean
            cells.append(tag("td", text, data_name=name, class_="best" if top else None))
        cells.insert(0, tag("td", str(len(group.members)), data_name="runs"))
        rows.append(tag("tr", tag("th", group.name, tag("small", told), scope="row", class_="name"), *cells))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="card compare")


def _explained(beliefs: Sequence[Beliefs]) -> Html:
    return tag(
        "details",
        tag("summary", "What do these numbers mean?"),
        tag("p", "± is the standard deviation over runs that differ in their seed alone. Numbers are out of 100."),
        tag("p", MAP),
        tag("p", "F1 weighs, on the test rows, labels that were named wrongly against labels that were not named."),
        tag(
            "p",
            "A label is recovered when nobody gave it and the model believes it is there; among the rows with a given "
            "label it is counted how many of these are right, and how many of all missing ones were found.",
        ),
    )


def _held_out(all_groups: Sequence[Group]) -> Html | None:
    """The held-out score of every method over the epochs, the mean of its runs."""
    series = []
    for group in all_groups:
        at: dict[float, list[float]] = {}
        for member in group.members:
            for line in member.run.epochs():
                scores = [line[key] for key in ("validation_raw", "validation_averaged") if key in line]
                if scores:
                    at.setdefault(float(line["epoch"]), []).append(100 * max(scores))
        if at:
            xs = sorted(at)
            spread = [float(np.std(at[x], ddof=1)) if len(at[x]) > 1 else 0.0 for x in xs]
            many = any(len(at[x]) > 1 for x in xs)
            series.append(Series(group.name, xs, [float(np.mean(at[x])) for x in xs], spread if many else None))
    if not series:
        return None
    return line_chart(
        series,
        title="Held-out score",
        x_label="epoch",
        y_label="score",
        whole_x=True,
        note="On rows kept back from training; the better of the model and its average. Bands: one standard deviation. "
        "Where these rows have one label each, this compares epochs, not methods: predicting just what was named "
        "scores best.",
    )


def _precision(all_groups: Sequence[Group]) -> Html | None:
    """Precision of the recovered labels, surest first, of each method's first run."""
    series = []
    for group in all_groups:
        judged = group.first.recovered & (group.first.truth != 0)
        if judged.any():
            curve = precision_down_the_list(group.first.confidence[judged], group.first.truth[judged] > 0)
            series.append(Series(group.name, *curve))
    if not series:
        return None
    return line_chart(
        series,
        title="Precision of recovered labels",
        x_label="labels kept, surest first",
        y_label="% right",
        y_range=(0, 102),
        note="Each line ends where the method stops believing. The first run of each method.",
    )


def _pairs(all_groups: Sequence[Group]) -> Iterator[tuple[Group, Group]]:
    """(baseline, other): the baseline is `an` where it ran, else the method with the lowest mAP."""
    baseline = next(
        (g for g in all_groups if g.first.run.method == "an"),
        min(all_groups, key=lambda g: _or_least(g.mean(_map))),
    )
    others = sorted((g for g in all_groups if g is not baseline), key=lambda g: -_or_least(g.mean(_map)))
    for other in others[:PAIRS]:
        yield baseline, other


def _gain(baseline: Group, other: Group) -> Html | None:
    """Zhou et al., figure 4c."""
    before, after = (group.class_mean(lambda b: b.test_precision) for group in (baseline, other))
    if before is None or after is None:
        return None
    gain = after - before
    there = np.flatnonzero(~np.isnan(gain))
    if not len(there):
        return None
    order = there[np.argsort(-gain[there], kind="stable")]
    most = float(np.abs(gain[there]).max()) or 1.0
    names = baseline.first.run.classes
    entries = [
        Bar(names[c], float(gain[c]) / most, minus(f"{100 * gain[c]:+.1f}"), "s3" if gain[c] >= 0 else "s2")
        for c in order
    ]
    better = float((gain[there] > 0).mean())
    average = minus(f"{100 * float(gain[there].mean()):+.1f}")
    note = f"{percent(better)} of the labels gain; on average {average}."
    if other.reference:
        note += f" {other.name} {other.reference}."
    return figure(f"{other.name} over {baseline.name}", bars(entries), note=note)


def _separation(baseline: Group, other: Group) -> Html | None:
    """Zhou et al., figure 4a."""
    x, y = (group.class_mean(lambda b: b.separation) for group in (baseline, other))
    if x is None or y is None:
        return None
    there = ~(np.isnan(x) | np.isnan(y))
    if not there.any():
        return None
    above = float((y[there] > x[there]).mean())
    return scatter(
        x.tolist(),
        y.tolist(),
        baseline.first.run.classes,
        title=f"{other.name} against {baseline.name}",
        x_label=baseline.name,
        y_label=other.name,
        note=f"Each point is a label. {percent(above)} lie over the line, where {other.name} tells them apart better.",
    )


def _landscapes(landscapes: Landscapes) -> Section:
    high = max(float(each.rise().max()) for each in landscapes.values())
    charts = [landscape_chart(each, name, high) for name, each in landscapes.items()]
    intro = (
        "How much the loss rises around the place where training ended, along two random directions, on one scale. "
        "A wide pale basin is a flat minimum, which tends to hold on new data too."
    )
    return Section("landscape", "Loss landscape", tag("div", *charts, class_="figures"), intro)


def _runs(all_groups: Sequence[Group]) -> Iterator[Html]:
    place = 0
    for group in all_groups:
        for number, member in enumerate(group.members):
            run = member.run
            parts = sections(member, f"run{place}-", each=0 if number else 4, size=128)
            head = tag("summary", tag("b", run.name, class_="name"), " ", tag("small", f"{group.name}, {_seed(run)}"))
            yield tag("details", head, summary(member), *(part.html() for part in parts), class_="card run")
            place += 1


def _seed(run: RunFolder) -> str:
    return f"seed {run.record['train']['seed']}"
