"""Features of images are kept for later runs, and computed again if an image, the network or the size changes."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spml.data.stores.images import ImageStore
from spml.models import Classifier, build_classifier
from spml.training.frozen import feature_cache
from spml.training.frozen import pooled_features as module
from spml.training.frozen.pooled_features import pooled_features

ROWS = np.arange(5)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    draw, files = np.random.default_rng(0), [tmp_path / f"{number}.png" for number in range(5)]
    for file in files:
        write(file, draw)
    return files


def write(file: Path, draw: np.random.Generator) -> None:
    Image.fromarray(draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(file)
    os.utime(file, (1e9, 1e9))


def network(seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    classifier = build_classifier("small", 3, image_size=16).eval()
    classifier.description["weights"] = {"source": "a package", "sha256": "0"}  # as if it was pretrained
    return classifier


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every computation."""
    counts: list[int] = []
    compute = module._compute

    def counting(classifier: Classifier, store: ImageStore, rows: np.ndarray, *rest: object) -> np.ndarray:
        counts.append(len(rows))
        return compute(classifier, store, rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_compute", counting)
    return counts


def features(photos: list[Path], size: int = 16, seed: int = 0, zooms: tuple[float, ...] = (1.0,)) -> np.ndarray:
    store = ImageStore(photos, size)
    store.opened += 10**10  # as if the photos were some seconds old
    return (
        pooled_features(network(seed), store, np.arange(len(photos)), "cpu", zooms=zooms)
        .batch(np.arange(len(photos)))
        .numpy()
    )


def test_a_second_run_computes_nothing_and_gets_the_same(photos: list[Path], cache: Path, computed: list[int]) -> None:
    first, second = features(photos), features(photos)
    assert computed == [5]
    assert first.tobytes() == second.tobytes()
    assert len(list(cache.glob("*.safetensors"))) == 1


def test_only_new_and_changed_images_are_computed(photos: list[Path], cache: Path, computed: list[int]) -> None:
    before = features(photos[:4])
    write(photos[1], np.random.default_rng(9))  # of the same size and time of change
    after = features(photos)
    assert computed == [4, 2]
    os.environ["SPML_CACHE"] = ""
    assert np.allclose(after, features(photos), atol=1e-6)
    assert not np.allclose(before[1], after[1])


@pytest.mark.parametrize("change", [{"size": 24}, {"seed": 1}, {"zooms": (1.0, 1.5)}])
def test_another_network_or_size_is_computed(
    photos: list[Path], cache: Path, computed: list[int], change: dict[str, object]
) -> None:
    features(photos)
    features(photos, **change)  # type: ignore[arg-type]
    assert computed == [5, 5]


def test_a_photo_that_changed_after_the_store_was_opened_is_not_kept(
    photos: list[Path], cache: Path, computed: list[int]
) -> None:
    for _ in range(2):
        store = ImageStore(photos, 16)
        pooled_features(network(), store, ROWS, "cpu")
    assert computed == [5, 5]


@pytest.mark.parametrize("content", [b"", b"no tensors", b"\xff" * 100])
def test_a_damaged_cache_is_replaced(photos: list[Path], cache: Path, computed: list[int], content: bytes) -> None:
    expected = features(photos)
    (file,) = cache.glob("*.safetensors")
    file.write_bytes(content)
    for _ in range(2):
        assert (features(photos) == expected).all()
    assert computed == [5, 5]


def test_a_cache_that_cannot_be_written_is_ignored(
    photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPML_CACHE", str(tmp_path / "file"))
    assert features(photos).shape == (5, 192)
    monkeypatch.setenv("SPML_CACHE", "")
    assert features(photos).shape == (5, 192)
    assert computed == [5, 5]


def test_the_cache_is_bounded(photos: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 4 * 192 * 4  # features of four images
    monkeypatch.setattr(feature_cache, "MAX_BYTES", 2 * room)
    features(photos)
    (file,) = cache.glob("*.safetensors")
    assert room < file.stat().st_size < room + 1000
    os.utime(file, (1, 1))
    for seed in (1, 2):
        features(photos, seed=seed)
    kept = list(cache.glob("*.safetensors"))
    assert file not in kept
    assert kept
    assert sum(each.stat().st_size for each in kept) <= 2 * room
