"""The contract of every loss: values of its oracle, exact and finite gradients, full precision, no synchronisation,
leading dimensions, equivariance, reductions, and clear errors."""

import doctest
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import spml.losses.module
from spml.errors import InputError
from spml.losses import LOSSES, Loss, loss
from spml.losses.contrastive import confident_entries
from spml.losses.module import NEED_NEGATIVES, ONLY_METHODS, settings_of
from spml.methods import METHODS
from support.loss_cases import CASES, ONE_PER_NAME, TABLES, Case, LabelledLogits, away_from_thresholds, to_torch

TORCH_2_6 = torch.__version__.startswith("2.6.")

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
every_name = pytest.mark.parametrize("case", ONE_PER_NAME, ids=lambda case: case.name)
every_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
SPECIAL_TABLE = next(table for table in TABLES if table.name == "special")
few_examples = settings(max_examples=12, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def as_arrays(value: Any) -> Any:
    """Convert tensors to float64 for the oracles, after rounding to the tested precision."""
    if isinstance(value, Tensor):
        return value.double().numpy()
    return [as_arrays(v) for v in value] if isinstance(value, list) else value


def a_batch(case: Case, rows: int = 4, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """A float64 batch with every kind of label, and the case's further inputs."""
    rng = np.random.RandomState(seed)
    logits = away_from_thresholds(2.0 * rng.standard_normal((rows, classes)))
    labels = torch.from_numpy(rng.choice([-1, 0, 0, 1], size=(rows, classes)))
    inputs = tuple(to_torch(value) for value in case.draw_inputs((rows, classes), seed))
    return to_torch(logits), labels, inputs


def test_every_named_loss_has_a_case() -> None:
    assert {case.name for case in CASES} | {"lac"} == set(LOSSES)  # LAC takes embeddings: test_losses_contrastive


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.float64, 1e-12, 1e-14), (torch.float32, 1e-5, 1e-6)], ids=["64", "32"]
)
@every_case
def test_values_equal_the_oracle(case: Case, dtype: torch.dtype, rtol: float, atol: float) -> None:
    compared = 0
    for table in TABLES:
        if table.logits.shape[1] < case.least_classes:
            continue
        logits, labels = to_torch(table.logits, dtype), torch.from_numpy(table.labels)
        inputs = [to_torch(value, dtype) for value in case.draw_inputs(table.logits.shape)]
        expected = case.expected(as_arrays(logits), table.labels, *map(as_arrays, inputs))
        entries = case.entries(logits, labels, *inputs)
        assert entries.shape == logits.shape
        assert entries.dtype == dtype
        np.testing.assert_allclose(
            as_arrays(case.comparable(entries)), expected, rtol=rtol, atol=atol, err_msg=table.name
        )
        compared += 1
    assert compared >= len(TABLES) - 2


@pytest.mark.parametrize("case", [c for c in CASES if c.exact_gradient], ids=lambda case: case.id)
def test_gradients_are_the_derivatives(case: Case) -> None:
    logits, labels, inputs = a_batch(case, rows=3, classes=4)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda g: case.entries(g, labels, *inputs), (logits,), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@every_case
def test_gradients_are_finite_at_any_logit(case: Case, dtype: torch.dtype) -> None:
    for label in (-1, 0, 1):
        logits = to_torch(SPECIAL_TABLE.logits, dtype).requires_grad_()
        labels = torch.full(logits.shape, label, dtype=torch.int8)
        inputs = [to_torch(value, dtype) for value in case.draw_inputs(tuple(logits.shape))]
        entries = case.entries(logits, labels, *inputs)
        (gradient,) = torch.autograd.grad(entries.sum(), logits)
        assert torch.isfinite(entries).all(), label
        assert torch.isfinite(gradient).all(), label
        assert gradient.dtype == dtype


@every_half
@every_case
def test_half_precision_is_computed_in_float32(case: Case, dtype: torch.dtype) -> None:
    logits, labels = to_torch(SPECIAL_TABLE.logits, dtype), torch.from_numpy(SPECIAL_TABLE.labels)
    inputs = [to_torch(value, dtype) for value in case.draw_inputs(tuple(logits.shape))]
    upcast = [i.float() if isinstance(i, Tensor) else i for i in inputs]
    if "parameters" in case.inputs:  # parameters keep their own precision: given in float32 to both
        inputs = upcast = [[parameter.float() for parameter in inputs[0]]]
    entries = case.entries(logits, labels, *inputs)
    assert entries.dtype == torch.float32
    assert_close(entries, case.entries(logits.float(), labels, *upcast), rtol=0, atol=0)


@every_name
def test_compiles_to_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    logits, labels, inputs = a_batch(case)
    compiled = torch.compile(case.entries, fullgraph=True, backend="aot_eager")
    outputs = []
    for function in (case.entries, compiled):
        leaf = logits.clone().requires_grad_()
        entries = function(leaf, labels, *inputs)
        outputs.append((entries.detach(), *torch.autograd.grad(entries.sum(), leaf)))
    assert_close(outputs[1], outputs[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "steps"), [("ll-r", range(1, 13)), ("ll-ct", range(1, 13)), ("gr", range(1, 13))])
def test_a_compiled_schedule_stays_one_graph_over_training(name: str, steps: Any) -> None:
    """An epoch that changes must not recompile until dynamo gives up, which fullgraph makes an error."""
    if name == "gr" and TORCH_2_6:
        pytest.skip("torch 2.6 gives up on the schedule of gr")
    torch._dynamo.reset()
    case = next(c for c in ONE_PER_NAME if c.name == name)
    logits, labels, _ = a_batch(case)
    compiled = torch.compile(LOSSES[name], fullgraph=True, backend="aot_eager")
    for step in steps:
        inputs = (step, 12) if name == "gr" else (step,)
        assert_close(compiled(logits, labels, *inputs), LOSSES[name](logits, labels, *inputs))


@every_case
def test_losses_do_not_synchronise_with_the_device(case: Case) -> None:
    """On fake tensors, which hold no data, reading a value or a data-dependent shape raises."""
    logits, labels, inputs = a_batch(case)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = [
            [mode.from_tensor(v) for v in i]
            if isinstance(i, list)
            else mode.from_tensor(i)
            if isinstance(i, Tensor)
            else i
            for i in (logits, labels, *inputs)
        ]
        fake[0].requires_grad_()
        entries = case.entries(*fake)
        (gradient,) = torch.autograd.grad(entries.mean(), fake[0])
    assert entries.shape == gradient.shape == logits.shape


def test_fake_tensors_detect_synchronisation() -> None:
    with FakeTensorMode() as mode, pytest.raises(Exception, match="nonzero"):
        confident_entries(mode.from_tensor(torch.zeros(2, 3)), mode.from_tensor(torch.zeros(2, 3)), 0.6)


@every_case
def test_leading_dimensions_are_separate_heads(case: Case) -> None:
    heads = [a_batch(case, seed=seed) for seed in range(3)]
    labels = heads[0][1]
    stacked_inputs = [
        torch.stack([head[2][i] for head in heads]) if isinstance(value, Tensor) else value
        for i, value in enumerate(heads[0][2])
    ]
    together = case.entries(torch.stack([head[0] for head in heads]), labels, *stacked_inputs)
    for h, (logits, _, inputs) in enumerate(heads):
        shared = [own if isinstance(own, Tensor) else given for own, given in zip(inputs, stacked_inputs, strict=True)]
        assert_close(together[h], case.entries(logits, labels, *shared), rtol=1e-14, atol=1e-14)
    deeper = case.entries(heads[0][0].expand(2, 3, *labels.shape), labels, *heads[0][2])
    assert_close(deeper[1, 2], case.entries(heads[0][0], labels, *heads[0][2]), rtol=1e-14, atol=1e-14)


@st.composite
def labelled_logits(draw: st.DrawFn) -> LabelledLogits:
    """Batches of 1 to 4 rows and 1 to 5 classes; logits all differ, so that large-loss selection has no ties."""
    rows, classes = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    size = rows * classes
    logits = draw(st.lists(st.integers(-160, 160), min_size=size, max_size=size, unique=True))
    labels = draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=size, max_size=size))
    return LabelledLogits(
        "drawn", np.array(logits).reshape(rows, classes) / 8 + 0.01, np.array(labels).reshape(rows, classes)
    )


def reordered(inputs: tuple[Any, ...], order: tuple[Any, ...]) -> list[Any]:
    return [value[order] if isinstance(value, Tensor) else value for value in inputs]


@every_name
@few_examples
@given(table=labelled_logits(), randomness=st.randoms(use_true_random=False))
def test_permuting_classes_and_rows_permutes_entries(case: Case, table: LabelledLogits, randomness: Any) -> None:
    rows, classes = table.logits.shape
    logits, labels = to_torch(table.logits), torch.from_numpy(table.labels)
    inputs = tuple(to_torch(value) for value in case.draw_inputs((rows, classes)))
    entries = case.entries(logits, labels, *inputs)
    row_order, class_order = list(range(rows)), list(range(classes))
    randomness.shuffle(row_order)
    randomness.shuffle(class_order)
    for order in ((row_order,), (slice(None), class_order)):
        moved = case.entries(logits[order], labels[order], *reordered(inputs, order))
        assert_close(moved, entries[order], rtol=1e-12, atol=1e-12)


@every_name
@few_examples
@given(table=labelled_logits())
def test_reductions_agree(case: Case, table: LabelledLogits) -> None:
    logits, labels = to_torch(table.logits), torch.from_numpy(table.labels)
    assume(case.settings.get("k", 0) <= logits.shape[-1])
    inputs = [to_torch(value) for value in case.draw_inputs(table.logits.shape)]
    if case.name in NEED_NEGATIVES:
        labels.view(-1)[0] = -1
    none, mean, total = (
        loss(case.name, reduction=reduction, **case.settings)(logits, labels, *inputs)
        for reduction in ("none", "mean", "sum")
    )
    assert_close(none, case.entries(logits, labels, *inputs), rtol=0, atol=0)
    assert_close(mean, total / logits.numel(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(float(total), none.numpy().sum(), rtol=1e-12, atol=1e-12)


@every_name
@few_examples
@given(table=labelled_logits())
def test_drawn_batches_equal_the_oracle(case: Case, table: LabelledLogits) -> None:
    logits, labels = to_torch(table.logits), torch.from_numpy(table.labels)
    drawn = case.draw_inputs(table.logits.shape)
    entries = case.entries(logits, labels, *[to_torch(value) for value in drawn])
    expected = case.expected(table.logits, table.labels, *drawn)
    np.testing.assert_allclose(as_arrays(case.comparable(entries)), expected, rtol=1e-12, atol=1e-13)


@every_case
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32], ids=str)
def test_labels_of_any_number_type(case: Case, dtype: torch.dtype) -> None:
    logits, labels, inputs = a_batch(case)
    assert_close(case.entries(logits, labels.to(dtype), *inputs), case.entries(logits, labels, *inputs))


@pytest.mark.parametrize("name", ["an", "wan", "em", "las", "lasd", "splc", "hill", "ll-r", "ll-ct", "gr"])
def test_verified_negatives_are_pushed_down(name: str) -> None:
    """However high it is predicted, its gradient pushes the logit down."""
    case = next(c for c in ONE_PER_NAME if c.name == name)
    logits = torch.tensor([[0.5, 2.3]], dtype=torch.float64, requires_grad=True)
    inputs = (2,) if name.startswith("ll") else case.inputs
    (gradient,) = torch.autograd.grad(case.entries(logits, torch.tensor([[-1, -1]]), *inputs).sum(), logits)
    assert (gradient > 0).all()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "nosuch"}, "No loss named 'nosuch'.*an-ls"),
        ({"name": "role"}, r"'role' is a method, not a loss.*spml\.method\('role'\)"),
        ({"name": "wan", "weight": 0.1}, "'wan' has no setting 'weight'.*negative_weight"),
        ({"name": "an", "epsilon": 0.1}, "'an' has no setting 'epsilon'.*none"),
        ({"name": "epr"}, "'epr' needs the setting k"),
        ({"name": "an", "reduction": "avg"}, "'none', 'mean' or 'sum', not 'avg'"),
    ],
)
def test_invalid_names_and_settings_raise(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Loss(**arguments)


def test_repr_shows_the_settings() -> None:
    assert repr(loss("epr", k=1.5, reduction="sum")) == "Loss('epr', reduction='sum', k=1.5)"


def test_docstring_examples_run() -> None:
    result = doctest.testmod(spml.losses.module)
    assert result.attempted >= 8
    assert result.failed == 0


@pytest.mark.parametrize("labels", [torch.zeros(4, dtype=torch.long), torch.zeros(4, 1), torch.zeros(3, 4)])
def test_labels_of_another_shape_raise(labels: Tensor) -> None:
    with pytest.raises(InputError, match=r"labels must have the shape of the logits, \(4, 4\)"):
        loss("an")(torch.zeros(4, 4), labels)
    assert loss("an")(torch.zeros(2, 4, 4), torch.ones(4, 4)) > 0  # many heads on the same labels


def test_settings_of_another_type_raise() -> None:
    with pytest.raises(InputError, match="loss 'em': entropy_weight must be a number, not 'big'"):
        loss("em", entropy_weight="big")


def test_help_lists_every_loss_with_inputs_and_settings() -> None:
    text = " ".join((loss.__doc__ or "").split())
    for name, function in LOSSES.items():
        settings = settings_of(function)
        inputs = [p for p in list(inspect.signature(function).parameters)[2:] if p not in settings]
        entry = text[text.index(f" - {name}{' [' + ', '.join(inputs) + ']' if inputs else ''}: ") + 3 :].split(" - ")[0]
        listed = entry.partition(" Examples ")[0].partition("; ")[2].split(", ") if settings else []
        assert listed == [s if p.default is p.empty else f"{s}={p.default}" for s, p in settings.items()], name


def test_names_that_exist_only_as_methods_are_complete() -> None:
    assert {name for name, cls in METHODS.items() if cls.__module__.startswith("spml.")} - set(LOSSES) == ONLY_METHODS


TWO_ROWS = torch.zeros(2, 3), torch.eye(3)[:2]


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("ll-r", {}, r"loss 'll-r' needs epoch at each step: criterion\(logits, labels, epoch=…\)"),
        ("gr", {}, "'gr' needs epoch, epochs"),
        ("splc", {}, "'splc' needs epoch"),
        ("plc", {}, "'plc' needs weak_logits"),
        ("em-apl", {}, "'em-apl' needs soft_labels"),
        ("em", {"epoch": 2}, r"'em' takes no input 'epoch' at each step: call criterion\(logits, labels\)"),
        ("gr", {"progress": 0.2}, "'gr' takes no input 'progress' at each step: call criterion.*epochs"),
    ],
)
def test_missing_and_unknown_inputs_are_named(name: str, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss(name)(torch.zeros(2, 3), torch.zeros(2, 3), **inputs)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("ll-r", (0,), "epoch counts from 1 to epochs, not 0: use for epoch in range"),
        ("ll-ct", (0,), "epoch counts from 1 to epochs, not 0"),
        ("splc", (-1,), "epoch counts from 1 to epochs, not -1"),
        ("gr", (0, 8), r"epoch counts from 1 to epochs \(8\), not 0"),
        ("gr", (9, 8), r"epoch counts from 1 to epochs \(8\), not 9"),
    ],
)
def test_epochs_that_do_not_count_from_1_are_errors(name: str, inputs: tuple[int, ...], message: str) -> None:
    named = dict(zip(("epoch", "epochs"), inputs, strict=False))
    for call in (lambda: loss(name)(*TWO_ROWS, *inputs), lambda: loss(name)(*TWO_ROWS, **named)):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("name", ["epr", "lasd"])
def test_k_above_the_number_of_classes_is_an_error(name: str) -> None:
    with pytest.raises(InputError, match=r"k, the average number of labels per row, must be at most 3, .* not 30"):
        loss(name, k=30)(*TWO_ROWS)
    assert loss(name, k=2)(*TWO_ROWS).isfinite()


@pytest.mark.parametrize("name", ["an", "em", "bce"])
@pytest.mark.parametrize("value", [float("nan"), 0.5, 2.0, -2.0])
def test_labels_outside_of_the_coding_are_errors(name: str, value: float) -> None:
    labels = torch.tensor([[1.0, 0.0, -1.0], [0.0, value, 0.0]])
    with pytest.raises(InputError, match=rf"labels must be \+1 .*, not {value}: replace NaN by 0"):
        loss(name)(torch.zeros(2, 3), labels)


@pytest.mark.parametrize("name", sorted(NEED_NEGATIVES))
def test_losses_on_known_labels_need_negatives(name: str) -> None:
    criterion, logits = loss(name), torch.zeros(2, 3)
    zero_one = torch.tensor([[1, 0, 0], [0, 1, 0]])
    for labels in (zero_one, zero_one.bool(), zero_one.float()):
        with pytest.raises(InputError, match=f"loss '{name}' needs negative labels, coded -1.*2 \\* labels - 1"):
            criterion(logits, labels)
    assert criterion(logits, 2 * zero_one - 1) > 0
    assert criterion(logits, zero_one) > 0  # a later batch may have no negatives by chance
    assert loss(name)(logits, torch.ones(2, 3)) > 0  # full labels, all of them positive
    assert loss("an")(logits, zero_one) > 0  # here 0 is unknown


def test_labels_on_a_device_are_read_at_the_first_call_only() -> None:
    if TORCH_2_6 and not torch.cuda.is_available():
        pytest.skip("torch 2.6 needs a GPU for tensors that pretend to be on one")
    criterion = loss("an")
    with FakeTensorMode() as mode:
        logits, labels = mode.from_tensor(torch.zeros(2, 3)).to("cuda"), mode.from_tensor(torch.ones(2, 3)).to("cuda")
        with pytest.raises(Exception, match="_local_scalar_dense"):
            criterion(logits, labels)
        criterion(logits, labels)
