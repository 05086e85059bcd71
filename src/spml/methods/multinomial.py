"""An ordinary softmax classifier on the observed label: what everybody trains first."""

from spml.losses.multinomial import multinomial
from spml.methods.base import mean_row
from spml.methods.interface import MEAN_OF_ROWS
from spml.methods.registry import loss_method

loss_method("softmax", multinomial, paper="baseline", needs=MEAN_OF_ROWS, reduce=mean_row, activation="softmax",
            summary="An ordinary single-label classifier; its softmax probabilities are the scores.")  # fmt: skip
