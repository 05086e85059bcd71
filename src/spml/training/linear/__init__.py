"""Many linear heads at once: the linear protocol, with one head per method, learning rate, batch size and seed.

Heads with the same batch size and seed see the same batches, so their weights form one matrix. One product computes
all logits, each method's objective the gradient of its heads' logits, and one product the gradients of all weights.
Heads do not affect each other: the result equals training each head alone.
"""

from spml.training.linear.heads import HeadResult
from spml.training.linear.rows import FeatureRows
from spml.training.linear.train import train_heads

__all__ = ["FeatureRows", "HeadResult", "train_heads"]
