"""A linear classifier over feature rows, which brings them to mean 0 and standard deviation 1 itself."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.models.heads import Outputs

MANY_ROWS = 1024  # fewer are scaled sooner than weights, and what autograd does with those


class FeatureClassifier(nn.Module):
    """logits = W·(x - mean)/deviation + b; mean and deviation are buffers, set from the training rows by `measure`.

    Many rows are left as they are, and the weights scaled and shifted instead: rounding then costs as much again as
    that of float32 features themselves.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))
        self.linear = nn.Linear(dim, num_classes)
        self.description = {"features": dim, "num_classes": num_classes}

    def measure(self, features: Tensor) -> None:
        """Take mean and deviation from these rows; a constant column is left as it is."""
        deviation, mean = torch.std_mean(features.double(), 0, correction=0)
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1.0))

    def forward(self, features: Tensor) -> Outputs:
        with torch.autocast(features.device.type, enabled=False):  # in bfloat16 little would be left of x - mean
            if len(features) < max(MANY_ROWS, self.num_classes):
                return Outputs(self.linear(torch.addcmul(-self.mean / self.deviation, features, 1 / self.deviation)))
            weight = self.linear.weight / self.deviation
            return Outputs(F.linear(features, weight, self.linear.bias - weight.mv(self.mean)))


def feature_classifier_from_description(description: Mapping[str, Any]) -> FeatureClassifier:
    """The classifier of that description with fresh weights; load its state dict afterwards."""
    return FeatureClassifier(description["features"], description["num_classes"])
