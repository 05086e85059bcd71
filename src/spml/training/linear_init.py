"""LinearInit (Cole et al. 2021, Sec. 6.1): the head is trained first, on features of the frozen backbone."""

from spml.errors import InputError
from spml.models import Classifier
from spml.models.heads import LinearHead
from spml.training.examples import Examples
from spml.training.experiment import Experiment, LinearInit
from spml.training.linear import HeadResult, train_heads
from spml.training.pooled_features import pooled_features


def linear_init(
    classifier: Classifier, experiment: Experiment, training: Examples, validation: Examples, device: str = "cpu"
) -> HeadResult:
    """Train linear heads on features of the frozen backbone and put the best one into the classifier.

    Parameters
    ----------
    classifier : Classifier
        With a linear head.
    experiment : Experiment
        Its `linear_init` is the grid of heads. The best by validation mAP is chosen.
    training, validation : Examples
    device : str

    Returns
    -------
    HeadResult
        The best head. Its `method_state` is the method's memory: give it to the trainer as `start`, so that
        fine-tuning starts from both.
    """
    if not isinstance(classifier.head, LinearHead):
        raise InputError("LinearInit needs a linear head: other heads cannot be trained on pooled features")
    grid = experiment.linear_init or LinearInit()
    method, settings, seed = experiment.method, experiment.settings, experiment.train.seed
    results = train_heads(
        pooled_features(classifier, training.store, training.rows, device),
        training.labels,
        [
            Experiment.linear(method, settings, rate, size, seed, epochs=grid.epochs, k=experiment.k)
            for rate in grid.learning_rates
            for size in grid.batch_sizes
        ],
        validation=(pooled_features(classifier, validation.store, validation.rows, device), validation.labels),
        device=device,
        progress=False,
    )
    best = max(results, key=lambda result: max(result.validation))
    classifier.head.start_from_linear(best.weight.T, best.bias)
    return best
