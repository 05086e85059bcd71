"""A job is one training with everything that decides its outcome; it runs once and is found again by its content."""

import dataclasses
import functools
import gc
import hashlib
import json
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spml import metrics
from spml.bench.draws import Draw
from spml.bench.packs import OfficialPack, open_pack, source_of
from spml.bench.predictions import keep_predictions
from spml.bench.workers import in_workers, interrupted
from spml.data import ImageStore, Pack
from spml.errors import DivergedError
from spml.labels import Labels
from spml.methods import METHODS, Method, method
from spml.models import Classifier, build_classifier, classifier_from_description
from spml.runs.files import read_tensors, write_text
from spml.runs.log import read_log
from spml.train.device import choose_device
from spml.train.evaluation import predict
from spml.train.examples import Examples
from spml.train.head import head_for
from spml.train.linear import HeadSpec
from spml.train.linear_init import linear_init
from spml.train.settings import TrainSettings
from spml.train.trainer import Trainer


@dataclass(frozen=True)
class LinearInit:
    """The grid of the stage before fine-tuning, of which the best head by validation is kept (Cole et al. 2021)."""

    epochs: int = 25
    learning_rates: tuple[float, ...] = (1e-2, 1e-3, 1e-4, 1e-5)
    batch_sizes: tuple[int, ...] = (8, 16)


@dataclass(frozen=True)
class Job:
    """Fine-tune a backbone on the images of a pack by one method."""

    data: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    train: TrainSettings = field(default_factory=TrainSettings)
    backbone: str = "lite2"
    image_size: int = 320
    head: str | None = None  # None: the head the method is made for
    head_settings: dict[str, Any] = field(default_factory=dict)
    k: float | None = None
    draw: Draw = field(default_factory=Draw)  # what the training rows show of their labels
    linear_init: LinearInit | None = None  # the head is first trained on features of the frozen backbone

    def key(self, fingerprint: str) -> str:
        """A name made of the job's content, the data's and the code's."""
        content = dataclasses.asdict(self)
        content["data"] = fingerprint
        text = json.dumps([content, code_version()], sort_keys=True)
        return f"{self.method}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@functools.cache
def code_version() -> str:
    """A digest of the package's source: a result belongs to the code that made it."""
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def pack_fingerprint(pack: Pack) -> str:
    """The labels, the split, the names of the rows, and the images: what zip files say of them, or their sizes."""
    digest = hashlib.sha256()
    for array in (pack.truth, pack.observed, pack.train, pack.val, pack.test, np.char.encode(pack.ids, "utf-8")):
        digest.update(repr((array.shape, array.dtype)).encode() + np.ascontiguousarray(array).tobytes())
    if pack.largest_share is not None:
        digest.update(pack.largest_share.tobytes())
    for archive in sorted(pack.directory.glob("*.zip")):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(archive) as file:  # said when images are opened
            digest.update(repr([(one.filename, one.file_size, one.CRC) for one in file.infolist()]).encode())
    if isinstance(pack, OfficialPack):
        digest.update(pack.content.encode())
    return digest.hexdigest()[:16]


def labels_for(made: Method, pack: Pack) -> Labels:
    """What the method may see of the training rows: one positive, or for a reference what it is defined on."""
    return Draw().shown(pack, made.needs.labels)[1]


def first_head(
    job: Job, grid: LinearInit, classifier: Classifier, training: Examples, validation: Examples, device: str
) -> dict[str, Tensor]:
    """Put the best head of LinearInit into the classifier; returns what the method remembered with it."""
    specs = [
        HeadSpec(job.method, job.settings, rate, size, job.train.seed)
        for rate in grid.learning_rates
        for size in grid.batch_sizes
    ]
    return linear_init(
        classifier, training, validation, specs, epochs=grid.epochs, k=job.k, device=device, progress=False
    ).method_state


def head_of(job: Job, made: Method, labels: Labels) -> str:
    """The head of a job that names none. What LinearInit trains is linear."""
    if job.linear_init:
        return made.needs.head
    sizes = labels.num_classes, len(labels), job.train.epochs, job.train.batch_size
    return head_for(made, job.backbone, *sizes)


def run_job(
    job: Job,
    out: Path,
    *,
    device: str = "auto",
    store: ImageStore | None = None,
    interrupted: threading.Event | None = None,
) -> dict[str, Any]:
    """The job's result row, from its folder if it ran before. `interrupted`, once set, ends it with a checkpoint."""
    pack = open_pack(job.data)
    folder = out / job.key(pack_fingerprint(pack))
    result = folder / "result.json"
    if result.exists():
        row: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return row
    images = store or pack.images(job.image_size, cache_path=out)
    chosen = choose_device(device)
    if chosen.type == "cuda":
        images.to_device(chosen)
        gc.collect()  # a run before this one refers to itself, and would be freed within this one's peak
        torch.cuda.reset_peak_memory_stats()
        resident = torch.cuda.memory_allocated()
    made = method(job.method, **job.settings)
    rows, labels = job.draw.shown(pack, made.needs.labels)
    head = job.head or head_of(job, made, labels)
    torch.manual_seed(job.train.seed)
    size = job.image_size
    classifier = build_classifier(job.backbone, len(pack.classes), head, image_size=size, **job.head_settings)
    started = time.perf_counter()
    training, validation = Examples(images, rows, labels), Examples(images, pack.val, pack.full_labels(pack.val))
    start, resumed = None, (folder / "last.safetensors").exists()
    if job.linear_init and not resumed:  # a run broken off has passed that stage
        start = first_head(job, job.linear_init, classifier, training, validation, str(chosen))
    run = Trainer(
        folder,
        classifier,
        made,
        training,
        validation,
        job.train,
        k=job.k,
        start=start,
        device=device,
        progress=False,
        interrupted=interrupted,
    )
    try:
        best = run.fit()
    except DivergedError:
        if (folder / "best.safetensors").exists():
            raise  # not from its start: what it had learned is not thrown away
        row = diverged_row(job.method, job.settings, job.train.seed) | {"head": head, "code": code_version()}
        write_text(result, json.dumps(row))
        return row
    seconds = time.perf_counter() - started
    best_network = classifier_from_description(classifier.description)
    best_network.load_state_dict(read_tensors(folder / "best.safetensors")[0])
    best_network.to(run.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    epochs = [line for line in read_log(folder / "log.jsonl") if line["kind"] == "epoch"]

    every = np.concatenate([pack.train, pack.val, pack.test])
    scores = predict(best_network, images, every, device=run.device, precision=job.train.precision)
    place = np.full(len(pack), -1)
    place[every] = np.arange(len(every))

    def probabilities(rows: np.ndarray) -> Tensor:
        return scores[torch.from_numpy(place[rows]).to(scores.device)]

    keep_predictions(folder, pack, job.draw.shown(pack), every, scores, source_of(pack, job.image_size))
    row = {
        "method": job.method,
        "settings": json.dumps(job.settings),
        "head": head,
        "seed": job.train.seed,
        "best_epoch": best["epoch"],
        "weights": best["weights"],
        "validation_map": best["score"],
        **test_scores(probabilities(pack.test), pack, pack.test, threshold=METHODS[job.method].f1_threshold),
        **recovery_scores(probabilities(rows), pack, rows),
        "labels": int(np.count_nonzero(labels.dense())),
        "seconds": None if resumed else round(seconds, 2),
        "rows_per_second": round(float(np.median([line["rows_per_second"] for line in epochs])), 1),
        "memory_gib": round((torch.cuda.max_memory_allocated() - resident) / 2**30, 3)
        if chosen.type == "cuda"
        else None,
        "code": code_version(),
    }
    write_text(result, json.dumps(row))
    return row


def diverged_row(name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Of a run that was not finite after any epoch: it is the last to be chosen, and nothing is measured."""
    told = {"method": name, "settings": json.dumps(settings), "seed": seed}
    return told | {"validation_map": 0.0, "seconds": None, "diverged": True}


def test_scores(scores: Tensor, pack: Pack, rows: np.ndarray, threshold: float) -> dict[str, Any]:
    """Test mAP with the papers' rule for empty classes, and F1 at the papers' threshold (EM: 0.75)."""
    truth = torch.from_numpy(pack.truth[rows] > 0).to(scores.device)
    return {
        "test_map": metrics.mean_average_precision(scores, truth, empty="zero"),
        "test_micro_f1": metrics.f1(scores, truth, threshold, "micro"),
        "test_macro_f1": metrics.f1(scores, truth, threshold, "macro"),
        "f1_threshold": threshold,
    }


def recovery_scores(scores: Tensor, pack: Pack, rows: np.ndarray) -> dict[str, Any]:
    """mAP of training rows against their true labels (Cole et al., Table 2); None where nobody has them."""
    if not pack.known[rows].all():
        return {"recovery_map": None}
    truth = torch.from_numpy(pack.truth[rows] > 0).to(scores.device)
    return {"recovery_map": metrics.mean_average_precision(scores, truth, empty="zero")}


def run_jobs(jobs: Sequence[Job], out: Path, *, device: str = "auto", workers: int = 1) -> Iterator[dict[str, Any]]:
    """The rows of all jobs as they finish; several at a time are processes, which share a GPU in turns."""
    out.mkdir(parents=True, exist_ok=True)
    if workers == 1:
        for job in jobs:
            yield run_job(job, out, device=device)
        return
    tasks, names = [(job, out, device) for job in jobs], [job.method for job in jobs]
    # closed here and now: a generator that is closed need not let go at once of those it reads
    with closing(in_workers(_run_in_worker, tasks, names, device=device, workers=workers)) as done:
        for _, row in done:
            yield row


_stores: dict[tuple[str, int], ImageStore] = {}  # of a worker: the images, kept between jobs


def _run_in_worker(job: Job, out: Path, device: str) -> dict[str, Any]:
    key = (job.data, job.image_size)
    if key not in _stores:
        _stores[key] = open_pack(job.data).images(job.image_size, cache_path=out)
    return run_job(job, out, device=device, store=_stores[key], interrupted=interrupted)
