"""Tables: means next to the paper's numbers, and paired tests against formulas written out here."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest

from spml.bench import compare
from spml.bench.compare import (
    TableLine,
    best_of,
    csv_rows,
    display_cells,
    explain_p,
    markdown,
    pair_rows,
    table_lines,
)
from spml.bench.compare import write_csv as write_rows
from spml.bench.paper import Paper, PaperValue
from spml.bench.protocols import Search, make_protocol
from spml.bench.report import explain_thresholds
from spml.bench.search import RunResult
from spml.bench.significance import holm, paired_test
from spml.losses import assume_negative
from spml.methods import METHODS, loss_method
from spml.training.experiment import Experiment


def line(method, scores, paper=None, reference=False):
    return TableLine("d", method, "", None, reference, dict(enumerate(scores)), paper, "")


def student_p(gains):
    """Two-sided p of the paired t with 2 degrees of freedom, whose distribution has a closed form."""
    n = len(gains)
    assert n == 3
    t = np.mean(gains) / (np.std(gains, ddof=1) / math.sqrt(n))
    return 1 - abs(t) / math.sqrt(2 + t * t)


def by_seed(*scores):
    return dict(enumerate(scores))


def test_t_test_over_three_seeds():
    found = paired_test(by_seed(81.0, 82.5, 80.7), by_seed(80.1, 80.9, 80.3))
    gains = [0.9, 1.6, 0.4]
    assert found.name == "paired t over 3 seeds"
    assert found.difference == pytest.approx(np.mean(gains))
    assert found.p == pytest.approx(student_p(gains), rel=1e-9)


def test_paired_test_without_pairs_or_differences():
    same = by_seed(80.0, 81.0, 82.0)
    assert paired_test(same, by_seed(80.0, 81.0, 82.0)).p == 1.0
    assert paired_test(same, by_seed(79.0, 80.0, 81.0)).p == 0.0  # the same gain every time
    two = paired_test(by_seed(80.0, 81.0), by_seed(79.0, 80.5))
    assert (two.difference, two.p) == (0.75, None)  # two seeds are too few for a test
    assert paired_test({0: 80.0}, {7: 80.0}) is None  # no common seed


def test_table_starts_with_the_best_and_marks_it():
    lines = [line("an", [1.0, 2.0]), line("em", [3.0, 4.0]), line("bce", [5.0, 6.0], reference=True)]
    header, cells = display_cells(lines)
    assert [row[0] for row in cells] == ["bce*", "em", "an"]
    assert [row[header.index("to the best")] for row in cells] == ["+2.00", "best", "-2.00"]
    assert "to the best" not in display_cells(lines[:1])[0]
    varied = [replace(each, varied="k", value=value) for value, each in enumerate(lines)]
    assert [row[0] for row in display_cells(varied)[1]] == ["an", "em", "bce*"]  # in the order of the study


def test_report_states_the_threshold_of_every_method(monkeypatch):
    def sure(logits, labels):
        return assume_negative(logits, labels)

    monkeypatch.setattr(METHODS, "data", dict(METHODS.data))
    loss_method("sure", sure, paper="none", summary="A test.", f1_threshold=0.9)
    text = explain_thresholds(["an", "wan", "role", "em", "em-apl", "sure"])
    assert text.endswith("threshold: 0.75 for em, em-apl; 0.9 for sure; 0.5 for all others.")
    assert explain_thresholds(["em"]).endswith("threshold: 0.75.")


def test_p_values_are_corrected_by_holm():
    """Smallest times m, next times m - 1, …, never decreasing and at most 1."""
    assert holm([0.01, 0.04, 0.02]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.5, 0.001, 0.6]) == pytest.approx([1.0, 0.003, 1.0])
    assert holm([]) == []
    lines = [
        line("best", [84.0, 85.0, 86.0]),
        line("near", [83.0, 84.5, 85.9]),
        line("far", [80.0, 81.2, 81.9]),
        line("reference", [90.0, 91.2, 91.9], reference=True),
    ]
    rows = {row["method"]: row for row in csv_rows(lines)}
    raw = {
        name: student_p([a - b for a, b in zip(lines[0].scores.values(), one.scores.values(), strict=True)])
        for name, one in zip(rows, lines, strict=True)
        if name != "best"
    }
    smallest = min(raw, key=raw.get)
    assert float(rows[smallest]["p_holm"]) == pytest.approx(min(1, 3 * raw[smallest]), rel=0.1)
    for name in raw:
        assert float(rows[name]["p"]) == pytest.approx(raw[name], rel=0.1)
        assert float(rows[name]["p_holm"]) >= float(rows[name]["p"])
    assert [row["p_holm"] != "" for row in pair_rows(lines)] == [True] * 6


def run_results(measure="test_map"):
    made = []
    for method, scores in {"bce": [0.90, 0.92], "an": [0.80, 0.82], "em": [0.85, 0.84]}.items():
        base = Experiment(method, data="voc12")
        search = Search(base, {"train.learning_rate": (1e-3, 1e-4)})
        for seed, score in enumerate(scores):
            row = {measure: score, "validation_map": score}
            made.append(RunResult(search, base.changed({"train.learning_rate": 1e-3}).seeded(seed), row, True))
        row = {measure: 0.99, "validation_map": 0.1}
        made.append(RunResult(search, base.changed({"train.learning_rate": 1e-4}).seeded(0), row, False))
    return made


def test_table_compares_our_mean_with_the_papers_number(tmp_path, monkeypatch):
    papers = {("linear", "an", "voc12"): PaperValue(84.2, None), ("linear", "em", "voc12"): PaperValue(80.0, 0.3)}
    monkeypatch.setattr(compare, "paper_values", lambda paper, measure: papers)
    lines = table_lines(run_results(), Paper("cole2021", "1", "linear"))
    rows = {row["method"]: row for row in csv_rows(lines)}
    assert rows["an"]["mean"] == pytest.approx(81.0)
    assert rows["an"]["sd"] == pytest.approx(math.sqrt(2), abs=1e-3)
    assert (rows["an"]["paper"], rows["an"]["difference"]) == (84.2, -3.2)
    assert (rows["bce"]["paper"], rows["bce"]["difference"]) == ("", "")
    assert (rows["em"]["paper_sd"], rows["em"]["chosen"]) == (0.3, "rate 0.001")
    assert best_of(lines, "voc12").method == "em"  # bce learned from all labels
    assert rows["an"]["to_best"] == pytest.approx(-3.5)
    assert (rows["an"]["p"], rows["an"]["p_holm"], rows["an"]["test"]) == ("", "", "")  # two seeds are too few
    assert explain_p(lines) == "No p-values: a test needs at least three seeds."
    header, cells = display_cells(lines)
    text = markdown("Title", header, cells, ["a note", ""])
    assert "| an | 81.00 ± 1.41 | 84.20 | -3.20 | -3.50 |" in text
    assert "| bce* |" in text
    assert text.endswith("\n- a note\n")
    assert {(row["method"], row["other"]) for row in pair_rows(lines)} == {("bce", "an"), ("bce", "em"), ("an", "em")}
    write_rows(tmp_path / "t.csv", [{"a": 1}, {"a": 2, "b": None}, {"b": "x,y"}])
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": ""}, {"a": "2", "b": ""}, {"a": "", "b": "x,y"}]


@pytest.mark.parametrize("draw", [{"positives": 2}, {"negatives": 1}, {"drop": 0.5}])
def test_draws_of_more_than_one_positive_are_references(draw):
    given = {**draw, "rows": 0.5}
    table = {"title": "t", "kind": "linear", "data": {"d": {}}, "methods": {"more": {"method": "an", "draw": given}}}
    protocol = make_protocol("own", table | {"draw": {"by": "class", "seed": 3}})
    more, one = (protocol.search_of(name, "d", "none") for name in ("more", "an"))
    assert (more.base.reference, one.base.reference) == (True, False)
    made = [RunResult(search, search.base, {"test_map": score}, True) for search, score in ((more, 0.9), (one, 0.8))]
    lines = table_lines(made)
    assert best_of(lines, "d").method == "an"
    assert [row[0] for row in display_cells(lines)[1]] == ["more*", "an"]


def test_best_method_if_all_are_references():
    lines = [line("a", [80.0, 81.0, 82.5], reference=True), line("b", [79.0, 80.5, 81.0], reference=True)]
    assert best_of(lines, "d").method == "a"
    assert explain_p(lines).startswith(
        "p: paired t over 3 seeds, two-sided, against the best method, corrected for the number of comparisons by Holm"
    )
    assert explain_p(lines[:1]) == ""
    with_one = [*lines, line("c", [70.0, 71.5, 73.0])]
    assert best_of(with_one, "d").method == "c"
    assert "the best method trained on one positive per row" in explain_p(with_one)


def test_varied_value_names_the_papers_column(monkeypatch):
    made = []
    for name in ("resnet34.tv_in1k", "resnet101.tv_in1k"):
        base = Experiment("em", data="voc12", backbone=name)
        made.append(RunResult(Search(base, {}, "backbone", name), base, {"test_map": 0.88}, True))
    papers = {
        ("resnet34", "em", "voc12"): PaperValue(86.58, 0.25),
        ("resnet101", "em", "voc12"): PaperValue(88.8, 0.11),
    }
    monkeypatch.setattr(compare, "paper_values", lambda paper, measure: papers)
    assert [line.paper.value for line in table_lines(made)] == [86.58, 88.8]
