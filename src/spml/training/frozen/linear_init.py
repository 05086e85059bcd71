"""LinearInit (Cole et al. 2021, Sec. 6.1): the head is trained first, on features of the frozen backbone."""

from spml.errors import InputError
from spml.models import Classifier
from spml.models.heads import LinearHead
from spml.training.examples import Examples
from spml.training.experiment import Experiment, LinearInit
from spml.training.frozen.pooled_features import pooled_features
from spml.training.linear import HeadResult, train_heads


def linear_init(
    classifier: Classifier, experiment: Experiment, training: Examples, validation: Examples, device: str = "cpu"
) -> HeadResult:
    """Train a linear head on features of the frozen backbone and put it into the classifier.

    Parameters
    ----------
    classifier : Classifier
        With a linear head.
    experiment : Experiment
        Its `linear_init` has the epochs, learning rate and batch size of this phase, which fine-tuning does not share.
    training, validation : Examples
    device : str

    Returns
    -------
    HeadResult
        The head of the best epoch by validation mAP. Its `method_state` is the method's memory: give it to the
        trainer as `start`, so that fine-tuning starts from both.
    """
    if not isinstance(classifier.head, LinearHead):
        raise InputError("LinearInit needs a linear head: other heads cannot be trained on pooled features")
    phase = experiment.linear_init or LinearInit()
    head = Experiment.linear(
        experiment.method,
        experiment.settings,
        phase.learning_rate,
        phase.batch_size,
        experiment.train.seed,
        epochs=phase.epochs,
        k=experiment.k,
    )
    (best,) = train_heads(
        pooled_features(classifier, training.store, training.rows, device),
        training.labels,
        [head],
        validation=(pooled_features(classifier, validation.store, validation.rows, device), validation.labels),
        device=device,
        progress=False,
    )
    classifier.head.start_from_linear(best.weight.T, best.bias)
    return best
