"""Predict labels for tables larger than one machine can process: Parquet in, Parquet out, on Ray Data (extra `ray`).

Two stages run in parallel on all machines of the cluster: one decodes, one predicts. Each predicting worker holds the
network. Rows stream through in blocks, so the table never has to fit into memory. A block is processed by
`spml.predict.predictor`, so the result is the same as without Ray.
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
from spml.errors import InputError, install_command
from spml.predict.blocks import InputBlock
from spml.predict.predictor import Labeller, Predictor, check_label_column, open_predictor
from spml.predict.tables import TableReader, parquet_errors

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
    """Label the rows of a Parquet file, or of a folder of Parquet files, on a Ray cluster.

    Parameters
    ----------
    run, table : Path
        Run folder, and the table. Its rows are named by an id column or by their image paths.
    out : Path
        Folder to create. It holds Parquet files in the order of the rows, which readers open as one table.
    threshold, top, device, recover, label_column
        As in `spml.predict.predict_files`.
    workers : int
        Number of predicting processes. Each holds the network, and uses a GPU of its own if `device` is a GPU.

    Returns
    -------
    int
        The number of lines written.

    Raises
    ------
    InputError
        If Ray is not installed, `out` exists, or the table does not fit the run.

    Notes
    -----
    All machines must be able to open `run`, `table` and `out` under these paths.
    """
    ray = _ray()
    if out.exists():
        raise InputError(f"{out} already exists: choose a folder that does not")
    if not table.exists():
        raise InputError(f"{table}: no such file or folder")
    check_label_column(label_column, recover)
    run, table, out = run.resolve(), table.resolve(), out.resolve()
    options: dict[str, Any] = {"threshold": threshold, "top": top, "recover": recover}
    predictor = open_predictor(run, device)
    Labeller(predictor, **options)  # report problems of the run before Ray starts
    with parquet_errors(table):
        schema = dataset.dataset(table, format="parquet").schema
    reader = TableReader(table, schema, predictor.spec, label_column)
    if not reader.has_names:
        raise InputError(f"{table}: its rows have neither an id nor an image path: add a column 'id'")
    decode, predict = _Decode(reader), (run, device, options)
    lines = _lines(ray, table, decode, predict, predictor, workers)
    try:
        with atomic_path(out) as temporary:
            lines.write_parquet(str(temporary))
    except ray.exceptions.RayTaskError as error:
        if message := re.search(rf"^{InputError.__module__}.InputError: (.*)$", str(error), re.MULTILINE):
            raise InputError(message[1]) from error  # a worker's error arrives as text only
        raise
    return int(dataset.dataset(out, format="parquet").count_rows())


def _lines(
    ray: Any, table: Path, decode: "_Decode", predict: tuple[Any, ...], predictor: Predictor, workers: int
) -> Any:
    """Return the Ray data set of predicted lines; `predict` are the arguments of `_Predict`."""
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    rows = predictor.spec.rows_per_block
    size = sum(value.nbytes for value in predictor.network.state_dict().values())
    return (
        ray.data.read_parquet(str(table))
        .select_columns(decode.reader.columns)
        .map_batches(decode, batch_size=rows, batch_format="pyarrow")
        .map_batches(
            _Predict,
            fn_constructor_args=predict,
            batch_size=rows,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_gpus=1 if predictor.device.type == "cuda" else 0,
            memory=2 * size,  # different resources keep Ray from fusing the two stages
        )
    )


class _Decode:
    """First stage: from paths, bytes or lists to the network's input."""

    def __init__(self, reader: TableReader) -> None:
        self.reader = reader

    def __call__(self, part: pa.Table) -> Columns:
        observed = self.reader.observed(part)
        columns: Columns = {"name": np.array(self.reader.names(part)), "input": self.reader.read(part)}
        return columns if observed is None else {**columns, "observed": np.array([name or "" for name in observed])}


class _Predict:
    """Second stage: a worker with the network."""

    def __init__(self, run: Path, device: str, options: dict[str, Any]) -> None:
        self.labeller = Labeller(open_predictor(run, device), **options)

    def __call__(self, part: Columns) -> pa.Table:
        observed = part["observed"].tolist() if "observed" in part else None
        texts = self.labeller.predictor.spec.texts
        inputs = part["input"].tolist() if texts else torch.from_numpy(part["input"].copy())  # Ray's array is read-only
        return self.labeller(InputBlock(part["name"].tolist(), inputs, observed))


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError(f"Ray is not installed: {install_command('ray')}") from None
    return ray
