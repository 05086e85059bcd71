"""Views of single images compared with Pillow and torchvision, and properties of batches."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from spml.data.augment import OPERATIONS, StrongParameters, ViewParameters, ViewSettings, apply, draw
from spml.errors import InputError

SIZE = 48


def photos(count: int, size: int = SIZE, seed: int = 0) -> Tensor:
    """Smooth colour fields with noise: unlike constant images, they reveal every change."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)
    noise = 0.05 * torch.rand(count, 3, size, size, generator=generator)
    return (40 + 170 * (smooth + noise)).clamp(0, 255).to(torch.uint8)


def strong(rows: int, **changes: Tensor | float) -> ViewParameters:
    """A strong view that only applies `changes`."""
    nothing = {
        "cutout_side": 0.0,
        "cutout_centre": torch.full((rows, 2), 0.5),
        "operation": torch.zeros(rows, 0, dtype=torch.long),
        "level": torch.zeros(rows, 0),
        "jitter": torch.ones(rows, 3),
        "grey": torch.zeros(rows, dtype=torch.bool),
    }
    return ViewParameters(torch.zeros(rows, dtype=torch.bool), None, StrongParameters(**(nothing | changes)))


def one(name: str, level: float, images: Tensor) -> Tensor:
    """One RandAugment operation on every image."""
    operation = torch.full((len(images), 1), OPERATIONS.index(name))
    return apply(images, strong(len(images), operation=operation, level=torch.full((len(images), 1), float(level))))


def picture(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def worst(ours: Tensor, theirs: Tensor) -> int:
    return int((ours.int() - theirs.int()).abs().max())


@pytest.fixture(scope="module")
def image() -> Tensor:
    return photos(1)


@pytest.mark.parametrize(
    ("name", "level", "reference", "tolerance"),
    [
        ("identity", 0, lambda i: i, 0),
        ("autocontrast", 0, ImageOps.autocontrast, 1),
        ("equalize", 0, ImageOps.equalize, 0),
        ("posterize", 4, lambda i: ImageOps.posterize(i, 4), 0),
        ("posterize", 7, lambda i: ImageOps.posterize(i, 7), 0),
        ("posterize", 8, lambda i: i, 0),
        ("solarize", 128, lambda i: ImageOps.solarize(i, 128), 0),
        ("brightness", 1.7, lambda i: ImageEnhance.Brightness(i).enhance(1.7), 1),
        ("brightness", 0.4, lambda i: ImageEnhance.Brightness(i).enhance(0.4), 1),
        ("contrast", 1.8, lambda i: ImageEnhance.Contrast(i).enhance(1.8), 1),
        ("contrast", 0.3, lambda i: ImageEnhance.Contrast(i).enhance(0.3), 1),
        ("colour", 1.8, lambda i: ImageEnhance.Color(i).enhance(1.8), 2),
        ("colour", 0.1, lambda i: ImageEnhance.Color(i).enhance(0.1), 1),
        ("sharpness", 1.9, lambda i: ImageEnhance.Sharpness(i).enhance(1.9), 2),
        ("sharpness", 0.1, lambda i: ImageEnhance.Sharpness(i).enhance(0.1), 1),
    ],
)
def test_pixelwise_operations_match_pillow(name, level, reference, tolerance, image):
    ours = one(name, level, image)[0]
    assert worst(ours, pixels(reference(picture(image[0])))) <= tolerance
    if name != "identity" and level != 8:
        assert worst(ours, image[0]) > 0


@pytest.mark.parametrize("height", [SIZE, SIZE - 11])
@pytest.mark.parametrize(
    ("name", "level", "affine"),
    [
        ("rotate", 21, {"angle": -21}),
        ("rotate", -30, {"angle": 30}),
        ("shear-x", 0.3, {"shear": [math.degrees(math.atan(0.3)), 0]}),
        ("shear-y", -0.2, {"shear": [0, -math.degrees(math.atan(0.2))]}),
        ("translate-x", 9 / SIZE, {"translate": [9, 0]}),
        ("translate-y", -0.25, {"translate": [0, -0.25]}),
    ],
)
def test_warps_match_torchvision(name, level, affine, height, image):
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    image = image[:, :, :height]
    options = {"angle": 0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]} | affine
    options["translate"] = [shift * height if abs(shift) < 1 else shift for shift in options["translate"]]
    options["interpolation"] = InterpolationMode.BILINEAR
    theirs = functional.affine(image.float(), **options)
    covered = functional.affine(torch.ones_like(image).float(), **options)
    ours = one(name, level, image)
    inside, outside = covered > 0.9999, covered == 0  # between the two torchvision counts the coverage twice
    assert inside.float().mean() > 0.6
    assert worst(ours[inside], theirs[inside].round()) <= 1
    assert (ours[outside] == 128).all()
    assert worst(ours, image) > 20


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "solarize"])
def test_every_operation_works_on_a_constant_image(name):
    flat = torch.full((2, 3, 8, 8), 128, dtype=torch.uint8)
    assert torch.equal(one(name, 1, flat), flat)


def test_flip_only_moves_pixels():
    images = photos(6)
    flip = torch.tensor([True, False, True, True, False, False])
    out = apply(images, ViewParameters(flip))
    assert torch.equal(out[flip], images[flip].flip(-1))
    assert torch.equal(out[~flip], images[~flip])


def test_input_is_not_modified():
    images = photos(8)
    before = images.clone()
    for kind in ("plain", "weak", "strong"):
        for crop_scale in (None, (0.5, 0.9)):
            apply(images, draw(kind, 8, ViewSettings(crop_scale=crop_scale), torch.Generator().manual_seed(1)))
            assert torch.equal(images, before)


def test_plain_view_is_the_input_and_uses_no_random_numbers():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    images = photos(2)
    assert apply(images, draw("plain", 2, ViewSettings(), generator)) is images
    assert torch.equal(generator.get_state(), before)


def test_crop_of_the_whole_image_changes_nothing():
    images = photos(3)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(3, 1)
    flip = torch.tensor([False, True, False])
    out = apply(images, ViewParameters(flip, whole))
    assert torch.equal(out[0], images[0])
    assert torch.equal(out[1], images[1].flip(-1))


def test_crop_matches_resizing_the_box():
    image = photos(1)
    box = torch.tensor([[0.25, 0.125, 0.5, 0.75]])
    ours = apply(image, ViewParameters(torch.tensor([False]), box))[0]
    left, top, right, bottom = (0.25 * SIZE, 0.125 * SIZE, 0.75 * SIZE, 0.875 * SIZE)
    theirs = picture(image[0]).resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    inner = (slice(None), slice(2, -2), slice(2, -2))  # at the box's edge Pillow looks no further, we do
    assert worst(ours[inner], pixels(theirs)[inner]) <= 1


@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (1.2, 3.0), (0.2, 0.5)])
def test_crop_stays_inside_and_keeps_its_area(ratio):
    settings = ViewSettings(crop_scale=(0.3, 1.0), crop_ratio=ratio)
    crop = draw("weak", 4000, settings, torch.Generator().manual_seed(0)).crop
    assert crop is not None
    left, top, width, height = crop.double().unbind(1)
    assert left.min() >= 0
    assert top.min() >= 0
    assert (left + width).max() <= 1 + 1e-6
    assert (top + height).max() <= 1 + 1e-6
    area = width * height
    assert area.min() >= 0.3 - 1e-6
    assert area.max() <= 1 + 1e-6
    assert area.mean() == pytest.approx(0.65, abs=0.02)
    small = area < 0.33  # here the ratio is not held back by the image's border
    inside = (width / height)[small & (area <= ratio[0]) & (area <= 1 / ratio[1])]
    assert ((inside >= ratio[0] - 1e-5) & (inside <= ratio[1] + 1e-5)).all()


def test_cutout_changes_only_its_square():
    images = torch.zeros(3, 3, 40, 40, dtype=torch.uint8)
    centre = torch.tensor([[0.5, 0.5], [0.0, 0.5], [0.0, 0.0]])
    out = apply(images, strong(3, cutout_side=0.5, cutout_centre=centre))
    assert out.unique().tolist() == [0, 128]
    assert (out == 128).sum(dim=(1, 2, 3)).tolist() == [3 * 400, 3 * 200, 3 * 100]
    assert (out[0, :, 10:30, 10:30] == 128).all()
    assert (out[1, :, 10:30, :10] == 128).all()


def test_jitter_is_brightness_then_contrast_then_saturation(image):
    factors = torch.tensor([[1.3, 0.7, 1.4]])
    ours = apply(image, strong(1, jitter=factors))[0]
    step = picture(image[0])
    for enhance, factor in zip(
        (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), factors[0], strict=True
    ):
        step = enhance(step).enhance(float(factor))
    assert worst(ours, pixels(step)) <= 3  # Pillow rounds three times


def test_grey_has_equal_channels(image):
    two = image.repeat(2, 1, 1, 1)
    out = apply(two, strong(2, grey=torch.tensor([True, False])))
    assert torch.equal(out[0, 0], out[0, 1])
    assert torch.equal(out[0, 0], out[0, 2])
    assert worst(out[0, 0], pixels(picture(image[0]).convert("L").convert("RGB"))[0]) <= 1
    assert torch.equal(out[1], two[1])


def test_operations_run_from_left_to_right(image):
    names = ["solarize", "brightness"]
    operation = torch.tensor([[OPERATIONS.index(name) for name in names]])
    both = apply(image, strong(1, operation=operation, level=torch.tensor([[100.0, 1.8]])))
    assert torch.equal(both, one("brightness", 1.8, one("solarize", 100, image)))


@pytest.mark.parametrize("kind", ["weak", "strong"])
@pytest.mark.parametrize("crop_scale", [None, (0.6, 1.0)])
def test_rows_are_independent(kind, crop_scale):
    images = photos(40, size=20)
    parameters = draw(kind, 40, ViewSettings(crop_scale=crop_scale), torch.Generator().manual_seed(5))
    together = apply(images, parameters)
    for row in range(40):  # batches of one
        alone = apply(images[row : row + 1], parameters.take(slice(row, row + 1)))
        assert worst(alone[0], together[row]) <= (1 if kind == "strong" else 0)
    part = torch.tensor([3, 17, 30])
    assert worst(apply(images[part], parameters.take(part)), together[part]) <= 1


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_views_depend_only_on_the_generator(kind):
    images = photos(16)
    settings = ViewSettings(crop_scale=(0.7, 1.0))

    def view(seed: int) -> Tensor:
        return apply(images, draw(kind, 16, settings, torch.Generator().manual_seed(seed)))

    assert torch.equal(view(1), view(1))
    assert not torch.equal(view(1), view(2))
    same = photos(1).repeat(16, 1, 1, 1)
    each = apply(same, draw(kind, 16, settings, torch.Generator().manual_seed(1)))
    assert len({row.numpy().tobytes() for row in each}) == 16


def test_global_generator_is_not_used():
    state = torch.get_rng_state()
    apply(photos(4), draw("strong", 4, ViewSettings(), torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)


def test_frequencies_and_levels():
    settings = ViewSettings(flip=0.3, grey=0.25, magnitude=15, jitter=0.4)
    view = draw("strong", 20000, settings, torch.Generator().manual_seed(0))
    assert view.strong is not None
    assert view.flip.float().mean() == pytest.approx(0.3, abs=0.02)
    assert view.strong.grey.float().mean() == pytest.approx(0.25, abs=0.02)
    share = torch.bincount(view.strong.operation.flatten(), minlength=len(OPERATIONS)) / 40000
    assert share.tolist() == pytest.approx([1 / 14] * 14, abs=0.01)
    assert view.strong.jitter.min() == pytest.approx(0.6, abs=0.01)
    assert view.strong.jitter.max() == pytest.approx(1.4, abs=0.01)
    expected = {
        "identity": [0],
        "autocontrast": [0],
        "equalize": [0],
        "brightness": [0.55, 1.45],
        "contrast": [0.55, 1.45],
        "colour": [0.55, 1.45],
        "sharpness": [0.55, 1.45],
        "posterize": [6],
        "solarize": [127.5],
        "rotate": [-15, 15],
        "shear-x": [-0.15, 0.15],
        "shear-y": [-0.15, 0.15],
        "translate-x": [-75 / 331, 75 / 331],
        "translate-y": [-75 / 331, 75 / 331],
    }
    for place, name in enumerate(OPERATIONS):
        levels = view.strong.level[view.strong.operation == place].unique().tolist()
        assert levels == pytest.approx(expected[name]), name


def test_probabilities_zero_and_one():
    never = draw("strong", 500, ViewSettings(flip=0, grey=0), torch.Generator().manual_seed(0))
    always = draw("strong", 500, ViewSettings(flip=1, grey=1), torch.Generator().manual_seed(0))
    assert never.strong is not None
    assert always.strong is not None
    assert not never.flip.any()
    assert not never.strong.grey.any()
    assert always.flip.all()
    assert always.strong.grey.all()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_tiny_images(size):
    images = photos(30, size=size)
    out = apply(images, draw("strong", 30, ViewSettings(crop_scale=(0.5, 1)), torch.Generator().manual_seed(0)))
    assert out.shape == images.shape
    assert out.dtype == torch.uint8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["weak", "strong"])
@pytest.mark.parametrize("crop_scale", [None, (0.6, 1.0)])
def test_cuda_gives_the_same_views(kind, crop_scale):
    images = photos(64)
    parameters = draw(kind, 64, ViewSettings(crop_scale=crop_scale), torch.Generator().manual_seed(5))
    here, there = apply(images, parameters), apply(images.cuda(), parameters).cpu()
    if kind == "weak" and crop_scale is None:
        assert torch.equal(here, there)
    # A value at a threshold (solarize, posterize) may fall to the other side: few, if any.
    assert ((here.int() - there.int()).abs() > 1).float().mean() < 1e-3


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"flip": 1.5}, "flip"),
        ({"cutout": -0.1}, "cutout"),
        ({"jitter": 2}, "jitter"),
        ({"grey": float("nan")}, "grey"),
        ({"crop_scale": (0.9, 0.5)}, "crop_scale"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"crop_ratio": (0.0, 1.0)}, "crop_ratio"),
        ({"randaugment_ops": -1}, "randaugment_ops"),
        ({"magnitude": 31}, "magnitude"),
        ({"flip": "half"}, "flip must be a number, not 'half'"),
        ({"crop_scale": 0.5}, "crop_scale must be a list of two numbers or None, not 0.5"),
    ],
)
def test_settings_out_of_range_raise(settings, word):
    with pytest.raises(InputError, match=word):
        ViewSettings(**settings)


def test_invalid_inputs_raise():
    generator = torch.Generator()
    with pytest.raises(InputError, match="'mild'"):
        draw("mild", 2, ViewSettings(), generator)  # type: ignore[arg-type]
    view = draw("weak", 2, ViewSettings(), generator)
    with pytest.raises(InputError, match="float32"):
        apply(torch.zeros(2, 3, 4, 4), view)
    with pytest.raises(InputError, match="drawn for 2 images, not for 3"):
        apply(photos(3), view)
