"""What is remembered per training row: one array over rows, saved with the run."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class RowMemory(nn.Module):
    """One value per (row, class, …) of the training set, behind any leading dimensions for heads.

    Every process holds all rows and makes every update, on the gathered batch: no merging is needed, and two
    processes remember what one would. `trainable` makes the values a parameter that an optimiser moves.
    """

    values: Tensor

    def __init__(
        self,
        rows: int,
        entry: Sequence[int],
        *,
        heads: Sequence[int] = (),
        fill: float | Tensor = 0.0,
        dtype: torch.dtype = torch.float32,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        self.row_dimension = len(heads)
        shape = (*heads, rows, *entry)
        values = (
            fill.to(dtype).expand(shape).clone() if isinstance(fill, Tensor) else torch.full(shape, fill, dtype=dtype)
        )
        if trainable:
            self.values = nn.Parameter(values)
        else:
            self.register_buffer("values", values)

    def read(self, rows: Tensor) -> Tensor:
        """The values of these rows; gradients reach a trainable memory."""
        return self.values.index_select(self.row_dimension, rows)

    @torch.no_grad()
    def write(self, rows: Tensor, values: Tensor) -> None:
        """Replace the values of these rows."""
        self.values.index_copy_(self.row_dimension, rows, values.to(self.values.dtype))
