"""Many linear heads at once: the linear protocol, one head for every (method, learning rate, batch size, seed).

Heads of one batch size and one seed see the same batches, so they are one matrix: one product gives all their
logits, each method's objective gives the gradient of its heads' logits, one product gives all weights' gradients.
Heads do not touch each other: each ends as if it were trained alone.
"""

from spml.train.linear.evaluator import Selection, Truth
from spml.train.linear.heads import HeadResult, HeadSpec, linear_start
from spml.train.linear.rows import FeatureRows, Features, as_features, row_order
from spml.train.linear.train import train_heads

__all__ = [
    "FeatureRows",
    "Features",
    "HeadResult",
    "HeadSpec",
    "Selection",
    "Truth",
    "as_features",
    "linear_start",
    "row_order",
    "train_heads",
]
