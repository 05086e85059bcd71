"""What the training rows show of their labels."""

import numpy as np
import pytest

from spml.bench.draws import Draw
from spml.bench.jobs import pack_fingerprint
from spml.bench.packs import OfficialPack, _official, open_pack
from spml.data import load_pack
from spml.errors import InputError
from spml.labels import simulate
from support.bench_pack import TRAIN, write_pack
from support.official_layouts import write_voc


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return load_pack(write_pack(tmp_path_factory.mktemp("draws") / "pack"))


def test_the_default_is_the_datas_own(pack):
    rows, labels = Draw().shown(pack)
    assert rows.tolist() == pack.train.tolist()
    assert labels.single().tolist() == pack.observed[pack.train].tolist()
    assert Draw().shown(pack, "full")[1].is_full
    signed = Draw().shown(pack, "negatives")[1].dense()
    assert ((signed < 0) == (pack.truth[pack.train] < 0)).all()
    assert (signed[np.arange(TRAIN), pack.observed[pack.train]] == 1).all()
    assert ((signed > 0).sum(1) == 1).all()


def test_fewer_rows_are_part_of_more(pack):
    parts = [set(Draw(rows=share).shown(pack)[0].tolist()) for share in (0.25, 0.5, 1.0)]
    assert [len(part) for part in parts] == [8, 16, 32]
    assert parts[0] < parts[1] < parts[2]
    rows, labels = Draw(rows=0.5).shown(pack)
    assert labels.single().tolist() == pack.observed[rows].tolist()


def test_a_draw_goes_over_the_official_training_set_before_the_split(pack):
    official = np.sort(np.concatenate([pack.train, pack.val]))
    expected = simulate(pack.full_labels(official), 1, 1, seed=1200).dense()[: len(pack.train)]
    rows, labels = Draw(negatives=1).shown(pack, "negatives")
    assert (labels.dense() == expected).all()
    assert ((labels.dense() < 0).sum(1) <= 1).all()
    assert rows.tolist() == pack.train.tolist()


def test_missing_labels(pack):
    labels = Draw(drop=1 / 3).shown(pack)[1].dense()
    truth = pack.truth[pack.train]
    assert ((labels != 0).sum(1) == 2).all()
    assert (labels[labels != 0] == truth[labels != 0]).all()


def test_annotators_name_what_they_prefer(pack):
    truth, share = pack.truth[pack.train] > 0, pack.largest_share[pack.train]
    large = Draw(by="size", strength=2000.0).shown(pack)[1].single()
    assert large.tolist() == np.where(truth, share, -1).argmax(1).tolist()
    small = Draw(by="size", strength=-2000.0).shown(pack)[1].single()
    assert small.tolist() == np.where(truth, share, 2).argmin(1).tolist()
    official = np.concatenate([pack.train, pack.val])
    frequency = (pack.truth[official] > 0).mean(0)
    common = Draw(by="class", strength=200.0).shown(pack)[1].single()
    assert common.tolist() == np.where(truth, frequency, -1).argmax(1).tolist()
    uniform = [Draw(by="class", strength=0.0, seed=seed).shown(pack)[1].single() for seed in range(30)]
    several = truth.sum(1) > 1
    kinds = np.array([[len(set(np.array(uniform)[:, row].tolist())) for row in np.flatnonzero(several)]])
    assert (kinds == truth.sum(1)[several]).mean() > 0.9  # every label of a row is named at times


def test_bad_draws_and_data_without_sizes(pack, tmp_path):
    with pytest.raises(InputError, match="a share over 0"):
        Draw(rows=0.0)
    hidden = load_pack(write_pack(tmp_path / "hidden", hide_training_truth=True))
    assert len(Draw().shown(hidden)[1]) == TRAIN  # its own labels are enough
    with pytest.raises(InputError, match="not fully labelled"):
        Draw(negatives=1).shown(hidden)


def test_an_official_layout_is_a_pack(tmp_path):
    write_voc(tmp_path)
    pack = open_pack(tmp_path)
    assert isinstance(pack, OfficialPack)
    assert len(pack) == 7
    assert pack.classes[0] == "aeroplane"
    assert (pack.observed[pack.test] == -1).all()
    assert pack.truth[np.arange(5), pack.observed[:5]].tolist() == [1] * 5
    assert pack.images(32).batch([0]).shape == (1, 3, 32, 32)
    assert any("training images" in note for note in pack.notes)  # a miniature is not the real thing, and says so
    image = next(tmp_path.rglob("*.jpg"))
    image.write_bytes(image.read_bytes() + b"more")
    assert pack_fingerprint(_official.__wrapped__(tmp_path)) != pack_fingerprint(pack)  # another image in its place
    with pytest.raises(InputError, match="no feature matrix"):
        pack.features()
    with pytest.raises(InputError, match="no such folder"):
        open_pack(tmp_path / "nowhere")
