"""Train a list of heads, in groups and memory batches."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from spml.errors import InputError
from spml.labels import Labels
from spml.training.accelerator import choose_accelerator
from spml.training.device import choose_device
from spml.training.experiment import Experiment
from spml.training.linear.blocks import TrainingContext
from spml.training.linear.evaluator import Evaluator, Selection, TruthTable
from spml.training.linear.group import HeadGroup
from spml.training.linear.heads import HeadEnsemble, HeadResult
from spml.training.linear.rows import DeviceFeatures, Features, LabelTables, as_features
from spml.training.progress import progress_bar

T = TypeVar("T")

SMALL_STEP = 2**27  # multiplications per step below which one CPU thread is used


def train_heads(
    features: Any,
    labels: Labels,
    experiments: Sequence[Experiment],
    *,
    validation: tuple[Any, TruthTable] | None = None,
    device: str | torch.device = "cpu",
    full_labels: Labels | None = None,
    negatives_labels: Labels | None = None,
    selection: Selection = "map",
    memory_limit: int = 2**31,
    progress: bool = True,
) -> list[HeadResult]:
    """Train one linear head per experiment, many at a time; each result equals training that head alone.

    A head starts as `nn.Linear` does after `torch.manual_seed(seed)`. Adam with a constant learning rate trains it on
    batches whose order depends on (seed, epoch); the last batch of an epoch may be smaller.

    Parameters
    ----------
    features : FeatureStore, FeatureRows, array, tensor or path
        One row per example; arrays, tensors and .npy files become a `FeatureStore`. On a GPU they are kept in its
        memory if they fit.
    labels : Labels
        The labels to learn from.
    experiments : sequence of Experiment
        Method, settings and k of each head; of `train` the epochs, batch size, learning rate, seed and early stopping.
    validation : (features, truth), optional
        Rows that select the best epoch. Unknown entries of `Labels` are left out; without any known negative they
        count as absent.
    device : str or torch.device
    full_labels, negatives_labels : Labels, optional
        Labels for methods that need full labels or known negatives, if `labels` does not have them.
    selection : "map" or callable
        Score of an epoch: mean average precision, or a function of (scores, truth); higher is better.
    memory_limit : int
        Bytes for the heads that are trained at a time, with their methods' memory; one head is always trained.
    progress : bool
        Show a progress bar.

    Returns
    -------
    list of HeadResult
        In the order of `experiments`.

    Raises
    ------
    InputError
        If inputs do not fit together, or a method cannot be trained on features.

    Examples
    --------
    >>> import torch
    >>> from spml.labels import Labels
    >>> from spml.training.experiment import Experiment
    >>> x, labels = torch.randn(8, 3), Labels.from_indices([0, 1] * 4, ["cat", "dog"])
    >>> (head,) = train_heads(x, labels, [Experiment.linear("an", epochs=2)], progress=False)
    >>> head.score(x).shape
    torch.Size([8, 2])
    """
    store, target = as_features(features), choose_device(str(device))
    _check(store, labels, experiments, validation)
    evaluator = None if validation is None else Evaluator(*validation, store.dim, labels.num_classes, selection, target)
    rows, tables = DeviceFeatures(store, target), LabelTables(labels, full_labels, negatives_labels, target)
    ensembles = [HeadEnsemble.of(experiment, labels.num_classes) for experiment in experiments]
    results: dict[int, HeadResult] = {}
    epochs_of_all = sum(experiment.train.epochs for experiment in experiments)
    with progress_bar("linear heads", epochs_of_all, visible=progress) as advance:
        for (epochs, patience, k), members in _by_context(experiments).items():
            context = TrainingContext(rows, tables, epochs, k, target, choose_accelerator(target))
            for batch in _memory_batches(ensembles, members, context, memory_limit):
                groups = [HeadGroup([ensembles[i] for i in indices], context) for indices in batch]
                with _threads_for(groups):
                    _train_groups(groups, context, evaluator, patience, advance)
                for group, indices in zip(groups, batch, strict=True):
                    results.update(zip(indices, group.results(), strict=True))
    return [results[i] for i in range(len(experiments))]


def _check(store: Features, labels: Labels, experiments: Sequence[Experiment], validation: Any) -> None:
    if not isinstance(labels, Labels):
        raise InputError(f"labels must be Labels, as built by Labels.from_indices or from_matrix, not {type(labels)}")
    for experiment in experiments:
        if not isinstance(experiment, Experiment):
            raise InputError(f"experiments must be Experiments, such as Experiment.linear('an'), not {experiment!r}")
        if experiment.train.early_stopping is not None and validation is None:
            raise InputError("early_stopping needs validation: give features and their true labels")
    if not experiments:
        raise InputError("experiments is empty: pass at least one")
    if len(store) != len(labels):
        raise InputError(f"{len(store)} rows of features, but labels for {len(labels)} rows")
    store.check_finite()
    if validation is not None and isinstance(validation[1], Labels):
        labels.check_same_classes(validation[1], "validation")


def _by_context(experiments: Sequence[Experiment]) -> dict[tuple[int, int | None, float | None], list[int]]:
    """Indices of experiments, by the settings that heads must share to be trained together."""
    indices: dict[tuple[int, int | None, float | None], list[int]] = defaultdict(list)
    for i, experiment in enumerate(experiments):
        indices[experiment.train.epochs, experiment.train.early_stopping, experiment.k].append(i)
    return indices


def _memory_batches(
    ensembles: Sequence[HeadEnsemble], members: Sequence[int], context: TrainingContext, memory_limit: int
) -> Iterator[list[list[int]]]:
    """Yield memory batches: the groups of ensembles, as indices, that are trained at the same time.

    A group has one batch size and seed. On a CPU groups take turns, since one keeps it busy and its weights in the
    cache; on a GPU those with the same batch size share every step.
    """
    known: dict[tuple[str, str], int] = {}

    def bytes_of(i: int) -> int:
        key = ensembles[i].experiment.method_key
        if key not in known:
            known[key] = sum(_bytes_of_head(head, context) for head in ensembles[i].heads)
        return known[key]

    groups: dict[int, list[list[int]]] = defaultdict(list)
    batches_of = _batches_of(ensembles)
    for (batch_size, _), same_batches in itertools.groupby(sorted(members, key=batches_of), key=batches_of):
        groups[batch_size] += _packed(same_batches, bytes_of, memory_limit)
    for same_size in groups.values():
        limit = 0 if context.device.type == "cpu" else memory_limit
        yield from _packed(same_size, lambda group: sum(map(bytes_of, group)), limit)


def _packed(items: Iterable[T], bytes_of: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Yield consecutive items in lists that need at most `limit` bytes; an item that needs more is alone."""
    packed: list[T] = []
    used = 0
    for item in items:
        needed = bytes_of(item)
        if packed and used + needed > limit:
            yield packed
            packed, used = [], 0
        packed.append(item)
        used += needed
    if packed:
        yield packed


def _batches_of(ensembles: Sequence[HeadEnsemble]) -> Callable[[int], tuple[int, int]]:
    """What decides which batches an ensemble sees: batch size and seed."""
    return lambda i: (ensembles[i].experiment.train.batch_size, ensembles[i].experiment.train.seed)


def _bytes_of_head(head: Experiment, context: TrainingContext) -> int:
    """Memory of one head in training: weights and method state, their gradients, moments and best epoch."""
    method = context.method(head, (head.train.seed,))
    parameters = context.classes * (context.features.dim + 1) + sum(p.numel() for p in method.parameters())
    return 5 * 4 * parameters + 2 * sum(b.nbytes for b in method.buffers())


def _train_groups(
    groups: list[HeadGroup],
    context: TrainingContext,
    evaluator: Evaluator | None,
    patience: int | None,
    advance: Callable[..., None],
) -> None:
    """All epochs of groups with one batch size, step by step in parallel."""
    size = groups[0].batch_size
    for epoch in range(1, context.epochs + 1):
        active = [group for group in groups if not group.finished]
        for group in active:
            group.begin_epoch(epoch)
        done = 0
        if active and context.features.resident:
            done = context.accelerator.replay_epoch(active, context.clock(epoch, 0, size), context.rows)
        for start in range(done, context.rows, size):
            clock = context.clock(epoch, start // size, size)
            for group in active:
                if len(active) == 1:  # several groups take turns, each with its own order of rows
                    context.features.ahead(group.order[start + size : start + 2 * size])
                group.step(group.order[start : start + size], clock)
        for group in active:
            group.end_epoch(epoch, evaluator, patience)
        advance(sum(len(group.ensembles) for group in groups))


@contextmanager
def _threads_for(groups: list[HeadGroup]) -> Iterator[None]:
    """Use one CPU thread for small steps: more gain little, and wait long for each other on a busy machine."""
    threads = torch.get_num_threads()
    products = groups[0].weight.numel() * groups[0].batch_size
    torch.set_num_threads(1 if products < SMALL_STEP else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
