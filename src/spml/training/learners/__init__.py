"""Training on features: converged linear learners and trees, chosen by the likelihood of held-out observed labels.

==============  ======================================================================
`fit`           `fit_features`: trains, combines, calibrates
`task`          the labelled rows and the options of one call
`families`      the learners that are compared
`linear`        linear learners along a path of penalties, solved by `lbfgs`
`discriminant`  linear discriminant analysis, for very many classes
`trees`         forests
`method_loss`   any registered method as a loss for `linear`
`adam`          methods that `linear` cannot solve
`design`        the rows in folds, standardised and rotated
`likelihood`    the held-out likelihood by which learners are compared and combined
`answers`       a correction learned from people's answers
==============  ======================================================================
"""

from spml.training.learners.fit import Candidate, FeatureFit, fit_features

__all__ = ["Candidate", "FeatureFit", "fit_features"]
