"""The sections about one run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spml.data.stores.features import FeatureStore
from spml.methods import METHODS
from spml.report.axes import Axis
from spml.report.beliefs import Beliefs, saw_more
from spml.report.figures import Bar, Series, bars, figure, heat_map, histogram, line_chart, numbers
from spml.report.galleries import galleries, legend_of_chips, looks
from spml.report.markup import Html, count, hundred, join, percent, tag
from spml.runs.folder import RunFolder

MAP = (
    "mAP, mean average precision, asks for each label whether the rows that have it come before those that do not "
    "when sorted by probability. 100 is perfect."
)
HELD_OUT = (
    "This score comes from rows kept back from training, of which only the given label is known. Every other label "
    "counts as absent, though some are there, so it lies below the true mAP: use it to compare, not to judge."
)


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading that can be linked to."""

    id: str
    title: str
    body: Html
    intro: str = ""

    def html(self) -> Html:
        head = tag("h2", self.title, id=self.id)
        return tag("section", head, tag("p", self.intro, class_="intro") if self.intro else None, self.body)


def data_name(run: RunFolder) -> str:
    """The data's own name, without the folders above it."""
    return Path(str(run.source["path"])).name or str(run.source["path"])


def noun(run: RunFolder) -> str:
    return "row" if isinstance(run.store, FeatureStore) else "image"


def method_in_words(run: RunFolder) -> Html:
    """The method's name, what it does in a sentence, and whose it is."""
    known = METHODS.get(run.method)
    told = None if known is None else join(": ", known.summary, f" ({known.paper})")
    return tag("span", tag("b", run.method), told)


def tile(value: str, name: str, note: str = "") -> Html:
    return tag("div", tag("b", value), tag("span", name), tag("small", note) if note else None, class_="card tile")


def summary(beliefs: Beliefs) -> Html:
    """What came in, what came out and how good it is: a sentence and a few large numbers."""
    run, recovery = beliefs.run, beliefs.recovery
    what = noun(run)
    given = int((beliefs.observed[beliefs.rows] > 0).sum())
    each = "one label each" if run.labels.is_single_positive else f"{count(given, 'label')} in all"
    sentence = (
        f"{count(len(beliefs.rows), what)} came with {each}, out of {count(len(run.classes), 'possible label')}. "
        f"The model found {count(recovery.count, 'further label')}."
    )
    tiles = [tile(count(recovery.count), "labels recovered", f"beside {given:,} given")]
    if recovery.judged:
        sentence += (
            f" Where the truth is known, {percent(recovery.precision)} of them are right, and "
            f"{percent(recovery.found)} of all missing labels were found."
        )
        tiles += [
            tile(percent(recovery.precision), "of them are right", f"{recovery.right:,} of {recovery.judged:,}"),
            tile(percent(recovery.found), "of the missing found", f"{recovery.right:,} of {recovery.missing:,}"),
        ]
    if beliefs.test_precision is not None:
        tiles.append(tile(hundred(beliefs.test_map), "test mAP", f"on {count(len(run.test), what)} never seen"))
    elif run.best["score"] is not None:
        tiles.append(tile(hundred(run.best["score"]), "held-out score", f"on {count(len(run.validation), what)}"))
    epochs = run.epochs()
    tiles.append(tile(str(run.best["epoch"]), "best epoch", f"of {len(epochs)}" if epochs else ""))
    explained = tag(
        "details",
        tag("summary", "What do these numbers mean?"),
        tag("p", MAP if beliefs.test_precision is not None else HELD_OUT),
        tag(
            "p",
            "A label is recovered when nobody gave it and the model believes it is there. How sure it must be to "
            "believe is set for each label by itself; a label that was given counts as 100% sure.",
        ),
        tag("p", "The best epoch is the pass over the data whose model did best on rows kept back from training."),
    )
    warning = None
    if saw_more(run):
        warning = tag(
            "p",
            f"This run is a reference: {run.method} learned from labels that were not given.",
            class_="notice",
        )
    return join(
        tag("p", sentence, class_="lead"),
        tag("p", "Method ", method_in_words(run), class_="method"),
        warning,
        tag("div", *tiles, class_="tiles"),
        explained,
    )


def sections(beliefs: Beliefs, prefix: str = "", *, each: int = 8, size: int = 192) -> Iterator[Section]:
    """All sections of one run; `each` pictures a gallery, of at most `size` pixels."""
    if each:
        yield _pictures(beliefs, prefix, each, size)
    yield from _training(beliefs.run, prefix)
    yield _label_by_label(beliefs, prefix)
    yield _how_sure(beliefs, prefix)
    if each:
        yield from _where_it_looks(beliefs, prefix, size)
    yield Section(f"{prefix}settings", "Settings", _settings(beliefs.run))


def _pictures(beliefs: Beliefs, prefix: str, each: int, size: int) -> Section:
    run = beliefs.run
    notices = list(beliefs.notes)
    if run.store is None:
        lost = f"The data ({data_name(run)}) is no longer where it was, or has other rows now"
        notices.append(f"{lost}: names are in place of pictures.")
    intro = "Bars show how sure the model is of the likeliest labels of each " + noun(run) + "."
    body = join(
        *(tag("p", text, class_="notice") for text in notices),
        legend_of_chips(beliefs),
        *galleries(beliefs, each, size),
    )
    return Section(f"{prefix}recovered", "Recovered labels", body, intro)


def _training(run: RunFolder, prefix: str) -> Iterator[Section]:
    epochs = run.epochs()
    if not epochs:
        return
    x = [float(line["epoch"]) for line in epochs]
    best = (float(run.best["epoch"]), "best")
    charts = [
        line_chart(
            [Series("loss", x, [float(line["loss"]) for line in epochs])],
            title="Loss",
            x_label="epoch",
            y_label="loss",
            whole_x=True,
            mark=best,
            note="What training makes small. It should fall, then flatten.",
        )
    ]
    scores = [
        Series(name, x, [100 * float(line.get(key, "nan")) for line in epochs])
        for key, name in (("validation_raw", "model"), ("validation_averaged", "averaged model"))
        if any(key in line for line in epochs)
    ]
    if scores:
        charts.append(
            line_chart(
                scores,
                title="Held-out score",
                x_label="epoch",
                y_label="score",
                whole_x=True,
                mark=best,
                note="How well rows kept back from training are ranked; the best epoch is the one used.",
            )
        )
    yield Section(f"{prefix}training", "Training", tag("div", *charts, class_="figures"))


def _label_by_label(beliefs: Beliefs, prefix: str) -> Section:
    run = beliefs.run
    charts = []
    if beliefs.test_precision is not None:
        values = beliefs.test_precision
        order = np.argsort(-np.nan_to_num(values, nan=-1), kind="stable")
        entries = [Bar(run.classes[c], float(values[c]), hundred(float(values[c]))) for c in order]
        charts.append(
            figure(
                "Average precision",
                bars(entries),
                note=f"How well each label is told apart on the {count(len(run.test), 'test ' + noun(run))}, out of "
                "100; – where none has it.",
            )
        )
    recovered, right = beliefs.recovered.sum(0), beliefs.right.sum(0)
    most = max(int(recovered.max(initial=0)), 1)
    entries = []
    for c in np.argsort(-recovered, kind="stable"):
        judged = int(right[c] + beliefs.wrong[:, c].sum())
        value = f"{recovered[c]:,}" + (f" · {percent(right[c] / judged)}" if judged else "")
        entries.append(Bar(run.classes[c], recovered[c] / most, value, "s4"))
    share = ", and the share of them that is right" if beliefs.judged else ""
    note = f"To how many {noun(run)}s the model gave each label that nobody had given{share}."
    charts.append(figure("Recovered labels", bars(entries), note=note))
    return Section(f"{prefix}labels", "Label by label", tag("div", *charts, class_="figures"))


def _how_sure(beliefs: Beliefs, prefix: str) -> Section:
    groups = list(beliefs.histograms())
    charts = []
    if len(groups) == 2:
        charts.append(
            histogram(
                [("there", "s3", groups[0][1]), ("not there", "s2", groups[1][1])],
                title="Predictions for labels nobody gave",
                x_label="probability",
                y_label="share",
                note="The better the two outlines stand apart, left and right, the better the labels are told apart.",
            )
        )
    else:
        charts.append(
            histogram(
                [("labels", "s4", groups[0][1])],
                title="Predictions for labels nobody gave",
                x_label="probability",
                y_label="how many",
                log_y=True,
                note="Each step upwards is ten times as many. Few in the middle means few doubtful cases.",
            )
        )
    lines = [line for line in beliefs.run.log if line["kind"] == "histogram"]
    if lines:
        charts.append(_histograms_over_epochs(lines))
    if beliefs.judged:
        charts += _trust(beliefs)
    return Section(f"{prefix}sure", "How sure the model is", tag("div", *charts, class_="figures"))


def _histograms_over_epochs(lines: list[dict[str, Any]]) -> Html:
    """Cole et al., figure 2: a column an epoch, each a histogram of the predictions for labels that were not given."""
    counts = np.array([line["counts"] for line in lines], float).T
    shares = counts / np.maximum(counts.sum(axis=0, keepdims=True), 1)
    epochs = [float(line.get("epoch", place + 1)) for place, line in enumerate(lines)]
    x = Axis(epochs[0] - 0.5, epochs[-1] + 0.5, "epoch", whole=True)
    return heat_map(
        np.sqrt(shares),
        title="Predictions over the epochs",
        x=x,
        y=Axis(0, 1, "probability"),
        low=0,
        high=1,
        note="Each column is one pass over the data: where the predictions for labels nobody gave lie. The colour is "
        "the square root of the share, so that few are seen beside many.",
    )


def _trust(beliefs: Beliefs) -> Iterator[Html]:
    """Two answers to "how far can I trust it": down the list of recovered labels, and by confidence."""
    judged = beliefs.recovered & (beliefs.truth != 0)
    confidence, right = beliefs.confidence[judged], beliefs.truth[judged] > 0
    if len(right):
        curve = precision_down_the_list(confidence, right)
        yield line_chart(
            [Series("right", *curve)],
            title="Keeping only the surest",
            x_label="labels kept, surest first",
            y_label="% right",
            y_range=(0, 102),
            note="How many recovered labels can be kept, and what share of them is then right.",
        )
    known = beliefs.unknown & (beliefs.truth != 0)
    said, is_right = beliefs.confidence[known], beliefs.truth[known] > 0
    place = np.minimum((said * 10).astype(int), 9)
    sizes = np.bincount(place, minlength=10)
    there = np.flatnonzero(sizes >= min(10, len(said)))  # fewer say nothing
    x = [100 * float(said[place == i].mean()) for i in there]
    y = [100 * float(is_right[place == i].mean()) for i in there]
    yield line_chart(
        [Series("the model", x, y), Series("ideal", [0.0, 100.0], [0.0, 100.0], mark="guide")],
        title="Is it as sure as it should be?",
        x_label="confidence, %",
        y_label="% truly there",
        y_range=(0, 102),
        note="Of all labels it gave 80% to, 80% should be there. Under the line it is too sure, over it too modest.",
    )


def precision_down_the_list(confidence: Any, right: Any, points: int = 60) -> tuple[list[float], list[float]]:
    """How many labels are kept, surest first, and the percentage of them that is right."""
    order = np.argsort(-confidence, kind="stable")
    kept = np.arange(1, len(order) + 1)
    shares = 100 * np.cumsum(right[order]) / kept
    # The first few kept say nothing: one wrong label of two is half.
    places = np.unique(np.linspace(min(len(kept), 20) - 1, len(kept) - 1, points).astype(int))
    return kept[places].astype(float).tolist(), shares[places].tolist()


def _where_it_looks(beliefs: Beliefs, prefix: str, size: int) -> Iterator[Section]:
    several = beliefs.rows[beliefs.present[beliefs.rows].sum(axis=1) >= 2]
    rows = np.random.default_rng(1).permutation(several)[:6]
    cards = looks(beliefs, sorted(rows.tolist()), size)
    if cards:
        yield Section(
            f"{prefix}looks",
            "Where it looks",
            tag("ul", *cards, class_="gallery looks"),
            "For the labels the model believes are there: what spoke for them is bright and in colour.",
        )


def _settings(run: RunFolder) -> Html:
    """Everything that decided the outcome, folded away."""
    parts = {key: run.record.get(key) for key in ("spml", "method", "train", "model", "k")}
    rows = [[name, str(value)] for name, value in flat(parts)]
    rows += [
        ["data.name", data_name(run)],
        ["data.rows", f"{len(run.train)} train, {len(run.validation)} validation, {len(run.test)} test"],
        ["run", run.name],
        ["best.weights", str(run.best["weights"])],
    ]
    return tag("div", numbers(["setting", "value"], rows, "All settings"), class_="card settings")


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """A nested record as (dotted name, value) pairs."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
