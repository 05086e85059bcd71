"""A linear classifier over feature rows, which standardises them itself."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spml.models.heads import Outputs

_MANY_ROWS = 1024  # for fewer rows, scaling the rows is faster than scaling the weights and their gradients


def merge_heads(
    weight: Tensor, bias: Tensor, shares: Sequence[float], centre: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Merge several linear heads into one: for every class, the mean of their directions.

    The scale of the logits differs between losses, so a plain average would ignore the head with small weights.
    For every class, all heads are therefore scaled to the norm of the longest one and then averaged by their shares.
    At the row `centre` the merged head returns the logits of the longest head, the only ones on a probability scale.

    Parameters
    ----------
    weight : Tensor of shape (n_heads, n_classes, n_features)
    bias : Tensor of shape (n_heads, n_classes)
    shares : sequence of float
        Weight of every head in the average.
    centre : Tensor of shape (n_features,), optional
        Default: zeros.

    Returns
    -------
    weight : Tensor of shape (n_classes, n_features)
    bias : Tensor of shape (n_classes,)

    Examples
    --------
    >>> merge_heads(torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]]), torch.tensor([[1.0], [-1.0]]), (0.5, 0.5))
    (tensor([[2., 2.]]), tensor([1.]))
    """
    length = weight.norm(dim=-1)  # (m, L)
    longest = length.argmax(0, keepdim=True)
    factor = torch.where(length > 0, length.gather(0, longest) / length, 1.0)
    scale = torch.stack([share * row for share, row in zip(shares, factor, strict=True)])
    merged = scale[0, :, None] * weight[0]
    for row, head in zip(scale[1:], weight[1:], strict=True):
        merged = merged.addcmul_(row[:, None], head)  # in place: with many classes a second matrix needs much memory
    if centre is None:
        return merged, bias.gather(0, longest)[0]
    return merged, (bias + weight @ centre).gather(0, longest)[0] - merged @ centre


class FeatureClassifier(nn.Module):
    """Standardised linear classifier: logits = W·(x - mean)/deviation + b.

    `mean` and `deviation` are buffers, which `measure` sets from the training rows. For many rows the weights are
    scaled instead of the rows, which costs no more precision than float32 features have.

    Parameters
    ----------
    dim : int
        Number of features per row.
    num_classes : int
    shares : sequence of float
        With more than one share, an ensemble of as many heads is trained. In training mode the logits of all heads
        are returned, (B, n_heads·L); in eval mode the heads are merged by `merge_heads`.

    Examples
    --------
    >>> classifier = FeatureClassifier(dim=8, num_classes=3)
    >>> classifier.measure(torch.randn(100, 8))
    >>> classifier(torch.randn(5, 8)).logits.shape
    torch.Size([5, 3])
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
        """Return groups of parameters, each with its multiple of the learning rate: 1 for weights, √D for biases.

        Standardised rows have a norm of about √D and no common direction, so only the bias can learn how frequent a
        label is. At the learning rate of a single weight that would take thousands of steps.
        """
        weight, bias = self.linear.parameters()
        return [([weight], 1.0), ([bias], math.sqrt(len(self.mean)))]

    def measure(self, features: Tensor) -> None:
        """Set mean and deviation from these rows, shape (N, dim). Constant columns are not scaled."""
        deviation, mean = torch.std_mean(features.double(), 0, correction=0)
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1.0))

    def forward(self, features: Tensor) -> Outputs:
        with torch.autocast(features.device.type, enabled=False):  # bfloat16 would lose the precision of x - mean
            weight, bias = self.head()
            if len(features) < max(_MANY_ROWS, len(bias)):
                return Outputs(F.linear(self.standardise(features), weight, bias))
            weight = weight / self.deviation
            return Outputs(F.linear(features, weight, bias - weight.mv(self.mean)))

    def head(self) -> tuple[Tensor, Tensor]:
        """Weight and bias on standardised features; in eval mode an ensemble is merged into one head."""
        weight: Tensor = self.linear.weight
        bias: Tensor = self.linear.bias
        if len(self.shares) == 1 or self.training:
            return weight, bias
        heads = len(self.shares), self.num_classes
        return merge_heads(weight.unflatten(0, heads), bias.unflatten(0, heads), self.shares)

    def standardise(self, features: Tensor) -> Tensor:
        """Scale rows by the mean and standard deviation of the training rows."""
        return torch.addcmul(-self.mean / self.deviation, features, 1 / self.deviation)


def feature_classifier_from_description(description: Mapping[str, Any]) -> FeatureClassifier:
    """Build the classifier of a description with new weights; load its state dict afterwards."""
    shares = description.get("shares", (1.0,))
    classifier = FeatureClassifier(description["features"], description["num_classes"], shares)
    classifier.description = dict(description)
    return classifier
