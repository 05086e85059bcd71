"""LinearInit (Cole et al. 2021, Sec. 6.1): the head is trained first, on features of the frozen backbone."""

import numpy as np
import torch
from torch import Tensor

from ..data.features import FeatureStore
from ..errors import InputError
from ..models import Classifier, LinearHead
from .linear import HeadResult, HeadSpec, train_heads
from .loop import Examples, Store


def linear_init(
    classifier: Classifier,
    training: Examples,
    validation: Examples,
    specs: list[HeadSpec],
    *,
    epochs: int = 25,
    k: float | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> HeadResult:
    """Train the heads of `specs` on cached features, put the best one by validation into the classifier, return it.

    The best head's `method_state` is what the method remembered at that epoch: give it to `Run` as `start`, so that
    fine-tuning goes on from both.
    """
    if not isinstance(classifier.head, LinearHead):
        raise InputError("LinearInit needs a linear head: other heads cannot be trained on pooled features")
    results = train_heads(
        pooled_features(classifier, training, device),
        training.labels,
        specs,
        epochs=epochs,
        validation=(pooled_features(classifier, validation, device), validation.labels),
        k=k,
        device=device,
        progress=progress,
    )
    best = max(results, key=lambda result: max(result.validation))
    with torch.no_grad():
        classifier.head.linear.weight.copy_(best.weight.T)
        classifier.head.linear.bias.copy_(best.bias)
    return best


@torch.no_grad()
def pooled_features(classifier: Classifier, examples: Examples, device: str, batch_size: int = 64) -> FeatureStore:
    """The backbone's pooled features of all rows, in evaluation mode, without any augmentation."""
    was_training = classifier.training
    classifier.to(device).eval()
    store: Store = examples.store
    parts: list[Tensor] = []
    for start in range(0, len(examples.rows), batch_size):
        images = store.batch(examples.rows[start : start + batch_size]).to(device)
        parts.append(classifier.features(images).float().cpu())
    classifier.train(was_training)
    return FeatureStore(np.concatenate([part.numpy() for part in parts]))
