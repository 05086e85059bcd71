"""Tiny data, a network and a training run for the contract; everything runs in milliseconds on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.methods import Batch, Clock, Method, Problem
from spml.models import Outputs
from spml.training.examples import Examples
from spml.training.network.trainer import Trainer
from spml.training.settings import TrainSettings

ROWS, CLASSES, WIDTH = 23, 17, 7  # all different, so that the size of a dimension identifies it
LATE = Clock(epoch=3, epochs=4, step=9, steps=16)  # schedules and second stages have started

MakeMethod = Callable[[], Method]


class TinyNetwork(nn.Module):
    """Map features to logits, label-wise embeddings and class maps, for any method.

    With several `heads`, the logits of all of them in training mode, as an ensemble expects them, and their mean in
    evaluation mode.
    """

    def __init__(self, width: int = WIDTH, classes: int = CLASSES, seed: int = 0, heads: int = 1) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) / width**0.5)

        self.to_logits, self.bias = drawn(width, heads * classes), nn.Parameter(torch.zeros(heads * classes))
        self.to_embeddings, self.to_maps = drawn(width, classes * 128), drawn(width, classes * 9)
        self.classes = classes

    def forward(self, features: Tensor) -> Outputs:
        embeddings = (features @ self.to_embeddings).unflatten(-1, (self.classes, 128))
        maps = (features @ self.to_maps).unflatten(-1, (self.classes, 3, 3))
        logits = features @ self.to_logits + self.bias
        if not self.training:
            logits = logits.unflatten(-1, (-1, self.classes)).mean(-2)
        return Outputs(logits, F.normalize(embeddings, dim=-1), maps)


def tiny_examples(method: Method, rows: int = ROWS) -> Examples:
    """Draw features and the labels the method needs, with one row without a positive and one class without examples."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(rows, WIDTH)).astype(np.float32)
    names = [f"class {i}" for i in range(CLASSES)]
    if method.needs.labels == "positives":
        single = draw.integers(0, CLASSES - 1, rows)
        single[3] = -1
        labels = Labels.from_indices(single, names)
    else:
        signed = np.where(draw.random((rows, CLASSES)) < 0.3, 1, -1)
        signed[:, -1] = -1
        signed[3] = -1
        if method.needs.labels == "negatives":
            signed[draw.random((rows, CLASSES)) < 0.3] = 0
        labels = Labels.from_matrix(signed, names, coding="signed")
    return Examples(FeatureStore(features), np.arange(rows), labels)


def with_negatives(examples: Examples) -> Examples:
    """Mark a fifth of the unknown labels as verified negatives."""
    labels = examples.labels
    signed = labels.dense().copy()
    signed[(signed == 0) & (np.random.default_rng(1).random(signed.shape) < 0.2)] = -1
    return Examples(examples.store, examples.rows, Labels.from_matrix(signed, labels.classes, coding="signed"))


def tiny_problem(method: Method, labels: Labels, seeds: int | tuple[int, ...] = 0) -> Problem:
    """Describe the task: features if the method has an objective for them, but no ensemble."""
    features = type(method).objective is not Method.objective and not method.members(labels.num_classes)
    return Problem(labels, k=1.5, seeds=seeds, soft_labels=False, features=features)


def prepared(make: MakeMethod, labels: Labels) -> Method:
    """Create a method and prepare it for the tiny task."""
    method = make()
    method.prepare(tiny_problem(method, labels))
    assert method.prepared, f"{method.name}: its prepare must call super().prepare(problem)"
    return method


def objective_of(method: Method, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock = LATE) -> Tensor:
    """Compute the objective, or the loss with these logits for every view if the method has no objective.

    The other outputs of the head then depend on the logits by row and class, without a gradient.
    """
    if type(method).objective is not Method.objective:
        return method.objective(logits, labels, rows, clock)

    def model(view: Tensor) -> Outputs:
        p = torch.sigmoid(view.detach().float())
        embeddings = F.normalize(p[..., None] * torch.linspace(-1, 1, 128) + torch.linspace(1, 2, 128), dim=-1)
        return Outputs(view, embeddings, p[..., None, None].expand(*p.shape, 3, 3))

    return method.loss(Batch(rows, labels, (logits,) * len(method.views)), model, clock)


def warmed_up(make: MakeMethod, examples: Examples) -> Method:
    """Create a method with state: after a few steps and the end of an epoch."""
    method = prepared(make, examples.labels)
    method.train()
    generator = torch.Generator().manual_seed(1)
    for start in range(0, 12, 4):
        rows = torch.arange(start, start + 4)
        logits = torch.randn(4, CLASSES, generator=generator, requires_grad=True)
        objective_of(method, logits, examples.labels.batch(rows), rows).backward()
        method.after_step(1e-2)
    method.zero_grad()
    if method.needs.epoch_predictions:
        method.end_epoch(torch.rand(len(examples.rows), CLASSES, generator=generator), LATE)
    return method


class Stopped(Exception):
    """Raised in the middle of a run to end it like a kill."""


class _StoppingStore:
    """A store that ends the run after a number of batches."""

    def __init__(self, store: FeatureStore, batches: int) -> None:
        self.store, self.left = store, batches

    def __len__(self) -> int:
        return len(self.store)

    def batch(self, rows: Any) -> Tensor:
        if self.left == 0:
            raise Stopped
        self.left -= 1
        return self.store.batch(rows)


def tiny_run(make: MakeMethod, folder: Path, batches: int | None = None, checkpoint_seconds: float = 60.0) -> Trainer:
    """Create a run of three epochs on tiny data; with `batches` it raises `Stopped` after that many."""
    method = make()
    examples = tiny_examples(method)
    if batches is not None:
        examples = Examples(_StoppingStore(examples.store, batches), examples.rows, examples.labels)  # type: ignore[arg-type]
    settings = TrainSettings(
        epochs=3,
        batch_size=4,
        learning_rate=1e-2,
        averaging=0.9,
        schedule="cosine",
        checkpoint_seconds=checkpoint_seconds,
        seed=5,
    )
    network = TinyNetwork(heads=max(1, len(method.members(CLASSES))))
    return Trainer(folder, network, method, examples, examples, settings, k=1.5, device="cpu", progress=False)


def run_bytes(folder: Path) -> dict[str, bytes]:
    """Read the files by which two finished runs are compared."""
    return {name: (folder / name).read_bytes() for name in ("last.safetensors", "best.safetensors")}
