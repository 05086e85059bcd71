"""All heads of a list, in groups and shifts that fit into memory."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from spml.errors import InputError
from spml.labels import Labels
from spml.train.accelerator import choose_accelerator
from spml.train.linear.evaluator import Judge, Selection, Truth
from spml.train.linear.group import Group, Task
from spml.train.linear.heads import HeadResult, HeadSpec, Team
from spml.train.linear.rows import Rows, Tables, as_features
from spml.type_checks import check_type

SMALL_STEP = 2**27  # products of weights and features in a step up to which one CPU thread computes it


def train_heads(
    features: Any,
    labels: Labels,
    specs: Sequence[HeadSpec],
    *,
    epochs: int = 25,
    validation: tuple[Any, Truth] | None = None,
    k: float | None = None,
    device: str | torch.device = "cpu",
    early_stopping: Literal["first-drop"] | int | None = None,
    full_labels: Labels | None = None,
    negatives_labels: Labels | None = None,
    selection: Selection = "map",
    memory_limit: int = 2**31,
    progress: bool = True,
) -> list[HeadResult]:
    """Train every head of `specs`, each as a plain loop would train it alone, and return them in that order.

    A head starts as `nn.Linear` does after `torch.manual_seed(seed)` and moves by Adam at its constant learning
    rate over batches in an order drawn from (seed, epoch); the last batch of an epoch may be smaller.

    features: a `FeatureStore`, or a matrix or .npy file one is made of. On a GPU they are kept there if they fit.
    validation: (features, truth); the best epoch is kept by `selection`: mean AP, or a function of (scores,
        truth), higher being better. In truth given as `Labels` unknown entries are left out, or count as absent
        where no negative is known at all.
    early_stopping: a head stops after this many epochs without a better score; "first-drop" is 1.
    full_labels, negatives_labels: the tables for methods that need full labels or known negatives, where
        `labels` is not such a table itself.
    memory_limit: bytes that heads in training at one time may take, with what they remember; never less than one.
    """
    store, target = as_features(features), _device(device)
    if not isinstance(labels, Labels):
        raise InputError(f"labels must be Labels, as Labels.from_indices or from_matrix makes them, not {type(labels)}")
    for spec in specs:
        if not isinstance(spec, HeadSpec):
            raise InputError(f"specs must be HeadSpecs, as HeadSpec('an'), not {spec!r}")
    if not specs:
        raise InputError("there are no heads to train: specs is empty")
    check_type("epochs", epochs, int)
    if epochs < 1:
        raise InputError(f"epochs must be at least 1, not {epochs}")
    if len(store) != len(labels):
        raise InputError(f"there are {len(store)} rows of features, but labels for {len(labels)} rows")
    patience = 1 if early_stopping == "first-drop" else early_stopping
    if patience is not None and patience < 1:
        raise InputError(f"early_stopping must be 'first-drop', at least 1 or None, not {early_stopping!r}")
    if patience is not None and validation is None:
        raise InputError("early_stopping needs validation: give features and their true labels")
    store.check_finite()
    if validation is not None and isinstance(validation[1], Labels):
        labels.check_same_classes(validation[1], "validation")
    judge = None if validation is None else Judge(*validation, store.dim, labels.num_classes, selection, target)
    tables = Tables(labels, full_labels, negatives_labels, target)
    task = Task(Rows(store, target), tables, epochs, k, target, choose_accelerator(target))

    teams = [Team.of(spec, labels.num_classes) for spec in specs]
    results: dict[int, HeadResult] = {}
    with _progress(len(specs) * epochs if progress else 0) as advance:
        for shift in _shifts(teams, task, memory_limit):
            groups = [Group([teams[i] for i in indices], task) for indices in shift]
            with _threads_for(groups):
                _train_shift(groups, task, judge, patience, advance)
            for group, indices in zip(groups, shift, strict=True):
                results.update(zip(indices, group.results(), strict=True))
    return [results[i] for i in range(len(specs))]


def _shifts(teams: Sequence[Team], task: Task, memory_limit: int) -> Iterator[list[list[int]]]:
    """Groups of heads (as indices of teams) by batch size and seed, in shifts that are trained side by side.

    Heads of one batch size and seed see the same batches and form a group. On a CPU groups take turns, since one
    alone keeps it busy and its weights near; on a GPU those of one batch size share every step.
    """
    bytes_of: dict[tuple[str, str], int] = {}
    specs = [team.spec for team in teams]
    groups: dict[int, list[list[int]]] = defaultdict(list)
    order = sorted(range(len(specs)), key=lambda i: (specs[i].batch_size, specs[i].seed))
    for (size, _), members in itertools.groupby(order, key=lambda i: (specs[i].batch_size, specs[i].seed)):
        group: list[int] = []
        taken = 0
        for i in members:
            key = specs[i].method_key
            if key not in bytes_of:
                bytes_of[key] = sum(_bytes_of_head(head, task) for head in teams[i].heads)
            if group and taken + bytes_of[key] > memory_limit:
                groups[size].append(group)
                group, taken = [], 0
            group.append(i)
            taken += bytes_of[key]
        groups[size].append(group)
    for of_size in groups.values():
        shift: list[list[int]] = []
        taken = 0
        for group in of_size:
            needed = sum(bytes_of[specs[i].method_key] for i in group)
            if shift and (task.device.type == "cpu" or taken + needed > memory_limit):
                yield shift
                shift, taken = [], 0
            shift.append(group)
            taken += needed
        yield shift


def _bytes_of_head(spec: HeadSpec, task: Task) -> int:
    """What one head takes in training: weights and the method's state, their gradients, moments and best epoch."""
    made = task.method(spec, (spec.seed,))
    parameters = task.classes * (task.features.dim + 1) + sum(p.numel() for p in made.parameters())
    return 5 * 4 * parameters + 2 * sum(b.nbytes for b in made.buffers())


def _train_shift(
    groups: list[Group],
    task: Task,
    judge: Judge | None,
    patience: int | None,
    advance: Callable[[int], None],
) -> None:
    """All epochs of groups of one batch size, step by step side by side."""
    size = groups[0].batch_size
    for epoch in range(1, task.epochs + 1):
        active = [group for group in groups if not group.finished]
        for group in active:
            group.begin_epoch(epoch)
        done = 0
        if active and task.features.resident:
            done = task.accelerator.replay_epoch(active, task.clock(epoch, 0, size), task.rows)
        for start in range(done, task.rows, size):
            clock = task.clock(epoch, start // size, size)
            for group in active:
                if len(active) == 1:  # several take turns, each with an order of its own
                    task.features.ahead(group.order[start + size : start + 2 * size])
                group.step(group.order[start : start + size], clock)
        for group in active:
            group.end_epoch(epoch, judge, patience)
        advance(sum(len(group.teams) for group in groups))


@contextmanager
def _threads_for(groups: list[Group]) -> Iterator[None]:
    """One CPU thread for small steps: they gain little from more, and on a busy machine wait long for each other."""
    threads = torch.get_num_threads()
    products = groups[0].weight.numel() * groups[0].batch_size
    torch.set_num_threads(1 if products < SMALL_STEP else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _device(name: str | torch.device) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"the device is {str(device)!r}, but there is no GPU here: use 'cpu'")
    return device


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar over epochs of heads; none where the total is 0."""
    if not total:
        yield lambda heads: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("linear heads"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda heads: bar.update(task, advance=heads)
