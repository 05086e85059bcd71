"""Predict a large Parquet table on Ray: on this machine, or on the cluster at RAY_ADDRESS.

python examples/ray_predict.py RUN TABLE.parquet OUT
"""

import sys
from pathlib import Path

from spml.predict.cluster import predict_table


def main(run: str, table: str, out: str, workers: int = 2) -> int:
    """Write a folder of Parquet files with the labels of every row; return the number of lines."""
    lines = predict_table(Path(run), Path(table), Path(out), workers=workers)
    print(f"wrote {lines:,} lines to {out}")
    return lines


if __name__ == "__main__":
    main(*sys.argv[1:4])
