"""The contract every method keeps, callable on a method of your own: `check_method(lambda: MyMethod())`.

Each check raises AssertionError with a sentence that says what was broken. They run on tiny data on the CPU.
"""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from spml.data.stores.features import FeatureStore
from spml.labels import Labels
from spml.methods import Batch, Clock, Method, Problem, method
from spml.methods.memory import RowMemory
from spml.models.feature_classifier import FeatureClassifier
from spml.train.distributed import GatheredOutputs
from spml.train.examples import Examples
from spml.train.settings import TrainSettings
from spml.train.trainer import Trainer

ROWS, CLASSES, WIDTH = 23, 17, 7  # no two alike, so that a dimension is known by its size

Make = Callable[[], Method]


class TinyNetwork(nn.Module):
    """Features to logits, label-wise embeddings and class maps: enough for any method, on anything."""

    def __init__(self, width: int = WIDTH, classes: int = CLASSES, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) / width**0.5)

        self.to_logits, self.bias = drawn(width, classes), nn.Parameter(torch.zeros(classes))
        self.to_embeddings, self.to_maps = drawn(width, classes * 128), drawn(width, classes * 9)
        self.classes = classes

    def forward(self, features: Tensor) -> GatheredOutputs:
        embeddings = (features @ self.to_embeddings).unflatten(-1, (self.classes, 128))
        maps = (features @ self.to_maps).unflatten(-1, (self.classes, 3, 3))
        return GatheredOutputs((features @ self.to_logits + self.bias, F.normalize(embeddings, dim=-1), maps))


def tiny_examples(made: Method, rows: int = ROWS) -> Examples:
    """Random features with the labels the method asks for; one row without a positive, one class nobody has."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(rows, WIDTH)).astype(np.float32)
    names = [f"class {i}" for i in range(CLASSES)]
    if made.needs.labels == "positives":
        single = draw.integers(0, CLASSES - 1, rows)
        single[3] = -1
        labels = Labels.from_indices(single, names)
    else:
        signed = np.where(draw.random((rows, CLASSES)) < 0.3, 1, -1)
        signed[:, -1] = -1
        signed[3] = -1
        if made.needs.labels == "negatives":
            signed[draw.random((rows, CLASSES)) < 0.3] = 0
        labels = Labels.from_matrix(signed, names, coding="signed")
    return Examples(FeatureStore(features), np.arange(rows), labels)


def _prepared(make: Make, labels: Labels) -> Method:
    made = make()
    made.prepare(_problem(made, labels))
    return made


def _problem(made: Method, labels: Labels, seeds: int | tuple[int, ...] = 0) -> Problem:
    """The task: features for a method that has an objective, except where it trains an ensemble on them."""
    features = type(made).objective is not Method.objective and not made.members(labels.num_classes)
    return Problem(labels, k=1.5, seeds=seeds, soft_labels=False, features=features)


def _objective(made: Method, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
    """The method's objective; of a method that has none its loss, with these logits for every view.

    What else a head gives then goes by row and class with the logits, and takes no part in their gradient.
    """
    if type(made).objective is not Method.objective:
        return made.objective(logits, labels, rows, clock)

    def model(view: Tensor) -> GatheredOutputs:
        seen = torch.sigmoid(view.detach().float())
        embeddings = F.normalize(seen[..., None] * torch.linspace(-1, 1, 128) + torch.linspace(1, 2, 128), dim=-1)
        return GatheredOutputs((view, embeddings, seen[..., None, None].expand(*seen.shape, 3, 3)))

    return made.loss(Batch(rows, labels, (logits,) * len(made.views)), model, clock)


def _late(epochs: int = 4) -> Clock:
    """A clock in the third epoch, where schedules and second stages have begun."""
    return Clock(epoch=3, epochs=epochs, step=9, steps=4 * epochs)


def _warmed(make: Make, examples: Examples) -> Method:
    """A method that has remembered something: a few steps and the end of an epoch lie behind it."""
    made = _prepared(make, examples.labels)
    made.train()
    generator = torch.Generator().manual_seed(1)
    for start in range(0, 12, 4):
        rows = torch.arange(start, start + 4)
        logits = torch.randn(4, CLASSES, generator=generator, requires_grad=True)
        _objective(made, logits, examples.labels.batch(rows), rows, _late()).backward()
        made.after_step(1e-2)
    made.zero_grad()
    if made.needs.epoch_predictions:
        made.end_epoch(torch.rand(len(examples.rows), CLASSES, generator=generator), _late())
    return made


def check_form(make: Make) -> None:
    """Its value is one number with a gradient, the same for the same batch; `end_epoch` is called if it is there."""
    examples = tiny_examples(make())
    made = _prepared(make, examples.labels)
    assert made.needs.epoch_predictions or type(made).end_epoch is Method.end_epoch, (
        f"{made.name} has an end_epoch that is never called: say Needs(epoch_predictions=True)"
    )
    rows, values = torch.arange(4), []
    logits = 9 * torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(0))
    logits, given = logits.requires_grad_(), logits.clone()
    for _ in range(2):
        value: Any = _objective(copy.deepcopy(made), logits, examples.labels.batch(rows), rows, _late())
        assert isinstance(value, Tensor), f"{made.name} gives a {type(value).__name__} as its loss, not a tensor"
        assert value.shape == (), (
            f"{made.name} gives numbers of shape {tuple(value.shape)} as its loss of one head: it must be one number, "
            "as the mean over the last two dimensions is"
        )
        assert value.requires_grad, f"the loss of {made.name} has no gradient: it was detached from the logits"
        assert torch.equal(logits, given), f"{made.name} changes the logits it is given"
        values.append(value.detach())
    assert torch.equal(*values), f"{made.name} gives two losses for the same batch: it draws random numbers"


def check_memory(make: Make) -> None:
    """9. What is remembered is saved with the run, and evaluation changes nothing of it."""
    examples = tiny_examples(make())
    fresh, made = _prepared(make, examples.labels), _warmed(make, examples)
    for name, part in made.named_modules():
        before = vars(fresh.get_submodule(name)) if name in dict(fresh.named_modules()) else {}
        for attribute, value in vars(part).items():
            kept = not isinstance(value, Tensor | np.ndarray | dict | list) or attribute.startswith("_")
            assert kept or _alike(value, before.get(attribute)), (
                f"{made.name} remembers {attribute!r} in a plain attribute, which is not saved with the run: use a "
                "RowMemory, or register_buffer"
            )
    made.eval()
    state = {name: value.clone() for name, value in made.state_dict().items()}
    rows = torch.arange(4, 8)
    logits = torch.full((4, CLASSES), 3.0, requires_grad=True)
    _objective(made, logits, examples.labels.batch(rows), rows, _late())
    for name, value in made.state_dict().items():
        assert _alike(value, state[name]), f"{made.name} changes {name!r} in evaluation: write it `if self.training`"


def _alike(a: Any, b: Any) -> bool:
    """Whether two values, or all of two lists or tables of them, are the same numbers."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and torch.allclose(a.double(), b.double(), 0, 0, True)
    if isinstance(a, dict | list):
        if type(a) is not type(b) or len(a) != len(b):
            return False
        keys = a if isinstance(a, dict) else range(len(a))
        return all((not isinstance(b, dict) or key in b) and _alike(a[key], b[key]) for key in keys)
    return True


def check_heads(make: Make) -> None:
    """10. Of heads that learn side by side each has its own value and memory, whatever the others do."""
    made = make()
    if type(made).objective is Method.objective or made.needs.head != "linear":
        return  # it is never trained on features
    examples = tiny_examples(made)
    rows = torch.arange(4)
    labels = examples.labels.batch(rows)
    logits = torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(0))
    found = []
    for other in (0.1, 40.0):
        made = make()
        made.prepare(_problem(made, examples.labels, (0, 1)))
        for name, state in made.state_dict().items():
            assert state.shape[:1] == (2,), (
                f"{made.name} cannot learn with many heads: its {name!r} is not one a head (heads=problem.heads)"
            )
        made.train()
        for _ in range(2):
            leaf = torch.stack([logits, other * logits]).requires_grad_()
            value = made.objective(leaf, labels, rows, _late())
            assert value.shape == (2,), (
                f"{made.name} gives numbers of shape {tuple(value.shape)} for two heads: take means and sums over the "
                "last two dimensions, so that each head has its own"
            )
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        found.append((value[0].detach(), slope[0]))
    for one, beside in zip(*found, strict=True):
        assert torch.allclose(one, beside, rtol=1e-4, atol=1e-6), (
            f"a head of {made.name} depends on those that learn beside it: look at the last two dimensions only"
        )


def check_observed_labels(make: Make) -> None:
    """1. Observed labels never change, and no memory turns one around."""
    examples = tiny_examples(make())
    made, before = _warmed(make, examples), examples.labels.fingerprint()
    rows = torch.arange(8)
    labels = examples.labels.batch(rows)
    kept = labels.clone()
    for level in (-2.0, -6.0, -6.0):  # the last time with what it remembers of the one before
        logits = torch.full((8, CLASSES), level, requires_grad=True)
        _objective(made, logits, labels, rows, _late()).backward()
        assert torch.equal(labels, kept), f"{made.name} changed the labels of a batch"
        assert examples.labels.fingerprint() == before, f"{made.name} changed the table of labels"
        assert logits.grad is not None
        assert (logits.grad[labels > 0] <= 0).all(), f"{made.name} pushes an observed positive down"


def check_permutations(make: Make) -> None:
    """3. Permuting classes, or rows together with their memory, permutes the result."""
    examples = tiny_examples(make())
    made = _warmed(make, examples)
    generator = torch.Generator().manual_seed(2)
    rows = torch.tensor([2, 9, 4, 0, 15])
    labels, logits = examples.labels.batch(rows), torch.randn(len(rows), CLASSES, generator=generator)

    def gradient(method_: Method, logits: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        value = _objective(copy.deepcopy(method_), leaf, labels, rows, _late())
        (slope,) = torch.autograd.grad(value, leaf)
        return value.detach(), slope

    def same(a: Tensor, b: Tensor, what: str) -> None:
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), f"{made.name} depends on the order of {what}"

    value, slope = gradient(made, logits, labels, rows)

    order = torch.randperm(CLASSES, generator=generator)
    permuted = copy.deepcopy(made)
    for tensor in [*permuted.parameters(), *permuted.buffers()]:
        if tensor.dim() and tensor.shape[-1] == CLASSES:
            tensor.data.copy_(tensor.data[..., order].clone())
    other_value, other_slope = gradient(permuted, logits[:, order], labels[:, order], rows)
    same(other_value, value, "classes")
    same(other_slope, slope[:, order], "classes")

    moved, place = copy.deepcopy(made), torch.randperm(ROWS, generator=generator)
    for part in moved.modules():
        if isinstance(part, RowMemory):
            part.values.data[place] = part.values.data.clone()
    other_value, other_slope = gradient(moved, logits, labels, place[rows])
    same(other_value, value, "rows")
    shuffle = torch.tensor([3, 1, 0, 4, 2])
    other_value, other_slope = gradient(made, logits[shuffle], labels[shuffle], rows[shuffle])
    same(other_slope, slope[shuffle], "a batch's rows")


def check_extreme_logits(make: Make) -> None:
    """4. Values and gradients are finite at logits of ±1e4, in half precision too."""
    examples = tiny_examples(make())
    rows = torch.arange(6)
    labels = examples.labels.batch(rows)
    pattern = torch.tensor([1e4, -1e4, 0.0, 30.0, -30.0]).repeat(6, 4)[:, :CLASSES]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shift in range(5):
            made = _warmed(make, examples)
            logits = pattern.roll(shift, -1).to(dtype).requires_grad_()
            value = _objective(made, logits, labels, rows, _late())
            value.backward()
            assert logits.grad is not None
            assert value.isfinite(), f"{made.name} is not finite at logits of ±1e4 in {dtype}"
            assert logits.grad.isfinite().all(), f"{made.name} has an infinite gradient at ±1e4 in {dtype}"


def check_odd_batches(make: Make) -> None:
    """7. A row without any positive, a class nobody has, a batch of one: all work."""
    examples = tiny_examples(make())
    for rows in (torch.tensor([3]), torch.tensor([0]), torch.tensor([3, 4])):
        made = _warmed(make, examples)
        logits = torch.zeros(len(rows), CLASSES, requires_grad=True)
        value = _objective(made, logits, examples.labels.batch(rows), rows, _late())
        value.backward()
        assert logits.grad is not None
        finite = value.isfinite() and logits.grad.isfinite().all()
        what = "one of them without a positive" if 3 in rows else "a batch of one"
        assert finite, f"{made.name} or its gradient is not finite for rows {rows.tolist()}, {what}"


class _Work(TorchDispatchMode):
    """Counts the elements that operations read and write; those that take some rows of a tensor read no others."""

    SOME_ROWS = ("index", "gather", "scatter", "embedding")  # as the names of such operations begin
    NOTHING_READ = ("empty", "new_", "zeros", "ones", "full")

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        name = func._schema.name.partition("::")[2]
        if not func._schema.is_mutable:
            self.touched += _elements(result)
        if not name.startswith((*self.SOME_ROWS, *self.NOTHING_READ)):
            self.touched += sum(_elements(value) for value in args)
        return result


def _elements(value: Any) -> int:
    if isinstance(value, tuple | list):
        return sum(_elements(each) for each in value)
    return value.numel() if isinstance(value, Tensor) else 0


def check_cost(make: Make) -> None:
    """8. The cost of a step does not grow with the number of training rows, unless the method says so."""
    if make().needs.grows_with_rows:
        return
    work = []
    for rows in (ROWS, 40 * ROWS):
        examples = tiny_examples(make(), rows)
        made = _prepared(make, examples.labels)
        batch = torch.arange(4)
        logits = torch.zeros(4, CLASSES, requires_grad=True)
        labels = examples.labels.batch(batch)
        with _Work() as counted:
            _objective(made, logits, labels, batch, _late()).backward()
            made.after_step(1e-3)
        work.append(counted.touched)
    assert work[0] == work[1], (
        f"a step of {make().name} reads or writes {work[0]} numbers for {ROWS} rows, {work[1]} for 40 times as many: "
        "if that must be, say Needs(grows_with_rows=True)"
    )


class _Stopped(Exception):
    """Raised in the middle of a run to end it as a kill would."""


class _StoppingStore:
    """A store that ends the run when it has served a number of batches."""

    def __init__(self, store: FeatureStore, batches: int) -> None:
        self.store, self.left = store, batches

    def __len__(self) -> int:
        return len(self.store)

    def batch(self, rows: Any) -> Tensor:
        if self.left == 0:
            raise _Stopped
        self.left -= 1
        return self.store.batch(rows)


def tiny_run(make: Make, folder: Path, batches: int | None = None, checkpoint_seconds: float = 60.0) -> Trainer:
    """A run of three epochs on tiny data; with `batches` it breaks off after so many."""
    made = make()
    examples = tiny_examples(made)
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
    shares = [member.share for member in made.members(CLASSES)]
    torch.manual_seed(settings.seed)
    network = FeatureClassifier(WIDTH, CLASSES, shares) if shares else TinyNetwork()
    return Trainer(folder, network, made, examples, examples, settings, k=1.5, device="cpu", progress=False)


def run_bytes(folder: Path) -> dict[str, bytes]:
    """The files a finished run is judged by."""
    return {name: (folder / name).read_bytes() for name in ("last.safetensors", "best.safetensors")}


def check_resume(make: Make, stops: tuple[int, ...] = (1, 4, 8, 15)) -> None:
    """5. A run broken off and resumed ends with the very bytes of the run that was not."""
    with tempfile.TemporaryDirectory() as temporary:
        whole, broken = Path(temporary, "whole"), Path(temporary, "broken")
        tiny_run(make, whole).fit()
        for stop in stops:
            try:
                tiny_run(make, broken, stop, checkpoint_seconds=0.0).fit()
            except _Stopped:
                continue
        tiny_run(make, broken, checkpoint_seconds=0.0).fit()
        assert run_bytes(whole) == run_bytes(broken), f"{make().name} does not resume to the same bytes"


def check_truth_closed(make: Make) -> None:
    """2. True labels cannot be read during training: what a method is given holds none."""
    made = make()
    examples = tiny_examples(made)
    problem = _problem(made, examples.labels)
    reachable = {name: value for name, value in vars(problem).items() if isinstance(value, Labels)}
    assert list(reachable.values()) == [examples.labels], "a problem holds more labels than the observed ones"
    made.prepare(problem)
    held = [value for part in made.modules() for value in vars(part).values() if isinstance(value, Labels)]
    assert all(value is examples.labels for value in held), f"{made.name} holds labels it was not given"


def check_splits(make: Make) -> None:
    """What `needs.splits` says: the objective is the mean of itself over rows, or over single columns."""
    made = make()
    if made.needs.splits is None:
        return
    examples = tiny_examples(made)
    made = _prepared(make, examples.labels)
    rows = torch.arange(len(examples.labels))
    labels = examples.labels.batch(rows.numpy())
    logits = 2 * torch.randn(labels.shape, generator=torch.Generator().manual_seed(0))
    whole = _objective(made, logits, labels, rows, _late())
    parts = [_objective(made, logits[[row]], labels[[row]], rows[[row]], _late()) for row in rows.tolist()]
    if made.needs.splits == "entries":
        columns = range(labels.shape[1])
        parts = [_objective(made, logits[:, [c]], labels[:, [c]], rows, _late()) for c in columns]
    close = torch.allclose(torch.stack(parts).mean(), whole, rtol=1e-4, atol=1e-6)
    assert close, f"the objective of {made.name} is no mean over {made.needs.splits}"


def check_method(make: Make | Method | str) -> None:
    """All contracts but the one that needs two processes (6: see `check_two_processes`)."""
    if isinstance(make, str):
        name = make
        make = lambda: method(name)  # noqa: E731
    elif isinstance(make, Method):
        given = make
        make = lambda: copy.deepcopy(given)  # noqa: E731
    check_form(make)
    check_memory(make)
    check_observed_labels(make)
    check_truth_closed(make)
    check_permutations(make)
    check_extreme_logits(make)
    check_resume(make)
    check_odd_batches(make)
    check_cost(make)
    check_heads(make)
    check_splits(make)


def check_two_processes(names: list[str]) -> None:
    """6. Two processes compute what one computes, for every named method; the processes are started once."""
    with tempfile.TemporaryDirectory() as temporary:
        torch.multiprocessing.spawn(_one_of_two, (names, temporary), nprocs=2)  # type: ignore[attr-defined]
        for name in names:
            alone, together = Path(temporary, "alone", name), Path(temporary, "together", name)
            tiny_run(lambda name=name: method(name), alone).fit()  # type: ignore[misc]
            _same_weights(name, alone, together)


def _one_of_two(rank: int, names: list[str], temporary: str) -> None:
    import os

    from spml.train.distributed import end_process

    torch.set_num_threads(1)
    os.environ.update(WORLD_SIZE="2", RANK=str(rank))
    # They meet at a file: a port may be taken.
    torch.distributed.init_process_group("gloo", f"file://{temporary}/meeting", rank=rank, world_size=2)
    for name in names:
        tiny_run(lambda name=name: method(name), Path(temporary, "together", name)).fit()  # type: ignore[misc]
    end_process()


def _same_weights(name: str, alone: Path, together: Path) -> None:
    from spml.runs.files import read_tensors

    ones, twos = read_tensors(alone / "last.safetensors")[0], read_tensors(together / "last.safetensors")[0]
    for key, value in ones.items():
        # A sum in another order may round a 16-bit number the other way.
        tolerance = 4e-3 if value.dtype in (torch.float16, torch.bfloat16) else 1e-4
        close = torch.allclose(value.double(), twos[key].double(), rtol=tolerance, atol=tolerance / 10, equal_nan=True)
        assert close, f"{name}: {key} differs between one process and two"
