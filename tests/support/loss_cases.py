"""Every named loss with settings, its inputs besides logits and labels, and the oracle it must equal."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spml.losses import LOSSES, RobustSchedule
from support import loss_oracles as oracle

# Saturation far past float32, zero, and −12 and −20, where log(p + 1e-5) loses the gradient.
SPECIAL = (0.0, 1e-3, 0.5, 1.0, 2.5, 5.0, 9.0, 12.0, 20.0, 40.0, 90.0, 300.0, 1000.0, 5000.0, 1e4)
# float32 probabilities this close to a threshold may fall on its other side.
THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.9)


@dataclass(frozen=True)
class Case:
    """A loss, its settings, and the value of the paper's formula per entry, row or batch."""

    name: str
    oracle: Callable[..., NDArray[np.float64]]
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Any, ...] = ()  # "weak", "soft" and "parameters" are drawn; numbers are passed as they are
    oracle_settings: dict[str, Any] | None = None
    per: str = "entry"
    exact_gradient: bool = True  # False where a factor is detached: the gradient is not the derivative of the value
    least_classes: int = 1

    @property
    def id(self) -> str:
        parts = [str(i) for i in self.inputs] + [f"{n}={v}" for n, v in self.settings.items()]
        return "-".join([self.name, *parts])

    def draw_inputs(self, shape: tuple[int, ...], seed: int = 0) -> tuple[Any, ...]:
        """The loss's further inputs as float64 arrays, made for logits of this shape."""
        rng = np.random.RandomState(seed + 77)
        drawn: list[Any] = []
        for kind in self.inputs:
            if kind == "weak":
                drawn.append(away_from_thresholds(3.0 * rng.standard_normal(shape)))
            elif kind == "soft":
                soft = rng.uniform(size=shape)
                drawn.append(np.where(rng.uniform(size=shape) < 0.4, np.nan, soft))
            elif kind == "parameters":
                drawn.append([rng.standard_normal((3, 2)), rng.standard_normal(4)])
            else:
                drawn.append(kind)
        return tuple(drawn)

    def entries(self, logits: Tensor, labels: Tensor, *inputs: Any) -> Tensor:
        return LOSSES[self.name](logits, labels, *inputs, **self.settings)

    def expected(self, logits: NDArray[np.float64], labels: NDArray[np.int64], *inputs: Any) -> NDArray[np.float64]:
        settings = self.settings if self.oracle_settings is None else self.oracle_settings
        return self.oracle(logits, labels, *inputs, **settings)

    def comparable(self, entries: Tensor) -> Tensor:
        """The entries brought to what the oracle gives."""
        if self.per == "row":
            return entries.sum(-1)
        return entries.mean() if self.per == "batch" else entries


def away_from_thresholds(logits: NDArray[np.float64], distance: float = 1e-2) -> NDArray[np.float64]:
    """Logits moved off every threshold used in the cases: a comparison there is not the formula's to decide."""
    moved = logits.copy()
    for threshold in THRESHOLDS:
        bound = np.log(threshold) - np.log1p(-threshold)
        moved = np.where(np.abs(moved - bound) < distance, bound + 2 * distance, moved)
    return moved


def to_torch(value: Any, dtype: torch.dtype = torch.float64) -> Any:
    """Arrays as tensors of this dtype, lists of arrays likewise; numbers as they are."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(dtype)
    if isinstance(value, list):
        return [to_torch(v, dtype) for v in value]
    return value


@dataclass(frozen=True)
class LabelledLogits:
    name: str
    logits: NDArray[np.float64]
    labels: NDArray[np.int64]


def tables() -> list[LabelledLogits]:
    """Small batches over several scales of logits, every kind of row, and the smallest shapes."""
    rng = np.random.RandomState(5)
    drawn = []
    for scale in (0.1, 1.0, 5.0, 30.0, 1000.0):
        logits = away_from_thresholds(scale * rng.standard_normal((5, 6)))
        labels = rng.choice([-1, 0, 0, 0, 1], size=(5, 6))
        drawn.append(LabelledLogits(f"scale {scale}", logits, labels))
    special = np.array([*SPECIAL, *(-value for value in SPECIAL[1:]), 3.25])
    logits = rng.permutation(special).reshape(5, 6)
    drawn.append(LabelledLogits("special", logits, rng.choice([-1, 0, 0, 1], size=(5, 6))))
    single = np.zeros((4, 6), dtype=np.int64)
    single[np.arange(4), rng.randint(6, size=4)] = 1
    drawn.append(LabelledLogits("single positives", rng.standard_normal((4, 6)), single))
    for name, label in (("unknown only", 0), ("positive only", 1), ("negative only", -1)):
        drawn.append(LabelledLogits(name, 3 * rng.standard_normal((3, 4)), np.full((3, 4), label)))
    for shape in ((1, 6), (5, 1), (1, 1)):
        labels = rng.choice([-1, 0, 1], size=shape)
        drawn.append(LabelledLogits(f"shape {shape}", 3 * rng.standard_normal(shape), labels))
    return drawn


TABLES = tables()
OTHER_GR = (0.5, -1.0, 0.3, 1.0), (3.0, 0.5, 0.9, 0.25)

CASES = [
    Case("bce", oracle.iu),
    Case("iu", oracle.iu),
    Case("iun", oracle.iun),
    Case("iun", oracle.iun, {"positives_only": True}),
    Case("bce-ls", oracle.bce_ls),
    Case("bce-ls", oracle.bce_ls, {"smoothing": 0.3}),
    Case("softmax", oracle.softmax, per="row"),
    Case("an", oracle.an),
    Case("an-ls", oracle.an_ls),
    Case("an-ls", oracle.an_ls, {"positive_smoothing": 0.0, "negative_smoothing": 0.2}),
    Case("wan", oracle.wan),
    Case("wan", oracle.wan, {"negative_weight": 0.3}),
    Case("pr", oracle.pr, per="row"),
    Case("pr", oracle.pr, {"divide_by_classes": True}, per="row"),
    Case("epr", oracle.epr, {"k": 1.5}, per="batch"),
    Case("epr", oracle.epr, {"k": 2.9, "weight": 0.4, "divide_by_classes": True}, per="batch"),
    Case("em", oracle.em),
    Case("em", oracle.em, {"entropy_weight": 0.01}),
    Case("em-apl", oracle.em_apl, inputs=("soft",)),
    Case("em-apl", oracle.em_apl, {"entropy_weight": 0.1, "soft_weight": 0.9}, ("soft",)),
    Case("entmin", oracle.entmin),
    Case("entmin", oracle.entmin, {"entropy_weight": 0.9}),
    Case("dw", oracle.dw),
    Case("dw", oracle.dw, {"negative_weight": 0.02}),
    Case("n-ls", oracle.n_ls),
    Case("n-ls", oracle.n_ls, {"smoothing": 0.1}),
    Case("l1r", oracle.l1r, inputs=("parameters",), per="batch"),
    Case("l1r", oracle.l1r, {"weight": 0.01}, ("parameters",), per="batch"),
    Case("l2r", oracle.l2r, inputs=("parameters",), per="batch"),
    Case("l2r", oracle.l2r, {"weight": 0.01}, ("parameters",), per="batch"),
    Case("focal", oracle.focal),
    Case("focal", oracle.focal, {"focusing": 1.5, "balance": 0.75}),
    Case("asl", oracle.asl),
    Case("asl", oracle.asl, {"detach_weight": True}, exact_gradient=False),
    Case("asl", oracle.asl, {"shift": 0.0, "detach_weight": True}, exact_gradient=False),
    Case("asl", oracle.asl, {"positive_focusing": 1.0, "negative_focusing": 2.0, "shift": 0.2}),
    Case("asl", oracle.asl, {"negative_focusing": 1.0, "shift": 0.0}),
    Case("asl", oracle.asl, {"negative_focusing": 0.5}),  # a root, steep at the shift
    Case("las", oracle.las),
    Case("las", oracle.las, {"leverage": 0.3, "positive_focusing": 1.0, "negative_focusing": 2.0}),
    Case("lasd", oracle.lasd),
    Case("lasd", oracle.lasd, {"positive_leverage": 0.03, "k": 1.46}, least_classes=2),
    Case(
        "lasd",
        oracle.lasd,
        {"negative_leverage": 0.4, "threshold": 0.6, "positive_focusing": 0.5, "negative_focusing": 2.0},
    ),
    Case("ll-r", oracle.ll_r, inputs=(1,)),
    Case("ll-r", oracle.ll_r, inputs=(2,)),
    Case("ll-r", oracle.ll_r, {"share": 4.0}, (4,)),
    Case("ll-ct", oracle.ll_ct, inputs=(2,)),
    Case("ll-ct", oracle.ll_ct, {"share": 4.0}, (4,)),
    Case("splc", oracle.splc, inputs=(2,)),
    Case("splc", oracle.splc, inputs=(1,)),
    Case(
        "splc",
        oracle.splc,
        {"threshold": 0.7, "margin": 0.5, "positive_focusing": 1.0, "negative_focusing": 0.0, "first_epoch": 3},
        (3,),
    ),
    Case("hill", oracle.hill),
    Case("hill", oracle.hill, {"crest": 2.0, "margin": 0.0, "positive_focusing": 0.0}),
    Case("gr", oracle.gr, inputs=(1, 8), exact_gradient=False),
    Case("gr", oracle.gr, inputs=(3, 10), exact_gradient=False),
    Case(
        "gr",
        oracle.gr,
        {
            "schedule": RobustSchedule((0.5, 3.0), (-1.0, 0.5), (0.3, 0.9), (1.0, 0.25)),
            "positive_power": 0.5,
            "negative_power": 0.7,
        },
        (6, 6),
        {"positive_power": 0.5, "negative_power": 0.7, "start": OTHER_GR[0], "end": OTHER_GR[1]},
        exact_gradient=False,
    ),
    Case("annotator", oracle.annotator_choice, per="row"),
    Case("plc", oracle.plc, inputs=("weak",)),
    Case("plc", oracle.plc, {"threshold": 0.9, "include_observed": True}, ("weak",)),
]
ONE_PER_NAME = list({case.name: case for case in reversed(CASES)}.values())[::-1]
