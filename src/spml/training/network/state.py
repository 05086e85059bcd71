"""The state of a training: everything that a checkpoint holds and a resumed run loads."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spml.methods import Method
from spml.runs.checkpoint import load_optimiser, optimiser_tensors, with_prefix, without_prefix
from spml.training.settings import TrainSettings


@dataclass
class TrainingState:
    """The network, its averaged copy, the method, the optimiser, and how far training has come.

    Every random number is a function of (seed, step). Nothing else is therefore needed to resume, and a resumed run
    ends with the same bytes as one that was never interrupted.
    """

    classifier: nn.Module
    average: nn.Module | None
    method: Method
    optimiser: torch.optim.Optimizer
    loss_sum: Tensor  # over the steps of the current epoch
    step: int = 0
    best: dict[str, Any] = field(default_factory=lambda: {"score": None, "epoch": 0, "weights": "raw"})
    stale: int = 0  # epochs since the best one

    @classmethod
    def create(
        cls, classifier: nn.Module, method: Method, settings: TrainSettings, device: torch.device
    ) -> "TrainingState":
        """Return the state before the first step."""
        average = copy.deepcopy(classifier).requires_grad_(False).eval() if settings.averaging else None
        optimiser = _make_optimiser(classifier, method, settings, device)
        precise = torch.float32 if device.type == "mps" else torch.float64  # which mps does not have
        return cls(classifier, average, method, optimiser, torch.zeros((), dtype=precise, device=device))

    def networks(self) -> dict[str, nn.Module]:
        """Return the networks to evaluate: "raw" and, if weights are averaged, "averaged"."""
        return {"raw": self.classifier, **({} if self.average is None else {"averaged": self.average})}

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        """Move the averaged weights towards the current ones."""
        if self.average is None:
            return
        pairs = zip(self.average.state_dict().values(), self.classifier.state_dict().values(), strict=True)
        floats = [(average, current) for average, current in pairs if average.is_floating_point()]
        torch._foreach_lerp_([average for average, _ in floats], [current for _, current in floats], 1 - decay)

    def compare(self, epoch: int, scores: dict[str, float]) -> bool:
        """Record the validation scores of an epoch; return whether it is the best so far.

        Without validation the last epoch is the best, with averaged weights if there are any.
        """
        if scores:
            weights, score = max(scores.items(), key=lambda item: item[1])
            improved = self.best["score"] is None or score > self.best["score"]
        else:
            weights, score, improved = ("raw" if self.average is None else "averaged"), None, True
        self.stale = 0 if improved else self.stale + 1
        if improved:
            self.best = {"score": score, "epoch": epoch, "weights": weights}
        return improved

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        tensors = {
            **with_prefix("network", self.classifier.state_dict()),
            **with_prefix("method", self.method.state_dict()),
            **with_prefix("optimiser", optimiser_tensors(self.optimiser)),
            "loss_sum": self.loss_sum,
        }
        if self.average is not None:
            tensors.update(with_prefix("average", self.average.state_dict()))
        return tensors

    def progress(self) -> dict[str, Any]:
        """Return the numbers of a checkpoint."""
        return {"step": self.step, "best": self.best, "stale": self.stale}

    def load(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Restore the state from the results of `tensors` and `progress`."""
        self.classifier.load_state_dict(without_prefix("network", tensors))
        self.method.load_state_dict(without_prefix("method", tensors))
        load_optimiser(self.optimiser, without_prefix("optimiser", tensors))
        if self.average is not None:
            self.average.load_state_dict(without_prefix("average", tensors))
        self.loss_sum.copy_(tensors["loss_sum"])
        self.step, self.best, self.stale = progress["step"], progress["best"], progress["stale"]


def _make_optimiser(
    classifier: Any, method: Method, settings: TrainSettings, device: torch.device
) -> torch.optim.Optimizer:
    if settings.head_rate != 1 and hasattr(classifier, "head_parameters"):  # a user's own network may lack it
        backbone, head = list(classifier.backbone_parameters()), list(classifier.head_parameters())
        multiples = [(backbone, 1.0), (head, settings.head_rate)]
    else:
        multiples = [(list(classifier.parameters()), 1.0)]
    groups: list[dict[str, Any]] = [{"params": p, "multiple": multiple} for p, multiple in multiples]
    groups += [{"params": p, "multiple": multiple, "weight_decay": 0.0} for p, multiple in method.parameter_groups()]
    for group in groups:
        group["lr"] = torch.tensor(settings.learning_rate * group["multiple"], device=device)
    make = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    on_gpu = device.type == "cuda"
    return make(groups, weight_decay=settings.weight_decay, fused=on_gpu, capturable=on_gpu)
