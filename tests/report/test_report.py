"""Reports: counts, escaping, and rendering in a real browser."""

import base64
import dataclasses
import hashlib
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

import spml
from spml.data import FeatureStore, ImageStore, ViewSettings
from spml.data.detect import open_data
from spml.data.formats.scenes import scenes
from spml.errors import InputError
from spml.labels import Labels
from spml.methods import Clock, Problem, method
from spml.models import build_classifier
from spml.models.feature_model import FeatureModel, LinearLearner
from spml.recover import recover
from spml.report import loss_landscape, write_report
from spml.report.axes import Axis, log_ticks, round_ticks
from spml.report.comparison import groups
from spml.report.figures import Bar, Series, Spread, bars, heat_map, line_chart, spreads
from spml.report.galleries import extremes, highlight, kind_of, split_pieces, support_maps
from spml.report.landscape import Landscape, _direction, own_loss
from spml.report.markup import Html, join, percent, score_text, tag, with_code
from spml.report.sections import precision_down_the_list
from spml.report.studies import StudyChart, study_figure
from spml.report.tables import RunTables, confidence_and_presence, trained_on_more_labels
from spml.report.theme import PALETTE, script
from spml.runs.files import write_tensors
from spml.runs.folder import RunFolder, open_run
from spml.training.examples import Examples
from spml.training.network.finish import finish
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings

EVIL_CLASS = "<script>window.hacked=1</script>"
EVIL_FILE = '"><img src=x onerror="window.hacked=1">/a&b\u202e.jpg'
CLASSES = ("cat", "dog", EVIL_CLASS, "été 雪", "bus", "tram", "sofa")


def a_run(
    folder: Path = Path("runs/first"),
    *,
    name: str = "an",
    seed: int = 0,
    rows: int = 60,
    truth: bool = True,
    images: bool = True,
    shift: float = 0.0,
    log: tuple[dict, ...] = (),
    classes: tuple[str, ...] = CLASSES,
) -> RunFolder:
    """A run without training: random truth, one observed label per row, noisy predictions."""
    rng = np.random.default_rng(seed)
    data = np.random.default_rng(99)
    full = np.where(data.random((rows, len(classes))) < 0.35, 1, -1).astype(np.int8)
    full[np.arange(rows), data.integers(len(classes), size=rows)] = 1
    first = np.array([data.choice(np.flatnonzero(row > 0)) for row in full])
    first[rows * 4 // 5 :] = -1  # no observed labels in the test rows
    scores = 1 / (1 + np.exp(-(1.2 * full + shift + 1.5 * rng.standard_normal(full.shape))))
    names = [f"photo {row}.jpg" for row in range(rows)]
    names[1] = EVIL_FILE
    labels = Labels.from_indices(first, classes)
    parts = np.split(np.arange(rows), [rows * 3 // 5, rows * 4 // 5])
    epochs = [
        {"kind": "epoch", "step": e, "epoch": e, "loss": 1 / e, "validation_raw": 0.3 + 0.01 * e} for e in (1, 2, 3)
    ]
    run = RunFolder(
        folder=folder,
        record={
            "spml": "0",
            "method": {"name": name},
            "train": {"seed": seed, "epochs": 3},
            "model": {"head": "linear", "backbone": "small"},
            "data": {"labels": labels.subset(parts[0]).fingerprint()},
            "k": None,
        },
        best={"score": 0.33, "epoch": 3, "weights": "raw"},
        log=[*epochs, *log],
        names=names,
        labels=labels,
        truth=Labels.from_matrix(full, classes) if truth else None,
        probabilities=scores.astype(np.float32),
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        source={"path": "photos/<b>", "options": {}},
    )
    pixels = np.random.default_rng(5).integers(0, 256, (rows, 3, 24, 24), dtype=np.uint8)
    store = ImageStore.from_array(pixels) if images else FeatureStore(np.zeros((rows, 4), np.float32))
    run.__dict__["store"] = store
    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A label-wise network, trained briefly on built-in scenes and loaded from its folder."""
    torch.set_num_threads(1)
    options = {"train": 50, "test": 20, "size": 32}
    data = scenes(**options)
    torch.manual_seed(0)
    network = build_classifier("small", 10, "label-wise", image_size=32, width=16, feedforward=16)
    run = Trainer(
        tmp_path_factory.mktemp("runs") / "label-wise",
        network,
        method("role"),
        Examples(data.store, data.train, data.labels.subset(data.train)),
        Examples(data.store, data.validation, data.labels.subset(data.validation)),
        TrainSettings(epochs=2, batch_size=20, averaging=0.9, views=ViewSettings(flip=0.0)),
        k=2.5,
        progress=False,
        device="cpu",
    )
    run.fit()
    finish(run, replace(data, source={"path": "scenes", "options": options}))
    return open_run(run.folder)


class Parsed(HTMLParser):
    """The tags, the attributes and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def report(tmp_path: Path, *runs: RunFolder, **options) -> tuple[Path, str, Parsed]:
    path = tmp_path / "report.html"
    write_report(runs, path, recovered=[None] * len(runs), overwrite=True, **options)
    text = path.read_text(encoding="utf-8")
    return path, text, Parsed(text)


# -- markup -------------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_text_and_attributes_survive_escaping(text, value):
    parsed = Parsed(tag("p", text, title=value))
    no_carriage = str.maketrans({"\r": "\n"})  # parsers may change line endings
    assert "".join(parsed.texts).translate(no_carriage) == text.translate(no_carriage)
    assert parsed.tags == [("p", {"title": value})]


def test_markup_is_not_escaped_but_text_is():
    assert (
        tag("p", Html("<b>"), "<i>", None, class_="a", hidden=True, title=None)
        == '<p class="a" hidden><b>&lt;i&gt;</p>'
    )
    assert join("a<", tag("br")) == "a&lt;<br>"


def test_backticks_become_code():
    assert with_code("use `a<b` now") == "use <code>a&lt;b</code> now"
    assert with_code("<plain>") == "&lt;plain&gt;"


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (0.001, "<1%"), (0.5, "50%"), (0.999, ">99%"), (1.0, "100%"), (math.nan, "–")]
)
def test_percent_does_not_round_to_0_or_100(share, text):
    assert percent(share) == text
    assert score_text(0.8314) == "83.1"


# -- counts ----------------------------------------------------------------------------------------------


def test_recovery_counts_agree_with_a_loop():
    run = a_run()
    tables = RunTables(run)
    observed, truth = run.labels.dense(), run.truth.dense()
    right = wrong = missing = 0
    for row in [*run.train, *run.validation]:
        for label in range(len(CLASSES)):
            if observed[row, label] == 0:
                yes = run.probabilities[row, label] > 0.5
                right += yes and truth[row, label] > 0
                wrong += yes and truth[row, label] < 0
                missing += truth[row, label] > 0
    recovery = tables.recovery
    assert (recovery.right, recovery.checked, recovery.missing) == (right, right + wrong, missing)
    assert recovery.count == right + wrong
    assert 0 < recovery.precision == tables.precisions.positive < 1
    assert recovery.found == right / missing


def test_test_rows_are_never_recovered_and_observed_labels_are_always_present():
    run = a_run(shift=-9.0)  # predicts nothing
    tables = RunTables(run)
    assert not tables.recovered.any()
    assert tables.present[run.labels.dense() > 0].all()
    assert not RunTables(a_run(shift=9.0)).recovered[run.test].any()


def test_the_default_threshold_is_that_of_the_method():
    em = RunTables(a_run(name="em"))
    inside = em.unknown & (em.run.probabilities > 0.5)
    assert 0 < em.recovered.sum() == (inside & (em.run.probabilities > 0.75)).sum() < inside.sum()
    assert RunTables(a_run(name="of-a-plug-in")).recovered.sum() == inside.sum()


def test_recovered_labels_replace_the_default_threshold(tmp_path):
    run = a_run()

    class Recovered:
        notes = ("a note <b>",)

        def confidence(self, rows):
            return np.full((len(rows), len(CLASSES)), 0.25, np.float32)

        def present(self, rows):
            return np.tile(np.arange(len(CLASSES)) == 4, (len(rows), 1))

    confidence, present = confidence_and_presence(run, Recovered())
    assert (confidence == 0.25).all()
    assert present.sum() == len(run.names)
    assert RunTables(run, Recovered()).recovered.any(axis=0).tolist() == [c == 4 for c in range(len(CLASSES))]
    write_report([run], tmp_path / "report.html", recovered=[Recovered()])
    parsed = Parsed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "a note <b>" in parsed.text
    assert "25%" in parsed.text


def test_the_report_recovers_labels_by_default(tmp_path):
    run = a_run()
    write_report([run], tmp_path / "report.html")
    found = recover(run)
    rows = np.concatenate([run.train, run.validation])
    unknown = run.labels.dense(rows) == 0
    number = int((found.present(rows) & unknown).sum())
    assert number != RunTables(run).recovery.count
    assert f"The model recovered {number:,} missing labels" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_unknown_truth_is_ignored():
    run = a_run()
    signed = run.truth.dense()
    signed[:, 1] = 0
    run = dataclasses.replace(run, truth=Labels.from_matrix(signed, CLASSES))
    tables = RunTables(run)
    assert tables.recovered[:, 1].any()
    assert not (tables.right | tables.wrong | tables.missed)[:, 1].any()
    assert tables.recovery.checked < tables.recovery.count
    assert np.isnan(tables.test_precision[1])
    assert tables.separation is None
    row = int(np.flatnonzero(tables.recovered[:, 1])[0])
    assert kind_of(tables, row, 1) == "new"


def test_every_kind_of_label_is_recognised():
    tables = RunTables(a_run())
    expected = {
        "given": tables.observed > 0,
        "right": tables.right,
        "wrong": tables.wrong,
        "missed": tables.missed,
        "absent": tables.unknown & ~tables.present & (tables.truth < 0),
    }
    for kind, table in expected.items():
        rows, labels = np.nonzero(table)
        assert len(rows), kind
        assert {kind_of(tables, r, c) for r, c in zip(rows, labels, strict=True)} == {kind}


def test_extremes_are_the_most_confident_of_different_labels():
    tables = RunTables(a_run(rows=200))
    most = extremes(tables, tables.recovered, len(CLASSES))
    assert len({row for row, _ in most}) == len({label for _, label in most}) == len(CLASSES)
    confidence = [float(tables.confidence[place]) for place in most]
    assert confidence == sorted(confidence, reverse=True)
    assert confidence[0] == tables.confidence[tables.recovered].max()
    least = extremes(tables, tables.recovered, 12, least=True)
    assert len({row for row, _ in least}) == 12
    assert float(tables.confidence[least[0]]) == tables.confidence[tables.recovered].min()


def test_precision_by_rank_skips_noise_and_ends_at_the_precision():
    confidence = np.linspace(1, 0, 100)
    right = np.arange(100) < 50
    kept, shares = precision_down_the_list(confidence, right)
    assert (kept[0], shares[0]) == (20, 100)
    assert (kept[-1], shares[-1]) == (100, 50)
    assert precision_down_the_list(confidence[:3], right[:3]) == ([3.0], [100.0])


def test_a_run_trained_on_the_truth_is_a_reference():
    run = a_run(name="bce")
    assert not trained_on_more_labels(run)
    full = run.truth.subset(run.train).fingerprint()
    assert trained_on_more_labels(dataclasses.replace(run, record={**run.record, "data": {"labels": full}}))


# -- pictures -----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.booleans(),
)  # fmt: skip
@example(1.0, 142858.0, False)
def test_ticks_are_few_and_inside(low, span, whole):
    high = low + span
    ticks = round_ticks(low, high, whole=whole)
    assert len(ticks) <= 9
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    if whole:
        assert all(float(tick).is_integer() for tick in ticks)
    elif low + span > low:
        assert len(ticks) >= 3 or span < 1e-9 * abs(low)


def test_log_ticks_and_places():
    assert log_ticks(90, 11_000) == [100, 1000, 10_000]
    assert log_ticks(100, 500) == [100, 200, 500]
    axis = Axis(1, 100, log=True)
    assert axis.share(10) == pytest.approx(0.5)
    assert Axis.over([3.0, math.nan, 3.0]).share(3.0) == pytest.approx(0.5)


def test_line_charts_break_at_missing_values_and_list_their_numbers():
    text = line_chart(
        [Series("a<b", [1, 2, 3, 4, 5], [1, 2, math.nan, 4, 5], [0.1] * 5), Series("c", [1, 5], [2, 3])],
        title="t", x_label="x", y_label="y", mark=(2, "here"),
    )  # fmt: skip
    parsed = Parsed(text)
    lines = [a["d"] for a in parsed.of("path") if a["class"] == "line"]
    assert len(lines) == 3  # two pieces of the first, one of the second
    assert sum(a["class"] == "band" for a in parsed.of("path")) == 2
    assert "a<b" in parsed.text
    assert "nan" not in text
    assert parsed.of("svg")[0]["role"] == "img"
    assert "a<b: 1 at 1, 5 at 5" in parsed.of("svg")[0]["aria-label"]


def test_many_bars_are_collapsed_but_complete():
    entries = [Bar(f"label {i}", i / 100, str(i)) for i in range(100)]
    parsed = Parsed(bars(entries))
    shown = parsed.text.split("All 100")
    assert shown[0].count("label") == 24
    assert shown[1].count("label") == 100
    widths = Parsed(bars([Bar("up", 0.5, "+"), Bar("down", -1.0, "-")])).of("span")
    styles = [a["style"] for a in widths if a.get("style")]
    assert styles == ["left:50.0%;width:25.0%", "left:0.0%;width:50.0%"]


def test_spreads_share_one_scale():
    parsed = Parsed(spreads([Spread("a", [90.0, 80.0], "85.0", reference=100.0), Spread("b", [70.0], "70.0")]))

    def places(kind):
        return [
            float(a["style"].split(":")[1].rstrip("%"))
            for a in parsed.of("span")
            if kind in (a.get("class") or "").split()
        ]

    first, second, third = places("point")
    (ring,) = places("ring")
    assert 0 < third < second < first < ring < 100
    assert first - second == pytest.approx(second - third, abs=0.11)
    assert sorted(places("place")) == places("place")
    assert parsed.text.startswith("a 85.0 b 70.0 70 ")


def test_heat_map_opacity_grows_with_the_value():
    text = heat_map(np.array([[0.0, 1.0], [0.5, math.nan]]), title="t", x=Axis(0, 2), y=Axis(0, 2), high=1)
    cells = Parsed(text).of("rect")
    assert sorted(float(cell["fill-opacity"]) for cell in cells) == [0.5, 1.0]
    bottom_right = next(cell for cell in cells if cell["fill-opacity"] == "1")
    assert float(bottom_right["y"]) > float(next(c for c in cells if c["fill-opacity"] == "0.5")["y"])


def test_the_highlighted_part_keeps_its_colour():
    image = np.full((8, 8, 3), 200, np.uint8)
    weights = torch.zeros(2, 2)
    weights[0, 0] = 1
    shown = highlight(image, weights).astype(int)
    assert shown[0, 0].sum() > shown[7, 7].sum()
    assert shown[0, 0, 0] > 1.3 * shown[0, 0, 2]  # warm
    assert np.ptp(shown[7, 7]) <= 2  # grey
    assert 150 < highlight(image, torch.zeros(2, 2)).max() < 200


def test_dark_images_stay_visible_without_evidence():
    image = np.full((8, 8, 3), 40, np.uint8)
    assert highlight(image, torch.zeros(2, 2)).min() >= 40


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(mode):
    colours = {name: pair[mode] for name, pair in PALETTE.items()}
    for text in ("text", "quiet", "accent", "missed", "given", "right", "wrong", "new"):
        for ground in ("page", "card"):
            assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for kind in ("given", "right", "wrong", "new"):
        assert _contrast(colours[kind], colours[f"{kind}-soft"]) >= 4.5, kind
    for line in (*(f"series-{i}" for i in range(1, 7)), "absent", "missed"):
        assert _contrast(colours[line], colours["card"]) >= 3, line


# -- the page -----------------------------------------------------------------------------------------------------


def test_names_and_labels_are_escaped(tmp_path):
    _, text, parsed = report(tmp_path, a_run())
    assert EVIL_CLASS not in text
    assert EVIL_FILE not in text
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert script() in text
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert EVIL_CLASS in parsed.text  # as text it is there
    assert "<b>" in parsed.text  # the data's name


def test_the_page_loads_nothing(tmp_path):
    _, text, parsed = report(tmp_path, a_run(), a_run(Path("runs/second"), name="em", seed=1))
    for name, attributes in parsed.tags:
        assert not attributes.keys() & {"srcset", "action", "data", "poster"}, name
        if "src" in attributes:
            assert attributes["src"].startswith("data:image/jpeg;base64,")
        if "href" in attributes:
            assert attributes["href"].startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    assert "://" not in text
    policy = next(a["content"] for a in parsed.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    anchors = {a["href"][1:] for a in parsed.of("a")}
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert anchors <= set(ids)
    assert len(ids) == len(set(ids))
    assert all(image["alt"] for image in parsed.of("img"))


def test_correct_and_wrong_labels_are_counted_and_shown(tmp_path):
    run = a_run()
    _, text, parsed = report(tmp_path, run)
    recovery = RunTables(run).recovery
    assert f"{percent(recovery.precision)} of these are correct" in parsed.text
    assert f"{recovery.right:,} of {recovery.checked:,}" in parsed.text
    assert score_text(RunTables(run).test_map) in parsed.text
    for heading in ("Random examples", "Most confident", "Least confident", "Confident mistakes", "Missed"):
        assert heading in parsed.text
    classes = [a.get("class") or "" for a in parsed.of("li")]
    for kind in ("given", "right", "wrong", "missed"):
        assert f"chip {kind}" in classes, kind
    assert "nan" not in re.sub(r"base64,[^\"]*", "", text.lower())


class Sure:
    """Recovered labels of which only a few are present, with confidences that are not the probabilities."""

    notes = ()

    def __init__(self, run: RunFolder, number: int) -> None:
        self.table = np.zeros(run.probabilities.shape, bool)
        inside = run.labels.dense() == 0
        inside[run.test] = False
        places = np.argwhere(inside)[:number]
        self.table[tuple(places.T)] = True
        self.values = np.where(self.table, 0.95, 0.35).astype(np.float32)

    def confidence(self, rows):
        return self.values[rows]

    def present(self, rows):
        return self.table[rows]


@pytest.mark.parametrize(("number", "few"), [(16, True), (17, False)])
def test_few_recovered_labels_are_in_one_gallery(tmp_path, number, few):
    run = a_run(truth=False)
    write_report([run], tmp_path / "report.html", recovered=[Sure(run, number)])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    headings = re.findall("<h3>(.*?)</h3>", text)
    assert ("All recovered labels" in headings) == few
    assert ("Most confident recovered labels" in headings) == (not few)
    assert ("Least confident recovered labels" in headings) == (not few)
    rows = {int(row) for row in np.argwhere(Sure(run, number).table)[:, 0]}
    if few:
        gallery = text.partition("All recovered labels")[2].partition("<section>")[0]
        assert gallery.count('class="card example"') == len(rows) < number
        assert "16 recovered labels, highest confidence first. Each example is shown once" in gallery


def test_confidence_section_shows_the_confidences_that_recover_uses(tmp_path):
    run = a_run(truth=False)
    tables = RunTables(run, Sure(run, 5))
    ((_, counts),) = tables.histograms(10)
    assert counts[9] == 5
    assert counts[3] == counts.sum() - 5
    write_report([run], tmp_path / "report.html", recovered=[Sure(run, 5)])
    parsed = Parsed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "Confidence of unobserved labels" in parsed.text
    assert "A label is recovered if its confidence reaches the threshold of its class." in parsed.text


def test_sections_with_one_chart_each_are_side_by_side(tmp_path):
    _, _, known = report(tmp_path, a_run())
    assert {"labels", "sure"} <= {a["id"] for a in known.of("h2")}
    _, text, unknown = report(tmp_path, a_run(truth=False))
    assert "Classes and confidence" in unknown.text
    assert "sure" not in {a["id"] for a in unknown.of("h2")}
    assert text.partition("Classes and confidence</h2>")[2].partition("</section>")[0].count("<figure") == 2


def run_on_features(*chosen: str) -> RunFolder:
    """A run that compared learners on features."""
    names = ("linear (softmax), strength 1", "linear (annotator-em), strength 1", "random forest", "extra trees")
    values = {"standard_error": 0.1, "weight": 0.5}
    candidates = tuple(
        {"kind": "candidate", "step": step, "name": name, "log_likelihood": -1.0, "chosen": name in chosen, **values}
        for step, name in enumerate(names)
    )
    run = a_run(name="auto", truth=False, log=(*candidates, {"kind": "end", "step": 9, "summary": "Combined"}))
    run.record["model"]["learners"] = [{"kind": "linear"}]
    return run


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (("linear (softmax), strength 1",), "1 linear learner, chosen by"),
        (("linear (softmax), strength 1", "linear (annotator-em), strength 1"), "2 linear learners, combined by"),
        (("linear (softmax), strength 1", "extra trees"), "1 linear learner and 1 forest, combined by"),
        (("random forest", "extra trees"), "2 forests, combined by"),
    ],
)
def test_the_learners_that_were_used_are_named(tmp_path, chosen, words):
    _, text, parsed = report(tmp_path, run_on_features(*chosen))
    assert f"auto : {words} the likelihood of held-out labels" in parsed.text
    assert "to compare runs on the same data" in parsed.text
    section = text.partition(">What was chosen</h2>")[2].partition("</section>")[0]
    used, _, everything = section.partition("<details>")
    assert tuple(re.findall('class="name">(.*?) · weight', used)) == chosen
    assert "All 4 learners that were compared" in everything
    assert everything.count('class="name"') == 4


def test_long_texts_continue_under_more(tmp_path):
    words = [f"word{number}" for number in range(300)]
    lines = [f'"{" ".join(words)}",billing', '"a short text",login'] * 20
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    run = spml.train(tmp_path / "texts.csv", out=tmp_path / "run", base="linear", device="cpu", progress=False)
    run.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    beginning, more = re.search(
        r'<p class="passage">(.{200,}?)</p><details class="more"><summary>More</summary>(.*?)</details>', text
    ).groups()
    assert 320 <= len(Parsed(beginning).text) < 400
    shown = (Parsed(beginning).text + Parsed(more).text).replace("…", " ").split()[:-1]  # the last one is cut
    assert shown == words[: len(shown)]
    assert len(shown) > 150
    assert '<p class="passage">a short text</p><ul' in re.sub("</?mark[^>]*>", "", text)


def test_texts_are_split_between_words_and_keep_their_marks():
    pieces = [("one two ", 0.0), ("three", 0.5), (" four five six seven eight", 0.0)]
    beginning, rest = split_pieces(pieces, 9)
    assert beginning == [("one two ", 0.0), ("three", 0.5)]
    assert rest == [(" four five six seven eight", 0.0)]
    assert split_pieces(pieces, 38) == (pieces, [])
    assert split_pieces([("unbroken" * 99, 0.0)], 9)[1] == []


def test_without_the_truth_nothing_is_called_correct_or_wrong(tmp_path):
    _, _, parsed = report(tmp_path, a_run(truth=False))
    classes = [a.get("class") or "" for a in parsed.of("li")]
    assert "chip new" in classes
    assert not any(kind in c for c in classes for kind in ("right", "wrong", "missed"))
    assert not re.search("correct|wrong", parsed.text.partition("spml-report-theme")[2])
    assert "held-out score" in parsed.text
    assert "33.0" in parsed.text
    assert "test mAP" not in parsed.text


def test_features_and_missing_images_are_shown_without_pictures(tmp_path):
    _, _, parsed = report(tmp_path, a_run(images=False))
    assert not parsed.of("img")
    assert "The data has 48 rows with one label each" in parsed.text
    run = a_run()
    run.__dict__["store"] = None
    _, _, parsed = report(tmp_path, run)
    assert not parsed.of("img")
    assert "was moved or changed" in parsed.text
    assert "photo 7.jpg" in parsed.text or "photo" in parsed.text


def test_changed_data_is_not_shown(tmp_path):
    draw = np.random.default_rng(0)
    for name in ("red", "green"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    names = open_data(str(tmp_path / "photos"), size=8).names.tolist()
    run = dataclasses.replace(a_run(), names=names, source={"path": str(tmp_path / "photos"), "options": {"size": 8}})
    assert len(run.store) == 6
    (tmp_path / "photos" / "green" / "1.png").unlink()
    assert dataclasses.replace(run).store is None


def test_histograms_of_the_log_are_drawn(tmp_path):
    lines = tuple({"kind": "histogram", "step": e, "epoch": e, "counts": [10, 5, e, 0]} for e in (1, 2, 3))
    _, without, _ = report(tmp_path, a_run())
    _, text, parsed = report(tmp_path, a_run(log=lines))
    assert "Predictions by epoch" in text
    assert "Predictions by epoch" not in without
    assert len(parsed.of("rect")) == 9  # the empty bin of each epoch is not drawn


def test_a_report_with_photographs_stays_small(tmp_path):
    run = a_run(rows=120)
    x = np.linspace(0, 1, 448)
    smooth = 120 + 60 * np.sin(9 * x)[:, None] * np.cos(7 * x)[None]
    photo = (smooth + np.random.default_rng(0).normal(0, 12, (3, 448, 448))).clip(0, 255).astype(np.uint8)
    run.__dict__["store"] = ImageStore.from_array(np.broadcast_to(photo, (120, *photo.shape)))
    path, _, parsed = report(tmp_path, run)
    assert len(parsed.of("img")) == 40
    assert path.stat().st_size < 3_000_000
    assert {image["width"] for image in parsed.of("img")} == {"192"}


def test_image_evidence_is_shown(trained, tmp_path):
    _, _, parsed = report(tmp_path, trained)
    assert "Image evidence" in parsed.text
    maps = [image for image in parsed.of("img") if ": evidence for" in image["alt"]]
    assert len(maps) == 18
    assert len({image["src"] for image in maps}) > 6


def test_evidence_is_where_the_features_are():
    class Thirds(torch.nn.Module):
        """Three channels, each bright in one third of the map, from left to right."""

        def forward(self, images):
            map_ = torch.zeros(len(images), 3, 2, 6)
            for channel in range(3):
                map_[:, channel, :, 2 * channel : 2 * channel + 2] = 1 + channel
            return map_

    network = build_classifier(Thirds(), 2, image_size=8)
    with torch.no_grad():
        network.head.linear.weight.copy_(torch.tensor([[1.0, 0, 0], [-1.0, 0, 2.0]]))
    left, right = support_maps(network, np.zeros((8, 8, 3), np.uint8), [0, 1])
    assert left.tolist() == [[pytest.approx(1 / 12)] * 2 + [0] * 4] * 2  # the mean over twelve places
    assert right.tolist() == [[0] * 4 + [pytest.approx(6 / 12)] * 2] * 2  # what speaks against it is not shown
    with torch.no_grad():
        network.head.linear.weight.copy_(torch.tensor([[-3.0, -1.5, -1 / 3], [0, 0, 0]]))
    (least,) = support_maps(network, np.zeros((8, 8, 3), np.uint8), [0])
    assert least.tolist() == [[0] * 4 + [pytest.approx(2 / 12)] * 2] * 2  # all against it, the right third least


@pytest.mark.parametrize("regions", [0, 9])
def test_evidence_of_a_frozen_network_is_where_the_features_are(regions):
    class Corner(torch.nn.Module):
        """One channel that is active in the upper left corner, and one that is active nowhere."""

        def forward(self, images):
            map_ = torch.zeros(len(images), 2, images.shape[2] // 2, images.shape[3] // 2)
            map_[:, 0, 0, 0] = 1
            return map_

    network = build_classifier(Corner(), 2, image_size=8, zooms=(1.0, 1.5), pooling="rms")
    learner = LinearLearner(torch.eye(2), torch.zeros(2), torch.zeros(2), torch.ones(2))
    options = {"slope": 1.0, "offsets": np.zeros(2), "dim": 2 * (1 + regions), "num_regions": regions}
    network.replace_head(FeatureModel([learner], [1.0], **options))
    (found,) = support_maps(network, np.zeros((8, 8, 3), np.uint8), [0])
    assert found.shape == (6, 6)  # of the larger size
    assert found[0, 0] > 0
    assert found.count_nonzero() == 1


def test_no_evidence_without_spatial_features():
    pooled = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    network = build_classifier(pooled, 2, image_size=8)
    assert support_maps(network, np.zeros((8, 8, 3), np.uint8), [0]) is None


def test_the_report_is_written_atomically(tmp_path, monkeypatch):
    path, before, _ = report(tmp_path, a_run())
    monkeypatch.setattr(os, "fsync", _no_space)
    with pytest.raises(InputError, match=r"report\.html cannot be written: no space left"):
        write_report([a_run(seed=1)], path, recovered=[None], overwrite=True)
    assert path.read_text(encoding="utf-8") == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        write_report([a_run()], tmp_path / "file" / "report.html", recovered=[None])


def _no_space(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_an_existing_file_is_replaced_only_on_request(tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match=r"report.html already exists: pass overwrite=True"):
        write_report([a_run()], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "mine"


def test_invalid_arguments_raise(tmp_path):
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(InputError, match="got 2 sets of recovered labels for 1 runs"):
        write_report([a_run()], tmp_path / "r.html", recovered=[None, None])
    other = a_run(Path("runs/other"), classes=("a", "b", "c"))
    with pytest.raises(InputError, match="runs/first and runs/other have different classes"):
        write_report([a_run(), other], tmp_path / "r.html", recovered=[None, None])
    longer = a_run(Path("runs/longer"), rows=80)
    with pytest.raises(InputError, match="different test rows"):
        write_report([a_run(), longer], tmp_path / "r.html", recovered=[None, None])
    assert not (tmp_path / "r.html").exists()


# -- several runs -------------------------------------------------------------------------------------------------


def several() -> list[RunFolder]:
    runs = [a_run(Path(f"runs/an{seed}"), seed=seed) for seed in (0, 1, 2)]
    runs += [a_run(Path(f"runs/em{seed}"), name="em", seed=seed, shift=0.4) for seed in (3, 4)]
    full = runs[0].truth.subset(runs[0].train).fingerprint()
    reference = a_run(Path("runs/bce"), name="bce", seed=5)
    reference.record["data"]["labels"] = full
    return [*runs, reference]


def test_the_table_shows_mean_and_deviation_over_seeds(tmp_path):
    runs = several()
    _, text, parsed = report(tmp_path, *runs)
    values = np.array([RunTables(run).test_map for run in runs[:3]])
    assert f"{score_text(values.mean())} ± {score_text(values.std(ddof=1))}" in parsed.text
    reference = next(row for row in text.split("<tr>") if row.startswith('<th scope="row" class="name">bce'))
    reference = reference.partition("</tr>")[0]
    assert "±" not in reference
    assert "best" not in reference
    assert "Reference: it was trained on more" in reference
    assert sum(a.get("class") == "best" for a in parsed.of("td")) == 2  # mAP and F1
    for heading in ("Gain per class", "Separation of missing and absent labels", "Precision of recovered labels"):
        assert heading in parsed.text
    assert sum(a.get("class") == "card run" for a in parsed.of("details")) == 6


def test_a_comparison_opens_with_the_pictures_of_the_best_run(tmp_path):
    runs = several()
    _, text, parsed = report(tmp_path, *runs)
    best = max(("an", "em"), key=lambda name: np.mean([RunTables(r).test_map for r in runs if r.method == name]))
    before_runs = text[: text.index('id="runs"')]
    assert f"Recovered labels: {best}" in parsed.text
    assert before_runs.index('id="best-recovered"') < before_runs.index('id="curves"')
    opening = Parsed(before_runs).of("img")
    assert len(opening) == 5 * 4  # five galleries
    assert len(Parsed(text).of("img")) == len(opening) + 2 * 5 * 4  # and one run each of the two other methods


def test_without_the_truth_the_held_out_score_decides_which_run_is_best(tmp_path):
    low, high = a_run(truth=False), a_run(Path("runs/em"), name="em", truth=False)
    high.best["score"] = 0.9
    _, _, parsed = report(tmp_path, low, high)
    assert "Recovered labels: em" in parsed.text
    assert "The best method is" not in parsed.text


def test_gains_compare_means_with_the_assume_negative_baseline(tmp_path):
    runs = several()
    _, _, parsed = report(tmp_path, *runs)
    an, em = (np.mean([RunTables(run).test_precision for run in part], 0) for part in (runs[:3], runs[3:5]))
    gain = 100 * (em - an)
    assert f"average change is {gain.mean():+.1f}".replace("-", "−") in parsed.text
    best = int(gain.argmax())
    assert f"{CLASSES[best]} {gain[best]:+.1f}".replace("-", "−") in parsed.text


def test_runs_trained_on_more_labels_are_references(tmp_path):
    runs = [a_run(Path(f"runs/an{seed}"), seed=seed) for seed in (0, 1)]
    shown = np.where(runs[0].truth.dense() > 0, 1, 0) * (np.arange(60) < 48)[:, None]
    labels = Labels.from_matrix(shown, CLASSES)
    more = dataclasses.replace(a_run(Path("runs/more"), seed=2, shift=1.0), labels=labels)
    more.record["data"]["labels"] = labels.subset(more.train).fingerprint()
    fewer = dataclasses.replace(a_run(Path("runs/fewer"), seed=3), train=np.arange(20))
    fewer.record["data"]["labels"] = fewer.labels.subset(fewer.train).fingerprint()
    all_groups = groups([RunTables(run) for run in (*runs, more, fewer)])
    a_row = np.count_nonzero(shown[more.train]) / len(more.train)
    given = [("1.0", 36), (f"{a_row:.1f}", 36), ("1.0", 20)]
    assert [group.name for group in all_groups] == [
        f"an (labels {labels} per row, rows {rows})" for labels, rows in given
    ]
    assert [group.reference for group in all_groups] == ["", "was trained on more labels per row", ""]
    _, _, parsed = report(tmp_path, *runs, more)
    assert "Reference: it was trained on more labels per row" in parsed.text


def test_runs_are_grouped_by_everything_but_the_seed():
    plain, again = a_run(seed=0), a_run(seed=1)
    other = a_run(seed=2)
    other.record["model"]["head"] = "cam"
    other.record["model"]["head_settings"] = {"boost": 5.0}
    smoothed = a_run(seed=3, name="an-ls")
    all_groups = groups([RunTables(run) for run in (plain, other, again, smoothed)])
    assert [(group.name, len(group.runs)) for group in all_groups] == [
        ("an (head linear)", 2),
        ("an (head cam)", 1),
        ("an-ls", 1),
    ]


def label_budget(rows: list[dict]) -> StudyChart:
    return StudyChart("Score by number of labels", rows, "labels", x_label="observed labels", log_x=True)


def test_studies_show_mean_and_spread():
    rows = [
        {"method": name, "labels": str(n), "test_map": str(0.1 * n + 0.01 * seed)}
        for name in ("an", "role")
        for n in (1, 2, 4)
        for seed in (0, 1)
    ]
    text = study_figure(label_budget(rows))
    parsed = Parsed(text)
    assert sum(a["class"] == "band" for a in parsed.of("path")) == 2
    cells = [t.strip() for t in parsed.texts]
    assert "10.5" in cells
    assert "40.5" in cells
    assert "Score by number of labels" in parsed.text
    assert "observed labels" in parsed.text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"labels": 3}, "row 0 has no column 'test_map'; its columns are labels"),
        ({"labels": "many", "test_map": 1}, "row 0, column 'labels' is 'many', not a number"),
        ({"labels": 0, "test_map": 1}, "row 0, column 'labels' is 0, which cannot be plotted"),
        ({"labels": 1, "test_map": "nan"}, "column 'test_map' is nan"),
    ],
)
def test_invalid_study_rows_raise(row, words):
    with pytest.raises(InputError, match=re.escape(words)):
        study_figure(label_budget([row]))
    with pytest.raises(InputError, match="no column 'shade'"):
        study_figure(StudyChart("s", [{"x": 1}], "x", "shade"))


# -- the loss landscape -------------------------------------------------------------------------------------------


def test_the_centre_of_the_landscape_is_the_network(trained):
    landscape = loss_landscape(trained, 16, steps=3, reach=0.5)
    assert landscape.values.shape == (3, 3)
    assert landscape.offsets.tolist() == [-0.5, 0, 0.5]
    positions = torch.randperm(len(trained.train), generator=torch.Generator().manual_seed(0))[:16].sort().values
    labels = trained.labels.subset(trained.train)
    role = method("role")
    role.prepare(Problem(labels, k=2.5, seeds=0))
    from spml.runs.files import read_tensors

    role.load_state_dict(read_tensors(trained.folder / "best-memory.safetensors")[0])
    with torch.no_grad():
        logits = trained.network()(trained.store.batch(trained.train[positions.numpy()])).logits
        expected = role.objective(logits, labels.batch(positions.numpy()), positions, Clock(trained.best["epoch"], 2))
    assert landscape.values[1, 1] == pytest.approx(float(expected), rel=1e-5)
    assert len(np.unique(landscape.values)) == 9
    again = loss_landscape(trained, 16, steps=3, reach=0.5)
    assert (again.values == landscape.values).all()


def test_the_landscape_of_soft_labels_is_their_cross_entropy(trained, tmp_path):
    labels = trained.labels.subset(trained.train)
    soft_labels = torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)).half()
    write_tensors(tmp_path / "best-memory.safetensors", {"memory.values": soft_labels}, {})
    record = {**trained.record, "method": {"name": "auto"}}
    rows, logits = torch.arange(8), torch.randn(8, 10, generator=torch.Generator().manual_seed(1))
    loss = own_loss(dataclasses.replace(trained, folder=tmp_path, record=record), labels)
    expected = F.binary_cross_entropy_with_logits(logits, soft_labels[:8].float(), reduction="none").sum(1).mean()
    assert float(loss(logits, labels.batch(rows.numpy()), rows)) == pytest.approx(float(expected), rel=1e-4)


def test_runs_on_features_have_no_landscape(tmp_path):
    draw = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", draw.normal(size=(60, 6)).astype(np.float32))
    np.save(tmp_path / "y.npy", draw.integers(0, 3, 60))
    options = {"labels": tmp_path / "y.npy", "progress": False, "base": "linear"}
    spml.train(tmp_path / "x.npy", out=tmp_path / "run", device="cpu", **options)
    with pytest.raises(InputError, match="a loss landscape needs a network"):
        loss_landscape(open_run(tmp_path / "run"), 200, steps=3)


def test_directions_have_the_norms_of_the_filters_and_keep_biases():
    weights = {"conv": torch.randn(4, 3, 2, 2), "bias": torch.randn(4)}
    direction = _direction(weights, torch.Generator().manual_seed(0))
    torch.testing.assert_close(direction["conv"].flatten(1).norm(dim=1), weights["conv"].flatten(1).norm(dim=1))
    assert not direction["bias"].any()


def test_landscapes_share_one_scale_and_invalid_grids_raise(trained, tmp_path):
    steep = Landscape(np.array([[2.0, 1, 2], [1, -1, 1], [2, 1, 2]]), np.array([-1.0, 0, 1]))
    flat = Landscape(steep.values / 3, steep.offsets)
    _, _, parsed = report(
        tmp_path, a_run(), a_run(Path("runs/b"), name="em"), landscapes={"steep": steep, "flat": flat}
    )
    opacities = [float(a["fill-opacity"]) for a in parsed.of("rect")]
    assert max(opacities[:8]) == 1
    assert max(opacities[8:]) == pytest.approx(1 / 3, abs=1e-3)
    for options in ({"steps": 4}, {"steps": 1}, {"examples": 0}):
        with pytest.raises(InputError, match="must be"):
            loss_landscape(trained, **options)
    lost = a_run()
    lost.__dict__["store"] = None
    with pytest.raises(InputError, match="was moved or changed"):
        loss_landscape(lost)


# -- in a browser -------------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the PATH")

CHECK = """
const result = {};
const images = [...document.images];
const ground = () => getComputedStyle(document.body).backgroundColor;
const button = document.getElementById("theme");
addEventListener("load", () => {
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
  result.images = images.length;
  result.shown = images.filter((image) => image.complete && image.naturalWidth > 0).length;
  result.wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  result.hacked = "hacked" in window;
  const before = ground(), name = button.textContent;
  button.click();
  result.toggled = ground() !== before && button.textContent !== name && !button.hidden;
  result.remembered = localStorage.getItem("spml-report-theme") === document.documentElement.dataset.theme;
  button.click();
  result.back = ground() === before;
  document.body.dataset.check = JSON.stringify(result);
});
"""


def with_script(page: str, script: str) -> str:
    """The page with one more script, added to its policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def chromium(page: Path, profile: Path, *options: str, width: int = 1100) -> tuple[str, list[str]]:
    """Output of the browser, and the messages of its console."""
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    flags += "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={profile}", f"--window-size={width},900", *options]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@browser
@pytest.mark.parametrize("width", [390, 1100])
def test_the_browser_shows_every_image_and_switches_themes(tmp_path, width):
    many = [a_run(), a_run(Path("runs/em"), name="em", seed=1)]
    for number, runs in enumerate(([many[0]], many)):
        _, text, _ = report(tmp_path, *runs)
        page = tmp_path / f"checked{number}.html"
        page.write_text(with_script(text, CHECK), encoding="utf-8")
        dom, console = chromium(page, tmp_path / "profile", "--dump-dom", width=width)
        assert console == []
        result = dict(re.findall(r'"(\w+)":(\w+)', Parsed(dom).of("body")[0]["data-check"]))
        assert int(result.pop("images")) == int(result.pop("shown")) > 10
        assert result == {
            "wide": "false", "hacked": "false", "toggled": "true", "remembered": "true", "back": "true",
        }  # fmt: skip


LAYOUT = """
addEventListener("load", () => {
  const width = (selector) => Math.round(document.querySelector(selector).getBoundingClientRect().width);
  const name = [...document.querySelectorAll(".sure .name")].find((each) => each.textContent.startsWith("Evading"));
  const result = {
    whole: width("main"), only: width("#choice ~ .figures > .figure"), map: width(".maps img"),
    cut: name.scrollWidth > name.clientWidth || getComputedStyle(name).overflow !== "visible",
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  };
  document.body.dataset.check = JSON.stringify(result);
});
"""


@browser
@pytest.mark.parametrize("width", [500, 1200])
def test_pictures_are_large_names_are_whole_and_charts_use_the_page(trained, tmp_path, width):
    classes = ("Evading growth suppressors", *trained.classes[1:])
    labels = Labels.from_matrix(trained.labels.dense(), classes)
    lines = [line for line in run_on_features("extra trees").log if line["kind"] == "candidate"]
    run = dataclasses.replace(trained, labels=labels, log=lines)
    run.__dict__["store"] = trained.store

    class Notes(Sure):
        notes = (
            "Run `spml recover runs/first --labelled a-long-name-of-a-table.csv --precision 0.95 --out labels.csv`.",
        )

    write_report([run], tmp_path / "report.html", recovered=[Notes(run, 40)])
    page = tmp_path / "checked.html"
    page.write_text(with_script((tmp_path / "report.html").read_text(encoding="utf-8"), LAYOUT), encoding="utf-8")
    dom, _ = chromium(page, tmp_path / "profile", "--dump-dom", width=width)
    result = dict(re.findall(r'"(\w+)":(\w+)', Parsed(dom).of("body")[0]["data-check"]))
    assert result["only"] == result["whole"]
    assert int(result["map"]) >= 190
    assert (result["cut"], result["wide"]) == ("false", "false")


@browser
def test_the_page_has_no_console_errors_and_two_themes(tmp_path):
    from PIL import Image

    page, text, _ = report(tmp_path, a_run())
    grounds = []
    for scheme in (0, 1):  # dark, light
        shot = tmp_path / f"shot{scheme}.png"
        options = (f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}")
        _, console = chromium(page, tmp_path / "profile", *options)
        assert console == []
        with Image.open(shot) as image:
            grounds.append("#" + bytes(image.convert("RGB").getpixel((3, 3))).hex())
    assert grounds == [PALETTE["page"][1], PALETTE["page"][0]]
    # The check can fail: what must not be there is heard when it is there.
    loud = tmp_path / "loud.html"
    loud.write_text(text.replace("</body>", "<script>1</script><img src='https://example.org/x.png'></body>"))
    _, console = chromium(loud, tmp_path / "profile", "--dump-dom")
    assert len(console) >= 2


def test_the_reliability_band_is_a_90_percent_interval() -> None:
    from spml.report.sections import _half_width

    rng = np.random.default_rng(0)
    for share, total in ((0.5, 20), (0.9, 30), (0.7, 200)):
        right = rng.binomial(total, share, 2000)
        covered = np.mean([abs(100 * (r + 2) / (total + 4) - 100 * share) <= _half_width(int(r), total) for r in right])
        assert covered > 0.85
    assert _half_width(8, 10) > 2 * _half_width(800, 1000)
