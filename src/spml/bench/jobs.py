"""A job is one training with everything that decides its outcome; it runs once and is found again by its content."""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..data import ImageStore, Pack, load_pack
from ..errors import InputError
from ..labels import Labels
from ..methods import Method, method
from ..models import build_classifier, classifier_from_description
from ..train.checkpoint import read_tensors, write_text
from ..train.log import read_log
from ..train.loop import Examples, Run, choose_device, predict
from ..train.settings import TrainSettings


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
    """The labels, the split and the names of the rows."""
    digest = hashlib.sha256()
    for array in (pack.truth, pack.observed, pack.train, pack.val, pack.test, pack.ids.astype("S")):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def labels_for(made: Method, pack: Pack) -> Labels:
    """What the method may see of the training rows: one positive, or for a reference what it is defined on."""
    if made.needs.labels == "positives":
        return pack.training_labels()
    if made.needs.labels == "full":
        return pack.full_labels(pack.train)
    signed = pack.truth[pack.train].copy()
    signed[signed > 0] = 0  # all true negatives, and of the positives the observed one
    observed = pack.observed[pack.train]
    rows = np.flatnonzero(observed >= 0)
    signed[rows, observed[rows]] = 1
    return Labels.from_matrix(signed, pack.classes, coding="signed")


def run_job(job: Job, out: Path, *, device: str = "auto", store: ImageStore | None = None) -> dict[str, Any]:
    """The job's result row, from its folder if it ran before."""
    pack = load_pack(job.data)
    folder = out / job.key(pack_fingerprint(pack))
    result = folder / "result.json"
    if result.exists():
        row: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return row
    images = store or pack.images(job.image_size, cache_path=out)
    chosen = choose_device(device)
    if chosen.type == "cuda":
        images.to_device(chosen)
        torch.cuda.reset_peak_memory_stats()
        resident = torch.cuda.memory_allocated()
    made = method(job.method, **job.settings)
    torch.manual_seed(job.train.seed)
    classifier = build_classifier(
        job.backbone, len(pack.classes), job.head or made.needs.head, image_size=job.image_size, **job.head_settings
    )
    started = time.perf_counter()
    run = Run(
        folder,
        classifier,
        made,
        Examples(images, pack.train, labels_for(made, pack)),
        Examples(images, pack.val, pack.full_labels(pack.val)),
        job.train,
        k=job.k,
        device=device,
        progress=False,
    )
    best = run.fit()
    seconds = time.perf_counter() - started
    best_network = classifier_from_description(classifier.description)
    best_network.load_state_dict(read_tensors(folder / "best.safetensors")[0])
    best_network.to(run.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    epochs = [line for line in read_log(folder / "log.jsonl") if line["kind"] == "epoch"]

    def probabilities(rows: np.ndarray) -> Tensor:
        return predict(best_network, images, rows, device=run.device, precision=job.train.precision)

    row = {
        "method": job.method,
        "settings": json.dumps(job.settings),
        "head": job.head or made.needs.head,
        "seed": job.train.seed,
        "best_epoch": best["epoch"],
        "weights": best["weights"],
        "validation_map": best["score"],
        **test_scores(
            probabilities(pack.test), pack, pack.test, threshold=0.75 if "em" in job.method.split("-") else 0.5
        ),
        **recovery_scores(probabilities(pack.train), pack),
        "seconds": round(seconds, 2),
        "rows_per_second": round(float(np.median([line["rows_per_second"] for line in epochs])), 1),
        "memory_gib": round((torch.cuda.max_memory_allocated() - resident) / 2**30, 3)
        if chosen.type == "cuda"
        else None,
        "code": code_version(),
    }
    write_text(result, json.dumps(row))
    return row


def test_scores(scores: Tensor, pack: Pack, rows: np.ndarray, threshold: float) -> dict[str, Any]:
    """Test mAP with the papers' rule for empty classes, and F1 at the papers' threshold (EM: 0.75)."""
    truth = torch.from_numpy(pack.truth[rows] > 0).to(scores.device)
    return {
        "test_map": metrics.mean_average_precision(scores, truth, empty="zero"),
        "test_micro_f1": metrics.f1(scores, truth, threshold, "micro"),
        "test_macro_f1": metrics.f1(scores, truth, threshold, "macro"),
        "f1_threshold": threshold,
    }


def recovery_scores(scores: Tensor, pack: Pack) -> dict[str, Any]:
    """mAP of the training rows against their true labels (Cole et al., Table 2); None where nobody has them."""
    if not pack.known[pack.train].all():
        return {"recovery_map": None}
    truth = torch.from_numpy(pack.truth[pack.train] > 0).to(scores.device)
    return {"recovery_map": metrics.mean_average_precision(scores, truth, empty="zero")}


def run_jobs(jobs: Sequence[Job], out: Path, *, device: str = "auto", workers: int = 1) -> Iterator[dict[str, Any]]:
    """The rows of all jobs as they finish, several at a time on one device."""
    out.mkdir(parents=True, exist_ok=True)
    if workers == 1:
        for job in jobs:
            yield run_job(job, out, device=device)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        futures = {pool.submit(_run_in_worker, job, out, device): job for job in jobs}
        for future in as_completed(futures):
            try:
                yield future.result()
            except InputError as error:
                raise InputError(f"{futures[future].method}: {error}") from None


_stores: dict[tuple[str, int], ImageStore] = {}


def _one_thread() -> None:
    torch.set_num_threads(1)


def _run_in_worker(job: Job, out: Path, device: str) -> dict[str, Any]:
    """Keeps the images in the worker between jobs."""
    key = (job.data, job.image_size)
    if key not in _stores:
        _stores[key] = load_pack(job.data).images(job.image_size, cache_path=out)
    return run_job(job, out, device=device, store=_stores[key])
