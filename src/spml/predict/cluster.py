"""Labels for more rows than one machine holds: parquet in, parquet out, on Ray Data (the extra `ray`).

Two stages that run side by side on all machines of the cluster: one decodes, one predicts. Every predicting worker
holds the network; rows pass through in blocks, and nobody ever holds the table. What is done with a block is what
`spml.predict.predictor` does with it, so the lines are the same.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import dataset

from spml.atomic import atomic_path
from spml.errors import InputError
from spml.predict.predictor import FEATURE_ROWS, IMAGE_ROWS, Block, Labeller, TableRows, check_label_column, readable

Columns = dict[str, npt.NDArray[Any]]


def predict_table(
    run: Path,
    table: Path,
    out: Path,
    *,
    threshold: float = 0.5,
    top: int = 1,
    device: str = "auto",
    recover: bool = False,
    label_column: str | None = None,
    workers: int = 1,
) -> int:
    """Label the rows of a parquet file, or of a folder of them; returns how many lines there are.

    `out` becomes a folder of parquet files, in the order of the rows, which parquet readers take for one table. Rows
    are named by an id column or their image's path. All machines must see `run`, `table` and `out` under these paths.

    workers: processes that predict, each with the network, and a GPU of its own where `device` is one.
    The other options are those of `predict_files`.
    """
    ray = _ray()
    if out.exists():
        raise InputError(f"{out} is there already: name a folder that is not")
    if not table.exists():
        raise InputError(f"{table}: there is no such file or folder")
    check_label_column(label_column, recover)
    run, table, out = run.resolve(), table.resolve(), out.resolve()
    options: dict[str, Any] = {"threshold": threshold, "top": top, "recover": recover, "device": device}
    label = Labeller(run, **options)  # here as well, so that what is wrong with the run is said at once
    with readable(table):
        schema = dataset.dataset(table, format="parquet").schema
    reader = TableRows(table, schema, label.image_size, label_column)
    if not reader.has_names:
        raise InputError(f"{table}: its rows have neither an id nor an image path: add a column 'id'")
    rows = FEATURE_ROWS if label.image_size is None else IMAGE_ROWS
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    size = sum(value.nbytes for value in label.network.state_dict().values())
    lines = (
        ray.data.read_parquet(str(table))
        .select_columns(reader.columns)
        .map_batches(_Decode(reader), batch_size=rows, batch_format="pyarrow")
        .map_batches(
            _Predict,
            fn_constructor_args=(run, options),
            batch_size=rows,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_gpus=1 if label.device.type == "cuda" else 0,
            memory=2 * size,  # what differs in its needs stays a stage of its own
        )
    )
    try:
        with atomic_path(out) as temporary:
            lines.write_parquet(str(temporary))
    except ray.exceptions.RayTaskError as error:
        if said := re.search(rf"^{InputError.__module__}.InputError: (.*)$", str(error), re.MULTILINE):
            raise InputError(said[1]) from error  # of the error itself only its text comes back from a worker
        raise
    return int(dataset.dataset(out, format="parquet").count_rows())


class _Decode:
    """The first stage: from paths, bytes or lists to what the network takes."""

    def __init__(self, reader: TableRows) -> None:
        self.reader = reader

    def __call__(self, part: pa.Table) -> Columns:
        known = self.reader.known(part)
        columns: Columns = {"name": np.array(self.reader.names(part)), "input": self.reader.read(part)}
        return columns if known is None else {**columns, "known": np.array([name or "" for name in known])}


class _Predict:
    """The second stage: a worker with the network."""

    def __init__(self, run: Path, options: dict[str, Any]) -> None:
        self.label = Labeller(run, **options)

    def __call__(self, part: Columns) -> pa.Table:
        known = part["known"].tolist() if "known" in part else None
        inputs = torch.from_numpy(part["input"].copy())  # Ray's own cannot be written to
        return self.label(Block(part["name"].tolist(), inputs, known))


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("Ray is not installed: pip install 'spml[ray]'") from None
    return ray
