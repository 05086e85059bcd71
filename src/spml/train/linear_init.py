"""LinearInit (Cole et al. 2021, Sec. 6.1): the head is trained first, on features of the frozen backbone."""

from collections.abc import Sequence

from spml.errors import InputError
from spml.models import Classifier
from spml.models.heads import LinearHead
from spml.train.examples import Examples
from spml.train.experiment import Experiment
from spml.train.linear import HeadResult, train_heads
from spml.train.pooled_features import pooled_features


def linear_init(
    classifier: Classifier,
    training: Examples,
    validation: Examples,
    experiments: Sequence[Experiment],
    *,
    device: str = "cpu",
    progress: bool = True,
) -> HeadResult:
    """Train linear heads on features of the frozen backbone and put the best one into the classifier.

    Parameters
    ----------
    classifier : Classifier
        With a linear head.
    training, validation : Examples
    experiments : sequence of Experiment
        The heads to train. The best by validation mAP is chosen.
    device : str
    progress : bool
        Show a progress bar.

    Returns
    -------
    HeadResult
        The best head. Its `method_state` is the method's memory: give it to the trainer as `start`, so that
        fine-tuning starts from both.
    """
    if not isinstance(classifier.head, LinearHead):
        raise InputError("LinearInit needs a linear head: other heads cannot be trained on pooled features")
    results = train_heads(
        pooled_features(classifier, training.store, training.rows, device),
        training.labels,
        experiments,
        validation=(pooled_features(classifier, validation.store, validation.rows, device), validation.labels),
        device=device,
        progress=progress,
    )
    best = max(results, key=lambda result: max(result.validation))
    classifier.head.start_from_linear(best.weight.T, best.bias)
    return best
