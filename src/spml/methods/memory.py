"""Per-row state of a method: one array over all training rows, saved with the run."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class RowMemory(nn.Module):
    """One value per (row, class, …) of the training set, after any leading dimensions for heads.

    Every process holds all rows and makes every update on the gathered batch, so nothing has to be merged and two
    processes hold the same state as one.

    Parameters
    ----------
    rows : int
        Number of training rows.
    entry : sequence of int
        Shape of the state of one row, such as `(problem.classes,)`.
    heads : sequence of int
        Leading dimensions; pass `problem.heads`.
    fill : float or Tensor
        Initial values.
    dtype : torch.dtype
        Type of the values.
    trainable : bool
        Make the values a parameter, which `Method.parameter_groups` hands to the optimiser.

    Examples
    --------
    >>> memory = RowMemory(rows=10, entry=(3,))
    >>> memory.write(torch.tensor([4]), torch.tensor([[0.1, 0.2, 0.3]]))
    >>> memory.read(torch.tensor([4, 5]))
    tensor([[0.1000, 0.2000, 0.3000],
            [0.0000, 0.0000, 0.0000]])
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
        """Return the values of these rows; gradients reach a trainable memory.

        Parameters
        ----------
        rows : Tensor of shape (n_rows,)
            Row numbers in the training set.

        Returns
        -------
        Tensor of shape (…, n_rows, …)
        """
        return self.values.index_select(self.row_dimension, rows)

    @torch.no_grad()
    def write(self, rows: Tensor, values: Tensor) -> None:
        """Replace the values of these rows.

        Parameters
        ----------
        rows : Tensor of shape (n_rows,)
            Row numbers in the training set.
        values : Tensor of shape (…, n_rows, …)
        """
        self.values.index_copy_(self.row_dimension, rows, values.to(self.values.dtype))
