"""The benchmark of tables: draws of single labels, methods, and the summary of paired differences."""

import numpy as np

import tables
from spml.metrics import mean_average_precision


def test_a_draw_keeps_one_positive_of_every_row():
    truth = np.random.default_rng(0).random((300, 5)) < 0.5
    truth[:, 2] |= ~truth.any(axis=1)
    split = tables.Split(np.zeros((300, 2)), truth, np.zeros((1, 2)), truth[:1])
    label = split.draw(0)
    assert truth[np.arange(300), label].all()
    assert (label == split.draw(0)).all()
    assert (label != split.draw(1)).any()
    several = truth.sum(axis=1) == 2
    first = truth[several].argmax(axis=1) == label[several]
    assert 0.3 < first.mean() < 0.7  # uniform among the positives


def test_scikit_learn_and_ours_learn_from_the_same_draw():
    draw = np.random.default_rng(0)
    truth = np.eye(3, dtype=bool)[np.arange(120) % 3]
    features = truth * 3.0 + draw.normal(size=(120, 3))
    split = tables.Split(features[:80], truth[:80], features[80:], truth[80:])
    for method in ("sklearn softmax", "sklearn ovr", "sklearn forest", "softmax"):
        scores, _ = tables.scores(method, split, split.draw(0), 0, "cpu")
        assert mean_average_precision(scores, truth[80:]) > 0.85, method


def test_methods_that_need_images_or_full_labels_are_left_out():
    names = tables.methods()
    assert names[0] == "auto"
    assert {"an", "em", "role", "softmax"} <= set(names)
    assert not {"bce", "lac", "boostlu"} & set(names)


def test_summary_counts_ties(capsys):
    rows = [
        {"data": name, "method": method, "draw": str(draw), "test_map": str(value)}
        for name, ours, theirs in (("one", 0.80, 0.802), ("two", 0.70, 0.75))
        for draw in (0, 1)
        for method, value in (("auto", ours), ("an", theirs))
    ]
    tables.summarise(rows)
    printed = capsys.readouterr().out
    assert "first or tied (within 0.3 mAP) on 1 of 2 sets" in printed
    assert "-5.00 ± 0.00" in printed
