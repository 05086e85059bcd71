"""Known labels of every row: +1 positive, -1 negative (verified), 0 unknown."""

from spml.labels.entries import Entries
from spml.labels.estimate import KEstimate, estimate_k, k_intervals
from spml.labels.simulate import drop_labels, simulate
from spml.labels.split import split
from spml.labels.table import LabelCounts, Labels

__all__ = [
    "Entries",
    "KEstimate",
    "LabelCounts",
    "Labels",
    "drop_labels",
    "estimate_k",
    "k_intervals",
    "simulate",
    "split",
]
