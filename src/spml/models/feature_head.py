"""A trained model over features as the head of the network that computed them."""

from torch import Tensor

from spml.models.feature_model import FeatureModel
from spml.models.heads import Head, Outputs


class FeatureHead(Head):
    """A `FeatureModel` on pooled features.

    Parameters
    ----------
    model : FeatureModel
        Trained on pooled features.
    """

    accepts_pooled = True

    def __init__(self, model: FeatureModel) -> None:
        super().__init__()
        self.model = model
        self.settings = {"model": model.description}

    def forward(self, features: Tensor) -> Outputs:
        outputs: Outputs = self.model(features)
        return outputs
