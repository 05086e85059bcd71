"""The sections about one run."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spml.data.stores.features import FeatureStore
from spml.methods import METHODS
from spml.report.axes import Axis
from spml.report.figures import Bar, Series, bars, figure, heat_map, histogram, line_chart, numbers
from spml.report.galleries import evidence_cards, galleries, legend_of_chips
from spml.report.markup import Html, count, join, percent, score_text, tag, with_code
from spml.report.tables import RunTables, trained_on_more_labels
from spml.runs.folder import CROSS_FITTED, RunFolder

MAP = (
    "mAP (mean average precision) measures, for each class, whether images with the label are ranked above those "
    "without it. 100 is perfect."
)
HELD_OUT = (
    "The held-out score is the mAP on images that were not used for training. Only their observed label is known and "
    "all others count as absent, so the score is lower than the true mAP. Use it to compare epochs."
)
RECOVERED = "A label is recovered if it was not observed and its confidence reaches the threshold of its class."


@dataclass(frozen=True)
class Section:
    """A part of the page, with a heading and an anchor."""

    id: str
    title: str
    body: Html
    intro: str = ""

    def html(self) -> Html:
        head = tag("h2", self.title, id=self.id)
        return tag("section", head, tag("p", self.intro, class_="intro") if self.intro else None, self.body)


def chart_section(id: str, title: str, charts: Iterable[Html | None], intro: str = "") -> Iterator[Section]:
    """Yield a section of the charts that are not None; nothing if all are."""
    if figures := [chart for chart in charts if chart is not None]:
        yield Section(id, title, tag("div", *figures, class_="figures"), intro)


def explanation(*paragraphs: str) -> Html:
    """What the numbers above mean, collapsed."""
    return tag("details", tag("summary", "What do these numbers mean?"), *(tag("p", text) for text in paragraphs))


def data_name(run: RunFolder) -> str:
    """Name of the data file or folder, without its parent folders."""
    return Path(str(run.source["path"])).name or str(run.source["path"])


def row_noun(run: RunFolder) -> str:
    kind = run.record.get("inputs", {}).get("kind") or ("features" if isinstance(run.store, FeatureStore) else "images")
    return {"features": "row", "texts": "text"}.get(kind, "image")


def method_in_words(run: RunFolder) -> Html:
    """Return the method's name, description and paper."""
    if run.cross_fitted and run.method == "auto":
        return tag("span", tag("b", run.method), f": {learners_in_words(run)}")
    known = METHODS.get(run.method)
    description = None if known is None else join(": ", with_code(known.summary.rstrip(".")), f" ({known.paper})")
    return tag("span", tag("b", run.method), description)


def learners_in_words(run: RunFolder) -> str:
    """Return the kinds of learners that a run on features uses, with their numbers."""
    names = [candidate["name"] for candidate in run.candidates() if candidate["chosen"]]
    if not names:
        return run.choice
    linear = sum(name.startswith("linear") for name in names)
    numbers_of = {"linear learner": linear, "forest": len(names) - linear}
    parts = [count(number, kind) for kind, number in numbers_of.items() if number]
    verb = "combined" if len(names) > 1 else "chosen"
    return f"{' and '.join(parts)}, {verb} by the likelihood of held-out labels"


def tile(value: str, name: str, note: str = "") -> Html:
    return tag("div", tag("b", value), tag("span", name), tag("small", note) if note else None, class_="card tile")


def summary(tables: RunTables) -> Html:
    """Return the result of a run in one sentence and a few large numbers."""
    run = tables.run
    warning = None
    if trained_on_more_labels(run):
        text = f"This run is a reference: {run.method} was trained on more labels than the observed ones."
        warning = tag("p", text, class_="notice")
    choice = "The best epoch is the one with the highest held-out score; its model is used."
    held_out = HELD_OUT
    if run.cross_fitted:
        choice = f"The model was trained on {run.rows_in_words}."
        held_out = held_out.replace("images that were not used for training", f"images, {CROSS_FITTED}")
        held_out = held_out.replace("epochs", "runs on the same data")
    explained = explanation(
        (MAP if tables.test_precision is not None else held_out).replace("images", f"{row_noun(run)}s"),
        f"{RECOVERED} Observed labels have a confidence of 100%.",
        choice,
    )
    return join(
        tag("p", _result_sentence(tables), class_="lead"),
        tag("p", "Method ", method_in_words(run), class_="method"),
        warning,
        tag("div", *_result_tiles(tables), class_="tiles"),
        explained,
    )


def _result_sentence(tables: RunTables) -> str:
    run, recovery = tables.run, tables.recovery
    labels = "one label each" if run.labels.is_single_positive else f"{count(_observed(tables), 'label')} in total"
    sentence = (
        f"The data has {count(len(tables.rows), row_noun(run))} with {labels}, and "
        f"{count(len(run.classes), 'class', 'classes')}. The model recovered {count(recovery.count, 'missing label')}."
    )
    if not recovery.checked:
        return sentence
    return (
        f"{sentence} According to the full labels, {percent(recovery.precision)} of these are correct, and "
        f"{percent(recovery.found)} of all missing labels were found."
    )


def _result_tiles(tables: RunTables) -> Iterator[Html]:
    run, recovery, unit = tables.run, tables.recovery, row_noun(tables.run)
    yield tile(count(recovery.count), "labels recovered", f"in addition to {_observed(tables):,} observed")
    if recovery.checked:
        yield tile(percent(recovery.precision), "precision", f"{recovery.right:,} of {recovery.checked:,} are correct")
        yield tile(percent(recovery.found), "recall", f"{recovery.right:,} of {recovery.missing:,} missing labels")
    if tables.test_precision is not None:
        yield tile(score_text(tables.test_map), "test mAP", f"on {count(len(run.test), unit)}")
    elif run.best["score"] is not None:
        scored = run.train if run.cross_fitted else run.validation
        yield tile(score_text(run.best["score"]), "held-out score", f"on {count(len(scored), unit)}")
    if not run.cross_fitted:
        epochs = len(run.epochs())
        yield tile(str(run.best["epoch"]), "best epoch", f"of {epochs}" if epochs else "")


def _observed(tables: RunTables) -> int:
    """Return the number of observed labels."""
    return int((tables.observed[tables.rows] > 0).sum())


def sections(
    tables: RunTables, prefix: str = "", *, per_gallery: int = 8, size: int = 192, evidence: bool = True
) -> Iterator[Section]:
    """Yield all sections of one run, with `per_gallery` pictures of at most `size` pixels in each gallery."""
    if per_gallery:
        yield pictures(tables, prefix, per_gallery, size)
    yield from _candidates(tables.run, prefix)
    yield from _training(tables.run, prefix)
    yield from _classes_and_confidence(tables, prefix)
    if evidence:
        yield from _evidence(tables, prefix, size)
    yield Section(f"{prefix}settings", "Settings", _settings(tables.run))


def pictures(tables: RunTables, prefix: str, per_gallery: int, size: int, title: str = "Recovered labels") -> Section:
    """Galleries of examples with their observed and recovered labels."""
    run = tables.run
    notices = list(tables.notes)
    if run.store is None:
        missing = "texts" if row_noun(run) == "text" else "pictures"
        notices.append(f"The data ({data_name(run)}) was moved or changed, so names are shown instead of {missing}.")
    intro = f"Bars show the confidence of the most likely labels of each {row_noun(run)}."
    if row_noun(run) == "text":
        intro += " Marked words support the highlighted or most likely label; darker words support it more."
    body = join(
        *(tag("p", with_code(text), class_="notice") for text in notices),
        legend_of_chips(tables),
        *galleries(tables, per_gallery, size),
    )
    return Section(f"{prefix}recovered", title, body, intro)


def _candidates(run: RunFolder, prefix: str) -> Iterator[Section]:
    """What a training on features tried and chose: the cross-validation curve."""
    candidates = run.candidates()
    if not candidates:
        return
    best = max(candidate["log_likelihood"] for candidate in candidates)
    low = min(candidate["log_likelihood"] for candidate in candidates)
    entries = [
        Bar(
            candidate["name"] + (f" · weight {candidate['weight']:.2f}" if candidate["chosen"] else ""),
            0.05 + 0.95 * (candidate["log_likelihood"] - low) / max(best - low, 1e-9),
            f"{candidate['log_likelihood']:.3f} ± {candidate['standard_error']:.3f}",
            "s3" if candidate["chosen"] else "s1",
        )
        for candidate in candidates
    ]
    note = "Mean log-likelihood of the observed labels of held-out rows, by cross-validation; higher is better."
    used = [entry for entry, candidate in zip(entries, candidates, strict=True) if candidate["chosen"]]
    summary = tag("summary", f"All {len(entries)} learners that were compared")
    everything = tag("details", summary, tag("p", "Those with a weight are used, in green."), bars(entries))
    compared = everything if len(entries) > len(used) else None
    learners = figure("Learners that are used", bars(used), compared, note=note)
    yield from chart_section(f"{prefix}choice", "What was chosen", [learners], f"{run.choice}.")


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
            note="The quantity that training minimises. With most methods it falls, then levels off.",
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
                note="mAP on examples not used for training, counting only observed labels. The best epoch is used.",
            )
        )
    yield from chart_section(f"{prefix}training", "Training", charts)


def _classes_and_confidence(tables: RunTables, prefix: str) -> Iterator[Section]:
    """Two sections; a single one if each has only one chart, so that these are side by side."""
    classes, confidence = _classes(tables), _confidence(tables)
    if len(classes) == len(confidence) == 1:
        yield from chart_section(f"{prefix}labels", "Classes and confidence", [*classes, *confidence])
        return
    yield from chart_section(f"{prefix}labels", "Classes", classes)
    yield from chart_section(f"{prefix}sure", "Confidence", confidence)


def _classes(tables: RunTables) -> list[Html]:
    run = tables.run
    charts = []
    if tables.test_precision is not None:
        values = tables.test_precision
        order = np.argsort(-np.nan_to_num(values, nan=-1), kind="stable")
        entries = [Bar(run.classes[c], float(values[c]), score_text(float(values[c]))) for c in order]
        charts.append(
            figure(
                "Average precision",
                bars(entries),
                note=f"Per class, on {count(len(run.test), 'test ' + row_noun(run))}, in percent. – means that no test "
                f"{row_noun(run)} has the label.",
            )
        )
    recovered, right = tables.recovered.sum(0), tables.right.sum(0)
    most = max(int(recovered.max(initial=0)), 1)
    entries = []
    for c in np.argsort(-recovered, kind="stable"):
        judged = int(right[c] + tables.wrong[:, c].sum())
        value = f"{recovered[c]:,}" + (f" · {percent(right[c] / judged)}" if judged else "")
        entries.append(Bar(run.classes[c], recovered[c] / most, value, "s4"))
    share = ", and the percentage that is correct" if tables.has_truth else ""
    note = f"Number of {row_noun(run)}s in which each label was recovered{share}."
    charts.append(figure("Recovered labels", bars(entries), note=note))
    return charts


def _confidence(tables: RunTables) -> list[Html]:
    colours = {"present": "s3", "absent": "s2", "labels": "s4"}
    note = "Logarithmic scale. Few labels in the middle mean few doubtful cases."
    if tables.has_truth:
        note = "The less the two histograms overlap, the better the model separates present from absent labels."
    note += " A label is recovered if its confidence reaches the threshold of its class."
    charts = [
        histogram(
            [(name, colours[name], heights) for name, heights in tables.histograms()],
            title="Confidence of unobserved labels",
            x_label="confidence",
            y_label="share" if tables.has_truth else "count",
            log_y=not tables.has_truth,
            note=note,
        )
    ]
    lines = [line for line in tables.run.log if line["kind"] == "histogram"]
    if lines:
        charts.append(_histograms_over_epochs(lines))
    if tables.has_truth:
        charts += _trust(tables)
    return charts


def _histograms_over_epochs(lines: list[dict[str, Any]]) -> Html:
    """Histogram of the predictions for unobserved labels, one column per epoch (Cole et al. 2021, figure 2)."""
    counts = np.array([line["counts"] for line in lines], float).T
    shares = counts / np.maximum(counts.sum(axis=0, keepdims=True), 1)
    epochs = [float(line.get("epoch", index + 1)) for index, line in enumerate(lines)]
    x = Axis(epochs[0] - 0.5, epochs[-1] + 0.5, "epoch", whole=True)
    return heat_map(
        np.sqrt(shares),
        title="Predictions by epoch",
        x=x,
        y=Axis(0, 1, "probability"),
        high=1,
        note="Each column is a histogram of the predictions for unobserved labels after one epoch, before calibration. "
        "The colour shows the square root of the share, so that small shares stay visible.",
    )


def _trust(tables: RunTables) -> Iterator[Html]:
    """How reliable the recovered labels are: by rank, and by confidence."""
    judged = tables.recovered & (tables.truth != 0)
    confidence, right = tables.confidence[judged], tables.truth[judged] > 0
    if len(right):
        curve = precision_down_the_list(confidence, right)
        yield line_chart(
            [Series("correct", *curve)],
            title="Precision by number of labels kept",
            x_label="most confident labels kept",
            y_label="% correct",
            y_range=(0, 102),
            note="If you keep only the most confident recovered labels: how many of them are correct.",
        )
    known = tables.unknown & (tables.truth != 0)
    confidence, is_right = tables.confidence[known], tables.truth[known] > 0
    bin_of = np.minimum((confidence * 10).astype(int), 9)
    sizes = np.bincount(bin_of, minlength=10)
    enough = np.flatnonzero(sizes >= min(10, len(confidence)))  # fewer are too noisy
    x = [100 * float(confidence[bin_of == i].mean()) for i in enough]
    y = [100 * float(is_right[bin_of == i].mean()) for i in enough]
    spread = [_half_width(int(is_right[bin_of == i].sum()), int(sizes[i])) for i in enough]
    yield line_chart(
        [Series("the model", x, y, spread), Series("ideal", [0.0, 100.0], [0.0, 100.0], mark="guide")],
        title="Calibration",
        x_label="confidence, %",
        y_label="% present",
        y_range=(0, 102),
        note="Of the labels with a confidence of 80%, 80% should be present. Below the line the model is "
        "overconfident, above it underconfident. The band is a 90% interval: wide where there are few labels.",
    )


def _half_width(right: int, total: int) -> float:
    """Half of the 90% interval of a percentage, with the usual two additional successes and failures."""
    share, trials = (right + 2) / (total + 4), total + 4
    return 164.5 * float(np.sqrt(share * (1 - share) / trials))


def precision_down_the_list(confidence: Any, right: Any, points: int = 60) -> tuple[list[float], list[float]]:
    """Number of labels kept, most confident first, and the percentage of them that is correct."""
    order = np.argsort(-confidence, kind="stable")
    kept = np.arange(1, len(order) + 1)
    shares = 100 * np.cumsum(right[order]) / kept
    # The first few are too noisy: one wrong label of two is half.
    indices = np.unique(np.linspace(min(len(kept), 20) - 1, len(kept) - 1, points).astype(int))
    return kept[indices].astype(float).tolist(), shares[indices].tolist()


def _evidence(tables: RunTables, prefix: str, size: int) -> Iterator[Section]:
    several = tables.rows[tables.present[tables.rows].sum(axis=1) >= 2]
    rows = np.random.default_rng(1).permutation(several)[:6]
    cards = evidence_cards(tables, sorted(rows.tolist()), size * 5 // 4)
    if cards:
        yield Section(
            f"{prefix}evidence",
            "Image evidence",
            tag("ul", *cards, class_="gallery evidence"),
            "The image regions that support each predicted label have warm colours; the rest is pale.",
        )


def _settings(run: RunFolder) -> Html:
    """Everything that determined the result, in a collapsed table."""
    parts = {key: run.record.get(key) for key in ("spml", "method", "train", "model", "k")}
    rows = [[name, str(value)] for name, value in flat(parts)]
    rows += [
        ["data.name", data_name(run)],
        ["data.rows", f"{run.rows_in_words}; {len(run.test)} test rows"],
        ["run", run.name],
        ["best.weights", str(run.best["weights"])],
    ]
    return tag("div", numbers(["setting", "value"], rows, "All settings"), class_="card settings")


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a nested record as (dotted name, value) pairs."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
