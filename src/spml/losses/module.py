"""`spml.loss`: the losses by name, as modules for any training loop."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spml.errors import InputError, unknown_name
from spml.losses.names import LOSSES
from spml.losses.robust import RobustSchedule
from spml.type_checks import check_epoch, check_type, hints_of

NEED_NEGATIVES = frozenset({"bce", "bce-ls", "iu", "iun"})
ONLY_METHODS = frozenset(  # these keep state between batches, or change the network
    ["annotator-em", "auto", "boostlu", "en", "en-cl", "en-scl", "ll-cp", "role", "role-16bit", "role-factorised"]
)

Reduction = Literal["mean", "sum", "none"]
Setting = float | bool | RobustSchedule | None


def settings_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the settings of a loss function, its keyword-only parameters."""
    parameters = inspect.signature(function).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


class Loss(nn.Module):
    """A loss function with its settings and a reduction; see `spml.loss`.

    Parameters
    ----------
    name : str
        Name of the loss; `help(spml.loss)` lists all.
    reduction : {"mean", "sum", "none"}
        How the values of all entries are reduced; "none" returns one value per entry.
    **settings
        Settings of the loss that differ from its defaults.

    Examples
    --------
    >>> import torch
    >>> wan = Loss("wan", reduction="sum")
    >>> logits = torch.zeros(2, 3)
    >>> labels = torch.tensor([[1, 0, 0], [0, 1, 0]])
    >>> round(wan(logits, labels).item(), 4)  # ln 2 for each positive, and ln 2 for its two weak negatives together
    2.7726
    """

    def __init__(self, name: str, *, reduction: Reduction = "mean", **settings: Setting) -> None:
        super().__init__()
        if name in ONLY_METHODS:
            raise InputError(
                f"{name!r} is a method, not a loss: it needs its own state or head. Use spml.method({name!r})."
            )
        if name not in LOSSES:
            raise InputError(unknown_name("loss", name, LOSSES))
        if reduction not in ("none", "mean", "sum"):
            raise InputError(f"reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
        self.name, self.reduction, self.settings = name, reduction, settings
        self.function = LOSSES[name]
        known, hints = settings_of(self.function), hints_of(self.function)
        for setting, value in settings.items():
            if setting not in known:
                raise InputError(
                    f"loss {name!r} has no setting {setting!r}; its settings: {', '.join(known) or 'none'}"
                )
            check_type(f"loss {name!r}: {setting}", value, hints.get(setting, Any))
        for setting, parameter in known.items():
            if parameter.default is parameter.empty and setting not in settings:
                raise InputError(f"loss {name!r} needs the setting {setting}: spml.loss({name!r}, {setting}=…)")
        parameters = [p for p in inspect.signature(self.function).parameters.values() if p.name not in known]
        self._takes_labels = [p.name for p in parameters[:2]] == ["logits", "labels"]
        self._inputs = {p.name: p.default is p.empty for p in parameters[2:]}  # name: whether it is required
        self._checked = self._has_negatives = False

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Compute the loss.

        Parameters
        ----------
        logits : Tensor of shape (…, n_rows, n_classes)
            Leading dimensions are independent heads on the same labels.
        labels : Tensor of shape (n_rows, n_classes)
            +1 positive, -1 negative, 0 unknown.
        *inputs, **named_inputs
            Further inputs of the loss at this step, such as `epoch`; `help(spml.loss)` lists them.

        Returns
        -------
        Tensor
            A scalar, or one value per entry if the reduction is "none".

        Raises
        ------
        InputError
            If an input is missing, an epoch is not counted from 1, or labels have the wrong shape or values. Values on
            a GPU are checked at the first call only, because reading them waits for the GPU.
        """
        self._check_inputs(inputs, named_inputs)
        if self._takes_labels:
            self._check_shape(logits, labels)
            self._check_k(logits.shape[-1])
            if not torch.compiler.is_compiling() and (labels.device.type == "cpu" or not self._checked):
                self._check_values(labels)
        entries = self.function(logits, labels, *inputs, **named_inputs, **self.settings)
        if self.reduction == "none":
            return entries
        return entries.mean() if self.reduction == "mean" else entries.sum()

    def _check_inputs(self, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        names = list(self._inputs)
        call = f"criterion({', '.join(['logits', 'labels', *(f'{name}=…' for name in names)])})"
        for name in named:
            if name not in names:
                raise InputError(f"loss {self.name!r} takes no input {name!r} at each step: call {call}")
        if len(positional) > len(names):
            raise InputError(f"loss {self.name!r} received {len(positional)} additional inputs: call {call}")
        missing = [name for name in names[len(positional) :] if self._inputs[name] and name not in named]
        if missing:
            raise InputError(f"loss {self.name!r} needs {', '.join(missing)} at each step: {call}")
        given = {**dict(zip(names, positional, strict=False)), **named}
        if "epoch" in given and not torch.compiler.is_compiling():
            check_epoch(given["epoch"], given.get("epochs"))

    def _check_k(self, classes: int) -> None:
        k: Any = self.settings.get("k")
        if k is not None and k > classes:
            raise InputError(
                f"loss {self.name!r}: k, the average number of labels per row, must be at most {classes}, the number "
                f"of classes, not {k}"
            )

    def _check_shape(self, logits: Tensor, labels: Tensor) -> None:
        for name, values in (("logits", logits), ("labels", labels)):
            if not isinstance(values, Tensor) or values.is_complex():
                kind = f"of {values.dtype}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
                raise InputError(f"{name} must be a tensor of real numbers, not {kind}: convert with torch.as_tensor")
        if labels.device != logits.device:
            raise InputError(f"labels are on {labels.device}, logits on {logits.device}: move one of them")
        if not logits.is_floating_point():
            raise InputError(f"logits must be floating-point numbers, not {logits.dtype}: pass logits.float()")
        same_for_all_heads = labels.dim() > 1 and labels.shape == logits.shape[-labels.dim() :]
        if labels.shape != logits.shape and not same_for_all_heads:
            raise InputError(
                f"labels must have the shape of the logits, {tuple(logits.shape)}, with +1, -1 or 0 for every class, "
                f"not {tuple(labels.shape)}: convert class indices with Labels.from_indices, or with "
                f"torch.nn.functional.one_hot(labels, {logits.shape[-1]})"
            )

    def _check_values(self, labels: Tensor) -> None:
        self._checked = True
        if labels.dtype != torch.bool:
            wrong = (labels != 0) & (labels.abs() != 1)
            if wrong.any():
                value = labels[wrong][0].item()
                raise InputError(
                    f"labels must be +1 (positive), -1 (negative) or 0 (unknown), not {value}: replace NaN by 0 with "
                    "torch.nan_to_num(labels), and round or threshold fractional labels"
                )
        if self.name in NEED_NEGATIVES and not self._has_negatives:
            self._has_negatives = labels.dtype != torch.bool and bool((labels == -1).any())
            if not self._has_negatives and bool((labels == 0).any()):
                raise InputError(
                    f"loss {self.name!r} needs negative labels, coded -1, but labels has none: 0 means unknown. If 0 "
                    "means negative in your matrix, pass 2 * labels - 1; if it means unknown, use 'an' or 'em'"
                )

    def extra_repr(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"{self.name!r}, reduction={self.reduction!r}{settings}"


def loss(name: str, *, reduction: Reduction = "mean", **settings: Setting) -> Loss:
    """Create a published loss as a module for any training loop.

    Labels are coded +1 positive, -1 negative, 0 unknown. With single positive labels every row has one +1 and zeros.

    Parameters
    ----------
    name : str
        One of the losses below.
    reduction : {"mean", "sum", "none"}
        How entries are reduced to a scalar. "none" returns one value per entry.
    **settings
        Settings that differ from the defaults below.

    Returns
    -------
    Loss
        A module called as `criterion(logits, labels)`, plus the inputs named in brackets below.

    Raises
    ------
    InputError
        If the name or a setting is unknown, or exists only as a method (`spml.method`), such as "role".

    Notes
    -----
    Losses, [additional inputs at each step] and settings with their defaults:

    - bce: cross-entropy on full labels
    - bce-ls: bce with label smoothing; smoothing=0.1
    - iu: cross-entropy on known labels, unknown labels ignored
    - iun: iu, where all negatives are known; positives_only=False
    - an: unknown labels assumed negative
    - an-ls: an with label smoothing; positive_smoothing=0.1, negative_smoothing=0.1
    - wan: an with weak negatives; negative_weight=None
    - softmax: cross-entropy of an ordinary single-label classifier; apply a softmax to its logits
    - pr: pairwise ranking; divide_by_classes=False
    - epr: positives, with k expected positives per row; k, weight=1.0, divide_by_classes=False
    - em: entropy of unknown labels maximised; entropy_weight=0.2
    - em-apl [soft_labels]: em with pseudo-labels; entropy_weight=0.2, soft_weight=0.02
    - entmin: entropy of unknown labels minimised; entropy_weight=0.01
    - dw: an with down-weighted negatives; negative_weight=0.1
    - n-ls: an with smoothed negatives; smoothing=0.3
    - l1r [parameters]: an with L1 regularisation; weight=1e-06
    - l2r [parameters]: an with L2 regularisation; weight=1e-06
    - focal: focal loss; focusing=2.0, balance=None
    - asl: asymmetric loss; positive_focusing=0.0, negative_focusing=4.0, shift=0.05, detach_weight=False
    - las: asl with weak negatives; leverage=0.05, positive_focusing=0.0, negative_focusing=4.0
    - lasd: las with pseudo-labels; positive_leverage=0.1, negative_leverage=None, k=None, threshold=0.9,
      positive_focusing=0.0, negative_focusing=4.0
    - ll-r [epoch]: an without the largest losses; share=0.2
    - ll-ct [epoch]: an with the largest losses counted as positives; share=0.2
    - splc [epoch]: confident unknown labels become positives; threshold=0.6, margin=1.0, positive_focusing=2.0,
      negative_focusing=2.0, first_epoch=2
    - hill: negatives predicted very high count little; crest=1.5, margin=1.0, positive_focusing=2.0
    - gr [epoch, epochs]: unknown labels part positive, part negative; schedule=None, positive_power=0.01,
      negative_power=1.0
    - annotator: likelihood of the observed label
    - plc [weak_logits]: consistency of a strong view with a weak view; threshold=0.6, include_observed=False
    - lac [keys, key_classes, anchor_valid, key_valid]: contrastive loss on (anchors, anchor_classes);
      temperature=0.5

    Examples
    --------
    >>> import torch
    >>> criterion = loss("em", entropy_weight=0.1)
    >>> logits = torch.zeros(2, 3, requires_grad=True)
    >>> labels = torch.tensor([[1, 0, 0], [0, 1, 0]])
    >>> criterion(logits, labels).backward()
    >>> loss("ll-r")(logits, labels)
    Traceback (most recent call last):
    spml.errors.InputError: loss 'll-r' needs epoch at each step: criterion(logits, labels, epoch=…)
    """
    return Loss(name, reduction=reduction, **settings)
