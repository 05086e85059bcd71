"""PLC and LAC: targets, Eq. 5 to 7 against their matrices written out, padding, and fixed capacity."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from spml.losses import assume_negative, loss
from spml.losses.contrastive import (
    confident_entries,
    label_aware_consistency,
    pseudo_label_consistency,
    supervised_contrast,
)
from support import loss_oracles as oracle

# PLC


def test_confident_predictions_are_targets_and_others_are_ignored() -> None:
    weak = torch.tensor([[3.0, 0.1, -3.0, 3.0, -3.0]])
    labels = torch.tensor([[0, 0, 0, -1, 1]])
    logits = torch.zeros(1, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(pseudo_label_consistency(logits, labels, weak).sum(), logits)
    assert gradient.tolist() == [[-0.5, 0.0, 0.5, 0.0, 0.0]]
    logits = torch.zeros(1, 5, requires_grad=True)
    entries = pseudo_label_consistency(logits, labels, weak, include_observed=True)
    (gradient,) = torch.autograd.grad(entries.sum(), logits)
    # What was observed is taught as observed, whatever the weak view says.
    assert gradient.tolist() == [[-0.5, 0.0, 0.5, 0.5, -0.5]]


def test_a_prediction_at_the_threshold_is_confident() -> None:
    """Eq. 4: p ≥ δ and p ≤ 1 - δ. At δ = 1/2 and p = 1/2 one of its two terms, not both."""
    labels, strong = torch.zeros(1, 3), torch.full((1, 3), 2.0, dtype=torch.float64)
    weak = torch.tensor([[0.0, 1e-300, -1e-300]], dtype=torch.float64)
    entries = pseudo_label_consistency(strong, labels, weak, threshold=0.5)
    assert_close(entries, assume_negative(strong, torch.tensor([[1, 1, -1]])), rtol=0, atol=0)


def test_no_gradient_reaches_the_weak_view() -> None:
    weak = torch.tensor([[3.0, -3.0]], requires_grad=True)
    strong = torch.zeros(1, 2, requires_grad=True)
    entries = pseudo_label_consistency(strong, torch.zeros(1, 2), weak)
    gradients = torch.autograd.grad(entries.sum(), (strong, weak), allow_unused=True)
    assert gradients[0] is not None
    assert gradients[1] is None


def test_a_confident_weak_view_equals_an_on_its_predictions() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 6, dtype=torch.float64, generator=generator)
    weak = 20.0 * torch.sign(torch.randn(5, 6, dtype=torch.float64, generator=generator))
    entries = pseudo_label_consistency(logits, torch.zeros(5, 6), weak, threshold=0.9)
    assert_close(entries, assume_negative(logits, (weak > 0).long()), rtol=1e-14, atol=1e-15)


# LAC


def unit(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def a_batch(seed: int, rows: int = 4, classes: int = 3, width: int = 5) -> dict[str, Any]:
    """Two views' embeddings, labels with one positive per row, weak predictions and a queue of five."""
    rng = np.random.RandomState(seed)
    labels = np.zeros((rows, classes), dtype=np.int64)
    labels[np.arange(rows), rng.randint(classes, size=rows)] = 1
    return {
        "anchors": unit(rng.standard_normal((rows, classes, width))),
        "keys": unit(rng.standard_normal((rows, classes, width))),
        "labels": labels,
        "weak_logits": 2.0 * rng.standard_normal((rows, classes)),
        "queue": (
            unit(rng.standard_normal((5, width))),
            rng.randint(classes, size=5),
            rng.choice([0.2, 0.95], size=5),
        ),
    }


def pseudo_labels(labels: NDArray[np.int64], weak_logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """p^w, 1 where observed ("we treat its pseudo label as 1"); a verified negative never takes part."""
    predicted = np.vectorize(oracle.p)(weak_logits)
    return np.where(labels == 1, 1.0, np.where(labels == -1, 0.0, predicted))


def published_mean(
    batch: dict[str, Any], threshold: float, temperature: float, with_queue: bool, capacity: int | None = None
) -> Tensor:
    """LAC as a method computes it: gather the entries that take part, and divide the anchors' sum by b·q."""
    anchors, keys = (torch.from_numpy(batch[view]) for view in ("anchors", "keys"))
    rows, classes, width = anchors.shape
    labels, weak = torch.from_numpy(batch["labels"]), torch.from_numpy(batch["weak_logits"])
    chosen, valid = confident_entries(labels, weak, threshold, capacity)
    key_rows, key_classes, key_valid = keys.reshape(-1, width)[chosen], chosen % classes, valid
    if with_queue:
        embeddings, queue_classes, predicted = (torch.from_numpy(part) for part in batch["queue"])
        key_rows = torch.cat([key_rows, embeddings])
        key_classes = torch.cat([key_classes, queue_classes])
        key_valid = torch.cat([valid, predicted >= threshold])
    costs = label_aware_consistency(
        anchors.reshape(-1, width)[chosen],
        chosen % classes,
        key_rows,
        key_classes,
        valid,
        key_valid,
        temperature=temperature,
    )
    return costs.sum() / (rows * classes)


@pytest.mark.parametrize("with_queue", [False, True], ids=["batch", "queue"])
@pytest.mark.parametrize(("threshold", "temperature"), [(0.6, 0.5), (0.9, 0.07)])
@pytest.mark.parametrize("seed", range(6))
def test_lac_is_eq_7_over_all_embeddings(seed: int, threshold: float, temperature: float, with_queue: bool) -> None:
    batch = a_batch(seed)
    if seed % 2:
        batch["labels"][0, 0] = -1
    expected = oracle.lac(
        batch["anchors"],
        batch["keys"],
        pseudo_labels(batch["labels"], batch["weak_logits"]),
        threshold,
        temperature,
        batch["queue"] if with_queue else None,
    )
    assert expected != 0
    for capacity in (None, batch["labels"].size, batch["labels"].size + 9):
        actual = published_mean(batch, threshold, temperature, with_queue, capacity)
        assert actual.item() == pytest.approx(expected, rel=1e-11)


def supervised_oracle(
    z: NDArray[np.float64], classes: NDArray[np.int64], valid: NDArray[np.bool_], temperature: float
) -> NDArray[np.float64]:
    """For every anchor the mean over its positives of -log(exp(z·z_p/τ) / Σ_{a ≠ anchor} exp(z·z_a/τ))."""
    costs = np.zeros(len(z))
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i and valid[a]]
        positives = [a for a in others if classes[a] == classes[i]]
        if valid[i] and positives:
            total = sum(np.exp(z[i] @ z[a] / temperature) for a in others)
            costs[i] = np.mean([-np.log(np.exp(z[i] @ z[a] / temperature) / total) for a in positives])
    return costs


@pytest.mark.parametrize("temperature", [0.5, 0.07])
def test_supervised_contrast_is_the_formula_of_the_authors_code(temperature: float) -> None:
    rng = np.random.RandomState(1)
    z, classes = unit(rng.standard_normal((12, 5))), rng.randint(4, size=12)
    classes[0] = 9  # the only one of its class
    valid = rng.uniform(size=12) < 0.8
    valid[:3] = True, True, False
    embeddings = torch.from_numpy(z).requires_grad_()
    inputs = (torch.from_numpy(classes), torch.from_numpy(valid))
    costs = supervised_contrast(embeddings, *inputs, temperature=temperature)
    expected = supervised_oracle(z, classes, valid, temperature)
    assert (expected > 0).sum() >= 5
    np.testing.assert_allclose(costs.detach().numpy(), expected, rtol=1e-11, atol=1e-13)
    (gradient,) = torch.autograd.grad(costs.sum(), embeddings)
    for entry in ((1, 0), (5, 3), (2, 2)):
        step = np.zeros_like(z)
        step[entry] = 1e-6
        up, down = (supervised_oracle(z + sign * step, classes, valid, temperature).sum() for sign in (1, -1))
        assert gradient[entry].item() == pytest.approx((up - down) / 2e-6, abs=1e-6)
    assert gradient[2].abs().sum() == 0  # not valid


def test_supervised_contrast_without_embeddings_is_zero() -> None:
    embeddings = torch.randn(4, 3, requires_grad=True)
    costs = supervised_contrast(embeddings, torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(costs.sum(), embeddings)
    assert costs.tolist() == [0.0] * 4
    assert gradient.abs().sum() == 0


def lac_inputs(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = np.random.RandomState(seed)
    anchors, keys = (torch.from_numpy(unit(rng.standard_normal((n, 4)))).to(dtype) for n in (5, 7))
    classes = [torch.from_numpy(rng.randint(3, size=n)) for n in (5, 7)]
    valid = [torch.tensor([True, True, False, True, True]), torch.tensor([True] * 5 + [False] * 2)]
    return [anchors, classes[0], keys, classes[1], *valid]


def test_invalid_padding_changes_nothing() -> None:
    anchors, anchor_classes, keys, key_classes, anchor_valid, key_valid = lac_inputs()
    padded = label_aware_consistency(anchors, anchor_classes, keys, key_classes, anchor_valid, key_valid)
    kept = label_aware_consistency(
        anchors[anchor_valid], anchor_classes[anchor_valid], keys[key_valid], key_classes[key_valid]
    )
    assert_close(padded[anchor_valid], kept, rtol=1e-14, atol=0)
    assert padded[~anchor_valid].tolist() == [0.0]
    garbage = keys.clone()
    garbage[~key_valid] = 1e4
    rest = (anchor_classes, garbage, key_classes, anchor_valid, key_valid)
    assert_close(label_aware_consistency(anchors, *rest), padded, rtol=0, atol=0)


@pytest.mark.parametrize("keys_valid", [True, False])
def test_an_anchor_without_other_classes_costs_nothing(keys_valid: bool) -> None:
    """All keys of its own class, or none that counts: the denominator is empty."""
    anchors, _, keys, *_ = lac_inputs()
    anchors.requires_grad_()
    keys.requires_grad_()
    same, key_same = torch.zeros(5, dtype=torch.long), torch.zeros(7, dtype=torch.long)
    valid = torch.full((7,), keys_valid)
    costs = label_aware_consistency(anchors, same, keys, key_same, None, valid)
    assert costs.tolist() == [0.0] * 5
    for gradient in torch.autograd.grad(costs.sum(), (anchors, keys)):
        assert (gradient == 0).all()


def test_empty_keys_and_anchors() -> None:
    anchors, classes, keys, key_classes, *_ = lac_inputs()
    assert label_aware_consistency(anchors, classes, keys[:0], key_classes[:0]).tolist() == [0.0] * 5
    assert label_aware_consistency(anchors[:0], classes[:0], keys, key_classes).shape == (0,)


def test_lac_gradients_are_the_derivatives() -> None:
    anchors, anchor_classes, keys, key_classes, anchor_valid, key_valid = lac_inputs()
    anchors.requires_grad_()
    keys.requires_grad_()

    def costs(a: Tensor, k: Tensor) -> Tensor:
        return label_aware_consistency(a, anchor_classes, k, key_classes, anchor_valid, key_valid)

    assert torch.autograd.gradcheck(costs, (anchors, keys))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_lac_is_finite_for_embeddings_that_are_not_normalised(dtype: torch.dtype) -> None:
    inputs = lac_inputs(dtype=dtype)
    anchors = (1e4 * inputs[0]).requires_grad_()
    keys = (1e2 * inputs[2]).requires_grad_()
    costs = label_aware_consistency(anchors, inputs[1], keys, *inputs[3:])
    assert costs.dtype == torch.float32
    assert torch.isfinite(costs).all()
    # float16 gradients end at 65504: the mean, which training takes, keeps the sum of such keys below that.
    for gradient in torch.autograd.grad(costs.mean() / 100, (anchors, keys)):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_lac_of_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    inputs = lac_inputs(dtype=dtype)
    upcast = [i.float() if i.is_floating_point() else i for i in inputs]
    assert_close(label_aware_consistency(*inputs), label_aware_consistency(*upcast), rtol=0, atol=0)


def test_lac_compiles_to_one_graph_without_synchronisation() -> None:
    torch._dynamo.reset()
    inputs = lac_inputs()
    inputs[0].requires_grad_()
    compiled = torch.compile(label_aware_consistency, fullgraph=True, backend="aot_eager")
    eager, graph = label_aware_consistency(*inputs), compiled(*inputs)
    assert_close(graph, eager, rtol=1e-12, atol=1e-14)
    assert_close(torch.autograd.grad(graph.sum(), inputs[0]), torch.autograd.grad(eager.sum(), inputs[0]))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(i) for i in inputs]
        assert label_aware_consistency(*fake).shape == eager.shape
        labels, weak = mode.from_tensor(torch.zeros(4, 5)), mode.from_tensor(torch.zeros(4, 5))
        chosen, valid = confident_entries(labels, weak, 0.6, capacity=7)
        assert chosen.shape == valid.shape == (7,)


@settings(max_examples=20, deadline=None, database=None)
@given(seed=st.integers(0, 999), randomness=st.randoms(use_true_random=False))
def test_lac_is_equivariant_to_anchors_and_invariant_to_keys_and_classes(seed: int, randomness: Any) -> None:
    anchors, anchor_classes, keys, key_classes, anchor_valid, key_valid = lac_inputs(seed)
    costs = label_aware_consistency(anchors, anchor_classes, keys, key_classes, anchor_valid, key_valid)
    a, k, names = ([*range(n)] for n in (len(anchors), len(keys), 3))
    for order in (a, k, names):
        randomness.shuffle(order)
    renamed = torch.tensor(names)
    moved = label_aware_consistency(
        anchors[a], renamed[anchor_classes][a], keys[k], renamed[key_classes][k], anchor_valid[a], key_valid[k]
    )
    assert_close(moved, costs[a], rtol=1e-12, atol=1e-12)


def test_lac_through_its_module() -> None:
    inputs = lac_inputs()
    module = loss("lac", reduction="sum", temperature=0.1)
    assert_close(module(*inputs), label_aware_consistency(*inputs, temperature=0.1).sum(), rtol=0, atol=0)


# which entries take part


@settings(max_examples=60, deadline=None, database=None)
@given(seed=st.integers(0, 10_000), threshold=st.sampled_from([0.3, 0.5, 0.6, 0.9]), capacity=st.integers(1, 20))
def test_capacity_keeps_the_most_confident(seed: int, threshold: float, capacity: int) -> None:
    rng = np.random.RandomState(seed)
    weak = rng.permutation(np.linspace(-4.0, 4.1, 12)).reshape(3, 4)
    labels = rng.choice([-1, 0, 0, 1], size=(3, 4))
    arguments = torch.from_numpy(labels), torch.from_numpy(weak), threshold
    everything, all_valid = confident_entries(*arguments)
    sure = pseudo_labels(labels, weak).ravel()
    assert everything.tolist() == [i for i in range(12) if sure[i] >= threshold]
    assert all_valid.all()
    chosen, valid = confident_entries(*arguments, capacity)
    assert chosen.shape == valid.shape == (min(capacity, 12),)
    kept = set(chosen[valid].tolist())
    assert len(kept) == valid.sum() == min(capacity, len(everything))
    assert kept <= set(everything.tolist())
    if capacity >= len(everything):
        assert kept == set(everything.tolist())
    else:
        left = set(everything.tolist()) - kept
        assert min(sure[i] for i in kept) >= max(sure[i] for i in left)
