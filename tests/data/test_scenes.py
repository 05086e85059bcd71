"""The built-in scenes, and guarantees of every data set."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from spml.data.dataset import Dataset, Truth, truth_closed
from spml.data.formats.scenes import _FIRST_TEST_DIGIT, CLASSES, scenes
from spml.data.stores.features import FeatureStore
from spml.errors import InputError
from spml.labels import Labels


@pytest.fixture(scope="module")
def small() -> Dataset:
    return scenes(train=400, test=100, size=48, seed=3)


def test_shape_split_and_single_positives(small: Dataset) -> None:
    assert small.classes == CLASSES
    assert len(small) == 500
    assert small.store.batch([0, 499]).shape == (2, 3, 48, 48)
    assert (len(small.train), len(small.validation), len(small.test)) == (320, 80, 100)
    assert sorted(np.concatenate([small.train, small.validation]).tolist()) == list(range(400))
    assert small.labels.is_single_positive
    single = small.labels.single()
    assert (single[:400] >= 0).all()
    assert (single[400:] == -1).all()
    assert small.truth is not None
    full = small.truth.open()
    assert full.is_full
    assert (full.dense()[np.arange(400), single[:400]] == 1).all()


def test_number_and_frequency_of_digits() -> None:
    truth = scenes(train=1500, test=1, size=32).truth
    assert truth is not None
    present = truth.open().dense() == 1
    per_scene = present.sum(axis=1)
    assert set(per_scene.tolist()) == {1, 2, 3, 4}
    assert per_scene.mean() == pytest.approx(2.1, abs=0.1)
    share = present.mean(axis=0)
    assert share[0] > 2 * share[9] > 0.1  # from common to rare, none too rare to measure


def test_scenes_depend_on_the_seed_only(small: Dataset) -> None:
    again, other = scenes(400, 100, 48, seed=3), scenes(400, 100, 48, seed=4)
    rows = np.arange(500)
    pixels = small.store.batch(rows)
    assert (pixels == again.store.batch(rows)).all()
    assert small.labels.fingerprint() == again.labels.fingerprint()
    assert (pixels != other.store.batch(rows)).any(dim=(1, 2, 3)).all()


def test_train_and_test_digits_have_different_writers() -> None:
    from sklearn.datasets import load_digits

    target = load_digits().target
    # Every form begins with 0 to 9 three times over: the boundary is between two forms.
    assert target[_FIRST_TEST_DIGIT : _FIRST_TEST_DIGIT + 30].tolist() == 3 * list(range(10))
    for part in (target[:_FIRST_TEST_DIGIT], target[_FIRST_TEST_DIGIT:]):
        assert np.bincount(part, minlength=10).min() > 50


def test_labelled_digits_are_painted(small: Dataset) -> None:
    """Scenes with more digits have more bright pixels."""
    assert small.truth is not None
    per_scene = (small.truth.open().dense() == 1).sum(axis=1)
    bright = (small.store.batch(np.arange(500)).amax(dim=1) > 170).float().mean(dim=(1, 2)).numpy()
    assert np.corrcoef(per_scene, bright)[0, 1] > 0.4


def test_scenes_are_made_quickly() -> None:
    start = time.process_time()
    scenes(train=400, test=100)
    assert time.process_time() - start < 3  # a tenth of the default: about half a second


@pytest.mark.parametrize(
    ("options", "word"),
    [({"train": 0}, "train"), ({"size": 8}, "size"), ({"test": 2.5}, "test"), ({"seed": -1}, "seed")],
)
def test_invalid_options_raise(options: dict[str, int], word: str) -> None:
    with pytest.raises(InputError, match=word):
        scenes(**options)


def test_truth_is_closed_in_all_threads(small: Dataset) -> None:
    truth = small.truth
    assert truth is not None
    raised: list[Exception] = []

    def read() -> None:
        try:
            truth.open()
        except RuntimeError as error:
            raised.append(error)

    with truth_closed():
        with pytest.raises(RuntimeError, match="closed"):
            truth.open()
        with pytest.raises(RuntimeError, match="closed"):
            truth.largest_share()
        with truth_closed():
            pass
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert len(raised) == 1
    assert len(truth.open()) == 500
    with pytest.raises(ZeroDivisionError), truth_closed():
        raise ZeroDivisionError
    assert truth.open() is not None


def test_inconsistent_datasets_raise(small: Dataset) -> None:
    with pytest.raises(InputError, match="in two of train"):
        dataclasses.replace(small, test=small.train)
    with pytest.raises(InputError, match="499 names"):
        dataclasses.replace(small, names=small.names[:-1])
    with pytest.raises(InputError, match="out of range"):
        dataclasses.replace(small, test=np.array([500]))
    with pytest.raises(InputError, match="truth"):
        dataclasses.replace(small, truth=Truth(Labels.from_names(["a"])))
    store, none = FeatureStore(np.zeros((1, 2))), np.zeros(0, np.int64)
    with pytest.raises(InputError, match="UTF-8"):
        Dataset("x", store, np.array(["\udcff.jpg"]), Labels.from_names(["a"]), None, none, none, none)
