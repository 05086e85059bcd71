"""Inputs of a network in blocks of rows, and what a network expects of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from spml.data.stores.decode import Policy
from spml.errors import InputError

IMAGES_PER_BLOCK, FEATURE_ROWS_PER_BLOCK, TEXTS_PER_BLOCK = 32, 4096, 512
_FEATURES_PER_BLOCK = 2**25


class InputWarning(UserWarning):
    """Inputs can be used, but may not be what they were in training."""


class InputBlock(NamedTuple):
    """A few rows: their names, the network's input, and each row's observed label where a label column was given."""

    names: list[str]
    inputs: torch.Tensor | list[str]
    """Images, feature rows or texts."""
    observed: list[str | None] | None = None


class InputRows(NamedTuple):
    """The number of rows, and the rows in blocks."""

    total: int
    blocks: Iterator[InputBlock]


@dataclass(frozen=True)
class InputSpec:
    """The input a network expects: images of a given size, rows of features, or texts."""

    run: str
    """Name of the run, for error messages."""
    image_size: int | None
    features: int | None
    policy: Policy = "squash"
    texts: bool = False
    columns: tuple[str, ...] = ()
    """The columns of a table that features or texts came from in training."""

    @property
    def rows_per_block(self) -> int:
        if self.image_size is not None:
            return IMAGES_PER_BLOCK
        if self.texts:
            return TEXTS_PER_BLOCK
        return max(1, min(FEATURE_ROWS_PER_BLOCK, _FEATURES_PER_BLOCK // (self.features or 1)))

    def check_width(self, width: int) -> None:
        if self.features is not None and width != self.features:
            raise InputError(f"{self.run} was trained on {self.features} features per row, not {width}")
