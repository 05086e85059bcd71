"""What a compiled loss moves through memory: its inputs, twice, and the gradient."""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule, Node

from spml.losses import LOSSES
from support.loss_cases import ONE_A_NAME, Case, to_torch

SHAPE = (6, 5)
# Sums over a row or the batch, a selection from it, or parameters: not of single entries. DW is WAN, EntMin is EM.
LEFT_OUT = ("pr", "epr", "ll-r", "ll-ct", "annotator", "l1r", "l2r", "dw", "entmin")
OVER_ENTRIES = list({LOSSES[c.name]: c for c in ONE_A_NAME if c.name not in LEFT_OUT}.values())


def is_table(node: Any) -> bool:
    """Whether a node holds a number for every entry."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, Tensor) and prod(value.shape) == prod(SHAPE)


def forward_graph(step: Callable[..., Tensor], *arguments: Any) -> tuple[GraphModule, list[Node]]:
    """The graph of the forward pass, decomposed and cut from the backward pass as inductor does, and what it saves."""
    found = []

    def cut(joint: GraphModule, inputs: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
        options["compiler"] = "inductor"
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
        (results,) = next(node for node in forward.graph.nodes if node.op == "output").args
        found.append((forward, list(results[options["num_fwd_outputs"] :])))
        return forward, backward

    def as_it_is(graph: GraphModule, inputs: Any) -> GraphModule:
        return graph

    backend = aot_autograd(fw_compiler=as_it_is, partition_fn=cut, decompositions=select_decomp_table())
    torch._dynamo.reset()
    torch.compile(step, fullgraph=True, dynamic=False, backend=backend)(*arguments)
    ((forward, saved),) = found
    return forward, saved


def given_to(case: Case) -> tuple[Tensor, Tensor, list[Any]]:
    further = [to_torch(value, torch.float32) for value in case.draw_inputs(SHAPE)]
    return torch.zeros(SHAPE, requires_grad=True), torch.zeros(SHAPE, dtype=torch.int8), further


@pytest.mark.parametrize("case", OVER_ENTRIES, ids=lambda case: case.name)
def test_nothing_but_inputs_is_kept_between_the_passes_and_nothing_stored_before_the_mean(case: Case) -> None:
    logits, labels, further = given_to(case)
    forward, saved = forward_graph(lambda *given: case.entries(*given).mean(), logits, labels, *further)
    kept = [node.meta["val"].dtype for node in saved if is_table(node) and node.op != "placeholder"]
    # PLC keeps two masks of a byte, which spare its backward pass the weak view of four.
    assert kept == ([torch.bool] * 2 if case.name == "plc" else [])
    # Flat, a formula of any length is fused into the mean: see `over_entries`.
    computed = [node for node in forward.graph.nodes if is_table(node) and node.op == "call_function"]
    views = ("view", "reshape", "expand")
    assert all(node.meta["val"].dim() == 1 or any(view in node.name for view in views) for node in computed)
    assert len(computed) > 5


def test_what_is_kept_is_seen() -> None:
    _, saved = forward_graph(lambda g: g.cumsum(-1).square().mean(), torch.zeros(SHAPE, requires_grad=True))
    assert [node.meta["val"].dtype for node in saved if is_table(node) and node.op != "placeholder"] == [torch.float32]


@pytest.mark.parametrize("name", ["em-apl", "lasd", "gr"])
def test_compiled_labels_broadcast_over_leading_dimensions(name: str) -> None:
    torch._dynamo.reset()
    case = next(case for case in ONE_A_NAME if case.name == name)
    logits = torch.linspace(-4, 4, 2 * prod(SHAPE)).reshape(2, *SHAPE)
    labels = torch.arange(prod(SHAPE)).reshape(SHAPE) % 3 - 1
    _, _, further = given_to(case)
    entries = torch.compile(case.entries, fullgraph=True, backend="aot_eager")(logits, labels, *further)
    torch.testing.assert_close(entries, case.entries(logits, labels, *further), rtol=1e-5, atol=1e-6)
