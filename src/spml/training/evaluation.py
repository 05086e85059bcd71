"""Predictions of networks, and their score on the known labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spml.labels import Labels
from spml.losses.activation import probabilities as activated
from spml.metrics import average_precision
from spml.training.distributed import Processes
from spml.training.examples import Store, batch_numbers, pad_batch, read_rows


def selection_score(probabilities: Tensor, labels: Labels) -> float:
    """Mean average precision on the known labels, where unknown labels count as absent.

    With single positives this lowers the AP of a class by about the same factor for all predictions of one method, so
    the order of its epochs and settings is preserved. The order of different methods is not: AN, which learns to
    predict only the observed label, scores better here than on full labels.
    """
    positive = torch.from_numpy(labels.dense() > 0).to(probabilities.device)
    return float(average_precision(probabilities, positive).nanmean())


def unobserved_counts(probabilities: Tensor, labels: Labels, bins: int = 20) -> list[int]:
    """Histogram over [0, 1] of the predictions for all labels that are not known positives."""
    unobserved = torch.from_numpy(labels.dense() <= 0).to(probabilities.device)
    bin_of = (probabilities * bins).long().clamp(0, bins - 1)
    counts = torch.zeros(bins, dtype=torch.long, device=probabilities.device)
    counts.scatter_add_(0, bin_of.flatten(), unobserved.flatten().long())
    return [int(count) for count in counts.tolist()]


@torch.no_grad()
def predict_each(
    networks: Sequence[nn.Module],
    store: Store,
    rows: np.ndarray,
    *,
    device: torch.device,
    activation: str = "sigmoid",
    batch_size: int = 256,
    precision: str = "32",
    processes: Processes | None = None,
) -> list[Tensor]:
    """Predict these rows with every network, reading each row once.

    Parameters
    ----------
    networks : sequence of nn.Module
        Put into evaluation mode for the prediction.
    store : Store
        Images or features.
    rows : array of shape (n_rows,)
        Rows of the store.
    device : torch.device
        Where the networks are.
    activation : {"sigmoid", "softmax"}
        The method's.
    batch_size : int
        Rows per batch, over all processes.
    precision : {"32", "bf16"}
        Precision of the forward pass.
    processes : Processes, optional
        Each process predicts its share and receives all predictions.

    Returns
    -------
    list of Tensor of shape (n_rows, n_classes)
        Probabilities in float32, one tensor per network.
    """
    processes = processes or Processes()
    were_training = [network.training for network in networks]
    results = [torch.zeros(0, 0, device=device) for _ in networks]
    for network in networks:
        network.eval()
    order = np.argsort(rows, kind="stable")
    rows = rows[order]  # the order of the file
    full = len(processes.share(min(batch_size, len(rows))))
    for number in batch_numbers(store, rows, batch_size, share=processes.share):
        start = number * batch_size
        chunk = rows[start : start + batch_size]
        share = processes.share(len(chunk))
        inputs = pad_batch(read_rows(store, chunk[share], device), full)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        for index, network in enumerate(networks):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                logits = network(inputs).logits
            probabilities = processes.gather(activated(logits[: len(share)].float(), activation), len(chunk))
            if number == 0:
                results[index] = probabilities.new_empty(len(rows), probabilities.shape[1])
            results[index][start : start + len(chunk)] = probabilities
    for network, was_training in zip(networks, were_training, strict=True):
        network.train(was_training)
    if (np.diff(order) < 0).any():
        inverse = torch.from_numpy(np.argsort(order)).to(device)
        results = [result[inverse] for result in results]
    return results


def predict(network: nn.Module, store: Store, rows: np.ndarray, **options: Any) -> Tensor:
    """`predict_each` for one network."""
    return predict_each([network], store, rows, **options)[0]
