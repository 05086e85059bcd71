"""Write predicted labels as CSV, Parquet or JSON lines, one block at a time."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from spml.atomic import atomic_path, explain_write_errors
from spml.data.csv_cells import csv_writer

FORMATS = (".csv", ".parquet", ".jsonl")
LINES_PER_WRITE = 1 << 16  # also the size of a row group in a Parquet file
MAX_PENDING_TABLES = 16


@contextmanager
def open_writer(out: Path, schema: pa.Schema, *, allow_formulas: bool = False) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends lines to `out`; the file appears only if the block ends without an error.

    `allow_formulas` is that of `csv_writer`.
    """
    pending: list[pa.Table] = []

    def flush() -> None:
        if pending:
            with explain_write_errors(out):
                append(pa.concat_tables(pending))
            pending.clear()

    def write(lines: pa.Table) -> None:
        pending.append(lines)
        if len(pending) == MAX_PENDING_TABLES:  # many small tables would fragment the heap
            pending[:] = [pa.concat_tables(pending).combine_chunks()]
        if sum(len(table) for table in pending) >= LINES_PER_WRITE:
            flush()

    with atomic_path(out) as temporary, ExitStack() as open_file:
        with explain_write_errors(out):
            append = open_file.enter_context(_open_file(temporary, out.suffix, schema, allow_formulas))
        yield write
        flush()
        with explain_write_errors(out):
            open_file.close()


@contextmanager
def _open_file(
    path: Path, suffix: str, schema: pa.Schema, allow_formulas: bool
) -> Iterator[Callable[[pa.Table], None]]:
    if suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            yield lambda lines: file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in lines.to_pylist())
    elif suffix == ".csv":
        with csv_writer(path, schema, allow_formulas=allow_formulas) as append:
            yield append
    else:
        with parquet.ParquetWriter(path, schema) as writer:
            yield writer.write_table
