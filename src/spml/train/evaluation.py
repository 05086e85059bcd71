"""What networks say of rows, and how good that is by what is known of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spml.labels import Labels
from spml.metrics import average_precision
from spml.train.distributed import Processes
from spml.train.examples import Store, batch_numbers, filled, read_rows


def selection_score(probabilities: Tensor, labels: Labels) -> float:
    """How good predictions are, by what is known: mean AP on full labels, else of the known positives.

    With single positives every other label counts as absent. That lowers the AP of a class by about the same factor
    for all predictions of one method, so the order of its epochs and settings survives. Between methods it does not:
    AN, which learns to predict just what is named, scores better here than it is.
    """
    positive = torch.from_numpy(labels.dense() > 0).to(probabilities.device)
    return float(average_precision(probabilities, positive).nanmean())


def unobserved_counts(probabilities: Tensor, labels: Labels, bins: int = 20) -> list[int]:
    """How many predictions for labels that are not known positives fall into each of `bins` equal parts of 0 to 1."""
    unobserved = torch.from_numpy(labels.dense() <= 0).to(probabilities.device)
    place = (probabilities * bins).long().clamp(0, bins - 1)
    counts = torch.zeros(bins, dtype=torch.long, device=probabilities.device)
    counts.scatter_add_(0, place.flatten(), unobserved.flatten().long())
    return [int(count) for count in counts.tolist()]


@torch.no_grad()
def predict_each(
    networks: Sequence[nn.Module],
    store: Store,
    rows: np.ndarray,
    *,
    device: torch.device,
    batch_size: int = 256,
    precision: str = "32",
    processes: Processes | None = None,
) -> list[Tensor]:
    """Probabilities (N, L) in float32 for these rows of the store, of every network; rows are read once for all."""
    processes = processes or Processes()
    were_training = [network.training for network in networks]
    results = [torch.zeros(0, 0, device=device) for _ in networks]
    for network in networks:
        network.eval()
    order = np.argsort(rows, kind="stable")
    rows = rows[order]  # as they lie in a file
    full = len(processes.share(min(batch_size, len(rows))))
    for number in batch_numbers(store, rows, batch_size, share=processes.share):
        start = number * batch_size
        chunk = rows[start : start + batch_size]
        own = processes.share(len(chunk))
        inputs = filled(read_rows(store, chunk[own], device), full)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        for place, network in enumerate(networks):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                logits = network(inputs).logits
            probabilities = processes.gather(torch.sigmoid(logits[: len(own)].float()), len(chunk))
            if number == 0:
                results[place] = probabilities.new_empty(len(rows), probabilities.shape[1])
            results[place][start : start + len(chunk)] = probabilities
    for network, was_training in zip(networks, were_training, strict=True):
        network.train(was_training)
    if (np.diff(order) < 0).any():
        back = torch.from_numpy(np.argsort(order)).to(device)
        results = [result[back] for result in results]
    return results


def predict(network: nn.Module, store: Store, rows: np.ndarray, **options: Any) -> Tensor:
    """`predict_each` of one network."""
    return predict_each([network], store, rows, **options)[0]
