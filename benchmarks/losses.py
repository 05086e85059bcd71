"""Forward and backward of every loss over entries, compiled, against the formula on probabilities one would write.

    python benchmarks/losses.py                      # 65,536 rows × 1,000 classes on the GPU
    python benchmarks/losses.py --device cpu --rows 64 --classes 20 --repeat 3 --losses an em

A step is the mean of the entries and its gradient. The least a step moves: the forward pass reads logits (4 bytes)
and labels (1), the backward pass reads both again and writes the gradient (4), 14 bytes an entry; a further float32
input is read twice, 8 more. The last column is that number over the time taken, as a share of the bandwidth (bytes
read and written) that a large copy reaches on the same device in the same run.

A share marked * belongs to a loss that is not elementwise, and nothing is asked of it: LL-R and LL-Ct select from the
whole batch, EPR needs a sum over the batch before its entries and so reads the logits once more, and the annotator's
likelihood sums every row sixteen times. LAC, which is no loss over entries, and L1R and L2R, which are AN and a norm
of the parameters, are left out.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from record import record
from spml.losses import LOSSES

SEED = 0
EPSILON = 1e-7
IN_FLIGHT = 10  # steps between two readings of the GPU's clock: launching one overlaps with running another
Step = Callable[..., Tensor]


# What one would write instead: probabilities, float masks, and a logarithm kept finite by an epsilon.


def log(probability: Tensor) -> Tensor:
    return torch.log(probability + EPSILON)


def masks(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """1 where positive, where negative, where unknown."""
    return (labels == 1).float(), (labels == -1).float(), (labels == 0).float()


def bce(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, negative, _) = torch.sigmoid(logits), masks(labels)
    return -(positive * log(p) + negative * log(1 - p)).mean()


def bce_ls(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, negative, _) = torch.sigmoid(logits), masks(labels)
    present, absent = 0.95 * positive + 0.05 * negative, 0.05 * positive + 0.95 * negative
    return -(present * log(p) + absent * log(1 - p)).mean()


def an(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, _, _) = torch.sigmoid(logits), masks(labels)
    return -(positive * log(p) + (1 - positive) * log(1 - p)).mean()


def an_ls(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, _, _) = torch.sigmoid(logits), masks(labels)
    target = 0.95 * positive + 0.05 * (1 - positive)
    return -(target * log(p) + (1 - target) * log(1 - p)).mean()


def weighted_an(logits: Tensor, labels: Tensor, weight: float) -> Tensor:
    p, (positive, negative, unknown) = torch.sigmoid(logits), masks(labels)
    return -(positive * log(p) + (negative + weight * unknown) * log(1 - p)).mean()


def wan(logits: Tensor, labels: Tensor) -> Tensor:
    return weighted_an(logits, labels, 1 / (logits.shape[-1] - 1))


def dw(logits: Tensor, labels: Tensor) -> Tensor:
    return weighted_an(logits, labels, 0.1)


def n_ls(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, _, unknown) = torch.sigmoid(logits), masks(labels)
    target = positive + 0.15 * unknown
    return -(target * log(p) + (1 - target) * log(1 - p)).mean()


def pr(logits: Tensor, labels: Tensor) -> Tensor:
    """For rows with one positive, where the double sum is a single one; the L × L table would not fit."""
    p, (positive, _, _) = torch.sigmoid(logits), masks(labels)
    observed = (p * positive).sum(-1, keepdim=True)
    return ((1 - observed + p).clamp(min=0) * (1 - positive)).mean()


def epr(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, negative, _) = torch.sigmoid(logits), masks(labels)
    known = -(positive * log(p) + negative * log(1 - p)).sum(-1).mean()
    return known + ((p.sum(-1).mean() - 2.9) / logits.shape[-1]) ** 2


def signed_entropy(logits: Tensor, labels: Tensor, weight: float) -> Tensor:
    p, (positive, negative, unknown) = torch.sigmoid(logits), masks(labels)
    entropy = -(p * log(p) + (1 - p) * log(1 - p))
    return -(positive * log(p) + negative * log(1 - p) + weight * unknown * entropy).mean()


def em(logits: Tensor, labels: Tensor) -> Tensor:
    return signed_entropy(logits, labels, 0.2)


def entmin(logits: Tensor, labels: Tensor) -> Tensor:
    return signed_entropy(logits, labels, -0.01)


def em_apl(logits: Tensor, labels: Tensor, soft_labels: Tensor) -> Tensor:
    p, (positive, negative, unknown) = torch.sigmoid(logits), masks(labels)
    given = (~torch.isnan(soft_labels)).float()
    soft = torch.nan_to_num(soft_labels)
    entropy = -(p * log(p) + (1 - p) * log(1 - p))
    known = positive * log(p) + negative * log(1 - p)
    taught = 0.02 * given * (soft * log(p) + (1 - soft) * log(1 - p))
    return -(known + unknown * (taught + 0.2 * (1 - given) * entropy)).mean()


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, _, _) = torch.sigmoid(logits), masks(labels)
    return -(positive * (1 - p) ** 2 * log(p) + (1 - positive) * p**2 * log(1 - p)).mean()


def asl(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, _, _) = torch.sigmoid(logits), masks(labels)
    shifted = (p - 0.05).clamp(min=0)
    return -(positive * log(p) + (1 - positive) * shifted**4 * log(1 - shifted)).mean()


def las(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, negative, unknown) = torch.sigmoid(logits), masks(labels)
    return -(positive * log(p) + (negative + 0.05 * unknown) * p**4 * log(1 - p)).mean()


def lasd(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, negative, unknown) = torch.sigmoid(logits), masks(labels)
    sure = (p > 0.9).float() * unknown
    leverage = 1 / (logits.shape[-1] - 1)
    absent = (negative + leverage * (unknown - sure)) * p**4 * log(1 - p)
    return -((positive + 0.1 * sure) * log(p) + absent).mean()


def suspect(cost: Tensor, labels: Tensor) -> Tensor:
    """A mask of the 0.2 % largest unknown entries, by the smallest of them."""
    count = math.ceil(cost.numel() * 0.2 / 100)
    candidates = torch.where(labels == 0, cost.detach(), -1.0)
    return (candidates >= torch.topk(candidates.flatten(), count).values[-1]).float()


def ll_r(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, _, _) = torch.sigmoid(logits), masks(labels)
    cost = -(positive * log(p) + (1 - positive) * log(1 - p))
    return (cost * (1 - suspect(cost, labels))).mean()


def ll_ct(logits: Tensor, labels: Tensor) -> Tensor:
    p, (positive, _, _) = torch.sigmoid(logits), masks(labels)
    cost = -(positive * log(p) + (1 - positive) * log(1 - p))
    flipped = suspect(cost, labels)
    return (cost * (1 - flipped) - flipped * log(p)).mean()


def splc(logits: Tensor, labels: Tensor) -> Tensor:
    positive, _, unknown = masks(labels)
    p = torch.sigmoid(logits - positive)
    target = positive + unknown * (p > 0.6).float()
    return -(target * (1 - p) ** 2 * log(p) + (1 - target) * p**2 * log(1 - p)).mean()


def hill(logits: Tensor, labels: Tensor) -> Tensor:
    positive, _, _ = masks(labels)
    p, below = torch.sigmoid(logits), torch.sigmoid(logits - 1)
    return (-positive * (1 - below) ** 2 * log(below) + (1 - positive) * (1.5 - p) * p**2).mean()


def gr(logits: Tensor, labels: Tensor) -> Tensor:
    """Halfway through training: w 1, b -2, μ 0.65, σ 1.25."""
    p, (positive, negative, unknown) = torch.sigmoid(logits), masks(labels)
    fixed = p.detach()
    belief = torch.sigmoid(fixed - 2)
    weight = torch.exp(-((fixed - 0.65) ** 2) / (2 * 1.25**2))
    doubt = weight * (belief * (1 - (p + EPSILON) ** 0.01) / 0.01 + (1 - belief) * p)
    return (-positive * log(p) + negative * p + unknown * doubt).mean()


def annotator(logits: Tensor, labels: Tensor) -> Tensor:
    """For rows with one positive: -log p - log ∫ Π (1 - p_j (1 - t)) dt over the unknown labels, by Gauss–Legendre."""
    p, (positive, _, unknown) = torch.sigmoid(logits), masks(labels)
    chance = torch.zeros_like(p[:, 0])
    for x, mass in zip(*np.polynomial.legendre.leggauss(16), strict=True):
        u = float(x + 1) / 2  # 1 - t = u²
        chance = chance + float(mass) * u * torch.exp((unknown * log(1 - p * u**2)).sum(-1))
    return -((positive * log(p)).sum(-1) + torch.log(chance)).mean() / logits.shape[-1]


def plc(logits: Tensor, labels: Tensor, weak_logits: Tensor) -> Tensor:
    p, weak, (_, _, unknown) = torch.sigmoid(logits), torch.sigmoid(weak_logits), masks(labels)
    present, absent = (weak >= 0.6).float(), (weak <= 0.4).float()
    return -(unknown * (present * log(p) + absent * log(1 - p))).mean()


@dataclass(frozen=True)
class Contest:
    """A formula, and what our function is given to compute the same."""

    formula: Step
    tables: tuple[str, ...] = ()  # float32 inputs beside the logits, given to both sides
    constants: tuple[float, ...] = ()  # an epoch or a progress, written into the formula
    settings: dict[str, Any] = field(default_factory=dict)
    elementwise: bool = True

    @property
    def bytes_an_entry(self) -> int:
        return 14 + 8 * len(self.tables)


CONTESTS = {
    "bce": Contest(bce),
    "bce-ls": Contest(bce_ls),
    "an": Contest(an),
    "an-ls": Contest(an_ls),
    "wan": Contest(wan),
    "dw": Contest(dw),
    "n-ls": Contest(n_ls),
    "pr": Contest(pr),
    "epr": Contest(epr, settings={"k": 2.9}, elementwise=False),
    "em": Contest(em),
    "em-apl": Contest(em_apl, ("soft",)),
    "entmin": Contest(entmin),
    "focal": Contest(focal),
    "asl": Contest(asl),
    "las": Contest(las),
    "lasd": Contest(lasd),
    "ll-r": Contest(ll_r, constants=(2,), elementwise=False),
    "ll-ct": Contest(ll_ct, constants=(2,), elementwise=False),
    "splc": Contest(splc, constants=(2,)),
    "hill": Contest(hill),
    "gr": Contest(gr, constants=(0.5,)),
    "plc": Contest(plc, ("weak",)),
    "annotator": Contest(annotator, elementwise=False),
}


def draw(rows: int, classes: int, device: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logits about zero, one positive a row, and the tables some losses read beside them."""
    generator = torch.Generator(device).manual_seed(SEED)
    shape = (rows, classes)
    logits = 2 * torch.randn(shape, device=device, generator=generator)
    labels = torch.zeros(shape, dtype=torch.int8, device=device)
    positives = torch.randint(classes, (rows, 1), device=device, generator=generator)
    labels.scatter_(1, positives, 1)
    soft = torch.rand(shape, device=device, generator=generator)
    soft[torch.rand(shape, device=device, generator=generator) < 0.5] = torch.nan
    weak = 2 * torch.randn(shape, device=device, generator=generator)
    return logits.requires_grad_(), labels, {"soft": soft, "weak": weak}


def recorded(step: Callable[[], object]) -> Callable[[], object]:
    """The step as a CUDA graph, so that its kernels are timed and not the host that launches them."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def seconds(step: Callable[[], object], device: str, repeat: int, *, graph: bool = True) -> float:
    """The median time of a step, on a GPU of its kernels alone unless not as a `graph`."""
    for _ in range(3):
        step()
    times = []
    if torch.device(device).type != "cuda":
        for _ in range(repeat):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    replay = recorded(step) if graph else step
    for _ in range(repeat):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(IN_FLIGHT):
            replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1000 / IN_FLIGHT)
    return statistics.median(times)


def copy_bandwidth(device: str, repeat: int) -> float:
    """Bytes read and written a second by copying a tensor far larger than any cache: 1 GiB, or 64 MiB on a CPU."""
    entries = 2**28 if torch.device(device).type == "cuda" else 2**24
    source = torch.ones(entries, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device, repeat, graph=False)


def check(name: str, ours: Step, theirs: Step, logits: Tensor, arguments: tuple[Tensor, ...]) -> None:
    """Both sides must compute the same thing, or comparing their times means nothing."""
    values, gradients = [], []
    for step in (ours, theirs):
        value = step(logits, *arguments)
        values.append(value.item())
        gradients.append(torch.autograd.grad(value, logits)[0])
    apart = (gradients[0] - gradients[1]).abs().mean() / gradients[1].abs().mean()
    if not (math.isclose(values[0], values[1], rel_tol=1e-3) and apart.item() < 1e-3):
        raise RuntimeError(f"{name}: {values[0]} is not {values[1]}, or their gradients differ by {apart.item():.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of the losses against formulas on probabilities")
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--losses", nargs="+", default=["all"], choices=["all", *CONTESTS])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()

    names = list(CONTESTS) if "all" in options.losses else options.losses
    logits, labels, drawn = draw(options.rows, options.classes, options.device)
    bandwidth = copy_bandwidth(options.device, options.repeat)
    print(f"torch {torch.__version__}, {options.rows} x {options.classes}, copy {bandwidth / 1e9:.0f} GB/s")
    print(f"{'loss':9} {'compiled ms':>12} {'eager ms':>12} {'formula ms':>12} {'ratio':>7} {'bandwidth':>10}")
    for name in names:
        contest = CONTESTS[name]
        arguments = (labels, *(drawn[table] for table in contest.tables))

        def ours(logits: Tensor, *arguments: Tensor, name: str = name, contest: Contest = contest) -> Tensor:
            return LOSSES[name](logits, *arguments, *contest.constants, **contest.settings).mean()

        torch._dynamo.reset()
        compiled: Step = torch.compile(ours, fullgraph=True, dynamic=False, backend=options.backend)
        check(name, compiled, contest.formula, logits, arguments)
        took = []
        for step in (compiled, ours, contest.formula):

            def forward_and_backward(step: Step = step, arguments: tuple[Tensor, ...] = arguments) -> object:
                return torch.autograd.grad(step(logits, *arguments), logits)

            took.append(seconds(forward_and_backward, options.device, options.repeat))
        fused, eager, formula = took
        share = contest.bytes_an_entry * logits.numel() / fused / bandwidth
        print(
            f"{name:9} {fused * 1e3:12.3f} {eager * 1e3:12.3f} {formula * 1e3:12.3f} "
            f"{formula / fused:6.1f}x {share:10.1%}{'' if contest.elementwise else '*'}",
            flush=True,
        )
        if options.record:
            record(
                f"loss {name}",
                fused,
                formula,
                "the formula on probabilities, eager",
                SEED,
                device=options.device,
                rows=options.rows,
                classes=options.classes,
                eager_seconds=f"{eager:.6g}",
                bandwidth_share=f"{share:.3f}",
            )


if __name__ == "__main__":
    main()
