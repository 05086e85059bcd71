"""Labels for new images from a trained run: no GPU, no training data needed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from .data.images import SUFFIXES, ImageStore
from .errors import InputError
from .models import Classifier
from .train.checkpoint import write_text
from .train.finished import best_network
from .train.loop import choose_device, predict

FORMATS = (".csv", ".parquet", ".jsonl")


def predict_files(
    run: Path, images: Sequence[Path], out: Path, *, threshold: float = 0.5, top: int = 1, device: str = "auto"
) -> int:
    """Write the labels of all images; returns how many images there were."""
    if out.suffix not in FORMATS:
        raise InputError(f"{out}: the file must end in {', '.join(FORMATS)}")
    if not (run / "best.safetensors").exists():
        raise InputError(f"{run} is not a finished run: there is no best.safetensors in it")
    files = list_images(images)
    network = best_network(run)
    if not isinstance(network, Classifier):
        raise InputError(f"{run} was trained on features, not on images")
    classes = json.loads((run / "run.json").read_text(encoding="utf-8"))["classes"]
    chosen = choose_device(device)
    store = ImageStore(files, network.description["image_size"], cache_limit=0)
    scores = predict(network.to(chosen), store, np.arange(len(files)), device=chosen, batch_size=32).cpu().numpy()
    rows = [
        {"image": str(file), "label": classes[c], "probability": round(float(p[c]), 6)}
        for file, p in zip(files, scores, strict=True)
        for rank, c in enumerate(np.argsort(-p, kind="stable"))
        if p[c] >= threshold or rank < top
    ]
    _write(rows, out)
    return len(files)


def list_images(paths: Sequence[Path]) -> list[Path]:
    """The image files among these paths and inside these folders, in order."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"{path}: there is no such file or folder")
    if not files:
        raise InputError(f"there is no image in {', '.join(map(str, paths))}")
    return files


def _write(rows: list[dict[str, Any]], out: Path) -> None:
    if out.suffix == ".jsonl":
        write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return
    schema = pa.schema([("image", pa.string()), ("label", pa.string()), ("probability", pa.float64())])
    table = pa.Table.from_pylist(rows, schema=schema)
    beside = out.with_name(f".{out.name}.new")
    if out.suffix == ".csv":
        csv.write_csv(table, beside)
    else:
        parquet.write_table(table, beside)
    beside.replace(out)
