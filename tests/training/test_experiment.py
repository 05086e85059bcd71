"""Experiments: one training with everything that decides its outcome."""

import json

import pytest

from spml.errors import InputError
from spml.training.experiment import Experiment, LinearInit
from spml.training.label_draw import LabelDraw


def test_equal_experiments_have_equal_hashes():
    one, same, other = (Experiment("em", {"entropy_weight": weight}) for weight in (0.1, 0.1, 0.2))
    assert {one: 1}[same] == 1
    assert one != other
    assert len({one, other, one.seeded(1)}) == 3


def test_record_is_plain_and_has_no_names():
    experiment = Experiment("em", data="voc12", entry="em at 0.1", draw=LabelDraw(), linear_init=LinearInit())
    record = json.loads(json.dumps(experiment.record()))
    assert record["draw"]["seed"] == 1200
    assert {"data", "entry"}.isdisjoint(record)
    assert record == json.loads(json.dumps(Experiment("em", draw=LabelDraw(), linear_init=LinearInit()).record()))


def test_changed_values():
    base = Experiment("em")
    changed = base.changed(
        {"k": 2.0, "head": "none", "train.clip": 1.0, "draw.rows": 0.5, "settings.entropy_weight": 0.2}
    )
    assert (changed.k, changed.head, changed.train.clip, changed.settings) == (2.0, None, 1.0, {"entropy_weight": 0.2})
    assert changed.draw == LabelDraw(rows=0.5)
    assert base == Experiment("em")
    for name in ("seed", "train.speed", "data"):
        with pytest.raises(InputError, match=f"'{name}' cannot be varied"):
            base.changed({name: 1})


def test_wrong_values_are_errors():
    with pytest.raises(InputError, match="image_size must be a whole number, not 'large'"):
        Experiment("em", image_size="large")
    with pytest.raises(InputError, match="validation must be observed or full"):
        Experiment("em", validation="some")


def test_reference_methods():
    assert Experiment("bce").reference
    assert Experiment("an", draw=LabelDraw(negatives=1)).reference
    assert not Experiment("an", draw=LabelDraw(rows=0.5)).reference
    assert not Experiment("an").reference
