"""Many rows and classes: processing in parts gives the same result and needs less memory."""

import errno
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from spml.data.formats.folder import from_folder
from spml.data.stores import features as features_module
from spml.data.stores import images as images_module
from spml.data.stores import windows as windows_module
from spml.data.stores.features import FeatureStore
from spml.data.stores.images import ImageStore
from spml.errors import InputError
from spml.labels import Labels
from spml.losses import logit
from spml.methods import METHODS, Clock, Problem, method
from spml.methods.base import uniform_per_head
from spml.metrics import average_precision
from spml.models import build_classifier
from spml.predict import writers
from spml.recover import recover
from spml.runs.files import read_tensors
from spml.runs.folder import RunFolder
from spml.testing import contract as checks
from spml.testing.tiny import TinyNetwork
from spml.training.examples import Examples
from spml.training.experiment import Experiment
from spml.training.linear import HeadResult, evaluator, group, train_heads
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings

ROWS, DIM, CLASSES = 40, 6, 21
SPLITS = {name: entry.needs.splits for name, entry in METHODS.items() if entry.needs.splits}


def single(rows: int = ROWS, classes: int = CLASSES) -> Labels:
    index = np.random.default_rng(1).integers(-1, classes, rows)
    return Labels.from_indices(index, map(str, range(classes)))


def full() -> Labels:
    matrix = np.where(np.random.default_rng(2).random((ROWS, CLASSES)) < 0.2, 1, -1)
    return Labels.from_matrix(matrix, map(str, range(CLASSES)))


@pytest.fixture
def features() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)


# Classes by parts


def heads(features: np.ndarray, names: list[str]) -> list[HeadResult]:
    specs = [Experiment.linear(name, {}, rate, epochs=2, k=2.0) for name in names for rate in (1e-2, 1e-3)]
    tables = {"full_labels": full(), "negatives_labels": full()}
    return train_heads(features, single(), specs, progress=False, **tables)


@pytest.mark.parametrize("kind", ["entries", "rows"])
def test_training_in_parts_equals_training_at_once(
    features: np.ndarray, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name, split in SPLITS.items() if split == kind]
    whole = heads(features, names)
    monkeypatch.setattr(group, "MANY_ENTRIES", 0)
    monkeypatch.setattr(group, "PART_ENTRIES", 64)  # parts of 4 classes, or of 3 rows
    shapes: set[tuple[int, ...]] = set()
    objective = group.MethodBlock.objective

    def watched(self, logits, *inputs):
        shapes.add(tuple(logits.shape))
        return objective(self, logits, *inputs)

    monkeypatch.setattr(group.MethodBlock, "objective", watched)
    parts = heads(features, names)
    assert max(b * c for _, b, c in shapes) <= 64
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one.weight, other.weight, atol=2e-5, rtol=0, msg=one.experiment.method)
        torch.testing.assert_close(one.bias, other.bias, atol=2e-5, rtol=0, msg=one.experiment.method)


@pytest.mark.parametrize("name", SPLITS)
def test_separable_objectives_are_means_over_parts(name: str) -> None:
    """The objective is its mean over parts, at every epoch and for any rows and classes."""
    chosen = method(name)
    table = single() if chosen.needs.labels == "positives" else full()
    one_head = not chosen.members(CLASSES)  # on features, an ensemble expects the logits of all of its heads
    chosen.prepare(Problem(table, k=2.0, soft_labels=False, features=one_head))
    labels, rows = table.batch(np.arange(ROWS)), torch.arange(ROWS)
    logits = 2 * torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0))
    for epoch in (1, 3, 5):
        clock = Clock(epoch, 5, 10 * epoch, 50)
        whole = chosen.objective(logits, labels, rows, clock)
        if SPLITS[name] == "entries":
            cuts = [(slice(None), slice(a, a + 7), 7 / CLASSES) for a in range(0, CLASSES, 7)]
        else:
            cuts = [(slice(a, a + 8), slice(None), 8 / ROWS) for a in range(0, ROWS, 8)]
        parts = [chosen.objective(logits[r, c], labels[r, c], rows[r], clock) * share for r, c, share in cuts]
        torch.testing.assert_close(sum(parts), whole, rtol=1e-5, atol=1e-7)
    assert not chosen.state_dict()


def test_methods_that_need_the_whole_batch_receive_it(features: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not {"epr", "role", "role-16bit", "ll-r", "ll-ct", "ll-cp", "em-apl"} & set(SPLITS)
    whole = heads(features, ["epr", "an"])
    monkeypatch.setattr(group, "MANY_ENTRIES", 0)
    for one, other in zip(heads(features, ["epr", "an"]), whole, strict=True):
        assert torch.equal(one.weight, other.weight)


@pytest.mark.parametrize("unknown", [False, True])
def test_evaluation_in_parts_equals_evaluation_at_once(
    features: np.ndarray, unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = full()
    if unknown:
        matrix = truth.dense().copy()
        matrix[::3, ::2] = 0
        truth = Labels.from_matrix(matrix, truth.classes)
    specs = [Experiment.linear("an", {}, rate, epochs=3) for rate in (1e-2, 1e-3)]

    def trained() -> list[HeadResult]:
        return train_heads(features, single(), specs, validation=(features, truth), progress=False)

    whole = trained()
    wanted = average_precision(whole[0].score(features), truth.dense() > 0, mask=truth.dense() != 0)
    torch.testing.assert_close(whole[0].average_precision(features, truth), wanted, equal_nan=True)
    monkeypatch.setattr(evaluator, "MAX_LOGITS", 5 * ROWS)
    by_parts = trained()
    for one, other in zip(by_parts, whole, strict=True):
        assert one.validation == pytest.approx(other.validation)
        assert one.best_epoch == other.best_epoch
    torch.testing.assert_close(by_parts[0].average_precision(features, truth), wanted, equal_nan=True)
    with pytest.raises(InputError, match="the truth is a table of"):
        whole[0].average_precision(features[:3], truth)


# Tables by strips


def test_large_tables_are_checked_and_ranked_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    scores, truth = draw.random((60, 9), np.float32), (draw.random((60, 9)) < 0.3).astype(np.int8)
    mask = draw.random((60, 9)) < 0.7
    wanted = [average_precision(scores, truth), average_precision(scores, truth, mask=mask)]
    monkeypatch.setattr("spml.metrics.ranking._STRIP", 40)
    found = [average_precision(scores, truth, memory=1), average_precision(scores, truth, mask=mask)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=0, atol=0)
    signed = np.where(truth > 0, 1, -1)
    torch.testing.assert_close(average_precision(scores, signed), wanted[0], rtol=0, atol=0)
    signed[50:] = truth[50:]  # each strip is right alone
    with pytest.raises(InputError, match="contain both -1 and 0"):
        average_precision(scores, signed)
    scores[55, 4] = np.nan
    with pytest.raises(InputError, match="row 55, column 4"):
        average_precision(scores, truth)


# Rows from a file


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int16])
@pytest.mark.parametrize("order", ["C", "F"])
def test_mapped_files_give_the_same_rows_as_memory(tmp_path: Path, dtype: type, order: str) -> None:
    matrix = np.random.default_rng(0).integers(-99, 99, (700, 33)).astype(dtype, order=order)
    np.save(tmp_path / "x.npy", matrix)
    store = FeatureStore(tmp_path / "x.npy")
    store.check_finite()
    draw = np.random.default_rng(1)
    for rows in (draw.permutation(700)[:50], np.arange(100, 300), [5], draw.permutation(700), [699, 0], []):
        assert torch.equal(store.batch(rows), torch.from_numpy(matrix.astype(np.float32))[rows])


def test_rows_are_requested_from_the_system_once(tmp_path: Path) -> None:
    matrix = np.arange(8000, dtype=np.float32).reshape(2000, 4)
    np.save(tmp_path / "x.npy", matrix)
    store = FeatureStore(tmp_path / "x.npy")
    asked: list[int] = []

    class Watched:
        def madvise(self, advice: int, *place: int) -> None:
            asked.append(advice)

    if store._pages is None or store._pages._map is None:
        pytest.skip("needs a system that takes advice on mapped files")
    store._pages._map = Watched()
    batches = np.random.default_rng(0).permutation(2000).reshape(20, 100)
    for batch, after in zip(batches, [*batches[1:], batches[0]], strict=True):
        store.ahead(after)
        assert torch.equal(store.batch(batch), torch.from_numpy(matrix[batch]))
    assert len(asked) == 1 + 21 * 100  # once that order is random, and every row once (the first batch twice)
    FeatureStore(matrix).ahead(batches[0])  # in memory there is nothing to do


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, np.ndarray]:
    """A matrix in a file that counts as large: windows of 96 rows (8 batches of 12), read in pieces of 6."""
    matrix = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float16)
    row = matrix.nbytes // 500
    for name, rows in {"_LARGE": 100, "_WINDOW": 100, "_PIECE": 6, "_GAP": 2}.items():
        monkeypatch.setattr(windows_module, name, rows * row)
    np.save(tmp_path / "large.npy", matrix)
    return tmp_path / "large.npy", matrix


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_error_locates_the_first_bad_value_of_a_large_file(
    large: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    path, matrix = large
    monkeypatch.setattr(features_module, "_BLOCK", 40 * 8)  # blocks of 40 rows, two of them in a window
    matrix[100], matrix[101] = 65504, -65504  # the largest there are
    np.save(path, matrix)
    FeatureStore(path).check_finite()
    matrix[333, 5] = value
    np.save(path, matrix)
    with pytest.raises(InputError, match=rf"row 333, column 5 is {value} "):
        FeatureStore(path).check_finite()


def test_large_files_are_shuffled_within_windows(large: tuple[Path, np.ndarray]) -> None:
    path, matrix = large
    store, rows = FeatureStore(path), np.random.default_rng(1).permutation(500)[:400]
    orders = [store.order(rows, 12, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(400))
    pieces = np.empty(400, int)
    pieces[np.argsort(rows)] = np.arange(400) // 6  # neighbours in the file
    for start in range(0, 384, 96):
        window = pieces[orders[0][start : start + 96]]
        assert len(np.unique(window)) <= 18  # 96 / 6, and two that others share
        assert len(np.unique(window[:12])) > 4  # rows of a piece are not left together
        assert np.ptp(window) > 30  # nor are its pieces neighbours
    whole = FeatureStore(matrix).order(rows, 12, np.random.default_rng(0))
    assert np.array_equal(whole, np.random.default_rng(0).permutation(400))


@pytest.mark.parametrize("first", [0, 1, 8, 11, 33])
def test_windows_read_each_row_once(
    large: tuple[Path, np.ndarray], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, matrix = large
    store, read = FeatureStore(path), []
    assert store._windows is not None
    reader = store._windows._read
    monkeypatch.setattr(store._windows, "_read", lambda rows, memory: read.extend(rows) or reader(rows, memory))
    monkeypatch.setattr(store, "_array", None)  # nothing comes from the mapped file
    draw = np.random.default_rng(0)
    shuffled = np.arange(400)[store.order(np.arange(400), 12, draw)]
    for rows in (shuffled, np.sort(draw.permutation(500)[:400]), np.append(np.arange(399), 499)):
        numbers = list(range(first, 34))
        for number, expected in zip(store.reading(rows, 12, first), numbers, strict=True):
            assert number == expected
            part = rows[number * 12 : (number + 1) * 12]
            assert torch.equal(store.batch(part), torch.from_numpy(matrix[part]).float())
        assert sorted(read) == sorted(rows[first * 12 :])
        read.clear()


@pytest.mark.parametrize("every", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("dtype", ["float16", "float32", ">f8"])
def test_windows_skip_large_gaps_between_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, dtype: str
) -> None:
    matrix = np.random.default_rng(0).standard_normal((3000, 515)).astype(dtype)
    row = matrix.nbytes // 3000
    for name, rows in {"_LARGE": 100, "_WINDOW": 200, "_PIECE": 16, "_GAP": 20, "_RUN": 120}.items():
        monkeypatch.setattr(windows_module, name, rows * row)
    np.save(tmp_path / "large.npy", matrix)
    store, rows = FeatureStore(tmp_path / "large.npy"), np.arange(5, 3000, every)
    assert store._windows is not None
    monkeypatch.setattr(store, "_array", None)  # nothing comes from the mapped file
    for ordered in (rows, rows[store.order(rows, 10, np.random.default_rng(0))]):
        for number in store.reading(ordered, 10):
            part = ordered[number * 10 : (number + 1) * 10]
            assert torch.equal(store.batch(part), torch.from_numpy(matrix[part].astype(np.float32)))
    spaces = [len(memory._space) for memory in store._windows._memory]
    assert max(spaces) < 2.2 * 200 * row + 120 * row + (200 // 16 + 2) * 2 * windows_module.ALIGNED


@pytest.mark.parametrize("how", ["as it is", "refused at opening", "refused at reading"])
def test_pieces_bypass_the_system_cache_where_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    content = np.random.default_rng(0).bytes(20_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    opened, read = os.open, os.preadv
    direct = getattr(os, "O_DIRECT", 0)
    files: set[int] = set()

    def refuse_opening(name: Any, flags: int) -> int:
        if how == "refused at opening" and flags & direct:
            raise OSError(errno.EINVAL, "no")
        file = opened(name, flags)
        files.update({file} if flags & direct else ())
        return file

    def refuse_reading(file: int, buffers: Any, offset: int) -> int:
        if how == "refused at reading" and file in files:
            files.discard(file)
            raise OSError(errno.EINVAL, "no")
        return read(file, buffers, offset)

    monkeypatch.setattr(os, "open", refuse_opening)
    monkeypatch.setattr(os, "preadv", refuse_reading)
    space = windows_module.AlignedMemory().hold(5 * windows_module.ALIGNED)
    with windows_module.RunReader(str(path)) as reader:
        for first, least, room in ((0, 10, 1), (4096, 4096, 1), (4096, 9000, 3), (16384, 3616, 1), (0, 20_000, 5)):
            into = memoryview(space[: room * windows_module.ALIGNED])
            assert reader.read(first, least, into)
            assert bytes(into[:least]) == content[first : first + least]
        assert not reader.read(16384, 3617, into)
        assert reader.read(4096, 50, into)  # works after that
        assert bytes(into[:50]) == content[4096:4146]


def test_rows_outside_of_windows_come_from_the_file(large: tuple[Path, np.ndarray]) -> None:
    path, matrix = large
    store = FeatureStore(path)
    next(store.reading(np.arange(100), 12))
    for rows in (np.array([499, 3]), np.arange(90, 110)):
        assert torch.equal(store.batch(rows), torch.from_numpy(matrix[rows]).float())


def test_truncated_file_raises(large: tuple[Path, np.ndarray]) -> None:
    store = FeatureStore(large[0])
    os.truncate(large[0], 1000)
    next(store.reading(np.arange(500), 12))
    with pytest.raises(InputError, match=r"large\.npy: the file ends before row"):
        store.batch(np.arange(90))


@pytest.mark.parametrize("step", [1, 8, 13])
def test_run_on_a_large_file_resumes_within_a_window(large: tuple[Path, np.ndarray], tmp_path: Path, step: int) -> None:
    def run(folder: Path, stop: int | None = None) -> Trainer:
        torch.manual_seed(0)
        training = Examples(FeatureStore(large[0]), np.arange(0, 400), single(400))
        validation = Examples(training.store, np.arange(400, 500), single(100))
        settings = TrainSettings(epochs=2, batch_size=12, averaging=0.9)
        interrupted = threading.Event()
        trainer = Trainer(folder, TinyNetwork(8, CLASSES), method("an"), training, validation, settings,
                   device="cpu", progress=False, interrupted=interrupted)  # fmt: skip
        move = trainer.step_runner.run

        def counted(positions: np.ndarray, clock: Clock, following: np.ndarray, last: bool) -> None:
            move(positions, clock, following, last)
            if clock.step + 1 == stop:
                interrupted.set()

        trainer.step_runner.run = counted  # type: ignore[method-assign]
        return trainer

    run(tmp_path / "whole").fit()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", step).fit()
    run(tmp_path / "stopped").fit()
    assert checks.run_bytes(tmp_path / "whole") == checks.run_bytes(tmp_path / "stopped")


# Images from a folder


def pictures(folder: Path, per_class: int, size: int = 24) -> Path:
    draw = np.random.default_rng(0)
    for label in ("cat", "dog", "fish"):
        (folder / label).mkdir(parents=True)
        for number in range(per_class):
            pixels = draw.integers(0, 255, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.jpg")
    return folder


def test_uncached_images_take_two_batches_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, validation and prediction: the store does not keep the batches it returned."""
    batch, size, workers = 6, 24, 2
    dataset = from_folder(
        pictures(tmp_path / "data", 40), size=size, cache_limit=120 * 3 * size**2 - 1, workers=workers
    )
    store, held, most, lock = dataset.store, 0, 0, threading.Lock()
    assert isinstance(store, ImageStore)
    assert store.where == "decoded for every batch"

    def count(images: int) -> None:
        nonlocal held, most
        with lock:
            held += images
            most = max(most, held)

    decode, room = images_module.decode_image, ImageStore._empty_batch

    def decoded(*arguments: Any) -> np.ndarray:
        pixels = decode(*arguments)
        count(1)
        weakref.finalize(pixels, count, -1)
        return pixels

    def tracked_batch(self: ImageStore, rows: int, pin: bool) -> torch.Tensor:
        out = room(self, rows, pin)
        count(rows)
        weakref.finalize(out, count, -rows)
        return out

    monkeypatch.setattr(images_module, "decode_image", decoded)
    monkeypatch.setattr(ImageStore, "_empty_batch", tracked_batch)
    parts = [Examples(store, rows, dataset.labels.subset(rows)) for rows in (dataset.train, dataset.validation)]
    settings = TrainSettings(epochs=2, batch_size=batch, evaluation_batch=batch)
    torch.manual_seed(0)
    network = build_classifier("small", num_classes=3, image_size=size)
    run = Trainer(tmp_path / "run", network, method("an"), *parts, settings, device="cpu", progress=False)
    run.fit()
    run.predict(parts[0])
    until = time.monotonic() + 30
    while held and time.monotonic() < until:  # a thread lets go of its last work shortly after the result is there
        time.sleep(0.01)
    assert held == 0
    assert batch < most <= 3 * batch + workers  # the one in use, the one handed over, the next; and what threads hold


def test_prefetching_does_not_change_a_run(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "data", 10)
    for name, limit in (("kept", None), ("streamed", 0)):
        dataset = from_folder(folder, size=24, cache_limit=limit)
        parts = [Examples(dataset.store, r, dataset.labels.subset(r)) for r in (dataset.train, dataset.validation)]
        torch.manual_seed(0)
        network = build_classifier("small", num_classes=3, image_size=24)
        settings = TrainSettings(epochs=2, batch_size=5)
        Trainer(tmp_path / name, network, method("an"), *parts, settings, device="cpu", progress=False).fit()
    assert checks.run_bytes(tmp_path / "kept") == checks.run_bytes(tmp_path / "streamed")


def test_few_files_of_a_folder_are_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, read = np.random.default_rng(0), []
    contents = {  # all of one length
        "cat/a.jpg": b"1" + draw.bytes(9000),
        "dog/b.jpg": b"2" + draw.bytes(9000),
        "dog/same.jpg": b"3" + bytes(9000),
        "cat/same.jpg": b"3" + bytes(9000),
        "cat/end.jpg": b"4" + bytes(9000),
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: read.append(file.name) or digest(file, kind))
    dataset = from_folder(tmp_path)
    assert sorted(Path(name).name for name in read) == ["end.jpg", "same.jpg", "same.jpg"]
    assert dataset.names.tolist() == ["cat/a.jpg", "cat/end.jpg", "cat/same.jpg", "dog/b.jpg"]
    assert dataset.labels.dense()[2].tolist() == [1, 1]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_writers_buffer_few_tables(tmp_path: Path, suffix: str) -> None:
    schema, tables = pa.schema([("image", pa.string()), ("probability", pa.float64())]), []
    with writers.open_writer(tmp_path / f"lines{suffix}", schema) as write:
        for block in range(100):
            lines = pa.table([[f"{block}-{row}" for row in range(3)], [0.5] * 3], schema=schema)
            tables.append(weakref.ref(lines))
            write(lines)
            del lines
            assert sum(table() is not None for table in tables) < writers.MAX_PENDING_TABLES
    wanted = [f"{block}-{row}" for block in range(100) for row in range(3)]
    if suffix == ".parquet":
        assert parquet.read_table(tmp_path / "lines.parquet")["image"].to_pylist() == wanted
    else:
        found = re.findall(r"\d+-\d", (tmp_path / f"lines{suffix}").read_text())
        assert found == wanted


MEMORY = """
import re, sys
from pathlib import Path
import numpy as np

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def own():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def in_child(code: str, *arguments: object) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEMORY + code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


@pytest.mark.skipif(not re.match("linux", sys.platform), reason="reads /proc")
def test_training_on_a_mapped_file_needs_little_memory(tmp_path: Path) -> None:
    rows, dim = 400_000, 256
    matrix = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float16, (rows, dim))
    for start in range(0, rows, 10_000):
        matrix[start : start + 10_000] = np.random.default_rng(start).random((10_000, 1)) * np.arange(dim)
    del matrix
    code = """
import torch
from spml.labels import Labels
from spml.training import linear
from spml.training.experiment import Experiment
from spml.training.linear import rows
rows.SMALL = 0
labels = Labels.from_indices(np.arange(400_000) % 5, map(str, range(5)))
warm = linear.train_heads(np.zeros((64, 256), np.float32), labels.subset(range(64)),
                          [Experiment.linear("an", epochs=1)], progress=False)
before, most = own(), 0
batch = rows.FeatureStore._dense
def watched(self, rows):
    global most
    most = max(most, own())
    return batch(self, rows)
rows.FeatureStore._dense = watched
(head,) = linear.train_heads(sys.argv[1], labels, [Experiment.linear("an", batch_size=4096, epochs=1)], progress=False)
head.average_precision(sys.argv[1], labels)
print(most - before)
"""
    (held,) = in_child(code, tmp_path / "x.npy")
    assert held < 1.6 * rows * dim  # some blocks; the file has 2 bytes a feature, float32 would have 4


@pytest.mark.skipif(not re.match("linux", sys.platform), reason="reads /proc")
def test_many_classes_need_little_more_memory_than_weights_and_moments() -> None:
    code = """
from spml.labels import Labels
from spml.training.experiment import Experiment
from spml.training.linear import train_heads
classes, dim, batch = 40_000, 128, 256
labels = Labels.from_indices(np.arange(batch), map(str, range(classes)))
x = np.ones((batch, dim), np.float32)
train_heads(x[:8], labels.subset(range(8)), [Experiment.linear("an", batch_size=8, epochs=1)], progress=False)
Path("/proc/self/clear_refs").write_text("5")
before = peak()
train_heads(x, labels, [Experiment.linear("an", batch_size=batch, epochs=2)], progress=False)
print(peak() - before, classes * dim * 4, classes * batch * 4)
"""
    held, weights, logits = in_child(code)
    # Weights, two moments and the result are four; logits whole would be eight and more with all between them.
    assert held < 4 * weights + 4 * logits


# Recovery by rows


def test_recovery_in_blocks_equals_recovery_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, classes = 300, 8
    draw = np.random.default_rng(0)
    probabilities = draw.random((rows, classes)).astype(np.float32)
    probabilities[::50] = np.nan
    order = draw.permutation(rows)
    run = RunFolder(
        folder=Path("run"),
        record={"method": {"name": "an"}},
        best={},
        log=[],
        names=[str(row) for row in range(rows)],
        labels=single(rows, classes),
        truth=None,
        probabilities=probabilities,
        train=order[:200],
        validation=order[200:],
        test=np.zeros(0, np.int64),
        source={},
    )
    whole = recover(run)
    monkeypatch.setattr("spml.labels.entries._BLOCK", 7 * classes)
    parts = recover(run)
    np.testing.assert_allclose(parts.confidences, whole.confidences, rtol=1e-6)
    np.testing.assert_array_equal(parts.thresholds, whole.thresholds)
    for one, other in zip(parts.entries, whole.entries, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


# ROLE without the wall


@pytest.mark.parametrize("name", ["role", "role-16bit"])
@pytest.mark.parametrize("seeds", [3, (3, 4)])
def test_initial_state_of_role_does_not_depend_on_block_size(
    name: str, seeds: int | tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(single(), k=2.0, seeds=seeds)
    observed = torch.from_numpy(single().dense() > 0)
    drawn = uniform_per_head(seeds, (ROWS, CLASSES), -logit(0.6), logit(0.6))
    wanted = torch.where(observed, logit(0.995), drawn)
    for block in (1 << 22, 3 * CLASSES):
        monkeypatch.setattr("spml.labels.entries._BLOCK", block)
        chosen = method(name)
        chosen.prepare(problem)
        assert torch.equal(chosen.memory.values, wanted.to(chosen.memory.values.dtype))


# Two hosts


def command_line(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """Prefixes that run a command on one of two hosts: connected network namespaces."""
    names = [f"spml-{os.getpid()}-{side}" for side in "ab"]
    try:
        for name in names:
            command_line("ip", "netns", "add", name)
        cables = [f"{name[5:]}0" for name in names]
        command_line("ip", "link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for place, (name, cable) in enumerate(zip(names, cables, strict=True), start=1):
            command_line("ip", "link", "set", cable, "netns", name)
            inside = ("ip", "-n", name)
            command_line(*inside, "link", "set", cable, "name", "cable")
            command_line(*inside, "address", "add", f"10.83.7.{place}/24", "dev", "cable")
            command_line(*inside, "link", "set", "cable", "up")
            command_line(*inside, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names]
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs the right to make network namespaces ({error})")
    finally:
        for name in names:
            # Agents start workers in sessions of their own, so what a killed agent left is found by its host.
            left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for process in left.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_two_hosts_match_one_process(tmp_path: Path, hosts: list[list[str]]) -> None:
    """Each host has its own agent, network and disk, and only the first writes the run."""
    script = tmp_path / "job.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom spml.testing import contract as checks\n"
        "from spml.methods import method\n"
        "from spml.training.distributed import end_process\n"
        "checks.tiny_run(lambda: method('epr'), Path(sys.argv[1])).fit()\nend_process()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "cable"
    started = []
    for rank, before in enumerate(hosts):
        rendezvous = ["--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1"]
        rendezvous += ["--master-addr=10.83.7.1", "--master-port=29400"]
        folder = tmp_path / f"disk-{rank}"
        command = [*before, sys.executable, "-m", "torch.distributed.run", *rendezvous, str(script), str(folder)]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        outputs = [one.communicate(timeout=300)[0].decode() for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert [one.returncode for one in started] == [0, 0], "\n".join(outputs)
    assert not (tmp_path / "disk-1" / "last.safetensors").exists()
    checks.tiny_run(lambda: method("epr"), tmp_path / "one").fit()
    ones, twos = (read_tensors(tmp_path / name / "last.safetensors")[0] for name in ("one", "disk-0"))
    assert all(torch.allclose(ones[key].double(), twos[key].double(), atol=1e-5) for key in ones)
