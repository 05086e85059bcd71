"""Draw rows to label fully: informative rows more often, with weights so that estimates hold for all rows."""

import re
from pathlib import Path

import numpy as np

from spml.atomic import atomic_path
from spml.calibration import Float32, Float64, Int8, Int64
from spml.errors import InputError
from spml.labels.entries import row_blocks
from spml.recover.labelled import HEAVIEST, LabelledRows
from spml.recover.labels import recover
from spml.runs.folder import RunFolder
from spml.type_checks import check_count

_UNIFORM = 1 / HEAVIEST  # share of the rows drawn with equal probability, which bounds the weights


def sample_rows(run: RunFolder, rows: int = 20, *, seed: int = 0) -> LabelledRows:
    """Draw training and validation rows for full labelling.

    Half of the chance of a row is the same for all; the other half is proportional to the expected number of labels
    that would be recovered, because these are to be checked. Each row's weight is 1 / its chance, so that estimates
    from the sample hold for all rows.

    Parameters
    ----------
    run : RunFolder
        A finished run, from `open_run`.
    rows : int
        How many rows. 20 are a good start; guarantees of a precision need more.
    seed : int

    Returns
    -------
    LabelledRows
        The known labels of the drawn rows, their row numbers and weights.

    Raises
    ------
    InputError
        If there are fewer rows.
    """
    check_count("seed", seed, 0)
    rows = check_count("rows", rows)
    recovered = recover(run)
    candidates = recovered.rows[(recovered.known[recovered.rows] == 0).any(axis=1)]
    if rows > len(candidates):
        raise InputError(f"rows is {rows}: the run {run.name} has {len(candidates)} rows that are not fully labelled")
    expected = np.zeros(len(candidates))
    for part in row_blocks(len(candidates), len(run.classes)):
        block = candidates[part]
        confidences = recovered.calibration.confidences(run.independent[block], recovered.known[block])
        expected[part] = expected_labels(confidences, recovered.known[block])
    chances = inclusion_probabilities(expected, rows)
    drawn = systematic_sample(chances, np.random.default_rng([seed, 0x5A3B]))
    index = np.sort(candidates[drawn])
    weights = 1 / chances[np.sort(drawn)]
    return LabelledRows(run.labels.subset(index), index, weights)


def expected_labels(confidences: Float32, known: Int8) -> Float64:
    """The expected number of correct labels among those that would be recovered in each row."""
    recoverable = (known == 0) & (confidences >= 0.5)
    return np.asarray((confidences * recoverable).sum(axis=1, dtype=np.float64))


def inclusion_probabilities(sizes: Float64, rows: int) -> Float64:
    """The chance of each row to be drawn, half of it proportional to its size; none is above 1, the sum is `rows`."""
    total = sizes.sum()
    shares_of_size = sizes / total if total > 0 else np.full(len(sizes), 1 / len(sizes))
    shares: Float64 = _UNIFORM / len(sizes) + (1 - _UNIFORM) * shares_of_size
    chances: Float64 = np.zeros(len(sizes))
    certain = np.zeros(len(sizes), bool)
    while True:
        rest = ~certain
        chances[certain] = 1.0
        chances[rest] = (rows - certain.sum()) * shares[rest] / max(shares[rest].sum(), 1e-300)
        above = rest & (chances > 1)
        if not above.any():
            return np.minimum(chances, 1.0)
        certain |= above


def systematic_sample(chances: Float64, rng: np.random.Generator) -> Int64:
    """Draw row i with probability chances[i]: equidistant points on the cumulative chances, in random order."""
    order = rng.permutation(len(chances))
    edges = np.cumsum(chances[order])
    count = round(float(edges[-1]))
    points = rng.random() + np.arange(count)
    return order[np.minimum(np.searchsorted(edges, points, side="right"), len(order) - 1)]


def copy_images(sample: LabelledRows, run: RunFolder, folder: Path) -> None:
    """Copy the images of some rows into a new or empty folder; numbers in their names keep the order."""
    from spml.data.stores.images import ImageStore

    store, data = run.store, Path(run.source["path"])
    if not isinstance(store, ImageStore) or not store.from_files:
        raise InputError(f"there are no image files to copy: the data of {run.folder} holds none, or was moved")
    if data.is_dir() and data.resolve() in folder.resolve().parents:
        raise InputError(f"{folder} lies in the data folder {data}, where it would be mistaken for data")
    if folder.is_dir():
        folder.rmdir()  # it is empty
    rows = np.asarray(sample.rows, np.int64).tolist()
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for number, row in enumerate(rows, start=1):
            content, suffix = store.content(row)
            name = re.sub(r"[^\w.-]+", "_", Path(run.names[row]).with_suffix("").as_posix())[-80:]
            (temporary / f"{number:0{len(str(len(rows)))}}-{name}{suffix}").write_bytes(content)


def write_sample(sample: LabelledRows, run: RunFolder, path: Path, *, allow_formulas: bool = False) -> None:
    """Write the rows as CSV with the columns name, label and weight, and text for texts, to be filled in.

    `allow_formulas` is that of `spml.data.csv_cells.csv_writer`.
    """
    import pyarrow as pa

    from spml.data.csv_cells import write_csv
    from spml.data.stores.texts import TextStore

    rows = np.asarray(sample.rows, np.int64)
    positive = sample.labels.dense() > 0
    labels = ["|".join(run.classes[c] for c in np.flatnonzero(row)) for row in positive]
    weights = np.asarray(sample.weights, np.float64).round(6)
    columns = {"name": [run.names[row] for row in rows], "label": labels, "weight": weights}
    if run.record.get("inputs", {}).get("kind") == "texts" and isinstance(run.store, TextStore):
        columns["text"] = run.store.texts(rows)
    table = pa.table(columns)
    with atomic_path(path) as temporary:
        write_csv(table, temporary, allow_formulas=allow_formulas)
