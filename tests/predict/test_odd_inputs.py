"""Inputs in memory that NumPy, torch and Python understand, but that are no images, features or texts."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spml.errors import InputError
from spml.predict.blocks import InputSpec
from spml.predict.inputs import open_inputs

SIZE = 8
PIXELS = np.random.default_rng(0).integers(0, 255, (12, 12, 3), np.uint8)


def spec(kind: str) -> InputSpec:
    return InputSpec(run="run", image_size=SIZE if kind == "images" else None, features=4, texts=kind == "texts")


def read(inputs: Any, kind: str) -> list[Any]:
    return [item for block in open_inputs(inputs, spec(kind)).blocks for item in block.inputs]


SHARES = PIXELS.astype(np.float64) / 255
MASK = np.zeros(PIXELS.shape, bool)
MASK[0, 0, 0] = True
NO_IMAGES: dict[str, Any] = {
    "a PIL image without pixels": Image.new("RGB", (0, 5)),
    "no rows": np.zeros((0, 5, 3), np.uint8),
    "no columns": np.zeros((5, 0, 3), np.uint8),
    "no columns of grey": np.zeros((5, 0), np.float32),
    "a tensor without rows": torch.zeros(3, 0, 5),
    "images without rows": np.zeros((2, 0, 5, 3), np.uint8),
    "masked": np.ma.masked_array(PIXELS, mask=MASK),
    "objects": PIXELS.astype(object),
    "text": np.full((4, 4, 3), "1"),
    "complex": np.ones((4, 4, 3), complex),
    "truth values": np.ones((4, 4, 3), bool),
    "no values": torch.zeros(3, 4, 4, device="meta"),
    "sparse": torch.zeros(3, 4, 4).to_sparse(),
    "a memoryview of bytes": memoryview(b"12"),
    "bytes": b"12",
    "a set": {1},
    "a dictionary": {"a.jpg": 1},
    "a number": 3,
    "None": None,
}


@pytest.mark.parametrize("name", NO_IMAGES)
@pytest.mark.parametrize("in_a_list", [False, True])
def test_no_images(name: str, in_a_list: bool) -> None:
    with pytest.raises(InputError, match=r"input|image"):
        read([NO_IMAGES[name]] if in_a_list else NO_IMAGES[name], "images")


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (SHARES.astype(">f8"), SHARES),
        (SHARES.astype(">f4"), SHARES.astype(np.float32)),
        (np.ma.masked_array(PIXELS), PIXELS),
        (memoryview(PIXELS), PIXELS),
        (PIXELS[::-1, ::-1], PIXELS[::-1, ::-1].copy()),
        (SHARES.astype(np.longdouble), SHARES),
    ],
)
def test_images_in_other_containers(pixels: Any, expected: np.ndarray) -> None:
    (result,), (same,) = read(pixels, "images"), read(expected, "images")
    assert torch.equal(result, same)


ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
NO_FEATURES: dict[str, Any] = {
    "a set": {1.0, 2.0, 3.0, 4.0},
    "a dictionary": {"a": [1.0, 2.0, 3.0, 4.0]},
    "a memoryview of text": memoryview(b"1234").cast("c"),
    "objects": np.array([[1, 2, 3, "x"]], object),
    "None": None,
    "sparse": torch.ones(2, 4).to_sparse(),
}


@pytest.mark.parametrize("name", NO_FEATURES)
def test_no_features(name: str) -> None:
    with pytest.raises(InputError):
        read(NO_FEATURES[name], "features")


@pytest.mark.parametrize("rows", [memoryview(ROWS), ROWS.astype(">f8"), ROWS.astype(object), ROWS[::-1][::-1]])
def test_features_in_other_containers(rows: Any) -> None:
    np.testing.assert_array_equal(torch.stack(read(rows, "features")), ROWS)


NO_TEXTS: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "a truth value": True,
    "a dictionary": {"some text": 1},
    "a set": {"some text"},
    "bytes": b"some text",
    "a memoryview": memoryview(b"some text"),
    "a list with None": ["some text", None],
    "a list of lists": [["some text"]],
    "an array without dimensions": np.array(3),
    "a tensor": torch.zeros(3),
}


@pytest.mark.parametrize("name", NO_TEXTS)
def test_no_texts(name: str) -> None:
    with pytest.raises(InputError, match="text"):
        read(NO_TEXTS[name], "texts")


def test_arrays_and_generators_of_texts() -> None:
    assert read(np.array(["one", "two"]), "texts") == ["one", "two"]
    assert read((text for text in ("one", "two")), "texts") == ["one", "two"]
