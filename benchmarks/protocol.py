"""A complete published protocol: with this package, and in the style of the published code.

    python benchmarks/protocol.py --data ../shared/data/voc12 --record
    python benchmarks/protocol.py --data ../shared/data/voc12 --published-epochs 10 --record    # also both mAPs

AN for ten epochs at batch size 16 and learning rate 1e-4, with validation after every epoch and the test mAP of the
best epoch.

Ours: one training of the benchmark, from the file of decoded images to the finished run folder, including checkpoints
and the predictions and scores of all rows. Work that is done once before all runs is reported separately: decoding the
images, and a first run of a few steps, in which CUDA starts and kernels are compiled.

Published style: plain PyTorch. Pillow in DataLoader workers, torchvision's transforms, float32 with torch's defaults,
one batch size everywhere, predictions copied to the host after every batch, validation and test after every epoch by
scikit-learn. It runs `--published-epochs` epochs after a few warm-up batches; their time is scaled to the number of
epochs of the protocol.
"""

import argparse
import gc
import io
import itertools
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from record import SPEED, hardware, record
from spml.bench.runner import network_row
from spml.data import open_data
from spml.data.dataset import Dataset as LabelledData
from spml.data.stores.images import ImageStore
from spml.models.backbones import load_backbone
from spml.runs.folder import open_run
from spml.training.device import choose_device
from spml.training.experiment import Experiment
from spml.training.label_draw import LabelDraw
from spml.training.run_experiment import run_experiment
from spml.training.settings import TrainSettings

SEED = 0
GOAL = 8.0
RATE = 1e-4
WARM_UP = 6  # batches
SAMPLE = 500  # images to decode for the estimate, if the decoded images exist already


# The published style


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images of a pack, opened by Pillow on access, with their row numbers."""

    def __init__(self, pack: LabelledData, rows: np.ndarray, transform: Any) -> None:
        found: dict[str, tuple[Path, str]] = {}
        for path in sorted(Path(pack.source["path"]).glob("*.zip")):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    found[name] = found[name.rpartition(".")[0]] = path, name
        self.sources = [found[name] for name in pack.names[rows].tolist()]
        self.rows, self.transform = rows, transform
        self.archives: dict[Path, zipfile.ZipFile] = {}  # every worker opens its own file

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        path, name = self.sources[place]
        if path not in self.archives:
            self.archives[path] = zipfile.ZipFile(path)
        with Image.open(io.BytesIO(self.archives[path].read(name))) as image:
            return self.transform(image.convert("RGB")), int(self.rows[place])


class Published:
    """State of the protocol: network, optimiser, loaders of the three parts, labels as matrices."""

    def __init__(
        self, pack: LabelledData, backbone: str, size: int, batch: int, workers: int, device: torch.device
    ) -> None:
        torch.manual_seed(SEED)
        body = load_backbone(backbone, pretrained=True, image_size=size)
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(body.channels, len(pack.classes)))
        self.network, self.device = nn.Sequential(body.module, *pooled).to(device), device
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=RATE)
        plain = (transforms.ToTensor(), transforms.Normalize(body.mean, body.std))
        resize, flip = transforms.Resize((size, size)), transforms.RandomHorizontalFlip()
        self.loaders = {
            part: DataLoader(
                Pictures(
                    pack, rows, transforms.Compose([resize, flip, *plain] if part == "train" else [resize, *plain])
                ),
                batch,
                shuffle=part == "train",
                num_workers=workers,
                pin_memory=device.type == "cuda",
            )
            for part, rows in (("train", pack.train), ("validation", pack.validation), ("test", pack.test))
        }
        self.observed = torch.zeros(len(pack), len(pack.classes))
        self.observed[pack.train, pack.labels.single()[pack.train]] = 1.0
        assert pack.truth is not None
        self.truth = pack.truth.open().dense() > 0

    def go_through(self, part: str, batches: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """One pass over a part, with training on the training part. Returns rows and their scores on the host."""
        self.network.train(part == "train")
        seen, scores = [], []
        for images, rows in itertools.islice(self.loaders[part], batches):
            seen.append(rows.numpy())
            scores.append(self.scores(images, rows, part == "train"))
        return np.concatenate(seen), np.concatenate(scores)

    def scores(self, images: Tensor, rows: Tensor, training: bool) -> np.ndarray:
        """Scores of one batch, on the host; in training, after a step on it."""
        images, targets = images.to(self.device, non_blocking=True), self.observed[rows].to(self.device)
        with torch.set_grad_enabled(training):
            logits = self.network(images)
        if training:
            self.optimiser.zero_grad()
            F.binary_cross_entropy_with_logits(logits, targets).backward()
            self.optimiser.step()
        found: np.ndarray = torch.sigmoid(logits).detach().cpu().numpy()
        return found

    def warm_up(self) -> None:
        """A few batches of every part, and one with the size of its last batch: cuDNN selects kernels for each size."""
        for part, loader in self.loaders.items():
            self.go_through(part, WARM_UP)
            left = [loader.dataset[row] for row in range(len(loader.dataset) % loader.batch_size)]
            if left:
                images, rows = zip(*left, strict=True)
                self.scores(torch.stack(images), torch.tensor(rows), part == "train")

    def mean_average_precision(self, part: str) -> float:
        rows, scores = self.go_through(part)
        truth = self.truth[rows]
        # a class without positives counts as 0, as in the papers
        each = [average_precision_score(t, s) if t.any() else 0.0 for t, s in zip(truth.T, scores.T, strict=True)]
        return float(np.mean(each))


@dataclass(frozen=True)
class Outcome:
    training: float  # seconds
    evaluation: float
    scores: dict[str, float]  # of the epoch with the best validation mAP

    @property
    def seconds(self) -> float:
        return self.training + self.evaluation


def run_published(make: Callable[[], Published], epochs: int) -> Outcome:
    """Run this many epochs, after a few batches of another network."""
    make().warm_up()
    state, training, evaluation, scores = make(), 0.0, 0.0, []
    for _ in range(epochs):
        started = time.perf_counter()
        state.go_through("train")
        trained = time.perf_counter()
        found = (state.mean_average_precision(part) for part in ("validation", "test"))
        scores.append(dict(zip(("validation_map", "test_map"), found, strict=True)))
        training, evaluation = training + trained - started, evaluation + time.perf_counter() - trained
    return Outcome(training, evaluation, max(scores, key=lambda found: found["validation_map"]))


# Ours


def decode(pack: LabelledData, size: int, cache: Path) -> tuple[float, int]:
    """Seconds to decode all images into the cache, and the number measured: a sample, if the cache already exists."""
    store = images(pack, size, cache_path=cache)
    there = Path(store.where.removeprefix("in ")).exists()
    started = time.perf_counter()
    store.prepare()
    if not there:
        return time.perf_counter() - started, len(pack)
    sample = np.random.default_rng(SEED).permutation(len(pack))[:SAMPLE]
    fresh = images(pack, size, cache_limit=0)
    started = time.perf_counter()
    fresh.batch(sample)
    return (time.perf_counter() - started) * len(pack) / len(sample), len(sample)


def release(device: torch.device) -> None:
    """Free the memory of a finished run, which has a reference cycle with its CUDA graph."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def images(pack: LabelledData, size: int, **options: Any) -> ImageStore:
    store = open_data(pack.source["path"], size=size, **options).store
    assert isinstance(store, ImageStore)
    return store


def run_ours(
    pack: LabelledData, experiment: Experiment, cache: Path, device: torch.device
) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole training from the decoded images on, and its row of the results."""
    release(device)
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        data = open_data(pack.source["path"], size=experiment.image_size, cache_path=cache)
        best = run_experiment(experiment, data, Path(out), device=str(device), progress=False)
        row = network_row(experiment, data, open_run(out), best) | {"seconds": best["seconds"]}
        return time.perf_counter() - started, row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a pack with images")
    parser.add_argument("--backbone", default="lite2")
    parser.add_argument("--image-size", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--published-epochs", type=int, default=1, help="epochs in the published style; at least 1")
    parser.add_argument("--workers", type=int, default=4, help="DataLoader workers of the published style")
    parser.add_argument("--cache", type=Path, help="folder for the decoded images (default: a temporary one)")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--record", type=Path, nargs="?", const=SPEED, metavar="FILE", help="append to results/speed.csv, or to FILE"
    )
    options = parser.parse_args(arguments)
    if options.published_epochs < 1:
        parser.error("--published-epochs must be at least 1")
    device, pack, size = choose_device(options.device), open_data(options.data), options.image_size
    epochs, batch = options.epochs, options.batch_size
    print(
        f"{pack.name}: {len(pack.train):,} training, {len(pack.validation):,} validation and {len(pack.test):,} "
        f"test images; {options.backbone} at {size} pixels, batch {batch}; {hardware(str(device))}, "
        f"torch {torch.__version__}",
        flush=True,
    )
    train = TrainSettings(epochs=epochs, batch_size=batch, learning_rate=RATE, precision="bf16", seed=SEED)
    experiment = Experiment(
        "an",
        train=train,
        data=pack.name,
        draw=LabelDraw(),
        validation="full",
        backbone=options.backbone,
        image_size=size,
    )
    few = LabelDraw(rows=min(1.0, WARM_UP * batch / len(pack.train)))
    with tempfile.TemporaryDirectory() as passing:
        cache = options.cache or Path(passing)
        decoding, decoded = decode(pack, size, cache)
        print(f"{'decoding, once':20}{decoding:9.1f} s  measured on {decoded:,} of {len(pack):,} images", flush=True)
        start, _ = run_ours(pack, replace(experiment, train=replace(train, epochs=1), draw=few), cache, device)
        print(f"{'a first short run':20}{start:9.1f} s", flush=True)
        ours, row = run_ours(pack, experiment, cache, device)
    print(
        f"{'ours':20}{ours:9.1f} s  {row['seconds']:.1f} s of it training and validation, at "
        f"{row['rows_per_second']:,.0f} rows/s; epoch {row['best_epoch']} of {epochs}: {maps(row)}",
        flush=True,
    )
    release(device)
    outcome = run_published(
        lambda: Published(pack, options.backbone, size, batch, options.workers, device), options.published_epochs
    )
    times = epochs / options.published_epochs
    theirs = times * outcome.seconds
    print(
        f"{'published style':20}{theirs:9.1f} s  {options.published_epochs} of {epochs} epochs run: "
        f"{outcome.training:.1f} s training, {outcome.evaluation:.1f} s validation and test, times {times:g}; "
        f"{options.workers} workers; {maps(outcome.scores) if times == 1 else 'mAP after all epochs only'}"
    )
    included = theirs / (ours + decoding)
    print(f"ratio {theirs / ours:.2f} (goal {GOAL:g}), with decoding included {included:.2f}")
    if options.record is not None:
        scores = {"ours": row} | ({"their": outcome.scores} if times == 1 else {})
        record(
            "protocol an",
            ours,
            theirs,
            f"published style, {options.published_epochs} of {epochs} epochs times {times:g}",
            SEED,
            path=options.record,
            device=str(device),
            decoding_seconds=f"{decoding:.4g}",
            decoding_measured_on=decoded,
            ratio_with_decoding=f"{included:.2f}",
            first_short_run_seconds=f"{start:.4g}",
            **{f"{side}_test_map": f"{found['test_map']:.4f}" for side, found in scores.items()},
            their_workers=options.workers,
            backbone=options.backbone,
            image_size=size,
            batch=batch,
            rows=len(pack),
        )


def maps(row: dict[str, Any]) -> str:
    return f"validation mAP {100 * row['validation_map']:.2f}, test mAP {100 * row['test_map']:.2f}"


if __name__ == "__main__":
    main()
