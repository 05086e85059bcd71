"""From a folder of photos to labels and a report on a CPU: time of every command, and test mAP.

    python benchmarks/photos.py --data ../shared/data/voc12 --record    # 1,250 photos of VOC 2012
    python benchmarks/photos.py --photos 200                            # a quick try with built-in scenes
    python benchmarks/photos.py --data ../shared/data/voc12 --train "--effort thorough --epochs 10"

Runs `spml train`, `spml recover` and `spml report`, each in its own process, on JPEG files in one folder per class,
with nothing cached. A machine may be busy with other things: the CPU time of each command is printed beside its time,
and the reference, measured in the same run before and after, is a plain forward pass of the default network over as
many images by PyTorch in float32. Test mAP is measured on other photos with full labels; that is not timed.
"""

import argparse
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

import spml
from limited import Used, run
from record import record
from spml.data import open_data
from spml.data.dataset import Dataset
from spml.metrics import mean_average_precision
from spml.models import build_classifier

Int64 = npt.NDArray[np.int64]

SIZE = 224  # of the reference's images


def choose(data: Dataset, train: int, test: int, seed: int) -> tuple[Int64, Int64]:
    """Rows with a label, and test rows."""
    draw = np.random.default_rng(seed)
    labelled = np.unique(data.labels.subset(data.train).positives()[0])
    return draw.choice(data.train[labelled], train, replace=False), draw.choice(data.test, test, replace=False)


def write_photos(data: Dataset, train: Int64, test: Int64, folder: Path, side: tuple[int, int]) -> None:
    """`train/<class>/<number>.jpg` and `test/<number>.jpg`."""
    label = data.labels.single()
    for part, rows in (("train", train), ("test", test)):
        for number, row in enumerate(rows):
            place = folder / part / (data.classes[label[row]] if part == "train" else "")
            place.mkdir(parents=True, exist_ok=True)
            large = data.store.whole(int(row), max(side)).resize(side, Image.Resampling.BICUBIC)
            large.save(place / f"{number:06d}.jpg", quality=90)


def plain_pass(images: int, threads: int) -> float:
    """Seconds of a forward pass of the default network over this many images, extrapolated from 48."""
    torch.set_num_threads(threads)
    network = build_classifier("lite0", 20, image_size=SIZE).eval()
    batch = torch.randint(0, 256, (16, 3, SIZE, SIZE), dtype=torch.uint8)
    with torch.no_grad():
        network.features(batch)
        started = time.perf_counter()
        for _ in range(3):
            network.features(batch)
    return (time.perf_counter() - started) * images / 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="pack with images, such as VOC 2012; by default built-in scenes")
    parser.add_argument("--photos", type=int, default=1250)
    parser.add_argument("--test", type=int, default=1000, help="photos for test mAP")
    parser.add_argument("--side", default="1024x768", help="size of the JPEG files in pixels")
    parser.add_argument("--train", default="", help="further options of `spml train`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="folder for temporary files")
    parser.add_argument("--record", action="store_true", help="append to results/speed.csv")
    options = parser.parse_args()
    data = open_data("scenes", train=2 * options.photos, test=options.test) if options.data is None else None
    data = data or open_data(options.data)
    train, test = choose(data, options.photos, options.test, options.seed)
    width, height = (int(part) for part in options.side.split("x"))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_photos(data, train, test, folder, (width, height))
        out = str(folder / "run")
        commands = {
            "train": ["train", str(folder / "train"), "--out", out, "--device", "cpu", *shlex.split(options.train)],
            "recover": ["recover", out, "--out", str(folder / "labels.csv")],
            "report": ["report", out, "--out", str(folder / "report.html")],
        }
        os.environ["SPML_CACHE"] = str(folder / "cache")
        reference = plain_pass(options.photos, options.threads)
        used: dict[str, Used] = {}
        for stage, command in commands.items():
            used[stage] = one = run([sys.executable, "-m", "spml", *command], 2**40, options.threads)
            print(f"{stage:8}{one.seconds:8.1f} s, {one.busy:.1f} s of CPU time", flush=True)
            if stage == "train":
                print("\n".join(f"    {line}" for line in one.output.splitlines() if line.strip()))
        reference = (reference + plain_pass(options.photos, options.threads)) / 2
        network = spml.load(folder / "run", device="cpu")
        probabilities = network.predict(sorted((folder / "test").iterdir()))
        score = 100 * mean_average_precision(probabilities, data.full_labels(test).dense() > 0)
    total, busy = sum(one.seconds for one in used.values()), sum(one.busy for one in used.values())
    print(f"total   {total:8.1f} s, {busy:.1f} s of CPU time; a plain pass over the images: {reference:.1f} s; "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"test mAP {score:.2f}")
    if options.record:
        stages = {f"{stage}_seconds": f"{one.seconds:.1f}" for stage, one in used.items()}
        cpu = {f"{stage}_cpu_seconds": f"{one.busy:.1f}" for stage, one in used.items()}
        extra = {
            "data": data.name,
            "photos": options.photos,
            "pixels": options.side,
            "threads": options.threads,
            "test_map": f"{score:.2f}",
            **stages,
            **cpu,
        }
        extra |= {"cpu_seconds": f"{busy:.1f}", "load": f"{os.getloadavg()[0]:.1f}"}
        record("photos", total, reference, "plain forward pass over the images", options.seed, **extra)


if __name__ == "__main__":
    main()
