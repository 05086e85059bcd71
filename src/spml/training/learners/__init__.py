"""Training on features: converged linear learners and trees, chosen by the likelihood of held-out observed labels."""

from spml.training.learners.fit import Candidate, FeatureFit, fit_features

__all__ = ["Candidate", "FeatureFit", "fit_features"]
