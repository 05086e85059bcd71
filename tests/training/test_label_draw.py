"""Which labels of the training rows a run may learn from."""

import numpy as np
import pytest

from spml.data import open_data
from spml.errors import InputError
from spml.labels import simulate
from spml.training.label_draw import LabelDraw
from support.bench_pack import TRAIN, write_pack


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return open_data(write_pack(tmp_path_factory.mktemp("draws") / "pack"))


def test_default_is_the_draw_of_the_data(pack):
    rows, labels = LabelDraw().select(pack)
    assert rows.tolist() == pack.train.tolist()
    assert labels.single().tolist() == pack.labels.single()[pack.train].tolist()
    assert LabelDraw().select(pack, "full")[1].is_full
    signed = LabelDraw().select(pack, "negatives")[1].dense()
    assert ((signed < 0) == (pack.truth.open().dense(pack.train) < 0)).all()
    assert (signed[np.arange(TRAIN), pack.labels.single()[pack.train]] == 1).all()
    assert ((signed > 0).sum(1) == 1).all()


def test_fewer_rows_are_a_subset_of_more(pack):
    parts = [set(LabelDraw(rows=share).select(pack)[0].tolist()) for share in (0.25, 0.5, 1.0)]
    assert [len(part) for part in parts] == [8, 16, 32]
    assert parts[0] < parts[1] < parts[2]
    rows, labels = LabelDraw(rows=0.5).select(pack)
    assert labels.single().tolist() == pack.labels.single()[rows].tolist()


def test_draw_precedes_the_split(pack):
    official = np.sort(np.concatenate([pack.train, pack.validation]))
    expected = simulate(pack.full_labels(official), 1, 1, seed=1200).dense()[: len(pack.train)]
    rows, labels = LabelDraw(negatives=1).select(pack, "negatives")
    assert (labels.dense() == expected).all()
    assert ((labels.dense() < 0).sum(1) <= 1).all()
    assert rows.tolist() == pack.train.tolist()


def test_missing_labels(pack):
    labels = LabelDraw(drop=1 / 3).select(pack)[1].dense()
    truth = pack.truth.open().dense(pack.train)
    assert ((labels != 0).sum(1) == 2).all()
    assert (labels[labels != 0] == truth[labels != 0]).all()


def test_draw_by_class_or_size(pack):
    truth, share = pack.truth.open().dense(pack.train) > 0, pack.truth.largest_share()[pack.train]
    large = LabelDraw(by="size", strength=2000.0).select(pack)[1].single()
    assert large.tolist() == np.where(truth, share, -1).argmax(1).tolist()
    small = LabelDraw(by="size", strength=-2000.0).select(pack)[1].single()
    assert small.tolist() == np.where(truth, share, 2).argmin(1).tolist()
    official = np.concatenate([pack.train, pack.validation])
    frequency = (pack.truth.open().dense(official) > 0).mean(0)
    common = LabelDraw(by="class", strength=200.0).select(pack)[1].single()
    assert common.tolist() == np.where(truth, frequency, -1).argmax(1).tolist()
    uniform = [LabelDraw(by="class", strength=0.0, seed=seed).select(pack)[1].single() for seed in range(30)]
    several = truth.sum(1) > 1
    kinds = np.array([[len(set(np.array(uniform)[:, row].tolist())) for row in np.flatnonzero(several)]])
    assert (kinds == truth.sum(1)[several]).mean() > 0.9  # every label of a row is observed sometimes


def test_errors_for_wrong_draws(pack, tmp_path):
    with pytest.raises(InputError, match="a share above 0"):
        LabelDraw(rows=0.0)
    hidden = open_data(write_pack(tmp_path / "hidden", hide_training_truth=True))
    assert len(LabelDraw().select(hidden)[1]) == TRAIN  # its own labels are enough
    with pytest.raises(InputError, match="not fully labelled"):
        LabelDraw(negatives=1).select(hidden)
