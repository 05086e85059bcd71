"""LinearInit (Cole et al. 2021, Sec. 6.1): the head is trained first, on features of the frozen backbone."""

from spml.errors import InputError
from spml.models import Classifier, LinearHead
from spml.train.examples import Examples
from spml.train.linear import HeadResult, HeadSpec, train_heads
from spml.train.pooled_features import pooled_features


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

    The best head's `method_state` is what the method remembered at that epoch: give it to `Trainer` as `start`, so that
    fine-tuning goes on from both.
    """
    if not isinstance(classifier.head, LinearHead):
        raise InputError("LinearInit needs a linear head: other heads cannot be trained on pooled features")
    results = train_heads(
        pooled_features(classifier, training.store, training.rows, device),
        training.labels,
        specs,
        epochs=epochs,
        validation=(pooled_features(classifier, validation.store, validation.rows, device), validation.labels),
        k=k,
        device=device,
        progress=progress,
    )
    best = max(results, key=lambda result: max(result.validation))
    classifier.head.start_from_linear(best.weight.T, best.bias)
    return best
