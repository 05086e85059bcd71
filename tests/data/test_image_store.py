"""Decoding of all formats, the three places where decoded images are kept, and invalid input."""

import io
import json
import multiprocessing
import multiprocessing.process
import os
import shutil
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spml import free_memory as free_memory_module
from spml.data.stores import decode as decode_module
from spml.data.stores import images as module
from spml.data.stores.decode import decode
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.free_memory import free_memory


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(30, 220, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def planes(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1).astype(int)


@pytest.fixture
def folder(tmp_path: Path) -> list[Path]:
    """Seven different photographs."""
    paths = [tmp_path / f"photo {i}.png" for i in range(7)]
    for i, path in enumerate(paths):
        photo(20 + i, 24, seed=i).save(path)
    return paths


# decode


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("TIFF", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 98, "subsampling": 0}, 6),
        ("WEBP", {"quality": 95}, 20),
        ("AVIF", {"quality": 95}, 20),
    ],
)
def test_formats(kind, options, tolerance):
    image = photo(32, 32)
    out = decode(encoded(image, kind, **options), 32)
    assert out.shape == (3, 32, 32)
    assert out.dtype == np.uint8
    assert out.flags.c_contiguous
    assert np.abs(out.astype(int) - planes(image)).max() <= tolerance


def test_squash_matches_pillows_bilinear_filter():
    image = photo(50, 30)
    expected = image.resize((20, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(decode(encoded(image, "PNG"), 20), planes(expected))


@pytest.mark.parametrize("shape", [(64, 32), (32, 64)])
def test_crop_is_the_centre(shape):
    image = photo(*shape)
    width, height = shape
    box = ((width - 32) // 2, (height - 32) // 2, (width + 32) // 2, (height + 32) // 2)
    assert np.array_equal(decode(encoded(image, "PNG"), 32, "crop"), planes(image.crop(box)))
    small = image.resize((width // 2, height // 2), Image.Resampling.BILINEAR)
    cut = small.crop(tuple(edge // 2 for edge in box))
    assert np.abs(decode(encoded(image, "PNG"), 16, "crop").astype(int) - planes(cut)).max() <= 1


def test_large_jpeg_decoded_at_reduced_size_looks_the_same():
    image = photo(640, 512)
    small = decode(encoded(image, "JPEG", quality=95), 32)
    assert np.abs(small.astype(int) - planes(image.resize((32, 32), Image.Resampling.BILINEAR))).max() <= 8


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(kind, orientation):
    shown = photo(24, 24)  # what a viewer shows
    back = [
        None,
        Image.Transpose.FLIP_LEFT_RIGHT,
        Image.Transpose.ROTATE_180,
        Image.Transpose.FLIP_TOP_BOTTOM,
        Image.Transpose.TRANSPOSE,
        Image.Transpose.ROTATE_90,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_270,
    ][orientation - 1]
    stored = shown if back is None else shown.transpose(back)
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = decode(encoded(stored, kind, exif=exif, quality=95), 24)
    assert np.abs(out.astype(int) - planes(shown)).mean() < 4


def test_modes_become_rgb():
    image = photo(16, 16)
    grey = image.convert("L")
    assert np.array_equal(decode(encoded(grey, "PNG"), 16), planes(grey.convert("RGB")))
    palette = image.quantize(16)
    assert np.array_equal(decode(encoded(palette, "PNG"), 16), planes(palette.convert("RGB")))
    assert np.array_equal(decode(encoded(palette, "GIF"), 16), planes(palette.convert("RGB")))
    bits = image.convert("1")
    assert np.array_equal(decode(encoded(bits, "PNG"), 16), planes(bits.convert("RGB")))
    cmyk = decode(encoded(image.convert("CMYK"), "JPEG", quality=95), 16)
    assert np.abs(cmyk.astype(int) - planes(image)).mean() < 8
    deep = Image.fromarray((np.arange(256, dtype=np.uint16) * 257).reshape(16, 16))
    assert np.array_equal(decode(encoded(deep, "PNG"), 16)[0], np.arange(256).reshape(16, 16))


def test_transparent_is_white():
    image = photo(16, 16).convert("RGBA")
    alpha = np.full((16, 16), 255, np.uint8)
    alpha[:, 8:] = 0
    image.putalpha(Image.fromarray(alpha))
    out = decode(encoded(image, "PNG"), 16)
    assert (out[:, :, 8:] == 255).all()
    assert np.array_equal(out[:, :, :8], planes(image.convert("RGB"))[:, :, :8])
    palette = photo(16, 16).quantize(8)
    clear = np.asarray(palette) == palette.getpixel((0, 0))
    out = decode(encoded(palette, "PNG", transparency=palette.getpixel((0, 0))), 16)
    assert (out[:, clear] == 255).all()
    assert np.array_equal(out[:, ~clear], planes(palette.convert("RGB"))[:, ~clear])


def test_broken_exif_is_ignored():
    image = photo(16, 16)
    assert np.array_equal(decode(encoded(image, "PNG", exif=b"Exif\0\0nonsense"), 16), planes(image))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_error_for_damaged_images_names_the_file(tmp_path, kind):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    path = tmp_path / f"halb & kaputt é.{kind.lower()}"
    for broken in (data[: len(data) // 2], data[:40], b"", b"no image at all", b"\0" * 1000):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="halb & kaputt é"):
            decode(path, 16)
    with pytest.raises(InputError, match="row five"):
        decode(data[: len(data) // 2], 16, name="row five")


def test_missing_file_and_folder_raise(tmp_path):
    with pytest.raises(InputError, match=r"gone\.png: no such file"):
        decode(tmp_path / "gone.png", 16)
    with pytest.raises(InputError, match="this is not a regular file"):
        decode(tmp_path, 16)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_huge_images_raise_before_decoding(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    Image.new("1", (12000, 12000)).save(path)
    monkeypatch.setattr(decode_module, "_to_square", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(
        InputError, match=r"bomb\.png: it has 12000×12000 = 144000000 pixels, over the limit of 134217728"
    ):
        decode(path, 16)
    Image.new("1", (14000, 14000)).save(path)  # over Pillow's own limit
    with pytest.raises(InputError, match=r"bomb\.png.*196000000 pixels"):
        decode(path, 16)
    photo(10, 10).save(path)
    with pytest.raises(InputError, match="10×10 = 100 pixels, over the limit of 99"):
        decode(path, 16, max_pixels=99)


def test_unsafe_formats_raise(tmp_path):
    path = tmp_path / "page.png"
    photo(8, 8).save(path, "EPS")
    with pytest.raises(InputError, match="not an image of a known format"):
        decode(path, 8)


@pytest.mark.parametrize(
    ("size", "policy", "word"), [(0, "squash", "size"), (8, "stretch", "policy"), (2.5, "crop", "size")]
)
def test_invalid_decode_settings_raise(size, policy, word):
    with pytest.raises(InputError, match=word):
        decode(b"", size, policy)


# the store


def record_decoding(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that are decoded from now on."""
    decoded: list[str] = []
    decode_image = module.decode_image

    def record(source: str, *settings: object) -> np.ndarray:
        decoded.append(source)
        return decode_image(source, *settings)

    monkeypatch.setattr(module, "decode_image", record)
    return decoded


def stores(folder: list[Path], tmp_path: Path) -> dict[str, ImageStore]:
    return {
        "memory": ImageStore(folder, 16),
        "stream": ImageStore(folder, 16, cache_limit=0),
        "file": ImageStore(folder, 16, cache_path=tmp_path / "cache"),
    }


@pytest.mark.parametrize("where", ["memory", "stream", "file"])
@pytest.mark.parametrize("prepared", [True, False])
def test_batches(folder, tmp_path, where, prepared):
    expected = np.stack([decode(path, 16) for path in folder])
    store = stores(folder, tmp_path)[where]
    assert (len(store), store.size, store.nbytes) == (7, 16, 7 * 3 * 256)
    if prepared:
        store.prepare()
    for rows in ([2, 0, 6], np.array([5, 5, 1]), torch.tensor([3]), range(7), []):
        batch = store.batch(rows, pin=True)
        assert batch.dtype == torch.uint8
        assert np.array_equal(batch.numpy(), expected[np.asarray(rows, dtype=int)])
    assert store.good_rows.tolist() == list(range(7))
    assert store.bad == []
    assert store.name(1) == str(folder[1])
    for row in (7, -1):
        with pytest.raises(InputError, match=f"row {row} is out of range"):
            store.batch([row])


def test_changing_a_batch_does_not_change_the_store(folder):
    store = ImageStore(folder, 16)
    first = store.batch([0])
    kept = first.clone()
    first.zero_()
    assert torch.equal(store.batch([0]), kept)


def test_memory_decodes_once_and_stream_each_time(folder, monkeypatch):
    decoded = record_decoding(monkeypatch)
    store = ImageStore(folder, 16, cache_limit=7 * 3 * 256)
    store.batch([1, 1, 2])
    assert sorted(decoded) == [str(folder[1]), str(folder[2])]
    store.prepare()
    store.batch(range(7))
    assert len(decoded) == 7
    stream = ImageStore(folder, 16, cache_limit=7 * 3 * 256 - 1)
    stream.prepare()
    assert len(decoded) == 7
    stream.batch([1, 1, 2])
    assert len(decoded) == 10


def test_members_of_zip_files(folder, tmp_path):
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in folder:
            file.write(path, f"in/{path.name}")
    store = ImageStore([(archive, f"in/{path.name}") for path in folder] * 5, 16, workers=4)
    store.prepare()
    assert torch.equal(store.batch(range(7, 14)), ImageStore(folder, 16).batch(range(7)))
    assert store.name(0) == f"{archive}/in/photo 0.png"
    for source, reason in (
        ((archive, "in/nobody.png"), "no such member"),
        ((tmp_path / "none.zip", "a.png"), "no such zip file"),
        ((folder[0], "a.png"), "zip file cannot be read"),
    ):
        with pytest.raises(InputError, match=reason):
            ImageStore([source], 16).batch([0])


def test_huge_zip_members_raise(tmp_path):
    archive = tmp_path / "bomb.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("big.png", bytes(500_000))
    with pytest.raises(InputError, match=r"bomb\.zip/big\.png: it unpacks to 500000 bytes"):
        ImageStore([(archive, "big.png")], 16, max_pixels=100_000).batch([0])


@pytest.mark.parametrize("where", ["memory", "stream", "file"])
def test_error_for_a_bad_image_names_it(folder, tmp_path, where):
    folder[3].write_bytes(b"broken")
    store = stores(folder, tmp_path)[where]
    with pytest.raises(InputError, match=r"photo 3\.png: this is not an image"):
        store.batch([2, 3])
    with pytest.raises(InputError, match=r"photo 3\.png: this is not an image"):
        store.to_device("meta")
    if where == "file":
        assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("where", ["memory", "stream", "file"])
def test_bad_images_are_skipped_and_listed(folder, tmp_path, where):
    folder[3].write_bytes(b"broken")
    folder[5].unlink()
    options = {"memory": {}, "stream": {"cache_limit": 0}, "file": {"cache_path": tmp_path / "cache"}}[where]
    for _ in range(2):  # the second finds the file
        store = ImageStore(folder, 16, on_bad_image="skip", **options)
        assert store.good_rows.tolist() == [0, 1, 2, 4, 6]
        assert [(bad.row, bad.name) for bad in store.bad] == [(3, str(folder[3])), (5, str(folder[5]))]
        assert store.bad[1].reason == "no such file"
        assert torch.equal(store.batch([4, 6])[0], torch.from_numpy(decode(folder[4], 16)))
        with pytest.raises(InputError, match=r"photo 3\.png: .* row 3 is not among good_rows"):
            store.batch([2, 3])
    if where == "file":
        with pytest.raises(InputError, match=r"photo 3\.png: this is not an image"):
            ImageStore(folder, 16, **options).prepare()


def test_only_bad_images_raise(folder):
    for path in folder:
        path.write_bytes(b"broken")
    store = ImageStore(folder, 16, on_bad_image="skip")
    for _ in range(2):
        with pytest.raises(InputError, match="none of the 7 images can be used"):
            store.prepare()


def test_progress_goes_to_standard_error(folder, capsys):
    ImageStore(folder, 16).prepare(progress=True)
    out = capsys.readouterr()
    assert out.out == ""
    assert "decoding images" in out.err


def test_from_array():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    store = ImageStore.from_array(pixels)
    assert (len(store), store.size) == (5, 8)
    assert np.array_equal(store.batch([4, 0]).numpy(), pixels[[4, 0]])
    assert store.good_rows.tolist() == [0, 1, 2, 3, 4]
    for wrong in (pixels.astype(float), pixels[0], pixels[:, :2], pixels[:, :, :4], pixels[:0]):
        with pytest.raises(InputError):
            ImageStore.from_array(wrong)


def test_invalid_store_settings_raise(folder, tmp_path):
    for options in ({"on_bad_image": "ignore"}, {"workers": 0}, {"policy": "stretch"}):
        with pytest.raises(InputError, match=next(iter(options))):
            ImageStore(folder, 16, **options)
    with pytest.raises(InputError, match="no image"):
        ImageStore([], 16)
    with pytest.raises(InputError, match=r"photo 0\.png.*cannot be stored there"):
        ImageStore(folder, 16, cache_path=folder[0]).prepare()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_cuda_device_raises(folder):
    with pytest.raises(InputError, match="'cuda'"):
        ImageStore(folder, 16).to_device("cuda")


def test_to_device(folder):
    """On CUDA if available; otherwise "meta" shows that batches come from the device."""
    device = "cuda" if torch.cuda.is_available() else "meta"
    expected = ImageStore(folder, 16).batch([3, 1])
    for limit in (None, 0):
        store = ImageStore(folder, 16, cache_limit=limit)
        assert store.to_device("cpu") == (limit is None)
        assert store.to_device(device)
        batch = store.batch([3, 1])
        assert batch.device.type == device
        assert batch.shape == (2, 3, 16, 16)
        assert store.batch(torch.tensor([3, 1], device=device)).shape == (2, 3, 16, 16)
        assert store.to_device(device)  # it stays
        assert store.batch([3, 1]).device.type == device
        if device == "cuda":
            assert torch.equal(batch.cpu(), expected)


def test_free_memory_is_plausible():
    assert 2**20 < free_memory() < 2**50


@pytest.mark.parametrize(
    ("own", "groups", "free"),
    [
        ("0::/a/b", {"a/b": ("700000", "300000", "inactive_file 50000"), "a": ("max", "900000", "")}, 450_000),
        ("0::/a/b", {"a/b": ("max", "300000", ""), "a": ("400000", "300000", "")}, 100_000),
        ("0::/seen/outside", {"": ("400000", "300000", "anon 9\ninactive_file 1000")}, 101_000),
        (
            "9:cpu:/x\n4:memory:/x",
            {"memory/x": ("600000", "200000", "inactive_file 7\ntotal_inactive_file 9")},
            400_009,
        ),
        ("4:cpu,memory:/docker/1", {"memory": ("600000", "700000", "")}, 0),
        ("4:memory:/x\n0::/x", {"memory/x": ("9223372036854771712", "1", ""), "memory": ("word", "1", "")}, None),
        ("1:cpu:/x", {"memory/x": ("600000", "200000", "")}, None),
    ],
)
def test_free_memory_is_within_every_control_group(tmp_path, monkeypatch, own, groups, free):
    for path, (limit, used, held) in groups.items():
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        names = names if path.startswith("memory") else ("memory.max", "memory.current")
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        for name, text in zip((*names, "memory.stat"), (limit, used, held), strict=True):
            (tmp_path / path / name).write_text(text + "\n")
    monkeypatch.setattr(free_memory_module, "_GROUPS", tmp_path)
    monkeypatch.setattr(free_memory_module, "_OWN_GROUPS", tmp_path / "own")
    before = free_memory()  # of the machine: there is no such file
    (tmp_path / "own").write_text(own + "\n")
    assert free_memory() == free if free is not None else free_memory() > before // 2


# the mapped file


def cached(cache: Path) -> list[str]:
    return sorted(path.suffix for path in cache.iterdir())


def test_second_run_decodes_nothing(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    expected = ImageStore(folder, 16, cache_path=cache).batch(range(7))
    assert cached(cache) == [".json", ".npy"]
    monkeypatch.setattr(module, "decode_image", lambda *_: pytest.fail("it decoded again"))
    assert torch.equal(ImageStore(folder, 16, cache_path=cache).batch(range(7)), expected)


def test_cache_depends_on_images_size_and_policy(folder, tmp_path):
    cache = tmp_path / "cache"
    ImageStore(folder, 16, cache_path=cache).prepare()
    photo(40, 40, seed=99).save(folder[2])
    assert np.array_equal(ImageStore(folder, 16, cache_path=cache).batch([2])[0].numpy(), decode(folder[2], 16))
    assert ImageStore(folder, 8, cache_path=cache).batch([2]).shape == (1, 3, 8, 8)
    crop = ImageStore(folder, 16, cache_path=cache, policy="crop").batch([1])[0].numpy()
    assert np.array_equal(crop, decode(folder[1], 16, "crop"))
    assert np.array_equal(ImageStore(folder[::-1], 16, cache_path=cache).batch([0])[0].numpy(), decode(folder[6], 16))
    assert len(cached(cache)) == 10


@pytest.mark.parametrize("damage", ["pixels", "list", "no list", "empty", "other"])
def test_damaged_cache_is_rewritten(folder, tmp_path, damage):
    cache = tmp_path / "cache"
    expected = ImageStore(folder, 16, cache_path=cache).batch(range(7))
    pixels, listed = next(cache.glob("*.npy")), next(cache.glob("*.json"))
    if damage == "pixels":
        os.truncate(pixels, 2000)
    elif damage == "list":
        listed.write_text("[[")
    elif damage == "no list":
        listed.unlink()
    elif damage == "empty":
        pixels.write_bytes(b"")
    else:
        np.save(pixels, np.zeros(3))
    assert torch.equal(ImageStore(folder, 16, cache_path=cache).batch(range(7)), expected)
    assert json.loads(listed.read_text()) == []


def test_too_little_disk_space_raises(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(InputError, match="no space left for the decoded images: they take 5376 bytes, 10 are free"):
        ImageStore(folder, 16, cache_path=cache).prepare()
    assert list(cache.iterdir()) == []


def test_full_disk_while_writing_raises(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written: no space left on device"):
        ImageStore(folder, 16, cache_path=cache).prepare()
    assert list(cache.iterdir()) == []


def prepare_slowly(folder: list[Path], cache: Path, log: Path, last: int | None) -> None:
    """Run in another process: log a line per decoded image, then "done"; wait forever at image number `last`."""
    real = module.decode_image

    def slow(*arguments: object) -> np.ndarray:
        with log.open("a") as file:
            file.write("decoding\n")
        while log.read_text().count("decoding") == last:
            time.sleep(1)
        time.sleep(0.05)
        return real(*arguments)

    module.decode_image = slow
    ImageStore(folder, 16, cache_path=cache, workers=1).prepare()
    with log.open("a") as file:
        file.write("done\n")


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_writer_then_two_concurrent_writers(folder, tmp_path):
    cache = tmp_path / "cache"
    fork = multiprocessing.get_context("fork")

    def start(name: str, last: int | None = None) -> tuple[multiprocessing.process.BaseProcess, Path]:
        log = tmp_path / name
        log.touch()
        process = fork.Process(target=prepare_slowly, args=(folder, cache, log, last))
        process.start()
        return process, log

    killed, log = start("killed", last=3)
    try:
        while log.read_text().count("decoding") < 3:
            assert killed.is_alive()
            time.sleep(0.005)
    finally:
        killed.kill()
        killed.join()
    assert "done" not in log.read_text()
    assert sorted(path.suffix for path in cache.iterdir()) == [".lock", ".part"]
    both = [start("first"), start("second")]
    for process, _ in both:
        process.join()
        assert process.exitcode == 0
    written = sorted(log.read_text() for _, log in both)
    assert written == ["decoding\n" * 7 + "done\n", "done\n"]  # one decodes, the other waits and maps
    assert cached(cache) == [".json", ".npy"]
    assert torch.equal(ImageStore(folder, 16, cache_path=cache).batch(range(7)), ImageStore(folder, 16).batch(range(7)))


def test_stream_keeps_few_images_in_memory(folder, monkeypatch):
    alive = peak = 0
    real = ImageStore._result

    def read(self: ImageStore, row: int) -> np.ndarray:
        nonlocal alive, peak
        alive += 1
        peak = max(peak, alive)
        return np.zeros((3, 16, 16), np.uint8)

    def result(self: ImageStore, row: int, future: object) -> object:
        nonlocal alive
        time.sleep(0.001)  # a consumer slower than the decoders
        alive -= 1
        return real(self, row, future)

    monkeypatch.setattr(ImageStore, "_read", read)
    monkeypatch.setattr(ImageStore, "_result", result)
    store = ImageStore(folder * 30, 16, cache_limit=0, workers=2, on_bad_image="skip")
    store.prepare()
    assert peak <= 10


@pytest.mark.parametrize("where", ["memory", "stream", "file"])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_reading_yields_every_batch(folder, tmp_path, where, first):
    store, expected = stores(folder, tmp_path)[where], ImageStore(folder, 16).batch(range(7))
    rows = np.array([4, 0, 6, 6, 2, 1, 5])
    numbers = []
    for number in store.reading(rows, 2, first):
        part = rows[2 * number : 2 * number + 2]
        assert torch.equal(store.batch(part), expected[part])
        numbers.append(number)
    assert numbers == list(range(first, 4))
    assert not store._coming


def test_reading_decodes_the_next_batch_in_the_background(folder, monkeypatch):
    decoded = record_decoding(monkeypatch)
    store = ImageStore(folder, 16, cache_limit=0, workers=2)
    reading = store.reading(np.arange(7), 3)
    next(reading)
    for batch in store._coming:
        batch.wait()
    assert sorted(decoded) == [str(path) for path in folder[:6]]
    store.batch([0, 1, 2])
    store.batch([6])  # one that was not asked for is decoded at once
    next(reading)
    store.batch([3, 4, 5])
    store.batch([6])
    assert sorted(decoded) == sorted(map(str, [*folder, folder[6]]))
    reading.close()
    assert not store._coming


def test_reading_decodes_only_the_share(folder, monkeypatch):
    decoded = record_decoding(monkeypatch)
    store, rows = ImageStore(folder, 16, cache_limit=0), np.arange(7)[::-1]

    def second_half(total: int) -> np.ndarray:
        return np.arange(total // 2, total)

    for number in store.reading(rows, 4, share=second_half):
        part = rows[4 * number : 4 * number + 4]
        store.batch(part[second_half(len(part))])
    assert sorted(decoded) == [str(folder[row]) for row in (0, 1, 3, 4)]


def test_bad_image_read_ahead_raises_when_requested(folder):
    folder[3].write_bytes(b"broken")
    store = ImageStore(folder, 16, cache_limit=0)
    reading = store.reading(np.arange(7), 3)
    next(reading)
    store.batch([0, 1, 2])
    next(reading)
    with pytest.raises(InputError, match=r"photo 3\.png: this is not an image"):
        store.batch([3, 4, 5])


def test_large_batches_are_copied_by_several_threads(folder, monkeypatch):
    whole = ImageStore(folder, 16)
    monkeypatch.setattr(module, "_PART", 1)
    parts = ImageStore(folder, 16, workers=3)
    rows = [6, 0, 0, 3, 5, 2, 1, 6]
    assert torch.equal(parts.batch(rows), whole.batch(rows))
    assert torch.equal(parts.batch(rows[:1]), whole.batch(rows[:1]))
    assert parts.batch([]).shape == (0, 3, 16, 16)


def test_fingerprint_depends_on_content_not_on_location(folder, tmp_path):
    before = ImageStore(folder, 16).fingerprint()
    copies = [Path(shutil.copy(path, tmp_path / f"copy of {path.name}")) for path in folder]
    assert ImageStore(copies, 8, cache_limit=0).fingerprint() == before
    assert ImageStore(folder[::-1], 16).fingerprint() != before
    folder[3].write_bytes(folder[3].read_bytes() + b" ")
    assert ImageStore(folder, 16).fingerprint() != before
    longer = ImageStore(folder, 16).fingerprint()
    content = folder[2].read_bytes()
    folder[2].write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])  # of the same size
    assert ImageStore(folder, 16).fingerprint() != longer
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    of_array = ImageStore.from_array(pixels).fingerprint()
    assert ImageStore.from_array(pixels.copy()).fingerprint() == of_array
    pixels[4, 2, 7, 7] ^= 1
    assert ImageStore.from_array(pixels).fingerprint() != of_array
