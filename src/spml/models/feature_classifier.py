"""A linear classifier over feature rows, which brings them to mean 0 and standard deviation 1 itself."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.models.heads import Outputs

MANY_ROWS = 1024  # fewer are scaled sooner than weights, and what autograd does with those


def merge_heads(
    weight: Tensor, bias: Tensor, shares: Sequence[float], centre: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Several linear heads, weight (m, L, D) and bias (m, L), as one: of each class the mean of their directions.

    How large logits are differs from loss to loss: as they come, a head in doubt would have no say. So for every class
    the heads are made as long as the longest of them, and then have the say of their shares. Of the row `centre` (D,),
    by default 0, they say what the longest does: its logits are the ones that mean to be probabilities.
    """
    length = weight.norm(dim=-1)  # (m, L)
    longest = length.argmax(0, keepdim=True)
    longer = torch.where(length > 0, length.gather(0, longest) / length, 1.0)
    scale = torch.stack([share * times for share, times in zip(shares, longer, strict=True)])
    merged = scale[0, :, None] * weight[0]
    for times, head in zip(scale[1:], weight[1:], strict=True):
        merged = merged.addcmul_(times[:, None], head)  # with many classes a second table is too much
    if centre is None:
        return merged, bias.gather(0, longest)[0]
    return merged, (bias + weight @ centre).gather(0, longest)[0] - merged @ centre


class FeatureClassifier(nn.Module):
    """logits = W·(x - mean)/deviation + b; mean and deviation are buffers, set from the training rows by `measure`.

    Many rows are left as they are, and the weights scaled and shifted instead: rounding then costs as much again as
    that of float32 features themselves.

    With several `shares`, so many heads learn side by side: in training their logits stand beside one another,
    (B, m·L), otherwise they are one head (`merge_heads`).
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int, num_classes: int, shares: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        self.num_classes, self.shares = num_classes, tuple(shares)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))
        self.linear = nn.Linear(dim, len(self.shares) * num_classes)
        self.description: dict[str, Any] = {"features": dim, "num_classes": num_classes}
        if len(self.shares) > 1:
            self.description["shares"] = list(self.shares)

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """Parameters, and the multiple of the learning rate each moves at: biases as if √D ones stood in every row.

        Rows of mean 0 have a length of about √D and no part in common: how frequent a label is only the bias can
        say, and as one weight among D it would take thousands of steps to.
        """
        weight, bias = self.linear.parameters()
        return [([weight], 1.0), ([bias], math.sqrt(len(self.mean)))]

    def measure(self, features: Tensor) -> None:
        """Take mean and deviation from these rows; a constant column is left as it is."""
        deviation, mean = torch.std_mean(features.double(), 0, correction=0)
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1.0))

    def forward(self, features: Tensor) -> Outputs:
        with torch.autocast(features.device.type, enabled=False):  # in bfloat16 little would be left of x - mean
            weight: Tensor = self.linear.weight
            bias: Tensor = self.linear.bias
            if len(self.shares) > 1 and not self.training:
                heads = len(self.shares), self.num_classes
                weight, bias = merge_heads(weight.unflatten(0, heads), bias.unflatten(0, heads), self.shares)
            if len(features) < max(MANY_ROWS, len(bias)):
                scaled = torch.addcmul(-self.mean / self.deviation, features, 1 / self.deviation)
                return Outputs(F.linear(scaled, weight, bias))
            weight = weight / self.deviation
            return Outputs(F.linear(features, weight, bias - weight.mv(self.mean)))


def feature_classifier_from_description(description: Mapping[str, Any]) -> FeatureClassifier:
    """The classifier of that description with fresh weights; load its state dict afterwards."""
    return FeatureClassifier(description["features"], description["num_classes"], description.get("shares", (1.0,)))
