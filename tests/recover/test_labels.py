"""Recovered labels: what is recovered, from which rows, and how it is evaluated."""

import numpy as np
import pytest
from scipy.special import expit, logit

from spml.errors import InputError
from spml.labels import Labels
from spml.metrics import f1
from spml.recover import Recovered, Rule, recover
from spml.recover.messages import FEW, describe_expectation
from spml.recover.recovered import PROVENANCE
from spml.recover.rule import Expectation
from spml.runs.folder import RunFolder
from support.recovery import CLASSES, World


def test_observed_labels_are_always_present(recovered: Recovered, run: RunFolder) -> None:
    entries = recovered.entries
    rows, columns = run.labels.subset(recovered.rows).positives()
    handed = set(zip(entries.row[entries.observed].tolist(), entries.label[entries.observed].tolist(), strict=True))
    assert handed == set(zip(recovered.rows[rows].tolist(), columns.tolist(), strict=True))
    assert (entries.confidence[entries.observed] == 1).all()
    low = recover(run, threshold=1.0).entries
    assert low.observed.sum() == entries.observed.sum()


def test_entries_explain_each_label(recovered: Recovered, run: RunFolder) -> None:
    entries = recovered.entries
    assert (np.diff(entries.row) >= 0).all()
    found_labels = ~entries.observed
    assert found_labels.sum() > 100
    assert (entries.confidence >= entries.threshold)[found_labels].all()
    np.testing.assert_array_equal(entries.threshold, recovered.thresholds[entries.label])
    np.testing.assert_array_equal(entries.probability, run.probabilities[entries.row, entries.label])
    for i in np.random.default_rng(0).choice(len(entries.row), 50):
        of_class = run.probabilities[recovered.rows, entries.label[i]]
        assert (
            entries.rank[i]
            == 1
            + (of_class > entries.probability[i]).sum()
            + ((of_class == entries.probability[i]) & (recovered.rows < entries.row[i])).sum()
        )
    same_row = np.diff(entries.row) == 0
    later = entries.observed[1:].astype(int) * 2 + entries.confidence[1:]
    earlier = entries.observed[:-1].astype(int) * 2 + entries.confidence[:-1]
    assert (earlier >= later)[same_row].all()


def test_requested_rows(run: RunFolder, recovered: Recovered) -> None:
    np.testing.assert_array_equal(recovered.rows, np.concatenate([run.train, run.validation]))
    everything = recover(run, rows="all")
    assert len(everything.rows) == len(run.names)
    assert not everything.entries.observed[np.isin(everything.entries.row, run.test)].any()
    assert recovered.present(run.test).any()
    np.testing.assert_array_equal(recovered.confidence(run.test), everything.confidence(run.test))
    entries = recovered.entries
    table = np.zeros((len(run.names), len(CLASSES)), bool)
    table[entries.row, entries.label] = True
    np.testing.assert_array_equal(recovered.present(recovered.rows), table[recovered.rows])
    assert recovered.summary().startswith(f"Recovered {(~entries.observed).sum():,} missing labels in 1,600 rows")


def test_recovered_labels_are_mostly_correct(recovered: Recovered, run: RunFolder) -> None:
    assert run.truth is not None
    truth, known = run.truth.dense(recovered.rows) > 0, recovered.known[recovered.rows]
    present = recovered.present(recovered.rows)
    found, missing = present & (known == 0), truth & (known == 0)
    assert (found & missing).sum() > 0.8 * found.sum()
    assert (found & missing).sum() > 0.3 * missing.sum()
    assert f1(present.astype(float), truth) > f1((known > 0).astype(float), truth) + 0.05
    low, high = recovered.expected.precision
    assert low < (found & missing).sum() / found.sum() < high
    low, high = recovered.expected.recall
    assert low < (found & missing).sum() / missing.sum() < high


def test_preferences_order_the_number_of_labels(run: RunFolder) -> None:
    assert run.truth is not None
    truth = run.truth.dense() > 0
    found = {}
    for prefer in ("precision", "balanced", "recall"):
        result = recover(run, prefer=prefer)  # type: ignore[arg-type]
        found[prefer] = result.present(result.rows) & (result.known[result.rows] == 0)
        rows = result.rows
    counts = [int(table.sum()) for table in found.values()]
    assert counts == sorted(counts)
    assert len(set(counts)) == 3
    precision = [(table & truth[rows]).sum() / table.sum() for table in found.values()]
    assert precision[0] > precision[1] > precision[2]


def test_no_row_gets_more_labels_than_the_upper_end_of_k(run: RunFolder) -> None:
    found = recover(run)
    most = int(np.ceil(found.calibration.k.high))
    assert found.present(found.rows).sum(axis=1).max() <= most
    crowded = Rule("cautious", np.full(3, 0.5), 2)
    confidences = np.array([[0.6, 0.9, 0.7], [1.0, 0.8, 0.9], [0.9, 0.1, 0.2]], np.float32)
    known = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]], np.int8)
    expected = [[False, True, True], [True, False, True], [True, False, False]]
    assert crowded.present(confidences, known).tolist() == expected


def test_rows_without_predictions_are_left_out(world: World) -> None:
    probabilities = world.probabilities.copy()
    probabilities[[0, 3, 1100]] = np.nan
    found = recover(world.run(probabilities=probabilities))
    assert not np.isin([0, 3, 1100], found.rows).any()
    assert "3 rows are left out" in found.notes[0]
    assert np.isnan(found.confidences[3]).all()
    assert np.isfinite(found.confidences[found.rows]).all()
    assert not found.present([0])[0, world.single[0] - 1]
    everywhere = world.run(probabilities=np.full_like(probabilities, np.nan))
    with pytest.raises(InputError, match="no predictions for the requested rows"):
        recover(everywhere)


def test_without_validation_rows_training_rows_are_used(world: World) -> None:
    found = recover(world.run(validation=np.zeros(0, np.int64)))
    assert any("Calibrated on training rows" in note for note in found.notes)
    assert found.calibration.k.rows == 1000
    unlabelled = world.run()
    known = unlabelled.labels.dense()
    known[unlabelled.validation] = 0
    assert recover(world.run(labels=Labels.from_matrix(known, CLASSES))).calibration.k.rows == 1000
    with pytest.raises(InputError, match="no row with a label"):
        recover(world.run(labels=Labels.from_matrix(np.zeros_like(known), CLASSES)))


def test_known_negatives_are_never_recovered(world: World) -> None:
    run = world.run()
    known = run.labels.dense()
    known[: len(run.train), 1] = np.where(known[: len(run.train), 1] > 0, 1, -1)
    found = recover(world.run(labels=Labels.from_matrix(known, CLASSES)))
    assert not (found.present(run.train) & (known[run.train] < 0)).any()


def test_labelled_rows_are_known_and_used_for_calibration(world: World, run: RunFolder) -> None:
    rows = np.array([7, 900, 1700])
    labels = Labels.from_matrix(world.signed[rows], CLASSES)
    found = recover(run, labelled=(labels, rows))
    assert found.calibration.full_rows == 3
    assert found.calibration.k.rows == len(run.validation) + 3
    np.testing.assert_array_equal(found.present(rows), world.truth[rows])
    with pytest.raises(InputError, match="got labels of 3 rows for 2"):
        recover(run, labelled=(labels, rows[:2]))
    with pytest.raises(InputError, match="the labelled rows have the classes a, b"):
        recover(run, labelled=(Labels.from_indices([0], ["a", "b"]), [0]))
    wrong = world.signed[rows]
    wrong[1, world.single[900]] = -1
    with pytest.raises(InputError, match=r"row 900 \(photos/ü 900.*is labelled absent"):
        recover(run, labelled=(Labels.from_matrix(wrong, CLASSES), rows))


def test_labelled_rows_improve_k() -> None:
    truth = World(600, seed=9)
    flat = truth.run(probabilities=expit(0.2 * logit(truth.probabilities.astype(float)) + 1).astype(np.float32))
    rows = np.arange(200)
    with_them = recover(flat, labelled=(Labels.from_matrix(truth.signed[rows], CLASSES), rows))
    without = recover(flat)
    true = truth.truth.sum(axis=1).mean()
    assert abs(with_them.calibration.k.k - true) < 0.08 * true
    assert (
        with_them.calibration.k.high - with_them.calibration.k.low
        < without.calibration.k.high - without.calibration.k.low
    )


def test_k_defaults_to_the_value_given_to_training(world: World) -> None:
    with_k = world.run(record={"method": {"name": "role"}, "k": 1.5})
    assert recover(with_k).calibration.k.k == pytest.approx(1.5, rel=0.06)
    assert recover(with_k, k=2.2).calibration.k.k == pytest.approx(2.2, rel=0.06)


def test_the_summary_describes_the_calibration(world: World, run: RunFolder, recovered: Recovered) -> None:
    estimate = recovered.calibration.k
    expected = f"labels per row: {estimate.k:.1f} (90% interval {estimate.low:.1f} to {estimate.high:.1f})."
    assert recovered.summary().endswith(
        f"Calibrated on {len(run.validation)} held-out rows, each with one observed label and no full labels; "
        f"estimated {expected}"
    )
    labelled = (Labels.from_matrix(world.signed[:2], CLASSES), [0, 1])
    assert (
        f"{len(run.validation) + 2} held-out rows, 2 of them fully labelled"
        in recover(run, labelled=labelled).summary()
    )
    assert recover(run, k=1.5).summary().endswith("no full labels; with k = 1.5 as given.")
    without = recover(world.run(validation=np.zeros(0, np.int64)))
    assert "Calibrated on 1,000 training rows" in without.summary()


def test_an_uncertain_k_is_reported(world: World) -> None:
    rng = np.random.default_rng(0)
    nothing_learned = expit(rng.normal(0, 0.3, world.probabilities.shape)).astype(np.float32)
    run = world.run(probabilities=nothing_learned)
    assert recover(run).notes[0].startswith("No label is recovered: the rows may have 1.")
    assert recover(run, prefer="recall").notes[0].startswith("These labels cannot be trusted yet: the rows may have 1.")
    assert "labels each on average, and one label per row cannot show how many. " in recover(run).notes[0]
    (note,) = recover(world.run()).notes
    assert "20 rows give the number of labels per row within ±" in note
    assert "Answer questions (`spml review 'runs/a run'`), or label rows fully" in note
    assert "`spml recover 'runs/a run' --labelled 'a run-check.csv' --out 'a run-recovered.csv'`" in note
    rows = np.arange(20)
    assert recover(world.run(), labelled=(Labels.from_matrix(world.signed[rows], CLASSES), rows)).notes == ()


def test_invalid_arguments_raise(run: RunFolder, recovered: Recovered) -> None:
    with pytest.raises(InputError, match="rows is 'test'"):
        recover(run, rows="test")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="prefer is 'speed'"):
        recover(run, prefer="speed")  # type: ignore[arg-type]
    for threshold in (0.0, 1.5, "f2", float("nan")):
        with pytest.raises(InputError, match="threshold must be"):
            recover(run, threshold=threshold)  # type: ignore[arg-type]
    for k in (0.0, -1.0, float("nan"), len(CLASSES) + 1.0):
        with pytest.raises(InputError, match=f"k must be above 0 and at most {len(CLASSES)}"):
            recover(run, k=k)


@pytest.mark.parametrize("order", ["random", "doubtful"])
def test_answers_improve_the_confidences_of_labels_nobody_asked_about(order):
    before_errors, after_errors = [], []
    for seed in range(2):
        world = World(1200, seed=seed + 1)
        logits = 1.5 * np.log(world.p / (1 - world.p)) + 1.5
        logits = 2 * np.sign(logits) * np.abs(logits) ** 0.5  # the form of the calibration does not hold
        world.probabilities = expit(logits).astype(np.float32)
        run = world.run()
        before = recover(run)
        confidences = np.where(before.known == 0, np.nan_to_num(before.confidences), np.inf)
        draw = np.random.default_rng(seed).random(confidences.shape)
        key = np.where(before.known == 0, np.abs(confidences - 0.5) if order == "doubtful" else draw, np.inf)
        places = np.unravel_index(np.argsort(key, axis=None)[:400], key.shape)
        decided = np.zeros_like(before.known)
        decided[places] = world.signed[places]
        after = recover(run, decisions=Labels.from_matrix(decided, CLASSES))
        rest = (before.known == 0) & (decided == 0)
        rest[run.test] = False
        for errors, recovered in ((before_errors, before), (after_errors, after)):
            balanced = recovered.calibration.confidences(world.probabilities, recovered.known)
            errors.append(((balanced - world.truth)[rest] ** 2).mean())
    assert np.mean(after_errors) < np.mean(before_errors) - 0.001


def test_answers_and_labelled_rows_are_counted_apart(world: World) -> None:
    run = world.run()
    decided = np.zeros(world.truth.shape, np.int8)
    yes = [(row, c) for row, c in np.argwhere(world.truth) if c < 2 and c != world.single[row] and row < 500][:3]
    no = [(row, c) for row, c in np.argwhere(~world.truth) if c < 2 and row < 500][:5]
    for row, c in (*yes, *no):
        decided[row, c] = world.signed[row, c]
    decided[600, world.single[600]] = 1  # a given label, confirmed
    answers = Labels.from_matrix(decided, CLASSES)
    rows = np.flatnonzero(world.truth.sum(axis=1) > 1)[-820:-800:4]
    assert (rows < 1600).all()
    assert (rows > 600).all()
    labelled = (Labels.from_matrix(world.signed[rows], CLASSES), rows)
    found = recover(run, decisions=answers, labelled=labelled)
    more = int(world.truth[rows].sum()) - len(rows)
    assert (
        f"in 1,600 rows, in addition to 1,599 given labels, 4 labels that people confirmed (5 answered no) and {more} "
        "labels of fully labelled rows. " in found.summary()
    )
    assert "rows, 5 of them fully labelled, and 9 answers; " in found.summary()
    entries = found.entries
    kinds = {
        (row, label): (PROVENANCE[kind], bool(observed))
        for row, label, kind, observed in zip(
            entries.row, entries.label, entries.provenance, entries.observed, strict=True
        )
    }
    assert all(kinds[tuple(place)] == ("confirmed", False) for place in yes)
    assert kinds[600, world.single[600]] == ("confirmed", True)
    for row, c in zip(*np.nonzero(world.truth[rows]), strict=True):
        given = world.single[rows[row]] == c
        assert kinds[rows[row], c] == (("given", True) if given else ("labelled", False))
    assert {kind for place, kind in kinds.items() if found.known[place] == 0} == {("recovered", False)}
    alone = recover(run, decisions=answers)
    assert "held-out rows, with 9 answers and no full labels; " in alone.summary()
    asked = int(decided.any(axis=0).sum())
    assert f"9 answers about {asked} of 6 labels so far: answer about other labels too (" in alone.notes[-1]


def test_too_few_labels_state_no_precision(run: RunFolder) -> None:
    few = recover(run, threshold=float(np.sort(recover(run).confidences[:1600][recover(run).known[:1600] == 0])[-5]))
    found = int((few.entries.provenance == 0).sum())
    assert 0 < found < FEW
    assert "too few to state reliably how many of them are correct. Calibrated" in few.summary()
    assert "Expected" not in few.summary()
    assert few.expected.precision[1] > 0  # still there for programs


def test_a_range_of_the_recall_that_says_nothing_is_left_out() -> None:
    narrow, wide = Expectation((0.5, 0.9), (0.2, 0.7)), Expectation((0.5, 0.9), (0.2, 0.9))
    expected = "Expected: 50 to 90% of them are correct"
    assert describe_expectation(50, narrow) == f"{expected}, and 20 to 70% of the missing labels are found."
    assert describe_expectation(50, wide) == f"{expected}."


def test_cross_fitted_rows_are_described_as_such(world: World) -> None:
    found = recover(world.run(record={"method": {"name": "auto"}, "k": None, "model": {"head": "features"}}))
    assert (
        "Calibrated on 1,600 rows, each predicted by classifiers that did not see its label, each with one observed "
        "label and no full labels; " in found.summary()
    )


def test_uncompleted_rows_are_noted(run: RunFolder) -> None:
    rows = np.arange(3)
    labels = Labels.from_matrix(np.where(run.labels.dense(rows) > 0, 1, -1), CLASSES)
    assert "did you complete them?" in recover(run, labelled=(labels, rows)).notes[0]


def test_tables_have_a_short_repr(recovered: Recovered) -> None:
    found = int((recovered.entries.provenance == 0).sum())
    assert repr(recovered.entries) == f"LabelTable({1600 + found:,} labels, {found:,} of them recovered)"
