"""The end of training: predictions for all rows, and everything else that makes a folder a finished run."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from spml.data.dataset import PARTS, Dataset
from spml.runs.files import write_tensors, write_text
from spml.runs.folder import PREDICTIONS, best_network, bind_files, new_network
from spml.training.evaluation import predict
from spml.training.network.trainer import Trainer


def finish(run: Trainer, dataset: Dataset) -> None:
    """Write predictions for all rows, labels and names, which `spml.runs.folder.open_run` reads.

    Parameters
    ----------
    run : Trainer
        A run that has been trained to its end.
    dataset : Dataset
        The data it was trained on.
    """
    folder, processes = run.folder, run.processes
    network = best_network(folder) if processes.first else new_network(run.record()["model"])
    network.to(run.device)
    processes.synchronise(list(network.state_dict().values()))  # the first process's files may be on another machine
    rows = np.concatenate([dataset.train, dataset.validation, dataset.test])
    scores = predict(
        network,
        dataset.tensor_store,
        rows,
        device=run.device,
        activation=run.method.activation,
        precision=run.settings.precision,
        processes=processes,
    ).cpu()
    if processes.first:
        probabilities = torch.full((len(dataset), len(dataset.classes)), torch.nan)
        probabilities[torch.from_numpy(rows)] = scores
        write_rows(folder, dataset, {"probabilities": probabilities})
    processes.wait()


def write_rows(folder: Path, dataset: Dataset, predictions: Mapping[str, torch.Tensor]) -> None:
    """Write labels, names and predictions of all rows. This makes the folder a finished run.

    The predictions are "probabilities", and "independent" if `RunFolder.independent` differs, each (N, L).
    """
    parts = {name: torch.from_numpy(getattr(dataset, name)) for name in PARTS}
    dataset.labels.save(folder / "labels.npz")
    if dataset.answers is not None:
        dataset.answers.given.save(folder / "given.npz")
        dataset.answers.decided.save(folder / "decided.npz")
    if dataset.truth is not None:
        dataset.truth.open().save(folder / "truth.npz")
    write_text(folder / "names.json", json.dumps(dataset.names.tolist()))
    record = {"source": dataset.source or {"path": dataset.name, "options": {}}, "data": dataset.name}
    write_tensors(folder / PREDICTIONS, {**predictions, **parts}, record)
    bind_files(folder)
