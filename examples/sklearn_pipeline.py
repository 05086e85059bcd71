"""The scikit-learn estimator in a pipeline.

python examples/sklearn_pipeline.py
"""

import numpy as np
from sklearn.datasets import make_multilabel_classification
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import spml


def main() -> float:
    """Train on one label per row; return the test mAP against all labels."""
    rng = np.random.default_rng(0)
    features, truth = make_multilabel_classification(
        n_samples=600, n_features=30, n_classes=5, allow_unlabeled=False, random_state=0
    )
    observed = np.array([rng.choice(np.flatnonzero(row)) for row in truth])  # one of the labels of each row
    train_x, test_x, train_y, _, _, test_truth = train_test_split(features, observed, truth, random_state=0)

    model = make_pipeline(StandardScaler(), spml.SinglePositiveClassifier(random_state=0))
    model.fit(train_x, train_y)
    probabilities = model.predict_proba(test_x)  # one per class; rows do not sum to 1
    score = float(spml.metrics.mean_average_precision(probabilities, test_truth))
    print(f"test mAP: {score:.3f}")
    print("labels of the first test rows:", model[-1].predict_labels(model[:-1].transform(test_x[:3])))
    return score


if __name__ == "__main__":
    main()
