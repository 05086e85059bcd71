"""Kim et al. 2022, large loss: assumed negatives with a large loss are suspected to be missed positives."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spml.losses import assume_negative
from spml.losses.large import large_loss_count, large_loss_rejection, large_loss_temporary_correction, largest_unknown
from spml.losses.terms import in_full_precision, positive_term
from spml.methods.base import Method, mean_entry
from spml.methods.interface import Clock, Problem
from spml.methods.memory import RowMemory
from spml.methods.registry import loss_method, register
from spml.type_checks import Percentage

PAPER = "Kim 2022"

loss_method("ll-r", large_loss_rejection, paper=PAPER,
            summary="AN without the largest losses of each batch; more are dropped every epoch.")  # fmt: skip
loss_method("ll-ct", large_loss_temporary_correction, paper=PAPER,
            summary="AN with the largest losses of each batch counted as positives in that step.")  # fmt: skip


@register
class PermanentCorrection(Method):
    """LL-Cp: from the second epoch on, the ⌈B·L·Δ/100⌉ largest losses of unknown labels per batch become positives.

    The change is permanent.
    """

    name = "ll-cp"
    paper = PAPER
    summary = "AN with the largest losses of each batch turned into positives permanently."

    @dataclass(frozen=True)
    class Settings:
        share: Percentage = 0.1

    settings: Settings

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        self.memory = RowMemory(problem.rows, (problem.classes,), heads=problem.heads, fill=0, dtype=torch.bool)

    def objective(self, logits: Tensor, labels: Tensor, rows: Tensor, clock: Clock) -> Tensor:
        flipped = self.memory.read(rows)
        corrected = torch.where(flipped & (labels == 0), 1, labels)
        entries = assume_negative(logits, corrected)
        if clock.epoch == 1:  # nothing is learned yet: every loss is large
            return mean_entry(entries)
        count = large_loss_count(
            entries.shape[-2], entries.shape[-1], clock.epoch, self.settings.share, cumulative=False
        )
        suspect = largest_unknown(entries, corrected, count)
        if self.training:
            self.memory.write(rows, flipped | suspect)
        return mean_entry(torch.where(suspect, positive_term(in_full_precision(logits)), entries))
