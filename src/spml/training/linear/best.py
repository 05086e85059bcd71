"""The best epoch of every head: its score, and a copy of the head and of its method's memory."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.training.linear.blocks import MethodBlock

Bool = npt.NDArray[np.bool_]


class BestEpochs:
    """Tracks the best epoch of every head of a group, and which heads have stopped.

    Parameters
    ----------
    heads : int
        Number of heads.
    """

    def __init__(self, heads: int) -> None:
        self.scores: list[list[float]] = [[] for _ in range(heads)]
        """Of every head, by epoch."""
        self.epochs = [0] * heads
        """The best epoch so far."""
        self.stopped: list[int | None] = [None] * heads
        """The epoch in which the head stopped."""
        self.kept: tuple[Tensor, Tensor, list[dict[str, Tensor]]] | None = None
        """Weights and biases of all heads at their best epochs, and the memory of each method."""
        self._best_scores = [-math.inf] * heads

    def take_last(self, epoch: int) -> None:
        """Without validation, the last epoch counts as the best."""
        self.epochs = [epoch] * len(self.epochs)

    def update(self, epoch: int, scores: Sequence[float], patience: int | None) -> Bool:
        """Add the scores of an epoch; returns which heads improved. Others stop after `patience` epochs without it."""
        improved = np.zeros(len(scores), bool)
        for h, score in enumerate(scores):
            if self.stopped[h] is not None:
                continue
            self.scores[h].append(score)
            # The first epoch is kept even if the head diverged in it: there is nothing better.
            improved[h] = epoch == 1 or score > self._best_scores[h]
            if improved[h]:
                self._best_scores[h] = score if math.isfinite(score) else -math.inf
                self.epochs[h] = epoch
            elif patience is not None and epoch - self.epochs[h] >= patience:
                self.stopped[h] = epoch
        return improved

    def keep(
        self, improved: Bool, improved_by_method: Bool, weight: Tensor, bias: Tensor, blocks: Sequence[MethodBlock]
    ) -> None:
        """Copy the heads that improved; `improved_by_method` lists them in the order of the blocks."""
        states = [block.method.state_dict() for block in blocks]
        if self.kept is None:
            copies = [{name: value.clone() for name, value in state.items()} for state in states]
            self.kept = weight.clone(), bias.clone(), copies
            return
        kept_weight, kept_bias, kept_states = self.kept
        _copy_heads(kept_weight, weight, improved)
        _copy_heads(kept_bias, bias, improved)
        for block, state, kept in zip(blocks, states, kept_states, strict=True):
            for name, value in state.items():
                _copy_heads(kept[name], value, improved_by_method[block.heads])


def _copy_heads(kept: Tensor, value: Tensor, heads: Bool) -> None:
    """Overwrite some of the kept heads."""
    mask = torch.from_numpy(heads).to(kept.device).view(-1, *[1] * (value.dim() - 1))
    kept.copy_(torch.where(mask, value, kept))
