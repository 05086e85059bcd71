"""What a run predicts for all rows, kept in its folder or in memory, so that it can be reported and tested."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.data.formats.pack import Pack
from spml.labels import Entries, Labels
from spml.metrics import average_precision
from spml.runs.files import write_tensors, write_text
from spml.runs.folder import PREDICTIONS, RunFolder

Shown = tuple[npt.NDArray[np.int64], Labels]


def labels_of_all(pack: Pack, shown: Shown) -> Labels:
    """A table of all rows of the pack, in which only what the training rows show is known."""
    rows, labels = shown
    dense = labels.dense()
    at, columns = np.nonzero(dense)
    entries = Entries.from_coordinates(
        rows[at], columns, dense[at, columns], num_rows=len(pack), num_classes=len(pack.classes), default=0
    )
    return Labels.from_entries(entries, pack.classes, ids=pack.ids.tolist())


def keep_predictions(
    folder: Path, pack: Pack, shown: Shown, rows: npt.NDArray[np.int64], scores: Tensor, source: dict[str, Any]
) -> None:
    """Write beside a trained network what `spml.runs.folder.open_run` reads: the folder is then a finished run."""
    probabilities = torch.full((len(pack), len(pack.classes)), torch.nan)
    probabilities[torch.from_numpy(rows)] = scores.float().cpu()
    parts = {"train": shown[0], "validation": pack.val, "test": pack.test}
    labels_of_all(pack, shown).save(folder / "labels.npz")
    Labels.from_matrix(pack.truth, pack.classes, ids=pack.ids.tolist()).save(folder / "truth.npz")
    write_text(folder / "names.json", json.dumps(pack.ids.tolist()))
    tensors = {"probabilities": probabilities, **{name: torch.from_numpy(part) for name, part in parts.items()}}
    write_tensors(folder / PREDICTIONS, tensors, {"source": source, "data": pack.directory.resolve().name})


def class_precision(run: RunFolder) -> list[float]:
    """Average precision of every class on the test rows; a class without a positive counts 0, as in the papers."""
    assert run.truth is not None
    truth = run.truth.dense(run.test) > 0
    found = average_precision(run.probabilities[run.test], truth)
    return [float(value) for value in torch.nan_to_num(found, nan=0.0)]
