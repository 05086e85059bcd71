"""The checks of the contract that look at a method's objective, state and cost.

Each raises AssertionError with a sentence that names the problem.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spml.labels import Labels
from spml.methods import Method
from spml.methods.memory import RowMemory
from spml.testing.tiny import (
    CLASSES,
    LATE,
    ROWS,
    MakeMethod,
    objective_of,
    prepared,
    tiny_examples,
    tiny_problem,
    warmed_up,
    with_negatives,
)


def check_form(make: MakeMethod) -> None:
    """The loss is one number with a gradient, the same for the same batch, and `end_epoch` is declared."""
    examples = tiny_examples(make())
    method = prepared(make, examples.labels)
    assert method.needs.epoch_predictions or type(method).end_epoch is Method.end_epoch, (
        f"{method.name} has an end_epoch that is never called: declare Needs(epoch_predictions=True)"
    )
    rows, values = torch.arange(4), []
    logits = 9 * torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(0))
    logits, before = logits.requires_grad_(), logits.clone()
    for _ in range(2):
        value: Any = objective_of(copy.deepcopy(method), logits, examples.labels.batch(rows), rows)
        assert isinstance(value, Tensor), f"{method.name} returns a {type(value).__name__} as its loss, not a tensor"
        assert value.shape == (), (
            f"{method.name} returns a loss of shape {tuple(value.shape)} for one head: it must be a scalar, such as "
            "the mean over the last two dimensions"
        )
        assert value.requires_grad, f"the loss of {method.name} has no gradient: it was detached from the logits"
        assert torch.equal(logits, before), f"{method.name} changes the logits it receives"
        values.append(value.detach())
    assert torch.equal(*values), f"{method.name} returns two losses for the same batch: it draws random numbers"


_LEVELS = (-2.0, -6.0, -6.0, 2.0, 6.0, 6.0)  # of the second of two equal calls, the state is that of the first
_OTHERS = -2.0  # logit of the unknown labels: most are predicted absent, as in training
_SMOOTHING = 0.2  # allowed against a label that is predicted right, relative to the force towards it elsewhere


def check_observed_labels(make: MakeMethod) -> None:
    """1. Observed labels never change, no positive predicted low is pushed down, no negative predicted high pulled up.

    Tested at logits of ±2 and ±6. At the logit where the prediction is right, the force against the label may be a
    fifth of the force towards it at the opposite logit: label smoothing pulls certain predictions back a little.
    """
    examples = with_negatives(tiny_examples(make()))
    method, before = warmed_up(make, examples), examples.labels.fingerprint()
    rows = torch.arange(8)
    labels = examples.labels.batch(rows)
    kept, towards = labels.clone(), dict[tuple[int, float], Tensor]()
    for level in _LEVELS:
        logits = torch.where(labels == 0, _OTHERS, level * labels.float()).requires_grad_()
        objective_of(method, logits, labels, rows).backward()
        assert torch.equal(labels, kept), f"{method.name} changed the labels of a batch"
        assert examples.labels.fingerprint() == before, f"{method.name} changed the training labels"
        assert logits.grad is not None
        for sign, problem in ((1, "pushes an observed positive down"), (-1, "pulls a verified negative up")):
            force = -sign * logits.grad[labels == sign]  # towards the label
            allowed = _SMOOTHING * towards[sign, -level] if level > 0 else torch.zeros_like(force)
            assert (force >= -allowed).all(), f"{method.name} {problem}, at a logit of {sign * level:g}"
            towards[sign, level] = force


def check_truth_closed(make: MakeMethod) -> None:
    """2. A method holds no labels except the observed ones."""
    method = make()
    examples = tiny_examples(method)
    problem = tiny_problem(method, examples.labels)
    reachable = [value for value in vars(problem).values() if isinstance(value, Labels)]
    assert reachable == [examples.labels], "the problem holds more labels than the observed ones"
    method.prepare(problem)
    held = [value for part in method.modules() for value in vars(part).values() if isinstance(value, Labels)]
    assert all(value is examples.labels for value in held), f"{method.name} holds labels it was not given"


def check_permutations(make: MakeMethod) -> None:
    """3. Permuting classes, or rows together with their memory, permutes the result."""
    examples = tiny_examples(make())
    method = warmed_up(make, examples)
    generator = torch.Generator().manual_seed(2)
    rows = torch.tensor([2, 9, 4, 0, 15])
    labels, logits = examples.labels.batch(rows), torch.randn(len(rows), CLASSES, generator=generator)

    def gradient(permuted: Method, logits: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        value = objective_of(copy.deepcopy(permuted), leaf, labels, rows)
        (slope,) = torch.autograd.grad(value, leaf)
        return value.detach(), slope

    def same(a: Tensor, b: Tensor, what: str) -> None:
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), f"{method.name} depends on the order of {what}"

    value, slope = gradient(method, logits, labels, rows)

    order = torch.randperm(CLASSES, generator=generator)
    permuted = copy.deepcopy(method)
    for tensor in [*permuted.parameters(), *permuted.buffers()]:
        if tensor.dim() and tensor.shape[-1] == CLASSES:
            tensor.data.copy_(tensor.data[..., order].clone())
    other_value, other_slope = gradient(permuted, logits[:, order], labels[:, order], rows)
    same(other_value, value, "classes")
    same(other_slope, slope[:, order], "classes")

    moved, place = copy.deepcopy(method), torch.randperm(ROWS, generator=generator)
    for part in moved.modules():
        if isinstance(part, RowMemory):
            part.values.data[place] = part.values.data.clone()
    other_value, other_slope = gradient(moved, logits, labels, place[rows])
    same(other_value, value, "rows")
    shuffle = torch.tensor([3, 1, 0, 4, 2])
    other_value, other_slope = gradient(method, logits[shuffle], labels[shuffle], rows[shuffle])
    same(other_slope, slope[shuffle], "the rows of a batch")


def check_extreme_logits(make: MakeMethod) -> None:
    """4. Values and gradients are finite at logits of ±1e4, even in half precision."""
    examples = tiny_examples(make())
    rows = torch.arange(6)
    labels = examples.labels.batch(rows)
    pattern = torch.tensor([1e4, -1e4, 0.0, 30.0, -30.0]).repeat(6, 4)[:, :CLASSES]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shift in range(5):
            method = warmed_up(make, examples)
            logits = pattern.roll(shift, -1).to(dtype).requires_grad_()
            value = objective_of(method, logits, labels, rows)
            value.backward()
            assert logits.grad is not None
            assert value.isfinite(), f"{method.name} is not finite at logits of ±1e4 in {dtype}"
            assert logits.grad.isfinite().all(), f"{method.name} has an infinite gradient at ±1e4 in {dtype}"


def check_odd_batches(make: MakeMethod) -> None:
    """7. A row without a positive, a class without examples and a batch of one all work."""
    examples = tiny_examples(make())
    for rows in (torch.tensor([3]), torch.tensor([0]), torch.tensor([3, 4])):
        method = warmed_up(make, examples)
        logits = torch.zeros(len(rows), CLASSES, requires_grad=True)
        value = objective_of(method, logits, examples.labels.batch(rows), rows)
        value.backward()
        assert logits.grad is not None
        finite = value.isfinite() and logits.grad.isfinite().all()
        what = "one of them without a positive" if 3 in rows else "a batch of one"
        assert finite, f"{method.name} or its gradient is not finite for rows {rows.tolist()}, {what}"


class _Work(TorchDispatchMode):
    """Count the elements that operations read and write; indexing operations read only the rows they select."""

    SOME_ROWS = ("index", "gather", "scatter", "embedding")  # prefixes of operation names
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


def check_cost(make: MakeMethod) -> None:
    """8. The cost of a step does not grow with the number of training rows, unless `needs` declares it."""
    if make().needs.grows_with_rows:
        return
    work = []
    for rows in (ROWS, 40 * ROWS):
        examples = tiny_examples(make(), rows)
        method = prepared(make, examples.labels)
        batch = torch.arange(4)
        logits = torch.zeros(4, CLASSES, requires_grad=True)
        labels = examples.labels.batch(batch)
        with _Work() as counted:
            objective_of(method, logits, labels, batch).backward()
            method.after_step(1e-3)
        work.append(counted.touched)
    assert work[0] == work[1], (
        f"a step of {make().name} reads or writes {work[0]} numbers for {ROWS} rows, {work[1]} for 40 times as many: "
        "avoid it, or declare Needs(grows_with_rows=True)"
    )


def check_memory(make: MakeMethod) -> None:
    """9. All state is saved with the run, and evaluation does not change it."""
    examples = tiny_examples(make())
    fresh, method = prepared(make, examples.labels), warmed_up(make, examples)
    for name, part in method.named_modules():
        before = vars(fresh.get_submodule(name)) if name in dict(fresh.named_modules()) else {}
        for attribute, value in vars(part).items():
            saved = not isinstance(value, Tensor | np.ndarray | dict | list) or attribute.startswith("_")
            assert saved or _equal(value, before.get(attribute)), (
                f"{method.name} keeps state in the plain attribute {attribute!r}, which is not saved with the run: use "
                "a RowMemory, or register_buffer"
            )
    method.eval()
    state = {name: value.clone() for name, value in method.state_dict().items()}
    rows = torch.arange(4, 8)
    logits = torch.full((4, CLASSES), 3.0, requires_grad=True)
    objective_of(method, logits, examples.labels.batch(rows), rows)
    for name, value in method.state_dict().items():
        assert _equal(value, state[name]), f"{method.name} changes {name!r} in evaluation: write it `if self.training`"


def _equal(a: Any, b: Any) -> bool:
    """Whether two values, lists or dictionaries hold the same numbers."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and np.array_equal(a, b)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and torch.allclose(a.double(), b.double(), 0, 0, True)
    if isinstance(a, dict | list):
        if type(a) is not type(b) or len(a) != len(b):
            return False
        keys = a if isinstance(a, dict) else range(len(a))
        return all((not isinstance(b, dict) or key in b) and _equal(a[key], b[key]) for key in keys)
    return True


def check_heads(make: MakeMethod) -> None:
    """10. Heads that are trained together have separate values and memories."""
    method = make()
    if type(method).objective is Method.objective or method.needs.head != "linear":
        return  # it is never trained on features
    examples = tiny_examples(method)
    rows = torch.arange(4)
    labels = examples.labels.batch(rows)
    logits = torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(0))
    results = []
    for other in (0.1, 40.0):
        method = make()
        method.prepare(tiny_problem(method, examples.labels, (0, 1)))
        for name, state in method.state_dict().items():
            assert state.shape[:1] == (2,), (
                f"{method.name} cannot train many heads: {name!r} has no dimension for heads (heads=problem.heads)"
            )
        method.train()
        for _ in range(2):
            leaf = torch.stack([logits, other * logits]).requires_grad_()
            value = method.objective(leaf, labels, rows, LATE)
            assert value.shape == (2,), (
                f"{method.name} returns values of shape {tuple(value.shape)} for two heads: reduce over the last two "
                "dimensions only, so that each head has its own value"
            )
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        results.append((value[0].detach(), slope[0]))
    for first, second in zip(*results, strict=True):
        assert torch.allclose(first, second, rtol=1e-4, atol=1e-6), (
            f"a head of {method.name} depends on the other heads: use the last two dimensions only"
        )


def check_splits(make: MakeMethod) -> None:
    """The objective is the mean over rows or entries that `needs.splits` declares."""
    method = make()
    if method.needs.splits is None:
        return
    examples = tiny_examples(method)
    method = prepared(make, examples.labels)
    rows = torch.arange(len(examples.labels))
    labels = examples.labels.batch(rows.numpy())
    logits = 2 * torch.randn(labels.shape, generator=torch.Generator().manual_seed(0))
    whole = objective_of(method, logits, labels, rows)
    parts = [objective_of(method, logits[[row]], labels[[row]], rows[[row]]) for row in rows.tolist()]
    if method.needs.splits == "entries":
        parts = [objective_of(method, logits[:, [c]], labels[:, [c]], rows) for c in range(labels.shape[1])]
    close = torch.allclose(torch.stack(parts).mean(), whole, rtol=1e-4, atol=1e-6)
    assert close, f"the objective of {method.name} is not a mean over {method.needs.splits}, as its needs declare"
