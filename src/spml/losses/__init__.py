"""Losses as pure functions: (logits, labels, …) -> one value an entry, no state, no reduction.

What stands before the `*` in a function's signature is given at every step (logits, labels, the epoch, a second
view); what stands behind it is a setting. `loss(name, **settings)` wraps a function in a module that reduces.
"""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from spml.errors import InputError
from spml.losses.annotator import annotator_choice, log_chance_of_naming
from spml.losses.asymmetric import (
    asymmetric,
    focal,
    leveraged_asymmetric,
    leveraged_asymmetric_with_disambiguation,
    negative_leverage_of,
    risk_consistent_full_loss,
    view_consistency,
)
from spml.losses.cole import (
    assume_negative,
    expected_positive,
    expected_positive_regulariser,
    expected_positives,
    ignore_unobserved,
    pairwise_ranking,
    smoothed_assume_negative,
    smoothed_bce,
    weak_assume_negative,
)
from spml.losses.contrastive import confident_entries, label_aware_consistency, pseudo_label_consistency
from spml.losses.large import large_loss_count, large_loss_rejection, large_loss_temporary_correction, largest_unknown
from spml.losses.robust import RobustSchedule, generalised_robust, hill, self_paced_correction
from spml.losses.terms import entropy, focal_negative_term, focal_positive_term, logit, negative_term, positive_term
from spml.losses.zhou import (
    down_weighted,
    entropy_maximisation,
    entropy_maximisation_with_soft_labels,
    entropy_minimisation,
    l1_regularised,
    l1_regulariser,
    l2_regularised,
    l2_regulariser,
    negative_smoothed,
)
from spml.type_checks import check_type, hints_of

LOSSES: dict[str, Callable[..., Tensor]] = {
    "bce": ignore_unobserved,
    "bce-ls": smoothed_bce,
    "iu": ignore_unobserved,
    "iun": ignore_unobserved,
    "an": assume_negative,
    "an-ls": smoothed_assume_negative,
    "wan": weak_assume_negative,
    "pr": pairwise_ranking,
    "epr": expected_positive,
    "em": entropy_maximisation,
    "em-apl": entropy_maximisation_with_soft_labels,
    "entmin": entropy_minimisation,
    "dw": down_weighted,
    "n-ls": negative_smoothed,
    "l1r": l1_regularised,
    "l2r": l2_regularised,
    "focal": focal,
    "asl": asymmetric,
    "las": leveraged_asymmetric,
    "lasd": leveraged_asymmetric_with_disambiguation,
    "ll-r": large_loss_rejection,
    "ll-ct": large_loss_temporary_correction,
    "splc": self_paced_correction,
    "hill": hill,
    "gr": generalised_robust,
    "annotator": annotator_choice,
    "plc": pseudo_label_consistency,
    "lac": label_aware_consistency,
}


def settings_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a loss: what is set once."""
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


class Loss(nn.Module):
    """A loss function with its settings and a reduction over its entries.

    >>> import torch
    >>> wan = Loss("wan", reduction="sum")
    >>> logits = torch.zeros(2, 3)
    >>> labels = torch.tensor([[1, 0, 0], [0, 1, 0]])
    >>> round(wan(logits, labels).item(), 4)  # ln 2 for each positive, and as much for its two weak negatives
    2.7726
    """

    def __init__(self, name: str, *, reduction: str = "mean", **settings: Any) -> None:
        super().__init__()
        if name not in LOSSES:
            raise InputError(f"there is no loss named {name!r}; there are {', '.join(sorted(LOSSES))}")
        if reduction not in ("none", "mean", "sum"):
            raise InputError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
        self.name, self.reduction, self.settings = name, reduction, settings
        self.function = LOSSES[name]
        self._is_table = list(inspect.signature(self.function).parameters)[:2] == ["logits", "labels"]
        known = settings_of(self.function)
        for setting in settings:
            if setting not in known:
                there = ", ".join(known) or "none"
                raise InputError(f"loss {name!r} has no setting {setting!r}; its settings: {there}")
        hints = hints_of(self.function)
        for setting, value in settings.items():
            check_type(f"loss {name!r}: {setting}", value, hints.get(setting, Any))
        missing = [n for n, p in known.items() if p.default is p.empty and n not in settings]
        if missing:
            raise InputError(f"loss {name!r} needs a value for {', '.join(missing)}")

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any, **named_inputs: Any) -> Tensor:
        of_heads = labels.dim() > 1 and labels.shape == logits.shape[-labels.dim() :]
        if self._is_table and labels.shape != logits.shape and not of_heads:
            raise InputError(
                f"labels must be a table of {tuple(logits.shape)} like the logits, +1, -1 or 0 for every class, not of "
                f"{tuple(labels.shape)}: `Labels.from_indices` makes one of a class a row"
            )
        entries = self.function(logits, labels, *inputs, **named_inputs, **self.settings)
        if self.reduction == "none":
            return entries
        return entries.mean() if self.reduction == "mean" else entries.sum()

    def extra_repr(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"{self.name!r}, reduction={self.reduction!r}{settings}"


def loss(name: str, *, reduction: str = "mean", **settings: Any) -> Loss:
    """The published loss `name` as a module: `module(logits, labels)` on labels coded +1, -1, 0."""
    return Loss(name, reduction=reduction, **settings)


__all__ = [
    "LOSSES",
    "Loss",
    "RobustSchedule",
    "annotator_choice",
    "assume_negative",
    "asymmetric",
    "confident_entries",
    "down_weighted",
    "entropy",
    "entropy_maximisation",
    "entropy_maximisation_with_soft_labels",
    "entropy_minimisation",
    "expected_positive",
    "expected_positive_regulariser",
    "expected_positives",
    "focal",
    "focal_negative_term",
    "focal_positive_term",
    "generalised_robust",
    "hill",
    "ignore_unobserved",
    "l1_regularised",
    "l1_regulariser",
    "l2_regularised",
    "l2_regulariser",
    "label_aware_consistency",
    "large_loss_count",
    "large_loss_rejection",
    "large_loss_temporary_correction",
    "largest_unknown",
    "leveraged_asymmetric",
    "leveraged_asymmetric_with_disambiguation",
    "log_chance_of_naming",
    "logit",
    "loss",
    "negative_leverage_of",
    "negative_smoothed",
    "negative_term",
    "pairwise_ranking",
    "positive_term",
    "pseudo_label_consistency",
    "risk_consistent_full_loss",
    "self_paced_correction",
    "settings_of",
    "smoothed_assume_negative",
    "smoothed_bce",
    "view_consistency",
    "weak_assume_negative",
]
